-- One table of work: a document in a search index. It has a row as long as there is something to do there, or once that
-- was given up; what each index holds is in `index_document`, and `document` is written only when its text or state changes.

create table index_work (
    tenant_id   uuid not null references tenant on delete cascade,
    document_id uuid not null references document on delete cascade,
    index_id    integer not null default 0,          -- 0: the index that is read, whichever that is
    beside      integer generated always as (nullif(index_id, 0)) stored references search_index on delete cascade,
    source_id   uuid not null,
    version     integer not null,                    -- of the document, that the index is to have
    stage       text not null default 'fetched' check (stage in ('fetched', 'chunked', 'embedded')),
    lane        smallint not null default 6,
    turn        bigint,                              -- null: the pump gives one when it is due
    due_at      timestamptz not null default now(),
    enqueued_at timestamptz,
    lease_token uuid,
    lease_until timestamptz,
    attempts    integer not null default 0,
    waits       integer not null default 0,          -- times put back without a fault, in this stage
    crash_count integer not null default 0,
    last_error  text,
    dead        boolean not null default false,      -- given up in this version
    primary key (document_id, index_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
create index index_work_next on index_work (cast(stage = 'chunked' as integer), lane, turn, due_at, source_id)
    where enqueued_at is null and turn is not null and not dead;
create index index_work_turnless on index_work (due_at) where turn is null and not dead;
create index index_work_due on index_work (stage, due_at) where enqueued_at is null and not dead and index_id = 0;
create index index_work_sent on index_work (enqueued_at) where enqueued_at is not null;
create index index_work_beside on index_work (beside) where beside is not null;

alter table index_work enable row level security;
alter table index_work force row level security;
create policy own_tenant on index_work using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
create policy ledger on index_work to larder_control using (true) with check (true);
grant select, insert, update, delete on index_work to larder_app, larder_control;
insert into lane_clock (lane) values (9);

-- The figures of what waits, as those of documents: each statement notes by how much it changed them.
create table index_work_count (
    tenant_id uuid not null,
    index_id  integer not null,
    stage     text not null,
    items     bigint not null                        -- that are not dead
);
alter table index_work_count enable row level security;
alter table index_work_count force row level security;
create policy own_tenant on index_work_count using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
create policy ledger on index_work_count to larder_control using (true) with check (true);
create policy cascade on index_work_count for insert to current_user with check (true);
grant select, insert on index_work_count to larder_app;
grant select, insert, delete on index_work_count to larder_control;

create function count_index_work() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into public.index_work_count (tenant_id, index_id, stage, items)
            select tenant_id, index_id, stage, count(*) from fresh where not dead group by 1, 2, 3;
    elsif tg_op = 'DELETE' then
        insert into public.index_work_count (tenant_id, index_id, stage, items)
            select tenant_id, index_id, stage, -count(*) from gone where not dead group by 1, 2, 3;
    else
        insert into public.index_work_count (tenant_id, index_id, stage, items)
            select tenant_id, index_id, stage, sum(n)
            from (select tenant_id, index_id, stage, 1 as n from fresh where not dead
                  union all select tenant_id, index_id, stage, -1 from gone where not dead) w
            group by 1, 2, 3 having sum(n) <> 0;
    end if;
    return null;
end $$;
revoke execute on function count_index_work() from public;
grant execute on function count_index_work() to larder_app, larder_control;
create trigger count_inserted after insert on index_work referencing new table as fresh
    for each statement execute function count_index_work();
create trigger count_updated after update on index_work referencing old table as gone new table as fresh
    for each statement execute function count_index_work();
create trigger count_deleted after delete on index_work referencing old table as gone
    for each statement execute function count_index_work();

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
       w.last_error as error_message,
       coalesce(w.attempts + w.crash_count, 0) as retry_count,
       d.metadata
from document d left join index_work w on w.document_id = d.id and w.index_id = 0
where not d.deleted;

do $$
begin
    execute replace(pg_get_functiondef('analyze_grown()'::regprocedure),
                    '''public.index_document''', '''public.index_document'', ''public.index_work''');
end $$;

-- Workers of the release before keep the work for the index that is read in the columns of `document`. With the year 9999 as
-- the time at which a document is due they leave it alone; another one tells what they admitted, and nobody works on it.
create index document_due_before on document (id) where state in ('pending', 'dead') and due_at < '9999-01-01 00:00+00';

-- Makes work items of up to so many such documents. The pump calls it at each tick, until the columns are dropped.
create function adopt_documents(p_most bigint) returns bigint language sql set search_path = public, pg_temp as $$
    with waiting as materialized (
        select id, tenant_id, source_id, desired_version, state, stage, lane, due_at, attempts, waits, last_error
        from document where state in ('pending', 'dead') and due_at < '9999-01-01 00:00+00' and (lease_until is null or lease_until < now())
        order by id limit p_most for no key update skip locked
    ), taken as (
        update document d set due_at = '9999-01-01 00:00+00', waits = 0, enqueued_at = null, lease_token = null, lease_until = null
        from waiting w where d.id = w.id
    ), adopted as (
        insert into index_work as w (tenant_id, document_id, source_id, version, stage, lane, due_at, attempts, waits,
                                     last_error, dead)
        select tenant_id, id, source_id, desired_version, case when state = 'dead' then 'fetched' else stage end, lane, due_at,
               attempts, waits, last_error, state = 'dead'
        from waiting
        on conflict (document_id, index_id) do update set version = excluded.version, stage = excluded.stage,
            lane = excluded.lane, turn = null, due_at = excluded.due_at, attempts = excluded.attempts, waits = excluded.waits,
            last_error = excluded.last_error, dead = excluded.dead, crash_count = 0, enqueued_at = null, lease_token = null,
            lease_until = null
        returning 1)
    select count(*) from adopted
$$;
revoke execute on function adopt_documents(bigint) from public;
grant execute on function adopt_documents(bigint) to larder_control;

-- The owner is bound by row-level security like everybody, hence the lines around.
alter table document no force row level security;
alter table index_document no force row level security;
alter table index_work no force row level security;
alter table index_work_count no force row level security;
select adopt_documents(20000);  -- the pump goes on with the rest, while searches do not wait for this transaction
insert into index_work (tenant_id, document_id, index_id, source_id, version, lane, due_at, attempts, waits, last_error, dead)
    select x.tenant_id, x.document_id, x.index_id, d.source_id, d.indexed_version, 9, x.due_at, x.attempts, x.waits,
           x.last_error, x.dead_version is not distinct from d.indexed_version
    from index_document x join document d on d.id = x.document_id
    where x.wanted > x.version and x.version < d.indexed_version and not d.deleted;
update index_document set wanted = version where wanted > version;
alter table index_work_count force row level security;
alter table index_work force row level security;
alter table index_document force row level security;
alter table document force row level security;
