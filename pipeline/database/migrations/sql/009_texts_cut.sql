-- Of the texts that a run embedded: those the model read the beginning of alone, because they are longer than it takes.

alter table run_item add column texts_cut integer not null default 0;
alter table sync_run add column texts_cut integer not null default 0;
