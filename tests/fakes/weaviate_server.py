"""Weaviate as far as its client asks for it: collections by REST, objects by gRPC in the client's own messages.

A write is seen `delay` seconds later.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from weaviate.proto.v1 import (
    aggregate_pb2,
    base_pb2,
    batch_delete_pb2,
    batch_pb2,
    properties_pb2,
    search_get_pb2,
    weaviate_pb2_grpc,
)

from tests.fakes.server import Answer, FakeServer, Seen


@dataclass
class StoredObject:
    """An object of a collection."""

    uuid: str
    properties: Mapping[str, Any]
    vector: NDArray[np.float32]


@dataclass
class StoredCollection:
    """A collection: what was written, and what is seen of it."""

    schema: Mapping[str, Any]
    dimensions: int = 0
    seen: dict[str, StoredObject] = field(default_factory=dict)
    written: list[tuple[float, StoredObject | str]] = field(default_factory=list)
    """When it is seen, and the object that is put or the id that is deleted."""

    def now(self) -> dict[str, StoredObject]:
        """What is seen now."""
        while self.written and self.written[0][0] <= time.monotonic():
            _, change = self.written.pop(0)
            if isinstance(change, str):
                self.seen.pop(change, None)
            else:
                self.seen[change.uuid] = change
        return self.seen


class WeaviateServer(FakeServer):
    """A server with both its ports."""

    def __init__(self, key: str = "key", *, delay: float = 0.0) -> None:
        super().__init__()
        self.key, self.delay = key, delay
        self.collections: dict[str, StoredCollection] = {}
        self.trouble: Callable[[str], grpc.StatusCode | float | None] = lambda _call: None
        """Name of a gRPC call -> the error or the pause in seconds that it gets."""
        self.refuses_half = False
        """Whether half of the objects of a batch are refused."""
        self.calls: list[str] = []
        """Names of the gRPC calls."""
        self.grpc_port = 0
        self._grpc: Any = None

    @property
    def grpc_address(self) -> str:
        """Address of the second port."""
        return f"http://127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        """Listen on both ports; the same ones again after a stop."""
        super().start()
        self._grpc = grpc.server(
            ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 100_000_000)]
        )
        weaviate_pb2_grpc.add_WeaviateServicer_to_server(_Servicer(self), self._grpc)
        self.grpc_port = self._grpc.add_insecure_port(f"127.0.0.1:{self.grpc_port}")
        self._grpc.start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._grpc.stop(None).wait()
        super().stop()

    def answer(self, seen: Seen) -> Answer:
        """What REST answers."""
        if self.key and seen.headers.get("Authorization") != f"Bearer {self.key}":
            return Answer(status=401, json={"error": [{"message": "invalid api key"}]})
        with self.lock:
            name = seen.path.removeprefix("/v1/schema").strip("/")
            if seen.path == "/v1/meta":
                return Answer(json={"version": "1.32.4", "grpcMaxMessageSize": 104858000})
            if seen.path == "/v1/schema" and seen.method == "POST":
                return self._create(seen.json)
            if seen.method == "DELETE":
                self.collections.pop(name, None)
                return Answer()
            stored = self.collections.get(name)
            return Answer(json=stored.schema) if stored else Answer(status=404)

    def _create(self, schema: Mapping[str, Any]) -> Answer:
        name = schema["class"]
        if not re.fullmatch(r"[A-Z][_0-9A-Za-z]{0,254}", name):
            return Answer(status=422, json={"error": [{"message": "not a valid class name"}]})
        if name in self.collections:
            return Answer(status=422, json={"error": [{"message": f"class name {name} already exists"}]})
        self.collections[name] = StoredCollection(schema)
        return Answer(json=schema)


class _Servicer(weaviate_pb2_grpc.WeaviateServicer):  # type: ignore[misc]
    """The gRPC calls; each is named as in the protocol."""

    def __init__(self, fake: WeaviateServer) -> None:
        self.fake = fake

    def _collection(self, call: str, name: str, context: Any) -> StoredCollection:
        """The collection, after the trouble that the call is to have."""
        self.fake.calls.append(call)
        trouble = self.fake.trouble(call)
        if isinstance(trouble, grpc.StatusCode):
            context.abort(trouble, "a bad day")
        if trouble:
            self.fake.stopping.wait(trouble)
        sent = dict(context.invocation_metadata()).get("authorization")
        if self.fake.key and sent != f"Bearer {self.fake.key}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid api key")
        if name not in self.fake.collections:
            context.abort(grpc.StatusCode.UNKNOWN, f"could not find class {name} in schema")
        return self.fake.collections[name]

    def BatchObjects(self, request: Any, context: Any) -> Any:  # noqa: N802 (named by the protocol)
        """Put objects."""
        errors = []
        for index, one in enumerate(request.objects):
            stored = self._collection("BatchObjects", one.collection, context)
            vector = np.frombuffer(_vector_of(one), dtype="<f4")
            with self.fake.lock:
                if stored.dimensions and stored.dimensions != len(vector):
                    error = (
                        f"new node has a vector with length {len(vector)}. "
                        f"Existing nodes have vectors with length {stored.dimensions}"
                    )
                elif self.fake.refuses_half and index % 2:
                    error = "put object: shard is not ready"
                else:
                    stored.dimensions = len(vector)
                    properties = dict(one.properties.non_ref_properties)
                    change = StoredObject(one.uuid, properties, vector)
                    stored.written.append((time.monotonic() + self.fake.delay, change))
                    continue
            errors.append(batch_pb2.BatchObjectsReply.BatchError(index=index, error=error))
        return batch_pb2.BatchObjectsReply(errors=errors)

    def BatchDelete(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Delete what a filter lets through."""
        stored = self._collection("BatchDelete", request.collection, context)
        with self.fake.lock:
            # What is written and not yet seen is found by its id as well.
            everything = {
                **stored.now(),
                **{one.uuid: one for _, one in stored.written if not isinstance(one, str)},
            }
            gone = {one for _, one in stored.written if isinstance(one, str)}
            found = [
                key for key, one in everything.items() if key not in gone and _passes(one, request.filters)
            ][:10_000]
            stored.written += [(time.monotonic() + self.fake.delay, key) for key in found]
        return batch_delete_pb2.BatchDeleteReply(matches=len(found), successful=len(found))

    def Search(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The objects that a filter lets through, the nearest first if a vector is given."""
        stored = self._collection("Search", request.collection, context)
        with self.fake.lock:
            objects = [one for one in stored.now().values() if _passes(one, request)]
        distances = np.zeros(len(objects))
        if request.HasField("near_vector") and objects:
            query = np.frombuffer(_vector_of(request.near_vector), dtype="<f4")
            if len(query) != len(objects[0].vector):
                message = f"vector lengths don't match: {len(objects[0].vector)} vs {len(query)}"
                context.abort(grpc.StatusCode.UNKNOWN, f"search: knn search: {message}")
            matrix = np.array([one.vector for one in objects])
            lengths = np.linalg.norm(matrix, axis=1) * (np.linalg.norm(query) or 1.0)
            distances = 1 - matrix @ query / np.where(lengths == 0, 1, lengths)
        best = np.argsort(distances, kind="stable")[: request.limit]
        results = [_result(objects[place], float(distances[place]), request.properties) for place in best]
        return search_get_pb2.SearchReply(results=results)

    def Aggregate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The number of objects that a filter lets through."""
        stored = self._collection("Aggregate", request.collection, context)
        with self.fake.lock:
            count = sum(_passes(one, request) for one in stored.now().values())
        return aggregate_pb2.AggregateReply(
            single_result=aggregate_pb2.AggregateReply.Single(objects_count=count)
        )


def _result(stored: StoredObject, distance: float, wanted: Any) -> Any:
    fields = {
        name: properties_pb2.Value(text_value=str(stored.properties[name]))
        for name in wanted.non_ref_properties
    }
    metadata = search_get_pb2.MetadataResult(id=stored.uuid, distance=distance, distance_present=True)
    properties = search_get_pb2.PropertiesResult(non_ref_props=properties_pb2.Properties(fields=fields))
    return search_get_pb2.SearchResult(properties=properties, metadata=metadata)


def _vector_of(message: Any) -> bytes:
    """The bytes of a vector, wherever this version of the client writes them."""
    vectors = list(message.vectors)
    return bytes(vectors[0].vector_bytes if vectors else message.vector_bytes)


_NUMBERS: Mapping[int, Callable[[Any, Any], bool]] = {
    base_pb2.Filters.OPERATOR_GREATER_THAN_EQUAL: operator.ge,
    base_pb2.Filters.OPERATOR_LESS_THAN: operator.lt,
}


def _passes(stored: StoredObject, request: Any) -> bool:
    """Whether an object meets a filter of the forms that are used; a request without one lets everything through."""
    if not isinstance(request, base_pb2.Filters):
        return not request.HasField("filters") or _passes(stored, request.filters)
    if request.operator == base_pb2.Filters.OPERATOR_AND:
        return all(_passes(stored, one) for one in request.filters)
    name = request.target.property
    value = stored.uuid if name in {"_id", "id"} else stored.properties[name]
    if request.operator == base_pb2.Filters.OPERATOR_CONTAINS_ANY:
        return value in list(request.value_text_array.values)
    return _NUMBERS[request.operator](value, request.value_number)
