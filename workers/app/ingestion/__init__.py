"""What tasks of the control, ingest and embed queues do: the pump, syncs, steps of documents, fills, upkeep."""
