"""What a file connector needs to know: SourceOptions and the rules that find decisions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from pipeline.documents import SourceType


@dataclass(frozen=True, kw_only=True)
class DecisionRules:
    """Which documents are decisions; one rule that holds is enough, an empty tuple switches a rule off."""

    types: tuple[str, ...] = ("adr", "decision", "decision-record", "architecture-decision-record", "rfc")
    """Values of the front matter keys `type` and `kind`; upper and lower case are the same."""
    paths: tuple[str, ...] = (
        "**/adr/**", "**/adrs/**", "**/*decisions/**", "**/*decision-record*/**", "**/rfcs/**", "**/*adr-[0-9]*",
    )  # fmt: skip
    """Globs over the path below the root; case does not matter, and blanks and `_` are the same as `-`.

    One that ends in `/**` names a folder: what lies in it needs a further sign of a record, such as a number in its
    name, a status or a heading. The folder may be the root itself.
    """
    tags: tuple[str, ...] = ("decision", "adr", "rfc")
    headings: tuple[str, ...] = ("Decision", "Status")
    """Headings that must all be there; those that MADR and Nygard ask for will do as well."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """One configured source that reads files."""

    name: str
    type: str
    """A key of `connectors.SOURCES`."""
    root: Path
    """The folder that `paths` and external ids start from; nothing outside of it is ever read."""
    paths: tuple[str, ...]
    """Globs below the root such as `./docs/**/*.md`; `**` is any number of folders, none included."""
    exclude: tuple[str, ...] = ()
    """Globs below the root; one without a slash holds in every folder."""
    closed: Path | None = None
    """A folder below the root that is never read, whatever the globs say: where passwords of ours lie."""
    frontmatter_fields: tuple[str, ...] = ("title", "tags", "category")
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Fixed metadata of every document; what a document says of itself goes first."""
    source_type: SourceType | None = None
    """Replaces the connector's own source type."""
    max_bytes: int = 10 * 1024 * 1024
    base_url: str = ""
    """Where the root can be browsed; without it a document's url is a file URI."""
    decisions: DecisionRules = field(default_factory=DecisionRules)

    @property
    def above(self) -> str:
        """The last folders of the root's own path, for rules that look at the names of folders."""
        return "/".join(Path(os.path.abspath(self.root)).parts[1:][-2:])  # noqa: PTH100 (keeps links as given)

    def url_of(self, relative: str) -> str:
        """The address of the file at `relative` (slashes, below the root)."""
        path = quote_from_bytes(os.fsencode(relative))
        start = self.base_url or Path(os.path.abspath(self.root)).as_uri()  # noqa: PTH100 (keeps links as given)
        return f"{start.rstrip('/')}/{path}"
