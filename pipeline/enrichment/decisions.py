"""What was decided, whether it still holds, and since when."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, under
from pipeline.enrichment.passages import best_passages
from pipeline.enrichment.sentences import Sentence, shortened

MOST_CHARACTERS = 320
"""Of a decision's text."""

STATUS_WORDS: Mapping[str, tuple[str, ...]] = {
    "superseded": ("superseded", "replaced", "ersetzt", "abgelöst", "überholt", "remplacé", "remplacée"),
    "rejected": ("rejected", "declined", "abgelehnt", "verworfen", "rejeté", "rejetée"),
    "deprecated": ("deprecated", "obsolete", "veraltet", "obsolète"),
    "proposed": ("proposed", "draft", "vorgeschlagen", "entwurf", "proposé", "proposée", "brouillon"),
    "accepted": (
        "accepted", "approved", "adopted", "decided", "angenommen", "beschlossen", "akzeptiert", "accepté",
        "acceptée", "adopté", "adoptée",
    ),
}  # fmt: skip
"""Status -> words that say so; of several, the first row that fits counts."""

_WORDS = {word: status for status, words in STATUS_WORDS.items() for word in words}
_WORD = re.compile(r"\b(" + "|".join(_WORDS) + r")\b", re.IGNORECASE)


def decision_of(found: Found) -> list[Sentence]:
    """The first sentences of the decision; of a document without such a part, its best passage."""
    kept: list[Sentence] = []
    for sentence in under(found.sentences, Part.DECISION):
        short = shortened(sentence)
        if kept and sum(len(s.text) + 1 for s in kept) + len(short.text) > MOST_CHARACTERS:
            break
        kept.append(short)
    return kept or [p.sentence for p in best_passages(found, most=1)]


def status_line(found: Found) -> Sentence | None:
    """The sentence that tells the status, if the text does."""
    return next((s for s in under(found.sentences, Part.STATUS) if _WORD.search(s.text)), None)


def status_of(found: Found) -> str | None:
    """One word of `STATUS_WORDS`; None if neither the source nor the text tells."""
    told = found.told("decision_status")
    if told:
        return told
    line = status_line(found)
    said = {_WORDS[match[1].lower()] for match in _WORD.finditer(line.text)} if line else set()
    return next((status for status in STATUS_WORDS if status in said), None)
