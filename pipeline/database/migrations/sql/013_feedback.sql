-- What people said of documents that answers showed: useful or noise, for one question each.
--
-- `query_hash` names the question, an item's by its project and id. What it was is kept here, since enrichment jobs are
-- aged out and a judged set must be made of it all the same: `item`, `title` and `project` for people, `question` with
-- all that was asked.

alter table feedback
    drop column weight,
    add column item text not null default '' check (length(item) <= 200),
    add column title text not null default '' check (length(title) <= 200),
    add column project text not null default '' check (length(project) <= 200),
    add column question jsonb not null default '{}',
    add column given_by text not null default '',
    add constraint feedback_verdict check (verdict in ('useful', 'noise'));

-- A search reads the newest of what is said of each document that it shows; and a document that is removed takes all
-- of it along.
create index feedback_of_document on feedback (document_id, at desc) include (tenant_id, query_hash, verdict);

-- An answer that was kept from before is not given again. Not when documents are removed: they change the state
-- themselves, once for all that hangs on them.
create trigger stamp_feedback after insert or update or delete on feedback
    for each statement when (pg_trigger_depth() = 0) execute function stamp_change();
