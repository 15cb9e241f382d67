"""Collections: named sets of texts with vectors, for the actions of YAML engines; nothing here needs numpy to load."""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple, Protocol

from pipeline.actions.filters import Condition
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
