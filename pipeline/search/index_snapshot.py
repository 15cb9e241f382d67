"""What a search stands on: the active index, and how much is in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.search import statements, term_statistics
from pipeline.search.arms import even, passing
from pipeline.search.bm25 import Statistics
from pipeline.search.chunk_store import INDEX_COLUMNS, SearchIndex
from pipeline.search.chunks import Filter
from pipeline.search.filters import names_of, of_chunks, of_documents, values_of

KEPT_SECONDS = 60.0
"""How long the counts of a last look are good enough; upkeep makes them anew far less often."""
MOST_KEPT = 1000
"""Tenants; and filters."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The active index and a tenant's counts in it."""

    index: SearchIndex
    counted: Statistics
    names: dict[int, str] = field(default_factory=dict)
    """Of the sources that hits came from, by the number that an id is: found five times as fast."""


_LAST: WeakKeyDictionary[Database, dict[UUID, tuple[float, Ground]]] = WeakKeyDictionary()
_PASSING: WeakKeyDictionary[Database, dict[tuple[UUID, int, str], tuple[float, int]]] = WeakKeyDictionary()

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
        if row is not None and not row["chunks"] and term_statistics.ensure(connection, tenant_id, row["id"]):
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


def name_of(database: Database, tenant_id: UUID, on: Ground, source: UUID) -> str:
    """A source's name; looked up once, which spares each search a join. Empty if the source is gone by now."""
    name = on.names.get(source.int)
    if name is None:
        rows = database.ask(tenant_id, "select name from source where id = %(id)s", {"id": source})
        name = on.names[source.int] = rows[0][0] if rows else ""
    return name


def width(
    database: Database, tenant_id: UUID, on: Ground, wanted: Filter, *, candidates: int, first: int
) -> statements.Passing:
    """How many chunks a filter lets through, for a search for the `first` nearest; `candidates` are its most.

    Counted once a minute, since the same few filters come again and again; then their searches need not be planned
    anew each time, which takes as long as half of the search. Empty for a filter that no count can tell: none, or one
    on chunks themselves.
    """
    names = names_of(wanted)
    asked = of_documents(names)
    if not asked or not {"exclude"}.issuperset(of_chunks(names)):
        return ""
    values, chunks = values_of(wanted, asked), on.counted.chunks
    kept = _PASSING.setdefault(database, {})
    key = tenant_id, on.index.id, repr(values)
    until, found = kept.get(key, (0.0, 0))
    if time.monotonic() >= until:
        # A document has a chunk at least; more of them than this let too much through in any case.
        count = statements.passing_count(asked, even(candidates, chunks) + 1)
        ((found,),) = database.ask(tenant_id, count, values)
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[key] = (time.monotonic() + KEPT_SECONDS, found)
    return passing(found, first, chunks)
