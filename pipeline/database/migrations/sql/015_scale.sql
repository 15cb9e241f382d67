-- What is asked at every tick and on the operator's screen is answered from a few rows, however many documents there are.

-- The owner is bound by row-level security like everybody, hence the lines around.
alter table document no force row level security;
alter table run_item no force row level security;

-- Documents that wait are found by source and stage, so that the pump takes turns; those about which a message is under
-- way, and which somebody works on, are few. Who claims is always among the latter.
update document set enqueued_at = now() where state = 'pending' and lease_token is not null and enqueued_at is null;
drop index document_due;
create index document_waiting on document (source_id, stage, due_at, id)
    where state = 'pending' and enqueued_at is null;
create index document_sent on document (enqueued_at) where state = 'pending' and enqueued_at is not null;

create index enrichment_job_waiting on enrichment_job (tenant_id, priority, created_at)
    where state = 'queued' and enqueued_at is null;
create index enrichment_job_sent on enrichment_job (tenant_id, priority)
    where state in ('queued', 'running') and enqueued_at is not null;

-- A run closes when the words of its documents were counted after this.
alter table sync_run add column settled_at timestamptz;

-- A document that goes takes what names it along: without an index each one read these tables whole.
drop index run_item_open;
create index run_item_of_document on run_item (document_id);
create index dead_letter_of_document on dead_letter (document_id);
create index document_removed on document (coalesce(last_indexed, first_seen_at)) where deleted;

-- What an index lacks is noted when a document becomes searchable in another one; all are compared, some at a time, when
-- an index begins, and now and then.
alter table index_document add column wanted integer not null default 0;    -- the version that it lacks, or has by now
create index index_document_wanted on index_document (index_id, due_at)
    where wanted > version and dead_version is distinct from wanted;
alter table search_index
    add column walk_tenant uuid,                     -- how far all were compared
    add column walk_document uuid,
    add column walked_at timestamptz;                -- when all were; null: some are still to be
grant select (wanted), insert (wanted), update (wanted) on index_document to larder_control;
grant update (walk_tenant, walk_document, walked_at) on search_index to larder_control;

-- Figures. Each statement notes by how much it changed them, in rows of its own, so that no two writers wait for each
-- other; the pump adds these up now and then. `at` is when a figure changed last.

create table document_count (
    tenant_id  uuid not null,
    source_id  uuid not null,
    state      text not null,
    stage      text not null,
    hidden     boolean not null,
    documents  bigint not null,                      -- that are not deleted
    chunks     bigint not null,
    at         timestamptz not null default clock_timestamp()
);

create function count_documents() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, count(*), sum(chunk_count)
            from fresh where not deleted group by 1, 2, 3, 4, 5;
    elsif tg_op = 'DELETE' then
        insert into document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, -count(*), -sum(chunk_count)
            from gone where not deleted group by 1, 2, 3, 4, 5;
    else
        insert into document_count (tenant_id, source_id, state, stage, hidden, documents, chunks)
            select tenant_id, source_id, state, stage, hidden, sum(n), sum(n * chunk_count)
            from (select tenant_id, source_id, state, stage, hidden, chunk_count, 1 as n from fresh where not deleted
                  union all
                  select tenant_id, source_id, state, stage, hidden, chunk_count, -1 from gone where not deleted) d
            group by 1, 2, 3, 4, 5 having sum(n) <> 0 or sum(n * chunk_count) <> 0;
    end if;
    return null;
end $$;

insert into document_count (tenant_id, source_id, state, stage, hidden, documents, chunks, at)
    select tenant_id, source_id, state, stage, hidden, count(*), sum(chunk_count),
           coalesce(max(last_indexed), '-infinity')
    from document where not deleted group by 1, 2, 3, 4, 5;

create trigger count_inserted after insert on document referencing new table as fresh
    for each statement execute function count_documents();
create trigger count_updated after update on document referencing old table as gone new table as fresh
    for each statement execute function count_documents();
create trigger count_deleted after delete on document referencing old table as gone
    for each statement execute function count_documents();

create table run_count (
    run_id         bigint not null,
    tenant_id      uuid not null,
    outcome        text,                             -- of its items; null: open
    items          bigint not null,
    chunks         bigint not null,
    chunks_written bigint not null,
    chunks_kept    bigint not null,
    texts_embedded bigint not null,
    texts_reused   bigint not null,
    texts_cut      bigint not null
);
create index run_count_of_run on run_count (run_id);

create function count_run_items() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into run_count (run_id, tenant_id, outcome, items, chunks, chunks_written, chunks_kept, texts_embedded,
                               texts_reused, texts_cut)
            select run_id, tenant_id, outcome, count(*), sum(chunks), sum(chunks_written), sum(chunks_kept),
                   sum(texts_embedded), sum(texts_reused), sum(texts_cut)
            from fresh group by 1, 2, 3;
    elsif tg_op = 'DELETE' then
        insert into run_count (run_id, tenant_id, outcome, items, chunks, chunks_written, chunks_kept, texts_embedded,
                               texts_reused, texts_cut)
            select run_id, tenant_id, outcome, -count(*), -sum(chunks), -sum(chunks_written), -sum(chunks_kept),
                   -sum(texts_embedded), -sum(texts_reused), -sum(texts_cut)
            from gone group by 1, 2, 3;
    else
        insert into run_count (run_id, tenant_id, outcome, items, chunks, chunks_written, chunks_kept, texts_embedded,
                               texts_reused, texts_cut)
            select run_id, tenant_id, outcome, sum(n), sum(n * chunks), sum(n * chunks_written), sum(n * chunks_kept),
                   sum(n * texts_embedded), sum(n * texts_reused), sum(n * texts_cut)
            from (select f.*, 1 as n from fresh f union all select g.*, -1 from gone g) i
            group by 1, 2, 3;
    end if;
    return null;
end $$;

insert into run_count (run_id, tenant_id, outcome, items, chunks, chunks_written, chunks_kept, texts_embedded,
                       texts_reused, texts_cut)
    select run_id, tenant_id, outcome, count(*), sum(chunks), sum(chunks_written), sum(chunks_kept),
           sum(texts_embedded), sum(texts_reused), sum(texts_cut)
    from run_item group by 1, 2, 3;

create trigger count_inserted after insert on run_item referencing new table as fresh
    for each statement execute function count_run_items();
create trigger count_updated after update on run_item referencing old table as gone new table as fresh
    for each statement execute function count_run_items();
create trigger count_deleted after delete on run_item referencing old table as gone
    for each statement execute function count_run_items();

revoke execute on function count_documents(), count_run_items() from public;
grant execute on function count_documents(), count_run_items() to larder_app, larder_control;

do $$
declare t text;
begin
    foreach t in array array['document_count', 'run_count'] loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))
                        with check (tenant_id = (select current_tenant()))', t);
        execute format('create policy ledger on %I to larder_control using (true) with check (true)', t);
        -- Rows that go with another one are deleted by their owner.
        execute format('create policy cascade on %I for insert to current_user with check (true)', t);
        execute format('grant select, insert on %I to larder_app', t);
        execute format('grant select, insert, delete on %I to larder_control', t);
    end loop;
end $$;
alter table document force row level security;
alter table run_item force row level security;
