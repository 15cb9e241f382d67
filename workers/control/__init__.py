"""What the control queue does: sync, backfill, maintenance, registration of sources."""
