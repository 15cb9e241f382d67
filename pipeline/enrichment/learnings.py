"""What became of past work, in its own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, under
from pipeline.enrichment.sentences import Sentence, shortened
from pipeline.enrichment.words import stems
from pipeline.search.validity import repeats

MOST = 2
"""Sentences of one item."""
_FEWEST_WORDS = 5
"""A shorter sentence is a state or a remark."""
_FEWEST_SHARED = 2
"""Words of the question that a sentence has, where there are several to choose from."""
_FEWEST_CHARACTERS = 80
"""Of a sentence of notes: a shorter one is a step of the work, and no finding."""

_DONE = re.compile(
    r"\b(?:accepted|closed|completed?|delivered|done|fixed|implemented|live|merged|released|resolved|shipped|verified"
    r"|abgeschlossen|erledigt|fertig|geschlossen|fermée?|livrée?|résolue?|terminée?)\b",
    re.IGNORECASE,
)
_ABANDONED = re.compile(
    r"\b(?:abandoned|cancell?ed|cut|declined|dropped|invalid|not[ _]a[ _]bug|not[ _]planned|obsolete|rejected|removed"
    r"|(?:won['’]?t|will not)[ _]?(?:fix|do)|(?:as|by)[ _]design(?:ed)?|works[ _]?for[ _]?me"
    r"|verworfen|abgelehnt|entfernt|abandonné|rejeté|supprimé)\b",
    re.IGNORECASE,
)
_REOPENED = re.compile(r"\bre-?opened\b", re.IGNORECASE)
_TELLS = re.compile(
    r"\b(?:learn(?:ed|t)|lessons?|turned out|root cause|in hindsight|showed that|next time|given up|dropped because"
    r"|instead of|gelernt|stellte sich heraus|zeigte sich|ursache war|beim nächsten mal|avons appris|s'est avéré"
    r"|la prochaine fois)\b",
    re.IGNORECASE,
)
"""Of a comment: it says what came of it and why."""
_ROUTINE = re.compile(
    r"^\W*(?:(?:unit |regression |more )?tests? (?:added|pass|were)"
    r"|(?:added|updated|wrote|extended|ran|adjusted) (?:\w+ )?(?:tests?|docs?|documentation|readme|changelog)"
    r"|committed|merged|pushed|thanks|see |done|closing|fixed (?:in|by)\b|implemented in\b|verified\b"
    r"|(?:all )?(?:acceptance|ac\b)|duplicate|no changes?\b"
    r"|conducted\b|created\b|evidence:|tests?:|successfully\b|focused\b)",
    re.IGNORECASE,
)
"""What is done with every item teaches nothing about this one."""
_PARTS = (Part.LESSONS, Part.OUTCOME, Part.RESOLUTION)


def status_of(found: Found) -> str | None:
    """Its state, as the source calls it."""
    return found.told("state", "status")


def outcome_of(found: Found) -> str | None:
    """How it ended, where the source has a field for that."""
    return found.told("resolution", "outcome", "reason")


def is_abandoned(found: Found) -> bool:
    """True for work that was given up."""
    return any(_ABANDONED.search(word) for word in (status_of(found), outcome_of(found)) if word)


def is_done(found: Found) -> bool:
    """True for work that its source calls finished, and nobody gave up, took up again or closed as a duplicate."""
    state = status_of(found) or ""
    ended = bool(_DONE.search(state)) and not _REOPENED.search(state)
    return ended and not is_abandoned(found) and not repeats(found.hit.document)


def learnings(found: Found) -> list[Sentence]:
    """Lessons, outcome and resolution of ended work; of what was given up also why, as the last comment tells it.

    Work that is still open teaches nothing, however its text reads: what was and had been there is a symptom.
    """
    if status_of(found) and not (is_done(found) or is_abandoned(found)):
        return []
    kept: list[Sentence] = []
    for part in _PARTS:
        told = _telling(under(found.sentences, part))
        kept += told if part is Part.LESSONS or len(told) == 1 else [s for s in told if _fits(found, s)]
    notes = _telling(under(found.sentences, Part.NOTES))
    kept += [
        s for s in notes if len(s.text) >= _FEWEST_CHARACTERS and s.text[-1] != ":" and found.fits(s) > 0
    ]
    if is_abandoned(found):
        kept += [s for s in _telling(_last_comment(found)) if _TELLS.search(s.text)]
    return [shortened(s) for s in _best(found, list({s.text: s for s in kept}.values()))]


def _fits(found: Found, sentence: Sentence) -> bool:
    return len(stems(sentence.text) & found.question) >= min(_FEWEST_SHARED, len(found.question))


def _telling(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Those that say more than a state, or what is done with every item."""
    return [s for s in sentences if len(s.text.split()) >= _FEWEST_WORDS and not _ROUTINE.search(s.text)]


def _best(found: Found, sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first sentence and those closest to the question, in their order."""
    if len(sentences) <= MOST:
        return list(sentences)
    rest = sorted(sentences[1:], key=found.fits, reverse=True)[: MOST - 1]
    return [s for s in sentences if s is sentences[0] or s in rest]


def _last_comment(found: Found) -> list[Sentence]:
    comments = under(found.sentences, Part.COMMENTS)
    return [s for s in comments if s.headings == comments[-1].headings]
