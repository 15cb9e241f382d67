-- Indexes are built with what the server or the role allows for it, if that is more than what was written here: the graph of
-- a vector index that does not fit is finished on disk, many times more slowly.
do $$
declare
    built record;
begin
    for built in
        select * from (values ('build_keyword_index(integer)'::regprocedure, '256MB'),
                              ('build_vector_index(integer, bigint)'::regprocedure, '1GB')) v(called, least)
    loop
        execute format('alter function %s reset maintenance_work_mem', built.called);
        execute replace(pg_get_functiondef(built.called), E'\nbegin\n', format(E'\nbegin\n'
            '    perform set_config(''maintenance_work_mem'', greatest(pg_size_bytes(%L),\n'
            '        pg_size_bytes(current_setting(''maintenance_work_mem''))) / 1024 || ''kB'', true);\n', built.least));
    end loop;
end $$;
