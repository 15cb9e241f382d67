"""The vector stores of an installation as searches use them: which one to ask, and which one instead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import LarderError
from pipeline.ledger import ALL
from pipeline.search import statement
from pipeline.search.cache import IndexSnapshot
from pipeline.search.records import Filter
from pipeline.search.stores import FloatVector, Scope, VectorStore, open_store
from pipeline.search.stores.mirror import collection_of
from pipeline.search.stores.outbox import PGVECTOR, chunk_of

logger = logging.getLogger(__name__)

LISTED_SECONDS = 2.0
"""Seconds after which a process reads again which store is the active one."""
SLOW_SECONDS = 2.0
"""Seconds in which a store must answer a search."""
AVOIDED_SECONDS = 15.0
"""Seconds for which a process asks no store that failed or was slow."""
MOST_FETCHED = 10_000
"""Most candidates that a store is asked for."""
GROWTH = 4
"""Factor of the candidates of the next question, if too few were left."""
EXACT_FITS = 200_000
"""Chunks of a tenant up to which PostgreSQL compares all vectors while no store answers and it has no vector index."""
PRECISE = {"tags", "metadata", "only", "sources"}
"""Conditions that no store applies: if few chunks meet one, PostgreSQL compares these better than a store does."""
WORDS = "words"
"""Name of the keyword arm, where it answered alone since no vector arm could."""


@dataclass(frozen=True, kw_only=True)
class VectorArm:
    """The vector arm of one search."""

    shape: statement.Shape
    values: Mapping[str, object] = field(default_factory=dict)
    """Further parameters of the statement."""
    store: str = PGVECTOR
    """Name of the store that answers."""


@dataclass
class VectorStores:
    """Builds, lists and watches the stores of a process; switching is an update of the database (`outbox.switch`)."""

    database: Database
    options: Mapping[str, StoreOptions]
    """Configured stores by name."""
    opener: Callable[[StoreOptions], VectorStore] = open_store
    clock: Callable[[], float] = time.monotonic
    _opened: dict[str, VectorStore] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _listed: tuple[float, list[str]] = field(default=(float("-inf"), []), init=False)
    _avoided: dict[str, float] = field(default_factory=dict, init=False)
    """Name of a store -> time until which it is not asked."""

    def get(self, name: str) -> VectorStore:
        """The store of this name, opened once.

        Raises:
            ConfigurationError: it is not configured, or its client is not installed.
            StoreUnavailable: it does not answer.
        """
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self.opener(self.options[name])
            return self._opened[name]

    def order(self, tenant: UUID) -> list[str]:
        """Stores that a search asks, the active one first; none while pgvector is the active one."""
        read_at, names = self._listed
        if self.clock() - read_at > LISTED_SECONDS:
            rows = self.database.fetch(tenant, _ORDER, {})
            is_foreign = any(active for _, active, _ in rows)
            names = [name for name, _, ready in rows if ready and name in self.options and is_foreign]
            # A store that is active but not filled leaves pgvector as the last resort, as one that fails does.
            self._listed = self.clock(), [*names, *[PGVECTOR] * is_foreign]
        return [name for name in self._listed[1] if self._avoided.get(name, 0.0) <= self.clock()]

    def avoid(self, name: str, why: str) -> None:
        """Ask other stores for a while."""
        logger.warning("the vector store %s is not asked for %d s: %s", name, AVOIDED_SECONDS, why)
        self._avoided[name] = self.clock() + AVOIDED_SECONDS

    @property
    def avoided(self) -> list[str]:
        """Stores that this process does not ask now."""
        return [name for name, until in self._avoided.items() if until > self.clock()]

    def arm(
        self,
        tenant: UUID,
        snapshot: IndexSnapshot,
        shape: statement.Shape,
        query_filter: Filter,
        values: Mapping[str, object],
        vector: FloatVector,
    ) -> VectorArm:
        """The vector arm of the first store that answers; else pgvector if what it would compare fits; else words.

        `values` are the parameters of the filter and `vector`.
        """
        order = self.order(tenant)
        if not order or (shape.vector == "all" and PRECISE.intersection(shape.filter)):
            return VectorArm(shape=shape)
        search = _Search(
            self.database, tenant, snapshot, shape._replace(vector="given"), query_filter, values
        )
        for name in order[:-1]:
            begun = self.clock()
            try:
                candidates = search.candidates(self.get(name), vector)
            except LarderError as error:
                self.avoid(name, error.message)
                continue
            if self.clock() - begun > SLOW_SECONDS:
                self.avoid(name, f"it took {self.clock() - begun:.1f} s")
            if candidates is not None:
                return VectorArm(shape=search.shape, values=_arrays(candidates), store=name)
            self.avoid(name, "it has nothing of this tenant")
        fits = snapshot.index.indexed_rows is not None or snapshot.chunks <= EXACT_FITS
        if fits or shape.vector == "all" or not shape.keywords:
            return VectorArm(shape=shape)
        return VectorArm(shape=shape._replace(vector=""), store=WORDS)


_ORDER = "select name, active, status = 'ready' from vector_store order by active desc, name"


@dataclass(frozen=True)
class _Search:
    """One search in a store, and what PostgreSQL lets through of it."""

    database: Database
    tenant: UUID
    snapshot: IndexSnapshot
    shape: statement.Shape
    query_filter: Filter
    values: Mapping[str, object]

    def candidates(self, store: VectorStore, vector: FloatVector) -> list[tuple[UUID, int]] | None:
        """At least `near` chunks that pass, or all that the store has; None if it has nothing of a tenant with chunks.

        Raises:
            StoreError: the store fails.
        """
        scope = scope_of(self.query_filter, collection_of(self.shape.number), self.tenant)
        passing: dict[tuple[UUID, int], None] = {}
        checked: set[tuple[UUID, int]] = set()
        n = self.shape.near
        while True:
            neighbours = store.near(vector, n, scope)
            if not neighbours and self.snapshot.chunks and not self._has_any(store, vector, scope):
                return None
            new = [chunk for one in neighbours if (chunk := chunk_of(one.id)) and chunk not in checked]
            checked.update(new)
            passing.update(dict.fromkeys(self._passing(list(dict.fromkeys(new)))))
            if len(passing) >= self.shape.near or len(neighbours) < n or n >= MOST_FETCHED:
                return list(passing)
            n = min(GROWTH * n, MOST_FETCHED)

    @staticmethod
    def _has_any(store: VectorStore, vector: FloatVector, scope: Scope) -> bool:
        everything = Scope(collection=scope.collection, tenant=scope.tenant)
        return scope.is_empty or bool(store.near(vector, 1, everything))

    def _passing(self, chunks: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """Those that exist, belong to the tenant and pass the filter."""
        if not chunks:
            return []
        values = {**self.values, **_arrays(chunks)}
        rows = self.database.fetch(self.tenant, statement.passing_chunks(self.shape), values, one_plan=True)
        return [(document, ord_) for document, ord_ in rows]


def _arrays(chunks: Sequence[tuple[UUID, int]]) -> dict[str, object]:
    """Chunks as parameters of the statement."""
    return {"near_documents": [one[0] for one in chunks], "near_ords": [one[1] for one in chunks]}


def scope_of(query_filter: Filter, collection: str, tenant: UUID) -> Scope:
    """What a store can filter by itself; the rest is PostgreSQL's."""
    since, until = query_filter.since, query_filter.until
    return Scope(
        collection=collection,
        tenant=tenant,
        projects=None if query_filter.projects == ALL else tuple(map(str, query_filter.projects)),
        kinds=tuple(str(kind.value) for kind in query_filter.kinds) or None,
        source_types=tuple(str(one.value) for one in query_filter.source_types) or None,
        security_levels=None if query_filter.security_levels == ALL else tuple(query_filter.security_levels),
        since=since.timestamp() if since else None,
        until=until.timestamp() if until else None,
    )
