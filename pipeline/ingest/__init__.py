"""A document's way into the store: sync, then the steps into each search index."""
