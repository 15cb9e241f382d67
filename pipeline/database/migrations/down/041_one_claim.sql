alter table index_document drop column waits;
