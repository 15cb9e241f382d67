"""The comments of a page as a section of its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from connectors.confluence.addresses import PageLinks
from connectors.confluence.attachments import is_inline, resolved
from connectors.confluence.item import Item
from connectors.markup import to_markdown

MOST_DEPTH = 6
"""Replies to replies beyond this are indented no further."""
_BEGINNING = datetime.min.replace(tzinfo=UTC)


def discussion(comments: Sequence[Item], links: PageLinks) -> str:
    """`## Comments`: who, when, what state; replies below what they answer. Empty if there are none."""
    known = {comment.id for comment in comments}
    above: dict[str, list[Item]] = {}
    for comment in sorted(comments, key=lambda c: (c.created or c.changed or _BEGINNING, c.id)):
        above.setdefault(_parent(comment, known), []).append(comment)
    lines = [line for comment, depth in _in_order(above) for line in _lines(comment, depth, links)]
    return "\n".join(["## Comments", "", *lines]) if lines else ""


def _in_order(above: dict[str, list[Item]]) -> Iterator[tuple[Item, int]]:
    """Each comment before its replies, without recursion: threads may be long."""
    waiting = [(comment, 0) for comment in reversed(above.get("", []))]
    while waiting:
        comment, depth = waiting.pop()
        yield comment, depth
        waiting += [(reply, depth + 1) for reply in reversed(above.get(comment.id, []))]


def _parent(comment: Item, known: Iterable[str]) -> str:
    """The nearest comment above it that is there; empty for one that answers nothing."""
    return next((key for key, _ in reversed(comment.ancestors) if key in known and key != comment.id), "")


def _lines(comment: Item, depth: int, links: PageLinks) -> list[str]:
    text = to_markdown(comment.body or "", links).text
    if not text.strip():
        return []
    indent = "  " * min(depth, MOST_DEPTH)
    first, *rest = text.split("\n")
    head = f"{indent}- **{_said_by(comment)}**: {first}"
    return [head, *(f"{indent}  {line}" if line else "" for line in rest)]


def _said_by(comment: Item) -> str:
    moment = comment.created or comment.changed
    parts = [comment.author or "Unknown", f"{moment:%Y-%m-%d}" if moment else ""]
    if is_inline(comment) and not comment.ancestors:
        parts.append("inline, resolved" if resolved(comment) else "inline")
    return ", ".join(part for part in parts if part)
