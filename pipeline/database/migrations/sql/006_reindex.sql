-- Several search indexes side by side: what each holds of each document, and what it still lacks.
--
-- A document is wanted in every index there is. The ordinary way writes the active one; what another one lacks is filled
-- from it, or from the stored text. Which index lacks what is found by comparing versions, so nothing has to be noted
-- when a document changes, and nothing can be forgotten.

create table index_document (
    tenant_id    uuid not null references tenant on delete cascade,
    index_id     integer not null references search_index on delete cascade,
    document_id  uuid not null references document on delete cascade,
    version      integer not null default 0,        -- of the document whose chunks are here; 0: none yet
    chunk_count  integer not null default 0,
    centroid     halfvec,
    dead_version integer,                           -- given up on in this version
    last_error   text,
    attempts     integer not null default 0,
    crash_count  integer not null default 0,
    due_at       timestamptz not null default now(),
    enqueued_at  timestamptz,
    lease_token  uuid,
    lease_until  timestamptz,
    primary key (tenant_id, index_id, document_id)
);
create index index_document_of_document on index_document (document_id);
create index index_document_sent on index_document (index_id, enqueued_at) where enqueued_at is not null;

alter table index_document enable row level security;
alter table index_document force row level security;
create policy own_tenant on index_document using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
create policy ledger on index_document to larder_control using (true) with check (true);
grant select, insert, update, delete on index_document to larder_app;
grant select (tenant_id, index_id, document_id, version, chunk_count, dead_version, last_error, attempts, crash_count,
              due_at, enqueued_at, lease_token, lease_until),
      insert (tenant_id, index_id, document_id, enqueued_at),
      update (dead_version, last_error, attempts, crash_count, due_at, enqueued_at, lease_token, lease_until),
      delete on index_document to larder_control;

alter table search_index
    add column strategy text not null default '',   -- cuts the documents of every source; '': as each is configured
    add column retired_at timestamptz;
alter table dead_letter add column index_id integer references search_index on delete cascade;  -- null: the ordinary way

-- The model is a matter of the index and no longer of the document's pipeline: another model leaves documents alone.
-- The owner is bound by row-level security like everybody, hence the lines around.
alter table document no force row level security;
alter table source no force row level security;
alter table index_document no force row level security;
insert into index_document (tenant_id, index_id, document_id, version, chunk_count, centroid)
    select d.tenant_id, i.id, d.id, d.indexed_version, d.chunk_count, d.centroid
    from document d join search_index i
        on right(d.indexed_pipeline, length(i.model || i.dimensions) + 2) = '|' || i.model || ':' || i.dimensions
    where not d.deleted and d.indexed_version is not null;
drop trigger stamp_update on document;
alter table document drop column centroid;
update document set pipeline_version = regexp_replace(pipeline_version, '\|[^|]*$', ''),
                    indexed_pipeline = regexp_replace(indexed_pipeline, '\|[^|]*$', '')
    where pipeline_version like '%|%|%';
update source set pipeline_version = regexp_replace(pipeline_version, '\|[^|]*$', '')
    where pipeline_version like '%|%|%';
alter table index_document force row level security;
alter table source force row level security;
alter table document force row level security;
create trigger stamp_update after update of hidden, deleted, indexed_version, indexed_pipeline, title, url, tags,
    metadata, source_type, kind, project_id, security_level, created_at, updated_at on document
    for each statement execute function stamp_change();

-- Indexes that were left over from the time when a switch dropped the one before.
do $$
declare gone integer;
begin
    for gone in select id from search_index where status = 'retired' loop
        execute format('drop table if exists %I', format('chunk_%s', gone));
        delete from search_index where id = gone;
    end loop;
end $$;

create function make_search_index(p_provider text, p_model text, p_dimensions integer, p_chunker text,
                                  p_pipeline text, p_strategy text, p_status text) returns integer
    language plpgsql set search_path from current as $$
declare
    made integer;
    part text;
begin
    insert into search_index (provider, model, dimensions, chunker, pipeline_version, strategy, status, activated_at)
        values (p_provider, p_model, p_dimensions, p_chunker, p_pipeline, p_strategy, p_status,
                case when p_status = 'active' then now() end)
        returning id into made;
    part := format('chunk_%s', made);
    -- Attached, and not made as a partition at once: that would stop every search for a moment.
    execute format('create table %I (like chunk including defaults including storage)', part);
    execute format('alter table %I add check (vector_dims(embedding) = %s)', part, p_dimensions);
    execute format('create index %I on %I (tenant_id, project_id)', part || '_tenant', part);
    execute format('alter table %I enable row level security', part);
    execute format('alter table %I force row level security', part);
    execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))', part);
    execute format('alter table chunk attach partition %I for values in (%s)', part, made);
    return made;
end $$;

create or replace function open_search_index(p_provider text, p_model text, p_dimensions integer, p_chunker text,
                                             p_pipeline text) returns integer
    language plpgsql security definer set search_path from current as $$
declare
    found integer;
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
    return make_search_index(p_provider, p_model, p_dimensions, p_chunker, p_pipeline, '',
        case when exists (select from search_index where status = 'active') then 'building' else 'active' end);
end $$;

-- A new index beside the active one; the one that is being filled already, if there is one.
create function begin_search_index(p_provider text, p_model text, p_dimensions integer, p_chunker text,
                                   p_pipeline text, p_strategy text) returns integer
    language plpgsql security definer set search_path from current as $$
declare
    found integer;
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    select id into found from search_index where status = 'building' order by id desc limit 1;
    return coalesce(found, make_search_index(p_provider, p_model, p_dimensions, p_chunker, p_pipeline, p_strategy,
                                             'building'));
end $$;

create or replace function activate_search_index(p_index integer) returns void
    language plpgsql security definer set search_path from current as $$
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    if not exists (select from search_index where id = p_index) then
        raise exception 'there is no search index %', p_index;
    end if;
    update search_index set status = 'retired', retired_at = now() where status = 'active' and id <> p_index;
    update search_index set status = 'active', activated_at = now(), retired_at = null
        where id = p_index and status <> 'active';
end $$;

create or replace function drop_search_index(p_index integer) returns void
    language plpgsql security definer set search_path from current set lock_timeout = '3s' as $$
begin
    perform pg_advisory_xact_lock(hashtext('larder.search_index'));
    if exists (select from search_index where id = p_index and status = 'active') then
        raise exception 'search index % is active', p_index;
    end if;
    -- The table last: searches of the other indexes wait from here to the commit.
    delete from search_index where id = p_index;
    execute format('drop table if exists %I', format('chunk_%s', p_index));
end $$;

revoke execute on function make_search_index(text, text, integer, text, text, text, text),
    begin_search_index(text, text, integer, text, text, text) from public;
grant execute on function begin_search_index(text, text, integer, text, text, text) to larder_control;
