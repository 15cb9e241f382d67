"""Ingestion: syncs that bring documents into the ledger, and the steps that bring them into each search index."""
