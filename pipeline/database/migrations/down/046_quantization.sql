drop function build_vector_index(integer, bigint, text);
-- An index of bits serves no search of before: it is built again when somebody looks whether one is due.
do $$
declare
    one integer;
begin
    for one in select id from search_index where quantization = 'bit' loop
        execute format('drop index if exists %I', format('chunk_%s_vector', one));
        update search_index set indexed_rows = null where id = one;
    end loop;
end $$;
alter table search_index drop column quantization;
