-- What embedding for money needs: waits that are no failed tries, holds, claims on texts, and what was used.

alter table document add column waits integer not null default 0;   -- times put back without a fault, in this stage
grant select (waits), update (waits) on document to larder_control;

-- The provider refuses our key, model or plan: with this configuration nobody embeds until it is probed again.
create table embedding_hold (
    fingerprint text primary key,                    -- of the configuration, see pipeline/ledger/holds.py
    code        text not null,
    error       text not null,
    since       timestamptz not null default now(),
    seen_at     timestamptz not null default now(),  -- when it was last refused
    probe_at    timestamptz not null
);
grant select, insert, update, delete on embedding_hold to larder_app, larder_control;

-- Who is making which vector: two workers that meet the same text must not both pay for it.
create table embedding_claim (
    tenant_id uuid not null references tenant on delete cascade,
    model     text not null,
    hash      bytea not null,
    token     uuid not null,                         -- that of the claim on the documents
    until     timestamptz not null,
    primary key (tenant_id, model, hash)
);
create index embedding_claim_of_token on embedding_claim (token);

create table embedding_usage (
    tenant_id  uuid not null references tenant on delete cascade,
    day        date not null,                        -- in UTC
    provider   text not null,
    model      text not null,
    kind       text not null check (kind in ('document', 'query')),
    calls      bigint not null default 0,
    texts      bigint not null default 0,
    tokens     bigint not null default 0,
    cost       numeric not null default 0,
    cache_hits bigint not null default 0,
    primary key (tenant_id, day, provider, model, kind)
) with (fillfactor = 50);

do $$
declare t text;
begin
    foreach t in array array['embedding_claim', 'embedding_usage'] loop
        execute format('alter table %I enable row level security', t);
        execute format('alter table %I force row level security', t);
        execute format('create policy own_tenant on %I using (tenant_id = (select current_tenant()))
                        with check (tenant_id = (select current_tenant()))', t);
        execute format('grant select, insert, update, delete on %I to larder_app', t);
    end loop;
end $$;
create policy ledger on embedding_usage to larder_control using (true) with check (true);
grant select, delete on embedding_usage to larder_control;
