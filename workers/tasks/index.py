"""The three steps of a document as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pipeline.ledger import Item
from workers import runtime
from workers.queue import dispatch
from workers.queue.app import app


def decode(items: Sequence[Sequence[str | int]]) -> list[Item]:
    """`[[id, version], ...]` of a message as items."""
    return [Item(UUID(str(i)), int(v)) for i, v, *_ in items]


@app.task(name="larder.chunk")  # type: ignore[untyped-decorator]
def chunk(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Cut documents into chunks."""
    parts = runtime.current()
    step = parts.indexer.chunk(UUID(tenant), decode(items))
    dispatch.send_step(parts.database, UUID(tenant), step, parts.weights, parts.limits.batch)


@app.task(name="larder.embed")  # type: ignore[untyped-decorator]
def embed(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Make the vectors that are missing."""
    parts = runtime.current()
    step = parts.indexer.embed(UUID(tenant), decode(items))
    dispatch.send_step(parts.database, UUID(tenant), step, parts.weights, parts.limits.batch)


@app.task(name="larder.upsert")  # type: ignore[untyped-decorator]
def upsert(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Make documents searchable."""
    parts = runtime.current()
    step = parts.indexer.upsert(UUID(tenant), decode(items))
    dispatch.send_step(parts.database, UUID(tenant), step, parts.weights, parts.limits.batch)
