"""Any JSON value as text that a person can read and a chunker can cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from connectors.documents.json_values import clean_text, scalar_text

MAX_SECTIONS = 5
"""Objects become headings this deep; below they become indented lines."""
MAX_BULLETS = 12
INDENT = "  "


def json_text(value: Any) -> str:
    """Keys as headings and `key: value` lines, lists as bullets; empty if the value holds nothing."""
    return "\n".join(_section(value, 1)).strip()


def _section(value: Any, level: int) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield from _lines(value, 0)
        return
    nested = []
    for key, item in value.items():
        if level <= MAX_SECTIONS and isinstance(item, Mapping | list) and item:
            nested.append((key, item))
        else:
            yield from _pair(key, item, 0)
    for key, item in nested:
        lines = list(_section(item, level + 1))
        if lines:
            yield f"\n{'#' * (level + 1)} {_name(key)}\n"
            yield from lines


def _lines(value: Any, depth: int) -> Iterator[str]:
    """Indented lines; what is nested too deep for that stays JSON on one line."""
    if depth > MAX_BULLETS:
        yield INDENT * depth + clean_text(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _pair(key, item, depth)
    elif isinstance(value, list):
        for item in value:
            lines = list(_lines(item, 0 if isinstance(item, str) else depth + 1))
            if lines:
                yield f"{INDENT * depth}- {lines[0].strip()}"
                yield from lines[1:]
    elif text := scalar_text(value):
        yield INDENT * depth + text


def _pair(key: Any, item: Any, depth: int) -> Iterator[str]:
    if isinstance(item, Mapping | list):
        lines = list(_lines(item, depth + 1))
        if lines:
            yield f"{INDENT * depth}{_name(key)}:"
            yield from lines
    elif text := scalar_text(item):
        yield f"{INDENT * depth}{_name(key)}: {text}"


def _name(key: Any) -> str:
    return " ".join(clean_text(str(key)).split())
