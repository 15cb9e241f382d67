"""What was said of a PBI, one comment below the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from connectors.documents.headings import nested
from connectors.documents.json_values import scalar_text
from connectors.documents.times import parse_time
from connectors.pbi.shapes import plain_keys, text_of

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
