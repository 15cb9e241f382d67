"""Records of stored documents and chunks, and the difference between two sets of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors

Mode = Literal["hybrid", "vector", "keyword"]


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """A document as it is indexed and as a hit shows it."""

    id: UUID
    version: int
    title: str
    source_type: SourceType
    kind: Kind
    source: str = ""
    """The configured source's name."""
    url: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    project_id: UUID | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A document's complete new set of chunks."""

    document: StoredDocument
    chunks: Sequence[Chunk]
    vectors: Vectors
    """Shape (len(chunks), dimensions), rows of length 1."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """What `replace` did to one document."""

    written: int
    kept: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class Filter:
    """All conditions hold at once; an empty one asks nothing. Applied before ranking, in both arms."""

    source_types: tuple[SourceType, ...] = ()
    kinds: tuple[Kind, ...] = ()
    tags: tuple[str, ...] = ()
    """The document has every one of these."""
    since: datetime | None = None
    until: datetime | None = None
    """On `updated_at`, else `created_at`; `until` is exclusive."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    projects: tuple[UUID, ...] = ()
    """The document is of one of these."""
    exclude: tuple[UUID, ...] = ()
    """Documents left out, such as the query's own."""
    sources: tuple[str, ...] = ()
    """Names of configured sources; the document comes from one of them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Metadata as a person writes it: the value in words, be it a text, a number or one of a list."""
    only: tuple[UUID, ...] = ()
    """No other documents than these."""
    security_levels: tuple[str, ...] = ()
    """The document's is one of these: what the caller may see."""


def diff(old: Mapping[int, str], new: Sequence[Chunk]) -> tuple[list[int], list[int], list[int]]:
    """(kept, written, removed) ordinals when chunks with hashes `old` (by ordinal) become `new`."""
    kept = [c.ord for c in new if old.get(c.ord) == c.hash]
    same = set(kept)
    written = [c.ord for c in new if c.ord not in same]
    removed = [o for o in old if o not in same]
    return kept, written, removed
