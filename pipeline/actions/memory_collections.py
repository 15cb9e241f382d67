"""Collections in memory: the actions' default; needs no other package and no server."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import mul
from threading import RLock
from typing import Any

from pipeline.actions.collections import (
    CollectionEntry,
    CollectionHit,
    Saved,
    VectorShape,
    from_json,
    shape_with,
    to_json,
    vector_of,
)
from pipeline.actions.filters import Condition, matches
from pipeline.documents import Json

_BLOCK = 1024
"""Rows worked on at once with numpy: they are copied at double precision."""
_DIGITS = 9
"""Sums of different order agree on so many, which is more than 32-bit numbers carry."""


def _quotient(dot: float, lengths: float) -> float:
    """The cosine of two vectors from their product and the product of their lengths; 0 if one has no length."""
    return round(min(1.0, max(-1.0, dot / lengths)), _DIGITS) if lengths else 0.0


class Matrix:
    """Rows of 32-bit numbers in one piece of memory, with their lengths."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.values = array("f")
        self.lengths = array("d")

    def __len__(self) -> int:
        return len(self.lengths)

    def put(self, row: int, vector: array[float]) -> None:
        """Write row `row`, which is there already or is the next."""
        self.values[row * self.dimensions : (row + 1) * self.dimensions] = vector
        self.lengths[row : row + 1] = array("d", [math.hypot(*vector)])

    def row(self, row: int) -> array[float]:
        """A copy of one row."""
        return self.values[row * self.dimensions : (row + 1) * self.dimensions]


Scorer = Callable[[Matrix, Sequence[int], Sequence[float]], list[float]]
"""(matrix, numbers of rows, a vector) -> the cosine of each of these rows with the vector."""


def pure(matrix: Matrix, rows: Sequence[int], vector: Sequence[float]) -> list[float]:
    """The scorer that needs nothing but Python."""
    length = math.hypot(*vector)
    return [_quotient(sum(map(mul, matrix.row(r), vector)), matrix.lengths[r] * length) for r in rows]


def with_numpy(matrix: Matrix, rows: Sequence[int], vector: Sequence[float]) -> list[float]:
    """The same about eight times faster; numpy must be installed."""
    import numpy as np

    if not rows:
        return []
    values = np.frombuffer(matrix.values, dtype=np.float32).reshape(-1, matrix.dimensions)
    wanted, length = np.array(vector, dtype=np.float64), math.hypot(*vector)

    def dots() -> Iterator[float]:
        for at in range(0, len(rows), _BLOCK):
            yield from (values[rows[at : at + _BLOCK]].astype(np.float64) @ wanted).tolist()

    return [_quotient(dot, matrix.lengths[r] * length) for r, dot in zip(rows, dots(), strict=True)]


def fastest() -> Scorer:
    """The scorer with numpy where it can be imported."""
    try:
        import numpy  # noqa: F401, ICN001
    except ImportError:
        return pure
    return with_numpy


class _Collection:
    """One collection: a row per document, in the order in which the documents came."""

    def __init__(self, shape: VectorShape) -> None:
        self.shape = shape
        self.rows: dict[str, int] = {}
        self.entries: list[tuple[str, str, Json]] = []
        """(id, text, metadata) of each row."""
        self.matrix = Matrix(shape.dimensions)

    def put(self, entry: CollectionEntry, vector: array[float]) -> None:
        row = self.rows.setdefault(entry.id, len(self.entries))
        self.entries[row : row + 1] = [(entry.id, entry.text, dict(entry.metadata))]
        self.matrix.put(row, vector)

    def hit(self, row: int, score: float) -> CollectionHit:
        ident, text, metadata = self.entries[row]
        vector = self.matrix.row(row).tolist()
        return CollectionHit(id=ident, text=text, score=score, metadata=dict(metadata), embedding=vector)


class MemoryCollections:
    """Collections of one process, gone with it unless saved by `get_state`; safe to share between threads.

    Search is exact and compares every document that the filter allows. Vectors are kept as 32-bit numbers in one
    piece of memory per collection.
    """

    def __init__(self, scorer: Scorer | None = None) -> None:
        """`scorer` compares vectors; None takes numpy where it is installed."""
        self._score = scorer or fastest()
        self._lock = RLock()
        self._held: dict[str, _Collection] = {}

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> int:
        """See CollectionStore."""
        if not entries:
            return 0
        vectors = [vector_of(entry.embedding, f"vector no. {n}") for n, entry in enumerate(entries)]
        with self._lock:
            held = self._held.get(collection)
            shape = shape_with(held.shape if held else None, vectors, model, collection)
            held = self._held.setdefault(collection, _Collection(shape))
            held.shape = shape
            for entry, vector in zip(entries, vectors, strict=True):
                held.put(entry, vector)
        return len({entry.id for entry in entries})

    def query(
        self,
        collection: str,
        vector: Sequence[float],
        *,
        k: int,
        conditions: Sequence[Condition] = (),
        model: str = "",
    ) -> list[CollectionHit]:
        """See CollectionStore."""
        with self._lock:
            held = self._held.get(collection)
            if held is None:
                return []
            held.shape.joined(VectorShape(dimensions=len(vector), model=model), collection)
            rows = [r for r, (_, _, metadata) in enumerate(held.entries) if matches(metadata, conditions)]
            scores = self._score(held.matrix, rows, vector)
            best = heapq.nsmallest(k, zip(scores, rows, strict=True), key=lambda pair: (-pair[0], pair[1]))
            return [held.hit(row, score) for score, row in best]

    def get_state(self) -> Json:
        """See CollectionStore."""
        with self._lock:
            return to_json(
                Saved(
                    name,
                    held.shape,
                    [
                        CollectionEntry(
                            id=ident, text=text, metadata=metadata, embedding=held.matrix.row(row)
                        )
                        for row, (ident, text, metadata) in enumerate(held.entries)
                    ],
                )
                for name, held in self._held.items()
            )

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See CollectionStore."""
        fresh = MemoryCollections(self._score)
        for saved in from_json(state):
            fresh.add(saved.name, saved.entries, model=saved.shape.model)
        with self._lock:
            self._held = fresh._held
