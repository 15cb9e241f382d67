"""How long a service asks us to stay away, in all the ways services say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from connectors.documents.times import from_epoch, parse_time
from connectors.web.faults import RATE_LIMIT_SECONDS

LEAST_SECONDS = 1.0
MOST_SECONDS = 3600.0
NEAR_LIMIT_SECONDS = 5.0
"""A break taken early is shorter than the one that would be ordered."""

EPOCH_FROM = 1_000_000_000
"""Smaller numbers are seconds from now."""

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?", re.ASCII)


def pause_of(status: int, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (1 to 3600) in which nobody should ask again; None: no wish was expressed.

    `headers` find their names in any case. A good answer can carry a wish as well.
    """
    now = _server_time(headers) or now or datetime.now(UTC)
    asked = retry_after(headers, now)
    if status == 429:  # noqa: PLR2004 (Too Many Requests)
        return _bounded(_first(asked, _reset(headers, now), RATE_LIMIT_SECONDS))
    if status == 503:  # noqa: PLR2004 (Service Unavailable)
        return _bounded(_first(asked, RATE_LIMIT_SECONDS)) if "Retry-After" in headers else None
    if status < 400:  # noqa: PLR2004 (no error)
        return _early(asked, headers, now)
    return None


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """`Retry-After` in seconds, also from a date; negative if that is past, None if missing or nonsense."""
    text = headers.get("Retry-After", "").strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    moment = _http_date(text)
    return (moment - now).total_seconds() if moment else None


def _early(asked: float | None, headers: Mapping[str, str], now: datetime) -> float | None:
    """What a good answer says about the next ones."""
    if asked is not None and asked > 0:
        return _bounded(asked)
    if headers.get("X-RateLimit-Remaining", "").strip() == "0":
        return _bounded(_first(_reset(headers, now), _interval(headers), NEAR_LIMIT_SECONDS))
    near = headers.get("X-RateLimit-NearLimit", "").strip().lower() == "true"
    return NEAR_LIMIT_SECONDS if near else None


def _reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """`X-RateLimit-Reset`: epoch seconds, seconds from now, or ISO text (whole minutes are usual)."""
    text = headers.get("X-RateLimit-Reset", "").strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        moment = from_epoch(seconds) if seconds >= EPOCH_FROM else None
        return seconds if seconds < EPOCH_FROM else (moment - now).total_seconds() if moment else None
    moment = parse_time(text)
    return (moment - now).total_seconds() if moment else None


def _interval(headers: Mapping[str, str]) -> float | None:
    """`X-RateLimit-Interval-Seconds`: when the bucket of a Data Center gets its next drops."""
    text = headers.get("X-RateLimit-Interval-Seconds", "").strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _server_time(headers: Mapping[str, str]) -> datetime | None:
    """Dates are compared with the clock of the one who wrote them."""
    return _http_date(headers.get("Date", ""))


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _bounded(seconds: float) -> float:
    return min(MOST_SECONDS, max(LEAST_SECONDS, seconds))
