-- A part that waits or is held back stops nothing else.

-- A release of held deletions is for so many and no more, until released_until.
alter table source add column released integer not null default 0;
