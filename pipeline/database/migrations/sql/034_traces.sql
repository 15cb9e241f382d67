-- Where a trace goes on, whoever takes up the work and however often its message is sent: the W3C form `traceparent`.
alter table sync_run add column traceparent text;
alter table enrichment_job add column traceparent text;
