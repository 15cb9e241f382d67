-- What the id walk of a source compares, and where a walk that gave way goes on.

alter table document add column fingerprint text not null default '';
alter table sync_run add column walk_after text;
