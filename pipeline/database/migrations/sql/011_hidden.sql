-- What a search leaves out is read once, before it looks at chunks, instead of each candidate's document: mostly nothing.
--
-- A removed document is hidden and deleted, keeps its row for ever and has lost its chunks in the same transaction, so it
-- need not be here.

create index document_hidden on document (tenant_id) include (id) where hidden <> deleted;

-- How much a filter lets through is the sum of what its documents have.
grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
grant select (chunk_count) on document to larder_reader;
set local role larder_reader;
create or replace view searchable_document as
    select id, source_id, source_type, kind, tags, metadata, project_id, hidden, deleted, security_level, created_at,
           updated_at, chunk_count
    from document where tenant_id = (select current_tenant());
reset role;
revoke create on schema public from larder_reader;
revoke larder_reader from current_user;
