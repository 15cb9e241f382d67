"""Sending and doing the work of filling search indexes that lack documents."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pipeline.ledger import Item, Stage, followers
from pipeline.search.chunk_store import SearchIndex, indexes
from workers.queue import dispatch
from workers.runtime import Runtime


def send_due(parts: Runtime) -> None:
    """Send messages for what any search index lacks; nothing to do as long as there is only one."""
    with parts.database.control() as connection:
        found = indexes(connection)
    if len(found) > 1:
        for index in found:
            _send(parts, index)


def _send(parts: Runtime, index: SearchIndex) -> None:
    with parts.database.control() as connection:
        due = followers.choose(connection, index.id, parts.limits)
    for one in due:
        weight = parts.weights[Stage.CHUNKED]
        for part in dispatch.portions(one.items, one.sizes, weight=weight, most=parts.limits.batch):
            dispatch.send_fill(parts.database, one.tenant_id, index.id, part)


def fill(parts: Runtime, tenant: UUID, index_id: int, items: Sequence[Item]) -> None:
    """Fill one message's documents into an index, then see to it that there is a next message."""
    with parts.database.tenant(tenant, durable=False) as connection:
        index = next((i for i in indexes(connection) if i.id == index_id), None)
    if index is None:
        return  # it was dropped, and all that was noted about it with it
    again = parts.filler(index).fill(tenant, items)
    dispatch.send_fill(parts.database, tenant, index_id, again)
    _send(parts, index)
