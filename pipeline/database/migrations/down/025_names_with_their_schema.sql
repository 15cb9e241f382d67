-- Functions keep the names with their schema, which mean the same.
select 1;
