"""What a product owner may do with what was found, each with the passage that speaks for it; few, and never generic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain, islice, takewhile
from pathlib import PurePosixPath

from pipeline.enrichment.context import Duplicate, PastDecision, RiskHint, Suggestion, TechnicalDoc
from pipeline.enrichment.extraction import Citations, best_passages, effort_of, status_line
from pipeline.enrichment.found import FoundDocument
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import (
    Part,
    Sentence,
    clipped,
    covered,
    shortened,
    stems,
    word_similarity,
)
from pipeline.search.validity import validity_note

MOST = 5
"""In one answer."""
CLOSE = 80
"""Similarity from which an item is close enough to borrow a criterion from."""
SHARED = 2
"""Words at least that a borrowed criterion has in common with this item."""
MOST_OF_A_KIND = 2
HAD = 0.6
"""Of a criterion's words: a PBI that has so many of them has the criterion."""
ALIKE = 0.35
"""A criterion that has so much in common with one of this item says the same in other words."""
SURE = 60
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


def suggested(
    request: EnrichmentRequest,
    work: Sequence[FoundDocument],
    past: Sequence[tuple[FoundDocument, PastDecision]],
    docs: Sequence[tuple[FoundDocument, TechnicalDoc]],
    duplicates: Sequence[Duplicate],
    risks: Sequence[tuple[FoundDocument, RiskHint]],
    cited: Citations,
) -> list[Suggestion]:
    """At most MOST: duplicates and decisions first, then what went wrong before, criteria, and documents to link."""
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
        _documents(docs[:1]),
    )
    # One after the other, so that nothing is cited for a suggestion that is not made.
    return list(islice(made, MOST))


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
    """Decisions in force, with what they say; those that no longer hold, with their status line."""
    for found, decision in takewhile(lambda one: one[0].similarity >= SURE, past):
        name = f"“{found.title}” ({found.external_id}"
        if decision.in_force and decision.citations:
            numbers = decision.citations[:1]
            day = f" {decision.date}" if decision.date else ""
            # Without such a part what is cited may be any passage: the record is to be read.
            quoted = cited.listed[numbers[0] - 1].quoted if found.parts[Part.DECISION] else ""
            says = f": “{clipped(quoted, SHORT)}”" if quoted else ""
            text = f"Respect the decision {name}, {decision.status}{day}){says}"
        elif decision.ended and (line := status_line(found)):
            by = f" by {decision.superseded_by}" if decision.superseded_by else ""
            text = f"Do not build on {name}): it is {decision.status}{by}."
            numbers = cited.cite(found, shortened(line))
        else:
            continue
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
        for sentence in sorted(told, key=found.fits, reverse=True):
            if _is_lacking(sentence.text, own, had):
                quoted = clipped(sentence.text, SHORT)
                text = f"Add what {named(found)} asked for and this item lacks: “{quoted}”"
                numbers = cited.cite(found, shortened(sentence))
                yield Suggestion(
                    kind="acceptance_criterion", ref=found.external_id, text=text, citations=numbers
                )


def _is_lacking(criterion: str, own: AbstractSet[str], had: Sequence[AbstractSet[str]]) -> bool:
    """It fits the item of these words, neither they nor its criteria say it, and it does not go for any item."""
    words = stems(criterion)
    lacks = len(words & own) >= SHARED and covered(words, own) < HAD
    new = all(word_similarity(words, one) < ALIKE for one in had)
    return lacks and new and not _EVERYWHERE.search(criterion)


def _documents(docs: Sequence[tuple[FoundDocument, TechnicalDoc]]) -> Iterator[Suggestion]:
    """Those that are sure to fit; a readme is known to everybody."""
    for found, doc in docs:
        readme = PurePosixPath(found.external_id).name.casefold().startswith("readme")
        if not readme and found.similarity >= SURE and doc.citations:
            quoted = clipped(doc.relevant_sections[0], SHORT)
            text = f"Link “{found.title}” ({found.external_id}) in this item: “{quoted}”"
            yield Suggestion(kind="document", ref=found.external_id, text=text, citations=doc.citations[:1])


def risks_of(work: Sequence[FoundDocument], cited: Citations) -> list[tuple[FoundDocument, RiskHint]]:
    """What went wrong with similar work, the gravest first; usually nothing."""
    made = []
    for found in work:
        for kind, severity, what in _wrong(found) if found.similarity >= SURE else ():
            (number,) = cited.cite(found, _shown_for(found))
            message = f"“{found.title}” ({found.external_id}) {what}."
            made.append((found, RiskHint(type=kind, severity=severity, message=message, citation=number)))
    return sorted(made, key=lambda one: ("HIGH", "MEDIUM", "LOW").index(one[1].severity))


def _wrong(found: FoundDocument) -> Iterator[tuple[str, str, str]]:
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


def _shown_for(found: FoundDocument) -> Sentence:
    """What is quoted to show what a document is about: its best passage, else its title."""
    best = best_passages(found, most=1)
    return best[0].sentence if best else shortened(Sentence(text=found.title, ord=found.hit.chunk.ord))


def named(found: FoundDocument) -> str:
    """Title, id and how it stands, such as `“Export as CSV” (PBI-7, closed as duplicate of PBI-2)`."""
    ended = (found.outcome or found.status) if found.abandoned else None
    stands = ended or validity_note(found.document) or found.status
    return f"“{found.title}” ({found.external_id}{f', {stands}' if stands else ''})"
