"""Points in time as people and programs write them, read as aware UTC times."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

MILLISECONDS_FROM = 10_000_000_000
"""Epoch numbers from here on are milliseconds: as seconds they would lie in the year 2286."""

LAST_MONTH = 12
MAX_LINE = 500
_MONTHS = (
    "jan", "fe[bv]|fév", "mar|mär", "ap[rv]|avr", "ma[yi]", "jun|juin", "jul|juil", "aug|ao[uû]", "sep", "o[ck]t",
    "nov", "de[cz]|déc",
)  # fmt: skip
_NAME = r"(?P<month>[^\W\d_]{3,10})\.?"
_SPELLINGS = tuple(
    re.compile(spelling)
    for spelling in (
        r"\b(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)\b",
        r"\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?[\s-]+" + _NAME + r",?[\s-]+(?P<year>\d{4})\b",
        r"\b" + _NAME + r"\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<year>\d{4})\b",
        r"\b(?P<year>\d{4})\s+" + _NAME + r"\s+(?P<day>\d{1,2})\b",
        r"\b(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})\b",
        r"\b(?P<day>\d{1,2})(?P<unsure>[-/])(?P<month>\d{1,2})[-/](?P<year>\d{4})\b",
    )
)


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


def _month(name: str) -> int:
    """A number as it is; 1 to 12 by the first letters in English, German or French; 0 if it is no month."""
    if name.isdecimal():
        return int(name)
    return next((n for n, start in enumerate(_MONTHS, 1) if re.match(start, name)), 0)


def _aware(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def parse_day(text: str) -> str:
    """The ISO day a text names in any usual spelling; empty if it names none, or day and month may be swapped."""
    if moment := parse_time(text):
        return moment.date().isoformat()
    for match in filter(None, (spelling.search(text.casefold()[:MAX_LINE]) for spelling in _SPELLINGS)):
        month, day = _month(match["month"]), int(match["day"])
        if "unsure" in match.groupdict():
            if day <= LAST_MONTH and month <= LAST_MONTH and day != month:
                continue
            day, month = (month, day) if month > LAST_MONTH else (day, month)
        try:
            return date(int(match["year"]), month, day).isoformat()
        except ValueError:
            continue
    return ""
