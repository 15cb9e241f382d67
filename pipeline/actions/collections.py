"""Collections: named sets of texts with vectors, in memory and without another package; the port for other stores."""

from __future__ import annotations

import base64
import heapq
import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from operator import mul
from threading import RLock
from typing import Any, NamedTuple, Protocol

from pipeline.actions.filters import Condition, matches
from pipeline.documents import Json
from pipeline.errors import StoreRejected
from pipeline.ledger import clean


@dataclass(frozen=True, kw_only=True)
class CollectionEntry:
    """One document of a collection; `entry` makes checked ones."""

    id: str
    text: str
    embedding: Sequence[float]
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CollectionHit(CollectionEntry):
    """A document that a query found."""

    score: float
    """Cosine similarity, -1 to 1; 0 where either vector has no length."""

    def to_json(self, *, embedding: bool) -> Json:
        """The result of `vector.query`, with the vector only if asked for."""
        plain = {"id": self.id, "text": self.text, "score": self.score, "metadata": self.metadata}
        return {**plain, "embedding": self.embedding} if embedding else plain


@dataclass(frozen=True, kw_only=True)
class VectorShape:
    """What all vectors of a collection have in common."""

    dimensions: int
    model: str = ""
    """Empty: nobody said which model made them."""

    def joined(self, given: VectorShape, collection: str) -> VectorShape:
        """The shape once vectors of the shape `given` are used with the collection.

        Vectors of an unknown model go with any; the first model that is known stays.

        Raises:
            StoreRejected: the dimensions differ, or two models are known and differ.
        """
        if given.dimensions != self.dimensions:
            raise StoreRejected(
                f"a vector has {given.dimensions} dimensions, the collection {collection!r} has {self.dimensions}",
                fix="use the model that the collection was made with, or another collection",
            )
        if self.model and given.model and self.model != given.model:
            raise StoreRejected(
                f"the collection {collection!r} holds vectors of {self.model}, these are of {given.model}",
                fix="use the model that the collection was made with, or another collection",
            )
        return self if self.model or not given.model else given


def shape_with(
    held: VectorShape | None, vectors: Sequence[Sequence[float]], model: str, collection: str
) -> VectorShape:
    """The shape of a collection, None for a new one, once vectors of a model are put into it; raises as `joined`."""
    lengths = list(dict.fromkeys(map(len, vectors)))
    shape = held or VectorShape(dimensions=lengths[0], model=model)
    for dimensions in lengths:
        shape = shape.joined(VectorShape(dimensions=dimensions, model=model), collection)
    return shape


class CollectionStore(Protocol):
    """Collections apart from one another. Every implementation passes tests/contracts/test_collections.py."""

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> int:
        """Put documents in, all or none; one whose id is there already is replaced, the last of a batch wins.

        Returns how many different documents that were. `model` is what made the vectors, if known.

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
        """The `k` closest documents that meet all conditions, best first; equal scores in the order they came in.

        A collection that nobody has put anything into is empty.

        Raises:
            StoreRejected: the dimensions or the model are not those of the collection.
        """
        ...

    def get_state(self) -> Json:
        """Everything in all collections as JSON, for a checkpoint."""
        ...

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Become what `get_state` of any store gave; what was in the store before is gone.

        Raises:
            StoreRejected: this is no such state; the store is as it was.
        """
        ...


LONGEST_NAME = 200
"""Characters of a collection's name or a document's id: both are parts of a key."""
MOST_DIMENSIONS = 16_000
"""What pgvector can hold."""


def name_of(value: object, what: str) -> str:
    """`value` as the name of a collection or the id of a document.

    Raises:
        StoreRejected: it is no text, empty or too long.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME:
        raise StoreRejected(
            f"{what} is no text of 1 to {LONGEST_NAME} characters ({type(value).__name__})",
            fix="give a short text that is not empty",
        )
    return str(clean(value))


def entry(
    *,
    id: object,  # noqa: A002 (the word of the document schema)
    text: object,
    embedding: object,
    metadata: object = None,
    number: int = 0,
) -> CollectionEntry:
    """A document for `CollectionStore.add`; `number` is its place among the caller's, for messages.

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
        raise StoreRejected(f"text no. {number} is a {type(value).__name__}", fix="give texts")
    return str(clean(value))


def metadata_of(value: object, number: int) -> Json:
    """Metadata as JSON, dates as text of the form 2024-01-31; None is none; raises as `entry` does."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise StoreRejected(
            f"metadata no. {number} is a {type(value).__name__}", fix="give a mapping of names to values"
        )
    return {str(clean(str(key))): _plain(one, number) for key, one in value.items()}


def _plain(value: Any, number: int) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return metadata_of(value, number)
    if isinstance(value, list | tuple):
        return [_plain(one, number) for one in value]
    if value is None or isinstance(value, str | bool | int | float):
        return clean(value)
    raise StoreRejected(
        f"metadata no. {number} holds a {type(value).__name__}",
        fix="use texts, numbers, truth values, dates, lists and mappings",
    )


def vector_of(value: object, what: str) -> array[float]:
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
        raise StoreRejected(f"{what} is no list of numbers", fix="give a list of finite numbers") from error
    if not all(map(math.isfinite, vector)):
        raise StoreRejected(
            f"{what} is not finite", fix="embed the text again; no number may be NaN or infinite"
        )
    if not 1 <= len(vector) <= MOST_DIMENSIONS:
        raise StoreRejected(
            f"{what} has {len(vector)} dimensions", fix=f"give 1 to {MOST_DIMENSIONS} numbers per vector"
        )
    return vector


FORMAT = 1


class Saved(NamedTuple):
    """One collection of a state."""

    name: str
    shape: VectorShape
    entries: Sequence[CollectionEntry]


def to_json(collections: Iterable[Saved]) -> Json:
    """All collections as one JSON object, for a checkpoint; vectors as base64 of little-endian 32-bit numbers."""
    return {"format": FORMAT, "collections": {one.name: _collection_to_json(one) for one in collections}}


def _collection_to_json(one: Saved) -> Json:
    vectors = b"".join(struct.pack(f"<{one.shape.dimensions}f", *e.embedding) for e in one.entries)
    return {
        "dimensions": one.shape.dimensions,
        "model": one.shape.model,
        "documents": [{"id": e.id, "text": e.text, "metadata": dict(e.metadata)} for e in one.entries],
        "vectors": base64.b64encode(vectors).decode("ascii"),
    }


def from_json(state: object) -> list[Saved]:
    """The collections that `to_json` wrote; empty ones are left out.

    Raises:
        StoreRejected: this is no such state.
    """
    try:
        if not isinstance(state, Mapping) or state["format"] != FORMAT:
            raise ValueError("format")  # noqa: TRY301 (as every other damage)
        read = [_collection(name_of(name, "a collection"), one) for name, one in state["collections"].items()]
        return [saved for saved in read if saved.entries]
    except (AttributeError, LookupError, TypeError, ValueError, StoreRejected) as error:
        raise StoreRejected(
            f"the state is none of collections ({type(error).__name__})",
            fix="take another checkpoint, or start empty and store again",
            cause=error,
        ) from error


def _collection(name: str, one: Mapping[str, Any]) -> Saved:
    shape = VectorShape(dimensions=int(one["dimensions"]), model=str(one["model"]))
    raw, documents = base64.b64decode(one["vectors"], validate=True), one["documents"]
    if len(raw) != 4 * shape.dimensions * len(documents):
        raise ValueError("vectors")
    entries = [
        entry(
            id=held["id"],
            text=held["text"],
            metadata=held["metadata"],
            embedding=struct.unpack_from(f"<{shape.dimensions}f", raw, 4 * shape.dimensions * n),
        )
        for n, held in enumerate(documents)
    ]
    if len({held.id for held in entries}) != len(entries):
        raise ValueError("documents")
    return Saved(name=name, shape=shape, entries=entries)


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
