"""What a product owner may do with what was found, each with the passage that speaks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.enrichment.citations import Citations
from pipeline.enrichment.context import UNKNOWN, Duplicate, PastDecision, Suggestion
from pipeline.enrichment.decisions import decision_of, status_line
from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, under
from pipeline.enrichment.learnings import is_abandoned, outcome_of, status_of
from pipeline.enrichment.passages import best_passages
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.sentences import Sentence, clipped, shortened
from pipeline.words import covered, likeness, stems

MOST_CRITERIA = 4
PER_ITEM = 2
HAD = 0.6
"""Of a criterion's words: a PBI that has so many of them has the criterion."""
ALIKE = 0.6
"""Two criteria with so much in common are one."""
CLOSE = 8
"""Points above the least similarity, from which an item is close enough to borrow criteria from."""
SHORT = 150
"""Characters of a quotation inside of a suggestion."""


def missing_criteria(
    request: EnrichmentRequest, items: Sequence[Found], citations: Citations
) -> list[Suggestion]:
    """Criteria of similar items that this PBI lacks; best fitting first within an item.

    Those of work that was given up come last and say so: nobody has proved them.
    """
    own = stems(request.question)
    taken: list[frozenset[str]] = []
    made: list[Suggestion] = []
    for found in sorted(items, key=is_abandoned):
        for sentence in _lacking(found, own, taken):
            made.append(
                Suggestion(
                    kind="acceptance_criterion",
                    ref=found.external_id,
                    text=f"{_named(found)} also asked for: “{clipped(sentence.text, SHORT)}”",
                    citations=(citations.cite(found, sentence),),
                )
            )
            if len(made) == MOST_CRITERIA:
                return made
    return made


def _lacking(found: Found, own: frozenset[str], taken: list[frozenset[str]]) -> Iterator[Sentence]:
    explanation = found.hit.explanation
    least = round(100 * explanation.min_similarity) if explanation and explanation.min_similarity else 0
    if found.similarity_by == "meaning" and least and found.similarity < least + CLOSE:
        return
    criteria = sorted(under(found.sentences, Part.CRITERIA), key=found.fits, reverse=True)
    given = 0
    for sentence in criteria:
        words = stems(sentence.text)
        news = words and covered(words, own) < HAD and all(likeness(words, other) < ALIKE for other in taken)
        if news and given < PER_ITEM:
            taken.append(words)
            given += 1
            yield sentence


def decisions_to_respect(
    items: Sequence[tuple[Found, PastDecision]], citations: Citations
) -> Iterator[Suggestion]:
    """Decisions in force; and those that no longer hold, with their status line."""
    for found, past in items:
        name = f"“{found.title}”"
        if past.in_force and past.status != "proposed" and past.citations:
            day = f", {past.date}" if past.date else ""
            first = clipped(decision_of(found)[0].text, SHORT)
            yield Suggestion(
                kind="decision",
                ref=found.external_id,
                text=f"Respect the decision {name} ({found.external_id}{day}): “{first}”",
                citations=past.citations[:1],
            )
        elif not past.in_force and (line := status_line(found)):
            by = f" by {past.superseded_by}" if past.superseded_by else ""
            ended = "superseded" if past.status == UNKNOWN else past.status
            yield Suggestion(
                kind="decision",
                ref=found.external_id,
                text=f"Do not build on {name} ({found.external_id}): it is {ended}{by}.",
                citations=(citations.cite(found, shortened(line)),),
            )


def duplicates_to_check(
    items: Sequence[Found], duplicates: Sequence[Duplicate], citations: Citations
) -> Iterator[Suggestion]:
    """One question for each likely duplicate: what is done may cover this, what was given up had its reasons."""
    wanted = {d.document_id: d for d in duplicates}
    for found in items:
        duplicate = wanted.get(str(found.hit.document.id))
        if duplicate is not None:
            title = Sentence(text=found.title, ord=found.hit.chunk.ord)
            best = next((b.sentence for b in best_passages(found, most=1)), title)
            asks = (
                "Ask why {} was not done" if is_abandoned(found) else "Check whether {} already covers this"
            )
            yield Suggestion(
                kind="duplicate",
                ref=found.external_id,
                text=f"{asks.format(_named(found))}: {duplicate.similarity} % alike.",
                citations=(citations.cite(found, best),),
            )


def _named(found: Found) -> str:
    """Its title and id, and how it ended if it was given up."""
    ended = (outcome_of(found) or status_of(found)) if is_abandoned(found) else None
    return f"“{found.title}” ({found.external_id}{f', {ended}' if ended else ''})"
