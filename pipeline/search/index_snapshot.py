"""What a process knows of the active search index and of how much a tenant has in it, as of a short while ago."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.search import statement, term_statistics
from pipeline.search.chunk_store import INDEX_COLUMNS, SearchIndex

KEPT_SECONDS = 60.0
"""How long the counts of a last look are good enough; upkeep makes them anew far less often."""
MOST_KEPT = 1000
"""Tenants; and filters."""
MOST_STEPS = 10_000
"""Half of those after which the vector index gives up, however few it has found (`hnsw.max_scan_tuples`)."""


@dataclass(frozen=True, kw_only=True)
class IndexSnapshot:
    """The active index and a tenant's counts in it, as of the last count; zeros before the first."""

    index: SearchIndex
    chunks: int
    mean_length: float
    state: str
    """Of all that the tenant's searches may show: another one after each change. Empty if nothing was ever indexed."""


_LAST: WeakKeyDictionary[Database, dict[UUID, tuple[float, IndexSnapshot]]] = WeakKeyDictionary()
_PASSING: WeakKeyDictionary[Database, dict[tuple[UUID, int, str], tuple[float, int]]] = WeakKeyDictionary()

_LOOK = text(f"""
    select {", ".join(f"i.{name}" for name in INDEX_COLUMNS)}, coalesce(s.chunks, 0) as chunks,
           coalesce(s.mean_length, 0) as mean_length,
           (select md5(string_agg(cast(x.stamp as text), ' ' order by x.slot)) from change_stamp x) as state
    from search_index i left join index_stat s on s.tenant_id = :tenant and s.index_id = i.id
    where i.status = 'active'""")


def last(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What this process saw last, however long ago; None if it never looked."""
    return _LAST.get(database, {}).get(tenant_id, (0.0, None))[1]


def known(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What this process saw a short while ago; None if it did not look.

    Right for embedding a question and for the choice between ways to search. Whether the index still is the active one
    is told by the statement that searches.
    """
    until, snapshot = _LAST.get(database, {}).get(tenant_id, (0.0, None))
    return snapshot if time.monotonic() < until else None


def look(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What there is now; None before the first document.

    Words are counted if that was never done, so that the first search after the first documents ranks as later ones.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with database.tenant(tenant_id) as connection:
        row = connection.execute(_LOOK, {"tenant": tenant_id}).mappings().one_or_none()
        if row is not None and not row["chunks"] and term_statistics.ensure(connection, tenant_id, row["id"]):
            row = connection.execute(_LOOK, {"tenant": tenant_id}).mappings().one_or_none()
    if row is None:
        return None
    found = IndexSnapshot(
        index=SearchIndex(**{name: row[name] for name in INDEX_COLUMNS}),
        chunks=row["chunks"],
        mean_length=row["mean_length"],
        state=row["state"] or "",
    )
    kept = _LAST.setdefault(database, {})
    if len(kept) >= MOST_KEPT:
        kept.clear()
    if found.chunks:
        kept[tenant_id] = (time.monotonic() + KEPT_SECONDS, found)
    return found


def is_narrow(
    database: Database,
    tenant_id: UUID,
    snapshot: IndexSnapshot,
    names: tuple[str, ...],
    values: Mapping[str, Any],
    wanted: int,
) -> bool:
    """Whether comparing all chunks that a filter lets through is sooner than following the vector index to `wanted`.

    Comparing a chunk takes 2.5 us here, and a step of the vector index 20 us, of which it takes `wanted * chunks /
    passing`: both take the same at `passing = sqrt(8 * wanted * chunks)`. Counted once a minute, since the same few
    filters come again and again. `names` and `values` are those of the filter's parts on documents.
    """
    most = max(math.isqrt(8 * wanted * snapshot.chunks), wanted * snapshot.chunks // MOST_STEPS)
    kept = _PASSING.setdefault(database, {})
    key = tenant_id, snapshot.index.id, repr(values)
    until, passing = kept.get(key, (0.0, 0))
    if time.monotonic() >= until:
        # A document has a chunk at least; more of them than this let too much through in any case.
        ((passing,),) = database.ask(tenant_id, statement.passing_count(names, most + 1), values)
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[key] = (time.monotonic() + KEPT_SECONDS, passing)
    return passing <= most
