"""Indexes what is configured, without workers."""

from __future__ import annotations

import os

from tests.workers.indexed import index
from workers.app.ingestion import sync
from workers.local.embedded.locating import open_runtime
from workers.queue.app import configure
from workers.settings import load

if __name__ == "__main__":
    parts = open_runtime(load(None, os.environ), start=True)
    configure(parts.rag.queue, parts.addresses.broker, send_only=True)
    sync.register(parts)
    index(parts)
    parts.close()
