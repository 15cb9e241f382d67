-- What the actions of YAML engines keep: named collections of texts with vectors of any length, searched exactly.

create table action_collection (
    tenant_id   uuid not null references tenant on delete cascade,
    name        text not null,
    dimensions  integer not null,
    model       text not null,                       -- '' while nobody said which
    created_at  timestamptz not null default now(),
    primary key (tenant_id, name)
);

create table action_document (
    tenant_id   uuid not null,
    collection  text not null,
    id          text not null,
    number      bigint generated always as identity,  -- the order in which they came
    content     text not null,
    metadata    jsonb not null,
    embedding   vector not null,
    primary key (tenant_id, collection, id),
    foreign key (tenant_id, collection) references action_collection on delete cascade
);

do $$
declare t text;
begin
    foreach t in array array['action_collection', 'action_document']
    loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))
                        with check (tenant_id = (select current_tenant()))', t);
        execute format('grant select, insert, update, delete on %I to larder_app', t);
    end loop;
end $$;

-- The jobs that somebody waits for are no longer enrichments only: this is the task that does the work.
alter table enrichment_job
    add column task text not null default 'larder.enrich'
        check (task in ('larder.enrich', 'larder.embedding.create', 'larder.vector.store', 'larder.vector.query'));
grant select (task) on enrichment_job to larder_control;
