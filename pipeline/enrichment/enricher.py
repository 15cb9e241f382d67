"""From a PBI to its context: one search for each section, then an answer lifted from what is likely to matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import UUID

from pipeline.documents import Kind
from pipeline.enrichment.context import (
    NO_LINK,
    Duplicate,
    EnrichedContext,
    PastDecision,
    SimilarWork,
    TechnicalDoc,
)
from pipeline.enrichment.degradation import CACHED
from pipeline.enrichment.extraction import (
    constraints_of,
    decision_of,
    effort_of,
    effort_of_similar,
    learnings,
    rationale_of,
    status_of_decision,
)
from pipeline.enrichment.found import Citations, DocumentText, DocumentTexts, FoundDocument, best_passages
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
from pipeline.enrichment.similarity import CANDIDATES, Likely, is_duplicate, likely
from pipeline.enrichment.suggestions import risks_of, suggested
from pipeline.enrichment.text import shared_words, stems
from pipeline.errors import StoreUnavailable
from pipeline.search import SearchRequest, SearchResults
from pipeline.search.question import key_of
from pipeline.search.validity import duplicate_of

MOST_DUPLICATE_RANK = 5
"""Only so many of the likest items may be duplicates."""
SPARE_DECISIONS = 2
"""Decisions read beyond those shown, to take the place of such as no longer hold."""
SECTIONS_PER_DOCUMENT = 2
ENDED_LOSES = 2
"""Places in the order that a decision loses that no longer holds."""
SHARED_WORDS = 3
"""Named as the reason why a document is shown."""


class Enricher:
    """Makes the context of one PBI after the other; knows neither queue nor HTTP."""

    def __init__(
        self,
        search: Callable[[SearchRequest], SearchResults],
        texts: DocumentTexts,
        *,
        items: int = 3,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`items` is how many a section shows when a request says nothing else."""
        self.search = search
        self.texts = texts
        self.items = items
        self.now = now

    def enrich(
        self,
        request: EnrichmentRequest,
        *,
        projects: Sequence[UUID] | None = None,
        project: UUID | None = None,
        own: Collection[UUID] = (),
    ) -> EnrichedContext:
        """The context of a PBI out of these projects, without the PBI's own documents.

        `projects` None looks into all of the tenant's. Marks are those for the PBI of `project`. An item of its id is
        the PBI itself in the projects `own` alone, in any if there are none.

        Raises:
            LarderError: what `search` raises; `static_context` is the answer then.
        """
        wanted = SearchRequest(
            text=request.question,
            filter=replace(
                request.filter, exclude=tuple(self._own(request, own)), projects=tuple(projects or ())
            ),
            explain=True,
            feedback_key=key_of(request.question, request.id, project),
        )
        most = {kind: request.numbers.get(section, self.items) for kind, section in SECTIONS.items()}
        read = {
            Kind.WORK: max(most[Kind.WORK], MOST_DUPLICATE_RANK),
            Kind.DECISION: most[Kind.DECISION] + SPARE_DECISIONS,
            Kind.REFERENCE: most[Kind.REFERENCE],
        }
        answers = {
            kind: self._search(request, kind, wanted, own, read[kind])
            if most[kind] and (projects is None or projects)
            else SearchResults()
            for kind in SECTIONS
        }
        question = stems(request.question)
        best = {kind: likely(found, kind, question)[: read[kind]] for kind, found in answers.items()}
        texts, level = self._read(chain(*best.values()), answers.values())
        found = {
            kind: [FoundDocument.of(one, texts.get(one.hit.document.id), question) for one in ones]
            for kind, ones in best.items()
        }
        return _Answer(request, self.now(), answers[Kind.WORK].model).made(found, most, level)

    def _own(self, request: EnrichmentRequest, own: Collection[UUID]) -> Sequence[UUID]:
        """The documents that are the PBI itself; those that only a store can tell are looked for again in the hits."""
        with suppress(StoreUnavailable):
            return sorted(self.texts.ids(request.own, own))
        return ()

    def _search(
        self,
        request: EnrichmentRequest,
        kind: Kind,
        wanted: SearchRequest,
        own: Collection[UUID],
        most: int,
    ) -> SearchResults:
        found = self.search(
            replace(wanted, k=max(CANDIDATES, most), filter=replace(wanted.filter, kinds=(kind,)))
        )
        # Left out before the likest is compared with the others: of a cache it may be the PBI itself.
        hits = [
            hit
            for hit in found.hits
            if not request.is_own(hit.document.metadata.get("pbi_id"))
            or (own and hit.document.project_id not in (None, *own))
        ]
        return replace(found, hits=hits)

    def _read(
        self, best: Iterable[Likely], answers: Iterable[SearchResults]
    ) -> tuple[Mapping[UUID, DocumentText], int]:
        level = max(found.degradation_level for found in answers)
        try:
            return self.texts.of({one.hit.document.id for one in best}), level
        except StoreUnavailable:
            # The hits came from a cache: their own chunks have to do.
            return {}, max(level, CACHED)


class _Answer:
    """Writes the sections of one answer and collects what they cite."""

    def __init__(self, request: EnrichmentRequest, now: datetime, model: str) -> None:
        self.request = request
        self.now = now
        self.model = model
        self.cited = Citations()

    def made(
        self, found: Mapping[Kind, Sequence[FoundDocument]], most: Mapping[Kind, int], level: int
    ) -> EnrichedContext:
        """The context; citations are numbered in the order of its sections."""
        close = found[Kind.WORK]
        work = close[: most[Kind.WORK]]
        similar = [self._work(one) for one in work]
        past = self._decisions(found[Kind.DECISION], most[Kind.DECISION])
        docs = [(one, self._doc(one)) for one in found[Kind.REFERENCE]]
        docs = [(one, doc) for one, doc in docs if doc.relevant_sections]
        duplicates = [self._duplicate(one) for one in close[:MOST_DUPLICATE_RANK] if self._is_duplicate(one)]
        risks = risks_of(work, self.cited)
        suggestions = suggested(self.request, close, past, docs, duplicates, risks, self.cited)
        return EnrichedContext(
            similar_work=similar,
            past_decisions=[decision for _, decision in past],
            technical_docs=[doc for _, doc in docs],
            suggestions=suggestions,
            risk_hints=[hint for _, hint in risks],
            likely_duplicates=duplicates,
            effort_of_similar=effort_of_similar([effort_of(one) for one in close if one.done]),
            citations=self.cited.listed,
            degradation_level=level,
        )

    def _work(self, found: FoundDocument) -> SimilarWork:
        lifted = learnings(found)
        effort = effort_of(found) if found.done else None
        return SimilarWork(
            **self._item(found),
            citations=self.cited.all_of(found, lifted),
            similarity_by=found.likely.by,
            learnings=tuple(s.text for s in lifted),
            status=found.status,
            outcome=found.outcome,
            abandoned=found.abandoned,
            duplicate_of=duplicate_of(found.document),
            effort=effort.text if effort else None,
        )

    def _decisions(
        self, found: Sequence[FoundDocument], most: int
    ) -> list[tuple[FoundDocument, PastDecision]]:
        """Those that may hold first; one that holds no longer gives way to a little less fitting one."""
        drafts = [(one, self._decision(one)) for one in found]
        ranked = sorted(
            enumerate(drafts), key=lambda pair: pair[0] + (ENDED_LOSES if pair[1][1].ended else 0)
        )
        kept = sorted((draft for _, draft in ranked[:most]), key=lambda draft: draft[1].ended)
        return [
            (one, replace(draft, citations=self.cited.all_of(one, decision_of(one)))) for one, draft in kept
        ]

    def _decision(self, found: FoundDocument) -> PastDecision:
        return PastDecision(
            **self._item(found),
            decision=" ".join(s.text for s in decision_of(found)),
            rationale=" ".join(s.text for s in rationale_of(found)) or None,
            constraints=tuple(s.text for s in constraints_of(found)),
            assigned_architect=found.told("deciders"),
            date=found.told("decided_at"),
            status=status_of_decision(found),
            superseded_by=found.told("superseded_by"),
        )

    def _doc(self, found: FoundDocument) -> TechnicalDoc:
        best = best_passages(found, most=SECTIONS_PER_DOCUMENT)
        return TechnicalDoc(
            **self._item(found),
            citations=self.cited.all_of(found, (b.sentence for b in best)),
            relevant_sections=tuple(b.shown for b in best),
        )

    def _is_duplicate(self, found: FoundDocument) -> bool:
        return is_duplicate(found.likely, self.model, self.request.title)

    def _duplicate(self, found: FoundDocument) -> Duplicate:
        return Duplicate(
            ref=found.external_id,
            title=found.title,
            similarity=found.similarity,
            link=found.document.url or NO_LINK,
            document_id=str(found.document.id),
            status=found.status,
            duplicate_of=duplicate_of(found.document),
        )

    def _item(self, found: FoundDocument) -> dict[str, Any]:
        document = found.document
        at = document.updated_at or document.created_at
        return {
            "ref": found.external_id,
            "title": found.title,
            "link": document.url or NO_LINK,
            "document_id": str(document.id),
            "source": document.source,
            "source_type": document.source_type.value,
            "updated_at": at.date().isoformat() if at else None,
            "age_days": max(0, (self.now - at).days) if at else None,
            "similarity": found.similarity,
            "why": self._why(found),
        }

    def _why(self, found: FoundDocument) -> str:
        """The words of the item that the document shares, those of both titles first."""
        shared = shared_words(
            self.request.title,
            self.request.description,
            found.title,
            found.hit.chunk.content,
            among=found.question,
        )
        words = ", ".join(f"“{word}”" for word in shared[:SHARED_WORDS])
        return f"both speak of {words}" if words else "alike in meaning"
