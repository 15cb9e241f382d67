do $$
declare
    built record;
begin
    for built in
        select * from (values ('build_keyword_index(integer)'::regprocedure, '256MB'),
                              ('build_vector_index(integer, bigint)'::regprocedure, '1GB')) v(called, least)
    loop
        execute regexp_replace(pg_get_functiondef(built.called), '    perform set_config\(''maintenance_work_mem''.*?;\n', '');
        execute format('alter function %s set maintenance_work_mem = %L', built.called, built.least);
    end loop;
end $$;
