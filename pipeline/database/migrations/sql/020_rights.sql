-- Who may see a document: of each layer of names whoever reads it has one. What is no list of layers lets nobody in.
alter table document
    add column acl jsonb not null generated always as (
        case when not metadata ? 'acl' then '[]'
             when jsonb_typeof(metadata -> 'acl') = 'array' then metadata -> 'acl'
             else '[[]]' end) stored,
    add column served_acl jsonb;                        -- of the text that is searchable, as served_level

grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
grant select (acl, served_acl) on document to larder_reader;
set local role larder_reader;
create or replace view searchable_document as
    select id, source_id, source_type, kind, tags, metadata, project_id, hidden, deleted, security_level, created_at,
           updated_at, chunk_count, served_level, acl, served_acl
    from document where tenant_id = (select current_tenant());
reset role;
revoke create on schema public from larder_reader;
revoke larder_reader from current_user;
