-- Entries of the audit are numbered per tenant without holes; nobody but functions of the owner writes or removes them.

-- The newest entry of each chain, kept apart: entries that are taken off its end are missed. Whoever appends waits here.
create table audit_head (
    tenant_id uuid primary key,
    seq       bigint not null,
    hash      text not null
);
alter table audit_head enable row level security;
alter table audit_head force row level security;
create policy own_tenant on audit_head using (tenant_id = (select current_tenant()))
    with check (tenant_id = (select current_tenant()));
grant select on audit_head to larder_app;

-- What is there gets numbers and is hashed again; the owner is bound by row-level security, hence the lines around.
alter table audit no force row level security;
alter table audit_head no force row level security;
alter table audit add column seq bigint;
update audit a set seq = numbered.seq
    from (select id, row_number() over (partition by tenant_id order by id) as seq from audit) numbered
    where a.id = numbered.id;
do $$
declare
    entry audit;
    last  text;
begin
    for entry in select * from audit order by tenant_id, seq loop
        last := case when entry.seq = 1 then '' else last end;
        update audit set prev_hash = last, hash = encode(sha256(convert_to(jsonb_build_array(
                last, entry.tenant_id, entry.seq, extract(epoch from entry.at), entry.actor, entry.action, entry.subject,
                entry.detail)::text, 'UTF8')), 'hex')
            where id = entry.id returning hash into last;
    end loop;
end $$;
insert into audit_head select distinct on (tenant_id) tenant_id, seq, hash from audit order by tenant_id, seq desc;
alter table audit drop column id, add primary key (tenant_id, seq);
alter table audit force row level security;
alter table audit_head force row level security;
revoke insert on audit from larder_app;

-- Appends to the chain of the tenant that the transaction is for; whoever else does so meanwhile waits for its end.
create or replace function audit_append(p_tenant uuid, p_actor text, p_action text, p_subject text, p_detail jsonb)
    returns bigint language plpgsql security definer set search_path = public, pg_temp as $$
declare
    head audit_head;
    made audit;
begin
    loop
        select * into head from audit_head where tenant_id = p_tenant for update;
        exit when found;
        insert into audit_head values (p_tenant, 0, '') on conflict do nothing;
    end loop;
    insert into audit (tenant_id, seq, at, actor, action, subject, detail, prev_hash, hash)
        select p_tenant, head.seq + 1, moment, p_actor, p_action, p_subject, p_detail, head.hash,
               encode(sha256(convert_to(jsonb_build_array(head.hash, p_tenant, head.seq + 1, extract(epoch from moment),
                                                          p_actor, p_action, p_subject, p_detail)::text, 'UTF8')), 'hex')
        from (select clock_timestamp() as moment offset 0) now
        returning * into made;
    update audit_head set seq = made.seq, hash = made.hash where tenant_id = p_tenant;
    return made.seq;
end $$;

-- Removes entries from the beginning of a chain, once a day and none of the last 30 days, whatever is asked for. An
-- entry at the chain's end tells where it begins from then on.
create function audit_prune(p_days integer) returns void
    language plpgsql security definer set search_path = public, pg_temp as $$
declare
    own    uuid := current_tenant();
    oldest timestamptz := clock_timestamp() - make_interval(days => greatest(p_days, 30));
    head   audit_head;
    kept   bigint;
begin
    select * into head from audit_head where tenant_id = own for update;
    if (select at from audit where tenant_id = own order by seq limit 1) < oldest - interval '1 day' then
        kept := coalesce((select seq from audit where tenant_id = own and at > oldest order by seq limit 1), head.seq + 1);
        perform audit_append(own, 'upkeep', 'audit.prune', 'entries up to ' || kept - 1, jsonb_build_object(
            'through', kept - 1, 'hash', (select hash from audit where tenant_id = own and seq = kept - 1)));
    end if;
    delete from audit where tenant_id = own and seq < kept;
end $$;

grant execute on function audit_append(uuid, text, text, text, jsonb) to larder_control;
grant execute on function audit_prune(integer) to larder_app;
