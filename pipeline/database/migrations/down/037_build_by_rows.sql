do $$
begin
    execute replace(pg_get_functiondef('build_vector_index(integer, bigint)'::regprocedure),
        'least(pg_size_bytes(''1GB''), p_rows * (2 * dims + 1024))', 'pg_size_bytes(''1GB'')');
end $$;
