-- Work for a search index beside the one that is read waits as all other work does: apart from failed attempts.
alter table index_document add column waits integer not null default 0;
grant select (waits) on index_document to larder_control;
-- Attempts counted both until now. Workers of before write no waits, which harms nobody. The owner is bound by row-level
-- security like everybody, hence the lines around.
alter table index_document no force row level security;
update index_document set attempts = 0 where attempts > 0 and dead_version is null;
alter table index_document force row level security;
