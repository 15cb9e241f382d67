"""Cursors survive the database, and are dropped where they mean nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from connectors.documents.options import cursor_json, read_cursor


@dataclass(frozen=True, kw_only=True)
class Cursor:
    selection: str
    at: datetime | None = None
    tokens: dict[str, str | None] = field(default_factory=dict)
    todo: tuple[int, ...] = ()


def test_a_cursor_survives_json_without_its_default_values() -> None:
    cursor = Cursor(selection="s", at=datetime(2025, 3, 3, 12, 0, 30, 5, tzinfo=UTC), todo=(3, 1))

    stored = json.loads(json.dumps(cursor_json(cursor)))

    assert set(stored) == {"selection", "at", "todo"}
    assert read_cursor(Cursor, stored, "s") == cursor


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"selection": "other"},
        {"at": "2025-03-03T12:00:30Z"},
        {"selection": "s", "at": "yesterday"},
        {"selection": "s", "tokens": 5},
        {"selection": "s", "todo": {"a": 1}},
    ],
)
def test_a_cursor_that_is_missing_broken_or_of_other_options_is_none(stored: dict[str, Any] | None) -> None:
    assert read_cursor(Cursor, stored, "s") is None
