drop table lane_clock;
drop index document_turnless;
drop index document_next;
alter table document drop column turn, drop column lane;
create index document_changed on document (source_id, stage, due_at, id)
    where state = 'pending' and indexed_version is not null;
