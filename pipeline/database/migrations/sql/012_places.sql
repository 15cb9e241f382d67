-- Where a chunk lies, for a statement that looks it up again: by that it is found twice as fast as by its key.
grant usage, create on schema public to larder_reader;
grant larder_reader to current_user;
set local role larder_reader;
create or replace view searchable_chunk as
    select c.*, c.ctid as place from chunk c where c.tenant_id = (select current_tenant());
reset role;
revoke create on schema public from larder_reader;
revoke larder_reader from current_user;
