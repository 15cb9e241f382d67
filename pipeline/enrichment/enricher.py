"""From a PBI to its context: one search for each section, then an answer lifted from what was found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pipeline.documents import Kind
from pipeline.enrichment import decisions, suggestions
from pipeline.enrichment.citations import Citations
from pipeline.enrichment.context import (
    NO_LINK,
    UNKNOWN,
    Duplicate,
    EnrichedContext,
    PastDecision,
    SimilarWork,
    TechnicalDoc,
)
from pipeline.enrichment.found import Found
from pipeline.enrichment.learnings import is_abandoned, learnings, outcome_of, status_of
from pipeline.enrichment.passages import best_passages
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
from pipeline.enrichment.texts import DocumentText, Texts
from pipeline.errors import StoreUnavailable
from pipeline.retrieval import Hit, SearchRequest, SearchResults
from pipeline.words import stems

CACHED_ONLY = 2
"""Degradation level of an answer whose documents could not be read whole."""

DUPLICATE_THRESHOLDS: Mapping[str, float] = {
    # Best F1 on two open sets of duplicate work items; precision alone is .3 to .6, hence the top 5 only.
    "all-MiniLM-L6-v2": 0.77,
}
"""Model -> cosine from which an item may be the same; one that is not listed flags equal titles only."""

MOST_DUPLICATE_RANK = 5
SPARE = 4
"""Hits asked for beyond those shown: one may be the PBI itself, others a superseded decision."""
SECTIONS_PER_DOCUMENT = 2
SUPERSEDED_LOSES = 2
"""Places in the order that a decision loses that no longer holds."""


@dataclass(frozen=True, kw_only=True)
class EnrichmentOptions:
    """How much an answer holds when a request says nothing else."""

    items: int = 3
    """Per section; `rerank.topK` of the configuration."""
    duplicate_thresholds: Mapping[str, float] = field(default_factory=lambda: DUPLICATE_THRESHOLDS)


class Enricher:
    """Makes the context of one PBI after the other; knows neither queue nor HTTP."""

    def __init__(
        self,
        search: Callable[[SearchRequest], SearchResults],
        texts: Texts,
        options: EnrichmentOptions | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.search = search
        self.texts = texts
        self.options = options or EnrichmentOptions()
        self.now = now

    def enrich(
        self, request: EnrichmentRequest, *, exclude: Collection[UUID] = (), project_id: UUID | None = None
    ) -> EnrichedContext:
        """The context of a PBI, without the documents `exclude` and without the PBI's own.

        Raises:
            LarderError: what `search` raises; `static_context` is the answer then.
        """
        answers = {kind: self._search(request, kind, exclude, project_id) for kind in SECTIONS}
        level = max(answer.degradation_level for answer in answers.values())
        texts, level = self._read([hit for answer in answers.values() for hit in answer.hits], level)
        question = stems(request.question)
        found = {
            kind: [
                one
                for hit in answer.hits
                if (one := Found.of(hit, texts.get(hit.document.id), question)).relevant
                and not one.is_own(request)
            ]
            for kind, answer in answers.items()
        }
        return self._answer(request, found, answers[Kind.WORK].model, level)

    def _search(
        self,
        request: EnrichmentRequest,
        kind: Kind,
        exclude: Collection[UUID],
        project_id: UUID | None,
    ) -> SearchResults:
        wanted = self._number(request, kind)
        if not wanted:
            return SearchResults()
        return self.search(
            SearchRequest(
                text=request.question,
                k=max(wanted, MOST_DUPLICATE_RANK if kind is Kind.WORK else 0) + SPARE,
                filter=replace(
                    request.filter, kinds=(kind,), exclude=tuple(sorted(exclude)), project_id=project_id
                ),
                explain=True,
            )
        )

    def _number(self, request: EnrichmentRequest, kind: Kind) -> int:
        return request.numbers.get(SECTIONS[kind], self.options.items)

    def _read(self, hits: Sequence[Hit], level: int) -> tuple[Mapping[UUID, DocumentText], int]:
        try:
            return self.texts.of({hit.document.id for hit in hits}), level
        except StoreUnavailable:
            # The hits came from a cache: their own chunks have to do.
            return {}, max(level, CACHED_ONLY)

    def _answer(
        self, request: EnrichmentRequest, found: Mapping[Kind, Sequence[Found]], model: str, level: int
    ) -> EnrichedContext:
        cited = Citations()
        work = found[Kind.WORK][: self._number(request, Kind.WORK)]
        docs = found[Kind.REFERENCE][: self._number(request, Kind.REFERENCE)]
        similar = [self._work(one, cited) for one in work]
        past = self._decisions(found[Kind.DECISION], self._number(request, Kind.DECISION), cited)
        duplicates = self._duplicates(request, found[Kind.WORK][:MOST_DUPLICATE_RANK], model)
        return EnrichedContext(
            similar_work=similar,
            past_decisions=[decision for _, decision in past],
            technical_docs=[self._doc(one, cited) for one in docs],
            suggestions=[
                *suggestions.duplicates_to_check(found[Kind.WORK], duplicates, cited),
                *suggestions.decisions_to_respect(past, cited),
                *suggestions.missing_criteria(request, work, cited),
            ],
            likely_duplicates=duplicates,
            citations=cited.listed,
            degradation_level=level,
        )

    def _work(self, found: Found, cited: Citations) -> SimilarWork:
        lifted = learnings(found)
        return SimilarWork(
            **self._item(found),
            citations=cited.all_of(found, lifted),
            similarity_by=found.similarity_by,
            learnings=tuple(s.text for s in lifted),
            status=status_of(found),
            outcome=outcome_of(found),
            abandoned=is_abandoned(found),
        )

    def _decisions(
        self, found: Sequence[Found], most: int, cited: Citations
    ) -> list[tuple[Found, PastDecision]]:
        """Those in force first; one that is not gives way to a little less fitting one that is."""
        drafts = [(one, self._decision(one)) for one in found]
        ranked = sorted(
            enumerate(drafts), key=lambda pair: pair[0] + (0 if pair[1][1].in_force else SUPERSEDED_LOSES)
        )
        kept = [draft for _, draft in ranked[:most]]
        kept.sort(key=lambda draft: not draft[1].in_force)
        return [
            (one, replace(draft, citations=cited.all_of(one, decisions.decision_of(one))))
            for one, draft in kept
        ]

    def _decision(self, found: Found) -> PastDecision:
        return PastDecision(
            **self._item(found),
            decision=" ".join(s.text for s in decisions.decision_of(found)),
            status=decisions.status_of(found) or UNKNOWN,
            date=found.told("decided_at"),
            superseded_by=found.told("superseded_by"),
        )

    def _doc(self, found: Found, cited: Citations) -> TechnicalDoc:
        best = best_passages(found, most=SECTIONS_PER_DOCUMENT)
        return TechnicalDoc(
            **self._item(found),
            citations=cited.all_of(found, (b.sentence for b in best)),
            relevant_sections=tuple(b.shown for b in best),
        )

    def _duplicates(self, request: EnrichmentRequest, found: Sequence[Found], model: str) -> list[Duplicate]:
        least = self.options.duplicate_thresholds.get(model)
        return [
            Duplicate(
                ref=one.external_id,
                title=one.title,
                similarity=one.similarity,
                link=one.hit.document.url or NO_LINK,
                document_id=str(one.hit.document.id),
            )
            for one in found
            if (least is not None and one.cosine is not None and one.cosine >= least)
            or one.title.casefold() == request.title.casefold()
        ]

    def _item(self, found: Found) -> dict[str, Any]:
        document = found.hit.document
        at = document.updated_at or document.created_at
        return {
            "ref": found.external_id,
            "title": found.title,
            "link": document.url or NO_LINK,
            "document_id": str(document.id),
            "source": document.source,
            "source_type": document.source_type.value,
            "updated_at": at.date().isoformat() if at else None,
            "age_days": max(0, (self.now() - at).days) if at else None,
            "similarity": found.similarity,
        }
