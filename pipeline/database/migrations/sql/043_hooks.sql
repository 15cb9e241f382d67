-- Items that webhooks named: each waits once, however often it is named, and is read at most three times a minute.
create table source_hint (
    tenant_id   uuid not null,
    source_id   uuid not null references source on delete cascade,
    external_id text not null,
    hinted_at   timestamptz not null default now(),
    due_at      timestamptz default now(),          -- when to read it next; null once it is settled
    tries       integer not null default 0,         -- reads since it was named last
    reads       timestamptz[] not null default '{}', -- times of the last reads, the newest first
    primary key (source_id, external_id)
);
create index source_hint_due on source_hint (due_at) where due_at is not null;
-- Events that came, so that one that is sent twice counts once.
create table source_event (
    tenant_id   uuid not null,
    source_id   uuid not null references source on delete cascade,
    event_id    text not null,
    received_at timestamptz not null default now(),
    primary key (source_id, event_id)
);
create index source_event_age on source_event (received_at);
do $$
declare t text;
begin
    foreach t in array array['source_hint', 'source_event'] loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))
            with check (tenant_id = (select current_tenant()))', t);
        execute format('create policy ledger on %I to larder_control using (true) with check (true)', t);
        execute format('grant select, insert, update, delete on %I to larder_app', t);
        execute format('grant delete on %I to larder_control', t);
    end loop;
end $$;
grant select (source_id, due_at, hinted_at) on source_hint to larder_control;  -- never which items
grant select (source_id, received_at) on source_event to larder_control;
