drop trigger stamp_inserted on document;
drop trigger stamp_deleted on document;
drop trigger stamp_update on document;
drop function stamp_rows();
drop function stamp_row();
create trigger stamp_others after insert or delete on document
    for each statement execute function stamp_change();
create trigger stamp_update after update of hidden, deleted, indexed_version, indexed_pipeline, title, url, tags,
    metadata, source_type, kind, project_id, security_level, created_at, updated_at on document
    for each statement execute function stamp_change();
drop function audit_prune(integer);
create function audit_prune(p_days integer) returns void
    language plpgsql security definer set search_path = public, pg_temp as $$
declare
    own    uuid := public.current_tenant();
    oldest timestamptz := clock_timestamp() - make_interval(days => greatest(p_days, 30));
    head   public.audit_head;
    kept   bigint;
begin
    select * into head from public.audit_head where tenant_id = own for update;
    if (select at from public.audit where tenant_id = own order by seq limit 1) < oldest - interval '1 day' then
        kept := coalesce((select seq from public.audit where tenant_id = own and at > oldest order by seq limit 1),
                         head.seq + 1);
        perform public.audit_append(own, 'upkeep', 'audit.prune', 'entries up to ' || kept - 1, jsonb_build_object(
            'through', kept - 1, 'hash', (select hash from public.audit where tenant_id = own and seq = kept - 1)));
    end if;
    delete from public.audit where tenant_id = own and seq < kept;
end $$;
revoke execute on function audit_prune(integer) from public;
grant execute on function audit_prune(integer) to larder_app;
