"""Filling another search index as a task."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from workers import runtime
from workers.control import backfill
from workers.queue.app import app
from workers.tasks.index import decode


@app.task(name="larder.fill")  # type: ignore[untyped-decorator]
def fill(tenant: str, index: int, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Bring documents into a search index that lacks them."""
    backfill.fill(runtime.current(), UUID(tenant), index, decode(items))
