"""One PBI as a readable text with facts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from connectors.documents.front_matter import tags_of
from connectors.documents.headings import MAX_TITLE
from connectors.documents.json_values import clean_text, json_able, measure, number_of, scalar_text
from connectors.documents.times import parse_time
from connectors.pbi.comments import comments_block
from connectors.pbi.effort import course_facts, effort_facts
from connectors.pbi.links import duplicate_of, own_url
from connectors.pbi.shapes import ID_KEYS, TITLE_KEYS, PbiItem, plain_keys, text_of

CREATED_KEYS = (
    "createdat",
    "created",
    "createddate",
    "timestamp",
    "generatedat",
    "processedat",
    "extractedat",
)
UPDATED_KEYS = ("updatedat", "updated", "modifiedat")
QUALITY_KEYS = ("confidencescore", "qualityscore", "confidence", "overallscore", "score")
SCORE_KEYS = ("overallconfidence", "confidencescore", "overallscore", "overall", "confidence", "qualityscore")
MOST_SCORE = 100
FACTS: Mapping[str, tuple[str, ...]] = {
    "priority": ("priority",),
    "type": ("type", "workitemtype"),
    "status": ("status", "state"),
    "dependencies": ("dependencies", "dependson"),
    "outcome": ("outcome",),
    "resolution": ("resolution", "resolvedreason", "closedreason", "statereason"),
}
SHORT_FACTS = ("outcome", "resolution")
"""Facts that are a state, such as `Won't fix`: a sentence is told by the text alone."""
MOST_WORDS = 3
TEXTS: Mapping[str, tuple[str, ...]] = {
    "User story": ("userstory",),
    "Description": ("description",),
    "Business value": ("businessvalue",),
    "Rationale": ("rationale",),
    "Notes": ("notes",),
    "Technical notes": ("technicalnotes", "implementationnotes"),
    "Assumptions": ("assumptions",),
    "Risks": ("risks",),
    "Dependencies": ("dependencies", "dependson"),
    "Outcome": ("outcome",),
    "Resolution": ("resolution",),
    "Closing comment": ("closingcomment", "closecomment", "resolutioncomment", "closingnote"),
    "Lessons learned": ("lessonslearned", "learnings", "lessons"),
}
ENDINGS = ("Resolution", "Closing comment", "Outcome")
"""The texts that tell how it ended, the surest first."""
COMMENT_KEYS = ("comments", "discussion")
CRITERIA_KEYS = ("acceptancecriteria", "criteria")
_BULLET = re.compile(r"^\s*(?:[-*+\u2022]|\d+[.)])\s+")


@dataclass(frozen=True, kw_only=True)
class PbiRecord:
    """A PBI as it stands in one file."""

    id: str
    title: str
    text: str
    tags: tuple[str, ...]
    timestamp: str
    """When it was created, as the file or its run says; empty if neither does."""
    updated: str
    url: str
    """Its own page; empty if it tells none."""
    score: float | None
    """How good it was found to be, as the file gives it: 0 to 1, or 0 to 100."""
    facts: Mapping[str, Any]

    @property
    def bare(self) -> bool:
        """True if it says nothing but its title, as lists of questions and summaries do."""
        return "\n" not in self.text

    @property
    def content_key(self) -> str:
        """Equal for equal contents; scores and times are no content."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def pbi_record(item: PbiItem, run: Mapping[str, Any]) -> PbiRecord | None:
    """The record of one list entry; None if it has neither id nor title."""
    if not isinstance(item.pbi, Mapping):
        return None
    pbi = plain_keys(item.pbi)
    own_id = text_of(pbi, ID_KEYS)
    title = " ".join(text_of(pbi, TITLE_KEYS).split())[:MAX_TITLE] or own_id
    if not title:
        return None
    labels = dict.fromkeys((*tags_of(pbi.get("labels")), *tags_of(pbi.get("tags"))))
    return PbiRecord(
        id=own_id or _id_of_title(title),
        title=title,
        text=_markdown(title, pbi),
        tags=tuple(labels),
        timestamp=_time(pbi, CREATED_KEYS) or _time(run, CREATED_KEYS),
        updated=_time(pbi, UPDATED_KEYS),
        url=own_url(pbi),
        score=_score((pbi, QUALITY_KEYS), (plain_keys(item.scores), SCORE_KEYS)),
        facts={
            **_facts(pbi, tuple(labels)),
            **effort_facts(item.pbi),
            **course_facts(pbi),
            **_master(pbi, own_id),
        },
    )


def _master(pbi: Mapping[str, Any], own_id: str) -> dict[str, str]:
    told = (_block(_value(pbi, keys)) for heading, keys in TEXTS.items() if heading in ENDINGS)
    master = duplicate_of(pbi, own_id, (*told, comments_block(_value(pbi, COMMENT_KEYS))))
    return {"duplicate_of": master} if master else {}


def _markdown(title: str, pbi: Mapping[str, Any]) -> str:
    sections = [f"# {title}"]
    for heading, keys in TEXTS.items():
        if text := _block(_value(pbi, keys)):
            sections.append(f"## {heading}\n\n{text}")
        if heading == "Description" and (criteria := list(_criteria(_value(pbi, CRITERIA_KEYS)))):
            sections.append("## Acceptance criteria\n\n" + "\n".join(f"- {line}" for line in criteria))
    if comments := comments_block(_value(pbi, COMMENT_KEYS)):
        sections.append(f"## Comments\n\n{comments}")
    return "\n\n".join(sections)


def _criteria(value: Any) -> Iterator[str]:
    """One line per criterion; a text has one on each line."""
    items = value.split("\n") if isinstance(value, str) else value if isinstance(value, list) else [value]
    for item in items:
        text = _BULLET.sub("", _inline(item)).strip()
        if text:
            # A criterion of several lines stays one bullet.
            yield "\n  ".join(line.strip() for line in text.split("\n") if line.strip())


def _block(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(f"- {text}" for item in value if (text := _inline(item)))
    return _inline(value)


def _inline(value: Any) -> str:
    """One value as text: of an object its main text, else all its parts."""
    if isinstance(value, Mapping):
        keys = plain_keys(value)
        steps = [
            f"{word.capitalize()} {text}"
            for word in ("given", "when", "then")
            if (text := text_of(keys, (word,)))
        ]
        main = " ".join(steps) or text_of(keys, ("criterion", "description", "text", "title", "name"))
        return main or "; ".join(f"{k}: {text}" for k, v in value.items() if (text := scalar_text(v)))
    if isinstance(value, list):
        return "; ".join(text for item in value if (text := scalar_text(item)))
    return scalar_text(value)


def _facts(pbi: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    facts = {name: json_able(_value(pbi, keys)) for name, keys in FACTS.items()}
    said = {name: value for name, value in facts.items() if value not in (None, "", [], {})}
    for name in SHORT_FACTS:
        if not 1 <= len(scalar_text(said.get(name)).split()) <= MOST_WORDS:
            said.pop(name, None)
    return {**said, "labels": list(labels)} if labels else said


def _value(pbi: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((pbi[key] for key in keys if pbi.get(key) not in (None, "", [], {})), None)


def _time(facts: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """As the file writes it, if it is a time; an epoch number as ISO text."""
    for key in keys:
        value = facts.get(key)
        moment = parse_time(value)
        if moment:
            return clean_text(value).strip() if isinstance(value, str) else moment.isoformat()
    return ""


def _score(*places: tuple[Mapping[str, Any], tuple[str, ...]]) -> float | None:
    """The first score found; 0 is one, NaN and truth values are none."""
    for facts, keys in places:
        for key in keys:
            value = facts.get(key)
            given = plain_keys(value).get("score") if isinstance(value, Mapping) else value
            given = given.rstrip(" %") if isinstance(given, str) else given
            score = measure(number_of(given), MOST_SCORE)
            if score is not None:
                return score
    return None


def _id_of_title(title: str) -> str:
    digest = hashlib.sha256(" ".join(title.casefold().split()).encode()).hexdigest()
    return f"title-{digest[:16]}"
