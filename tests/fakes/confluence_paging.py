"""How a fake Confluence cuts lists: silent caps, offsets into a list that moves, opaque cursors, next links."""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from tests.fakes.server import Seen

Item = TypeVar("Item")

_MARK = b"\xfb\xef\xff"
"""Base64 of it is `++//`, so that every cursor has the letters that careless encoding spoils."""


class BadPaging(ValueError):
    """A limit, start or cursor the service refuses."""


@dataclass(frozen=True, kw_only=True)
class Slice(Generic[Item]):
    """The rows of one answer."""

    items: list[Item]
    start: int
    limit: int
    """As the answer states it: what was asked for, or the cap."""
    total: int
    capped: bool
    """Less was given per answer than was asked for."""
    more: bool
    last_key: list[Any] | None = None


def cap_of(expand: str) -> int:
    """The most rows an answer holds, by the dearest thing to expand."""
    paths = [path.strip() for path in expand.split(",") if path.strip()]
    if any("export_view" in path or "styled_view" in path for path in paths):
        return 25
    if any(part == "body" for path in paths for part in path.split(".")):
        return 50
    return 200 if paths else 1000


def count_of(query: Mapping[str, Sequence[str]], name: str, default: int, least: int) -> int:
    """A number of the query.

    Raises:
        BadPaging: no number, or too small.
    """
    text = query.get(name, [str(default)])[0]
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise BadPaging(f"'{text}' is no valid {name}")
    return int(text)


def by_offset(rows: Sequence[Item], *, start: int, limit: int, cap: int) -> Slice[Item]:
    """Rows of the list as it is at this moment."""
    given = min(limit, cap)
    found = list(rows[start : start + given])
    more = start + len(found) < len(rows)
    return Slice(items=found, start=start, limit=given, total=len(rows), capped=limit > cap, more=more)


def by_cursor(
    rows: Sequence[Item],
    keys: Sequence[list[Any]],
    *,
    after: list[Any] | None,
    start: int,
    limit: int,
    cap: int,
) -> Slice[Item]:
    """Rows behind a key, whatever happened to the list since."""
    given = min(limit, cap)
    begin = 0 if after is None else bisect_right(keys, after)
    found = list(rows[begin : begin + given])
    more = begin + len(found) < len(rows)
    last = keys[begin + len(found) - 1] if found else after
    return Slice(
        items=found,
        start=start,
        limit=given,
        total=len(rows),
        capped=limit > cap,
        more=more,
        last_key=last,
    )


def write_cursor(content: Mapping[str, Any]) -> str:
    """Opaque, and with `+`, `/` and `=` in it."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return base64.b64encode(_MARK + text + b" " * ((1 - len(text)) % 3)).decode()


def read_cursor(text: str) -> dict[str, Any]:
    """What `write_cursor` wrote.

    Raises:
        BadPaging: it is not exactly what was given out (encoded twice, `+` became a blank, cut off).
    """
    try:
        raw = base64.b64decode(text, validate=True)
        found = json.loads(raw.removeprefix(_MARK))
    except ValueError as error:
        raise BadPaging("the cursor is invalid") from error
    if not raw.startswith(_MARK) or not isinstance(found, dict):
        raise BadPaging("the cursor is invalid")
    return found


def link(path: str, query: Mapping[str, Sequence[str]], drop: Sequence[str], **add: str | int) -> str:
    """The same query with other paging parameters."""
    kept = [(name, value) for name, values in query.items() if name not in drop for value in values]
    return f"{path}?{urlencode([*add.items(), *kept])}"


def envelope(seen: Seen, cut: Slice[Any], *, base: str, context: str, next_link: str = "") -> dict[str, Any]:
    """What surrounds the results of a v1 list; `base` stands here only."""
    path = seen.target.removeprefix(context)
    links = {"base": base, "context": context, "self": f"{base}{path}"}
    if next_link:
        links["next"] = next_link
    return {"start": cut.start, "limit": cut.limit, "size": len(cut.items), "_links": links}


def offset_link(seen: Seen, cut: Slice[Any], *, context: str, asked: int, undercount: bool) -> str:
    """The `next` of a list by offset, without the context path; empty at the end."""
    if not cut.more:
        return ""
    short = undercount and cut.capped
    end = cut.start + (len(cut.items) // 2 if short else len(cut.items))
    limit = asked if short else cut.limit
    return link(seen.path.removeprefix(context), seen.query, ("start", "limit"), limit=limit, start=end)
