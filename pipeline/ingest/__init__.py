"""A document's way into the store: sync, chunk, embed, upsert, backfill of another index."""
