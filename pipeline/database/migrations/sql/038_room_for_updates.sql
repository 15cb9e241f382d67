-- A document is changed some eight times on its way, three of them in columns that no index has. With room on its page
-- these need no new entry in any of ten indexes: a first load of 2,000 left table and indexes half as large.
alter table document set (fillfactor = 70);
alter table run_item set (fillfactor = 80);
-- The counts of most words change at each count.
alter table lexeme_stat set (fillfactor = 70);
