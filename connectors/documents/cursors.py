"""Cursors as records: frozen dataclasses with a `selection`, read from the JSON that was stored and written as such."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pipeline.documents import Cursor, Json

Record = TypeVar("Record")


def read_cursor(kind: type[Record], stored: Cursor | None, selection: str) -> Record | None:
    """The record a stored cursor holds; None if there is none, it is broken, or it is of another selection.

    `selection` is a hash over the options that decide what is read: after a change of them a source starts over.
    """
    if not stored or stored.get("selection") != selection:
        return None
    try:
        found: Record = TypeAdapter(kind).validate_python(dict(stored))
    except ValidationError:
        return None
    return found


def cursor_json(record: Any) -> Json:
    """What `read_cursor` reads; fields with their default value are left out."""
    found: Json = TypeAdapter(type(record)).dump_python(record, mode="json", exclude_defaults=True)
    return found
