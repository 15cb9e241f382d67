drop table source_event;
drop table source_hint;
