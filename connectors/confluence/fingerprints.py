"""Fingerprints: what of a page changes without a new version, and can be seen without its body."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from connectors.confluence.attachments import Annex
from connectors.confluence.item import Item

LENGTH = 24


def page_fingerprint(item: Item, layers: Sequence[Sequence[str]], annex: Annex) -> str:
    """Version, title, place, labels, who may read, comments and attachments."""
    return _short([*_place(item, layers), item.version, item.labels, annex.marks])


def file_fingerprint(file: Item, page: Item, layers: Sequence[Sequence[str]]) -> str:
    """The file's version and name, and the place of its page."""
    return _short([*_place(page, layers), file.row, file.title])


def _place(item: Item, layers: Sequence[Sequence[str]]) -> list[Any]:
    return [item.kind, item.title, item.space_key, item.space_name, item.ancestors, layers]


def _short(parts: list[Any]) -> str:
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]
