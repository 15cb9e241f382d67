-- Documents are found by their words as soon as they are cut, and by meaning when their vectors are there.

-- A chunk without a vector is one of a document that was never indexed: what was, keeps its last version until the next one
-- is whole. The constraint is each partition's own, too.
do $$
declare part regclass;
begin
    alter table public.chunk alter column embedding drop not null;
    for part in select inhrelid from pg_inherits where inhparent = 'public.chunk'::regclass loop
        execute format('alter table %s alter column embedding drop not null', part);
    end loop;
end $$;

-- Of what waits, the figures tell what was never indexed. The owner is bound by row-level security like everybody, hence
-- the lines around.
alter table document no force row level security;
alter table document_count no force row level security;
alter table document_count add column indexed boolean not null default true;
truncate document_count;
insert into document_count (tenant_id, source_id, state, stage, hidden, indexed, documents, chunks, at)
    select tenant_id, source_id, state, stage, hidden, indexed_version is not null, count(*), sum(chunk_count),
           coalesce(max(last_indexed), '-infinity')
    from document where not deleted group by 1, 2, 3, 4, 5, 6;
alter table document_count force row level security;
alter table document force row level security;

create or replace function count_documents() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, indexed, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, indexed_version is not null, count(*), sum(chunk_count)
            from fresh where not deleted group by 1, 2, 3, 4, 5, 6;
    elsif tg_op = 'DELETE' then
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, indexed, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, indexed_version is not null, -count(*), -sum(chunk_count)
            from gone where not deleted group by 1, 2, 3, 4, 5, 6;
    else
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, indexed, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, indexed, sum(n), sum(n * chunk_count)
            from (select tenant_id, source_id, state, stage, hidden, indexed_version is not null as indexed, chunk_count,
                         1 as n from fresh where not deleted
                  union all
                  select tenant_id, source_id, state, stage, hidden, indexed_version is not null, chunk_count, -1
                  from gone where not deleted) d
            group by 1, 2, 3, 4, 5, 6 having sum(n) <> 0 or sum(n * chunk_count) <> 0;
    end if;
    return null;
end $$;

-- Tenants take turns where an index is filled.
drop index index_document_wanted;
create index index_document_wanted on index_document (index_id, tenant_id, due_at)
    where wanted > version and dead_version is distinct from wanted;
