"""What a found document tells: its best passages, what became of work, what was decided, how much work it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from pipeline.documents import DECISION_STATUSES
from pipeline.enrichment.context import UNKNOWN, SimilarEffort
from pipeline.enrichment.found import FoundDocument
from pipeline.enrichment.text import (
    CUT,
    QUOTED,
    WITHOUT_BLANK,
    Part,
    Sentence,
    part_of,
    passage,
    single_line,
    stems,
    truncated,
    truncated_sentence,
    without_marks,
)
from pipeline.plain_text import is_same_title
from pipeline.search.records import StoredDocument

ENOUGH = 0.6
"""Of the best passage's score: a further one that has less is not worth showing."""
OF_THE_HIT = 1.25
"""How much more a passage counts that stands in the chunk the search has chosen."""
OF_LINKS = 0.5
"""How much a passage counts that only says where to read on."""
_DOTS = " ..."
_TARGET = re.compile(r"https?://\S+")
"""Where a link leads: its words are those of a site's folders, not of the text."""


_UNDOES = re.compile(
    r"(?:revert(?:ed|s)?|undo(?:es)?|back(?:ed)? out)\b[\s:]*[\"“']?(?P<title>[^\"”]+)", re.IGNORECASE
)
_LINK = re.compile(r"^ *[-*+] +([^:\n]{3,30}: .+)$", re.MULTILINE)
_FOLLOWS = re.compile(
    r"(?:(?:reverted|undone|broken|regressed|superseded) by|causes?d?|regressions?|follow(?:ed)?[ -]?ups?)\b[^:]{0,20}:"
    r"|(?:successor|child)\W+bug\b",
    re.IGNORECASE,
)
"""How a link begins that leads to a bug that an item had, or to what undid it."""


class Excerpt(NamedTuple):
    """A place of a document that matters for a question, short enough to be read at a glance."""

    sentence: Sentence
    """Its text and its place."""
    shown: str
    """With the nearest heading before it, if there is room."""


def best_passages(found: FoundDocument, *, most: int) -> list[Excerpt]:
    """At most `most` passages, the best first; none of a document without prose."""
    sentences, question, here = found.sentences, found.question, found.hit.chunk.ord
    if not sentences:
        return []
    words, headed = {}, {}
    for s in sentences:
        words[s] = stems(_TARGET.sub(" ", s.text)) & question
        headed[s.headings] = len(stems("".join(s.headings[-1:])) & question)

    def score(window: Sequence[Sentence]) -> float:
        """How many different words of the question it has, those under a fitting heading a little more."""
        first, had = window[0], frozenset[str]().union(*(words[s] for s in window))
        value = len(had) + 0.5 * headed[first.headings]
        value *= OF_LINKS if part_of(first.headings) is Part.ELSEWHERE else 1
        return value * (OF_THE_HIT if first.ord == here else 1)

    windows = _windows(sentences)
    scored = sorted(((score(window), -n) for n, window in enumerate(windows)), reverse=True)
    top, shown, seen = scored[0][0], list[Excerpt](), set[Sentence]()
    if not top:
        # No sentence has a word of the question: the first of the chunk that was found, or of the document.
        return [
            _shown(found, truncated_sentence(next((s for s in sentences if s.ord == here), sentences[0])))
        ]
    for value, n in scored:
        if value >= ENOUGH * top and len(shown) < most and seen.isdisjoint(windows[-n]):
            seen.update(windows[-n])
            shown.append(_shown(found, _joined(found, windows[-n])))
    return shown


def _windows(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """From each sentence on, as many of the same paragraph as may be shown together."""
    windows = []
    for n, first in enumerate(sentences):
        window = [first]
        size = len(first.text)
        for other in sentences[n + 1 :]:
            size += len(other.text) + 1
            apart = (other.paragraph, other.ord) != (first.paragraph, first.ord)
            if apart or size > QUOTED or window[-1].text.endswith(tuple(WITHOUT_BLANK)):
                break
            window.append(other)
        windows.append(window)
    return windows


def _joined(found: FoundDocument, window: Sequence[Sentence]) -> Sentence:
    """The window as one sentence; of a long text the part where the question's words stand."""
    first = window[0]
    if len(window) > 1 or len(first.text) <= QUOTED:
        return replace(first, text=" ".join(s.text for s in window))
    cut = passage(first.text, " ".join(sorted(found.question)), length=QUOTED).text
    line = single_line(first.text)
    if cut.endswith(_DOTS) and not line.endswith(cut):
        cut = cut.removesuffix(_DOTS) + f" {CUT}"
    if not line.startswith(cut[:-2]) and cut.startswith("... "):
        cut = f"{CUT} " + cut.removeprefix("... ")
    return replace(first, text=cut)


def _shown(found: FoundDocument, sentence: Sentence) -> Excerpt:
    heading = sentence.headings[-1] if sentence.headings else ""
    whole = f"{heading}{' ' if heading.endswith(('?', '!', ':')) else ': '}{sentence.text}"
    tells = heading and heading.casefold() != found.title.casefold() and len(whole) <= QUOTED
    return Excerpt(sentence, whole if tells else sentence.text)


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

    Of several, the first and the one closest to the question. Work that is still open teaches nothing, however its
    text reads: what was and had been there is a symptom.
    """
    if found.status and not (found.done or found.abandoned):
        return []
    kept = [*chain.from_iterable(_taught_by(part, found) for part in _PARTS)]
    if found.abandoned:
        comments = found.parts[Part.COMMENTS]
        last = _telling(s for s in comments if s.headings == comments[-1].headings)
        kept += [s for s in last if _TELLS.search(s.text)]
    kept = list({s.text: s for s in kept}.values())
    fits = partial(Sentence.has_of, words=found.question)
    chosen = [*kept[:1], *sorted(kept[1:], key=fits, reverse=True)[: MOST - 1]]
    return [truncated_sentence(s) for s in kept if s in chosen]


def _taught_by(part: Part, found: FoundDocument) -> list[Sentence]:
    """What a part tells that bears on the question; all lessons, and what stands alone in its part, are thought to."""
    told = _telling(found.parts[part])
    if part is Part.NOTES:
        long = (s for s in told if len(s.text) >= _FEWEST_CHARACTERS and s.text[-1] != ":")
        return [s for s in long if s.has_of(found.question) > 0]
    if part is Part.LESSONS or len(told) <= 1:
        return told
    fewest = min(_FEWEST_SHARED, len(found.question))
    return [s for s in told if len(stems(s.text) & found.question) >= fewest]


def _telling(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Those that say more than a state, or what is done with every item."""
    return [s for s in sentences if len(s.text.split()) >= _FEWEST_WORDS and not _ROUTINE.search(s.text)]


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
_DECIDES = re.compile(
    r"\b(?:we (?:will|have decided|decided|chose|choose|adopt|use|should|are going)|chosen option"
    r"|decided (?:to|that|on)"
    r"|(?:will|shall|must|should) (?:be|not|use|only)|is to be|wir (?:werden|verwenden|nutzen|haben)"
    r"|nous (?:allons|utilis))\b",
    re.IGNORECASE,
)
"""A sentence that tells what is to be done from now on."""
_REJECTS = re.compile(
    r"\b(?:reject(?:ed|ion)|declin(?:ed|ing)|withdrawn|turned down|decided against"
    r"|(?:will|did) not (?:go|pursue|adopt|accept)"
    r"|abgelehnt|verworfen|rejetée?)\b",
    re.IGNORECASE,
)
_GIVES_REASON = re.compile(
    r"\b(?:because|since|as (?:it|the|this|we)|due to|owing to|reason|too|no consensus|in favou?r of"
    r"|weil|wegen|parce que)\b",
    re.IGNORECASE,
)
_LONGEST_STATUS = 6
"""Words of a line that names a status alone."""
_PRO_AND_CON = re.compile(r"(?:good|bad|neutral|positive|negative)\b.{0,3}because\b", re.IGNORECASE)
_NO_PROSE = re.compile(r"[|<]|\{[^}]*\}?|!\[|\[[^\]]*\]\S*$|https?://\S+$|\*{0,2}[\w -]+:\*{0,2}$")
_ANNOUNCES = re.compile(r"this (?:adr|rfc|document|proposal|record|page)\b", re.IGNORECASE)
_SAYS_NOTHING = re.compile(r"\W*(?:(?:it )?comes out best|see below)\b", re.IGNORECASE)
_FEWEST_DECIDED = 3


def decision_of(found: FoundDocument) -> list[Sentence]:
    """The first sentences of the decision, else of the summary; of a document without either, its best passage.

    What is quoted is what others said, as the rule that a proposal is to change, unless all is.
    """
    told, summary = found.parts[Part.DECISION], found.parts[Part.SUMMARY]
    own = [s for s in told if not s.quote and not _ANNOUNCES.match(s.text)]
    parts = (own, told, [s for s in summary if not s.quote], summary)
    kept = next(filter(None, map(_first, parts)), None)
    return kept or [p.sentence for p in best_passages(found, most=1)]


def follow_up(found: FoundDocument, others: Iterable[FoundDocument]) -> str:
    """What undid an item or went wrong after it, in a few words: of its links, or another item that says so."""
    for other in others:
        undoes = _UNDOES.match(other.title)
        if undoes and other is not found and is_same_title(undoes["title"], found.title):
            return f"was undone by “{other.title}” ({other.external_id})"
    links = (without_marks(line[1]) for chunk in found.chunks for line in _LINK.finditer(chunk.content))
    link = next(filter(_FOLLOWS.match, links), None)
    return f"had a follow-up: “{truncated(link, QUOTED)}”" if link else ""


def rule_of(found: FoundDocument) -> Sentence | None:
    """The sentence that tells what was decided: the first that says so, else the first of the decision."""
    told = [s for s in found.parts[Part.DECISION] if not s.quote and not _ANNOUNCES.match(s.text)]
    prose = _prose(told)
    return next((s for s in prose if _DECIDES.search(s.text)), next(iter(prose), None))


def reasons_of_rejection(found: FoundDocument) -> list[Sentence]:
    """Why a record was rejected: its section on that, else what tells its status, else a sentence that says so."""
    parts = found.parts
    told = [s for s in parts[Part.STATUS] if len(s.text.split()) > _LONGEST_STATUS or _BECAUSE.search(s.text)]
    said = [s for s in found.sentences if _REJECTS.search(s.text) and _GIVES_REASON.search(s.text)]
    return next(filter(None, map(_first, (parts[Part.REJECTION], told, said))), [])


def rationale_of(found: FoundDocument) -> list[Sentence]:
    """Why, in the record's words: `Chosen option: ..., because`, its reasons, a `because`, else its context."""
    decided = found.parts[Part.DECISION]
    told = [(n, s, because) for n, s in enumerate(decided) if (because := _BECAUSE.search(s.text))]
    for n, sentence, because in told:
        if _CHOSEN.match(sentence.text):
            # What follows it stands on its line or as a list below it.
            listed = [s for s in decided[n + 1 :] if s.item and s.headings == sentence.headings]
            if reasons := _first([replace(sentence, text=because[1])] if because[1] else listed):
                return reasons
    others = [s for _, s, _ in told if not _PRO_AND_CON.match(s.text) and not _CHOSEN.match(s.text)]
    whys = (found.parts[Part.RATIONALE], others, found.parts[Part.CONTEXT])
    return next(filter(None, map(_first, whys)), [])


def constraints_of(found: FoundDocument) -> list[Sentence]:
    """What binds whoever builds on it: sentences that say must, never or only, and those under such a heading."""
    named = found.parts[Part.CONSTRAINTS]
    others = (s for part in (Part.DECISION, Part.CONSEQUENCES) for s in found.parts[part])
    binding = [s for s in others if _BINDS.search(s.text) and not _PRO_AND_CON.match(s.text)]
    return [truncated_sentence(s) for s in _prose([*binding, *named])][:MOST_CONSTRAINTS]


def status_of_decision(found: FoundDocument) -> str:
    """A key of `DECISION_STATUSES` as the source has it; `unknown` if it has none."""
    told = "superseded" if found.first_metadata("superseded_by") else found.first_metadata("decision_status")
    return told if told and told in DECISION_STATUSES else UNKNOWN


def status_line(found: FoundDocument) -> Sentence | None:
    """The sentence that tells the status, if the text does."""
    return next((s for s in found.parts[Part.STATUS] if _STATUS.search(s.text)), None)


def _first(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first that are prose, as many as may be shown."""
    kept: list[Sentence] = []
    for short in map(truncated_sentence, _prose(sentences)):
        if kept and sum(len(s.text) + 1 for s in kept) + len(short.text) > MOST_CHARACTERS:
            break
        kept.append(short)
    return kept


def _prose(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Without rows of tables, placeholders of templates, labels, heads of lists and bare links."""
    prose = [
        s
        for s in sentences
        if not _NO_PROSE.match(s.text)
        and not _SAYS_NOTHING.match(s.text)
        and len(s.text.split()) >= _FEWEST_DECIDED
    ]
    return [s for s in prose if not s.text.endswith((":", "："))] or prose


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
    """Calendar days from start to end; None of work that seems to have begun and ended on one day."""

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
    def overran(self) -> float:
        """What it took as a share of its estimate, 2.0 for twice as much; 0 unless both are known in one unit."""
        return self.compared[0] / self.compared[1] if self.compared else 0.0

    @property
    def text(self) -> str:
        """`took 21 points, estimated 13; 12 days`."""
        days = "" if self.days is None else _counted(self.days, "day")
        if self.compared:
            took, estimated, unit = self.compared
            work = f"took {_counted(took, unit)}, estimated {estimated:g}"
        else:
            told = (
                ("took", self.points, self.hours),
                ("estimated", self.estimated_points, self.estimated_hours),
            )
            work = ", ".join(
                f"{verb} {_counted(hours or 0, 'hour') if points is None else _counted(points, 'point')}"
                for verb, points, hours in told
                if points is not None or hours is not None
            )
        return f"{work}; {days}" if work and days else work or f"done after {days}"


def effort_of(document: StoredDocument) -> Effort | None:
    """What an item tells of its work by the metadata that connectors write; None: nothing.

    Without a known start its days begin when it was made; values of another type are left aside.
    """
    metadata = document.metadata
    start = _moment(metadata, "started_at") or document.created_at
    end = _moment(metadata, "resolved_at", "closed_at")
    days = None
    if start is not None and end is not None and end >= start:
        # On one day: the item was written down when it was done, and nothing tells how long it took.
        days = (end.astimezone(UTC).date() - start.astimezone(UTC).date()).days or None
    found = Effort(
        points=_amount(metadata, "actual_points"),
        estimated_points=_amount(metadata, "estimated_points", "story_points"),
        hours=_amount(metadata, "actual_hours"),
        estimated_hours=_amount(metadata, "estimated_hours"),
        days=days if days is not None and days <= LONGEST_DAYS else None,
    )
    return None if found == Effort() else found


def effort_of_similar(efforts: Sequence[Effort | None]) -> SimilarEffort | None:
    """The medians of at least three items that tell their days or points; None if fewer do."""
    days = [effort.days for effort in efforts if effort and effort.days is not None]
    points = [effort.size for effort in efforts if effort and effort.size is not None]
    of_days = median(days) if len(days) >= LEAST else None
    of_points = median(points) if len(points) >= LEAST else None
    middle, n, unit = (of_points, len(points), "point") if of_days is None else (of_days, len(days), "day")
    if middle is None:
        return None
    text = f"{NUMBERS[n] if n < len(NUMBERS) else n} like it: median {_counted(middle, unit)} (n = {n})"
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


def _counted(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
