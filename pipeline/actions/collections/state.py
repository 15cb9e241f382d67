"""How collections are written down for checkpoints: JSON, never pickle, the same for every store."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.actions.collections import Entry, Shape
from pipeline.actions.collections.entries import entry, name_of
from pipeline.documents import Json
from pipeline.errors import StoreRejected

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One collection of a state."""

    name: str
    shape: Shape
    entries: Sequence[Entry]


def to_json(collections: Iterable[Saved]) -> Json:
    """The state of all collections as one JSON object."""
    return {"format": FORMAT, "collections": {one.name: _collection_to_json(one) for one in collections}}


def _collection_to_json(one: Saved) -> Json:
    vectors = array("f")
    for held in one.entries:
        vectors.extend(held.embedding)
    return {
        "dimensions": one.shape.dimensions,
        "model": one.shape.model,
        "documents": [{"id": e.id, "text": e.text, "metadata": dict(e.metadata)} for e in one.entries],
        "vectors": base64.b64encode(_little(vectors).tobytes()).decode("ascii"),
    }


def _little(vectors: array[float]) -> array[float]:
    """`vectors` in the byte order of the form, which is that of nearly every machine."""
    if sys.byteorder == "big":
        vectors.byteswap()
    return vectors


def from_json(state: object) -> list[Saved]:
    """The collections that `to_json` wrote.

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
    shape = Shape(dimensions=int(one["dimensions"]), model=str(one["model"]))
    raw, documents = base64.b64decode(one["vectors"], validate=True), one["documents"]
    if len(raw) != 4 * shape.dimensions * len(documents):
        raise ValueError("vectors")
    vectors = _little(array("f", raw))
    entries = [
        entry(
            id=held["id"],
            text=held["text"],
            metadata=held["metadata"],
            embedding=vectors[n * shape.dimensions : (n + 1) * shape.dimensions],
        )
        for n, held in enumerate(documents)
    ]
    if len({held.id for held in entries}) != len(entries):
        raise ValueError("documents")
    return Saved(name=name, shape=shape, entries=entries)
