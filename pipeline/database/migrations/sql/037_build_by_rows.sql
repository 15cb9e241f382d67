-- A vector index is built with memory for its rows, up to the 1 GB that was taken for any: a parallel build takes and
-- clears all of it before it begins. At 10^6 rows of 384 dimensions a graph took 1,483 bytes a vector.
do $$
begin
    execute replace(pg_get_functiondef('build_vector_index(integer, bigint)'::regprocedure),
        'pg_size_bytes(''1GB'')', 'least(pg_size_bytes(''1GB''), p_rows * (2 * dims + 1024))');
end $$;
