-- What a search leaves out is read once, before it looks at chunks, instead of each candidate's document: mostly nothing.
--
-- A removed document is hidden and deleted, keeps its row for ever and has lost its chunks in the same transaction, so it
-- need not be here.

create index document_hidden on document (tenant_id) include (id) where hidden <> deleted;
