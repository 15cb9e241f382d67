"""What Step 4 gets: past work, decisions and passages for a PBI, each with the place it was taken from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.documents import Json
from pipeline.enrichment.degradation import DISABLED

NO_LINK = "#"
"""Stands for a document that has no address."""

SHAPE = 5
"""Counts up when `EnrichedContext.to_json` changes, so that answers kept from before are made anew."""

UNKNOWN = "unknown"
"""Status of a decision of which neither source nor text tells one."""
IN_FORCE = frozenset({"accepted", "implementing", "implemented"})
ENDED = frozenset({"superseded", "rejected", "deprecated"})


@dataclass(frozen=True, kw_only=True)
class AnswerItem:
    """What every entry tells of its document."""

    ref: str
    """The id its source knows it by: a PBI's id, a work item's number, a path."""
    title: str
    """Of the document, on one line."""
    link: str
    """Its address; `#` if it has none."""
    document_id: str
    """The id it is stored under."""
    source: str
    """Name of the configured source."""
    source_type: str
    """What kind of source that is, such as `pbi_json` or `confluence`."""
    updated_at: str | None
    """ISO day of the last change."""
    age_days: int | None
    """Days since then."""
    citations: tuple[int, ...] = ()
    """Numbers of `citations`, one for each sentence or section in order."""
    similarity: int = 0
    """0 to 100, calibrated: of pairs at 80 four of five are about the same or related work."""
    why: str = ""
    """Why it is shown, in a few words; empty if nothing is known beside the similarity."""


@dataclass(frozen=True, kw_only=True)
class SimilarWork(AnswerItem):
    """An item of the backlog that is much like this one."""

    similarity_by: str
    """`meaning` (vectors were compared) or, without an embedder, `words`."""
    learnings: tuple[str, ...] = ()
    """Sentences on what was done and what came of it, each cited."""
    relevant_sections: tuple[str, ...] = ()
    """The sentence of the item that is most like this one, cited after `learnings`; none if the title alone is."""
    status: str | None = None
    """Its state, as the source calls it."""
    outcome: str | None = None
    """Its resolution, in a word or two, where the source has such a field."""
    abandoned: bool = False
    """It was given up: removed, rejected, not to be fixed."""
    duplicate_of: str | None = None
    """`ref` of the item that it was closed as a duplicate of."""
    effort: str | None = None
    """What it took, such as `took 21 points, estimated 13; 12 days`, where the source tells."""


@dataclass(frozen=True, kw_only=True)
class PastDecision(AnswerItem):
    """A decision that may bind this PBI."""

    decision: str
    """Its first sentences; of one that was rejected, why it was."""
    rationale: str | None = None
    """Why it was decided so, where the record says."""
    constraints: tuple[str, ...] = ()
    """What follows from it for later work, where the record says."""
    assigned_architect: str | None = None
    """Who decided, separated by commas."""
    date: str | None = None
    """ISO day of the decision, when the source tells."""
    status: str = UNKNOWN
    """One of proposed, accepted, implementing, implemented, rejected, deprecated, superseded and unknown."""
    superseded_by: str | None = None
    """What took its place, as the record names it."""

    @property
    def in_force(self) -> bool:
        """Known to bind: what is unknown or only proposed does not."""
        return self.status in IN_FORCE and not self.superseded_by

    @property
    def ended(self) -> bool:
        """Known to bind no longer, or never to have bound."""
        return self.status in ENDED or bool(self.superseded_by)


@dataclass(frozen=True, kw_only=True)
class TechnicalDoc(AnswerItem):
    """A document with the passages that matter for this PBI."""

    relevant_sections: tuple[str, ...] = ()
    """Heading and text of each passage, each cited."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Something a product owner may do, with the passage that speaks for it."""

    text: str
    """The same as in `suggestions`."""
    kind: str
    """One of acceptance_criterion, decision, duplicate, document, risk and notice."""
    ref: str | None = None
    """`ref` of the document that it is about; none for a notice."""
    citations: tuple[int, ...] = ()
    """Numbers of `citations`; none for a notice."""


@dataclass(frozen=True, kw_only=True)
class RiskHint:
    """Something that went wrong with similar work."""

    type: str
    """One of reopened, abandoned, overran, rejected and followed."""
    severity: str
    """HIGH, MEDIUM or LOW."""
    message: str
    """A sentence for a product owner."""
    citation: int
    """Number of the citation that shows it."""


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """An item that may be the same as this PBI."""

    ref: str
    """The id its source knows it by."""
    title: str
    """Of the item, on one line."""
    similarity: int
    """0 to 100, as in `similar_work`."""
    link: str
    """Its address; `#` if it has none."""
    document_id: str
    """The id it is stored under."""
    status: str | None = None
    """Its state, as the source calls it."""
    duplicate_of: str | None = None
    """`ref` of the item that it was closed as a duplicate of."""


@dataclass(frozen=True, kw_only=True)
class SimilarEffort:
    """What similar finished work took."""

    text: str
    """For a person: `five like it: median 9 days (n = 5)`."""
    n: int
    """So many items tell their effort."""
    median_days: float | None = None
    """From start to end, where at least one tells."""
    median_points: float | None = None
    """Story points that were used, where at least one tells."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Where a sentence was taken from."""

    n: int
    """Its number, from 1."""
    ref: str
    """The id that the source knows the document by."""
    title: str
    """Of the document, on one line."""
    link: str
    """Address of the document; `#` if it has none."""
    document_id: str
    """The id it is stored under."""
    chunk: str
    """`document_id:ord`."""
    source_type: str
    """What kind of source it comes from."""
    quoted: str
    """At most 200 characters, verbatim but for white space, links and emphasis; a cut is marked with an ellipsis."""


@dataclass(frozen=True, kw_only=True)
class EnrichedContext:
    """The answer for one PBI."""

    similar_work: Sequence[SimilarWork] = ()
    """Items of the backlog like this one, best first."""
    past_decisions: Sequence[PastDecision] = ()
    """Decisions that bear on it, best first."""
    technical_docs: Sequence[TechnicalDoc] = ()
    """Documents with passages that matter for it, best first."""
    suggestions: Sequence[Suggestion] = ()
    """What a product owner may do; as JSON the texts alone, with the rest in `suggestion_details`."""
    risk_hints: Sequence[RiskHint] = ()
    """What went wrong with similar work; usually none."""
    likely_duplicates: Sequence[Duplicate] = ()
    """Items that may be the same as this one."""
    effort_of_similar: SimilarEffort | None = None
    """What similar finished work took, where the sources tell."""
    citations: Sequence[Citation] = ()
    """The sources, by number."""
    degradation_level: int = 0
    """0 is everything, 4 nothing could be looked up, 5 switched off."""
    partial: str = ""
    """While documents are loaded, how many are found by words alone; empty if all are found by meaning, too."""
    project: str = ""
    """The project that was searched for it."""

    @property
    def is_empty(self) -> bool:
        """No document was found."""
        return not (self.similar_work or self.past_decisions or self.technical_docs)

    def to_json(self) -> Json:
        """The context of an enriched PBI, as docs/step4.schema.json has it.

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
    """The answer when nothing can be searched (4), or nothing shall be (5): no findings, and a word why."""
    if level >= DISABLED:
        return EnrichedContext(degradation_level=level)
    notice = Suggestion(
        kind="notice",
        text="Past work could not be looked up just now: before you plan this item, search the backlog for similar"
        " items and ask which decisions bind it.",
    )
    return EnrichedContext(suggestions=(notice,), degradation_level=level)
