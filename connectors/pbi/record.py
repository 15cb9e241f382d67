"""One PBI as a readable text with facts: comments, its own page, the item it repeats."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from connectors.documents.headings import MAX_TITLE, nested
from connectors.documents.redaction import redact
from connectors.documents.values import (
    clean_text,
    json_able,
    measure,
    number_of,
    parse_time,
    scalar_text,
    tags_of,
)
from connectors.pbi.effort import course_facts, effort_facts
from connectors.pbi.shapes import ID_KEYS, TITLE_KEYS, PbiItem, plain_keys, text_of

TEXT_KEYS = ("text", "body", "comment", "content", "message", "description")
AUTHOR_KEYS = ("author", "by", "user", "createdby")
NAME_KEYS = ("displayname", "name", "login")
TIME_KEYS = ("createdat", "created", "createddate", "date", "timestamp", "at", "time")


def comments_block(value: Any) -> str:
    """Each comment below a heading of its own, so that the last one can be told from the others; the oldest first.

    A comment is a text, or an object with its text, author and time. Without a time for each the order of the
    file stands.
    """
    found = list(_comments(value if isinstance(value, list) else [value]))
    if all(at for _, at, _ in found):
        found.sort(key=lambda comment: comment[1])
    return "\n\n".join(
        f"### {_head(author, at[:10], n)}\n\n{text}" for n, (author, at, text) in enumerate(found, 1)
    )


def _comments(values: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Author, time and text of each comment that says something; the time in ISO form and UTC, or empty."""
    for value in values:
        keys = plain_keys(value) if isinstance(value, Mapping) else {"text": value}
        text = text_of(keys, TEXT_KEYS)
        if text:
            who = next((keys[key] for key in AUTHOR_KEYS if keys.get(key)), "")
            author = text_of(plain_keys(who), NAME_KEYS) if isinstance(who, Mapping) else scalar_text(who)
            moment = next((time for key in TIME_KEYS if (time := parse_time(keys.get(key)))), None)
            yield " ".join(author.split()), moment.isoformat() if moment else "", nested(text, 3)


def _head(author: str, day: str, number: int) -> str:
    return ", ".join(part for part in (author or f"Comment {number}", day) if part)


URL_KEYS = ("htmlurl", "weburl", "permalink", "url", "link", "self")
"""For people first: trackers give `url` and `self` to programs."""
LONGEST_URL = 2000

_REASON_KEYS = ("resolution", "outcome", "resolvedreason", "closedreason", "statereason", "reason")
MASTER_KEYS = (
    "duplicateof",
    "dupof",
    "dupeof",
    "duplicateofid",
    "duplicateid",
    "duplicates",
    "master",
    "masterid",
)
LINK_KEYS = ("links", "relations", "issuelinks", "linkedissues", "linkeditems")
_TYPE_KEYS = ("type", "rel", "relation", "relationtype", "linktype", "kind", "name")
_TARGET_KEYS = ("outwardissue", "target", "targetid", "to", "ref", "issue", "item", *ID_KEYS, "url", "href")
TO_MASTER = frozenset(
    ("duplicateof", "duplicates", "isduplicateof", "isadupeof", "dupof", "dupeof", "systemlinktypesduplicatereverse")
)  # fmt: skip
"""Kinds of link that lead from the copy to the item it repeats; only a copy's `duplicate` does so too."""

_LETTERS = re.compile(r"[^a-z]+")
_REF = r"(?:[A-Za-z][A-Za-z0-9_]*-\d+|#?\d+)"
_WORD = re.compile(r"(?=\S*\d)\S{1,100}")
_ID = re.compile(rf"#?({_REF})(?![\w-])")
_REPEATS = re.compile(
    r"\W*(?:(?:closed|resolved|done|marked)\W+)?(?:as\s+)?(?:an?\s+)?dup(?:e|licated?)?\W*(?:of\b.*)?",
    re.IGNORECASE | re.DOTALL,
)
_SAID = re.compile(
    r"(?:^|[.!;:]\s|\*\*\*\s)[ \t*_>-]{0,8}"
    r"(?:this\s+(?:(?:bug|issue|item|story|ticket|pbi)\s+)?(?:has been|was|is|got)\s+|i(?:'m| am)\s+)?"
    r"(?:(?:closed|closing|marked|marking|resolved|resolving)\s+(?:(?:this|it)\s+)?as\s+)?"
    rf"(?:an?\s+)?dup(?:e|licate)?\s+of\s+(?:(?:bug|issue|item|story|ticket|pbi)\s+)?\[?({_REF})(?![\w-])",
    re.IGNORECASE | re.MULTILINE,
)
_OPEN = frozenset(
    (
        "open", "new", "active", "todo", "reopened", "ready", "backlog", "inprogress", "doing", "proposed",
        "approved", "committed", "assigned", "unconfirmed", "draft",
    )
)  # fmt: skip


def own_url(pbi: Mapping[str, Any]) -> str:
    """Its page, of a PBI by plain key; empty if none is told. Only http and https, without secrets."""
    for key in URL_KEYS:
        url = scalar_text(pbi.get(key))
        if len(url) <= LONGEST_URL and _is_web(url):
            return redact(clean_text(url))
    return ""


def duplicate_of(pbi: Mapping[str, Any], own_id: str, said: Iterable[str]) -> str:
    """The id of the item that this one repeats, of a PBI by plain key; empty if it repeats none.

    Args:
        pbi: fields and links come first.
        own_id: never the answer.
        said: resolution and comments, the surest first; they count unless the PBI is open or was resolved otherwise.
    """
    reasons, states = _texts(pbi, _REASON_KEYS), _texts(pbi, ("status", "state"))
    repeats = any(_REPEATS.fullmatch(text) for text in (*reasons, *states))
    found = [*_by_key(pbi, repeats=repeats), *_by_link(pbi, repeats=repeats)]
    if repeats or not (reasons or _is_open(states)):
        found += [ref for text in said for ref in reversed(_SAID.findall(text))]
    refs = (ref.removeprefix("#") for ref in found)
    return next((ref for ref in refs if ref and ref != own_id), "")


def _texts(pbi: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """What these keys say, without those that say nothing."""
    return [text for key in keys if (text := scalar_text(pbi.get(key)))]


def _is_open(states: Iterable[str]) -> bool:
    return any(_LETTERS.sub("", text.lower()) in _OPEN for text in states)


def _by_key(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for key in MASTER_KEYS:
        value = pbi.get(key)
        if key == "duplicates" and not isinstance(value, str | Mapping) and not repeats:
            continue  # the copies of this one, or how many there are
        yield _ref(next(iter(value), None) if isinstance(value, list) else value)


def _by_link(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for key in LINK_KEYS:
        value = pbi.get(key)
        if isinstance(value, Mapping):
            value = [{"type": name, "target": one} for name, item in value.items() for one in _several(item)]
        for link in value if isinstance(value, list) else ():
            if isinstance(link, Mapping) and _leads_to_master(keys := plain_keys(link), repeats=repeats):
                yield next((ref for name in _TARGET_KEYS if (ref := _ref(keys.get(name)))), "")


def _leads_to_master(link: Mapping[str, Any], *, repeats: bool) -> bool:
    """Jira's links name both directions and tell by `outwardIssue` which one holds."""
    kind = next((link[key] for key in _TYPE_KEYS if link.get(key)), "")
    if isinstance(kind, Mapping):
        named = plain_keys(kind)
        kind = named.get("outward" if link.get("outwardissue") else "inward") or named.get("name")
    name = _LETTERS.sub("", scalar_text(kind).lower())
    return name in TO_MASTER or (repeats and name == "duplicate" and not link.get("inwardissue"))


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ref(value: Any) -> str:
    """An id out of a number, a text, an address or an object that has one; empty if there is none."""
    if isinstance(value, Mapping):
        return text_of(plain_keys(value), ID_KEYS) or _ref(plain_keys(value).get("url"))
    text = "" if isinstance(value, bool) else scalar_text(value)
    if _is_web(text):
        text = urlsplit(text).path.rstrip("/").rpartition("/")[2]
    match = _ID.match(text)
    return match[1] if match else text if _WORD.fullmatch(text) else ""


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and not re.search(r"\s", url)


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
