"""Foreign JSON and YAML values made safe for the store."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any

from pipeline.errors import DocumentRejected

MAX_DEPTH = 12
MAX_VALUES = 5000
"""Of one metadata value. A few lines of YAML can refer to each other until they mean billions of values."""


def parse_json(text: str, name: str) -> Any:
    """The value in `text`; `name` is the file for messages.

    Raises:
        DocumentRejected: it is no JSON; the message names file, line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        found = f"{name} is not valid JSON: {error.msg.removesuffix(' at')} at {place}"
        raise DocumentRejected(found, fix="write the file again, or remove it") from None
    except RecursionError:
        found = f"{name} is nested too deeply to be read as JSON"
        raise DocumentRejected(found, fix="flatten it, or exclude it") from None
    except ValueError:
        raise DocumentRejected(
            f"{name} holds a number with too many digits", fix="write it as text"
        ) from None


def clean_text(text: str) -> str:
    """`text` without NUL characters and half surrogate pairs, which PostgreSQL refuses."""
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_able(value: Any) -> Any:
    """`value` as plain JSON: dates as ISO text, sets as lists, no NaN; what is too deep or too much is cut."""
    return _plain(value, MAX_DEPTH, itertools.count())


def scalar_text(value: Any) -> str:
    """A single value as text, `true` and `false` in lower case; empty for None and for collections."""
    if value is None or isinstance(value, Mapping | list | tuple | set):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return clean_text(str(value)).strip()


def number_of(value: Any) -> float | None:
    """A number, or a text that is one; None for all else, true and false included. May be infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf


def measure(number: float | None, most: float) -> float | None:
    """`number` if it lies between 0 and `most`, a whole one without its `.0`; None if not."""
    if number is None or not 0 <= number <= most:
        return None
    return int(number) if number == int(number) else number


def _plain(value: Any, depth: int, seen: Iterator[int]) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        pairs = value.items() if depth else ()
        return {clean_text(str(k)): _plain(v, depth - 1, seen) for k, v in pairs if next(seen) < MAX_VALUES}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(item, depth - 1, seen) for item in (items if depth else ()) if next(seen) < MAX_VALUES]
    return clean_text(value if isinstance(value, str) else str(value))
