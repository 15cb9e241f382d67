"""The YAML block at the head of a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from frontmatter.default_handlers import SafeLoader, YAMLHandler

from connectors.documents.json_values import scalar_text
from pipeline.errors import DocumentRejected

MAX_TAGS = 100
MAX_TAG = 100
_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z_][\w .-]*:(?:\s|$)")


@dataclass(frozen=True, kw_only=True)
class FrontMatter:
    """What the head says and the text below it."""

    values: Mapping[str, Any]
    """As YAML gives them, keys as text; dates that no calendar has stay text."""
    body: str


class _Loader(SafeLoader):  # type: ignore[misc, valid-type]
    """YAML without the one value that would fail a whole file: an impossible date."""


def _timestamp(loader: Any, node: yaml.ScalarNode) -> Any:
    try:
        return SafeLoader.construct_yaml_timestamp(loader, node)
    except ValueError:
        return node.value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _timestamp)


def split_front_matter(text: str, name: str) -> FrontMatter:
    """Front matter and body of a file; `name` is the file for messages.

    Raises:
        DocumentRejected: the block is no YAML, no mapping, or never closed; the message gives the line.
    """
    handler = YAMLHandler(fm_boundary=_BOUNDARY)
    lines = text.split("\n", 2)
    if lines[0].rstrip() != "---":
        return FrontMatter(values={}, body=text)
    try:
        head, body = handler.split(text)
    except ValueError:
        return _unclosed(text, lines, name)
    values = _load(handler, head, name, ruled=not lines[1].strip())
    if values is None:
        return FrontMatter(values={}, body=text)
    return FrontMatter(values={str(k): v for k, v in values.items()}, body=body.strip("\n"))


def tags_of(value: Any) -> tuple[str, ...]:
    """Tags from a list or from comma-separated text, each once; numbers and truth values become text."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple | set):
        items = [items]
    tags = (scalar_text(item).lstrip("#").strip()[:MAX_TAG] for item in items)
    return tuple(dict.fromkeys(tag for tag in tags if tag))[:MAX_TAGS]


def _unclosed(text: str, lines: list[str], name: str) -> FrontMatter:
    """A lone `---` on top is a ruler, unless what follows is clearly meant as keys."""
    if len(lines) > 1 and _KEY.match(lines[1]):
        raise DocumentRejected(
            f"{name}: the front matter opened at line 1 is never closed", fix="add a line ---"
        )
    return FrontMatter(values={}, body=text)


def _load(handler: YAMLHandler, head: str, name: str, *, ruled: bool) -> Mapping[Any, Any] | None:
    """The mapping; None if `ruled` (a blank line follows the first ---) and the block is just text."""
    try:
        values = handler.load(head, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if ruled:
            return None
        raise DocumentRejected(
            f"{name}: the front matter is not valid YAML at {_where(error)}", fix="correct it"
        ) from None
    if values is None:
        return {}
    if isinstance(values, Mapping):
        return values
    if ruled:
        return None
    found = f"{name}: the front matter from line 1 is a {type(values).__name__}, not a mapping"
    raise DocumentRejected(found, fix="write it as key: value lines")


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    # The block starts at the end of line 1, so the parser's line 0 is ours.
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1"
