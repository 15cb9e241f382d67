"""Rules for calling foreign services: refused addresses, and pauses that their answers ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from socket import SOCK_STREAM, getaddrinfo

_IPV4_INSIDE = (bytes(12), bytes(10) + b"\xff\xff", bytes.fromhex("0064ff9b") + bytes(8))
"""Prefixes of IPv6 addresses that contain an IPv4 address: compatible, mapped, NAT64."""
_KEY_SERVICES = ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")
"""Metadata services at other than link-local addresses."""


def is_metadata_service(address: str) -> bool:
    """True for the IP address of a cloud's metadata service, which hands out a machine's keys; False for names."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if ip.packed[:12] in _IPV4_INSIDE:
        ip = ip_address(ip.packed[12:])
    return ip.is_link_local or str(ip) in _KEY_SERVICES


def resolves_to_metadata_service(host: str, port: int) -> bool:
    """True for a host whose name or address is that of a metadata service; False for unknown names."""
    with suppress(OSError, UnicodeError):
        return any(
            is_metadata_service(str(entry[4][0])) for entry in getaddrinfo(host, port, type=SOCK_STREAM)
        )
    return False


def web_address(url: str) -> str:
    """The address if it is a web page's; empty for others, since a file's address names folders of the machine."""
    return url if url.lower().startswith(("http://", "https://")) else ""


LEAST_SECONDS = 0.1
MOST_SECONDS = 3600.0
RATE_LIMIT_SECONDS = 30.0
"""Seconds to wait for a busy source that does not say how long."""
NEAR_LIMIT_SECONDS = 5.0
"""Seconds to wait near a limit; shorter than the pause after exceeding it."""
EPOCH_FROM = 1_000_000_000
"""Smaller values of `X-RateLimit-Reset` are seconds from now, larger ones epoch seconds."""
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?", re.ASCII)
_DURATION_UNITS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def provider_pause(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (0.1 to 3600) before the next call of a provider; None if no header says so."""
    pause = _first(retry_after(headers, now), quota_reset(headers, now))
    return None if pause is None else clamped(pause)


def source_pause(status: int, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (1 to 3600) before the next request to a source; None if neither status nor headers ask for a pause.

    Successful answers can ask for one as well.
    """
    requested, reset, pause = retry_after(headers, now), quota_reset(headers, now), None
    is_used_up = headers.get("X-RateLimit-Remaining", "").strip() == "0"
    # GitHub refuses with 403 (Forbidden) what goes beyond its limits.
    if status == 429 or (status == 403 and (requested is not None or is_used_up)):  # noqa: PLR2004 (Too Many Requests)
        pause = _first(requested, reset, RATE_LIMIT_SECONDS)
    elif status == 503 and "Retry-After" in headers:  # noqa: PLR2004 (Service Unavailable)
        pause = _first(requested, RATE_LIMIT_SECONDS)
    elif status >= 400:  # noqa: PLR2004 (any other error)
        pause = None
    elif requested is not None and requested > 0:
        pause = requested
    elif is_used_up:
        # Confluence Data Center names the interval after which its bucket is refilled.
        interval = _number(headers.get("X-RateLimit-Interval-Seconds", ""))
        pause = _first(reset, interval, NEAR_LIMIT_SECONDS)
    elif headers.get("X-RateLimit-NearLimit", "").strip().lower() == "true":
        pause = NEAR_LIMIT_SECONDS
    return None if pause is None else clamped(pause, least=1.0)


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
    amounts = _DURATION_UNITS.findall(text)
    if amounts and "".join(number + unit for number, unit in amounts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in amounts)
    return _number(text)


def clamped(seconds: float, *, least: float = LEAST_SECONDS) -> float:
    """`seconds` limited to `least` and MOST_SECONDS."""
    return min(MOST_SECONDS, max(least, seconds))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _until(moment: datetime | None, headers: Mapping[str, str], now: datetime | None) -> float | None:
    server_time = http_date(headers.get("Date", "")) or now or datetime.now(UTC)
    return (moment - server_time).total_seconds() if moment else None


def _moment(text: str) -> datetime | None:
    """The time of epoch seconds or ISO text; None for anything else."""
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
