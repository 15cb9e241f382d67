-- Small changes overtake bulk: what was indexed already and waits anew is found by its source, and the pump sees how many
-- chunks wait to be embedded, never their text.
create index document_changed on document (source_id, stage, due_at, id)
    where state = 'pending' and indexed_version is not null;
grant select (document_id) on chunk_stage to larder_control;
create policy ledger on chunk_stage for select to larder_control using (true);
