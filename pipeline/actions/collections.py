"""Collections: named sets of texts with vectors, in memory and without another package; the port for other stores."""

from __future__ import annotations

import base64
import heapq
import json
import math
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from operator import itemgetter, mul
from threading import RLock
from typing import Any, NamedTuple, Protocol

from pipeline.actions.filters import Condition, matches
from pipeline.documents import Json
from pipeline.documents.plain_text import json_type_name
from pipeline.errors import StoreRejected
from pipeline.ledger import storable


@dataclass(frozen=True, kw_only=True)
class CollectionEntry:
    """One document of a collection; stores rely on the checks of `entry`."""

    id: str
    text: str
    embedding: Sequence[float]
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CollectionHit(CollectionEntry):
    """A document that matches a query."""

    score: float
    """Cosine similarity, -1 to 1; 0 where either vector has no length."""

    def to_json(self, *, embedding: bool) -> Json:
        """The result of `vector.query`, with the vector only if asked for."""
        plain = {"id": self.id, "text": self.text, "score": self.score, "metadata": self.metadata}
        return {**plain, "embedding": self.embedding} if embedding else plain


class VectorShape(NamedTuple):
    """Dimensions and model of all vectors of a collection."""

    dimensions: int
    model: str = ""
    """Empty: unknown."""


class Collection(NamedTuple):
    """One collection."""

    shape: VectorShape
    entries: dict[str, CollectionEntry]
    """By id, in the order in which they came."""


def shape_with(
    existing: VectorShape | None, vectors: Sequence[Sequence[float]], model: str, collection: str
) -> VectorShape:
    """Check vectors against the shape of a collection (None: a new one) and return the resulting shape.

    Vectors of an unknown model fit any collection; the first known model stays.

    Raises:
        StoreRejected: the dimensions differ, or two models are known and differ.
    """
    shape = existing or VectorShape(len(vectors[0]), model)
    fix = "use the model that the collection was made with, or another collection"
    for length in map(len, vectors):
        if length != shape.dimensions:
            message = (
                f"a vector has {length} dimensions, the collection {collection!r} has {shape.dimensions}"
            )
            raise StoreRejected(message, fix=fix)
    if shape.model and model and shape.model != model:
        message = f"the collection {collection!r} holds vectors of {shape.model}, these are of {model}"
        raise StoreRejected(message, fix=fix)
    return shape._replace(model=shape.model or model)


class CollectionStore(Protocol):
    """A store of separate collections. Every implementation passes tests/contracts/test_collections.py."""

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> None:
        """Store at least one document, all or none; an existing id is replaced, the last of a batch wins.

        `model` is the model of the vectors, if known.

        Raises:
            StoreRejected: the dimensions or the model are not those of the collection.
        """
        ...

    def query(
        self,
        collection: str,
        vector: Sequence[float],
        *,
        k: int,
        conditions: Sequence[Condition] = (),
        model: str = "",
    ) -> list[CollectionHit]:
        """The `k` closest documents that meet all conditions, best first; equal scores in order of insertion.

        An unknown collection is empty.

        Raises:
            StoreRejected: the dimensions or the model are not those of the collection.
        """
        ...

    def get_state(self) -> Json:
        """Everything in all collections as JSON, for a checkpoint."""
        ...

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Replace all contents by those of a state that `get_state` of any store returned.

        Raises:
            StoreRejected: not such a state; the store is unchanged.
        """
        ...


MAX_NAME_LENGTH = 200
"""Maximum characters of a collection's name or a document's id; both are part of a key."""
MAX_DIMENSIONS = 16_000
"""Maximum dimensions of a vector in pgvector."""


def name_of(value: object, label: str) -> str:
    """`value` as the name of a collection or the id of a document.

    Raises:
        StoreRejected: it is no text, empty or too long.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME_LENGTH:
        raise StoreRejected(
            f"{label} is no text of 1 to {MAX_NAME_LENGTH} characters ({type(value).__name__})",
            fix="give a short text that is not empty",
        )
    return str(storable(value))


def entry(
    *,
    id: object,  # noqa: A002 (the word of the document schema)
    text: object,
    embedding: object,
    metadata: object = None,
    number: int = 0,
) -> CollectionEntry:
    """A checked document for `CollectionStore.add`; `number` is its position in the batch, for messages.

    Raises:
        StoreRejected: a part is of the wrong type, or the vector is empty or not finite.
    """
    return CollectionEntry(
        id=name_of(id, f"id no. {number}"),
        text=text_of(text, number),
        embedding=vector_of(embedding, f"vector no. {number}"),
        metadata=metadata_of(metadata, number),
    )


def text_of(value: object, number: int) -> str:
    """`value`, if it is a text; raises as `entry` does."""
    if not isinstance(value, str):
        raise StoreRejected(f"text no. {number} is {json_type_name(value)}", fix="give texts")
    return str(storable(value))


def metadata_of(value: object, number: int) -> Json:
    """Metadata as JSON, dates as text of the form 2024-01-31; None is none; raises as `entry` does."""
    if not isinstance(value, Mapping | None):
        raise StoreRejected(
            f"metadata no. {number} is {json_type_name(value)}", fix="give a mapping of names to values"
        )
    try:
        plain: Json = storable(json.loads(json.dumps(value or {}, default=_plain)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreRejected(
            f"metadata no. {number} is no JSON: {error}",
            fix="use texts, numbers, truth values, dates, lists and mappings",
        ) from error
    return plain


def _plain(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a {type(value).__name__}")


def vector_of(value: object, label: str) -> array[float]:
    """A vector of 32-bit numbers, which is what every store keeps.

    Raises:
        StoreRejected: it is no sequence of finite numbers, or too long or too short.
    """
    numbers = value if isinstance(value, Sequence) else getattr(value, "tolist", lambda: None)()
    try:
        if isinstance(numbers, bytes | bytearray | memoryview):
            raise TypeError("bytes")  # noqa: TRY301 (array would take them for numbers)
        vector = array("f", numbers)  # type: ignore[arg-type]
    except (TypeError, OverflowError) as error:
        raise StoreRejected(f"{label} is no list of numbers", fix="give a list of finite numbers") from error
    if not all(map(math.isfinite, vector)):
        raise StoreRejected(
            f"{label} is not finite", fix="embed the text again; no number may be NaN or infinite"
        )
    if not 1 <= len(vector) <= MAX_DIMENSIONS:
        raise StoreRejected(
            f"{label} has {len(vector)} dimensions", fix=f"give 1 to {MAX_DIMENSIONS} numbers per vector"
        )
    return vector


FORMAT = 1


def to_json(collections: Mapping[str, Collection]) -> Json:
    """All collections as one JSON object, for a checkpoint; vectors as base64 of little-endian 32-bit numbers."""
    saved = {}
    for name, (shape, entries) in collections.items():
        vectors = b"".join(struct.pack(f"<{shape.dimensions}f", *one.embedding) for one in entries.values())
        saved[name] = {
            "dimensions": shape.dimensions,
            "model": shape.model,
            "documents": [
                {"id": one.id, "text": one.text, "metadata": dict(one.metadata)} for one in entries.values()
            ],
            "vectors": base64.b64encode(vectors).decode("ascii"),
        }
    return {"format": FORMAT, "collections": saved}


def from_json(state: object) -> dict[str, Collection]:
    """The collections that `to_json` wrote; empty ones are left out.

    Raises:
        StoreRejected: not such a state.
    """
    try:
        if not isinstance(state, Mapping) or state["format"] != FORMAT:
            raise ValueError("format")  # noqa: TRY301 (as every other damage)
        read = {name_of(name, "a collection"): _collection(one) for name, one in state["collections"].items()}
    except (AttributeError, LookupError, TypeError, ValueError, struct.error, StoreRejected) as error:
        raise StoreRejected(
            f"this is no saved state of collections ({type(error).__name__})",
            fix="take another checkpoint, or start empty and store again",
            cause=error,
        ) from error
    return {name: one for name, one in read.items() if one.entries}


def _collection(one: Mapping[str, Any]) -> Collection:
    shape = VectorShape(int(one["dimensions"]), str(one["model"]))
    raw, documents = base64.b64decode(one["vectors"], validate=True), one["documents"]
    vectors = list(struct.iter_unpack(f"<{shape.dimensions}f", raw)) if documents else []
    checked = [
        entry(**document, embedding=vector) for document, vector in zip(documents, vectors, strict=True)
    ]
    entries = {one.id: one for one in checked}
    if len(entries) != len(documents):
        raise ValueError("documents")
    return Collection(shape, entries)


_BLOCK = 1024
"""Vectors processed at once with numpy, which copies them in double precision."""
_DIGITS = 9
"""Decimals of a score; sums of different order agree on them, and 32-bit numbers carry fewer."""

Scorer = Callable[[Sequence[Any], Sequence[float]], list[float]]
"""(vectors as arrays of 32-bit numbers, a vector) -> the cosine of each with the vector."""


def _quotient(dot: float, lengths: float) -> float:
    """The cosine of two vectors from their product and the product of their lengths; 0 if one has no length."""
    return round(min(1.0, max(-1.0, dot / lengths)), _DIGITS) if lengths else 0.0


def python_scores(vectors: Sequence[array[float]], query: Sequence[float]) -> list[float]:
    """The scorer in plain Python."""
    length = math.hypot(*query)
    return [_quotient(sum(map(mul, vector, query)), math.hypot(*vector) * length) for vector in vectors]


def numpy_scores(vectors: Sequence[array[float]], query: Sequence[float]) -> list[float]:
    """The scorer with numpy, several times faster; without numpy it is `python_scores`."""
    try:
        import numpy as np
    except ImportError:
        return python_scores(vectors, query)
    length, scores = math.hypot(*query), list[float]()
    for at in range(0, len(vectors), _BLOCK):
        packed = np.frombuffer(b"".join(vectors[at : at + _BLOCK]), dtype=np.float32)
        block = packed.reshape(-1, len(query)).astype(np.float64)
        lengths = np.linalg.norm(block, axis=1) * length
        scores += map(_quotient, (block @ np.array(query, dtype=np.float64)).tolist(), lengths.tolist())
    return scores


def ranked(
    entries: Sequence[CollectionEntry], vector: Sequence[float], k: int, scorer: Scorer = numpy_scores
) -> list[CollectionHit]:
    """The `k` closest of these, best first; equal scores in their order."""
    vectors = [v if isinstance(v := one.embedding, array) else array("f", v) for one in entries]
    scores = scorer(vectors, vector)
    best = heapq.nlargest(k, zip(scores, entries, strict=True), key=itemgetter(0))
    return [
        CollectionHit(
            id=one.id,
            text=one.text,
            score=score,
            metadata=dict(one.metadata),
            embedding=list(one.embedding),
        )
        for score, one in best
    ]


class MemoryCollections:
    """Collections in memory, lost with the process unless saved by `get_state`; thread-safe.

    Search is exact and compares every document that the filter allows. Vectors are kept as 32-bit numbers.
    """

    def __init__(self, scorer: Scorer = numpy_scores) -> None:
        self._score = scorer
        self._lock = RLock()
        self._collections: dict[str, Collection] = {}

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> None:
        """See CollectionStore."""
        with self._lock:
            existing = self._collections.get(collection)
            shape = shape_with(
                existing and existing.shape, [one.embedding for one in entries], model, collection
            )
            entries_by_id = existing.entries if existing else {}
            entries_by_id.update((one.id, one) for one in entries)
            self._collections[collection] = Collection(shape, entries_by_id)

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
            if (contents := self._collections.get(collection)) is None:
                return []
            shape_with(contents.shape, [vector], model, collection)
            chosen = [one for one in contents.entries.values() if matches(one.metadata, conditions)]
        return ranked(chosen, vector, k, self._score)

    def get_state(self) -> Json:
        """See CollectionStore."""
        with self._lock:
            return to_json(self._collections)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See CollectionStore."""
        restored = from_json(state)
        with self._lock:
            self._collections = restored
