-- Vector stores beside PostgreSQL: which there are, and what each has yet to learn. A store is an index that can be thrown
-- away; the vectors stay in the rows of the chunks.

create sequence vector_turn;
grant usage, select on sequence vector_turn to larder_app, larder_control;

create table vector_store (
    name          text primary key,                  -- as in the configuration
    status        text not null default 'emptying' check (status in ('emptying', 'filling', 'ready')),
    active        boolean not null default false,    -- searches ask it; none: pgvector
    preferred     boolean not null default false,    -- to become the active one once it is filled
    mark          uuid not null default gen_random_uuid(),   -- lies in the store, with a position
    position      bigint not null default 0,         -- of the last mark that was written
    before        bigint not null default 0,         -- of the one before it
    marked_at     timestamptz,
    collections   integer[] not null default '{}',   -- search indexes in it
    walk_tenant   uuid,                              -- up to where the documents are in the outbox
    walk_index    integer,
    walk_document uuid,
    walked_at     timestamptz,                       -- null: the walk is not through
    due_at        timestamptz not null default now(),   -- paused until then
    failures      integer not null default 0,
    last_error    text,
    added_at      timestamptz not null default now(),
    lease_token   uuid,
    lease_until   timestamptz
);
grant select on vector_store to larder_app;
grant select, insert, update, delete on vector_store to larder_control;

-- One row per chunk and store, however often it changes: the chunk as it is then is carried over.
create table vector_outbox (
    tenant_id   uuid not null references tenant on delete cascade,
    store       text not null references vector_store on delete cascade,
    index_id    integer not null references search_index on delete cascade,
    document_id uuid not null,
    ord         integer not null,
    lane        smallint not null,                   -- 0 deletions and rights, 1 changes, 2 filling
    turn        bigint not null default nextval('vector_turn'),   -- new with each change
    noted_at    timestamptz not null default now(),
    attempts    integer not null default 0,
    crash_count integer not null default 0,
    due_at      timestamptz not null default now(),
    dead_at     timestamptz,                         -- given up, for a person to look at
    last_error  text,
    lease_token uuid,
    lease_until timestamptz,
    primary key (tenant_id, store, index_id, document_id, ord)
);
create index vector_outbox_due on vector_outbox (store, lane, turn) where dead_at is null;
create index vector_outbox_of_tenant on vector_outbox (tenant_id, store, lane, turn) where dead_at is null;

alter table vector_outbox enable row level security;
alter table vector_outbox force row level security;
create policy own_tenant on vector_outbox using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
create policy ledger on vector_outbox to larder_control using (true) with check (true);
grant select, insert, update, delete on vector_outbox to larder_app, larder_control;

-- In the transaction that writes chunks. The triggers exist only while there is a store.
create function note_vectors() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    if tg_op = 'DELETE' then
        insert into public.vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
            select g.tenant_id, s.name, g.index_id, g.document_id, g.ord, 0
            from gone g cross join public.vector_store s
            where g.embedding is not null
            order by 1, 2, 3, 4, 5
            on conflict (tenant_id, store, index_id, document_id, ord) do update
            set lane = 0, turn = excluded.turn, due_at = now(), dead_at = null, attempts = 0, crash_count = 0;
    elsif tg_op = 'INSERT' then
        insert into public.vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
            select f.tenant_id, s.name, f.index_id, f.document_id, f.ord, 1
            from fresh f cross join public.vector_store s
            where f.embedding is not null
            order by 1, 2, 3, 4, 5
            on conflict (tenant_id, store, index_id, document_id, ord) do update
            set lane = least(o.lane, 1), turn = excluded.turn, due_at = now(), dead_at = null, attempts = 0,
                crash_count = 0;
    else
        insert into public.vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
            select f.tenant_id, s.name, f.index_id, f.document_id, f.ord, 1
            from fresh f join gone g using (index_id, document_id, ord) cross join public.vector_store s
            where f.embedding is distinct from g.embedding
            order by 1, 2, 3, 4, 5
            on conflict (tenant_id, store, index_id, document_id, ord) do update
            set lane = least(o.lane, 1), turn = excluded.turn, due_at = now(), dead_at = null, attempts = 0,
                crash_count = 0;
    end if;
    return null;
end $$;

-- Of a document whose chunks stay: rights and what a store filters by. By the counts of each index, since the control role
-- hides and deletes documents, too, and may read no chunk.
create function note_vectors_of_document() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    insert into public.vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
        select x.tenant_id, s.name, x.index_id, x.document_id, n.ord,
               case when (old.hidden, old.deleted, old.security_level, old.project_id)
                         is distinct from (new.hidden, new.deleted, new.security_level, new.project_id)
                    then 0 else 1 end
        from public.index_document x cross join lateral generate_series(0, x.chunk_count - 1) as n(ord)
        cross join public.vector_store s
        where x.tenant_id = new.tenant_id and x.document_id = new.id and x.version > 0
        order by 1, 2, 3, 4, 5
        on conflict (tenant_id, store, index_id, document_id, ord) do update
        set lane = least(o.lane, excluded.lane), turn = excluded.turn, due_at = now(), dead_at = null, attempts = 0,
            crash_count = 0;
    return null;
end $$;

-- One table in each call, and each call in a transaction of its own: writers lock documents before chunks.
create function note_vectors_from(p_table text, p_on boolean) returns void
    language plpgsql security definer set search_path = public, pg_temp set lock_timeout = '10s' as $$
begin
    if p_table = 'chunk' and not p_on then
        drop trigger if exists vectors_inserted on public.chunk;
        drop trigger if exists vectors_updated on public.chunk;
        drop trigger if exists vectors_deleted on public.chunk;
    elsif p_table = 'document' and not p_on then
        drop trigger if exists vectors_of_document on public.document;
    elsif p_table = 'chunk' and not exists (select from pg_trigger where tgrelid = 'public.chunk'::regclass
                                            and tgname = 'vectors_inserted') then
        create trigger vectors_inserted after insert on public.chunk
            referencing new table as fresh for each statement execute function public.note_vectors();
        create trigger vectors_updated after update on public.chunk
            referencing old table as gone new table as fresh for each statement execute function public.note_vectors();
        create trigger vectors_deleted after delete on public.chunk
            referencing old table as gone for each statement execute function public.note_vectors();
    elsif p_table = 'document' and not exists (select from pg_trigger where tgrelid = 'public.document'::regclass
                                               and tgname = 'vectors_of_document') then
        create trigger vectors_of_document
            after update of hidden, deleted, security_level, project_id, kind, source_type, created_at, updated_at
            on public.document for each row
            when ((old.hidden, old.deleted, old.security_level, old.project_id, old.kind, old.source_type,
                   old.created_at, old.updated_at)
                  is distinct from (new.hidden, new.deleted, new.security_level, new.project_id, new.kind,
                                    new.source_type, new.created_at, new.updated_at))
            execute function public.note_vectors_of_document();
    end if;
end $$;

revoke execute on function note_vectors(), note_vectors_of_document(), note_vectors_from(text, boolean) from public;
grant execute on function note_vectors(), note_vectors_of_document() to larder_app, larder_control;
grant execute on function note_vectors_from(text, boolean) to larder_control;
