"""From a PBI to its context: one search for each section, then an answer lifted from what is likely to matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pipeline.documents import Kind
from pipeline.enrichment.context import (
    NO_LINK,
    Duplicate,
    EnrichedContext,
    PastDecision,
    SimilarEffort,
    SimilarWork,
    TechnicalDoc,
)
from pipeline.enrichment.extraction import (
    Effort,
    constraints_of,
    decision_of,
    decision_status_of,
    effort_of,
    effort_of_similar,
    is_abandoned,
    is_done,
    learnings,
    outcome_of,
    rationale_of,
    status_of,
)
from pipeline.enrichment.found import Citations, DocumentText, Found, Texts, best_passages
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
from pipeline.enrichment.similarity import CANDIDATES, Likely, is_duplicate, likely
from pipeline.enrichment.suggestions import risks_of, suggested
from pipeline.enrichment.text import WORD, stem, stems
from pipeline.errors import StoreUnavailable
from pipeline.search import SearchRequest, SearchResults
from pipeline.search.validity import duplicate_of

CACHED_ONLY = 2
"""Degradation level of an answer whose documents could not be read whole."""

MOST_DUPLICATE_RANK = 5
"""Only so many of the likest items may be duplicates."""
SPARE_DECISIONS = 2
"""Decisions read beyond those shown, to take the place of such as no longer hold."""
SECTIONS_PER_DOCUMENT = 2
ENDED_LOSES = 2
"""Places in the order that a decision loses that no longer holds."""
SHARED_WORDS = 3
"""Named as the reason why a document is shown."""


@dataclass(frozen=True, kw_only=True)
class EnrichmentOptions:
    """How much an answer holds when a request says nothing else."""

    items: int = 3
    """Per section; `rerank.topK` of the configuration."""


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What an answer is made of."""

    work: Sequence[Found]
    """Those shown and those that may be duplicates."""
    decisions: Sequence[Found]
    docs: Sequence[Found]
    model: str
    level: int
    cited: Citations = field(default_factory=Citations)


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
        self,
        request: EnrichmentRequest,
        *,
        exclude: Collection[UUID] = (),
        projects: Sequence[UUID] | None = None,
    ) -> EnrichedContext:
        """The context of a PBI out of these projects, without the documents `exclude` and without the PBI's own.

        `projects` None looks into all of the tenant's.

        Raises:
            LarderError: what `search` raises; `static_context` is the answer then.
        """
        left_out = {*exclude, *self._own(request)}
        answers = {kind: self._search(request, kind, left_out, projects) for kind in SECTIONS}
        question = stems(request.question)
        best = {
            kind: likely(answer, kind, question)[: self._most(request, kind)]
            for kind, answer in answers.items()
        }
        level = max(answer.degradation_level for answer in answers.values())
        texts, level = self._read([one for ones in best.values() for one in ones], level)
        found = {
            kind: [Found.of(one, texts.get(one.hit.document.id), question) for one in ones]
            for kind, ones in best.items()
        }
        chosen = _Chosen(
            work=found[Kind.WORK],
            decisions=found[Kind.DECISION],
            docs=found[Kind.REFERENCE],
            model=answers[Kind.WORK].model,
            level=level,
        )
        return self._answer(request, chosen)

    def _own(self, request: EnrichmentRequest) -> Sequence[UUID]:
        """The documents that are the PBI itself; those that only a store can tell are looked for again in the hits."""
        with suppress(StoreUnavailable):
            return self.texts.ids(request.own)
        return ()

    def _search(
        self,
        request: EnrichmentRequest,
        kind: Kind,
        exclude: Collection[UUID],
        projects: Sequence[UUID] | None,
    ) -> SearchResults:
        if not self._number(request, kind) or (projects is not None and not projects):
            return SearchResults()
        found = self.search(
            SearchRequest(
                text=request.question,
                k=max(CANDIDATES, self._most(request, kind)),
                filter=replace(
                    request.filter,
                    kinds=(kind,),
                    exclude=tuple(sorted(exclude)),
                    projects=tuple(projects or ()),
                ),
                explain=True,
                feedback_key=request.feedback_key,
            )
        )
        # Left out before the likest is compared with the others: of a cache it may be the PBI itself.
        hits = [hit for hit in found.hits if not request.is_own(hit.document.metadata.get("pbi_id"))]
        return replace(found, hits=hits)

    def _number(self, request: EnrichmentRequest, kind: Kind) -> int:
        return request.numbers.get(SECTIONS[kind], self.options.items)

    def _most(self, request: EnrichmentRequest, kind: Kind) -> int:
        """How many documents of a kind an answer may need."""
        number = self._number(request, kind)
        if kind is Kind.WORK:
            return max(number, MOST_DUPLICATE_RANK)
        return number + (SPARE_DECISIONS if kind is Kind.DECISION else 0)

    def _read(self, best: Sequence[Likely], level: int) -> tuple[Mapping[UUID, DocumentText], int]:
        try:
            return self.texts.of({one.hit.document.id for one in best}), level
        except StoreUnavailable:
            # The hits came from a cache: their own chunks have to do.
            return {}, max(level, CACHED_ONLY)

    def _answer(self, request: EnrichmentRequest, chosen: _Chosen) -> EnrichedContext:
        cited = chosen.cited
        work = chosen.work[: self._number(request, Kind.WORK)]
        docs = chosen.docs[: self._number(request, Kind.REFERENCE)]
        efforts = [effort_of(one.hit.document.metadata, one.hit.document.created_at) for one in chosen.work]
        similar = [
            self._work(one, effort, request, cited) for one, effort in zip(work, efforts, strict=False)
        ]
        past = self._decisions(request, chosen, self._number(request, Kind.DECISION))
        documents = [(one, self._doc(one, request, cited)) for one in docs]
        documents = [(one, doc) for one, doc in documents if doc.relevant_sections]
        duplicates = self._duplicates(request, chosen)
        risks = risks_of(work, efforts[: len(work)], cited)
        suggestions = suggested(request, chosen.work, past, documents, duplicates, risks, cited)
        return EnrichedContext(
            similar_work=similar,
            past_decisions=[decision for _, decision in past],
            technical_docs=[doc for _, doc in documents],
            suggestions=suggestions,
            risk_hints=[hint for _, hint in risks],
            likely_duplicates=duplicates,
            effort_of_similar=_effort_of_similar(chosen.work, efforts),
            citations=cited.listed,
            degradation_level=chosen.level,
        )

    def _work(
        self, found: Found, effort: Effort | None, request: EnrichmentRequest, cited: Citations
    ) -> SimilarWork:
        lifted = learnings(found)
        return SimilarWork(
            **self._item(found, request),
            citations=cited.all_of(found, lifted),
            similarity_by=found.likely.by,
            learnings=tuple(s.text for s in lifted),
            status=status_of(found),
            outcome=outcome_of(found),
            abandoned=is_abandoned(found),
            duplicate_of=duplicate_of(found.hit.document),
            effort=effort.text if effort and is_done(found) else None,
        )

    def _decisions(
        self, request: EnrichmentRequest, chosen: _Chosen, most: int
    ) -> list[tuple[Found, PastDecision]]:
        """Those that may hold first; one that holds no longer gives way to a little less fitting one."""
        drafts = [(one, self._decision(one, request)) for one in chosen.decisions]
        ranked = sorted(
            enumerate(drafts), key=lambda pair: pair[0] + (ENDED_LOSES if pair[1][1].ended else 0)
        )
        kept = [draft for _, draft in ranked[:most]]
        kept.sort(key=lambda draft: draft[1].ended)
        return [
            (one, replace(draft, citations=chosen.cited.all_of(one, decision_of(one)))) for one, draft in kept
        ]

    def _decision(self, found: Found, request: EnrichmentRequest) -> PastDecision:
        return PastDecision(
            **self._item(found, request),
            decision=" ".join(s.text for s in decision_of(found)),
            rationale=" ".join(s.text for s in rationale_of(found)) or None,
            constraints=tuple(s.text for s in constraints_of(found)),
            assigned_architect=found.told("deciders"),
            date=found.told("decided_at"),
            status=decision_status_of(found),
            superseded_by=found.told("superseded_by"),
        )

    def _doc(self, found: Found, request: EnrichmentRequest, cited: Citations) -> TechnicalDoc:
        best = best_passages(found, most=SECTIONS_PER_DOCUMENT)
        return TechnicalDoc(
            **self._item(found, request),
            citations=cited.all_of(found, (b.sentence for b in best)),
            relevant_sections=tuple(b.shown for b in best),
        )

    def _duplicates(self, request: EnrichmentRequest, chosen: _Chosen) -> list[Duplicate]:
        return [
            Duplicate(
                ref=one.external_id,
                title=one.title,
                similarity=one.similarity,
                link=one.hit.document.url or NO_LINK,
                document_id=str(one.hit.document.id),
                status=status_of(one),
                duplicate_of=duplicate_of(one.hit.document),
            )
            for one in chosen.work[:MOST_DUPLICATE_RANK]
            if is_duplicate(one.likely, chosen.model, request.title)
        ]

    def _item(self, found: Found, request: EnrichmentRequest) -> dict[str, Any]:
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
            "why": _why(found, request),
        }


def _effort_of_similar(work: Sequence[Found], efforts: Sequence[Effort | None]) -> SimilarEffort | None:
    done = [effort for one, effort in zip(work, efforts, strict=True) if effort and is_done(one)]
    told = effort_of_similar(done)
    return SimilarEffort(**told) if told else None


def _why(found: Found, request: EnrichmentRequest) -> str:
    """The words of the item that the document shares, those of both titles first."""
    titled = stems(found.title)
    there = titled | stems(found.hit.chunk.content)
    own = {stem(word): word for word in reversed(WORD.findall(f"{request.title} {request.description}"))}
    shared = [key for key in own if key in there and key in found.question]
    of_title = stems(request.title)
    shared.sort(key=lambda key: (key not in of_title, key not in titled, -len(key)))
    words = ", ".join(f"“{own[key]}”" for key in shared[:SHARED_WORDS])
    return f"both speak of {words}" if words else "alike in meaning"
