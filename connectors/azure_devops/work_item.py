"""One work item as the service gives it, and how its values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from connectors.documents.values import parse_time, scalar_text

OPEN_END = 9999
"""The year of a date that stands for "not yet"."""

_MAIL = re.compile(r"\s*<[^<>]*>\s*$")
_TARGET = re.compile(r"/(\d{1,12})/?$")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A link, file or address that hangs on an item."""

    kind: str
    """Such as `System.LinkTypes.Related` or `AttachedFile`."""
    url: str
    attributes: Mapping[str, Any]

    @property
    def target(self) -> int | None:
        """The other item's id: the last part of the address, if the link leads to an item at all."""
        match = (
            _TARGET.search(self.url)
            if self.kind.startswith(("System.LinkTypes.", "Microsoft.VSTS."))
            else None
        )
        return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class Comment:
    """One word of the discussion."""

    author: str
    at: datetime | None
    text: str
    markdown: bool


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """Empty fields are absent; dates are text, persons objects."""

    id: int
    rev: int
    fields: Mapping[str, Any]
    relations: Sequence[Relation] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    """`markdown` for the long fields that hold Markdown; the others hold HTML."""
    page: str = ""
    """The address for people, if it was given."""

    def text(self, name: str) -> str:
        """A field as text: a person's name, a number, a date as given; empty if there is none."""
        value = self.fields.get(name)
        return person(value) if isinstance(value, Mapping) else scalar_text(value)

    def who(self, name: str) -> str:
        """The name of the person in a field."""
        return person(self.fields.get(name))

    def moment(self, name: str) -> datetime | None:
        """A field's point in time; None for none, and for the end of days."""
        found = parse_time(self.fields.get(name))
        return None if found is None or found.year >= OPEN_END else found

    @property
    def project(self) -> str:
        """Its name."""
        return self.text("System.TeamProject")

    @property
    def type(self) -> str:
        """Such as `User Story`."""
        return self.text("System.WorkItemType")

    @property
    def title(self) -> str:
        """Never empty."""
        return " ".join(self.text("System.Title").split()) or f"{self.type or 'Work item'} {self.id}"

    @property
    def tags(self) -> tuple[str, ...]:
        """One string with semicolons over there."""
        return tuple(dict.fromkeys(tag.strip() for tag in self.text("System.Tags").split(";") if tag.strip()))

    @property
    def comment_count(self) -> int:
        """Without the deleted ones."""
        value = self.fields.get("System.CommentCount")
        return value if isinstance(value, int) else 0


def person(value: Any) -> str:
    """The name out of an identity: an object here, `Name <mail>` in the feed."""
    if isinstance(value, Mapping):
        return scalar_text(value.get("displayName")) or scalar_text(value.get("uniqueName"))
    return _MAIL.sub("", scalar_text(value))
