"""The answer of Step 4: past work, decisions and passages for a backlog item, with their citations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.documents import Json
from pipeline.enrichment.degradation import DISABLED

NO_LINK = "#"
"""Link of a document without an address."""

SHAPE = 5
"""Version of `EnrichedContext.to_json`; stored answers of another version are not reused."""

UNKNOWN = "unknown"
"""Status of a decision whose source and text name none."""
IN_FORCE = frozenset({"accepted", "implementing", "implemented"})
ENDED = frozenset({"superseded", "rejected", "deprecated"})


@dataclass(frozen=True, kw_only=True)
class AnswerItem:
    """An entry of the answer, with the facts about its document."""

    ref: str
    """Id in the source: a backlog item's id, a work item's number, a path."""
    title: str
    """Title of the document, on one line."""
    link: str
    """Address of the document; `#` if it has none."""
    document_id: str
    """Id of the stored document."""
    source: str
    """Name of the configured source."""
    source_type: str
    """Type of the source, such as `pbi_json` or `confluence`."""
    updated_at: str | None
    """ISO day of the last change."""
    age_days: int | None
    """Days since the last change."""
    citations: tuple[int, ...] = ()
    """Numbers of `citations`, one for each sentence or passage in order."""
    similarity: int = 0
    """0 to 100, calibrated: of pairs at 80 four of five are about the same or related work."""
    why: str = ""
    """Short reason for showing it; empty if there is none beside the similarity."""


@dataclass(frozen=True, kw_only=True)
class SimilarWork(AnswerItem):
    """A backlog item similar to this one."""

    similarity_by: str
    """`meaning` (vectors were compared) or, without an embedder, `words`."""
    learnings: tuple[str, ...] = ()
    """Sentences on the work and its outcome, each cited."""
    relevant_sections: tuple[str, ...] = ()
    """The sentence most similar to this item, cited after `learnings`; none if only the title is similar."""
    status: str | None = None
    """State of the item, as the source names it."""
    outcome: str | None = None
    """Resolution in a word or two, if the source has such a field."""
    abandoned: bool = False
    """Whether the work was given up: removed, rejected, not to be fixed."""
    duplicate_of: str | None = None
    """`ref` of the item that it was closed as a duplicate of."""
    effort: str | None = None
    """Effort, such as `took 21 points, estimated 13; 12 days`, if the source has it."""


@dataclass(frozen=True, kw_only=True)
class PastDecision(AnswerItem):
    """A decision that may bind this backlog item."""

    decision: str
    """First sentences of the decision; for a rejected one the reason."""
    rationale: str | None = None
    """Reasons for the decision, if the record has them."""
    constraints: tuple[str, ...] = ()
    """Constraints on later work, if the record has them."""
    assigned_architect: str | None = None
    """People who decided, separated by commas."""
    date: str | None = None
    """ISO day of the decision, if the source has it."""
    status: str = UNKNOWN
    """One of proposed, accepted, implementing, implemented, rejected, deprecated, superseded and unknown."""
    superseded_by: str | None = None
    """Successor of the decision, as the record names it."""

    @property
    def in_force(self) -> bool:
        """Whether the decision is known to bind; unknown and proposed ones are not."""
        return self.status in IN_FORCE and not self.superseded_by

    @property
    def ended(self) -> bool:
        """Whether the decision is known to bind no longer, or never to have bound."""
        return self.status in ENDED or bool(self.superseded_by)


@dataclass(frozen=True, kw_only=True)
class TechnicalDoc(AnswerItem):
    """A document with relevant passages for this backlog item."""

    relevant_sections: tuple[str, ...] = ()
    """Heading and text of each passage, each cited."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A suggestion for a product owner, with the passage that supports it."""

    text: str
    """Text as in `suggestions`."""
    kind: str
    """One of acceptance_criterion, decision, duplicate, document, risk and notice."""
    ref: str | None = None
    """`ref` of the document it is about; none for a notice."""
    citations: tuple[int, ...] = ()
    """Numbers of `citations`; none for a notice."""


@dataclass(frozen=True, kw_only=True)
class RiskHint:
    """A problem of similar work."""

    type: str
    """One of reopened, abandoned, overran, rejected and followed."""
    severity: str
    """HIGH, MEDIUM or LOW."""
    message: str
    """A sentence for a product owner."""
    citation: int
    """Number of the supporting citation."""


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """An item that may be the same as this backlog item."""

    ref: str
    """Id in the source."""
    title: str
    """Title of the item, on one line."""
    similarity: int
    """0 to 100, as in `similar_work`."""
    link: str
    """Address of the item; `#` if it has none."""
    document_id: str
    """Id of the stored document."""
    status: str | None = None
    """State of the item, as the source names it."""
    duplicate_of: str | None = None
    """`ref` of the item that it was closed as a duplicate of."""


@dataclass(frozen=True, kw_only=True)
class SimilarEffort:
    """Effort of similar finished work."""

    text: str
    """Text for people: `five like it: median 9 days (n = 5)`."""
    n: int
    """Number of items with a known effort."""
    median_days: float | None = None
    """Median of the days from start to end; None if too few items have them."""
    median_points: float | None = None
    """Median of the story points; None if too few items have them."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """The source of a quoted sentence."""

    n: int
    """Number of the citation, from 1."""
    ref: str
    """Id of the document in the source."""
    title: str
    """Title of the document, on one line."""
    link: str
    """Address of the document; `#` if it has none."""
    document_id: str
    """Id of the stored document."""
    chunk: str
    """`document_id:ord`."""
    source_type: str
    """Type of the source."""
    quoted: str
    """Quotation of up to 200 characters, verbatim but for white space, links and emphasis; an ellipsis marks cuts."""


@dataclass(frozen=True, kw_only=True)
class EnrichedContext:
    """The answer for one backlog item."""

    similar_work: Sequence[SimilarWork] = ()
    """Similar backlog items, best first."""
    past_decisions: Sequence[PastDecision] = ()
    """Relevant decisions, best first."""
    technical_docs: Sequence[TechnicalDoc] = ()
    """Documents with relevant passages, best first."""
    suggestions: Sequence[Suggestion] = ()
    """Suggestions for a product owner; in JSON the texts alone, with the rest in `suggestion_details`."""
    risk_hints: Sequence[RiskHint] = ()
    """Problems of similar work; usually none."""
    likely_duplicates: Sequence[Duplicate] = ()
    """Items that may be the same as this one."""
    effort_of_similar: SimilarEffort | None = None
    """Effort of similar finished work, if the sources have it."""
    citations: Sequence[Citation] = ()
    """Sources of the answer, by number."""
    degradation_level: int = 0
    """Degradation: 0 is everything, 4 nothing could be looked up, 5 switched off."""
    partial: str = ""
    """Number of documents without vectors while documents are loaded, as a text; empty if all have them."""
    project: str = ""
    """Project that was searched."""

    @property
    def is_empty(self) -> bool:
        """Whether no document was found."""
        return not (self.similar_work or self.past_decisions or self.technical_docs)

    def to_json(self) -> Json:
        """The context of an enriched backlog item, as in docs/step4.schema.json.

        `risk_flags` is there for the step that fills it; `decided_at` of a decision is its `date`.
        """
        plain = asdict(self, dict_factory=_listed)
        for decision in plain["past_decisions"]:
            decision["decided_at"] = decision["date"]
        return {
            **plain,
            "risk_flags": [],
            "suggestions": [one.text for one in self.suggestions],
            "suggestion_details": plain["suggestions"],
        }


def _listed(pairs: list[tuple[str, Any]]) -> Json:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}


def static_context(level: int) -> EnrichedContext:
    """The answer when nothing can be searched (4), or enrichment is switched off (5): no findings, and a notice why."""
    if level >= DISABLED:
        return EnrichedContext(degradation_level=level)
    notice = Suggestion(
        kind="notice",
        text="Past work could not be looked up just now: before you plan this item, search the backlog for similar"
        " items and ask which decisions bind it.",
    )
    return EnrichedContext(suggestions=(notice,), degradation_level=level)
