"""Whether a document still holds: replaced decisions and abandoned work, and what to say of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from pipeline.documents import DECISION_STATUSES, Kind
from pipeline.search.records import StoredDocument

_NO_LETTERS = re.compile(r"[^a-z]+")
_ENDED = re.compile(r"(?:closed|resolved|done)(?:as)?")
_REPEATS = re.compile(r"(?:closed|resolved|done)?(?:asan?|as|an?)?dup(?:e|licated?)?(?:of.*)?")

# Words as they are written in trackers and front matter, letters only.
_DECISIONS: Mapping[str, str] = {
    word: status for status in ("superseded", "rejected", "deprecated") for word in DECISION_STATUSES[status]
}
_ENDS: Mapping[str, str] = {
    "closed without being done": "wontfix wontdo willnotfix notplanned abandoned cancelled canceled cut",
    "removed from the backlog": "removed",
    "rejected": "rejected declined",
    "closed as invalid": "invalid notabug",
    "closed as designed": "asdesigned bydesign",
    "closed, could not be reproduced": "cannotreproduce couldnotreproduce notreproducible worksforme",
    "closed as obsolete": "obsolete",
    "superseded": "superseded",
}
_WORK = {word: end for end, words in _ENDS.items() for word in words.split()}
_PAGES: Mapping[str, str] = {**_DECISIONS, "archived": "archived", "outdated": "deprecated"}

_WORDS: Mapping[Kind, tuple[tuple[str, ...], Mapping[str, str]]] = {
    Kind.DECISION: (("decision_status",), _DECISIONS),
    Kind.WORK: (("resolution", "outcome", "reason", "status", "state"), _WORK),
    Kind.REFERENCE: (("decision_status", "status"), _PAGES),
}
"""Kind -> the metadata that tell, the surest first, and what their words mean."""
_DUPLICATE = "closed as a duplicate"


def outdated(document: StoredDocument) -> str:
    """Why it no longer holds, in a few words (`superseded by ADR-12`); empty if it does.

    A duplicate holds: it tells of the same thing as the item it repeats.
    """
    return "" if repeats(document) else _why(document) or ""


def repeats(document: StoredDocument) -> bool:
    """Whether it is a duplicate, be its master known or not."""
    return duplicate_of(document) is not None or _why(document) == _DUPLICATE


def duplicate_of(document: StoredDocument) -> str | None:
    """The item that this one repeats, as its source names it; None if it repeats none, or none is known."""
    master = document.metadata.get("duplicate_of") if document.kind is Kind.WORK else None
    return str(master).strip() or None if isinstance(master, str | int) else None


def validity_note(document: StoredDocument) -> str | None:
    """What a reader should know of how it stands: why it no longer holds, or `closed as duplicate of X`."""
    why, master = _why(document), duplicate_of(document)
    if master is None:
        return why
    state = str(document.metadata.get("status") or document.metadata.get("state") or "")
    ended = why or _ENDED.match(_NO_LETTERS.sub("", state.lower()))
    return f"closed as duplicate of {master}" if ended else f"duplicate of {master}"


def _why(document: StoredDocument) -> str | None:
    keys, words = _WORDS[document.kind]
    successor = str(document.metadata.get("superseded_by") or "").strip()
    if successor and document.kind is not Kind.WORK:
        return f"superseded by {successor}"
    for key in keys:
        value = document.metadata.get(key)
        if isinstance(value, str) and (found := _meaning(value, words)):
            return found
    return None


def _meaning(value: str, words: Mapping[str, str]) -> str | None:
    """What a state says, be it written alone or behind the state it ended in: `Closed (won't fix)`."""
    letters = _NO_LETTERS.sub("", value.lower())
    if words is _WORK and _REPEATS.fullmatch(letters):
        return _DUPLICATE
    ended = _ENDED.match(letters)
    return words.get(letters) or (words.get(letters[ended.end() :]) if ended else None)


def age_days(document: StoredDocument, now: datetime | None = None) -> int | None:
    """Whole days since it was last changed, or made if that is all that is known."""
    moment = document.updated_at or document.created_at
    return None if moment is None else max(0, ((now or datetime.now(UTC)) - moment).days)
