"""Store in the memory of a process: exact, compares every vector. For actions, tests and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected
from pipeline.search.stores import (
    FloatVector,
    Neighbour,
    Point,
    Scope,
    StoreStats,
    matrix_of,
    normalised,
)


def passes(point: Point, scope: Scope) -> bool:
    """Whether a point is in a scope."""
    attributes = point.attributes
    return all(attributes[name] in texts for name, texts in scope.values.items()) and not (
        (scope.since is not None and point.changed < scope.since)
        or (scope.until is not None and point.changed >= scope.until)
    )


@dataclass
class MemoryStore:
    """Points by collection, tenant and id; thread-safe, lost with the process."""

    collections: dict[str, dict[tuple[str, str], Point]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        matrix_of(points)
        with self._lock:
            stored = self.collections.setdefault(collection, {})
            check_dimensions(next(iter(stored.values()), points[0]).vector, points[0].vector)
            stored.update(((str(point.tenant), point.id), point) for point in points)

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        with self._lock:
            stored, deleted = self.collections.get(scope.collection, {}), set(ids or ())
            for key, point in list(stored.items()):
                if (ids is None or point.id in deleted) and passes(point, scope):
                    del stored[key]

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        with self._lock:
            points = [p for p in self.collections.get(scope.collection, {}).values() if passes(p, scope)]
        if not points or n <= 0:
            return []
        check_dimensions(points[0].vector, vector)
        query = normalised(np.asarray(vector, dtype=np.float32))
        similarities = normalised(matrix_of(points)) @ query
        best = np.argsort(-similarities, kind="stable")[:n]
        return [Neighbour(points[place].id, float(similarities[place])) for place in best]

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        with self._lock:
            stored = [p.id for p in self.collections.get(scope.collection, {}).values() if passes(p, scope)]
        return StoreStats(points=len(stored), present=frozenset(stored).intersection(ids))


def check_dimensions(stored: FloatVector, vector: FloatVector) -> None:
    """Compare the lengths of two vectors.

    Raises:
        StoreRejected: they differ.
    """
    if len(stored) != len(vector):
        raise StoreRejected(
            f"a vector has {len(vector)} dimensions, the collection {len(stored)}",
            fix="use the model that the collection was made with",
        )


def open_store(_options: StoreOptions) -> MemoryStore:
    """An empty store."""
    return MemoryStore()
