"""Enrichment of backlog items: a search for each section, and an answer with suggestions from the likely documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from pipeline.documents import Kind
from pipeline.enrichment.context import (
    Citation,
    Duplicate,
    EnrichedContext,
    PastDecision,
    RiskHint,
    SimilarWork,
    Suggestion,
    TechnicalDoc,
)
from pipeline.enrichment.degradation import CACHED
from pipeline.enrichment.extraction import (
    best_passages,
    constraints_of,
    decision_of,
    effort_of,
    effort_of_similar,
    follow_up,
    learnings,
    rationale_of,
    reasons_of_rejection,
    rule_of,
    status_line,
    status_of_decision,
)
from pipeline.enrichment.references import (
    CANDIDATES,
    DocumentText,
    DocumentTexts,
    FoundDocument,
    likely_documents,
    likely_duplicates,
    likest,
)
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
from pipeline.enrichment.text import (
    Section,
    Sentence,
    share_covered,
    shared_words,
    stems,
    truncated,
    truncated_sentence,
    word_similarity,
)
from pipeline.errors import StoreUnavailable
from pipeline.ledger import ALL, All
from pipeline.search import SearchRequest, SearchResults
from pipeline.search.question import key_of
from pipeline.search.records import duplicate_of, validity_note

MOST_SUGGESTIONS = 5
CLOSE = 95
"""Least similarity of an item whose criteria are suggested."""
SHARED = 2
"""Least number of words that a suggested criterion shares with this item."""
MOST_OF_A_KIND = 2
HAD = 0.6
"""Share of a criterion's words from which an item already has the criterion."""
ALIKE = 0.35
"""Similarity of words from which two criteria say the same."""
DESCRIBED = 0.75
"""Share of the title's words from which a passage may describe what the item asks for."""
SURE = 86
"""Least similarity of items and documents that suggestions and risk hints are made from."""
VERY_LIKE = 98
"""Least similarity of an item that tells why it is not called a duplicate."""
SHORT = 150
"""Most characters of a quotation inside of a suggestion."""
OVERRAN, OVERRAN_FAR = 1.5, 2.0
"""Effort relative to the estimate from which there is a risk hint, and a severe one."""
_NUMBER = re.compile(r"^#?\d{1,3}[.):]?\s+")
"""Numbers that some trackers write before a criterion."""
_EVERYWHERE = re.compile(
    r"\b(?:(?:unit|integration|automated|existing|regression|all) tests?|tests? (?:pass|cover|added|exist)"
    r"|test coverage|documentation|readme|changelog|lint\w*|typecheck\w*|type check|compil\w+|ci\b"
    r"|pipeline (?:is )?green|code review\w*|backwards? compatib\w+|no regressions?|definition of done)",
    re.IGNORECASE,
)
"""Criteria that apply to any item."""


class Citations:
    """The numbered citations of an answer; equal sentences of one chunk share a number."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str], Citation] = {}

    def cite(self, reference: FoundDocument, *sentences: Sentence) -> tuple[int, ...]:
        """Cite sentences, each short enough to be quoted, and return their numbers in order."""
        numbers = []
        for sentence in sentences:
            place = f"{reference.document.id}:{sentence.ord}", sentence.text
            if place not in self._by_place:
                self._by_place[place] = Citation(
                    n=len(self._by_place) + 1,
                    ref=reference.external_id,
                    title=reference.title,
                    link=reference.link,
                    document_id=str(reference.document.id),
                    chunk=place[0],
                    source_type=reference.document.source_type.value,
                    quoted=place[1],
                )
            numbers.append(self._by_place[place].n)
        return tuple(numbers)

    @property
    def listed(self) -> list[Citation]:
        """All citations so far, by number."""
        return list(self._by_place.values())


def suggestions_of(
    request: EnrichmentRequest,
    work: Sequence[FoundDocument],
    past: Sequence[tuple[FoundDocument, PastDecision]],
    docs: Sequence[tuple[FoundDocument, TechnicalDoc]],
    duplicates: Sequence[Duplicate],
    risks: Sequence[tuple[FoundDocument, RiskHint]],
    cited: Citations,
) -> list[Suggestion]:
    """Suggestions: duplicates and decisions first, then a risk, a criterion, and a document to link."""
    duplicate_ids = {duplicate.document_id for duplicate in duplicates}
    warned = (
        Suggestion(kind="risk", ref=reference.external_id, text=hint.message, citations=(hint.citation,))
        for reference, hint in risks
        if str(reference.document.id) not in duplicate_ids
    )
    suggestions = chain(
        _duplicates(work, duplicates, cited),
        islice(_decisions(past, cited), MOST_OF_A_KIND),
        islice(warned, 1),
        islice(_criteria(request, work, cited), 1),
        _documents(request, docs[:1]),
    )
    # Lazily, so that nothing is cited for suggestions beyond the limit.
    return list(islice(suggestions, MOST_SUGGESTIONS))


def _duplicates(
    work: Sequence[FoundDocument], duplicates: Sequence[Duplicate], cited: Citations
) -> Iterator[Suggestion]:
    """A suggestion for each duplicate: finished work may cover this item, abandoned work had its reasons."""
    by_id = {str(one.document.id): one for one in work}
    for duplicate in duplicates[:MOST_OF_A_KIND]:
        reference = by_id[duplicate.document_id]
        asks = "Ask why {} was not done" if reference.abandoned else "Check whether {} already covers this"
        text = f"{asks.format(named(reference))}: {duplicate.similarity} % alike."
        numbers = cited.cite(reference, _representative_sentence(reference))
        yield Suggestion(kind="duplicate", ref=reference.external_id, text=text, citations=numbers)


def _decisions(past: Sequence[tuple[FoundDocument, PastDecision]], cited: Citations) -> Iterator[Suggestion]:
    """Suggestions for decisions: those in force with their rule, rejected and replaced ones with the reason."""
    for reference, decision in past:
        if reference.similarity < SURE or not (decision.in_force or decision.ended):
            continue
        name = f"“{reference.title}” ({reference.external_id})"
        if decision.in_force:
            day = f" {decision.date}" if decision.date else ""
            rule = rule_of(reference)
            says = f": “{truncated(rule.text, SHORT)}”" if rule else ""
            text = f"Respect the decision {name[:-1]}, {decision.status}{day}){says}"
            numbers = cited.cite(reference, truncated_sentence(rule)) if rule else decision.citations[:1]
        elif decision.status == "rejected":
            reason = next(iter(reasons_of_rejection(reference)), None)
            why = (
                f"because: “{truncated(reason.text, SHORT)}”"
                if reason
                else "ask why before you plan it again."
            )
            text = f"Rejected before in {name}, {why}"
            sentence = reason or status_line(reference) or _representative_sentence(reference)
            numbers = cited.cite(reference, truncated_sentence(sentence))
        else:
            by = f" by {decision.superseded_by}" if decision.superseded_by else ""
            text = f"Do not build on {name}: it is {decision.status}{by}."
            sentence = status_line(reference) or _representative_sentence(reference)
            numbers = cited.cite(reference, truncated_sentence(sentence))
        if numbers:
            yield Suggestion(kind="decision", ref=reference.external_id, text=text, citations=numbers)


def _criteria(
    request: EnrichmentRequest, work: Sequence[FoundDocument], cited: Citations
) -> Iterator[Suggestion]:
    """Suggestions of criteria that similar finished work had and this item lacks, from the most similar item first."""
    item_words, had = stems(request.text), [stems(criterion) for criterion in request.criteria]
    for reference in work:
        if reference.similarity < CLOSE or not reference.done:
            continue
        criteria = (replace(s, text=_NUMBER.sub("", s.text)) for s in reference.sections[Section.CRITERIA])
        for sentence in sorted(
            criteria, key=partial(Sentence.has_of, words=reference.question), reverse=True
        ):
            if _is_lacking(sentence.text, item_words, had):
                quoted = truncated(sentence.text, SHORT)
                text = f"Add what {named(reference)} asked for and this item lacks: “{quoted}”"
                numbers = cited.cite(reference, truncated_sentence(sentence))
                yield Suggestion(
                    kind="acceptance_criterion", ref=reference.external_id, text=text, citations=numbers
                )


def _is_lacking(criterion: str, item_words: AbstractSet[str], had: Sequence[AbstractSet[str]]) -> bool:
    """Whether a criterion fits an item with these words, is not in them or its criteria, and is not a general one."""
    words = stems(criterion)
    lacks = len(words & item_words) >= SHARED and share_covered(words, item_words) < HAD
    new = all(word_similarity(words, one) < ALIKE for one in had)
    return lacks and new and not _EVERYWHERE.search(criterion)


def _documents(
    request: EnrichmentRequest, docs: Sequence[tuple[FoundDocument, TechnicalDoc]]
) -> Iterator[Suggestion]:
    """Suggestions to link documents that fit and are not outdated; a readme only if it describes what is asked for."""
    title = stems(request.title)
    for reference, doc in docs:
        if reference.hit.outdated or reference.similarity < SURE or not doc.citations:
            continue
        readme = PurePosixPath(reference.external_id).name.casefold().startswith("readme")
        exists = len(title) >= SHARED and share_covered(title, stems(doc.relevant_sections[0])) >= DESCRIBED
        if exists or not readme:
            says = f"“{truncated(doc.relevant_sections[0], SHORT)}”"
            name = f"“{reference.title}” ({reference.external_id})"
            text = f"May exist already in {name}: {says}" if exists else f"Link {name} in this item: {says}"
            yield Suggestion(
                kind="document", ref=reference.external_id, text=text, citations=doc.citations[:1]
            )


def risks_of(
    work: Sequence[FoundDocument], cited: Citations, close: Sequence[FoundDocument] = ()
) -> list[tuple[FoundDocument, RiskHint]]:
    """Risk hints from problems of similar work, the most severe first; `close` items may have undone it."""
    hints = []
    for reference in work:
        for kind, severity, event in _wrong(reference, close) if reference.similarity >= SURE else ():
            (number,) = cited.cite(reference, _representative_sentence(reference))
            message = f"“{reference.title}” ({reference.external_id}) {event}."
            hints.append(
                (reference, RiskHint(type=kind, severity=severity, message=message, citation=number))
            )
    return sorted(hints, key=lambda one: ("HIGH", "MEDIUM", "LOW").index(one[1].severity))


def _wrong(reference: FoundDocument, close: Sequence[FoundDocument]) -> Iterator[tuple[str, str, str]]:
    """Problems of an item: type, severity and description."""
    times = reference.document.metadata.get("reopened")
    if type(times) is int and times > 0:
        severity, often = ("MEDIUM", "once") if times == 1 else ("HIGH", f"{times} times")
        yield "reopened", severity, f"was reopened {often} after it was called done"
    effort = effort_of(reference.document)
    if effort and effort.overran >= OVERRAN:
        severity = "HIGH" if effort.overran >= OVERRAN_FAR else "MEDIUM"
        yield "overran", severity, f"overran: it {effort.text}"
    if reference.abandoned:
        ended = str(reference.outcome or reference.status)
        rejected = re.search(r"reject|declin|invalid|abgelehnt|rejet", ended, re.IGNORECASE)
        yield "rejected" if rejected else "abandoned", "MEDIUM", f"was not done ({ended})"
    if consequence := follow_up(reference, close):
        yield "followed", "MEDIUM", consequence


def _representative_sentence(reference: FoundDocument) -> Sentence:
    """The sentence that represents a document in a citation: its best passage, else its title."""
    best = best_passages(reference, most=1)
    title = Sentence(text=reference.title, ord=reference.hit.chunk.ord)
    return best[0].sentence if best else truncated_sentence(title)


def named(reference: FoundDocument) -> str:
    """Title, id and state, such as `“Export as CSV” (PBI-7, closed as duplicate of PBI-2)`."""
    ended = (reference.outcome or reference.status) if reference.abandoned else None
    stands = ended or validity_note(reference.document) or reference.status
    return f"“{reference.title}” ({reference.external_id}{f', {stands}' if stands else ''})"


MOST_DUPLICATE_RANK = 5
"""Number of the most similar items that may be duplicates."""
SECTIONS_PER_DOCUMENT = 2
SHARED_WORDS = 3
"""Most words that are named as the reason why a document is shown."""


@dataclass
class Enricher:
    """Makes the context of backlog items, independent of queue and HTTP."""

    search: Callable[[SearchRequest], SearchResults]
    texts: DocumentTexts
    items: int = field(default=3, kw_only=True)
    """Default number of entries of a section."""
    now: Callable[[], datetime] = field(default=partial(datetime.now, UTC), kw_only=True)

    def enrich(
        self,
        request: EnrichmentRequest,
        *,
        projects: tuple[UUID, ...] | All = ALL,
        project: UUID | None = None,
        item_projects: Collection[UUID] = (),
    ) -> EnrichedContext:
        """The context of a backlog item from these projects, without the item's own documents.

        Feedback is that for the item of `project`. A document with the item's id is the item itself if it is in
        `item_projects`, or in any project if they are empty.

        Raises:
            LarderError: what `search` raises; `static_context` is the answer then.
        """
        itself: Sequence[UUID] = ()
        with suppress(StoreUnavailable):  # without a store they are recognised among the hits
            indexed = self.texts.ids(request.own_ids, item_projects)
            itself = [one for one, names in indexed.items() if request.is_itself(*names)]
        search_request = SearchRequest(
            text=request.question,
            filter=replace(request.filter, exclude=tuple(sorted(itself)), projects=projects),
            explain=True,
            feedback_key=key_of(request.question, request.id, project),
        )
        most = {kind: request.numbers.get(section, self.items) for kind, section in SECTIONS.items()}
        read = {
            Kind.WORK: max(most[Kind.WORK], MOST_DUPLICATE_RANK),
            Kind.DECISION: most[Kind.DECISION],
            Kind.REFERENCE: most[Kind.REFERENCE],
        }
        answers = {kind: SearchResults() for kind in SECTIONS}
        for kind in (kind for kind in SECTIONS if most[kind]):
            of_kind = replace(search_request.filter, kinds=(kind,))
            results = self.search(replace(search_request, k=max(CANDIDATES, read[kind]), filter=of_kind))
            # Left out before documents are compared with each other: hits of a cache may be the item itself.
            hits = [
                hit
                for hit in results.hits
                if not request.is_itself(str(hit.document.metadata.get("pbi_id") or ""), hit.document.title)
                or (item_projects and hit.document.project_id not in (None, *item_projects))
            ]
            answers[kind] = replace(results, hits=hits)
        question = stems(request.question)
        level = max(results.degradation_level for results in answers.values())
        texts: Mapping[UUID, DocumentText] = {}
        kinship: Mapping[UUID, float] = {}
        hits = [hit for results in answers.values() for hit in results.hits]
        with suppress(StoreUnavailable):  # the hits came from a cache: there are no vectors to compare
            kinship = self.texts.kinship(likest(hits, question), hits)
        best = {
            kind: likely_documents(results, kind, question, kinship)[: read[kind]]
            for kind, results in answers.items()
        }
        vector = next((r.vector for r in answers.values() if r.vector is not None), None)
        try:
            texts = self.texts.read(
                {one.hit.document.id for ones in best.values() for one in ones}, search_request.filter, vector
            )
        except StoreUnavailable:
            level = max(level, CACHED)  # the hits came from a cache: only their chunks are available
        documents = {
            kind: [FoundDocument(one, texts.get(one.hit.document.id), question) for one in ones]
            for kind, ones in best.items()
        }
        partial = next((str(results.partial) for results in answers.values() if results.partial), "")
        context = _Answer(request, self.now()).context(documents, most, level)
        return replace(context, partial=partial)


class _Answer:
    """The sections of one answer and their citations."""

    def __init__(self, request: EnrichmentRequest, now: datetime) -> None:
        self.request = request
        self.now = now
        self.cited = Citations()

    def context(
        self, references: Mapping[Kind, Sequence[FoundDocument]], most: Mapping[Kind, int], level: int
    ) -> EnrichedContext:
        """The context; citations are numbered in the order of its sections."""
        close = references[Kind.WORK]
        work = close[: most[Kind.WORK]]
        likest = [one.likely for one in close[:MOST_DUPLICATE_RANK]]
        twins = {one.hit.document.id for one in likely_duplicates(likest, self.request.title)}
        similar = [self._work(one, twins) for one in work]
        past = [(one, self._decision(one)) for one in references[Kind.DECISION]]
        docs = [(one, doc) for one in references[Kind.REFERENCE] if (doc := self._doc(one)).relevant_sections]
        duplicates = [_duplicate(one) for one in close[:MOST_DUPLICATE_RANK] if one.document.id in twins]
        risks = risks_of(work, self.cited, close)
        suggestions = suggestions_of(self.request, close, past, docs, duplicates, risks, self.cited)
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

    def _work(self, reference: FoundDocument, twins: Collection[UUID]) -> SimilarWork:
        lifted = learnings(reference)
        passages = [p.sentence for p in best_passages(reference, most=1)]
        likest = [s for s in passages if s.text != reference.title and s not in lifted]
        effort = effort_of(reference.document) if reference.done else None
        item = self._item(reference)
        if reference.similarity >= VERY_LIKE and reference.document.id not in twins:
            item["why"] += "; not called a duplicate, since others are as close"
        return SimilarWork(
            **item,
            citations=self.cited.cite(reference, *lifted, *likest),
            similarity_by=reference.likely.by,
            learnings=tuple(s.text for s in lifted),
            relevant_sections=tuple(s.text for s in likest),
            status=reference.status,
            outcome=reference.outcome,
            abandoned=reference.abandoned,
            duplicate_of=duplicate_of(reference.document),
            effort=effort.text if effort else None,
        )

    def _decision(self, reference: FoundDocument) -> PastDecision:
        status = status_of_decision(reference)
        # A rejected proposal is described by the reason, since its text is not a decision.
        sentences = (status == "rejected" and reasons_of_rejection(reference)) or decision_of(reference)
        return PastDecision(
            **self._item(reference),
            citations=self.cited.cite(reference, *sentences),
            decision=" ".join(s.text for s in sentences),
            rationale=" ".join(s.text for s in rationale_of(reference)) or None,
            constraints=tuple(s.text for s in constraints_of(reference)),
            status=status,
            superseded_by=reference.first_metadata("superseded_by"),
            assigned_architect=reference.first_metadata("deciders"),
            date=reference.first_metadata("decided_at"),
        )

    def _doc(self, reference: FoundDocument) -> TechnicalDoc:
        best = best_passages(reference, most=SECTIONS_PER_DOCUMENT)
        return TechnicalDoc(
            **self._item(reference),
            citations=self.cited.cite(reference, *(b.sentence for b in best)),
            relevant_sections=tuple(b.display for b in best),
        )

    def _item(self, reference: FoundDocument) -> dict[str, Any]:
        document = reference.document
        at = document.updated_at or document.created_at
        # Words of the item that the document shares, those of both titles first.
        shared = shared_words(
            self.request.title,
            self.request.description,
            reference.title,
            reference.hit.chunk.content,
            among=reference.question,
        )
        words = ", ".join(f"“{word}”" for word in shared[:SHARED_WORDS])
        return {
            "ref": reference.external_id,
            "title": reference.title,
            "link": reference.link,
            "document_id": str(document.id),
            "source": document.source,
            "source_type": document.source_type.value,
            "updated_at": at.date().isoformat() if at else None,
            "age_days": max(0, (self.now - at).days) if at else None,
            "similarity": reference.similarity,
            "why": f"both speak of {words}" if words else "alike in meaning",
        }


def _duplicate(original: FoundDocument) -> Duplicate:
    return Duplicate(
        ref=original.external_id,
        title=original.title,
        similarity=original.similarity,
        link=original.link,
        document_id=str(original.document.id),
        status=original.status,
        duplicate_of=duplicate_of(original.document),
    )
