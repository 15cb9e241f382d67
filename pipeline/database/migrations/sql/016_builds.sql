-- Who builds what was put off of a search index, which may take hours: one at a time, and by a lease instead of a message.
alter table search_index
    add column build_asked_at timestamptz default now(),  -- null: nothing has changed since it was looked at last
    add column lease_token uuid,
    add column lease_until timestamptz;
grant update (build_asked_at, lease_token, lease_until) on search_index to larder_control;
