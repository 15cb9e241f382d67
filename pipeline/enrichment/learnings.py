"""What became of past work, in its own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, under
from pipeline.enrichment.sentences import Sentence, shortened

MOST = 4
"""Sentences of one item."""
_PER_PART = 2

_DONE = frozenset(
    re.findall(
        r"\w+",
        "accepted closed complete completed delivered done finished fixed live released resolved shipped verified"
        " abgeschlossen erledigt fertig geschlossen fermé livré résolu terminé",
    )
)
_ABANDONED = re.compile(
    r"\b(?:abandoned|cancell?ed|cut|declined|dropped|invalid|not[ _]a[ _]bug|not[ _]planned|obsolete|rejected|removed"
    r"|(?:won['’]?t|will not)[ _]?(?:fix|do)|(?:as|by)[ _]design(?:ed)?|works[ _]?for[ _]?me"
    r"|verworfen|abgelehnt|entfernt|abandonné|rejeté|supprimé)\b",
    re.IGNORECASE,
)
_TELLS = re.compile(
    r"\b(?:learn(?:ed|t)|lessons?|turned out|root cause|(?:was|were) caused by|(?:was|were) fixed by|in hindsight"
    r"|showed that|we found that|next time|gelernt|stellte sich heraus|zeigte sich|ursache war|beim nächsten mal"
    r"|avons appris|s'est avéré|la prochaine fois)\b",
    re.IGNORECASE,
)
_HAPPENED = re.compile(
    r"\b(?:was|were|had|failed|broke|crashed|wurden?|war|waren|hatten?|était|étaient|avait)\b", re.IGNORECASE
)
"""A wish speaks of what shall be; where it speaks of what has been, something is to be learned."""
_PARTS = (Part.LESSONS, Part.RESOLUTION, Part.OUTCOME)


def status_of(found: Found) -> str | None:
    """Its state, as the source calls it."""
    return found.told("state", "status")


def outcome_of(found: Found) -> str | None:
    """How it ended, where the source has a field for that."""
    return found.told("resolution", "outcome", "reason")


def is_abandoned(found: Found) -> bool:
    """True for work that was given up."""
    return any(_ABANDONED.search(word) for word in (status_of(found), outcome_of(found)) if word)


def learnings(found: Found) -> list[Sentence]:
    """Lessons, resolution and outcome; of ended work also its last comment, of done work what it was accepted by."""
    kept: list[Sentence] = []
    for part in _PARTS:
        kept += _best(found, _telling(found, under(found.sentences, part)), _PER_PART)
    done = (status_of(found) or "").casefold() in _DONE
    if done or is_abandoned(found):
        kept += _last_comment(found)
    criteria = under(found.sentences, Part.CRITERIA)
    others = _telling(found, (s for s in found.sentences if s not in criteria))
    kept += [s for s in others if _TELLS.search(s.text)][:_PER_PART]
    kept += [s for s in criteria if s.ticked][:_PER_PART]
    if not kept:
        kept += [s for s in others if _HAPPENED.search(s.text)][:_PER_PART]
    if not kept and done:
        kept += _best(found, criteria, _PER_PART)
    return [shortened(s) for s in _once(kept)][:MOST]


def _telling(found: Found, sentences: Iterable[Sentence]) -> list[Sentence]:
    """Those that say more than the state: that has a place of its own."""
    states = _DONE | {told.casefold() for told in (status_of(found), outcome_of(found)) if told}
    return [s for s in sentences if not _is_state(s.text, states)]


def _is_state(text: str, states: frozenset[str]) -> bool:
    word = text.strip(" .!*_").casefold()
    return word in states or word in ("duplicate", "unresolved") or bool(_ABANDONED.fullmatch(word))


def _best(found: Found, sentences: Sequence[Sentence], most: int) -> list[Sentence]:
    """The first sentence and those closest to the question, in their order."""
    if len(sentences) <= most:
        return list(sentences)
    rest = sorted(sentences[1:], key=found.fits, reverse=True)[: most - 1]
    return [s for s in sentences if s is sentences[0] or s in rest]


def _last_comment(found: Found) -> list[Sentence]:
    """The beginning of what was said last."""
    comments = under(found.sentences, Part.COMMENTS)
    if not comments:
        return []
    last = [s for s in comments if s.headings == comments[-1].headings]
    return _telling(found, last)[:_PER_PART]


def _once(sentences: Iterable[Sentence]) -> list[Sentence]:
    return list({s.text: s for s in sentences}.values())
