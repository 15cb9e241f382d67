"""What the arguments of an action mean: one text or many, in slices, each with its id, metadata and vector."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pipeline.actions.collections.entries import text_of
from pipeline.errors import SearchError, StoreRejected

SLICE = 256
"""Texts worked on at once: a batch of any length takes the memory of so many, and of what the store keeps."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One text to store with what belongs to it."""

    number: int
    text: str
    id: Any
    metadata: Any
    vector: Any
    """None: to be made from the text."""


def slices(texts: object, ids: object, metadata: object, vectors: object) -> Iterator[list[Item]]:
    """The texts with their ids, metadata and vectors, in pieces of `SLICE`; any may be a generator.

    One text may stand alone, and so may its id, its metadata and its vector; one mapping of metadata serves all
    texts. Ids that are not given are random.

    Raises:
        StoreRejected: an argument is no list, or their lengths differ; where lengths are known, before the first
            piece comes.
    """
    single = isinstance(texts, str)
    many = {
        "texts": [texts] if single else texts,
        "ids": [ids] if isinstance(ids, str) else ids,
        "metadata": [metadata] if single and isinstance(metadata, Mapping) else metadata,
        "embeddings": [vectors] if single and _flat(vectors) else vectors,
    }
    shared = many["metadata"] if isinstance(many["metadata"], Mapping) else None
    if shared is not None:
        many["metadata"] = None
    for name, value in many.items():
        if isinstance(value, str | bytes | Mapping) or not (value is None or isinstance(value, Iterable)):
            raise StoreRejected(f"{name} is a {type(value).__name__}", fix="give a list, one entry per text")
    if many["texts"] is None:
        raise StoreRejected("there are no texts", fix="give a text or a list of texts")
    _check_lengths(many)
    rows = enumerate(_rows(many))
    while piece := list(itertools.islice(rows, SLICE)):
        yield [_item(number, row, shared) for number, row in piece]


def _flat(vectors: object) -> bool:
    """True for one vector, False for a list of them."""
    return isinstance(vectors, Sequence) and bool(vectors) and isinstance(vectors[0], int | float)


def _check_lengths(many: Mapping[str, Any]) -> None:
    known = {name: len(value) for name, value in many.items() if isinstance(value, Sized)}
    if len(set(known.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in known.items())
        raise StoreRejected(f"the numbers differ: {counted}", fix="give one entry per text")


def _rows(many: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """One tuple per text; an argument left out gives None for each."""
    given = {name: iter(value) for name, value in many.items() if value is not None}
    absent = object()
    for row in itertools.zip_longest(*given.values(), fillvalue=absent):
        if any(one is absent for one in row):
            raise StoreRejected(
                "the numbers of texts, ids, metadata and embeddings differ", fix="give one each"
            )
        named = dict(zip(given, row, strict=True))
        yield tuple(named.get(name) for name in many)


def _item(number: int, row: tuple[Any, ...], shared: Mapping[str, Any] | None) -> Item:
    text, ident, metadata, vector = row
    return Item(
        number=number,
        text=text_of(text, number),
        id=str(uuid4()) if ident is None else ident,
        metadata=metadata if shared is None else shared,
        vector=vector,
    )


def count_of(k: object) -> int:
    """How many results are wanted; templates of YAML may give the number as text.

    Raises:
        SearchError: it is no whole number of at least 1.
    """
    number = int(k) if isinstance(k, str) and k.strip().isdecimal() else k
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise SearchError(f"k is {k!r}", fix="give a whole number of at least 1")
    return number
