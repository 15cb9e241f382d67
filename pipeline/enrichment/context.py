"""What Step 4 gets: past work, decisions and passages for a PBI, each with the place it was taken from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from pipeline.documents import Json

STATIC, DISABLED = 4, 5
"""Degradation levels at which nothing is searched."""

EXTRACT = "extract"
"""Names who words an answer in the words of its sources."""

NO_LINK = "#"
"""Stands for a document that has no address."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """What every entry tells of its document."""

    ref: str
    """The id its source knows it by: a PBI's id, a work item's number, a path."""
    title: str
    link: str
    document_id: str
    source: str
    source_type: str
    updated_at: str | None
    """ISO day."""
    age_days: int | None
    citations: tuple[int, ...] = ()
    """Numbers of `citations`, one for each sentence or section in order."""


@dataclass(frozen=True, kw_only=True)
class SimilarWork(Item):
    """An item of the backlog that is much like this one."""

    similarity: int
    """0 to 100."""
    similarity_by: str
    """`meaning` (cosine of its best chunk) or, without an embedder, `words`."""
    learnings: tuple[str, ...] = ()
    status: str | None = None
    outcome: str | None = None
    """Its resolution, in a word or two, where the source has such a field."""
    abandoned: bool = False
    """It was given up: removed, rejected, not to be fixed."""


@dataclass(frozen=True, kw_only=True)
class PastDecision(Item):
    """A decision that may bind this PBI."""

    decision: str
    status: str | None = None
    decided_at: str | None = None
    """ISO day, when the source tells."""
    superseded_by: str | None = None

    @property
    def in_force(self) -> bool:
        """Not superseded, rejected or deprecated, as far as is known."""
        return not self.superseded_by and self.status not in ("superseded", "rejected", "deprecated")


@dataclass(frozen=True, kw_only=True)
class TechnicalDoc(Item):
    """A document with the passages that matter for this PBI."""

    relevant_sections: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Something a product owner may do, with the passage that speaks for it."""

    text: str
    kind: str
    """`acceptance_criterion`, `decision`, `duplicate` or `notice`."""
    citations: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """An item that may be the same as this PBI."""

    ref: str
    title: str
    similarity: int
    link: str
    document_id: str


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Where a sentence was taken from."""

    n: int
    ref: str
    title: str
    link: str
    document_id: str
    chunk: str
    """`document_id:ord`."""
    source_type: str
    quoted: str
    """At most 200 characters, verbatim but for white space; a cut is marked with an ellipsis."""


@dataclass(frozen=True, kw_only=True)
class EnrichedContext:
    """The answer for one PBI."""

    similar_work: Sequence[SimilarWork] = ()
    past_decisions: Sequence[PastDecision] = ()
    technical_docs: Sequence[TechnicalDoc] = ()
    suggestions: Sequence[Suggestion] = ()
    likely_duplicates: Sequence[Duplicate] = ()
    citations: Sequence[Citation] = ()
    degradation_level: int = 0
    generator: str = EXTRACT
    """Who worded it: a key of `pipeline.enrichment.wording.GENERATORS`."""

    def to_json(self) -> Json:
        """The context of an enriched PBI; `risk_flags` is there for the step that fills it."""
        return {
            "similar_work": [_plain(item) for item in self.similar_work],
            "past_decisions": [_plain(item) for item in self.past_decisions],
            "technical_docs": [_plain(item) for item in self.technical_docs],
            "risk_flags": [],
            "suggestions": [_plain(item) for item in self.suggestions],
            "likely_duplicates": [_plain(item) for item in self.likely_duplicates],
            "citations": [_plain(item) for item in self.citations],
            "degradation_level": self.degradation_level,
            "generator": self.generator,
        }


def _plain(value: Any) -> Json:
    pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: list(item) if isinstance(item, tuple) else item for name, item in pairs}


def static_context(level: int) -> EnrichedContext:
    """The answer when nothing can be searched (4), or nothing shall be (5): no findings, and a word why."""
    if level >= DISABLED:
        return EnrichedContext(degradation_level=level)
    notice = Suggestion(
        kind="notice",
        text="Past work could not be looked up just now: before you plan this item, search the backlog for similar"
        " items and ask which decisions bind it.",
    )
    return EnrichedContext(suggestions=(notice,), degradation_level=level)
