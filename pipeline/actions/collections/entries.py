"""Checking what callers want to put into a collection: names, texts, metadata, vectors."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pipeline.actions.collections import Entry
from pipeline.documents import Json
from pipeline.errors import StoreRejected
from pipeline.ledger import clean

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


def entry(*, id: object, text: object, embedding: object, metadata: object = None, number: int = 0) -> Entry:  # noqa: A002 (the word of the document schema)
    """A document for `CollectionStore.add`; `number` is its place among the caller's, for messages.

    Raises:
        StoreRejected: a part is of the wrong type, or the vector is empty or not finite.
    """
    return Entry(
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
