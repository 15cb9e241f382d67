-- What functions do, they do to tables of ours, whoever's search path they run with.
--
-- Triggers run as the role that changed a row: for rows that go with another one that is the owner (PostgreSQL 18 and
-- newer), and a temporary table of the caller by the name of ours then had its code run as the owner. So all functions
-- name the schema of each table, and set the path besides.
do $$
declare
    ours   oid := (select relowner from pg_class where oid = 'public.search_index'::regclass);
    tables text := (select string_agg(relname, '|') from pg_class
                    where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v') and not relispartition);
    called regprocedure;
begin
    for called in
        select p.oid from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'public'::regnamespace and p.proowner = ours and l.lanname = 'plpgsql'
    loop
        execute regexp_replace(pg_get_functiondef(called), '(?<![.''\w])(' || tables || ')(?![.''\w])', 'public.\1', 'g');
        execute format('alter function %s set search_path = public, pg_temp', called);
    end loop;
end $$;

-- Databases that were made before PostgreSQL 15 let everybody put functions there, which might fit a call better than
-- those of the server. Whoever does not own the schema is warned, and changes nothing.
revoke create on schema public from public;
