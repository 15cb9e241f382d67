-- A vector index may hold one bit for each number: a third of the memory, since the graph remains, for searches that
-- compare what it names with the whole vectors afterwards.
alter table search_index
    add column quantization text not null default 'halfvec' check (quantization in ('halfvec', 'bit'));

create function build_vector_index(p_index integer, p_rows bigint, p_quantization text) returns void
    language plpgsql security definer set search_path = public, pg_temp as $$
declare
    dims integer := (select dimensions from public.search_index where id = p_index);
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    if exists (select from public.search_index where id = p_index and quantization <> p_quantization) then
        execute format('drop index if exists public.%I', format('chunk_%s_vector', p_index));
    end if;
    update public.search_index set quantization = p_quantization where id = p_index;
    if p_quantization = 'bit' then
        perform set_config('maintenance_work_mem', greatest(least(pg_size_bytes('1GB'), p_rows * (dims / 8 + 1024)),
            pg_size_bytes(current_setting('maintenance_work_mem'))) / 1024 || 'kB', true);
        execute format('create index if not exists %I on public.%I using hnsw
                        ((binary_quantize(embedding::halfvec(%s))::bit(%s)) bit_hamming_ops)',
                       format('chunk_%s_vector', p_index), format('chunk_%s', p_index), dims, dims);
        execute format('analyze public.%I', format('chunk_%s', p_index));
        update public.search_index set indexed_rows = p_rows where id = p_index;
    else
        perform public.build_vector_index(p_index, p_rows);
    end if;
end $$;
revoke execute on function build_vector_index(integer, bigint, text) from public;
grant execute on function build_vector_index(integer, bigint, text) to larder_control;
