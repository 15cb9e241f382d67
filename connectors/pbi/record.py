"""Record of one PBI: its text, with metadata such as score, effort, comments and the item it duplicates."""

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
from pipeline.documents import ACL, LEVEL
from pipeline.documents.plain_text import MAX_TITLE, plain_keys, plain_title

# Keys of fields in plain form, the most reliable first.
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
"""Facts that are a short state, such as `Won't fix`; a sentence is only part of the text."""
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
"""Sections that may state that an item duplicates another one."""
LONGEST_URL = 2000
MOST_SCORE = 100
TO_MASTER = frozenset(
    ("duplicateof", "duplicates", "isduplicateof", "isadupeof", "dupof", "dupeof", "systemlinktypesduplicatereverse")
)  # fmt: skip
"""Types of links from a duplicate to its master; `duplicate` is one too if the item is closed as a duplicate."""

_BULLET = re.compile(r"^\s*(?:[-*+\u2022]|\d+[.)])\s+")
_LETTERS = re.compile(r"[^a-z]+")
_REF = r"(?:[A-Za-z][A-Za-z0-9_]*-\d+|#?\d+)"
_WORD = re.compile(r"(?=\S*\d)\S{1,100}")
_ID = re.compile(rf"#?({_REF})(?![\w-])")
_REPEATS = re.compile(
    r"\W*(?:(?:closed|resolved|done|marked)\W+)?(?:as\s+)?(?:an?\s+)?dup(?:e|licated?)?\W*(?:of\b.*)?",
    re.IGNORECASE | re.DOTALL,
)
_DUPLICATE_SENTENCE = re.compile(
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
    """A PBI as stated in one file."""

    id: str
    title: str
    text: str
    tags: tuple[str, ...]
    timestamp: str
    """Time of creation from the item or its run; empty if neither has one."""
    updated: str
    url: str
    """Address of its own page; empty if it has none."""
    score: float | None
    """Quality score as in the file: 0 to 1, or 0 to 100."""
    facts: Mapping[str, Any]

    @property
    def is_title_only(self) -> bool:
        """True if it has a title only, as in lists of questions and in summaries."""
        return not self.body

    @property
    def body(self) -> str:
        """Text without the title."""
        return self.text.partition("\n")[2]

    @property
    def content_key(self) -> str:
        """Hash of the text; scores and times are not part of it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def title_key(self) -> str:
        """Hash of the title, as of `title_key`."""
        return title_key(self.title)

    def is_state_of(self, other: PbiRecord) -> bool:
        """Whether both are states of one item; for records of the same id. They share the title or the body."""
        return self.title_key == other.title_key or bool(self.body and self.body == other.body)

    @property
    def has_content(self) -> bool:
        """True if the body has more than one word, such as `TBD`."""
        return sum(len(line.split()) for line in self.body.split("\n") if not line.startswith("#")) > 1

    def resembles(self, other: PbiRecord) -> bool:
        """Whether both may be states of one item: `is_state_of`, or the titles share a word."""
        words, other_words = (set(re.findall(r"\w+", plain_title(r.title))) for r in (self, other))
        return self.is_state_of(other) or not words.isdisjoint(other_words)


def pbi_record(item: PbiItem, run: Mapping[str, Any]) -> PbiRecord | None:
    """Build the record of one list entry; None if it has neither id nor title."""
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
    item_metadata = item.pbi.get("metadata")
    rights = canonical_rights(item.pbi, run, item_metadata if isinstance(item_metadata, Mapping) else {})
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
    """Metadata from the fields of a backlog item: status, priority, labels, effort, the item it duplicates.

    Args:
        item: its fields, with keys as written.
        own_id: its id, which it cannot duplicate.
        endings: texts about its end, which may name the item that it duplicates.
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
    """The first value of these keys that is not empty."""
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
    """One value as text: of an object its main text, else all its fields."""
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
    """Comments, oldest first, each below a separate heading.

    A comment is a text, or an object with text, author and time. If any has no time, the order of the file is used.
    """
    comments: list[tuple[str, str, str]] = []
    for value in values:
        keys = plain_keys(value) if isinstance(value, Mapping) else {"text": value}
        if text := text_of(keys, FIELDS["text of a comment"]):
            times = filter(None, (parse_time(keys.get(key)) for key in FIELDS["time of a comment"]))
            at = next(map(datetime.isoformat, times), "")
            comments.append((at, " ".join(_author(keys).split()), nested(text, 3)))
    if all(at for at, _, _ in comments):
        comments.sort(key=lambda comment: comment[0])
    heads = (
        ", ".join(filter(None, (author or f"Comment {n}", at[:10])))
        for n, (at, author, _) in enumerate(comments, 1)
    )
    return "\n\n".join(f"### {head}\n\n{text}" for head, (_, _, text) in zip(heads, comments, strict=True))


def _author(comment: Mapping[str, Any]) -> str:
    author = next((comment[key] for key in FIELDS["author"] if comment.get(key)), "")
    return (
        text_of(plain_keys(author), FIELDS["author's name"])
        if isinstance(author, Mapping)
        else scalar_text(author)
    )


def _time(field: str, *places: Mapping[str, Any]) -> str:
    """The first time among the keys of a field, as written; an epoch number as ISO text. Empty if there is none."""
    for value in (facts.get(key) for facts in places for key in FIELDS[field]):
        if moment := parse_time(value):
            return clean_text(value).strip() if isinstance(value, str) else moment.isoformat()
    return ""


def _score(*places: tuple[Mapping[str, Any], str]) -> float | None:
    """The first score; 0 is one, NaN and truth values are not."""
    for value in (facts.get(key) for facts, field in places for key in FIELDS[field]):
        score_value = plain_keys(value).get("score") if isinstance(value, Mapping) else value
        score = number_within(
            number_of(score_value.rstrip(" %") if isinstance(score_value, str) else score_value), MOST_SCORE
        )
        if score is not None:
            return score
    return None


def _own_url(pbi: Mapping[str, Any]) -> str:
    """Address of the item's page, http or https; empty if there is none."""
    urls = (scalar_text(pbi.get(key)) for key in FIELDS["page"])
    return next((clean_text(url) for url in urls if len(url) <= LONGEST_URL and _is_web(url)), "")


def _duplicate_of(pbi: Mapping[str, Any], own_id: str, endings: Iterable[str]) -> str:
    """Id of the item that this one duplicates; empty if there is none.

    Args:
        pbi: fields by plain key, which come first, and links.
        own_id: never returned.
        endings: outcome, resolution and comments; they count unless the PBI is open or has another resolution.
    """
    reasons, states = (
        [text for key in FIELDS[f] if (text := scalar_text(pbi.get(key)))] for f in ("reason", "state")
    )
    repeats = any(map(_REPEATS.fullmatch, (*reasons, *states)))
    references = [*_by_key(pbi, repeats=repeats), *_by_link(pbi, repeats=repeats)]
    is_open = any(_LETTERS.sub("", text.lower()) in _OPEN for text in states)
    if repeats or not (reasons or is_open):
        references += [ref for text in endings for ref in reversed(_DUPLICATE_SENTENCE.findall(text))]
    return next(
        (ref for reference in references if (ref := reference.removeprefix("#")) not in ("", own_id)), ""
    )


def _by_key(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for key in FIELDS["master"]:
        value = pbi.get(key)
        if key == "duplicates" and not isinstance(value, str | Mapping) and not repeats:
            continue  # duplicates of this item, or their number
        yield _ref(next(iter(value), None) if isinstance(value, list) else value)


def _by_link(pbi: Mapping[str, Any], *, repeats: bool) -> Iterator[str]:
    for value in map(pbi.get, FIELDS["links"]):
        links = _listed(value)
        if isinstance(value, Mapping):
            links = [{"type": name, "target": end} for name, item in value.items() for end in _listed(item)]
        for link in links:
            if isinstance(link, Mapping) and _leads_to_master(keys := plain_keys(link), repeats=repeats):
                yield next((ref for name in FIELDS["target of a link"] if (ref := _ref(keys.get(name)))), "")


def _leads_to_master(link: Mapping[str, Any], *, repeats: bool) -> bool:
    """Whether a link leads to the master; Jira's links name both directions, and `outwardIssue` selects one."""
    kind = next((link[key] for key in FIELDS["type of a link"] if link.get(key)), "")
    if isinstance(kind, Mapping):
        named = plain_keys(kind)
        kind = named.get("outward" if link.get("outwardissue") else "inward") or named.get("name")
    name = _LETTERS.sub("", scalar_text(kind).lower())
    return name in TO_MASTER or (repeats and name == "duplicate" and not link.get("inwardissue"))


def _ref(value: Any) -> str:
    """The id in a number, a text, an address or an object; empty if there is none."""
    if isinstance(value, Mapping):
        return id_of(plain_keys(value)) or _ref(plain_keys(value).get("url"))
    text = "" if isinstance(value, bool) else scalar_text(value)
    if _is_web(text):
        text = urlsplit(text).path.rstrip("/").rpartition("/")[2]
    match = _ID.match(text)
    return match[1] if match else text if _WORD.fullmatch(text) else ""


def _is_web(url: str) -> bool:
    try:
        split = urlsplit(url)
    except ValueError:
        return False
    return split.scheme in {"http", "https"} and bool(split.netloc) and not re.search(r"\s", url)
