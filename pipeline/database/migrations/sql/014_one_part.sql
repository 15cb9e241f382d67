-- A part that waits or is held back stops nothing else.

-- A source is walked again while documents of its last walk still wait: only one walk at a time, but several open runs.
drop index sync_run_one_open;
create unique index sync_run_one_walk on sync_run (source_id) where state = 'discovering';
create index sync_run_open on sync_run (source_id) where finished_at is null;

-- A release of held deletions is for so many and no more, until released_until.
alter table source add column released integer not null default 0;

-- The level of the text that is searchable, while a version of another level is on its way; null: the same.
alter table document add column served_level text;
grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
grant select (served_level) on document to larder_reader;
set local role larder_reader;
create or replace view searchable_document as
    select id, source_id, source_type, kind, tags, metadata, project_id, hidden, deleted, security_level, created_at,
           updated_at, chunk_count, served_level
    from document where tenant_id = (select current_tenant());
reset role;
revoke create on schema public from larder_reader;
revoke larder_reader from current_user;
