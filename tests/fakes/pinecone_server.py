"""Pinecone as far as its client asks for it: indexes, and the points of their namespaces.

A write is seen `delay` seconds later, and a new index is ready `preparing` seconds later, as in the service.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fakes.server import Answer, FakeServer, Seen

Namespaces = dict[str, dict[str, dict[str, Any]]]
"""Name of a namespace -> id -> point."""


@dataclass
class PineconeIndex:
    """An index: what was written, and what is seen of it."""

    name: str
    dimension: int
    deployment: Mapping[str, Any]
    ready_at: float
    seen: Namespaces = field(default_factory=dict)
    written: list[tuple[float, str, list[dict[str, Any]] | list[str] | None]] = field(default_factory=list)
    """When it is seen, namespace, and the points that are put, the ids that are deleted, or None for all."""

    def now(self) -> Namespaces:
        """What is seen now."""
        while self.written and self.written[0][0] <= time.monotonic():
            _, name, change = self.written.pop(0)
            points = self.seen.setdefault(name, {})
            for one in list(points) if change is None else change:
                if isinstance(one, str):
                    points.pop(one, None)
                else:
                    points[one["id"]] = one
            if not points:
                del self.seen[name]
        return self.seen


def refused(message: str, status: int = 400) -> Answer:
    """An error as the data plane writes it."""
    return Answer(status=status, json={"code": 3, "message": message, "details": []})


class PineconeServer(FakeServer):
    """A project; both planes at one address, the index is a folder of it."""

    def __init__(self, key: str = "key", *, delay: float = 0.0, preparing: float = 0.0) -> None:
        super().__init__()
        self.key, self.delay, self.preparing = key, delay, preparing
        self.indexes: dict[str, PineconeIndex] = {}

    def answer(self, seen: Seen) -> Answer:
        """What the client gets."""
        if seen.headers.get("Api-Key") != self.key:
            return Answer(
                status=401, json={"error": {"code": "UNAUTHENTICATED", "message": "Invalid API Key"}}
            )
        with self.lock:
            parts = seen.path.strip("/").split("/")
            if parts[0] == "indexes":
                return self._control(seen, parts[1:])
            index = self.indexes.get(parts[1]) if parts[0] == "data" else None
            if index is None or index.ready_at > time.monotonic():
                return refused("no such index", 404)
            does = getattr(self, "_" + "_".join(parts[2:]), None)
            return does(seen, index) if does else refused("no such operation", 404)

    # -- control plane ---------------------------------------------------------------------------------

    def _control(self, seen: Seen, rest: list[str]) -> Answer:
        if seen.method == "POST":
            return self._create(seen.json)
        if not rest:
            return Answer(json={"indexes": [self._model(one) for one in self.indexes.values()]})
        if rest[0] not in self.indexes:
            return Answer(status=404, json={"error": {"code": "NOT_FOUND", "message": "no such index"}})
        if seen.method == "DELETE":
            del self.indexes[rest[0]]
            return Answer(status=202)
        return Answer(json=self._model(self.indexes[rest[0]]))

    def _create(self, wanted: Mapping[str, Any]) -> Answer:
        name, deployment = wanted["name"], wanted["deployment"]
        (vector,) = wanted["schema"]["fields"].values()
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,43}[a-z0-9])?", name):
            return Answer(status=400, json={"error": {"code": "INVALID_ARGUMENT", "message": "bad name"}})
        if deployment["cloud"] not in {"aws", "gcp", "azure"} or vector["metric"] != "cosine":
            return Answer(status=400, json={"error": {"code": "INVALID_ARGUMENT", "message": "bad spec"}})
        if name in self.indexes:
            return Answer(status=409, json={"error": {"code": "ALREADY_EXISTS", "message": "it exists"}})
        ready_at = time.monotonic() + self.preparing
        self.indexes[name] = PineconeIndex(name, vector["dimension"], deployment, ready_at)
        return Answer(status=201, json=self._model(self.indexes[name]))

    def _model(self, index: PineconeIndex) -> dict[str, Any]:
        ready = index.ready_at <= time.monotonic()
        vector = {"type": "dense_vector", "dimension": index.dimension, "metric": "cosine"}
        return {
            "name": index.name,
            "schema": {"fields": {"_values": vector}},
            "deployment": index.deployment,
            "host": f"{self.address}/data/{index.name}",
            "deletion_protection": "disabled",
            "status": {"ready": ready, "state": "Ready" if ready else "Initializing"},
        }

    # -- data plane ------------------------------------------------------------------------------------

    def _write(self, index: PineconeIndex, namespace: str, change: Any) -> None:
        index.written.append((time.monotonic() + self.delay, namespace, change))

    def _vectors_upsert(self, seen: Seen, index: PineconeIndex) -> Answer:
        wanted = seen.json
        if len(wanted["vectors"]) > 1000 or len(seen.body) > 2 * 1024 * 1024:
            return refused("the request is too large")
        for point in wanted["vectors"]:
            if len(point["values"]) != index.dimension:
                return refused(f"Vector dimension {len(point['values'])} does not match {index.dimension}")
            if not any(point["values"]):
                return refused("Dense vectors must contain at least one non-zero value")
            if not point["id"].isascii() or len(point["id"]) > 512 or None in point["metadata"].values():
                return refused("bad id or metadata")
        self._write(index, wanted.get("namespace", ""), wanted["vectors"])
        return Answer(json={"upsertedCount": len(wanted["vectors"])})

    def _vectors_delete(self, seen: Seen, index: PineconeIndex) -> Answer:
        wanted = seen.json
        if wanted.get("namespace", "") not in index.now() and not index.written:
            return Answer(status=404, json={"code": 5, "message": "Namespace not found", "details": []})
        self._write(index, wanted.get("namespace", ""), None if wanted.get("deleteAll") else wanted["ids"])
        return Answer(json={})

    def _vectors_fetch(self, seen: Seen, index: PineconeIndex) -> Answer:
        points = index.now().get(seen.first("namespace"), {})
        found = {one: points[one] for one in seen.query["ids"] if one in points}
        return Answer(
            json={"vectors": found, "namespace": seen.first("namespace"), "usage": {"readUnits": 1}}
        )

    def _describe_index_stats(self, _seen: Seen, index: PineconeIndex) -> Answer:
        counts = {name: {"vectorCount": len(points)} for name, points in index.now().items()}
        total = sum(one["vectorCount"] for one in counts.values())
        return Answer(json={"namespaces": counts, "dimension": index.dimension, "totalVectorCount": total})

    def _query(self, seen: Seen, index: PineconeIndex) -> Answer:
        wanted = seen.json
        if len(wanted["vector"]) != index.dimension or not 1 <= wanted["topK"] <= 10_000:
            return refused("Vector dimension or topK")
        points = [
            one
            for one in index.now().get(wanted.get("namespace", ""), {}).values()
            if passes(one["metadata"], wanted.get("filter") or {})
        ]
        matches = []
        if points:
            matrix = np.array([one["values"] for one in points])
            query = np.array(wanted["vector"])
            scores = matrix @ query / np.linalg.norm(matrix, axis=1) / (np.linalg.norm(query) or 1.0)
            best = np.argsort(-scores, kind="stable")[: wanted["topK"]]
            matches = [{"id": points[place]["id"], "score": float(scores[place])} for place in best]
        return Answer(
            json={"matches": matches, "namespace": wanted.get("namespace", ""), "usage": {"readUnits": 1}}
        )


def passes(metadata: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether metadata meets a filter of the forms that are used."""
    tests: Mapping[str, Callable[[Any, Any], bool]] = {
        "$in": lambda value, wanted: value in wanted,
        "$gte": operator.ge,
        "$lt": operator.lt,
    }
    return all(
        tests[sign](metadata[name], wanted)
        for name, operators in conditions.items()
        for sign, wanted in operators.items()
    )
