-- Documents that were read in part: a header that is not valid, for one.
alter table sync_run add column noted integer not null default 0;
