-- The state of what a tenant's searches may show: an answer kept from another state is not given again.
--
-- Each change writes a new random stamp; all stamps of a tenant together name the state. They are seen changed in the
-- very moment in which the change itself can be seen, and never come back, not even in a restored backup. A row per
-- writing connection (by its process id), so that two writers do not wait for each other.

create table change_stamp (
    tenant_id  uuid not null,
    slot       integer not null,
    stamp      uuid not null default gen_random_uuid(),
    primary key (tenant_id, slot)
) with (fillfactor = 50);

alter table change_stamp enable row level security;
alter table change_stamp force row level security;
create policy own_tenant on change_stamp using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
create policy ledger on change_stamp to larder_control using (true) with check (true);
grant select, insert, update on change_stamp to larder_app, larder_control;

create function stamp_change() returns trigger language plpgsql as $$
declare
    acting uuid := (select current_tenant());
begin
    -- Who acts for no tenant may have changed any of them.
    insert into change_stamp (tenant_id, slot)
        select t.id, pg_backend_pid() % 64
        from (select acting as id where acting is not null
              union all select tenant.id from tenant where acting is null) t
        order by t.id
        on conflict (tenant_id, slot) do update set stamp = gen_random_uuid();
    return null;
end $$;
revoke execute on function stamp_change() from public;
grant execute on function stamp_change() to larder_app, larder_control;

-- Once per statement, and only for columns that a search shows, filters or ranks by: the steps of the ledger
-- (claims, attempts, times) touch none of these.
create trigger stamp_update after update of hidden, deleted, indexed_version, indexed_pipeline, centroid, title, url,
    tags, metadata, source_type, kind, project_id, security_level, created_at, updated_at on document
    for each statement execute function stamp_change();
create trigger stamp_others after insert or delete on document
    for each statement execute function stamp_change();
