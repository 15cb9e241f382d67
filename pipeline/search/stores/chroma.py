"""Chroma: a folder, or a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import chromadb
import numpy as np
from chromadb import errors
from chromadb.config import Settings

from pipeline.database.vector_stores import StoreOptions
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
from pipeline.search.stores.deadline import within
from pipeline.search.stores.shared_folder import SharedFolder

BATCH = 1000
PERMANENT = (errors.InvalidDimensionException, errors.InvalidArgumentError, ValueError)
MOST = 10_000
"""Most results of one query."""


class ChromaStore:
    """Collections of a Chroma server, or of a folder that several processes share."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._folder: SharedFolder | None = None
        self._client: Any = None
        self._opened_at = -1
        """Number of the folder's writes when the client was opened: it does not see later ones of other processes."""
        with translated("chroma"):
            if options.url:
                self._client = _server_client(options)
            else:
                self._folder = SharedFolder(options.path, options.timeout)

    @contextmanager
    def _opened(self, *, writes: bool = False) -> Iterator[Any]:
        """The client, alone in the folder if it writes."""
        with translated("chroma", permanent=PERMANENT, damaged=(errors.InternalError,)):
            if self._folder is None:
                yield self._client
                return
            with self._folder.locked(writes=writes) as number:
                if self._client is None or number != self._opened_at:
                    if self._client is not None:
                        self._client.close()
                    settings = Settings(anonymized_telemetry=False, is_persistent=True)
                    self._client = chromadb.PersistentClient(str(self._folder.path), settings=settings)
                yield self._client
                self._opened_at = number + writes

    def _collection(self, client: Any, name: str) -> Any:
        try:
            return client.get_collection(self._options.name_of(name), embedding_function=None)
        except errors.NotFoundError:
            return None

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        points = last_of_each(points)
        matrix = matrix_of(points)
        with self._opened(writes=True) as client:
            target = client.get_or_create_collection(
                self._options.name_of(collection),
                embedding_function=None,
                configuration={"hnsw": {"space": "cosine", "ef_construction": 128, "ef_search": 128}},
            )
            for places in batches(range(len(points)), BATCH):
                target.upsert(
                    ids=[_key(points[place].tenant, points[place].id) for place in places],
                    embeddings=matrix[places.start : places.stop],  # type: ignore[attr-defined]
                    metadatas=[points[place].attributes for place in places],
                )

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        with self._opened(writes=True) as client:
            target = self._collection(client, scope.collection)
            if target is None:
                return
            if ids is None and not scope.values:
                client.delete_collection(target.name)
                return
            if ids is None:
                # By pages, since a server limits how many ids one statement may have.
                while keys := target.get(where=_where(scope), limit=BATCH, include=[])["ids"]:
                    target.delete(ids=keys)
                return
            for part in batches([_key(scope.tenant, one) for one in ids], BATCH):
                if present := target.get(ids=list(part), include=[])["ids"]:
                    target.delete(ids=present)

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        if n <= 0 or scope.is_empty:
            return []
        if self._folder is None:
            return within(self._options.timeout, "chroma", lambda: self._near(vector, n, scope))
        return self._near(vector, n, scope)

    def _near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        with self._opened() as client:
            target = self._collection(client, scope.collection)
            if target is None:
                return []
            query = np.asarray([vector], dtype=np.float32)
            result = target.query(
                query_embeddings=query, n_results=min(n, MOST), where=_where(scope), include=["distances"]
            )
        pairs = zip(result["ids"][0], result["distances"][0], strict=True)
        return [Neighbour(_id_of(key), 1.0 - float(distance)) for key, distance in pairs]

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        with self._opened() as client:
            target = self._collection(client, scope.collection)
            if target is None:
                return StoreStats(points=0)
            keys = [_key(scope.tenant, one) for one in ids]
            # With their vectors: rows alone are found in a server whose index has lost them.
            present = target.get(ids=keys, include=["embeddings"])["ids"] if keys else []
            points = (
                len(target.get(where=_where(scope), include=[])["ids"]) if scope.values else target.count()
            )
        return StoreStats(points=points, present=frozenset(map(_id_of, present)))


def _key(tenant: object, id_: str) -> str:
    """The id in the store: two tenants may have the same ids."""
    return f"{tenant} {id_}"


def _id_of(key: str) -> str:
    return key.partition(" ")[2]


def _where(scope: Scope) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = [{name: {"$in": list(texts)}} for name, texts in scope.values.items()]
    conditions += [{"changed": {"$gte": scope.since}}] * (scope.since is not None)
    conditions += [{"changed": {"$lt": scope.until}}] * (scope.until is not None)
    if len(conditions) > 1:
        return {"$and": conditions}
    return conditions[0] if conditions else None


def _server_client(options: StoreOptions) -> Any:
    url = urlsplit(options.url)
    headers = {"X-Chroma-Token": options.api_key} if options.api_key else {}
    return chromadb.HttpClient(
        host=url.hostname or "localhost",
        port=url.port or (443 if url.scheme == "https" else 8000),
        ssl=url.scheme == "https",
        headers=headers,
        settings=Settings(
            anonymized_telemetry=False, chroma_query_request_timeout_seconds=int(options.timeout)
        ),
    )


def open_store(options: StoreOptions) -> ChromaStore:
    """Open a folder or a server."""
    return ChromaStore(options)
