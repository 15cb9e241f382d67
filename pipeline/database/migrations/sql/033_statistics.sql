-- The planner's statistics of tables that have doubled since they were taken: without any it takes all rows of a tenant
-- for a few and reads them in each statement, and autovacuum looks only once a minute.
create function analyze_grown() returns void language plpgsql security definer set search_path = public, pg_temp as $$
declare grown regclass;
begin
    for grown in
        select c.oid from pg_class c
        where (c.oid = any(array['public.document', 'public.document_body', 'public.run_item', 'public.chunk_stage',
                                 'public.embedding_cache', 'public.index_document']::regclass[])
               or c.oid in (select inhrelid from pg_inherits where inhparent = 'public.chunk'::regclass))
          and pg_relation_size(c.oid) > 2 * greatest(c.relpages, 8) * current_setting('block_size')::bigint
    loop
        execute format('analyze (skip_locked) %s (tenant_id)', grown);
    end loop;
end $$;
revoke execute on function analyze_grown() from public;
grant execute on function analyze_grown() to larder_control;

-- Both of an index are built at once. Each analyzes at its end, which the other one forbids while it builds: the last does.
do $$
declare called regprocedure;
begin
    foreach called in array array['build_keyword_index(integer)', 'build_vector_index(integer, bigint)']::regprocedure[] loop
        execute replace(replace(pg_get_functiondef(called), 'advisory_xact_lock(', 'advisory_xact_lock_shared('),
                        'analyze %I', 'analyze (skip_locked) %I');
    end loop;
end $$;
