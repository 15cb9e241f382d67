alter table sync_run drop column noted;
