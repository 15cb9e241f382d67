"""What a process remembers of searches: vectors of questions, answers for when the database is away, the index."""

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

KEPT_SECONDS = 60.0
"""How long the counts of a last look are good enough; upkeep makes them anew far less often."""
MOST_KEPT = 1000
"""Tenants; and filters."""
MOST_STEPS = 10_000
"""Half of those after which the vector index gives up, however few it has found (`hnsw.max_scan_tuples`)."""


class MemoryCache(Generic[V]):
    """Values under a key, in spaces that are bounded one by one, such as one per tenant; safe for several threads."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, looked: Callable[[bool], object] = lambda _: None
    ) -> None:
        """`entries` of each space are kept, and are got for at most `seconds`; `looked` hears whether one was got."""
        self._entries = entries
        self._seconds = seconds
        self._looked = looked
        self._spaces: dict[str, OrderedDict[str, tuple[float, V]]] = {}
        self._lock = threading.Lock()

    def get(self, space: str, key: str) -> V | None:
        """What was put there, unless it is too old or has been pushed out."""
        with self._lock:
            kept = self._spaces.setdefault(space, OrderedDict())
            found = key in kept and kept[key][0] > time.monotonic()
            self._looked(found)
            if not found:
                return None
            kept.move_to_end(key)
            return kept[key][1]

    def last(self, space: str, key: str) -> V | None:
        """The same, however old it is."""
        with self._lock:
            kept = self._spaces.get(space, OrderedDict())
            return kept[key][1] if key in kept else None

    def put(self, space: str, key: str, value: V) -> None:
        """Remember `value`; pushes out what of this space was not used for the longest time."""
        with self._lock:
            kept = self._spaces.setdefault(space, OrderedDict())
            kept[key] = (time.monotonic() + self._seconds, value)
            kept.move_to_end(key)
            while len(kept) > self._entries:
                kept.popitem(last=False)

    @property
    def size(self) -> int:
        """Values in all spaces."""
        return sum(map(len, list(self._spaces.values())))


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What a retriever remembers; None remembers nothing."""

    vectors: MemoryCache[Vectors] | None = None
    """Vectors of questions."""
    answers: MemoryCache[SearchResults] | None = None
    """Whole answers, given only while the database is away or too slow (level 2)."""

    @property
    def size(self) -> int:
        """How much both remember."""
        return sum(kept.size for kept in (self.vectors, self.answers) if kept)


@dataclass(frozen=True, kw_only=True)
class IndexSnapshot:
    """The active index and a tenant's counts in it, as of the last count; zeros before the first."""

    index: SearchIndex
    chunks: int
    mean_length: float
    state: str
    """Of all that the tenant's searches may show: another one after each change. Empty if nothing was ever indexed."""
    partial: Partial | None = None
    """As of the look."""


class _Seen:
    """What was seen of one database."""

    def __init__(self) -> None:
        self.snapshots = MemoryCache[IndexSnapshot](entries=MOST_KEPT, seconds=KEPT_SECONDS)
        self.passing = MemoryCache[int](entries=MOST_KEPT, seconds=KEPT_SECONDS)
        """How many chunks a filter lets through; 0 or 1 of what is only asked to be there."""


_SEEN: WeakKeyDictionary[Database, _Seen] = WeakKeyDictionary()

PARTIAL = """
    select cast(coalesce(sum(documents), 0) as bigint) as documents,
           cast(coalesce(sum(documents) filter (where state = 'pending' and not indexed), 0) as bigint)
               as without_vectors
    from document_count where not hidden"""
"""Of whom may be seen: all documents, and those that are found by words alone, or not at all yet."""
_LOOK = text(f"""
    select {", ".join(f"i.{name}" for name in INDEX_COLUMNS)}, coalesce(s.chunks, 0) as chunks,
           coalesce(s.mean_length, 0) as mean_length,
           (select md5(string_agg(cast(x.stamp as text), ' ' order by x.slot)) from change_stamp x) as state,
           d.documents, d.without_vectors
    from search_index i left join index_stat s on s.tenant_id = :tenant and s.index_id = i.id
    cross join ({PARTIAL}) d
    where i.status = 'active'""")


def last_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What this process saw last, however long ago; None if it never looked."""
    return _SEEN.setdefault(database, _Seen()).snapshots.last("", str(tenant_id))


def fresh_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What this process saw a short while ago; None if it did not look, or documents were being loaded then.

    Right for embedding a question and for the choice between ways to search. Whether the index still is the active one
    is told by the statement that searches.
    """
    seen = _SEEN.setdefault(database, _Seen()).snapshots.get("", str(tenant_id))
    return None if seen is None or seen.partial else seen


def read_snapshot(database: Database, tenant_id: UUID) -> IndexSnapshot | None:
    """What there is now; None before the first document.

    Words are counted if that was never done, so that the first search after the first documents ranks as later ones.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with database.tenant(tenant_id) as connection:
        row = connection.execute(_LOOK, {"tenant": tenant_id}).mappings().one_or_none()
        if row is not None and not row["chunks"]:
            term_statistics.ensure(connection, tenant_id, row["id"])
            row = connection.execute(_LOOK, {"tenant": tenant_id}).mappings().one_or_none()
    if row is None:
        return None
    found = IndexSnapshot(
        index=SearchIndex(**{name: row[name] for name in INDEX_COLUMNS}),
        chunks=row["chunks"],
        mean_length=row["mean_length"],
        state=row["state"] or "",
        partial=Partial(without_vectors=row["without_vectors"], documents=row["documents"])
        if row["without_vectors"]
        else None,
    )
    if found.chunks:
        _SEEN.setdefault(database, _Seen()).snapshots.put("", str(tenant_id), found)
    return found


def is_narrow(
    database: Database,
    tenant_id: UUID,
    snapshot: IndexSnapshot,
    names: tuple[str, ...],
    values: Mapping[str, Any],
    wanted: int,
) -> bool:
    """Whether comparing all chunks that are let through is sooner than following the vector index to `wanted` of them.

    Comparing a chunk takes 2.5 us here, and a step of the vector index, which holds the chunks of all tenants, 20 us,
    of which it takes `wanted * among / passing`: both take the same at `passing = sqrt(8 * wanted * among)`. Counted
    once a minute, since the same few filters come again and again. `names` and `values` are those of the filter's parts
    on documents; without any, what passes is the tenant's own.
    """
    among = max(snapshot.chunks, snapshot.index.indexed_rows or 0)
    most = max(math.isqrt(8 * wanted * among), wanted * among // MOST_STEPS)
    small = snapshot.chunks < among and snapshot.chunks <= most
    if small or not names:
        return small
    # A document has a chunk at least; more of them than this let too much through in any case.
    passing = statement.passing_count(names, most + 1)
    return _counted(database, tenant_id, f"{snapshot.index.id}", passing, values) <= most


def sees_all(database: Database, tenant_id: UUID, rights: Filter) -> bool:
    """Whether these rights keep no document of the tenant back; as of a minute ago at most.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.names_of(rights)
    return not (names and _is_any(database, tenant_id, statement.any_kept_back, rights, names))


def partial_of_all(connection: Connection) -> Partial | None:
    """Of all tenants' documents; None if every document is found by meaning."""
    row = connection.execute(text(PARTIAL)).mappings().one()
    return Partial(**row) if row["without_vectors"] else None


def partial_for(
    database: Database, tenant_id: UUID, snapshot: IndexSnapshot | None, wanted: Filter
) -> Partial | None:
    """As it may be told to who asks so: what is loaded and kept from them is neither counted nor mentioned."""
    if snapshot is None or snapshot.partial is None or wanted.security_levels == wanted.readers == ALL:
        return snapshot.partial if snapshot else None
    rights = Filter(projects=wanted.projects, security_levels=wanted.security_levels, readers=wanted.readers)
    names = statement.names_of(rights)
    waits = _is_any(database, tenant_id, statement.any_without_vectors, rights, names)
    return Partial() if waits else None


def _is_any(
    database: Database,
    tenant_id: UUID,
    asked: Callable[[tuple[str, ...]], str],
    wanted: Filter,
    names: tuple[str, ...],
) -> bool:
    values = statement.values_of(wanted, names)
    return bool(_counted(database, tenant_id, asked.__name__, asked(names), values))


def _counted(database: Database, tenant_id: UUID, what: str, asked: str, values: Mapping[str, Any]) -> int:
    """The number that a statement gives, a minute old at most; `what` names it beside its values."""
    kept, key = _SEEN.setdefault(database, _Seen()).passing, f"{what} {tenant_id} {values!r}"
    found = kept.get("", key)
    if found is None:
        ((found,),) = database.fetch(tenant_id, asked, values)
        kept.put("", key, int(found))
    return int(found)
