"""Weaviate: a server, or the service."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit
from uuid import UUID, uuid5

import weaviate
from weaviate.auth import AuthApiKey
from weaviate.classes.config import Configure, DataType, Property, Tokenization, VectorDistances
from weaviate.classes.data import DataObject
from weaviate.classes.init import AdditionalConfig, Timeout
from weaviate.classes.query import Filter, MetadataQuery
from weaviate.exceptions import UnexpectedStatusCodeError, WeaviateBaseError

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected, StoreUnavailable
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
from pipeline.search.stores.deadline import SEARCH_SECONDS, within

T = TypeVar("T")

BATCH = 500
MOST_FOUND = 10_000
"""Most results of one query, as servers are delivered."""
GRPC_PORT = 50051
_IDS = UUID("b4a2c1de-4d0e-4b0e-9a57-52f2a0d1c7f3")
"""Name space of the ids, since the store takes UUIDs alone."""
_LENGTHS = re.compile(r"vector (lengths?|dimensions?)|vector with length", re.IGNORECASE)
"""What the server says of a vector of another length; its client gives no status of it."""

# It logs the objects that a server refuses, vectors included.
logging.getLogger("weaviate-client").setLevel(logging.CRITICAL)


class WeaviateStore:
    """Collections of a Weaviate server."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        with translated("weaviate"):
            self._client: Any = _client(options)
            weakref.finalize(self, self._client.close)
            self._client.connect()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated("weaviate"):
            try:
                yield
            except WeaviateBaseError as error:
                raise _refusal(str(error)) or error from None

    def _name(self, collection: str) -> str:
        """Name of a collection as the server takes it: a capital letter first, then letters, digits and _."""
        name = re.sub(r"\W", "_", self._options.name_of(collection), flags=re.ASCII)
        return name[0].upper() + name[1:]

    def _if_there(self, name: str, read: Callable[[Any], T], otherwise: T) -> T:
        """What `read` makes of a collection; `otherwise` if there is none."""
        try:
            return read(self._client.collections.get(name))
        except WeaviateBaseError:
            if not self._client.collections.exists(name):
                return otherwise
            raise

    def _create(self, name: str) -> None:
        texts = [
            Property(
                name=attribute,
                data_type=DataType.TEXT,
                tokenization=Tokenization.FIELD,
                index_filterable=attribute != "point",
                index_searchable=False,
            )
            for attribute in (*ATTRIBUTES, "point")
        ]
        changed = Property(name="changed", data_type=DataType.NUMBER, index_range_filters=True)
        graph = Configure.VectorIndex.hnsw(
            distance_metric=VectorDistances.COSINE, ef=128, ef_construction=128
        )
        try:
            self._client.collections.create(
                name,
                properties=[*texts, changed],
                vector_config=Configure.Vectors.self_provided(vector_index_config=graph),
            )
        except UnexpectedStatusCodeError:
            if not self._client.collections.exists(name):  # else another writer was quicker
                raise

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        points, name = last_of_each(points), self._name(collection)
        matrix = matrix_of(points)
        objects = [
            DataObject(
                uuid=_key(point.tenant, point.id),
                vector=row.tolist(),
                properties={"point": point.id, **point.attributes},
            )
            for point, row in zip(points, matrix, strict=True)
        ]
        with self._translated():
            if not self._client.collections.exists(name):
                self._create(name)
            target = self._client.collections.get(name)
            for part in batches(objects, BATCH):
                if errors := target.data.insert_many(list(part)).errors:
                    message = f"weaviate did not take {len(errors)} of {len(part)} points"
                    refusals = [_refusal(str(one.message)) for one in errors.values()]
                    raise next(filter(None, refusals), None) or StoreUnavailable(message, fix="try again")

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        name = self._name(scope.collection)
        with self._translated():
            if ids is None and not scope.values:
                self._client.collections.delete(name)
            elif ids is None:
                # A call deletes as many as a query finds.
                while self._deleted(name, _filter(scope)):
                    pass
            else:
                for part in batches([_key(scope.tenant, one) for one in ids], BATCH):
                    self._deleted(name, Filter.by_id().contains_any(list(part)))

    def _deleted(self, name: str, which: Any) -> int:
        """Delete points; returns how many there were."""
        result = self._if_there(name, lambda target: target.data.delete_many(where=which), None)
        if result is not None and result.failed:
            raise StoreUnavailable(f"weaviate did not delete {result.failed} points", fix="try again")
        return result.successful if result is not None else 0

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        if n <= 0 or scope.is_empty:
            return []
        name, query = self._name(scope.collection), vector.tolist()

        def search(target: Any) -> list[Neighbour]:
            answer = target.query.near_vector(
                near_vector=query,
                limit=min(n, MOST_FOUND),
                filters=_filter(scope),
                return_metadata=MetadataQuery(distance=True),
                return_properties=["point"],
            )
            return [
                Neighbour(str(one.properties["point"]), 1.0 - float(one.metadata.distance))
                for one in answer.objects
            ]

        with self._translated():
            return within(self._options.timeout, "weaviate", lambda: self._if_there(name, search, []))

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        name, present = self._name(scope.collection), set[str]()

        def count(target: Any) -> int:
            answer = target.aggregate.over_all(total_count=True, filters=_filter(scope))
            return int(answer.total_count or 0)

        with self._translated():
            points = self._if_there(name, count, 0)
            for part in batches([_key(scope.tenant, one) for one in ids], BATCH if points else len(ids) + 1):
                if points:
                    answer = self._client.collections.get(name).query.fetch_objects(
                        filters=Filter.by_id().contains_any(list(part)),
                        limit=len(part),
                        return_properties=["point"],
                    )
                    present.update(str(one.properties["point"]) for one in answer.objects)
        return StoreStats(points=points, present=frozenset(present))


def _refusal(message: str) -> StoreRejected | None:
    """The error for what a server says of a vector of another length; its text stays out."""
    if not _LENGTHS.search(message):
        return None
    return StoreRejected(
        "weaviate refuses a vector of another length",
        fix="use the model that the collection was made with",
    )


def _key(tenant: object, id_: str) -> str:
    return str(uuid5(_IDS, f"{tenant} {id_}"))


def _filter(scope: Scope) -> Any:
    conditions = [Filter.by_property(name).contains_any(list(texts)) for name, texts in scope.values.items()]
    if scope.since is not None:
        conditions.append(Filter.by_property("changed").greater_or_equal(scope.since))
    if scope.until is not None:
        conditions.append(Filter.by_property("changed").less_than(scope.until))
    return Filter.all_of(conditions) if conditions else None


def _grpc_address(options: StoreOptions, url: SplitResult) -> SplitResult:
    if options.grpc_url:
        return urlsplit(options.grpc_url)
    if url.scheme == "https":
        return urlsplit(f"https://grpc-{url.hostname}:443")
    return urlsplit(f"http://{url.hostname}:{GRPC_PORT}")


def _client(options: StoreOptions) -> Any:
    url = urlsplit(options.url)
    grpc = _grpc_address(options, url)
    wait = Timeout(init=options.timeout, query=min(SEARCH_SECONDS, options.timeout), insert=options.timeout)
    return weaviate.WeaviateClient(
        weaviate.connect.ConnectionParams.from_params(
            http_host=url.hostname or "localhost",
            http_port=url.port or (443 if url.scheme == "https" else 80),
            http_secure=url.scheme == "https",
            grpc_host=grpc.hostname or "localhost",
            grpc_port=grpc.port or (443 if grpc.scheme == "https" else GRPC_PORT),
            grpc_secure=grpc.scheme == "https",
        ),
        auth_client_secret=AuthApiKey(options.api_key) if options.api_key else None,
        additional_config=AdditionalConfig(timeout=wait),
        skip_init_checks=True,  # one of them asks a package registry for its newest version
    )


def open_store(options: StoreOptions) -> WeaviateStore:
    """Open a server."""
    return WeaviateStore(options)
