"""Caches of a process for searches: vectors of queries, answers for database outages, state of the index."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, text

from pipeline.database.engine import Database
from pipeline.ledger import ALL
from pipeline.search import statement, term_statistics
from pipeline.search.chunk_store import INDEX_COLUMNS, SearchIndex
from pipeline.search.records import Filter, Partial

if TYPE_CHECKING:
    from pipeline.embedding import Vectors
    from pipeline.search.records import SearchResults

V = TypeVar("V")

SNAPSHOT_SECONDS = 60.0
"""Seconds that a snapshot's counts are used; upkeep counts far less often."""
MOST_ENTRIES = 1000
"""Most tenants, and most filters, that are remembered."""
MOST_STEPS = 10_000
"""Half of the tuples after which a scan of the vector index ends (`hnsw.max_scan_tuples`)."""


class MemoryCache(Generic[V]):
    """Values by key, in separately bounded spaces, such as one per tenant; safe for several threads."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, looked: Callable[[bool], object] = lambda _: None
    ) -> None:
        """`entries` of each space are kept for at most `seconds`; `looked` gets the success of each lookup."""
        self._entries = entries
        self._seconds = seconds
        self._looked = looked
        self._spaces: dict[str, OrderedDict[str, tuple[float, V]]] = {}
        self._lock = threading.Lock()

    def get(self, space: str, key: str) -> V | None:
        """The value of a key, unless it is too old or was evicted."""
        with self._lock:
            values = self._spaces.setdefault(space, OrderedDict())
            hit = key in values and values[key][0] > time.monotonic()
            self._looked(hit)
            if not hit:
                return None
            values.move_to_end(key)
            return values[key][1]

    def last(self, space: str, key: str) -> V | None:
        """The value of a key regardless of its age."""
        with self._lock:
            values = self._spaces.get(space, OrderedDict())
            return values[key][1] if key in values else None

    def put(self, space: str, key: str, value: V) -> None:
        """Store `value`, and evict the space's least recently used values."""
        with self._lock:
            values = self._spaces.setdefault(space, OrderedDict())
            values[key] = (time.monotonic() + self._seconds, value)
            values.move_to_end(key)
            while len(values) > self._entries:
                values.popitem(last=False)

    @property
    def size(self) -> int:
        """Number of values in all spaces."""
        return sum(map(len, list(self._spaces.values())))


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Caches of a retriever; None caches nothing."""

    vectors: MemoryCache[Vectors] | None = None
    """Vectors of queries."""
    answers: MemoryCache[SearchResults] | None = None
    """Whole answers, given only while the database is away or too slow (level 2)."""

    @property
    def size(self) -> int:
        """Number of values in both caches."""
        return sum(memory.size for memory in (self.vectors, self.answers) if memory)


@dataclass(frozen=True, kw_only=True)
class IndexSnapshot:
    """The active index and a tenant's counts in it, as of the last count; zeros before the first."""

    index: SearchIndex
    chunks: int
    mean_length: float
    state: str
    """Stamp of all that the tenant's searches may show, new after each change; empty before the first document."""
    partial: Partial | None = None
    """Documents without vectors when the snapshot was read."""


class _Observations:
    """Observed state of one database."""

    def __init__(self) -> None:
        self.snapshots = MemoryCache[IndexSnapshot](entries=MOST_ENTRIES, seconds=SNAPSHOT_SECONDS)
        self.passing = MemoryCache[int](entries=MOST_ENTRIES, seconds=SNAPSHOT_SECONDS)
        """Chunks that a filter lets through; for tests of existence 0 or 1."""


_OBSERVATIONS: WeakKeyDictionary[Database, _Observations] = WeakKeyDictionary()

PARTIAL = """
    select cast(coalesce(sum(documents), 0) as bigint) as documents,
           cast(coalesce(sum(documents) filter (where state = 'pending' and not indexed), 0) as bigint)
               as without_vectors
    from document_count where not hidden"""
"""Counts of visible documents: all, and those that have no vectors yet."""
_SNAPSHOT = text(f"""
    select {", ".join(f"i.{name}" for name in INDEX_COLUMNS)}, coalesce(s.chunks, 0) as chunks,
           coalesce(s.mean_length, 0) as mean_length,
           (select md5(string_agg(cast(x.stamp as text), ' ' order by x.slot)) from change_stamp x) as state,
           d.documents, d.without_vectors
    from search_index i left join index_stat s on s.tenant_id = :tenant and s.index_id = i.id
    cross join ({PARTIAL}) d
    where i.status = 'active'""")


def last_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """The latest snapshot of this process, regardless of its age; None if there is none."""
    return _OBSERVATIONS.setdefault(database, _Observations()).snapshots.last("", str(tenant_id))


def fresh_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """A recent snapshot of this process; None if there is none, or documents were being loaded then.

    It suffices for embedding a query and for choosing a plan. The search statement itself checks that the index is
    still active.
    """
    snapshot = _OBSERVATIONS.setdefault(database, _Observations()).snapshots.get("", str(tenant_id))
    return None if snapshot is None or snapshot.partial else snapshot


def read_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """Read a new snapshot; None before the first document.

    Lexemes are counted if they never were, so that the first search after the first documents ranks like later ones.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with database.tenant(tenant_id) as connection:
        row = connection.execute(_SNAPSHOT, {"tenant": tenant_id}).mappings().one_or_none()
        if row is not None and not row["chunks"]:
            term_statistics.ensure(connection, tenant_id, row["id"])
            row = connection.execute(_SNAPSHOT, {"tenant": tenant_id}).mappings().one_or_none()
    if row is None:
        return None
    snapshot = IndexSnapshot(
        index=SearchIndex(**{name: row[name] for name in INDEX_COLUMNS}),
        chunks=row["chunks"],
        mean_length=row["mean_length"],
        state=row["state"] or "",
        partial=Partial(without_vectors=row["without_vectors"], documents=row["documents"])
        if row["without_vectors"]
        else None,
    )
    if snapshot.chunks:
        _OBSERVATIONS.setdefault(database, _Observations()).snapshots.put("", str(tenant_id), snapshot)
    return snapshot


def is_narrow(
    database: Database,
    tenant_id: UUID,
    snapshot: IndexSnapshot,
    names: tuple[str, ...],
    values: Mapping[str, Any],
    neighbours: int,
) -> bool:
    """Whether comparing all chunks that pass the filter is faster than an index scan for `neighbours` of them.

    Comparing a chunk takes 2.5 us, and a step of the vector index, which holds the chunks of all tenants, 20 us. A scan
    takes `neighbours * among / passing` steps, so both take the same at `passing = sqrt(8 * neighbours * among)`.
    Counted once a minute, since the same few filters recur. `names` and `values` are those of the filter's conditions
    on documents; without any, all of the tenant's chunks pass.
    """
    among = max(snapshot.chunks, snapshot.index.indexed_rows or 0)
    most = max(math.isqrt(8 * neighbours * among), neighbours * among // MOST_STEPS)
    small = snapshot.chunks < among and snapshot.chunks <= most
    if small or not names:
        return small
    # Each document has at least one chunk, so counting can end at this number of documents.
    passing = statement.passing_count(names, most + 1)
    return _counted(database, tenant_id, f"{snapshot.index.id}", passing, values) <= most


def sees_all(database: Database, tenant_id: UUID, rights: Filter) -> bool:
    """Whether these rights include all documents of the tenant; up to a minute old.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.names_of(rights)
    return not (names and _is_any(database, tenant_id, statement.any_withheld, rights, names))


def partial_of_all(connection: Connection) -> Partial | None:
    """Counts over all tenants' documents; None if all of them have vectors."""
    row = connection.execute(text(PARTIAL)).mappings().one()
    return Partial(**row) if row["without_vectors"] else None


def partial_for(
    database: Database, tenant_id: UUID, snapshot: IndexSnapshot | None, query_filter: Filter
) -> Partial | None:
    """Counts that a caller may see: documents hidden from them are neither counted nor mentioned."""
    if (
        snapshot is None
        or snapshot.partial is None
        or query_filter.security_levels == query_filter.readers == ALL
    ):
        return snapshot.partial if snapshot else None
    rights = Filter(
        projects=query_filter.projects,
        security_levels=query_filter.security_levels,
        readers=query_filter.readers,
    )
    names = statement.names_of(rights)
    waits = _is_any(database, tenant_id, statement.any_without_vectors, rights, names)
    return Partial() if waits else None


def _is_any(
    database: Database,
    tenant_id: UUID,
    query_for: Callable[[tuple[str, ...]], str],
    query_filter: Filter,
    names: tuple[str, ...],
) -> bool:
    values = statement.values_of(query_filter, names)
    return bool(_counted(database, tenant_id, query_for.__name__, query_for(names), values))


def _counted(database: Database, tenant_id: UUID, name: str, query: str, values: Mapping[str, Any]) -> int:
    """The number that a statement returns, up to a minute old; `name` and the values identify it."""
    counts, key = (
        _OBSERVATIONS.setdefault(database, _Observations()).passing,
        f"{name} {tenant_id} {values!r}",
    )
    count = counts.get("", key)
    if count is None:
        ((count,),) = database.fetch(tenant_id, query, values)
        counts.put("", key, int(count))
    return int(count)
