"""How long an embedding service asks us to stay away, in all the ways such services say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LEAST_SECONDS = 0.1
MOST_SECONDS = 3600.0

_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def wait_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (0.1 to 3600) to stay away; None: no wish was expressed. `headers` find names in any case."""
    for wish in (_milliseconds(headers), _retry_after(headers, now or datetime.now(UTC)), _reset(headers)):
        if wish is not None:
            return bounded(wish)
    return None


def bounded(seconds: float) -> float:
    """A wait that is neither an endless loop nor a day off."""
    return min(MOST_SECONDS, max(LEAST_SECONDS, seconds))


def _milliseconds(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after-ms", "").strip()
    return float(text) / 1000 if _NUMBER.fullmatch(text) else None


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """A number of seconds or a date, which is compared with the clock of the one who wrote it."""
    text = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    moment, there = _date(text), _date(headers.get("date", ""))
    return (moment - (there or now)).total_seconds() if moment else None


def _reset(headers: Mapping[str, str]) -> float | None:
    """When the allowance that is used up is full again; the longest of them if none says so."""
    names = ("requests", "tokens")
    waits = {name: _duration(headers.get(f"x-ratelimit-reset-{name}", "")) for name in names}
    spent = [n for n in names if headers.get(f"x-ratelimit-remaining-{n}", "").strip() == "0"]
    known = [seconds for name in spent or names if (seconds := waits[name]) is not None]
    return max(known, default=None)


def _duration(text: str) -> float | None:
    """`1s`, `6m0s`, `20ms`, or a bare number of seconds."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
