"""Collections in memory: the actions' default; needs no other package and no server."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any

from pipeline.actions.collections import Entry, Found, Shape
from pipeline.actions.collections import state as state_form
from pipeline.actions.collections.cosine import Matrix, Scorer, fastest
from pipeline.actions.collections.entries import vector_of
from pipeline.actions.collections.filters import Condition, matches
from pipeline.documents import Json


class _Collection:
    """One collection: a row per document, in the order in which the documents came."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows: dict[str, int] = {}
        self.entries: list[tuple[str, str, Json]] = []
        """(id, text, metadata) of each row."""
        self.matrix = Matrix(shape.dimensions)

    def put(self, entry: Entry, vector: array[float]) -> None:
        row = self.rows.setdefault(entry.id, len(self.entries))
        self.entries[row : row + 1] = [(entry.id, entry.text, dict(entry.metadata))]
        self.matrix.put(row, vector)

    def found(self, row: int, score: float) -> Found:
        ident, text, metadata = self.entries[row]
        vector = self.matrix.row(row).tolist()
        return Found(id=ident, text=text, score=score, metadata=dict(metadata), embedding=vector)


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

    def add(self, collection: str, entries: Sequence[Entry], *, model: str = "") -> int:
        """Put documents in, all or none; one whose id is there already is replaced, the last of a batch wins.

        Raises:
            StoreRejected: the dimensions or the model are not those of the collection.
        """
        if not entries:
            return 0
        vectors = [vector_of(entry.embedding, f"vector no. {n}") for n, entry in enumerate(entries)]
        with self._lock:
            held = self._held.get(collection)
            shape = Shape(dimensions=len(vectors[0]), model=model) if held is None else held.shape
            for vector in vectors:
                shape = shape.joined(Shape(dimensions=len(vector), model=model), collection)
            if held is None:
                held = self._held[collection] = _Collection(shape)
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
    ) -> list[Found]:
        """The `k` closest documents that meet all conditions, best first; equal scores in the order they came in.

        Raises:
            StoreRejected: the dimensions or the model are not those of the collection.
        """
        with self._lock:
            held = self._held.get(collection)
            if held is None:
                return []
            held.shape.joined(Shape(dimensions=len(vector), model=model), collection)
            rows = [r for r, (_, _, metadata) in enumerate(held.entries) if matches(metadata, conditions)]
            scores = self._score(held.matrix, rows, vector)
            best = heapq.nsmallest(k, zip(scores, rows, strict=True), key=lambda pair: (-pair[0], pair[1]))
            return [held.found(row, score) for score, row in best]

    def get_state(self) -> Json:
        """Everything in all collections as JSON; vectors as base64 of little-endian 32-bit numbers."""
        with self._lock:
            return state_form.to_json(
                state_form.Saved(
                    name=name,
                    shape=held.shape,
                    entries=[
                        Entry(id=ident, text=text, metadata=metadata, embedding=held.matrix.row(row))
                        for row, (ident, text, metadata) in enumerate(held.entries)
                    ],
                )
                for name, held in self._held.items()
            )

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Become what `get_state` of any store gave; what was in the store before is gone.

        Raises:
            StoreRejected: this is no such state; the store is as it was.
        """
        fresh = MemoryCollections(self._score)
        for saved in state_form.from_json(state):
            fresh.add(saved.name, saved.entries, model=saved.shape.model)
        with self._lock:
            self._held = fresh._held
