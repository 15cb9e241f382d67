-- Functions that act as the owner mean the owner's tables, whatever their caller keeps in its temporary schema.
--
-- A search path that does not name it has `pg_temp` first: a temporary table or view of the caller, with a trigger or a
-- function behind it, then stood for one of ours, and its code ran as the owner. So it is named, as the last one.
do $$
declare
    ours   oid := (select relowner from pg_class where oid = 'public.search_index'::regclass);
    called regprocedure;
begin
    for called in
        select p.oid from pg_proc p
        where p.pronamespace = 'public'::regnamespace and p.proowner = ours
          and (p.prosecdef or exists (select from unnest(p.proconfig) set_to where set_to like 'search_path=%'))
    loop
        execute format('alter function %s set search_path = public, pg_temp', called);
    end loop;
    -- Only the application makes temporary tables, to copy rows in. Whoever does not own the database is warned, and
    -- changes nothing.
    execute format('revoke temporary on database %I from public', current_database());
    execute format('grant temporary on database %I to larder_app', current_database());
end $$;

-- What the owner makes from here on is called by those that it names.
alter default privileges revoke execute on functions from public;
