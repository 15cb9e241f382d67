"""Work of the control, ingest and embed queues: the pump, syncs, steps of documents, fills, upkeep."""
