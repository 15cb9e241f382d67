alter table document reset (fillfactor);
alter table run_item reset (fillfactor);
alter table lexeme_stat reset (fillfactor);
