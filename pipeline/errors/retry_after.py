"""How long a service asks to be left alone: the one reader of `Retry-After` and of the headers of rate limits.

Everywhere `headers` is a mapping that finds names in any case, and a date is compared with the answer's own `Date`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LEAST_SECONDS = 0.1
MOST_SECONDS = 3600.0
RATE_LIMIT_SECONDS = 30.0
"""How long to stay away from a source that is too busy to say."""
NEAR_LIMIT_SECONDS = 5.0
"""A break taken early is shorter than the one that would be ordered."""
EPOCH_FROM = 1_000_000_000
"""A smaller `X-RateLimit-Reset` is seconds from now."""

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?", re.ASCII)
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def wait_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (0.1 to 3600) before the next call of a provider; None: no wish was expressed."""
    wish = _first(retry_after(headers, now), quota_reset(headers, now))
    return None if wish is None else bounded(wish)


def pause_of(status: int, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (1 to 3600) in which nobody should ask a source again; None: no wish was expressed.

    A good answer can carry a wish as well.
    """
    asked, wish = retry_after(headers, now), None
    if status == 429:  # noqa: PLR2004 (Too Many Requests)
        wish = _first(asked, quota_reset(headers, now), RATE_LIMIT_SECONDS)
    elif status == 503 and "Retry-After" in headers:  # noqa: PLR2004 (Service Unavailable)
        wish = _first(asked, RATE_LIMIT_SECONDS)
    elif status >= 400:  # noqa: PLR2004 (any other error)
        wish = None
    elif asked is not None and asked > 0:
        wish = asked
    elif headers.get("X-RateLimit-Remaining", "").strip() == "0":
        # A Data Center names the interval after which its bucket is filled up a little.
        interval = _number(headers.get("X-RateLimit-Interval-Seconds", ""))
        wish = _first(quota_reset(headers, now), interval, NEAR_LIMIT_SECONDS)
    elif headers.get("X-RateLimit-NearLimit", "").strip().lower() == "true":
        wish = NEAR_LIMIT_SECONDS
    return None if wish is None else bounded(wish, least=1.0)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """`retry-after-ms`, or `Retry-After` as seconds or date; negative if that is past, None if missing or nonsense."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("Retry-After", "")
    seconds = _number(text)
    return _until(http_date(text), headers, now) if seconds is None else seconds


def quota_reset(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds until a used-up quota is full again; None if no header says so.

    `X-RateLimit-Reset` is epoch seconds, seconds from now, or ISO text. Of `x-ratelimit-reset-requests` and
    `-tokens`, such as `1m30s`, the one that is used up counts, else the longer one.
    """
    if text := headers.get("X-RateLimit-Reset", "").strip():
        seconds = _number(text)
        return (
            seconds if seconds is not None and seconds < EPOCH_FROM else _until(_moment(text), headers, now)
        )
    names = ("requests", "tokens")
    waits = {name: duration(headers.get(f"x-ratelimit-reset-{name}", "")) for name in names}
    spent = [n for n in names if headers.get(f"x-ratelimit-remaining-{n}", "").strip() == "0"]
    return max((wait for name in spent or names if (wait := waits[name]) is not None), default=None)


def duration(text: str) -> float | None:
    """Seconds of `1s`, `6m0s`, `20ms` or a bare number; None for anything else."""
    text = text.strip()
    parts = _PARTS.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return _number(text)


def bounded(seconds: float, *, least: float = LEAST_SECONDS) -> float:
    """A wait that is neither an endless loop nor a day off."""
    return min(MOST_SECONDS, max(least, seconds))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _until(moment: datetime | None, headers: Mapping[str, str], now: datetime | None) -> float | None:
    there = http_date(headers.get("Date", "")) or now or datetime.now(UTC)
    return (moment - there).total_seconds() if moment else None


def _moment(text: str) -> datetime | None:
    """Epoch seconds or ISO text; whole minutes are usual."""
    seconds = _number(text)
    try:
        return _utc(datetime.fromisoformat(text)) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def http_date(text: str) -> datetime | None:
    """The time of a header such as `Date`; None for anything else."""
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
