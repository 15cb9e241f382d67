"""From a PBI to its context: one search for each section, then an answer lifted from what is likely to matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pipeline.documents import Kind
from pipeline.enrichment.context import (
    Duplicate,
    EnrichedContext,
    PastDecision,
    SimilarWork,
    TechnicalDoc,
)
from pipeline.enrichment.degradation import CACHED
from pipeline.enrichment.extraction import (
    Citations,
    best_passages,
    constraints_of,
    decision_of,
    effort_of,
    effort_of_similar,
    learnings,
    rationale_of,
    status_of_decision,
)
from pipeline.enrichment.found import (
    CANDIDATES,
    DocumentText,
    DocumentTexts,
    FoundDocument,
    is_duplicate,
    likely,
)
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
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
        itself: Sequence[UUID] = ()
        with suppress(StoreUnavailable):  # those that only a store can tell are looked for again in the hits
            itself = self.texts.ids(request.own, own)
        wanted = SearchRequest(
            text=request.question,
            filter=replace(request.filter, exclude=tuple(sorted(itself)), projects=tuple(projects or ())),
            explain=True,
            feedback_key=key_of(request.question, request.id, project),
        )
        most = {kind: request.numbers.get(section, self.items) for kind, section in SECTIONS.items()}
        read = {
            Kind.WORK: max(most[Kind.WORK], MOST_DUPLICATE_RANK),
            Kind.DECISION: most[Kind.DECISION] + SPARE_DECISIONS,
            Kind.REFERENCE: most[Kind.REFERENCE],
        }
        answers = {kind: SearchResults() for kind in SECTIONS}
        for kind in (kind for kind in SECTIONS if most[kind] and (projects is None or projects)):
            of_kind = replace(wanted.filter, kinds=(kind,))
            found = self.search(replace(wanted, k=max(CANDIDATES, read[kind]), filter=of_kind))
            # Left out before the likest is compared with the others: of a cache it may be the PBI itself.
            hits = [
                hit
                for hit in found.hits
                if str(hit.document.metadata.get("pbi_id") or "") not in request.own
                or (own and hit.document.project_id not in (None, *own))
            ]
            answers[kind] = replace(found, hits=hits)
        question = stems(request.question)
        best = {kind: likely(found, kind, question)[: read[kind]] for kind, found in answers.items()}
        level = max(found.degradation_level for found in answers.values())
        texts: Mapping[UUID, DocumentText] = {}
        try:
            texts = self.texts.of(
                {one.hit.document.id for ones in best.values() for one in ones}, wanted.filter
            )
        except StoreUnavailable:
            level = max(level, CACHED)  # the hits came from a cache: their own chunks have to do
        documents = {
            kind: [FoundDocument(one, texts.get(one.hit.document.id), question) for one in ones]
            for kind, ones in best.items()
        }
        partial = next((str(found.partial) for found in answers.values() if found.partial), "")
        made = _Answer(request, self.now(), answers[Kind.WORK].model).made(documents, most, level)
        return replace(made, partial=partial)


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
        docs = [(one, doc) for one in found[Kind.REFERENCE] if (doc := self._doc(one)).relevant_sections]
        duplicates = [
            Duplicate(
                ref=one.external_id,
                title=one.title,
                similarity=one.similarity,
                link=one.link,
                document_id=str(one.document.id),
                status=one.status,
                duplicate_of=duplicate_of(one.document),
            )
            for one in close[:MOST_DUPLICATE_RANK]
            if is_duplicate(one.likely, self.model, self.request.title)
        ]
        risks = risks_of(work, self.cited)
        suggestions = suggested(self.request, close, past, docs, duplicates, risks, self.cited)
        return EnrichedContext(
            similar_work=similar,
            past_decisions=[decision for _, decision in past],
            technical_docs=[doc for _, doc in docs],
            suggestions=suggestions,
            risk_hints=[hint for _, hint in risks],
            likely_duplicates=duplicates,
            effort_of_similar=effort_of_similar([effort_of(one.document) for one in close if one.done]),
            citations=self.cited.listed,
            degradation_level=level,
        )

    def _work(self, found: FoundDocument) -> SimilarWork:
        lifted = learnings(found)
        effort = effort_of(found.document) if found.done else None
        return SimilarWork(
            **self._item(found),
            citations=self.cited.cite(found, *lifted),
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
        drafts = []
        for place, one in enumerate(found):
            said, why, binds = decision_of(one), rationale_of(one), constraints_of(one)
            draft = PastDecision(
                decision=" ".join(s.text for s in said),
                rationale=" ".join(s.text for s in why) or None,
                constraints=tuple(s.text for s in binds),
                status=status_of_decision(one),
                superseded_by=one.told("superseded_by"),
                assigned_architect=one.told("deciders"),
                date=one.told("decided_at"),
                **self._item(one),
            )
            ended = draft.ended
            drafts.append((place + (ENDED_LOSES if ended else 0), ended, one, draft, said))
        kept = sorted(sorted(drafts, key=lambda draft: draft[0])[:most], key=lambda draft: draft[1])
        return [
            (one, replace(draft, citations=self.cited.cite(one, *said))) for _, _, one, draft, said in kept
        ]

    def _doc(self, found: FoundDocument) -> TechnicalDoc:
        best = best_passages(found, most=SECTIONS_PER_DOCUMENT)
        return TechnicalDoc(
            **self._item(found),
            citations=self.cited.cite(found, *(b.sentence for b in best)),
            relevant_sections=tuple(b.shown for b in best),
        )

    def _item(self, found: FoundDocument) -> dict[str, Any]:
        document = found.document
        at = document.updated_at or document.created_at
        # The words of the item that the document shares, those of both titles first.
        shared = shared_words(
            self.request.title,
            self.request.description,
            found.title,
            found.hit.chunk.content,
            among=found.question,
        )
        words = ", ".join(f"“{word}”" for word in shared[:SHARED_WORDS])
        return {
            "ref": found.external_id,
            "title": found.title,
            "link": found.link,
            "document_id": str(document.id),
            "source": document.source,
            "source_type": document.source_type.value,
            "updated_at": at.date().isoformat() if at else None,
            "age_days": max(0, (self.now - at).days) if at else None,
            "similarity": found.similarity,
            "why": f"both speak of {words}" if words else "alike in meaning",
        }
