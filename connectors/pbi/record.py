"""One PBI as a readable text with facts: comments, its own page, the item it repeats."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from connectors.documents.headings import nested
from connectors.documents.rights import canonical_rights
from connectors.documents.values import (
    clean_text,
    json_able,
    number_of,
    number_within,
    parse_time,
    scalar_text,
    tags_of,
)
from connectors.pbi.effort import course_facts, effort_facts
from connectors.pbi.identity import title_key
from connectors.pbi.shapes import ID_KEYS, TITLE_KEYS, PbiItem, id_of, text_of
from pipeline.documents import ACL, LEVEL, MAX_TITLE, plain_keys, plain_title

# Names of fields, by plain key; the surest first.
FIELDS: Mapping[str, tuple[str, ...]] = {
    name: tuple(keys.split())
    for name, keys in {
        "text of a comment": "text body comment content message description",
        "author": "author by user createdby",
        "author's name": "displayname name login",
        "time of a comment": "createdat created createddate date timestamp at time",
        "created": "createdat created createddate timestamp generatedat processedat extractedat",
        "updated": "updatedat updated modifiedat",
        "page": "htmlurl weburl permalink url link self",  # trackers give `url` and `self` to programs
        "score": "confidencescore qualityscore confidence overallscore score",
        "score beside it": "overallconfidence confidencescore overallscore overall confidence qualityscore",
        "comments": "comments discussion",
        "criteria": "acceptancecriteria criteria",
        "state": "status state",
        "reason": "resolution outcome resolvedreason closedreason statereason reason",
        "master": "duplicateof dupof dupeof duplicateofid duplicateid duplicates master masterid",
        "links": "links relations issuelinks linkedissues linkeditems",
        "type of a link": "type rel relation relationtype linktype kind name",
        "target of a link": f"outwardissue target targetid to ref issue item {' '.join(ID_KEYS)} url href",
        "main text": "criterion description text title name",
    }.items()
}
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
    "Acceptance criteria": FIELDS["criteria"],
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
    "Comments": FIELDS["comments"],
}
ENDINGS = ("Outcome", "Resolution", "Closing comment", "Comments")
"""The sections that may say that an item repeats another one."""
LONGEST_URL = 2000
MOST_SCORE = 100
TO_MASTER = frozenset(
    ("duplicateof", "duplicates", "isduplicateof", "isadupeof", "dupof", "dupeof", "systemlinktypesduplicatereverse")
)  # fmt: skip
"""Kinds of link that lead from the copy to the item it repeats; only a copy's `duplicate` does so too."""

_BULLET = re.compile(r"^\s*(?:[-*+\u2022]|\d+[.)])\s+")
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
        return not self.below

    @property
    def below(self) -> str:
        """Its text without the title."""
        return self.text.partition("\n")[2]

    @property
    def content_key(self) -> str:
        """Equal for equal contents; scores and times are no content."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def title_key(self) -> str:
        """That of its title."""
        return title_key(self.title)

    def is_state_of(self, other: PbiRecord) -> bool:
        """Whether this is the other item of the same id in another state: they share the title, or all below it."""
        return self.title_key == other.title_key or bool(self.below and self.below == other.below)

    @property
    def says_something(self) -> bool:
        """True if its text is more than a title and a word such as `TBD`."""
        return sum(len(line.split()) for line in self.below.split("\n") if not line.startswith("#")) > 1

    def resembles(self, other: PbiRecord) -> bool:
        """Whether it may be such a state under a new title: there is a word that is in both titles."""
        words, others = (set(re.findall(r"\w+", plain_title(r.title))) for r in (self, other))
        return self.is_state_of(other) or not words.isdisjoint(others)


def pbi_record(item: PbiItem, run: Mapping[str, Any]) -> PbiRecord | None:
    """The record of one list entry; None if it has neither id nor title."""
    if not isinstance(item.pbi, Mapping):
        return None
    pbi = plain_keys(item.pbi)
    own_id = id_of(pbi)
    title = " ".join(text_of(pbi, TITLE_KEYS).split())[:MAX_TITLE] or own_id
    if not title:
        return None
    digest = hashlib.sha256(plain_title(title).encode()).hexdigest()
    sections = {
        heading: text for heading, keys in TEXTS.items() if (text := _section(heading, _value(pbi, keys)))
    }
    facts = work_facts(item.pbi, own_id, filter(None, map(sections.get, ENDINGS)))
    own = item.pbi.get("metadata")
    rights = canonical_rights(item.pbi, run, own if isinstance(own, Mapping) else {})
    facts |= {key: json_able(rights[key]) for key in (LEVEL, ACL) if key in rights}
    return PbiRecord(
        id=own_id or f"title-{digest[:16]}",
        title=title,
        text="\n\n".join((f"# {title}", *(f"## {heading}\n\n{text}" for heading, text in sections.items()))),
        tags=_labels(pbi),
        timestamp=_time("created", pbi, run),
        updated=_time("updated", pbi),
        url=_own_url(pbi),
        score=_score((pbi, "score"), (plain_keys(item.scores), "score beside it")),
        facts=facts,
    )


def work_facts(item: Mapping[Any, Any], own_id: str, endings: Iterable[str]) -> dict[str, Any]:
    """What the fields of a backlog item say as metadata: status, priority, labels, effort, the item it repeats.

    Args:
        item: its fields as they are spelled.
        own_id: its id, which it cannot repeat.
        endings: texts about how it ended, which may name the item that it repeats.
    """
    pbi = plain_keys(item)
    facts = {name: json_able(_value(pbi, keys)) for name, keys in FACTS.items()}
    sentences = [name for name in SHORT_FACTS if not 1 <= len(scalar_text(facts[name]).split()) <= MOST_WORDS]
    facts |= dict.fromkeys(sentences)
    facts |= {"labels": list(_labels(pbi)), **effort_facts(item), **course_facts(pbi)}
    facts["duplicate_of"] = _duplicate_of(pbi, own_id, endings)
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def _labels(pbi: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*tags_of(pbi.get("labels")), *tags_of(pbi.get("tags")))))


def _value(pbi: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """The first of these that says anything."""
    return next((pbi[key] for key in keys if pbi.get(key) not in (None, "", [], {})), None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _section(heading: str, value: Any) -> str:
    if heading == "Comments":
        return _comments(_listed(value))
    if heading == "Acceptance criteria":  # a text has one on each line
        items = value.split("\n") if isinstance(value, str) else _listed(value)
        texts = (_BULLET.sub("", _inline(item)).strip() for item in items)
        # A criterion of several lines stays one bullet.
        return "\n".join("- " + re.sub(r"\s*\n\s*", "\n  ", text) for text in texts if text)
    if isinstance(value, list):
        return "\n".join(f"- {text}" for item in value if (text := _inline(item)))
    return _inline(value)


def _inline(value: Any) -> str:
    """One value as text: of an object its main text, else all its parts."""
    if isinstance(value, Mapping):
        keys = plain_keys(value)
        steps = ((word, text_of(keys, (word,))) for word in ("given", "when", "then"))
        main = " ".join(f"{word.capitalize()} {text}" for word, text in steps if text)
        main = main or text_of(keys, FIELDS["main text"])
        return main or "; ".join(f"{k}: {text}" for k, v in value.items() if (text := scalar_text(v)))
    if isinstance(value, list):
        return "; ".join(text for item in value if (text := scalar_text(item)))
    return scalar_text(value)


def _comments(values: Iterable[Any]) -> str:
    """Each comment below a heading of its own, so that the last one can be told from the others; the oldest first.

    A comment is a text, or an object with its text, author and time. Without a time for each the order of the
    file stands.
    """
    found: list[tuple[str, str, str]] = []
    for value in values:
        keys = plain_keys(value) if isinstance(value, Mapping) else {"text": value}
        if text := text_of(keys, FIELDS["text of a comment"]):
            times = filter(None, (parse_time(keys.get(key)) for key in FIELDS["time of a comment"]))
            at = next(map(datetime.isoformat, times), "")
            found.append((at, " ".join(_author(keys).split()), nested(text, 3)))
    if all(at for at, _, _ in found):
        found.sort(key=lambda comment: comment[0])
    heads = (
        ", ".join(filter(None, (author or f"Comment {n}", at[:10])))
        for n, (at, author, _) in enumerate(found, 1)
    )
    return "\n\n".join(f"### {head}\n\n{text}" for head, (_, _, text) in zip(heads, found, strict=True))


def _author(comment: Mapping[str, Any]) -> str:
    who = next((comment[key] for key in FIELDS["author"] if comment.get(key)), "")
    return text_of(plain_keys(who), FIELDS["author's name"]) if isinstance(who, Mapping) else scalar_text(who)


def _time(field: str, *places: Mapping[str, Any]) -> str:
    """The first that is a time, as the file writes it; an epoch number as ISO text."""
    for value in (facts.get(key) for facts in places for key in FIELDS[field]):
        if moment := parse_time(value):
            return clean_text(value).strip() if isinstance(value, str) else moment.isoformat()
    return ""


def _score(*places: tuple[Mapping[str, Any], str]) -> float | None:
    """The first score found; 0 is one, NaN and truth values are none."""
    for value in (facts.get(key) for facts, field in places for key in FIELDS[field]):
        given = plain_keys(value).get("score") if isinstance(value, Mapping) else value
        score = number_within(number_of(given.rstrip(" %") if isinstance(given, str) else given), MOST_SCORE)
        if score is not None:
            return score
    return None


def _own_url(pbi: Mapping[str, Any]) -> str:
    """Its page; empty if none is told. Only http and https."""
    urls = (scalar_text(pbi.get(key)) for key in FIELDS["page"])
    return next((clean_text(url) for url in urls if len(url) <= LONGEST_URL and _is_web(url)), "")


def _duplicate_of(pbi: Mapping[str, Any], own_id: str, said: Iterable[str]) -> str:
    """The id of the item that this one repeats, of a PBI by plain key; empty if it repeats none.

    Args:
        pbi: fields and links come first.
        own_id: never the answer.
        said: outcome, resolution and comments; they count unless the PBI is open or was resolved otherwise.
    """
    reasons, states = (
        [text for key in FIELDS[f] if (text := scalar_text(pbi.get(key)))] for f in ("reason", "state")
    )
    repeats = any(map(_REPEATS.fullmatch, (*reasons, *states)))
    found = [*_by_key(pbi, repeats=repeats), *_by_link(pbi, repeats=repeats)]
    is_open = any(_LETTERS.sub("", text.lower()) in _OPEN for text in states)
    if repeats or not (reasons or is_open):
        found += [ref for text in said for ref in reversed(_SAID.findall(text))]
    return next((ref for one in found if (ref := one.removeprefix("#")) not in ("", own_id)), "")


def _by_key(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for key in FIELDS["master"]:
        value = pbi.get(key)
        if key == "duplicates" and not isinstance(value, str | Mapping) and not repeats:
            continue  # the copies of this one, or how many there are
        yield _ref(next(iter(value), None) if isinstance(value, list) else value)


def _by_link(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for value in map(pbi.get, FIELDS["links"]):
        links = _listed(value)
        if isinstance(value, Mapping):
            links = [{"type": name, "target": one} for name, item in value.items() for one in _listed(item)]
        for link in links:
            if isinstance(link, Mapping) and _leads_to_master(keys := plain_keys(link), repeats=repeats):
                yield next((ref for name in FIELDS["target of a link"] if (ref := _ref(keys.get(name)))), "")


def _leads_to_master(link: Mapping[str, Any], *, repeats: bool) -> bool:
    """Jira's links name both directions and tell by `outwardIssue` which one holds."""
    kind = next((link[key] for key in FIELDS["type of a link"] if link.get(key)), "")
    if isinstance(kind, Mapping):
        named = plain_keys(kind)
        kind = named.get("outward" if link.get("outwardissue") else "inward") or named.get("name")
    name = _LETTERS.sub("", scalar_text(kind).lower())
    return name in TO_MASTER or (repeats and name == "duplicate" and not link.get("inwardissue"))


def _ref(value: Any) -> str:
    """An id out of a number, a text, an address or an object that has one; empty if there is none."""
    if isinstance(value, Mapping):
        return id_of(plain_keys(value)) or _ref(plain_keys(value).get("url"))
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
