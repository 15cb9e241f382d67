alter table sync_run drop column traceparent;
alter table enrichment_job drop column traceparent;
