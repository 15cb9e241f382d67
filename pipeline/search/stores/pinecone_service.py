"""Pinecone: an index for each number of dimensions, in it a namespace for each tenant of a collection."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any
from urllib.parse import quote, unquote

from pinecone import Pinecone, ServerlessSpec
from pinecone.exceptions import NotFoundException, PineconeApiException

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected, StoreUnavailable
from pipeline.search.stores import (
    FloatVector,
    Neighbour,
    Point,
    Scope,
    StoreStats,
    batches,
    last_of_each,
    matrix_of,
    translated,
)
from pipeline.search.stores.deadline import SEARCH_SECONDS, within

MOST_BYTES = 2_000_000
"""Most bytes of a request that writes."""
BYTES_PER_NUMBER, BYTES_PER_POINT = 22, 800
"""What a number of a vector, and the rest of a point, need as JSON at most."""
MOST_POINTS = 1000
"""Most points of a request that writes, and ids of one that deletes."""
MOST_FETCHED = 50
"""Ids of a request that reads points: they stand in its address."""
MOST_FOUND = 10_000
"""Most results of one query."""
LONGEST_ID = 512
"""Most bytes of an id, which must be ASCII."""
READY_SECONDS = 5.0
"""Seconds after which an index that is being made is asked for again."""
CONFLICT = 409


class PineconeStore:
    """Indexes of a project of Pinecone."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._indexes: dict[int, Any] = {}
        """Dimensions -> client of their index."""
        self._dimensions: dict[str, int] = {}
        """Those of each collection, as far as known."""
        self._lock = Lock()
        with translated("pinecone"):
            self._client: Any = Pinecone(
                api_key=options.api_key or None, host=options.url or None, timeout=options.timeout
            )
        self._connections: list[Any] = [self._client]
        """Closed when the store is no longer used."""
        weakref.finalize(self, _close, self._connections)

    @contextmanager
    def _if_there(self) -> Iterator[None]:
        """End a block quietly if its index or namespace is gone, which may have been made anew at another address."""
        try:
            yield
        except NotFoundException:
            self._indexes.clear()

    # -- indexes and namespaces ------------------------------------------------------------------------

    def _listed(self) -> dict[int, Any]:
        """Dimensions -> index of ours; the one with the plain name first."""
        own_name = re.compile(rf"{re.escape(self._options.collection)}(-\d+)?")
        models = sorted(
            (one for one in self._client.list_indexes() if own_name.fullmatch(one.name)),
            key=lambda one: len(one.name),
        )
        listed: dict[int, Any] = {}
        for one in models:
            if dimensions := getattr(one, "dimension", None):
                listed.setdefault(dimensions, one)
        return listed

    def _index(self, dimensions: int) -> Any:
        """Client of the index for vectors of this length; None if there is none.

        Raises:
            StoreUnavailable: it is not ready.
        """
        if dimensions not in self._indexes:
            model = self._listed().get(dimensions)
            if model is None:
                return None
            if not model.status.ready or not model.host:
                raise StoreUnavailable(
                    f"the index {model.name} of Pinecone is not ready",
                    fix="wait until it is",
                    retry_after=READY_SECONDS,
                )
            self._indexes[dimensions] = self._client.Index(host=model.host)
            self._connections.append(self._indexes[dimensions])
        return self._indexes[dimensions]

    def _created(self, dimensions: int) -> Any:
        """Client of the index for vectors of this length, which is made if there is none."""
        with self._lock:
            if (index := self._index(dimensions)) is not None:
                return index
            base = self._options.collection
            index_names = [one.name for one in self._client.list_indexes()]
            name = f"{base}-{dimensions}" if base in index_names else base
            if not self._options.create:
                message = f"Pinecone has no index {name} for vectors of {dimensions} dimensions"
                raise StoreUnavailable(message, fix="create it, or set createIfNotExists: true")
            region, _, cloud = self._options.environment.rpartition("-")
            try:
                self._client.create_index(
                    name=name,
                    dimension=dimensions,
                    metric="cosine",
                    spec=ServerlessSpec(cloud=cloud, region=region),
                    timeout=-1,
                )
            except PineconeApiException as error:
                if getattr(error, "status_code", getattr(error, "status", None)) != CONFLICT:
                    raise  # at a conflict another writer was quicker
            if (index := self._index(dimensions)) is None:
                message = f"the index {name} of Pinecone cannot be seen yet"
                raise StoreUnavailable(message, fix="wait", retry_after=READY_SECONDS)
            return index

    def _head(self, collection: str) -> str:
        return ":".join(filter(None, (self._options.namespace, collection)))

    def _namespace(self, collection: str, tenant: object) -> str:
        return f"{self._head(collection)}:{tenant}"

    def _places(self, scope: Scope) -> Iterator[tuple[Any, str, int]]:
        """Index, namespace and number of points of each tenant of a scope."""
        for dimensions in self._listed():
            if (index := self._index(dimensions)) is None:
                continue
            for name, summary in index.describe_index_stats().namespaces.items():
                head, _, tenant = name.rpartition(":")
                if head == self._head(scope.collection) and tenant == str(scope.tenant or tenant):
                    if summary.vector_count:
                        self._dimensions[scope.collection] = dimensions
                    yield index, name, summary.vector_count

    def _require_same(self, collection: str, dimensions: int) -> None:
        """Refuse vectors of another length than those that a collection has."""
        if self._dimensions.get(collection) == dimensions:
            return
        self._dimensions.pop(collection, None)
        for _ in self._places(Scope(collection=collection)):
            pass
        if (stored := self._dimensions.get(collection, dimensions)) != dimensions:
            raise StoreRejected(
                f"a vector has {dimensions} dimensions, the collection {stored}",
                fix="use the model that the collection was made with",
            )

    # -- the port --------------------------------------------------------------------------------------

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        points = last_of_each(points)
        matrix = matrix_of(points)
        dimensions = matrix.shape[1]
        rows: dict[str, list[dict[str, Any]]] = {}
        for point, row in zip(points, matrix, strict=True):
            metadata = {name: value for name, value in point.attributes.items() if name != "tenant"}
            entry = {"id": _key(point.id), "values": row.tolist(), "metadata": metadata}
            rows.setdefault(self._namespace(collection, point.tenant), []).append(entry)
        size = max(1, min(MOST_POINTS, MOST_BYTES // (dimensions * BYTES_PER_NUMBER + BYTES_PER_POINT)))
        with translated("pinecone"):
            self._require_same(collection, dimensions)
            self._dimensions[collection] = dimensions
            with self._if_there():
                self._upsert(dimensions, rows, size)
                return
            self._upsert(dimensions, rows, size)

    def _upsert(self, dimensions: int, rows: Mapping[str, Sequence[dict[str, Any]]], size: int) -> None:
        index = self._created(dimensions)
        for namespace, entries in rows.items():
            for part in batches(entries, size):
                index.upsert(vectors=part, namespace=namespace)

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        with translated("pinecone"):
            for index, namespace in self._targets(scope):
                with self._if_there():
                    if ids is None:
                        index.delete(delete_all=True, namespace=namespace)
                    for part in batches([_key(one) for one in ids or ()], MOST_POINTS):
                        index.delete(ids=list(part), namespace=namespace)
            if ids is None and scope.tenant is None:
                self._dimensions.pop(scope.collection, None)

    def _targets(self, scope: Scope) -> list[tuple[Any, str]]:
        """Index and namespace of each tenant; a named one's also before the statistics show them, seconds later."""
        if scope.tenant is None:
            return [(index, name) for index, name, _ in self._places(scope)]
        namespace = self._namespace(scope.collection, scope.tenant)
        return [(self._index(dimensions), namespace) for dimensions in self._listed()]

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        if n <= 0 or scope.is_empty:
            return []
        seconds = min(SEARCH_SECONDS, self._options.timeout)
        with translated("pinecone"):
            return within(seconds, "pinecone", lambda: self._near(vector, n, scope, seconds))

    def _near(self, vector: FloatVector, n: int, scope: Scope, seconds: float) -> list[Neighbour]:
        if scope.tenant is None:
            places = [(index, name) for index, name, _ in self._places(scope)]
        else:
            index = self._index(len(vector))
            places = [(index, self._namespace(scope.collection, scope.tenant))] * (index is not None)
        if self._dimensions.get(scope.collection) != len(vector):
            self._require_same(scope.collection, len(vector))
        neighbours: list[Neighbour] = []
        for index, namespace in places:
            with self._if_there():
                answer = index.query(
                    vector=vector.tolist(),
                    top_k=min(n, MOST_FOUND),
                    namespace=namespace,
                    filter=_filter(scope) or None,
                    include_values=False,
                    include_metadata=False,
                    timeout=seconds,
                )
                neighbours += [Neighbour(unquote(one.id), float(one.score)) for one in answer.matches]
        return sorted(neighbours, key=lambda one: -one.similarity)[:n]

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        points, present = 0, set[str]()
        with translated("pinecone"):
            for index, namespace, count in list(self._places(scope)):
                points += count
                for part in batches([_key(one) for one in ids], MOST_FETCHED):
                    with self._if_there():
                        present.update(map(unquote, index.fetch(ids=list(part), namespace=namespace).vectors))
        return StoreStats(points=points, present=frozenset(present))


def _close(connections: Sequence[Any]) -> None:
    for one in connections:
        one.close()


def _key(id_: str) -> str:
    """An id as ASCII.

    Raises:
        StoreRejected: it is too long for Pinecone.
    """
    key = quote(id_, safe=":")
    if len(key) > LONGEST_ID:
        raise StoreRejected(
            f"an id has {len(key)} bytes, Pinecone takes {LONGEST_ID}", fix="give a shorter id"
        )
    return key


def _filter(scope: Scope) -> Mapping[str, Any]:
    """The conditions of a scope but the tenant, which is the namespace."""
    conditions: dict[str, Any] = {
        name: {"$in": list(texts)} for name, texts in scope.values.items() if name != "tenant"
    }
    between = {"$gte": scope.since, "$lt": scope.until}
    if changed := {operator: value for operator, value in between.items() if value is not None}:
        conditions["changed"] = changed
    return conditions


def open_store(options: StoreOptions) -> PineconeStore:
    """Open a project; its indexes are looked up when used."""
    return PineconeStore(options)
