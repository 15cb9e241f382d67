"""Headers of Markdown files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from frontmatter.default_handlers import YAMLHandler

from connectors.documents.values import BoundedLoader
from pipeline.errors import DocumentRejected

_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z_][\w .-]*:(?:\s|$)")


@dataclass(frozen=True, kw_only=True)
class FrontMatter:
    """What the head says and the text below it."""

    values: Mapping[str, Any]
    """As YAML gives them, keys as text; dates that no calendar has stay text."""
    body: str


def split_front_matter(text: str, name: str) -> FrontMatter:
    """Front matter and body of a file; `name` is the file for messages.

    Raises:
        DocumentRejected: the block is no YAML, no mapping, or never closed; the message gives the line.
    """
    none = FrontMatter(values={}, body=text)
    lines = text.split("\n", 2)
    if lines[0].rstrip() != "---":
        return none
    try:
        _, head, body = _BOUNDARY.split(text, 2)
    except ValueError:
        if len(lines) > 1 and _KEY.match(lines[1]):
            found = f"{name}: the front matter opened at line 1 is never closed"
            raise DocumentRejected(found, fix="add a line ---") from None
        return none  # a lone ruler
    try:
        return FrontMatter(values=_values(head, name), body=body.strip("\n"))
    except DocumentRejected:
        if lines[1].strip():
            raise
        return none  # a ruler with a blank line below it, and the block is just text


def _values(head: str, name: str) -> dict[str, Any]:
    """What the block of front matter says.

    Raises:
        DocumentRejected: it is no YAML, or no mapping; the message gives the line.
    """
    try:
        values = YAMLHandler().load(head, Loader=BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        # The block starts at the end of line 1, so the parser's line 0 is ours.
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1"
        found = f"{name}: the front matter is not valid YAML at {where}"
        raise DocumentRejected(found, fix="correct it") from None
    if not isinstance(values, Mapping | None):
        found = f"{name}: the front matter from line 1 is a {type(values).__name__}, not a mapping"
        raise DocumentRejected(found, fix="write it as key: value lines")
    return {str(k): v for k, v in (values or {}).items()}
