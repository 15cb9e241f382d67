"""What a found document tells: what became of work, what was decided, and how much work it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from itertools import chain
from statistics import median
from typing import Any

from pipeline.documents import DECISION_STATUSES
from pipeline.enrichment.context import UNKNOWN, SimilarEffort
from pipeline.enrichment.found import FoundDocument, best_passages
from pipeline.enrichment.text import Part, Sentence, shortened, stems

MOST = 2
"""Sentences of one item."""
_FEWEST_WORDS = 5
"""A shorter sentence is a state or a remark."""
_FEWEST_SHARED = 2
"""Words of the question that a sentence has, where there are several to choose from."""
_FEWEST_CHARACTERS = 80
"""Of a sentence of notes: a shorter one is a step of the work, and no finding."""

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
_PARTS = (Part.LESSONS, Part.OUTCOME, Part.RESOLUTION, Part.NOTES)


def learnings(found: FoundDocument) -> list[Sentence]:
    """Lessons, outcome and resolution of ended work; of what was given up also why, as the last comment tells it.

    Work that is still open teaches nothing, however its text reads: what was and had been there is a symptom.
    """
    if found.status and not (found.done or found.abandoned):
        return []
    kept = [s for part in _PARTS for s in _learned(found, part)]
    if found.abandoned:
        kept += [s for s in _telling(_last_comment(found)) if _TELLS.search(s.text)]
    return [shortened(s) for s in _best(found, list({s.text: s for s in kept}.values()))]


def _learned(found: FoundDocument, part: Part) -> list[Sentence]:
    told = _telling(found.parts[part])
    if part is Part.NOTES:
        long = (s for s in told if len(s.text) >= _FEWEST_CHARACTERS and s.text[-1] != ":")
        return [s for s in long if found.fits(s) > 0]
    return told if part is Part.LESSONS or len(told) == 1 else [s for s in told if _fits(found, s)]


def _fits(found: FoundDocument, sentence: Sentence) -> bool:
    return len(stems(sentence.text) & found.question) >= min(_FEWEST_SHARED, len(found.question))


def _telling(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Those that say more than a state, or what is done with every item."""
    return [s for s in sentences if len(s.text.split()) >= _FEWEST_WORDS and not _ROUTINE.search(s.text)]


def _best(found: FoundDocument, sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first sentence and those closest to the question, in their order."""
    if len(sentences) <= MOST:
        return list(sentences)
    rest = sorted(sentences[1:], key=found.fits, reverse=True)[: MOST - 1]
    return [s for s in sentences if s is sentences[0] or s in rest]


def _last_comment(found: FoundDocument) -> list[Sentence]:
    comments = found.parts[Part.COMMENTS]
    return [s for s in comments if s.headings == comments[-1].headings]


MOST_CHARACTERS = 320
"""Of a decision's text, and of its reasons."""
MOST_CONSTRAINTS = 3

_STATUS = re.compile(rf"\b({'|'.join(chain(*DECISION_STATUSES.values()))})\b", re.IGNORECASE)
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
_FEWEST_DECIDED = 3


def decision_of(found: FoundDocument) -> list[Sentence]:
    """The first sentences of the decision; of a document without such a part, its best passage."""
    told = found.parts[Part.DECISION]
    kept = _first([s for s in told if not _ANNOUNCES.match(s.text)]) or _first(told)
    return kept or [p.sentence for p in best_passages(found, most=1)]


def rationale_of(found: FoundDocument) -> list[Sentence]:
    """Why, in the record's words: `Chosen option: ..., because`, its reasons, a `because`, else its context."""
    decided = found.parts[Part.DECISION]
    told = [s for s in decided if _BECAUSE.search(s.text)]
    return (
        _reasons_of_choice(decided)
        or _first(found.parts[Part.RATIONALE])
        or _first([s for s in told if not _PRO_AND_CON.match(s.text) and not _CHOSEN.match(s.text)])
        or _first(found.parts[Part.CONTEXT])
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


def constraints_of(found: FoundDocument) -> list[Sentence]:
    """What binds whoever builds on it: sentences that say must, never or only, and those under such a heading."""
    named = found.parts[Part.CONSTRAINTS]
    others = (s for part in (Part.DECISION, Part.CONSEQUENCES) for s in found.parts[part])
    binding = [s for s in others if _BINDS.search(s.text) and not _PRO_AND_CON.match(s.text)]
    return [shortened(s) for s in _prose([*binding, *named])][:MOST_CONSTRAINTS]


def status_of_decision(found: FoundDocument) -> str:
    """A key of `DECISION_STATUSES` as the source has it; `unknown` if it has none."""
    told = "superseded" if found.told("superseded_by") else found.told("decision_status")
    return told if told and told in DECISION_STATUSES else UNKNOWN


def status_line(found: FoundDocument) -> Sentence | None:
    """The sentence that tells the status, if the text does."""
    return next((s for s in found.parts[Part.STATUS] if _STATUS.search(s.text)), None)


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
        and len(s.text.split()) >= _FEWEST_DECIDED
    ]


LEAST = 3
"""A median of fewer items says nothing."""
LONGEST_DAYS = 7300
"""An item that seems to have taken longer has a wrong date."""
LEAST_AMOUNT, MOST_AMOUNT = 0.01, 20_000
"""Of points or hours that an item can have taken."""
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What is known of an item's work; at least one of these."""

    points: float | None = None
    """What it took; the others likewise."""
    estimated_points: float | None = None
    hours: float | None = None
    estimated_hours: float | None = None
    days: int | None = None
    """Calendar days from start to end, at least 1."""

    @property
    def size(self) -> float | None:
        """In points: what it took, else what it was thought to take."""
        return self.estimated_points if self.points is None else self.points

    @property
    def compared(self) -> tuple[float, float, str] | None:
        """What it took, its estimate and their unit; None unless both are known in one unit."""
        if self.points is not None and self.estimated_points is not None:
            return self.points, self.estimated_points, "point"
        if self.hours is not None and self.estimated_hours is not None:
            return self.hours, self.estimated_hours, "hour"
        return None

    @property
    def overran(self) -> float | None:
        """What it took as a share of its estimate, 2.0 for twice as much; None unless both are known in one unit."""
        return self.compared[0] / self.compared[1] if self.compared else None

    @property
    def text(self) -> str:
        """`took 21 points, estimated 13; 12 days`."""
        if self.compared:
            took, estimated, unit = self.compared
            work = f"took {_counted(took, unit)}, estimated {estimated:g}"
        else:
            took_any = _first_counted(self.points, self.hours)
            estimated_any = _first_counted(self.estimated_points, self.estimated_hours)
            told = (("took", took_any), ("estimated", estimated_any))
            work = ", ".join(f"{verb} {amount}" for verb, amount in told if amount)
        days = "" if self.days is None else _counted(self.days, "day")
        return f"{work}; {days}" if work and days else work or f"done after {days}"


def effort_of(found: FoundDocument) -> Effort | None:
    """What an item tells of its work; without a known start its days begin when it was made. None: it tells nothing."""
    return effort_in(found.document.metadata, found.document.created_at)


def effort_in(metadata: Mapping[str, Any], created_at: datetime | None) -> Effort | None:
    """The same of the metadata that connectors write; values of another type are left aside."""
    found = Effort(
        points=_amount(metadata, "actual_points"),
        estimated_points=_amount(metadata, "estimated_points", "story_points"),
        hours=_amount(metadata, "actual_hours"),
        estimated_hours=_amount(metadata, "estimated_hours"),
        days=_days(
            _moment(metadata, "started_at") or created_at, _moment(metadata, "resolved_at", "closed_at")
        ),
    )
    return None if found == Effort() else found


def effort_of_similar(efforts: Sequence[Effort | None]) -> SimilarEffort | None:
    """The medians of at least three items that tell their days or points; None if fewer do."""
    days = [effort.days for effort in efforts if effort and effort.days is not None]
    points = [effort.size for effort in efforts if effort and effort.size is not None]
    of_days = median(days) if len(days) >= LEAST else None
    of_points = median(points) if len(points) >= LEAST else None
    if of_days is not None:
        n, middle = len(days), _counted(of_days, "day")
    elif of_points is not None:
        n, middle = len(points), _counted(of_points, "point")
    else:
        return None
    number = NUMBERS[n] if n < len(NUMBERS) else str(n)
    text = f"{number} like it: median {middle} (n = {n})"
    return SimilarEffort(text=text, n=n, median_days=of_days, median_points=of_points)


def _amount(metadata: Mapping[str, Any], *keys: str) -> float | None:
    """The first of these numbers that can be one: trackers write 0 for what nobody filled in."""
    values = (metadata.get(key) for key in keys)
    numbers = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return next((v for v in numbers if LEAST_AMOUNT <= v <= MOST_AMOUNT), None)


def _moment(metadata: Mapping[str, Any], *keys: str) -> datetime | None:
    for key in keys:
        try:
            moment = datetime.fromisoformat(str(metadata.get(key)))
        except ValueError:
            continue
        # A day away from the calendar's ends, where another zone has no such day.
        if moment.tzinfo is not None and MINYEAR < moment.year < MAXYEAR:
            return moment
    return None


def _days(start: datetime | None, end: datetime | None) -> int | None:
    if start is None or end is None or end < start:
        return None
    days = max(1, (end.astimezone(UTC).date() - start.astimezone(UTC).date()).days)
    return days if days <= LONGEST_DAYS else None


def _counted(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"


def _first_counted(points: float | None, hours: float | None) -> str:
    return (
        _counted(points, "point") if points is not None else "" if hours is None else _counted(hours, "hour")
    )
