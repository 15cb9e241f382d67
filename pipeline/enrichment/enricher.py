"""From a PBI to its context: one search for each section, then an answer lifted from what is likely to matter."""

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
from pipeline.enrichment.found import (
    CANDIDATES,
    LIKELY_DUPLICATE,
    DocumentText,
    DocumentTexts,
    FoundDocument,
    likely_documents,
    likely_duplicates,
    likest,
)
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest
from pipeline.enrichment.text import (
    Part,
    Sentence,
    share_covered,
    shared_words,
    stems,
    truncated,
    truncated_sentence,
    word_similarity,
)
from pipeline.errors import StoreUnavailable
from pipeline.search import SearchRequest, SearchResults
from pipeline.search.question import key_of
from pipeline.search.records import duplicate_of, validity_note

MOST_SUGGESTIONS = 5
CLOSE = 95
"""Similarity from which an item is close enough to borrow a criterion from."""
SHARED = 2
"""Words at least that a borrowed criterion has in common with this item."""
MOST_OF_A_KIND = 2
HAD = 0.6
"""Of a criterion's words: a PBI that has so many of them has the criterion."""
ALIKE = 0.35
"""A criterion that has so much in common with one of this item says the same in other words."""
DESCRIBED = 0.75
"""Of the words of this item's title: a passage that has so many may describe what the item asks for."""
SURE = 86
"""Similarity from which an item or a document is close enough to ask something of this one."""
SHORT = 150
"""Characters of a quotation inside of a suggestion."""
OVERRAN, OVERRAN_FAR = 1.5, 2.0
"""What was needed as a share of the estimate: worth a hint, and a grave one."""
_NUMBER = re.compile(r"^#?\d{1,3}[.):]?\s+")
"""What some trackers write before a criterion."""
_EVERYWHERE = re.compile(
    r"\b(?:(?:unit|integration|automated|existing|regression|all) tests?|tests? (?:pass|cover|added|exist)"
    r"|test coverage|documentation|readme|changelog|lint\w*|typecheck\w*|type check|compil\w+|ci\b"
    r"|pipeline (?:is )?green|code review\w*|backwards? compatib\w+|no regressions?|definition of done)",
    re.IGNORECASE,
)
"""Criteria that any item has."""


class Citations:
    """The numbered list of places that an answer was taken from; the same words of the same chunk have one number."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str], Citation] = {}

    def cite(self, found: FoundDocument, *sentences: Sentence) -> tuple[int, ...]:
        """The numbers of sentences, each short enough to be quoted, in order."""
        numbers = []
        for sentence in sentences:
            place = f"{found.document.id}:{sentence.ord}", sentence.text
            if place not in self._by_place:
                self._by_place[place] = Citation(
                    n=len(self._by_place) + 1,
                    ref=found.external_id,
                    title=found.title,
                    link=found.link,
                    document_id=str(found.document.id),
                    chunk=place[0],
                    source_type=found.document.source_type.value,
                    quoted=place[1],
                )
            numbers.append(self._by_place[place].n)
        return tuple(numbers)

    @property
    def listed(self) -> list[Citation]:
        """All so far, by number."""
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
    """Duplicates and decisions first, then what went wrong before, criteria, and documents to link."""
    said = {duplicate.document_id for duplicate in duplicates}
    warned = (
        Suggestion(kind="risk", ref=found.external_id, text=hint.message, citations=(hint.citation,))
        for found, hint in risks
        if str(found.document.id) not in said
    )
    made = chain(
        _duplicates(work, duplicates, cited),
        islice(_decisions(past, cited), MOST_OF_A_KIND),
        islice(warned, 1),
        islice(_criteria(request, work, cited), 1),
        _documents(request, docs[:1]),
    )
    # One after the other, so that nothing is cited for a suggestion that is not made.
    return list(islice(made, MOST_SUGGESTIONS))


def _duplicates(
    work: Sequence[FoundDocument], duplicates: Sequence[Duplicate], cited: Citations
) -> Iterator[Suggestion]:
    """One question for each: what is done may cover this, what was given up had its reasons."""
    of = {str(one.document.id): one for one in work}
    for duplicate in duplicates[:MOST_OF_A_KIND]:
        found = of[duplicate.document_id]
        asks = "Ask why {} was not done" if found.abandoned else "Check whether {} already covers this"
        text = f"{asks.format(named(found))}: {duplicate.similarity} % alike."
        numbers = cited.cite(found, _shown_for(found))
        yield Suggestion(kind="duplicate", ref=found.external_id, text=text, citations=numbers)


def _decisions(past: Sequence[tuple[FoundDocument, PastDecision]], cited: Citations) -> Iterator[Suggestion]:
    """Decisions in force, with what they say; those that no longer hold, with the reason."""
    for found, decision in past:
        if found.similarity < SURE or not (decision.in_force or decision.ended):
            continue
        name = f"“{found.title}” ({found.external_id})"
        if decision.in_force:
            day = f" {decision.date}" if decision.date else ""
            rule = rule_of(found)
            says = f": “{truncated(rule.text, SHORT)}”" if rule else ""
            text = f"Respect the decision {name[:-1]}, {decision.status}{day}){says}"
            numbers = cited.cite(found, truncated_sentence(rule)) if rule else decision.citations[:1]
        elif decision.status == "rejected":
            reason = next(iter(reasons_of_rejection(found)), None)
            why = (
                f"because: “{truncated(reason.text, SHORT)}”"
                if reason
                else "ask why before you plan it again."
            )
            text = f"Rejected before in {name}, {why}"
            numbers = cited.cite(found, truncated_sentence(reason or status_line(found) or _shown_for(found)))
        else:
            by = f" by {decision.superseded_by}" if decision.superseded_by else ""
            text = f"Do not build on {name}: it is {decision.status}{by}."
            numbers = cited.cite(found, truncated_sentence(status_line(found) or _shown_for(found)))
        if numbers:
            yield Suggestion(kind="decision", ref=found.external_id, text=text, citations=numbers)


def _criteria(
    request: EnrichmentRequest, work: Sequence[FoundDocument], cited: Citations
) -> Iterator[Suggestion]:
    """Those that similar finished work had and this item lacks: the best fitting of the item most like it first."""
    own, had = stems(request.text), [stems(criterion) for criterion in request.criteria]
    for found in work:
        if found.similarity < CLOSE or not found.done:
            continue
        told = (replace(s, text=_NUMBER.sub("", s.text)) for s in found.parts[Part.CRITERIA])
        for sentence in sorted(told, key=partial(Sentence.has_of, words=found.question), reverse=True):
            if _is_lacking(sentence.text, own, had):
                quoted = truncated(sentence.text, SHORT)
                text = f"Add what {named(found)} asked for and this item lacks: “{quoted}”"
                numbers = cited.cite(found, truncated_sentence(sentence))
                yield Suggestion(
                    kind="acceptance_criterion", ref=found.external_id, text=text, citations=numbers
                )


def _is_lacking(criterion: str, own: AbstractSet[str], had: Sequence[AbstractSet[str]]) -> bool:
    """It fits the item of these words, neither they nor its criteria say it, and it does not go for any item."""
    words = stems(criterion)
    lacks = len(words & own) >= SHARED and share_covered(words, own) < HAD
    new = all(word_similarity(words, one) < ALIKE for one in had)
    return lacks and new and not _EVERYWHERE.search(criterion)


def _documents(
    request: EnrichmentRequest, docs: Sequence[tuple[FoundDocument, TechnicalDoc]]
) -> Iterator[Suggestion]:
    """Those that are sure to fit and still hold; a readme is known to everybody, unless it has what is asked for."""
    title = stems(request.title)
    for found, doc in docs:
        if found.hit.outdated or found.similarity < SURE or not doc.citations:
            continue
        readme = PurePosixPath(found.external_id).name.casefold().startswith("readme")
        exists = len(title) >= SHARED and share_covered(title, stems(doc.relevant_sections[0])) >= DESCRIBED
        if exists or not readme:
            says = f"“{truncated(doc.relevant_sections[0], SHORT)}”"
            name = f"“{found.title}” ({found.external_id})"
            text = f"May exist already in {name}: {says}" if exists else f"Link {name} in this item: {says}"
            yield Suggestion(kind="document", ref=found.external_id, text=text, citations=doc.citations[:1])


def risks_of(
    work: Sequence[FoundDocument], cited: Citations, close: Sequence[FoundDocument] = ()
) -> list[tuple[FoundDocument, RiskHint]]:
    """What went wrong with similar work or undid it, also of what is `close`; the gravest first, usually nothing."""
    made = []
    for found in work:
        for kind, severity, what in _wrong(found, close) if found.similarity >= SURE else ():
            (number,) = cited.cite(found, _shown_for(found))
            message = f"“{found.title}” ({found.external_id}) {what}."
            made.append((found, RiskHint(type=kind, severity=severity, message=message, citation=number)))
    return sorted(made, key=lambda one: ("HIGH", "MEDIUM", "LOW").index(one[1].severity))


def _wrong(found: FoundDocument, close: Sequence[FoundDocument]) -> Iterator[tuple[str, str, str]]:
    """Type, severity and what happened."""
    times = found.document.metadata.get("reopened")
    if type(times) is int and times > 0:
        severity, often = ("MEDIUM", "once") if times == 1 else ("HIGH", f"{times} times")
        yield "reopened", severity, f"was reopened {often} after it was called done"
    effort = effort_of(found.document)
    if effort and effort.overran >= OVERRAN:
        severity = "HIGH" if effort.overran >= OVERRAN_FAR else "MEDIUM"
        yield "overran", severity, f"overran: it {effort.text}"
    if found.abandoned:
        ended = str(found.outcome or found.status)
        rejected = re.search(r"reject|declin|invalid|abgelehnt|rejet", ended, re.IGNORECASE)
        yield "rejected" if rejected else "abandoned", "MEDIUM", f"was not done ({ended})"
    if what := follow_up(found, close):
        yield "followed", "MEDIUM", what


def _shown_for(found: FoundDocument) -> Sentence:
    """What is quoted to show what a document is about: its best passage, else its title."""
    best = best_passages(found, most=1)
    return (
        best[0].sentence if best else truncated_sentence(Sentence(text=found.title, ord=found.hit.chunk.ord))
    )


def named(found: FoundDocument) -> str:
    """Title, id and how it stands, such as `“Export as CSV” (PBI-7, closed as duplicate of PBI-2)`."""
    ended = (found.outcome or found.status) if found.abandoned else None
    stands = ended or validity_note(found.document) or found.status
    return f"“{found.title}” ({found.external_id}{f', {stands}' if stands else ''})"


MOST_DUPLICATE_RANK = 5
"""Only so many of the likest items may be duplicates."""
SECTIONS_PER_DOCUMENT = 2
SHARED_WORDS = 3
"""Named as the reason why a document is shown."""


@dataclass
class Enricher:
    """Makes the context of one PBI after the other; knows neither queue nor HTTP."""

    search: Callable[[SearchRequest], SearchResults]
    texts: DocumentTexts
    items: int = field(default=3, kw_only=True)
    """How many a section shows when a request says nothing else."""
    now: Callable[[], datetime] = field(default=partial(datetime.now, UTC), kw_only=True)

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
            known = self.texts.ids(request.own, own)
            itself = [one for one, called in known.items() if request.is_itself(*called)]
        wanted = SearchRequest(
            text=request.question,
            filter=replace(request.filter, exclude=tuple(sorted(itself)), projects=tuple(projects or ())),
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
        for kind in (kind for kind in SECTIONS if most[kind] and (projects is None or projects)):
            of_kind = replace(wanted.filter, kinds=(kind,))
            found = self.search(replace(wanted, k=max(CANDIDATES, read[kind]), filter=of_kind))
            # Left out before the likest is compared with the others: of a cache it may be the PBI itself.
            hits = [
                hit
                for hit in found.hits
                if not request.is_itself(str(hit.document.metadata.get("pbi_id") or ""), hit.document.title)
                or (own and hit.document.project_id not in (None, *own))
            ]
            answers[kind] = replace(found, hits=hits)
        question = stems(request.question)
        level = max(found.degradation_level for found in answers.values())
        texts: Mapping[UUID, DocumentText] = {}
        kin: Mapping[UUID, float] = {}
        hits = [hit for found in answers.values() for hit in found.hits]
        with suppress(StoreUnavailable):  # the hits came from a cache: each alone has to do
            kin = self.texts.kin(likest(hits, question), hits)
        best = {
            kind: likely_documents(found, kind, question, kin)[: read[kind]]
            for kind, found in answers.items()
        }
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
        made = _Answer(request, self.now()).made(documents, most, level)
        return replace(made, partial=partial)


class _Answer:
    """Writes the sections of one answer and collects what they cite."""

    def __init__(self, request: EnrichmentRequest, now: datetime) -> None:
        self.request = request
        self.now = now
        self.cited = Citations()

    def made(
        self, found: Mapping[Kind, Sequence[FoundDocument]], most: Mapping[Kind, int], level: int
    ) -> EnrichedContext:
        """The context; citations are numbered in the order of its sections."""
        close = found[Kind.WORK]
        work = close[: most[Kind.WORK]]
        likest = [one.likely for one in close[:MOST_DUPLICATE_RANK]]
        twins = {one.hit.document.id for one in likely_duplicates(likest, self.request.title)}
        similar = [self._work(one, twins) for one in work]
        past = [(one, self._decision(one)) for one in found[Kind.DECISION]]
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
            if one.document.id in twins
        ]
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

    def _work(self, found: FoundDocument, twins: Collection[UUID]) -> SimilarWork:
        lifted = learnings(found)
        passages = [p.sentence for p in best_passages(found, most=1)]
        likest = [s for s in passages if s.text != found.title and s not in lifted]
        effort = effort_of(found.document) if found.done else None
        item = self._item(found)
        if found.similarity >= 100 * LIKELY_DUPLICATE and found.document.id not in twins:
            item["why"] += "; not called a duplicate, since others are as close"
        return SimilarWork(
            **item,
            citations=self.cited.cite(found, *lifted, *likest),
            similarity_by=found.likely.by,
            learnings=tuple(s.text for s in lifted),
            relevant_sections=tuple(s.text for s in likest),
            status=found.status,
            outcome=found.outcome,
            abandoned=found.abandoned,
            duplicate_of=duplicate_of(found.document),
            effort=effort.text if effort else None,
        )

    def _decision(self, found: FoundDocument) -> PastDecision:
        status = status_of_decision(found)
        # What was rejected is told by the reason; what it proposed is no decision.
        said = (status == "rejected" and reasons_of_rejection(found)) or decision_of(found)
        return PastDecision(
            **self._item(found),
            citations=self.cited.cite(found, *said),
            decision=" ".join(s.text for s in said),
            rationale=" ".join(s.text for s in rationale_of(found)) or None,
            constraints=tuple(s.text for s in constraints_of(found)),
            status=status,
            superseded_by=found.first_metadata("superseded_by"),
            assigned_architect=found.first_metadata("deciders"),
            date=found.first_metadata("decided_at"),
        )

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
