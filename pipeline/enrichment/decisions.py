"""What was decided and why, what follows from it, and whether it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.documents import DECISION_STATUSES
from pipeline.enrichment.context import UNKNOWN
from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, under
from pipeline.enrichment.passages import best_passages
from pipeline.enrichment.sentences import Sentence, shortened

MOST_CHARACTERS = 320
"""Of a decision's text, and of its reasons."""
MOST_CONSTRAINTS = 3

_WORDS = {word: status for status, words in DECISION_STATUSES.items() for word in words}
_WORD = re.compile(r"\b(" + "|".join(_WORDS) + r")\b", re.IGNORECASE)
_BECAUSE = re.compile(r"\b(?:because|weil|parce que)\b[:,]?\s*(.*)", re.IGNORECASE)
_CHOSEN = re.compile(r"\W*(?:chosen|selected|gewählte|option)\b", re.IGNORECASE)
_BINDS = re.compile(
    r"\b(?:must|shall|never|may not|no longer|only(?= (?:be|use|in|on|by|via|through|for|with))"
    r"|(?:is|are) (?:not allowed|forbidden|prohibited|mandatory)"
    r"|muss|müssen|darf|dürfen|niemals|nur noch|doit|doivent|jamais|ne peut|ne peuvent)\b",
    re.IGNORECASE,
)
_PRO_AND_CON = re.compile(r"(?:good|bad|neutral|positive|negative)\b.{0,3}because\b", re.IGNORECASE)
_NO_PROSE = re.compile(r"[|<]|\{[^}]*\}?|!\[|\[[^\]]*\]\S*$|https?://\S+$|\*{0,2}[\w -]+:\*{0,2}$")
_ANNOUNCES = re.compile(r"this (?:adr|rfc|document|proposal|record|page)\b", re.IGNORECASE)
_SAYS_NOTHING = re.compile(r"\W*(?:(?:it )?comes out best|see below)\b", re.IGNORECASE)
_FEWEST_WORDS = 3


def decision_of(found: Found) -> list[Sentence]:
    """The first sentences of the decision; of a document without such a part, its best passage."""
    told = under(found.sentences, Part.DECISION)
    kept = _first([s for s in told if not _ANNOUNCES.match(s.text)]) or _first(told)
    return kept or [p.sentence for p in best_passages(found, most=1)]


def rationale_of(found: Found) -> list[Sentence]:
    """Why, in the record's words: `Chosen option: ..., because`, its reasons, a `because`, else its context."""
    decided = under(found.sentences, Part.DECISION)
    told = [s for s in decided if _BECAUSE.search(s.text)]
    return (
        _reasons_of_choice(decided)
        or _first(under(found.sentences, Part.RATIONALE))
        or _first([s for s in told if not _PRO_AND_CON.match(s.text) and not _CHOSEN.match(s.text)])
        or _first(under(found.sentences, Part.CONTEXT))
    )


def _reasons_of_choice(decided: Sequence[Sentence]) -> list[Sentence]:
    """What follows `Chosen option: ..., because`, on its line or as a list below it."""
    for n, sentence in enumerate(decided):
        because = _BECAUSE.search(sentence.text)
        if because and _CHOSEN.match(sentence.text):
            listed = [s for s in decided[n + 1 :] if s.item and s.headings == sentence.headings]
            if reasons := _first([replace(sentence, text=because[1])] if because[1] else listed):
                return reasons
    return []


def constraints_of(found: Found) -> list[Sentence]:
    """What binds whoever builds on it: sentences that say must, never or only, and those under such a heading."""
    named = under(found.sentences, Part.CONSTRAINTS)
    others = (s for part in (Part.DECISION, Part.CONSEQUENCES) for s in under(found.sentences, part))
    binding = [s for s in others if _BINDS.search(s.text) and not _PRO_AND_CON.match(s.text)]
    return [shortened(s) for s in _prose([*binding, *named])][:MOST_CONSTRAINTS]


def status_line(found: Found) -> Sentence | None:
    """The sentence that tells the status, if the text does."""
    return next((s for s in under(found.sentences, Part.STATUS) if _WORD.search(s.text)), None)


def status_of(found: Found) -> str:
    """A key of `DECISION_STATUSES`; `unknown` if neither the source nor the text tells."""
    told = "superseded" if found.told("superseded_by") else found.told("decision_status") or ""
    if told in DECISION_STATUSES:
        return told
    line = status_line(found)
    said = {_WORDS[match[1].lower()] for match in _WORD.finditer(line.text)} if line else set()
    return next((status for status in DECISION_STATUSES if status in said), UNKNOWN)


def _first(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first that are prose, as many as may be shown."""
    kept: list[Sentence] = []
    for short in map(shortened, _prose(sentences)):
        if kept and sum(len(s.text) + 1 for s in kept) + len(short.text) > MOST_CHARACTERS:
            break
        kept.append(short)
    return kept


def _prose(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Without rows of tables, placeholders of templates, labels and bare links."""
    return [
        s
        for s in sentences
        if not _NO_PROSE.match(s.text)
        and not _SAYS_NOTHING.match(s.text)
        and len(s.text.split()) >= _FEWEST_WORDS
    ]
