"""How many requests a host gets: one limiter per host, which refuses and never waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.errors import RateLimited

LARGEST_BURST = 30
"""Requests that may follow each other at once after a quiet time."""

BUSY_SECONDS = 1.0
"""How long to stay away when too many requests are in flight: about as long as one of them takes."""

TICKET_SECONDS = 300.0
"""A ticket nobody gave back in this time belonged to a process that was killed."""


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one host is asked at most, over all workers."""

    per_minute: int | None = None
    """None: no limit of our own. In any span of s seconds at most `burst + s * per_minute / 60` enter."""
    at_once: int = 4
    """Requests in flight."""
    of_people: bool = False
    """True: they come all at once and then none, as people ask, so a minute's worth may; False: from a sync."""

    @property
    def burst(self) -> int:
        """How many may enter at once after a quiet time."""
        most = self.per_minute or LARGEST_BURST
        return max(1, most if self.of_people else min(most, LARGEST_BURST))

    @property
    def resume_tokens(self) -> float:
        """Tokens to wait for once none are left, so that a sync is not put back for each single request."""
        return 1.0 if self.of_people else max(1.0, self.burst / 4)


class RequestLimiter(Protocol):
    """Shared by all who ask one host. Both implementations pass tests/contracts/test_request_limiter.py."""

    def acquire(self, key: str, limits: RequestLimits) -> str:
        """A ticket for one request; give it back with `release`.

        Raises:
            RateLimited: not now; `retry_after` says in how many seconds.
            SourceUnavailable: the limiter itself cannot be reached.
        """
        ...

    def release(self, key: str, ticket: str) -> None:
        """The request is over. Never raises: a lost ticket dies by itself."""
        ...

    def pause(self, key: str, seconds: float) -> None:
        """Nobody enters before that time is over; a shorter close never shortens a longer one.

        Raises:
            SourceUnavailable: the limiter itself cannot be reached.
        """
        ...


class Busy(RateLimited):
    """As many requests as are allowed are in flight: whoever waits a little may be let in."""


def refusal(key: str, why: str, seconds: float) -> RateLimited:
    """What `enter` raises; `why` is `closed`, `busy` or `empty`."""
    said = {
        "closed": f"{key} asked us to stay away for {seconds:.0f} s more",
        "busy": f"as many requests to {key} as allowed are in flight",
        "empty": f"the requests allowed to {key} per minute are used up",
    }
    fix = "nothing to do: the work goes on by itself; raise requestsPerMinute or maxConcurrency if it crawls"
    kind = Busy if why == "busy" else RateLimited
    return kind(said[why], fix=fix, retry_after=seconds)


@dataclass(kw_only=True)
class _Host:
    tokens: float
    at: float
    closed_until: float = 0.0
    tickets: dict[str, float] = field(default_factory=dict)


class LocalRequestLimiter:
    """A limiter inside one process; `clock` gives seconds that never go back."""

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
            if limits.per_minute:  # the same arithmetic stands in workers/limits/limiters.py in Lua
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
