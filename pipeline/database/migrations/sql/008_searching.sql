-- Filters look documents up by an index.
--
-- `@>` is not leakproof either, so row-level security kept it out of the index on tags, and a filter on a rare tag read
-- every document of the tenant: most of the time of such a search. As with `searchable_chunk` (001), a view shows the
-- application its own rows under a condition that is no security barrier, and shows only what filters ask for.
grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
create view searchable_document as
    select id, source_id, source_type, kind, tags, metadata, project_id, hidden, deleted, security_level, created_at,
           updated_at
    from document where tenant_id = (select current_tenant());
create policy own_rows_by_view on document for select to larder_reader using (true);
grant select (id, tenant_id, source_id, source_type, kind, tags, metadata, project_id, hidden, deleted, security_level,
              created_at, updated_at) on document to larder_reader;
alter view searchable_document owner to larder_reader;
revoke create on schema public from larder_reader;
set local role larder_reader;
grant select on searchable_document to larder_app;
reset role;
revoke larder_reader from current_user;
