"""Extraction from documents: best passages, learnings of finished work, decisions with reasons, effort."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from pipeline.documents import DECISION_STATUSES
from pipeline.documents.plain_text import is_same_title
from pipeline.enrichment.context import UNKNOWN, SimilarEffort
from pipeline.enrichment.references import FoundDocument
from pipeline.enrichment.text import (
    CUT,
    QUOTED,
    WITHOUT_BLANK,
    Section,
    Sentence,
    passage,
    section_of,
    single_line,
    stems,
    truncated,
    truncated_sentence,
    without_marks,
)
from pipeline.search.records import StoredDocument

ENOUGH = 0.6
"""Share of the best passage's score that a further passage needs."""
OF_THE_HIT = 1.25
"""Factor for passages in the chunk of the hit."""
OF_MEANING = 3.0
"""Weight of the similarity of a passage's chunk to the query, against that of the document's most similar chunk."""
OF_LINKS = 0.5
"""Factor for passages that only refer to other texts."""
_DOTS = " ..."
_TARGET = re.compile(r"https?://\S+")
"""Address of a link, whose words belong to a site's folders and not to the text."""


_UNDOES = re.compile(
    r"(?:revert(?:ed|s)?|undo(?:es)?|back(?:ed)? out)\b[\s:]*[\"“']?(?P<title>[^\"”]+)", re.IGNORECASE
)
_LINK = re.compile(r"^ *[-*+] +([^:\n]{3,30}: .+)$", re.MULTILINE)
_FOLLOWS = re.compile(
    r"(?:(?:reverted|undone|broken|regressed|superseded) by|causes?d?|regressions?|follow(?:ed)?[ -]?ups?)\b[^:]{0,20}:"
    r"|(?:successor|child)\W+bug\b",
    re.IGNORECASE,
)
"""Beginning of a link to a bug that an item caused, or to the change that undid it."""


class Excerpt(NamedTuple):
    """A short passage of a document that is relevant for a query."""

    sentence: Sentence
    """Text and position of the passage."""
    display: str
    """Text with the nearest heading before it, if it is short enough."""


def best_passages(reference: FoundDocument, *, most: int) -> list[Excerpt]:
    """Best passages of a document, at most `most`, the best first; none without prose."""
    sentences, question, hit_ord = reference.sentences, reference.question, reference.hit.chunk.ord
    if not sentences:
        return []
    closest = max(reference.similarities.values(), default=0.0)
    words, headed = {}, {}
    for s in sentences:
        words[s] = stems(_TARGET.sub(" ", s.text)) & question
        headed[s.headings] = len(stems("".join(s.headings[-1:])) & question)

    def score(window: Sequence[Sentence]) -> float:
        """Number of the query's words in a window and its heading, times the meaning of its chunk."""
        first, had = window[0], frozenset[str]().union(*(words[s] for s in window))
        value = len(had) + 0.5 * headed[first.headings]
        value *= OF_LINKS if section_of(first.headings) is Section.ELSEWHERE else 1
        value *= math.exp(OF_MEANING * (reference.similarities.get(first.ord, closest) - closest))
        return value * (OF_THE_HIT if first.ord == hit_ord else 1)

    windows = _windows(sentences)
    scored = sorted(((score(window), -n) for n, window in enumerate(windows)), reverse=True)
    top, excerpts, used = scored[0][0], list[Excerpt](), set[Sentence]()
    if not top:
        # No sentence has a word of the query: the first sentence of the hit's chunk, or of the document.
        return [
            _excerpt(
                reference, truncated_sentence(next((s for s in sentences if s.ord == hit_ord), sentences[0]))
            )
        ]
    for value, n in scored:
        if value >= ENOUGH * top and len(excerpts) < most and used.isdisjoint(windows[-n]):
            used.update(windows[-n])
            excerpts.append(_excerpt(reference, _joined(reference, windows[-n])))
    return excerpts


def _windows(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """A window for each sentence, with as many following ones of its paragraph as fit into a quotation."""
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


def _joined(reference: FoundDocument, window: Sequence[Sentence]) -> Sentence:
    """The window as one sentence; of a long text the part with the query's words."""
    first = window[0]
    if len(window) > 1 or len(first.text) <= QUOTED:
        return replace(first, text=" ".join(s.text for s in window))
    cut = passage(first.text, " ".join(sorted(reference.question)), length=QUOTED).text
    line = single_line(first.text)
    if cut.endswith(_DOTS) and not line.endswith(cut):
        cut = cut.removesuffix(_DOTS) + f" {CUT}"
    if not line.startswith(cut[:-2]) and cut.startswith("... "):
        cut = f"{CUT} " + cut.removeprefix("... ")
    return replace(first, text=cut)


def _excerpt(reference: FoundDocument, sentence: Sentence) -> Excerpt:
    heading = sentence.headings[-1] if sentence.headings else ""
    whole = f"{heading}{' ' if heading.endswith(('?', '!', ':')) else ': '}{sentence.text}"
    tells = heading and heading.casefold() != reference.title.casefold() and len(whole) <= QUOTED
    return Excerpt(sentence, whole if tells else sentence.text)


MOST = 2
"""Most sentences of one item."""
_FEWEST_WORDS = 5
"""Least words of a sentence that is more than a state or a remark."""
_FEWEST_SHARED = 2
"""Least words that a sentence shares with the query, if there are several sentences."""
_FEWEST_CHARACTERS = 80
"""Least characters of a sentence of notes: a shorter one is a step of the work, not a finding."""

_TELLS = re.compile(
    r"\b(?:learn(?:ed|t)|lessons?|turned out|root cause|in hindsight|showed that|next time|given up|dropped because"
    r"|instead of|gelernt|stellte sich heraus|zeigte sich|ursache war|beim nächsten mal|avons appris|s'est avéré"
    r"|la prochaine fois)\b",
    re.IGNORECASE,
)
"""Words of a comment that explains outcome and reasons."""
_ROUTINE = re.compile(
    r"^\W*(?:(?:unit |regression |more )?tests? (?:added|pass|were)"
    r"|(?:added|updated|wrote|extended|ran|adjusted) (?:\w+ )?(?:tests?|docs?|documentation|readme|changelog)"
    r"|committed|merged|pushed|thanks|see |done|closing|fixed (?:in|by)\b|implemented in\b|verified\b"
    r"|(?:all )?(?:acceptance|ac\b)|duplicate|no changes?\b"
    r"|conducted\b|created\b|evidence:|tests?:|successfully\b|focused\b)",
    re.IGNORECASE,
)
"""Routine steps that are done for every item and teach nothing."""
_LEARNING_SECTIONS = (Section.LESSONS, Section.OUTCOME, Section.RESOLUTION, Section.NOTES)


def learnings(reference: FoundDocument) -> list[Sentence]:
    """Lessons, outcome and resolution of ended work; for abandoned work also the reasons in the last comment.

    Of several sentences, the first and the one closest to the query. Open work has no learnings, even if its text is
    in the past tense, which then describes symptoms.
    """
    if reference.status and not (reference.done or reference.abandoned):
        return []
    sentences = [*chain.from_iterable(_taught_by(section, reference) for section in _LEARNING_SECTIONS)]
    if reference.abandoned:
        comments = reference.sections[Section.COMMENTS]
        last = _telling(s for s in comments if s.headings == comments[-1].headings)
        sentences += [s for s in last if _TELLS.search(s.text)]
    sentences = list({s.text: s for s in sentences}.values())
    fits = partial(Sentence.has_of, words=reference.question)
    chosen = [*sentences[:1], *sorted(sentences[1:], key=fits, reverse=True)[: MOST - 1]]
    return [truncated_sentence(s) for s in sentences if s in chosen]


def _taught_by(section: Section, reference: FoundDocument) -> list[Sentence]:
    """Sentences of a section that are relevant for the query; lessons and single sentences always are."""
    sentences = _telling(reference.sections[section])
    if section is Section.NOTES:
        long = (s for s in sentences if len(s.text) >= _FEWEST_CHARACTERS and s.text[-1] != ":")
        return [s for s in long if s.has_of(reference.question) > 0]
    if section is Section.LESSONS or len(sentences) <= 1:
        return sentences
    fewest = min(_FEWEST_SHARED, len(reference.question))
    return [s for s in sentences if len(stems(s.text) & reference.question) >= fewest]


def _telling(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sentences that are more than a state or a routine step."""
    return [s for s in sentences if len(s.text.split()) >= _FEWEST_WORDS and not _ROUTINE.search(s.text)]


MOST_CHARACTERS = 320
"""Most characters of a decision's text, and of its reasons."""
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
"""Words of a sentence that states a decision."""
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
"""Most words of a line that only names a status."""
_PRO_AND_CON = re.compile(r"(?:good|bad|neutral|positive|negative)\b.{0,3}because\b", re.IGNORECASE)
_NO_PROSE = re.compile(r"[|<]|\{[^}]*\}?|!\[|\[[^\]]*\]\S*$|https?://\S+$|\*{0,2}[\w -]+:\*{0,2}$")
_ANNOUNCES = re.compile(r"this (?:adr|rfc|document|proposal|record|page)\b", re.IGNORECASE)
_SAYS_NOTHING = re.compile(r"\W*(?:(?:it )?comes out best|see below)\b", re.IGNORECASE)
_FEWEST_DECIDED = 3


def decision_of(reference: FoundDocument) -> list[Sentence]:
    """The first sentences of the decision, else of the summary; of a document without both its best passage.

    Quotations are left out unless there is nothing else: they state, for example, the rule that a proposal changes.
    """
    decision, summary = reference.sections[Section.DECISION], reference.sections[Section.SUMMARY]
    unquoted = [s for s in decision if not s.quote and not _ANNOUNCES.match(s.text)]
    choices = (unquoted, decision, [s for s in summary if not s.quote], summary)
    chosen = next(filter(None, map(_first, choices)), None)
    return chosen or [p.sentence for p in best_passages(reference, most=1)]


def follow_up(reference: FoundDocument, references: Iterable[FoundDocument]) -> str:
    """Short description of what undid an item or followed from it, by its links or by other items' titles."""
    for other in references:
        undoes = _UNDOES.match(other.title)
        if undoes and other is not reference and is_same_title(undoes["title"], reference.title):
            return f"was undone by “{other.title}” ({other.external_id})"
    links = (without_marks(line[1]) for chunk in reference.chunks for line in _LINK.finditer(chunk.content))
    link = next(filter(_FOLLOWS.match, links), None)
    return f"had a follow-up: “{truncated(link, QUOTED)}”" if link else ""


def rule_of(reference: FoundDocument) -> Sentence | None:
    """The sentence with the decision: the first that states one, else the first of the section."""
    sentences = [
        s for s in reference.sections[Section.DECISION] if not s.quote and not _ANNOUNCES.match(s.text)
    ]
    prose = _prose(sentences)
    return next((s for s in prose if _DECIDES.search(s.text)), next(iter(prose), None))


def reasons_of_rejection(reference: FoundDocument) -> list[Sentence]:
    """Reasons for a rejection, from the section on it, else from the status, else from a sentence about it."""
    sections = reference.sections
    from_status = [
        s
        for s in sections[Section.STATUS]
        if len(s.text.split()) > _LONGEST_STATUS or _BECAUSE.search(s.text)
    ]
    rejections = [s for s in reference.sentences if _REJECTS.search(s.text) and _GIVES_REASON.search(s.text)]
    return next(filter(None, map(_first, (sections[Section.REJECTION], from_status, rejections))), [])


def rationale_of(reference: FoundDocument) -> list[Sentence]:
    """Reasons for a decision: after `Chosen option: ..., because`, else its rationale, a `because`, or its context."""
    decided = reference.sections[Section.DECISION]
    reasoned = [(n, s, because) for n, s in enumerate(decided) if (because := _BECAUSE.search(s.text))]
    for n, sentence, because in reasoned:
        if _CHOSEN.match(sentence.text):
            # The reasons are on the same line, or in a list below it.
            listed = [s for s in decided[n + 1 :] if s.item and s.headings == sentence.headings]
            if reasons := _first([replace(sentence, text=because[1])] if because[1] else listed):
                return reasons
    further = [s for _, s, _ in reasoned if not _PRO_AND_CON.match(s.text) and not _CHOSEN.match(s.text)]
    whys = (reference.sections[Section.RATIONALE], further, reference.sections[Section.CONTEXT])
    return next(filter(None, map(_first, whys)), [])


def constraints_of(reference: FoundDocument) -> list[Sentence]:
    """Constraints of a decision: sentences with must, never or only, and those under a heading for constraints."""
    named = reference.sections[Section.CONSTRAINTS]
    sentences = (
        s for section in (Section.DECISION, Section.CONSEQUENCES) for s in reference.sections[section]
    )
    binding = [s for s in sentences if _BINDS.search(s.text) and not _PRO_AND_CON.match(s.text)]
    return [truncated_sentence(s) for s in _prose([*binding, *named])][:MOST_CONSTRAINTS]


def status_of_decision(reference: FoundDocument) -> str:
    """Status of a decision, a key of `DECISION_STATUSES`; `unknown` if the source has none."""
    status = (
        "superseded"
        if reference.first_metadata("superseded_by")
        else reference.first_metadata("decision_status")
    )
    return status if status and status in DECISION_STATUSES else UNKNOWN


def status_line(reference: FoundDocument) -> Sentence | None:
    """The sentence with the status, if there is one."""
    return next((s for s in reference.sections[Section.STATUS] if _STATUS.search(s.text)), None)


def _first(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first sentences of prose, up to the most characters."""
    shortened: list[Sentence] = []
    for short in map(truncated_sentence, _prose(sentences)):
        if shortened and sum(len(s.text) + 1 for s in shortened) + len(short.text) > MOST_CHARACTERS:
            break
        shortened.append(short)
    return shortened


def _prose(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sentences without rows of tables, placeholders of templates, labels, heads of lists and bare links."""
    prose = [
        s
        for s in sentences
        if not _NO_PROSE.match(s.text)
        and not _SAYS_NOTHING.match(s.text)
        and len(s.text.split()) >= _FEWEST_DECIDED
    ]
    return [s for s in prose if not s.text.endswith((":", "："))] or prose


LEAST = 3
"""Least number of items for a median."""
LONGEST_DAYS = 7300
"""Most days of an item; longer durations come from wrong dates."""
LEAST_AMOUNT, MOST_AMOUNT = 0.01, 20_000
"""Range of plausible points or hours of an item."""
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Known effort of an item; at least one field is set."""

    points: float | None = None
    """Actual story points."""
    estimated_points: float | None = None
    hours: float | None = None
    estimated_hours: float | None = None
    days: int | None = None
    """Calendar days from start to end; None for work that apparently began and ended on one day."""

    @property
    def size(self) -> float | None:
        """Story points, actual or else estimated."""
        return self.estimated_points if self.points is None else self.points

    @property
    def compared(self) -> tuple[float, float, str] | None:
        """Actual effort, estimate and unit; None unless both are known in one unit."""
        if self.points is not None and self.estimated_points is not None:
            return self.points, self.estimated_points, "point"
        if self.hours is not None and self.estimated_hours is not None:
            return self.hours, self.estimated_hours, "hour"
        return None

    @property
    def overran(self) -> float:
        """Actual effort relative to the estimate, 2.0 for twice as much; 0 unless both are known in one unit."""
        return self.compared[0] / self.compared[1] if self.compared else 0.0

    @property
    def text(self) -> str:
        """Description, such as `took 21 points, estimated 13; 12 days`."""
        days = "" if self.days is None else _counted(self.days, "day")
        if self.compared:
            took, estimated, unit = self.compared
            work = f"took {_counted(took, unit)}, estimated {estimated:g}"
        else:
            amounts = (
                ("took", self.points, self.hours),
                ("estimated", self.estimated_points, self.estimated_hours),
            )
            work = ", ".join(
                f"{verb} {_counted(hours or 0, 'hour') if points is None else _counted(points, 'point')}"
                for verb, points, hours in amounts
                if points is not None or hours is not None
            )
        return f"{work}; {days}" if work and days else work or f"done after {days}"


def effort_of(document: StoredDocument) -> Effort | None:
    """Effort of an item from the metadata that connectors write; None if there is none.

    Without a known start the days count from its creation; values of another type are ignored.
    """
    metadata = document.metadata
    start = _moment(metadata, "started_at") or document.created_at
    end = _moment(metadata, "resolved_at", "closed_at")
    days = None
    if start is not None and end is not None and end >= start:
        # On one day: the item was written down when it was done, so its duration is unknown.
        days = (end.astimezone(UTC).date() - start.astimezone(UTC).date()).days or None
    effort = Effort(
        points=_amount(metadata, "actual_points"),
        estimated_points=_amount(metadata, "estimated_points", "story_points"),
        hours=_amount(metadata, "actual_hours"),
        estimated_hours=_amount(metadata, "estimated_hours"),
        days=days if days is not None and days <= LONGEST_DAYS else None,
    )
    return None if effort == Effort() else effort


def effort_of_similar(efforts: Sequence[Effort | None]) -> SimilarEffort | None:
    """Medians of days and points; None if fewer than three items have them."""
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
    """The first of these numbers in the plausible range; trackers write 0 for empty fields."""
    values = (metadata.get(key) for key in keys)
    numbers = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return next((v for v in numbers if LEAST_AMOUNT <= v <= MOST_AMOUNT), None)


def _moment(metadata: Mapping[str, Any], *keys: str) -> datetime | None:
    for key in keys:
        try:
            moment = datetime.fromisoformat(str(metadata.get(key)))
        except ValueError:
            continue
        # Not in the first or last year, which could overflow in another time zone.
        if moment.tzinfo is not None and MINYEAR < moment.year < MAXYEAR:
            return moment
    return None


def _counted(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
