"""Collections: named sets of texts with vectors, for the actions of YAML engines; nothing here needs numpy to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.actions.collections.filters import Condition
from pipeline.documents import Json
from pipeline.errors import StoreRejected


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One document of a collection; `entries.entry` makes checked ones."""

    id: str
    text: str
    embedding: Sequence[float]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A document that a query found."""

    id: str
    text: str
    score: float
    """Cosine similarity, -1 to 1; 0 where either vector has no length."""
    metadata: Json
    embedding: list[float]

    def to_json(self, *, embedding: bool) -> Json:
        """The result of `vector.query`, with the vector only if asked for."""
        plain = {"id": self.id, "text": self.text, "score": self.score, "metadata": self.metadata}
        return {**plain, "embedding": self.embedding} if embedding else plain


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What all vectors of a collection have in common."""

    dimensions: int
    model: str = ""
    """Empty: nobody said which model made them."""

    def joined(self, given: Shape, collection: str) -> Shape:
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


class CollectionStore(Protocol):
    """Collections apart from one another. Every implementation passes tests/contracts/test_collections.py."""

    def add(self, collection: str, entries: Sequence[Entry], *, model: str = "") -> int:
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
    ) -> list[Found]:
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
