-- Old entries of the audit go in parts: the head of the chain is locked as long as it takes to write one entry, and nobody
-- who searches waits for what is deleted.

-- Removes entries from the beginning of a chain, once a day and none of the last 30 days, whatever is asked for. First an
-- entry at the chain's end tells where it begins from then on; once that is committed, each call removes some thousands.
-- True as long as there may be more to do.
drop function audit_prune(integer);
create function audit_prune(p_days integer) returns boolean
    language plpgsql security definer set search_path = public, pg_temp as $$
declare
    own     uuid := public.current_tenant();
    oldest  timestamptz := clock_timestamp() - make_interval(days => greatest(p_days, 30));
    first   public.audit;
    through bigint;
    pruned  bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('larder.audit.prune'), hashtext(own::text)) then
        return false;
    end if;
    select * into first from public.audit where tenant_id = own order by seq limit 1;
    if first.at is null or first.at >= oldest - interval '1 day' then
        return false;
    end if;
    select case when detail ->> 'through' ~ '^[0-9]{1,18}$' then (detail ->> 'through')::bigint end into pruned
        from public.audit where tenant_id = own and action = 'audit.prune' order by seq desc limit 1;
    if first.seq <= pruned then  -- and old as well: whoever writes such an entry by hand removes nothing else by it
        delete from public.audit where tenant_id = own and seq <= least(pruned, first.seq + 4999) and at <= oldest;
        return found;
    end if;
    through := coalesce(
        (select seq - 1 from public.audit where tenant_id = own and at > oldest order by seq limit 1),
        (select max(seq) from public.audit where tenant_id = own and at <= oldest));
    perform public.audit_append(own, 'upkeep', 'audit.prune', 'entries up to ' || through, jsonb_build_object(
        'through', through, 'hash', (select hash from public.audit where tenant_id = own and seq = through)));
    return true;
end $$;
revoke execute on function audit_prune(integer) from public;
grant execute on function audit_prune(integer) to larder_app;

-- A statement that touches no row of documents changes nothing that a search shows: kept answers stay. Those of upkeep and
-- of walks mostly touch none, and on the control role ended the answers of every tenant. Now the rows name the tenants.
create function stamp_rows() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    insert into public.change_stamp (tenant_id, slot)
        select d.tenant_id, pg_backend_pid() % 64 from (select distinct tenant_id from touched) d order by d.tenant_id
        on conflict (tenant_id, slot) do update set stamp = gen_random_uuid();
    return null;
end $$;

-- For each row, since a trigger with columns sees no table of the rows that were touched; once in each transaction.
create function stamp_row() returns trigger language plpgsql set search_path = public, pg_temp as $$
declare
    stamped text := pg_current_xact_id()::text || ' ' || new.tenant_id;
begin
    if current_setting('larder.stamped', true) is distinct from stamped then
        insert into public.change_stamp (tenant_id, slot) values (new.tenant_id, pg_backend_pid() % 64)
            on conflict (tenant_id, slot) do update set stamp = gen_random_uuid();
        perform set_config('larder.stamped', stamped, true);
    end if;
    return null;
end $$;
revoke execute on function stamp_rows(), stamp_row() from public;
grant execute on function stamp_rows(), stamp_row() to larder_app, larder_control;

drop trigger stamp_others on document;
drop trigger stamp_update on document;
create trigger stamp_inserted after insert on document referencing new table as touched
    for each statement execute function stamp_rows();
create trigger stamp_deleted after delete on document referencing old table as touched
    for each statement execute function stamp_rows();
create trigger stamp_update after update of hidden, deleted, indexed_version, indexed_pipeline, title, url, tags,
    metadata, source_type, kind, project_id, security_level, created_at, updated_at on document
    for each row execute function stamp_row();
