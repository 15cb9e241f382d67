"""Syncs and the pump as tasks."""

from __future__ import annotations

from uuid import UUID

from workers import runtime
from workers.control import sync as control
from workers.queue import dispatch
from workers.queue.app import app


@app.task(name="larder.sync")  # type: ignore[untyped-decorator]
def sync(tenant: str, source: str, run: int, **_later: object) -> None:
    """One slice of a source's walk; a further one is sent if it is not through."""
    parts = runtime.current()
    if not control.sync(parts, UUID(tenant), UUID(source), run):
        dispatch.send_sync(parts.database, UUID(tenant), UUID(source), run)


@app.task(name="larder.pump")  # type: ignore[untyped-decorator]
def pump(**_later: object) -> None:
    """Send messages for all that is due: documents, syncs, upkeep."""
    control.pump(runtime.current())
