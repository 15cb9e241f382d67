-- What finding out which documents a search index lacks reads at every tick: the versions alone, in one order from both
-- sides, so that the wide rows with tags, metadata and centroids stay out of it.

create index document_searchable on document (tenant_id, id) include (indexed_version)
    where not deleted and indexed_version is not null;
create index index_document_version on index_document (index_id, tenant_id, document_id) include (version);
create index index_document_leased on index_document (index_id, lease_until) where lease_until is not null;
