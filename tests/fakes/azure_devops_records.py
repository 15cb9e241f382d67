"""What a pretended Azure DevOps Boards keeps: projects, items with their revisions, links and comments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One end of a link, or a file or address that hangs on an item."""

    rel: str
    target: int | str
    """Another item's id, or an address."""
    attributes: Mapping[str, Any]


@dataclass(kw_only=True)
class Comment:
    id: int
    text: str
    format: str
    author: str
    created: datetime
    modified: datetime
    version: int = 1
    deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class Revision:
    """An item as one change left it."""

    item: Item
    rev: int
    watermark: int
    at: datetime
    fields: Mapping[str, Any]
    """By reference name; empty ones are absent."""
    relations: tuple[Relation, ...]
    formats: Mapping[str, str]
    """Which long-text fields hold Markdown."""

    @property
    def project(self) -> str:
        return str(self.fields["System.TeamProject"])


@dataclass(kw_only=True, eq=False)
class Item:
    id: int
    revisions: list[Revision] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    deleted: bool = False
    destroyed: bool = False
    forbidden: bool = False
    listed: bool = True
    """False: a forbidden item that neither queries nor feeds show."""

    @property
    def now(self) -> Revision:
        return self.revisions[-1]

    @property
    def living(self) -> bool:
        return not (self.deleted or self.destroyed)

    def __repr__(self) -> str:
        return f"Item({self.id})"


@dataclass(kw_only=True)
class Project:
    name: str
    id: str
    number: int
    types: list[str]
    areas: set[str]
    iterations: set[str]
    hidden: bool = False
