"""The vector store that lives in memory: for the actions' default, trying out, and tests without a server."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from pipeline.actions.collections.filters import same
from pipeline.documents import Chunk, Json
from pipeline.embedding import Vectors
from pipeline.errors import StoreRejected
from pipeline.search import memory_state as state_form
from pipeline.search.chunks import (
    Candidate,
    Filter,
    Replaced,
    Replacement,
    StoredDocument,
    StoreQuery,
    StoreStats,
    diff,
)
from pipeline.search.memory_bm25 import Bm25Index

_Place = tuple[UUID, int]
"""A chunk's key: document id and ordinal."""


@dataclass(frozen=True, kw_only=True)
class _Table:
    """All chunks as one matrix, in the order of their keys, so that equal scores always rank alike."""

    places: tuple[_Place, ...]
    rows: Mapping[_Place, int]
    unit: NDArray[np.float32]
    """Rows of length 1, or of zeros where the stored vector is zero."""


class InMemoryStore:
    """Chunks of one tenant and one search index, gone with the process unless saved.

    Search is exact: every chunk the filter allows is compared. Safe to share between threads.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._lock = RLock()
        self._documents: dict[UUID, StoredDocument] = {}
        self._chunks: dict[UUID, dict[int, Chunk]] = {}
        self._vectors: dict[_Place, NDArray[np.float32]] = {}
        self._words: Bm25Index[_Place] = Bm25Index()
        self._table: _Table | None = None

    def replace(self, batch: Sequence[Replacement]) -> list[Replaced]:
        """Make each document's chunks exactly these; unchanged rows keep their vector.

        A version older than the stored one is ignored and counts nothing. Either the whole batch is taken or,
        after an error, none of it.

        Raises:
            StoreRejected: a vector has the wrong length or is not finite, or counts differ.
        """
        for replacement in batch:
            self._check(replacement)
        with self._lock:
            return [self._replace_one(replacement) for replacement in batch]

    def delete(self, document_ids: Sequence[UUID]) -> int:
        """Remove all chunks of these documents; returns how many chunks there were."""
        with self._lock:
            held = [(i, list(self._chunks.get(i, ()))) for i in dict.fromkeys(document_ids)]
            for document_id, ords in held:
                self._remove(document_id, ords)
            return sum(len(ords) for _, ords in held)

    def candidates(self, query: StoreQuery) -> list[Candidate]:
        """The union of both arms, each chunk scored in every arm asked for, best similarity first.

        Raises:
            StoreRejected: the query's vector has the wrong length or is not finite.
        """
        with self._lock:
            table = self._matrix()
            allowed = self._allowed(query.filter)
            similarities = self._similarities(query, table, allowed)
            scores = self._words.scores(query.text, allowed) if query.keywords else {}
            found = {*_top(similarities, query.candidates), *_top(scores, query.candidates)}
            union = [self._candidate(place, query, similarities, scores) for place in sorted(found)]
        return sorted(union, key=lambda c: (-(c.similarity or 0.0), -(c.bm25 or 0.0)))

    def stats(self) -> StoreStats:
        """Counts of what is searchable."""
        with self._lock:
            return StoreStats(documents=len(self._documents), chunks=len(self._vectors))

    def get_state(self) -> Json:
        """Everything in the store as JSON; vectors as base64 of little-endian float32."""
        documents, vectors = self._export()
        return state_form.to_json(documents, vectors)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Become what `get_state` gave; what was in the store before is gone.

        Raises:
            StoreRejected: no such state, or one of other dimensions; the store is as it was.
        """
        dimensions, batch = state_form.from_json(state)
        if dimensions != self.dimensions:
            raise StoreRejected(
                f"the state has {dimensions} dimensions, this store has {self.dimensions}",
                fix="restore it into a store of the same embedding model",
            )
        fresh = InMemoryStore(dimensions)
        fresh.replace(batch)
        with self._lock:
            self._documents, self._chunks = fresh._documents, fresh._chunks
            self._vectors, self._words, self._table = fresh._vectors, fresh._words, None

    def save(self, path: Path) -> None:
        """Write everything to one `.npz` file (JSON and an array inside); an older one is replaced."""
        documents, vectors = self._export()
        state_form.write_file(path, documents, vectors)

    @classmethod
    def load(cls, path: Path) -> InMemoryStore:
        """The store that `save` wrote.

        Raises:
            StoreRejected: there is no such file, or it is damaged.
        """
        dimensions, batch = state_form.read_file(path)
        store = cls(dimensions)
        store.replace(batch)
        return store

    def _export(self) -> tuple[list[state_form.Held], Vectors]:
        with self._lock:
            held: list[state_form.Held] = [
                (d, tuple(self._chunks[i].values())) for i, d in self._documents.items()
            ]
            rows = [self._vectors[d.id, chunk.ord] for d, chunks in held for chunk in chunks]
        vectors: Vectors = np.array(rows, dtype=np.float32).reshape(len(rows), self.dimensions)
        return held, vectors

    def _check(self, replacement: Replacement) -> None:
        shape, count = np.shape(replacement.vectors), len(replacement.chunks)
        where = f"document {replacement.document.id}"
        if shape != (count, self.dimensions) and not (count == 0 and 0 in shape):
            raise StoreRejected(
                f"{where}: vectors of shape {shape} for {count} chunks of {self.dimensions} dimensions",
                fix="embed each chunk once, with the model this index was made for",
            )
        if not np.isfinite(replacement.vectors).all():
            raise StoreRejected(f"{where}: a vector is not finite", fix="embed the document again")
        if len({chunk.ord for chunk in replacement.chunks}) != count:
            raise StoreRejected(
                f"{where}: two chunks have the same ordinal", fix="number chunks 0, 1, 2, ..."
            )

    def _replace_one(self, replacement: Replacement) -> Replaced:
        document = replacement.document
        stored = self._documents.get(document.id)
        if stored is not None and document.version < stored.version:
            return Replaced(written=0, kept=0, removed=0)
        held = self._chunks.get(document.id, {})
        kept, written, removed = diff({o: chunk.hash for o, chunk in held.items()}, replacement.chunks)
        self._remove(document.id, removed)
        new = set(written)
        for chunk, vector in zip(replacement.chunks, replacement.vectors, strict=False):
            if chunk.ord in new:
                self._write((document.id, chunk.ord), chunk, vector)
        if replacement.chunks:
            # A copy, as a database would keep one: the caller's mapping may change later.
            self._documents[document.id] = replace(document, metadata=dict(document.metadata))
        return Replaced(written=len(written), kept=len(kept), removed=len(removed))

    def _write(self, place: _Place, chunk: Chunk, vector: NDArray[np.float32]) -> None:
        self._chunks.setdefault(place[0], {})[place[1]] = chunk
        self._vectors[place] = np.array(vector, dtype=np.float32)
        self._words.add(place, chunk.embedding_text)
        self._table = None

    def _remove(self, document_id: UUID, ords: Iterable[int]) -> None:
        held = self._chunks.get(document_id, {})
        for o in ords:
            del held[o]
            del self._vectors[document_id, o]
            self._words.remove((document_id, o))
            self._table = None
        if not held:
            self._chunks.pop(document_id, None)
            self._documents.pop(document_id, None)

    def _matrix(self) -> _Table:
        if self._table is None:
            places = tuple(sorted(self._vectors))
            matrix = np.array([self._vectors[p] for p in places], dtype=np.float32)
            unit = _unit(matrix.reshape(len(places), self.dimensions))
            self._table = _Table(places=places, rows={p: i for i, p in enumerate(places)}, unit=unit)
        return self._table

    def _allowed(self, condition: Filter) -> set[_Place]:
        documents = [d.id for d in self._documents.values() if matches(d, condition)]
        return {(i, o) for i in documents for o in self._chunks[i]}

    def _similarities(self, query: StoreQuery, table: _Table, allowed: set[_Place]) -> dict[_Place, float]:
        if query.vector is None:
            return {}
        if query.vector.shape != (self.dimensions,) or not np.isfinite(query.vector).all():
            raise StoreRejected(
                f"the query's vector has the shape {query.vector.shape} or is not finite; "
                f"the store has {self.dimensions} dimensions",
                fix="embed the query with the model this index was made for",
            )
        places = [place for place in table.places if place in allowed]
        rows = [table.rows[place] for place in places]
        cosines = np.clip(table.unit[rows] @ _unit(query.vector[None, :])[0], -1.0, 1.0)
        return dict(zip(places, cosines.tolist(), strict=True))

    def _candidate(
        self,
        place: _Place,
        query: StoreQuery,
        similarities: Mapping[_Place, float],
        scores: Mapping[_Place, float],
    ) -> Candidate:
        return Candidate(
            document=self._documents[place[0]],
            chunk=self._chunks[place[0]][place[1]],
            similarity=None if query.vector is None else similarities[place],
            bm25=scores.get(place, 0.0) if query.keywords else None,
        )


def matches(document: StoredDocument, condition: Filter) -> bool:
    """True if the document meets every condition; a document without times meets no condition on time."""
    moment = document.updated_at or document.created_at
    checks = (
        not condition.source_types or document.source_type in condition.source_types,
        not condition.kinds or document.kind in condition.kinds,
        set(condition.tags) <= set(document.tags),
        condition.since is None or (moment is not None and moment >= condition.since),
        condition.until is None or (moment is not None and moment < condition.until),
        not condition.projects or document.project_id in condition.projects,
        document.id not in condition.exclude,
        all(k in document.metadata and same(document.metadata[k], v) for k, v in condition.metadata.items()),
    )
    return all(checks)


def _top(scores: Mapping[_Place, float], count: int) -> list[_Place]:
    """The best `count` keys; equal scores go by key."""
    return heapq.nsmallest(count, scores, key=lambda place: (-scores[place], place))


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0.0, 1.0, lengths), dtype=np.float32)
