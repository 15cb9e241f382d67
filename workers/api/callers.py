"""Dependencies of handlers: the runtime of the process, and the caller with the required permission."""

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
from workers.app.tokens import TokenUnproved, Verifier
from workers.queue.rest import Rest
from workers.runtime import Runtime


class RequestBody(BaseModel):
    """Base of request bodies; removes characters that PostgreSQL cannot store."""

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
"""Refuses true and false as numbers."""
Moment = Annotated[AwareDatetime, BeforeValidator(_text_of_time)]
ProjectName = Annotated[
    str, Field(min_length=1, max_length=200, description="Id or name.", examples=["berths"])
]


async def runtime_of(request: Request) -> Runtime:
    """The runtime of this process; asynchronous, since it does not block and a thread would cost more."""
    runtime: Runtime = request.app.state.runtime
    return runtime


async def whole_body(request: Request) -> bytes:
    """A dependency: the body as it was sent, for handlers that prove it."""
    return await request.body()


CurrentRuntime = Annotated[Runtime, Depends(runtime_of)]
_bearer = HTTPBearer(auto_error=False, scheme_name="bearerAuth", bearerFormat="JWT")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

COOKIE = "larder_console"
MAX_WAITING = 100
"""Requests of one user that may wait for an answer; each holds only a connection."""
QUEUE_SECONDS = 30.0
"""Seconds that a request beyond `api.atOnce` waits for its turn; at most `MAX_WAITING` per user and process."""
QUEUE_LOOK = 0.05
"""Seconds between two checks for its turn."""
_queued: Counter[str] = Counter()
WINDOW = 60.0
"""Seconds over which wrong tokens are counted."""
MAX_ADDRESSES = 10_000
UNCOUNTED = Rest(10.0)
"""Pause after a broker, by its address, did not answer; a frozen one would delay each request by three seconds."""


class Attempts:
    """Counts wrong tokens of the last minute by address; `clock` is monotonic."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @contextmanager
    def counted(self, address: str) -> Iterator[None]:
        """Context of the proof of a token, which counts failures.

        A valid token is always accepted: many callers share an address, and wrong tokens from there must not lock
        them out.

        Raises:
            RateLimited: the token is wrong, and so were too many before.
        """
        try:
            yield
        except TokenUnproved:
            if seconds := self._seconds_to_wait(address):
                raise _too_many(
                    f"too many wrong tokens: an address may send {self._most} a minute", seconds
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
            while len(self._wrong) > MAX_ADDRESSES:
                self._wrong.popitem(last=False)
        return 0.0


def _too_many(message: str, seconds: float | None) -> RateLimited:
    return RateLimited(message, fix=f"ask again in {math.ceil(seconds or 1)} s", retry_after=seconds)


def address_of(request: Request) -> str:
    """Address of a request's client; for IPv6 its /64 network, which belongs to one user."""
    host = request.client.host if request.client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host[:64]
    return str(ip_network((address, 64), strict=False) if isinstance(address, IPv6Address) else address)


def prove_caller(request: Request, token: str) -> Caller:
    """Verify a request's token and return its caller.

    Raises:
        TokenRefused: the token is not valid.
        RateLimited: nor were too many others from this address.
    """
    verifier: Verifier = request.app.state.verifier
    attempts: Attempts = request.app.state.attempts
    with attempts.counted(address_of(request)):
        return verifier.caller(token)


def _admitted(*, waits: bool) -> Callable[..., AsyncIterator[Caller]]:
    """A dependency: the caller, counted while their request runs."""

    async def admitted(
        request: Request, runtime: CurrentRuntime, credentials: _Credentials
    ) -> AsyncIterator[Caller]:
        if credentials is None:
            raise TokenRefused("the request has no token", fix="send Authorization: Bearer TOKEN")
        caller = await run_in_threadpool(prove_caller, request, credentials.credentials)
        async with counted(runtime, caller, waits=waits):
            yield caller

    return admitted


@asynccontextmanager
async def counted(runtime: Runtime, caller: Caller, *, waits: bool = False) -> AsyncIterator[None]:
    """Count a request of the caller while it runs; those that wait for an answer are counted separately.

    A request beyond the limit waits up to `QUEUE_SECONDS` in the event loop, without a thread.

    Raises:
        RateLimited: the caller exceeds a limit.
    """
    a, key = runtime.rag.api, f"api:{caller.tenant}:{caller.subject}{':waits' if waits else ''}"
    most = MAX_WAITING if waits else a.at_once
    limits = RequestLimits(per_minute=a.requests_per_minute, at_once=most, of_people=True)
    ticket = ""  # without the broker requests are not counted, and searches still work
    if not UNCOUNTED.holds(runtime.addresses.valkey):
        try:
            ticket = await _ticket(runtime.request_limiter, key, limits, 0.0 if waits else QUEUE_SECONDS)
        except RateLimited as error:
            may = f"it may send {a.requests_per_minute} a minute, {most} of them at the same time"
            raise _too_many(f"too many requests with this token: {may}", error.retry_after) from None
        except SourceUnavailable:
            UNCOUNTED.begin(runtime.addresses.valkey)
    try:
        yield
    finally:
        if ticket:
            with CancelScope(shield=True):  # else the ticket of a disconnected caller would not be released
                await run_in_threadpool(runtime.request_limiter.release, key, ticket)


async def _ticket(limiter: RequestLimiter, key: str, limits: RequestLimits, seconds: float) -> str:
    """Acquire a ticket; waits up to `seconds` while too many requests are running."""
    end = time.monotonic() + seconds
    _queued[key] += 1
    try:
        while True:
            try:
                return await run_in_threadpool(limiter.acquire, key, limits)
            except Busy:
                if time.monotonic() >= end or _queued[key] > MAX_WAITING:
                    raise
            await asyncio.sleep(QUEUE_LOOK)
    finally:
        _queued[key] -= 1
        if not _queued[key]:
            del _queued[key]


_ADMITTED, _WAITS = _admitted(waits=False), _admitted(waits=True)


async def cookie_of(request: Request, runtime: CurrentRuntime) -> AsyncIterator[tuple[Caller, str] | None]:
    """A dependency: caller and token of the console's cookie while their request runs; None without a valid cookie."""
    token = request.cookies.get(COOKIE, "")
    try:
        caller = await run_in_threadpool(prove_caller, request, token) if token else None
    except TokenRefused:
        caller = None
    if caller is None:
        yield None
        return
    async with counted(runtime, caller):
        yield caller, token


def may(permission: str) -> Callable[[Caller], Awaitable[Caller]]:
    """A dependency: the caller; raises Forbidden without this permission."""

    async def checked(caller: Annotated[Caller, Depends(_ADMITTED)]) -> Caller:
        return caller.require(permission)

    return checked


async def _waiter(caller: Annotated[Caller, Depends(_WAITS)]) -> Caller:
    return caller.require(READ)


Reader = Annotated[Caller, Depends(may(READ))]
Waiter = Annotated[Caller, Depends(_waiter)]
"""A reader whose request may wait for an answer."""
