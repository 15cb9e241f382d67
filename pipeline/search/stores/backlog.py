"""What each vector store has yet to learn, for status, metrics and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.search.stores.outbox import StoreRow, listed


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The outbox of one store."""

    store: str
    waiting: int = 0
    filling: int = 0
    """Rows of `waiting` that fill the store."""
    dead: int = 0
    oldest_seconds: float | None = None
    """Age of the oldest change that is not carried over; None if there is none. Filling does not count."""
    last_error: str | None = None


_BACKLOG = text("""
    select store, count(*) filter (where dead_at is null) as waiting,
           count(*) filter (where dead_at is null and lane = 2) as filling,
           count(*) filter (where dead_at is not null) as dead,
           cast(extract(epoch from now() - min(noted_at) filter (where dead_at is null and lane < 2))
                as double precision) as oldest_seconds,
           max(last_error) as last_error
    from vector_outbox group by store order by store""")


def backlogs(connection: Connection) -> dict[str, Backlog]:
    """The outbox of each store that has rows, by name."""
    rows = [dict(row) for row in connection.execute(_BACKLOG).mappings()]
    return {row["store"]: Backlog(**row) for row in rows}


def status_of(connection: Connection) -> list[Json]:
    """The entry `stores` of `larder status --json`; empty with pgvector alone."""
    waiting = backlogs(connection)
    none = Backlog(store="")
    return list(starmap(_status, ((row, waiting.get(row.name, none)) for row in listed(connection))))


NOT_ADDED: Json = {
    "name": "",
    "status": "not added",
    "active": False,
    **dict.fromkeys(("outbox", "filling", "refused", "failures"), 0),
    **dict.fromkeys(("oldest_unsent_seconds", "last_error", "paused_until")),
}
"""Status of a store that is configured and has no row."""


def _status(row: StoreRow, backlog: Backlog) -> Json:
    return {
        "name": row.name,
        "status": row.status,
        "active": row.active,
        "outbox": backlog.waiting,
        "filling": backlog.filling,
        "refused": backlog.dead,
        "oldest_unsent_seconds": backlog.oldest_seconds,
        "failures": row.failures,
        "last_error": row.last_error or backlog.last_error,
        "paused_until": row.due_at.isoformat() if row.failures else None,
    }
