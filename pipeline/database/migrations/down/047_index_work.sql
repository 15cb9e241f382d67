alter table document no force row level security;
alter table index_document no force row level security;
alter table index_work no force row level security;
update document d set stage = w.stage, due_at = w.due_at, attempts = w.attempts, waits = w.waits, last_error = w.last_error
    from index_work w where w.document_id = d.id and w.index_id = 0 and w.version = d.desired_version;
update index_document x set wanted = w.version, dead_version = case when w.dead then w.version end, due_at = w.due_at,
       attempts = w.attempts, waits = w.waits, last_error = w.last_error
    from index_work w where w.document_id = x.document_id and w.index_id = x.index_id;
insert into index_document (tenant_id, index_id, document_id, wanted, dead_version, due_at, attempts, waits, last_error)
    select tenant_id, index_id, document_id, version, case when dead then version end, due_at, attempts, waits, last_error
    from index_work where index_id > 0
    on conflict do nothing;
alter table index_document force row level security;
alter table document force row level security;
create or replace view indexing_state with (security_invoker = true) as
select d.number as id,
       coalesce(d.metadata ->> 'source_path', d.external_id) as source_path,
       d.source_type,
       d.last_indexed,
       d.desired_hash as content_hash,
       d.chunk_count,
       array(select d.id || ':' || o from generate_series(0, d.chunk_count - 1) o) as vector_ids,
       case when d.state = 'dead' then 'failed'
            when d.state = 'done' then 'indexed'
            when d.indexed_version is null then 'pending'
            else 'outdated' end as status,
       d.last_error as error_message,
       d.attempts + d.crash_count as retry_count,
       d.metadata
from document d
where not d.deleted;
delete from lane_clock where lane = 9;
drop function adopt_documents(bigint);
drop index document_due_before;
drop table index_work, index_work_count;
drop function count_index_work();
do $$
begin
    execute replace(pg_get_functiondef('analyze_grown()'::regprocedure), ', ''public.index_work''', '');
end $$;
