"""One content as v1 shows it, read into a record: Item."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from connectors.documents.values import clean_text, parse_time
from pipeline.documents import Json

READ = "restrictions.read.restrictions.user,restrictions.read.restrictions.group"
WALK = ("version", "history", "ancestors", "metadata.labels", "space", *READ.split(","))
"""What the id walk shows of a page; all but the body."""
FULL = ("body.storage", "history.lastUpdated", *WALK)
COMMENT_WALK = ("version", "container", "extensions.resolution")
COMMENT_FULL = ("body.storage", "history", "ancestors", *COMMENT_WALK)
FILE = ("version", "history", "container", "extensions", "metadata")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A page, blog post, comment or attachment; what an answer did not hold is empty."""

    id: str
    kind: str
    status: str
    title: str
    space_key: str
    space_name: str
    version: int
    changed: datetime | None
    created: datetime | None
    author: str
    """Display name of who made it."""
    editor: str
    people: tuple[tuple[str, str], ...]
    """Ids of the persons in it, and their names."""
    ancestors: tuple[tuple[str, str], ...]
    """Ids and titles, outermost first; of a reply the comments above it."""
    labels: tuple[str, ...]
    container: str
    """Id of the page a comment or an attachment hangs on."""
    webui: str
    """Relative to the base."""
    raw: Json
    """The answer without the body."""
    body: str | None
    """Storage format; None if it was not asked for."""

    @property
    def row(self) -> str:
        """Names it in this version."""
        return f"{self.id}:{self.version}"

    @property
    def is_page(self) -> bool:
        """Page or blog post."""
        return self.kind in ("page", "blogpost")


def item_of(row: Json) -> Item:
    """Reads one result; nothing in it is relied on but its id."""
    version, history, space = (_object(row, name) for name in ("version", "history", "space"))
    by, creator = _object(version, "by"), _object(history, "createdBy")
    storage = _object(_object(row, "body"), "storage").get("value")
    number = version.get("number")
    return Item(
        id=_text(row, "id"),
        kind=_text(row, "type"),
        status=_text(row, "status") or "current",
        title=" ".join(_text(row, "title").split()),
        space_key=_text(space, "key"),
        space_name=_text(space, "name"),
        version=number if isinstance(number, int) else 0,
        changed=parse_time(version.get("when")),
        created=parse_time(history.get("createdDate")),
        author=_text(creator, "displayName") or _text(by, "displayName"),
        editor=_text(by, "displayName"),
        people=tuple(dict.fromkeys((*_names(creator), *_names(by)))),
        ancestors=tuple((_text(a, "id"), _text(a, "title")) for a in _objects(row.get("ancestors"))),
        labels=tuple(sorted({name for name in map(_label, _results(row, "metadata", "labels")) if name})),
        container=_text(_object(row, "container"), "id"),
        webui=_text(_object(row, "_links"), "webui"),
        raw={key: value for key, value in row.items() if key != "body"},
        body=storage if isinstance(storage, str) else None,
    )


def nested(row: Json, *names: str) -> Any:
    """The value at the end of nested objects; None if one of them is missing."""
    value: Any = row
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _results(row: Json, *names: str) -> list[Json]:
    return _objects(nested(row, *names, "results"))


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(row: Json, name: str) -> Json:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _text(row: Json, name: str) -> str:
    value = row.get(name)
    return clean_text(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _label(row: Json) -> str:
    name, prefix = _text(row, "name"), _text(row, "prefix")
    # `my:` labels are one person's favourites and say nothing about the page.
    return "" if prefix == "my" else name


def _names(user: Json) -> list[tuple[str, str]]:
    name = _text(user, "displayName")
    keys = (_text(user, key) for key in ("accountId", "userKey", "username"))
    return [(key, name) for key in keys if key and name]
