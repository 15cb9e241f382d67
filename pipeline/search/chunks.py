"""Records of stored documents and chunks, and the difference between two sets of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.languages import DEFAULT

Mode = Literal["hybrid", "vector", "keyword"]


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """What a store must know of a document, so that a foreign store needs none of our tables."""

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


@dataclass(frozen=True, kw_only=True)
class StoreQuery:
    """A question to a store: a vector, a text, or both."""

    text: str
    vector: Vectors | None = None
    """Shape (dimensions,); None leaves the vector arm out."""
    keywords: bool = True
    """False leaves the keyword arm out."""
    candidates: int = 100
    """Per arm."""
    filter: Filter = field(default_factory=Filter)
    top: int | None = None
    """Without keywords: no more than the best chunk of so many documents is wanted; a store may give more."""
    languages: tuple[str, ...] = (DEFAULT,)
    """In which the text's words are stemmed: those of the documents; of `pipeline.languages`."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A chunk found by either arm, scored by each arm that was asked."""

    document: StoredDocument
    chunk: Chunk
    similarity: float | None
    """Cosine similarity, -1 to 1; None if the vector arm was left out."""
    bm25: float | None
    """BM25 score, 0 and up; None if the keyword arm was left out."""

    @property
    def document_id(self) -> UUID:
        """The document's id."""
        return self.document.id

    @property
    def ord(self) -> int:
        """The chunk's number in its document."""
        return self.chunk.ord


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """How much is in stock."""

    documents: int
    chunks: int


def diff(old: Mapping[int, str], new: Sequence[Chunk]) -> tuple[list[int], list[int], list[int]]:
    """(kept, written, removed) ordinals when chunks with hashes `old` (by ordinal) become `new`."""
    kept = [c.ord for c in new if old.get(c.ord) == c.hash]
    same = set(kept)
    written = [c.ord for c in new if c.ord not in same]
    removed = [o for o in old if o not in same]
    return kept, written, removed
