"""What handlers depend on: the parts of the process, and the caller with the permission that is needed."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Any

from anyio import CancelScope
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, model_validator
from starlette.concurrency import run_in_threadpool

from connectors.web.limiter import Busy, RequestLimiter, RequestLimits
from pipeline.access import READ, Caller
from pipeline.errors import RateLimited, SourceUnavailable, TokenRefused
from pipeline.ledger import storable
from workers.admin.tokens import TokenUnproved, Verifier
from workers.limits.rest import Rest
from workers.runtime import Runtime


class RequestBody(BaseModel):
    """What is sent, without the characters that a database does not take."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        return storable(value, nul="\ufffd")


def _no_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")  # noqa: TRY004 (pydantic takes no TypeError)
    return value


def _text_of_time(value: object) -> object:
    if not isinstance(value, str | datetime):
        raise ValueError("Input should be a time as text")  # noqa: TRY004 (pydantic takes no TypeError)
    return value


NotFlag = BeforeValidator(_no_flag)
"""Of numbers: Python takes true for 1."""
Moment = Annotated[AwareDatetime, BeforeValidator(_text_of_time)]
ProjectName = Annotated[
    str, Field(min_length=1, max_length=200, description="Id or name.", examples=["berths"])
]


async def parts_of(request: Request) -> Runtime:
    """The parts of this process; asynchronous as all that waits for nothing, since a thread for it costs more."""
    found: Runtime = request.app.state.parts
    return found


Parts = Annotated[Runtime, Depends(parts_of)]
_bearer = HTTPBearer(auto_error=False, scheme_name="bearerAuth", bearerFormat="JWT")
_Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

COOKIE = "larder_console"
MOST_WAITING = 100
"""Requests of one user that may wait for an answer; they hold a connection and nothing else."""
QUEUE_SECONDS = 30.0
"""A request beyond `api.atOnce` waits for its turn so long; at most `MOST_WAITING` of a user do in a process."""
QUEUE_LOOK = 0.05
"""Seconds between two looks whether its turn has come."""
_queued: Counter[str] = Counter()
WINDOW = 60.0
"""Seconds in which wrong tokens are counted together."""
MOST_KEPT = 10_000
UNCOUNTED = Rest(10.0)
"""Of brokers by address: a frozen one costs each request its three seconds."""


class Attempts:
    """Counts wrong tokens of the last minute by address; `clock` gives seconds that never go back."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @contextmanager
    def counted(self, address: str) -> Iterator[None]:
        """Around the proof of a token.

        A right one is let in whatever came before it: many share an address, and whoever sends wrong ones from
        there, or in somebody's name, shall keep nobody out.

        Raises:
            RateLimited: it is wrong, as too many were lately.
        """
        try:
            yield
        except TokenUnproved:
            if left := self._seconds_to_wait(address):
                raise _too_many(
                    f"too many wrong tokens: an address may send {self._most} a minute", left
                ) from None
            raise

    def _seconds_to_wait(self, address: str) -> float:
        with self._lock:
            count, since = self._wrong.get(address, (0, 0.0))
            now = self._clock()
            if now - since >= WINDOW:
                count, since = 0, now
            if count >= self._most:
                return max(0.1, since + WINDOW - now)
            self._wrong[address] = count + 1, since
            self._wrong.move_to_end(address)
            while len(self._wrong) > MOST_KEPT:
                self._wrong.popitem(last=False)
        return 0.0


def _too_many(said: str, seconds: float | None) -> RateLimited:
    return RateLimited(said, fix=f"ask again in {math.ceil(seconds or 1)} s", retry_after=seconds)


def address_of(request: Request) -> str:
    """Where a request comes from; of the sixth version what one user has, who may have any number of them."""
    host = request.client.host if request.client else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host[:64]
    return str(ip_network((found, 64), strict=False) if isinstance(found, IPv6Address) else found)


def prove_caller(request: Request, token: str) -> Caller:
    """The caller whom the token of a request proves.

    Raises:
        TokenRefused: nobody.
        RateLimited: nobody, and too many were wrong lately from this address.
    """
    verifier: Verifier = request.app.state.verifier
    attempts: Attempts = request.app.state.attempts
    with attempts.counted(address_of(request)):
        return verifier.caller(token)


def _admitted(*, waits: bool) -> Callable[..., AsyncIterator[Caller]]:
    """A dependency: the caller, as long as their request is under way."""

    async def admitted(request: Request, parts: Parts, given: _Given) -> AsyncIterator[Caller]:
        if given is None:
            raise TokenRefused("there is no token", fix="send Authorization: Bearer TOKEN")
        caller = await run_in_threadpool(prove_caller, request, given.credentials)
        async with counted(parts, caller, waits=waits):
            yield caller

    return admitted


@asynccontextmanager
async def counted(parts: Runtime, caller: Caller, *, waits: bool = False) -> AsyncIterator[None]:
    """A request of the caller's, by whatever door, is under way; those that wait for an answer are counted apart.

    One that is too many at once waits `QUEUE_SECONDS` for its turn, in the event loop, without a thread.

    Raises:
        RateLimited: they ask more than they may.
    """
    a, key = parts.rag.api, f"api:{caller.tenant}:{caller.subject}{':waits' if waits else ''}"
    most = MOST_WAITING if waits else a.at_once
    limits = RequestLimits(per_minute=a.requests_per_minute, at_once=most, of_people=True)
    ticket = ""  # without the broker nobody counts, and searches go on
    if not UNCOUNTED.holds(parts.addresses.valkey):
        try:
            ticket = await _ticket(parts.request_limiter, key, limits, 0.0 if waits else QUEUE_SECONDS)
        except RateLimited as error:
            may = f"it may ask {a.requests_per_minute} a minute, and {most} of them may be under way"
            raise _too_many(f"too many requests with this token: {may}", error.retry_after) from None
        except SourceUnavailable:
            UNCOUNTED.begin(parts.addresses.valkey)
    try:
        yield
    finally:
        if ticket:
            with CancelScope(shield=True):  # else the place of a caller who has left would stay taken
                await run_in_threadpool(parts.request_limiter.release, key, ticket)


async def _ticket(limiter: RequestLimiter, key: str, limits: RequestLimits, seconds: float) -> str:
    """A ticket of the limiter, within so many seconds if only too many are under way."""
    end = time.monotonic() + seconds
    _queued[key] += 1
    try:
        while True:
            try:
                return await run_in_threadpool(limiter.acquire, key, limits)
            except Busy:
                if time.monotonic() >= end or _queued[key] > MOST_WAITING:
                    raise
            await asyncio.sleep(QUEUE_LOOK)
    finally:
        _queued[key] -= 1
        if not _queued[key]:
            del _queued[key]


_ADMITTED, _WAITS = _admitted(waits=False), _admitted(waits=True)


async def cookie_of(request: Request, parts: Parts) -> AsyncIterator[tuple[Caller, str] | None]:
    """A dependency: caller and token of the console's cookie, as long as their request is under way; None: nobody."""
    token = request.cookies.get(COOKIE, "")
    try:
        caller = await run_in_threadpool(prove_caller, request, token) if token else None
    except TokenRefused:
        caller = None
    if caller is None:
        yield None
        return
    async with counted(parts, caller):
        yield caller, token


def may(permission: str) -> Callable[[Caller], Awaitable[Caller]]:
    """A dependency: the caller, if they have this permission; `Forbidden` otherwise."""

    async def checked(caller: Annotated[Caller, Depends(_ADMITTED)]) -> Caller:
        return caller.require(permission)

    return checked


async def _waiter(caller: Annotated[Caller, Depends(_WAITS)]) -> Caller:
    return caller.require(READ)


Reader = Annotated[Caller, Depends(may(READ))]
Waiter = Annotated[Caller, Depends(_waiter)]
"""A reader who may wait for long."""
