-- What a walk through a source leaves behind: its stamp from before, what it left out, how far its list of ids came.

alter table sync_run
    add column stamp text,                              -- the source's own, taken before the first page
    add column left_out jsonb not null default '{}';    -- reason -> how many items were seen and left out
alter table source
    add column left_out jsonb not null default '{}',    -- the same, of the last walk over all
    add column retry_at timestamptz;                    -- it failed: nobody calls it before

-- The pieces of a run's list of ids, in order: a walk goes on from the last one, whoever does it.
create table walk_piece (
    run_id    bigint not null references sync_run on delete cascade,
    tenant_id uuid not null,
    number    integer not null,
    found     jsonb not null,
    primary key (run_id, number)
);
alter table walk_piece enable row level security;
alter table walk_piece force row level security;
create policy own_tenant on walk_piece using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
grant select, insert, update, delete on walk_piece to larder_app;
