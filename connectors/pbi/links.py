"""Where a PBI stands on the web, and which one it repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from connectors.documents.json_values import clean_text, scalar_text
from connectors.documents.redaction import redact
from connectors.pbi.shapes import ID_KEYS, plain_keys, text_of

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
