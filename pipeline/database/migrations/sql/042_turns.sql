-- What is sent next is the first rows of one index: each waiting document has a lane and, within it, a turn (start-time
-- fair queueing). A document without a turn gets one from the pump when it is due: one that was postponed or requeued, and
-- those of workers of before, which give none. So nothing is written for the documents that wait now.
alter table document
    add column lane smallint not null default 6,
    add column turn bigint;
grant select (lane, turn), update (lane, turn) on document to larder_control;
create index document_next on document (cast(stage = 'chunked' as integer), lane, turn, due_at, source_id)
    where state = 'pending' and enqueued_at is null and turn is not null;
create index document_turnless on document (due_at) where state = 'pending' and turn is null;
drop index document_changed;

-- The newest turn that was sent to be embedded, of each lane and over all tenants: where newcomers begin.
create table lane_clock (
    lane smallint primary key,
    turn bigint not null default 0
);
insert into lane_clock (lane) values (0), (3), (6);
grant select on lane_clock to larder_app;
grant select, update on lane_clock to larder_control;
