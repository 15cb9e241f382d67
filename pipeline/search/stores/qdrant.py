"""Qdrant: a server, or a folder of one process at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid5

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from pipeline.database.vector_stores import StoreOptions
from pipeline.search.stores import (
    ATTRIBUTES,
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
from pipeline.search.stores.deadline import within
from pipeline.search.stores.shared_folder import SharedFolder

BATCH = 500
_IDS = UUID("6f1f0d0e-8f3f-4c39-9a8e-3a2f0f6f9b11")
"""Name space of the ids, since the store takes UUIDs alone."""


class QdrantStore:
    """Collections of a Qdrant server, or of a folder, which is opened for each call: its client keeps it locked."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._folder = None if options.url else SharedFolder(options.path, options.timeout)
        self._client: Any = None
        if options.url:
            with translated("qdrant"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a key without TLS, which `config check` tells as well
                self._client = QdrantClient(
                    url=options.url,
                    api_key=options.api_key or None,
                    timeout=int(options.timeout),
                    check_compatibility=False,
                )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with translated("qdrant", permanent=(ValueError,)):
            if self._folder is None:
                yield self._client
                return
            # The client's own lock excludes readers as well.
            with self._folder.locked(writes=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it recommends the server for many points
                client = QdrantClient(
                    path=str(self._folder.path / "data"), force_disable_check_same_thread=True
                )
                try:
                    yield client
                finally:
                    client.close()

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        points, name = last_of_each(points), self._options.name_of(collection)
        matrix = matrix_of(points)
        structs = [
            models.PointStruct(
                id=_key(point.tenant, point.id),
                vector=row.tolist(),
                payload={"id": point.id, **point.attributes},
            )
            for point, row in zip(points, matrix, strict=True)
        ]
        with self._opened() as client:
            if not client.collection_exists(name):
                self._create(client, name, matrix.shape[1])
            for part in batches(structs, BATCH):
                client.upsert(name, points=list(part), wait=True)

    def _create(self, client: Any, name: str, dimensions: int) -> None:
        size = models.VectorParams(size=dimensions, distance=models.Distance.COSINE)
        try:
            client.create_collection(name, vectors_config=size)
        except UnexpectedResponse as error:
            if error.status_code != 409:  # noqa: PLR2004 - another writer was quicker
                raise
        if self._folder is None:
            for attribute in ATTRIBUTES:
                client.create_payload_index(name, attribute, models.PayloadSchemaType.KEYWORD)
            client.create_payload_index(name, "changed", models.PayloadSchemaType.FLOAT)

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        name = self._options.name_of(scope.collection)
        with self._opened() as client:
            if not client.collection_exists(name):
                return
            if ids is None and not scope.values:
                client.delete_collection(name)
            elif ids is None:
                client.delete(name, points_selector=models.FilterSelector(filter=_filter(scope)), wait=True)
            else:
                for part in batches([_key(scope.tenant, one) for one in ids], BATCH):
                    client.delete(name, points_selector=models.PointIdsList(points=list(part)), wait=True)

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        if n <= 0 or scope.is_empty:
            return []
        if self._folder is None:
            return within(self._options.timeout, "qdrant", lambda: self._near(vector, n, scope))
        return self._near(vector, n, scope)

    def _near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        name, query = self._options.name_of(scope.collection), np.asarray(vector, dtype=np.float32).tolist()
        with self._opened() as client:
            if not client.collection_exists(name):
                return []
            answer = client.query_points(
                name, query=query, query_filter=_filter(scope), limit=n, with_payload=["id"]
            )
        return [Neighbour(str((hit.payload or {})["id"]), float(hit.score)) for hit in answer.points]

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        name = self._options.name_of(scope.collection)
        with self._opened() as client:
            if not client.collection_exists(name):
                return StoreStats(points=0)
            points = client.count(name, count_filter=_filter(scope), exact=True).count
            keys = [_key(scope.tenant, one) for one in ids]
            points_there = client.retrieve(name, keys, with_payload=["id"]) if keys else []
        return StoreStats(
            points=points, present=frozenset(str((one.payload or {})["id"]) for one in points_there)
        )


def _key(tenant: object, id_: str) -> str:
    return str(uuid5(_IDS, f"{tenant} {id_}"))


def _filter(scope: Scope) -> models.Filter:
    conditions: list[models.Condition] = [
        models.FieldCondition(key=name, match=models.MatchAny(any=list(texts)))
        for name, texts in scope.values.items()
    ]
    if scope.since is not None or scope.until is not None:
        between = models.Range(gte=scope.since, lt=scope.until)
        conditions.append(models.FieldCondition(key="changed", range=between))
    return models.Filter(must=conditions)


def open_store(options: StoreOptions) -> QdrantStore:
    """Open a folder or a server."""
    return QdrantStore(options)
