"""Limits on requests to a host: a limiter admits a request or refuses it, but never waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.errors import RateLimited

LARGEST_BURST = 30
"""Most requests in a burst after an idle time."""

BUSY_SECONDS = 1.0
"""Seconds to wait when too many requests are in flight: about the duration of one."""

TICKET_SECONDS = 300.0
"""Seconds after which a ticket expires: it belongs to a process that was killed."""


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits on the requests to one host, over all workers."""

    per_minute: int | None = None
    """Most requests a minute; None: no limit. In any s seconds at most `burst + s * per_minute / 60` are admitted."""
    at_once: int = 4
    """Most requests in flight."""
    of_people: bool = False
    """True for requests of people, of which a minute's worth may come at once; False for those of a sync."""

    @property
    def burst(self) -> int:
        """Most requests admitted at once after an idle time."""
        most = self.per_minute or LARGEST_BURST
        return max(1, most if self.of_people else min(most, LARGEST_BURST))

    @property
    def resume_tokens(self) -> float:
        """Tokens to wait for once none are left; several, so that a sync is not delayed for each single request."""
        return 1.0 if self.of_people else max(1.0, self.burst / 4)


class RequestLimiter(Protocol):
    """Admits requests per host, over all workers. Implementations pass tests/contracts/test_request_limiter.py."""

    def acquire(self, key: str, limits: RequestLimits) -> str:
        """A ticket for one request, to be returned with `release`.

        Raises:
            RateLimited: not admitted now; `retry_after` is the number of seconds to wait.
            SourceUnavailable: the limiter itself cannot be reached.
        """
        ...

    def release(self, key: str, ticket: str) -> None:
        """Return a ticket after the request. Never raises, because a lost ticket expires."""
        ...

    def pause(self, key: str, seconds: float) -> None:
        """Admit no request for that time; a shorter pause does not end a longer one.

        Raises:
            SourceUnavailable: the limiter itself cannot be reached.
        """
        ...


class Busy(RateLimited):
    """The most requests allowed are in flight; a slot may be free soon."""


def refusal(key: str, reason: str, seconds: float) -> RateLimited:
    """The error that `acquire` raises; `reason` is `closed`, `busy` or `empty`."""
    messages = {
        "closed": f"{key} asked for a pause of {seconds:.0f} more s",
        "busy": f"as many requests to {key} as allowed are in flight",
        "empty": f"the requests allowed to {key} per minute are used up",
    }
    fix = (
        "nothing to do: the work continues by itself; raise requestsPerMinute or maxConcurrency if it is slow"
    )
    kind = Busy if reason == "busy" else RateLimited
    return kind(messages[reason], fix=fix, retry_after=seconds)


@dataclass(kw_only=True)
class _Host:
    tokens: float
    at: float
    closed_until: float = 0.0
    tickets: dict[str, float] = field(default_factory=dict)


class LocalRequestLimiter:
    """A limiter within one process; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._numbers = itertools.count(1)

    def acquire(self, key: str, limits: RequestLimits) -> str:
        """See RequestLimiter."""
        with self._lock:
            now = self._clock()
            host = self._host(key, limits, now)
            if host.closed_until > now:
                raise refusal(key, "closed", host.closed_until - now)
            host.tickets = {ticket: end for ticket, end in host.tickets.items() if end > now}
            if len(host.tickets) >= limits.at_once:
                raise refusal(key, "busy", BUSY_SECONDS)
            if limits.per_minute:  # the same arithmetic is in workers/limits/limiters.py in Lua
                rate = limits.per_minute / 60
                host.tokens = min(float(limits.burst), host.tokens + max(0.0, now - host.at) * rate)
                host.at = now
                if host.tokens < 1:
                    raise refusal(key, "empty", max(0.1, (limits.resume_tokens - host.tokens) / rate))
                host.tokens -= 1
            ticket = str(next(self._numbers))
            host.tickets[ticket] = now + TICKET_SECONDS
            return ticket

    def release(self, key: str, ticket: str) -> None:
        """See RequestLimiter."""
        with self._lock:
            if key in self._hosts:
                self._hosts[key].tickets.pop(ticket, None)

    def pause(self, key: str, seconds: float) -> None:
        """See RequestLimiter."""
        with self._lock:
            now = self._clock()
            host = self._host(key, RequestLimits(), now)
            host.closed_until = max(host.closed_until, now + seconds)

    def _host(self, key: str, limits: RequestLimits, now: float) -> _Host:
        return self._hosts.setdefault(key, _Host(tokens=float(limits.burst), at=now))
