-- Tables, roles and row-level security of the whole store.
--
-- Three roles: the owner (whoever runs this file), larder_app (touches text and vectors, one tenant a
-- transaction), larder_control (sees the ledger of every tenant, never a text).

create extension if not exists vector;

do $$
begin
    if not exists (select from pg_roles where rolname = 'larder_app') then
        create role larder_app nologin noinherit;
    end if;
    if not exists (select from pg_roles where rolname = 'larder_control') then
        create role larder_control nologin noinherit;
    end if;
end $$;

-- The setting is '' after a transaction that used it, not null: hence nullif. A scalar subselect
-- makes the planner read it once per query and not once per row.
create function current_tenant() returns uuid language sql stable parallel safe
    return nullif(current_setting('app.tenant', true), '')::uuid;

create table tenant (
    id          uuid primary key,
    name        text not null,
    created_at  timestamptz not null default now()
);

create table project (
    id          uuid primary key,
    tenant_id   uuid not null references tenant on delete cascade,
    name        text not null,
    created_at  timestamptz not null default now(),
    unique (tenant_id, name)
);

create table source (
    id               uuid primary key,
    tenant_id        uuid not null references tenant on delete cascade,
    project_id       uuid not null,
    name             text not null,
    kind             text not null,                 -- type in the configuration: markdown, pbi_json, ...
    schedule         text not null default '',
    timezone         text not null default 'UTC',
    watch            boolean not null default false,
    origin           text not null default 'file',  -- file: the configuration; command: `larder ingest`
    config           jsonb not null default '{}',   -- as configured, without secrets
    config_hash      text not null default '',
    pipeline_version text not null default '',
    cursor           jsonb,
    stamp            text,
    next_sync_at     timestamptz,
    next_walk_at     timestamptz,                   -- when the periodic id walk (reconcile) is due
    last_sync_at     timestamptz,                   -- last walk that ended without an error
    last_error       text,
    failures         integer not null default 0,    -- failed syncs in a row
    paused_at        timestamptz,
    removed_at       timestamptz,                   -- no longer configured
    held             integer not null default 0,    -- deletions that wait for a human
    released_until   timestamptz,
    sync_token       uuid,
    sync_lease_until timestamptz,
    unique (tenant_id, name)
);

create table sync_run (
    id             bigint generated always as identity primary key,
    tenant_id      uuid not null,
    source_id      uuid not null references source on delete cascade,
    state          text not null default 'discovering'
                   check (state in ('discovering', 'processing', 'finished', 'failed')),
    trigger        text not null,                   -- schedule, watch, manual, reconcile
    force          boolean not null default false,
    walk           boolean not null default false,  -- ends with an id walk
    started_at     timestamptz not null default now(),
    heartbeat_at   timestamptz not null default now(),
    discovered_at  timestamptz,
    finished_at    timestamptz,
    enqueued_at    timestamptz,
    due_at         timestamptz not null default now(),
    attempts       integer not null default 0,
    error          text,
    cursor         jsonb,                           -- where this run's own walk stands
    listed         integer not null default 0,
    unchanged      integer not null default 0,
    queued         integer not null default 0,
    skipped        integer not null default 0,
    failed         integer not null default 0,
    hidden         integer not null default 0,
    deleted        integer not null default 0,
    restored       integer not null default 0,
    indexed        integer not null default 0,
    dead           integer not null default 0,
    superseded     integer not null default 0,
    chunks         integer not null default 0,
    chunks_written integer not null default 0,
    chunks_kept    integer not null default 0,
    texts_embedded integer not null default 0,
    texts_reused   integer not null default 0,
    problems       jsonb not null default '[]'      -- [{"item", "reason", "outcome"}], the first 200
);
create unique index sync_run_one_open on sync_run (source_id) where finished_at is null;
create index sync_run_of_source on sync_run (source_id, started_at desc);

create table document (
    id               uuid primary key,
    number           bigint generated always as identity,
    tenant_id        uuid not null references tenant on delete cascade,
    source_id        uuid not null references source on delete cascade,
    external_id      text not null,
    project_id       uuid not null,
    source_type      text not null,
    kind             text not null,
    title            text not null,
    url              text not null default '',
    tags             text[] not null default '{}',
    metadata         jsonb not null default '{}',
    security_level   text not null default 'internal',
    hidden           boolean not null default false,  -- absent from the last complete walk
    deleted          boolean not null default false,  -- absent twice, or the source said so
    state            text not null default 'pending' check (state in ('pending', 'done', 'dead')),
    stage            text not null default 'fetched'
                     check (stage in ('fetched', 'chunked', 'embedded', 'done')),
    last_error       text,
    desired_version  integer not null default 1,
    desired_hash     text not null,
    pipeline_version text not null,
    indexed_version  integer,
    indexed_hash     text,
    indexed_pipeline text,
    generation       integer not null default 0,      -- how often its chunks were replaced
    created_at       timestamptz,
    updated_at       timestamptz,
    first_seen_at    timestamptz not null default now(),
    last_indexed     timestamptz,
    chunk_count      integer not null default 0,
    centroid         halfvec,
    attempts         integer not null default 0,
    crash_count      integer not null default 0,
    due_at           timestamptz not null default now(),
    enqueued_at      timestamptz,
    lease_token      uuid,
    lease_until      timestamptz,
    unique (tenant_id, source_id, external_id)
);
create index document_due on document (due_at, id) where state = 'pending';
create index document_of_source on document (source_id, state);
create index document_tags on document using gin (tags);

create table run_item (
    run_id         bigint not null references sync_run on delete cascade,
    tenant_id      uuid not null,
    document_id    uuid not null references document on delete cascade,
    version        integer not null,
    outcome        text check (outcome in ('done', 'dead', 'superseded')),   -- null while open
    chunks         integer not null default 0,
    chunks_written integer not null default 0,
    chunks_kept    integer not null default 0,
    texts_embedded integer not null default 0,
    texts_reused   integer not null default 0,
    primary key (run_id, document_id)
);
create index run_item_open on run_item (document_id) where outcome is null;
create index run_item_open_of_run on run_item (run_id) where outcome is null;

create table document_body (
    document_id uuid not null references document on delete cascade,
    tenant_id   uuid not null,
    version     integer not null,
    body        text not null,
    primary key (document_id, version)
);

create table chunk_stage (
    document_id uuid not null references document on delete cascade,
    tenant_id   uuid not null,
    version     integer not null,
    ord         integer not null,
    content     text not null,
    context     text not null,
    hash        bytea not null,
    primary key (document_id, version, ord)
);

create table embedding_cache (
    tenant_id  uuid not null references tenant on delete cascade,
    model      text not null,
    hash       bytea not null,
    vector     halfvec not null,
    used_at    timestamptz not null default now(),
    primary key (tenant_id, model, hash)
);
alter table embedding_cache alter column vector set storage plain;
create index embedding_cache_used on embedding_cache (used_at);

create table search_index (
    id               integer generated always as identity primary key,
    provider         text not null,
    model            text not null,
    dimensions       integer not null check (dimensions between 1 and 4000),
    chunker          text not null,
    pipeline_version text not null,
    status           text not null check (status in ('building', 'active', 'retired')),
    indexed_rows     bigint,                        -- rows when HNSW was built; null: exact search
    keyword_built    boolean not null default false,
    created_at       timestamptz not null default now(),
    activated_at     timestamptz
);
create unique index search_index_one_active on search_index ((true)) where status = 'active';

create table chunk (
    index_id    integer not null,
    tenant_id   uuid not null,
    project_id  uuid not null,
    document_id uuid not null,
    ord         integer not null,
    version     integer not null,
    content     text not null,
    context     text not null default '',
    hash        bytea not null,
    lexemes     tsvector not null,
    length      integer not null,
    embedding   halfvec not null,
    primary key (index_id, document_id, ord)
) partition by list (index_id);
-- Kept in the row: an exact scan that has to fetch each vector from a side table is 2 to 3 times slower.
alter table chunk alter column embedding set storage plain;
-- The same for words: content goes to the side table first, and scoring reads only words.
alter table chunk alter column lexemes set storage main;

create table lexeme_stat (
    tenant_id uuid not null references tenant on delete cascade,
    index_id  integer not null,
    lexeme    text not null,
    chunks    integer not null,
    primary key (tenant_id, index_id, lexeme)
);

create table index_stat (
    tenant_id    uuid not null references tenant on delete cascade,
    index_id     integer not null,
    chunks       integer not null,
    mean_length  real not null,
    refreshed_at timestamptz not null default now(),
    primary key (tenant_id, index_id)
);

create table dead_letter (
    id          bigint generated always as identity primary key,
    tenant_id   uuid not null,
    source_id   uuid not null,
    document_id uuid not null references document on delete cascade,
    version     integer not null,
    stage       text not null,
    code        text not null,
    reason      text not null,
    attempts    integer not null,
    crash_count integer not null,
    created_at  timestamptz not null default now(),
    resolved_at timestamptz,
    resolution  text
);
create index dead_letter_open on dead_letter (document_id) where resolved_at is null;

create table audit (
    id        bigint generated always as identity primary key,
    tenant_id uuid,
    at        timestamptz not null default clock_timestamp(),
    actor     text not null,
    action    text not null,
    subject   text not null,
    detail    jsonb not null default '{}',
    prev_hash text not null,
    hash      text not null
);

create table enrichment_job (
    id                uuid primary key,
    tenant_id         uuid not null references tenant on delete cascade,
    project_id        uuid not null,
    request           jsonb not null,
    state             text not null default 'queued'
                      check (state in ('queued', 'running', 'done', 'failed', 'expired')),
    priority          integer not null default 0,
    result            jsonb,
    degradation_level integer,
    attempts          integer not null default 0,
    deadline          timestamptz,
    enqueued_at       timestamptz,
    lease_token       uuid,
    lease_until       timestamptz,
    created_at        timestamptz not null default now(),
    finished_at       timestamptz
);

create table feedback (
    tenant_id   uuid not null references tenant on delete cascade,
    document_id uuid not null references document on delete cascade,
    query_hash  text not null,
    verdict     text not null,
    weight      real not null default 1,
    at          timestamptz not null default now(),
    primary key (tenant_id, document_id, query_hash)
);

create table clarifai_user_story_embeddings (
    id                  varchar(64) primary key default replace(gen_random_uuid()::text, '-', ''),
    tenant_id           uuid not null references tenant on delete cascade default current_tenant(),
    user_story_id       varchar(20) not null,
    title               varchar(500) not null,
    user_story_text     text not null,
    acceptance_criteria text[],
    description         text,
    requirement_id      varchar(20),
    requirement_text    text,
    tags                text[],
    priority            varchar(20),
    tshirt_size         varchar(5),
    confidence_score    double precision,
    source_agent        varchar(50) not null,
    source_doc_id       varchar(64),
    embedding           vector(768) not null,
    created_at          timestamp default now(),
    user_rating         integer check (user_rating between 1 and 5),
    was_edited          boolean default false
);

create table worker (
    name       text primary key,
    queues     text not null,
    host       text not null,
    pid        integer not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now()
);

create table canary (
    queue   text primary key,
    sung_at timestamptz not null default now()
);

create view indexing_state with (security_invoker = true) as
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

-- Row-level security ------------------------------------------------------------------------------

do $$
declare t text;
begin
    foreach t in array array['project', 'source', 'sync_run', 'document', 'run_item', 'document_body',
        'chunk_stage', 'embedding_cache', 'chunk', 'lexeme_stat', 'index_stat', 'dead_letter', 'audit',
        'enrichment_job', 'feedback', 'clarifai_user_story_embeddings']
    loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))
                        with check (tenant_id = (select current_tenant()))', t);
        execute format('grant select, insert, update, delete on %I to larder_app', t);
    end loop;
    foreach t in array array['source', 'sync_run', 'document', 'run_item', 'dead_letter', 'enrichment_job',
        'project', 'index_stat']
    loop
        execute format('create policy ledger on %I to larder_control using (true) with check (true)', t);
    end loop;
end $$;

-- `@@` is not leakproof, so row-level security keeps it out of every index scan, and the keyword arm would read all
-- rows of the tenant. A view shows the application its own rows under a condition that is no security barrier. Its
-- owner is a role that nobody can log in as and nobody is a member of: the tables' owner stays bound.
do $$
begin
    if not exists (select from pg_roles where rolname = 'larder_reader') then
        create role larder_reader nologin noinherit;
    end if;
end $$;
create view searchable_chunk as select * from chunk where tenant_id = (select current_tenant());
create policy own_rows_by_view on chunk for select to larder_reader using (true);
grant select on chunk to larder_reader;
grant execute on function current_tenant() to larder_reader;
grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
alter view searchable_chunk owner to larder_reader;
revoke create on schema public from larder_reader;
set local role larder_reader;
grant select on searchable_chunk to larder_app;
reset role;
revoke larder_reader from current_user;

revoke update, delete on audit from larder_app;

alter table tenant enable row level security;
alter table tenant force row level security;
create policy own_tenant on tenant using (id = (select current_tenant())) with check (id = (select current_tenant()));
create policy ledger on tenant to larder_control using (true) with check (true);

grant select, insert on tenant to larder_app;
grant select on tenant, project, index_stat to larder_control;
grant select on alembic_version to larder_app, larder_control;
grant select, insert, update, delete on source, sync_run, run_item, dead_letter to larder_control;
grant select, insert, update, delete on worker, canary to larder_app, larder_control;
grant select on search_index, indexing_state to larder_app;
grant select on search_index to larder_control;

-- The ledger without the text: neither title, address, tags nor metadata.
grant select (id, number, tenant_id, source_id, external_id, project_id, source_type, kind, hidden, deleted,
              state, stage, last_error, desired_version, desired_hash, pipeline_version, indexed_version,
              indexed_hash, indexed_pipeline, generation, updated_at, first_seen_at, last_indexed, chunk_count,
              attempts, crash_count, due_at, enqueued_at, lease_token, lease_until)
    on document to larder_control;
grant update (hidden, deleted, state, stage, last_error, pipeline_version, attempts, crash_count, due_at,
              enqueued_at, lease_token, lease_until)
    on document to larder_control;
grant delete on document to larder_control;
grant select (id, tenant_id, project_id, state, priority, degradation_level, attempts, deadline, enqueued_at,
              lease_token, lease_until, created_at, finished_at),
      update (state, attempts, enqueued_at, lease_token, lease_until, finished_at)
    on enrichment_job to larder_control;

-- What the two roles may do beyond rows: functions of the owner ------------------------------------

create function open_search_index(p_provider text, p_model text, p_dimensions integer, p_chunker text,
                                  p_pipeline text) returns integer
    language plpgsql security definer set search_path from current as $$
declare
    found integer;
    part  text;
begin
    -- The lock only to make one: it is held until commit, and every batch comes through here.
    for attempt in 1..2 loop
        select id into found from search_index
            where provider = p_provider and model = p_model and dimensions = p_dimensions and status <> 'retired'
            order by status = 'active' desc, id desc limit 1;
        if found is not null then
            return found;
        end if;
        perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    end loop;
    insert into search_index (provider, model, dimensions, chunker, pipeline_version, status, activated_at)
        select p_provider, p_model, p_dimensions, p_chunker, p_pipeline,
               case when exists (select from search_index where status = 'active') then 'building' else 'active' end,
               case when exists (select from search_index where status = 'active') then null else now() end
        returning id into found;
    part := format('chunk_%s', found);
    execute format('create table %I partition of chunk for values in (%s)', part, found);
    execute format('alter table %I add check (vector_dims(embedding) = %s)', part, p_dimensions);
    execute format('alter table %I alter column embedding set storage plain', part);
    execute format('alter table %I alter column lexemes set storage main', part);
    execute format('create index %I on %I (tenant_id, project_id)', part || '_tenant', part);
    execute format('alter table %I enable row level security', part);
    execute format('alter table %I force row level security', part);
    execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))', part);
    return found;
end $$;

create function build_keyword_index(p_index integer) returns void
    language plpgsql security definer set search_path from current set maintenance_work_mem = '256MB' as $$
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    execute format('create index if not exists %I on %I using gin (lexemes)',
                   format('chunk_%s_lexemes', p_index), format('chunk_%s', p_index));
    execute format('analyze %I', format('chunk_%s', p_index));
    analyze document;
    update search_index set keyword_built = true where id = p_index;
end $$;

create function build_vector_index(p_index integer, p_rows bigint) returns void
    language plpgsql security definer set search_path from current set maintenance_work_mem = '1GB' as $$
declare dims integer := (select dimensions from search_index where id = p_index);
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    execute format('create index if not exists %I on %I using hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)',
                   format('chunk_%s_vector', p_index), format('chunk_%s', p_index), dims);
    execute format('analyze %I', format('chunk_%s', p_index));
    update search_index set indexed_rows = p_rows where id = p_index;
end $$;

create function activate_search_index(p_index integer) returns void
    language plpgsql security definer set search_path from current as $$
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    update search_index set status = 'retired' where status = 'active' and id <> p_index;
    update search_index set status = 'active', activated_at = now() where id = p_index;
end $$;

create function drop_search_index(p_index integer) returns void
    language plpgsql security definer set search_path from current as $$
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    if exists (select from search_index where id = p_index and status = 'active') then
        raise exception 'search index % is active', p_index;
    end if;
    execute format('drop table if exists %I', format('chunk_%s', p_index));
    delete from search_index where id = p_index;
end $$;

create function audit_append(p_tenant uuid, p_actor text, p_action text, p_subject text, p_detail jsonb)
    returns bigint language plpgsql as $$
declare
    last text;
    made bigint;
    moment timestamptz := clock_timestamp();
begin
    perform pg_advisory_xact_lock(hashtext('larder.audit'), hashtext(p_tenant::text));
    select hash into last from audit where tenant_id = p_tenant order by id desc limit 1;
    insert into audit (tenant_id, at, actor, action, subject, detail, prev_hash, hash)
        values (p_tenant, moment, p_actor, p_action, p_subject, p_detail, coalesce(last, ''),
                encode(sha256(convert_to(concat_ws('|', coalesce(last, ''), extract(epoch from moment)::text, p_actor, p_action,
                                                   p_subject, p_detail::text), 'UTF8')), 'hex'))
        returning id into made;
    return made;
end $$;

revoke execute on function current_tenant(), open_search_index(text, text, integer, text, text),
    build_keyword_index(integer), build_vector_index(integer, bigint), activate_search_index(integer),
    drop_search_index(integer), audit_append(uuid, text, text, text, jsonb) from public;
grant execute on function current_tenant() to larder_app, larder_control;
grant execute on function open_search_index(text, text, integer, text, text) to larder_app, larder_control;
grant execute on function audit_append(uuid, text, text, text, jsonb) to larder_app;
grant execute on function build_keyword_index(integer), build_vector_index(integer, bigint),
    activate_search_index(integer), drop_search_index(integer) to larder_control;
