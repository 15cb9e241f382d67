"""The things a fake Confluence holds: spaces and contents."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

Restriction = tuple[str, str]
"""`("user", "ann")` or `("group", "staff")`."""


@dataclass
class Space:
    """A space; an invisible one does not exist for the account under test."""

    id: str
    key: str
    name: str
    archived: bool = False
    visible: bool = True


@dataclass(kw_only=True)
class Content:
    """A page, blog post, comment or attachment in its newest version."""

    id: str
    kind: str
    """`page`, `blogpost`, `comment` or `attachment`."""
    title: str
    space: str
    body: str = ""
    parent: str | None = None
    """The page above a page, the comment above a reply."""
    container: str | None = None
    """The page of a comment or an attachment."""
    status: str = "current"
    labels: list[str] = field(default_factory=list)
    restrictions: list[Restriction] = field(default_factory=list)
    """Who may read; empty: everybody who sees what is above."""
    creator: str
    author: str
    created: datetime
    version: int = 1
    when: datetime
    """Time of the newest version; what CQL calls lastmodified."""
    location: str = ""
    """Comments: `footer`, `inline` or `resolved`."""
    data: bytes = b""
    media_type: str = ""


def number(content_id: str) -> int:
    """`att123` and `123` as a number, for sorting."""
    return int(content_id.removeprefix("att"))
