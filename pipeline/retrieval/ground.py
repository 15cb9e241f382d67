"""What a search stands on: the active index, and how much is in it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import text

from pipeline.database import Database
from pipeline.stores import statistics
from pipeline.stores.pgvector import INDEX_COLUMNS, SearchIndex
from pipeline.stores.pgvector_bm25 import Statistics

KEPT_SECONDS = 60.0
"""How long the counts of a last look are good enough; upkeep makes them anew far less often."""
MOST_KEPT = 1000
"""Tenants."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The active index and a tenant's counts in it."""

    index: SearchIndex
    counted: Statistics


_LAST: WeakKeyDictionary[Database, dict[UUID, tuple[float, Ground]]] = WeakKeyDictionary()

_GROUND = text(f"""
    select {", ".join(f"i.{name}" for name in INDEX_COLUMNS)}, s.chunks as chunks, s.mean_length as mean_length
    from search_index i left join index_stat s on s.tenant_id = :tenant and s.index_id = i.id
    where i.status = 'active'""")


def known(database: Database, tenant_id: UUID) -> Ground | None:
    """What this process saw a short while ago; None if it did not look.

    Right for embedding a question and for the choice between ways to search. Whether the index still is the active
    one, a search reads with its candidates (`ACTIVE`).
    """
    until, kept = _LAST.get(database, {}).get(tenant_id, (0.0, None))
    return kept if time.monotonic() < until else None


def look(database: Database, tenant_id: UUID) -> Ground | None:
    """What there is now; None before the first document.

    Words are counted if that was never done, so that the first search after the first documents ranks as later ones.
    """
    with database.tenant(tenant_id) as connection:
        row = connection.execute(_GROUND, {"tenant": tenant_id}).mappings().one_or_none()
        if row is not None and not row["chunks"] and statistics.ensure(connection, tenant_id, row["id"]):
            row = connection.execute(_GROUND, {"tenant": tenant_id}).mappings().one_or_none()
    if row is None:
        return None
    index = SearchIndex(**{name: row[name] for name in INDEX_COLUMNS})
    counted = Statistics(chunks=row["chunks"] or 0, mean_length=row["mean_length"] or 0.0)
    found = Ground(index=index, counted=counted)
    kept = _LAST.setdefault(database, {})
    if len(kept) >= MOST_KEPT:
        kept.clear()
    if counted.chunks:
        kept[tenant_id] = (time.monotonic() + KEPT_SECONDS, found)
    return found
