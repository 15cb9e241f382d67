"""Points in time as people and programs write them, read as aware UTC times."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

MILLISECONDS_FROM = 10_000_000_000
"""Epoch numbers from here on are milliseconds: as seconds they would lie in the year 2286."""


def parse_time(value: Any) -> datetime | None:
    """A date, a time, ISO text or an epoch number as an aware UTC time; None if it is no time."""
    try:
        if isinstance(value, datetime):
            return _aware(value)
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, str):
            return _aware(datetime.fromisoformat(value.strip()))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return from_epoch(value / 1000 if value >= MILLISECONDS_FROM else value)
    except (ValueError, OverflowError):
        return None
    return None


def from_epoch(seconds: float) -> datetime | None:
    """The time of a file system or program; None if it lies outside the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _aware(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
