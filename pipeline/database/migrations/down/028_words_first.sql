drop index index_document_wanted;
create index index_document_wanted on index_document (index_id, due_at)
    where wanted > version and dead_version is distinct from wanted;

-- What is found by words alone is found again when it has its vectors.
do $$
declare part regclass;
begin
    alter table public.document no force row level security;
    alter table public.chunk no force row level security;
    for part in select inhrelid from pg_inherits where inhparent = 'public.chunk'::regclass loop
        execute format('alter table %s no force row level security', part);
        execute format('delete from %s where embedding is null', part);
        execute format('alter table %s force row level security', part);
    end loop;
    alter table public.chunk force row level security;
    update public.document set chunk_count = 0 where indexed_version is null and chunk_count > 0;
    alter table public.document force row level security;
end $$;
alter table chunk alter column embedding set not null;

alter table document_count drop column indexed;
create or replace function count_documents() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, count(*), sum(chunk_count)
            from fresh where not deleted group by 1, 2, 3, 4, 5;
    elsif tg_op = 'DELETE' then
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, -count(*), -sum(chunk_count)
            from gone where not deleted group by 1, 2, 3, 4, 5;
    else
        insert into public.document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, sum(n), sum(n * chunk_count)
            from (select tenant_id, source_id, state, stage, hidden, chunk_count, 1 as n from fresh where not deleted
                  union all
                  select tenant_id, source_id, state, stage, hidden, chunk_count, -1 from gone where not deleted) d
            group by 1, 2, 3, 4, 5 having sum(n) <> 0 or sum(n * chunk_count) <> 0;
    end if;
    return null;
end $$;
