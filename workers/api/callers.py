"""What handlers depend on: the parts of the process, and the caller with the permission that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, model_validator

from connectors.web.limiter import RequestLimits
from pipeline.access import READ, Caller
from pipeline.errors import Forbidden, RateLimited, SourceUnavailable, TokenRefused
from pipeline.ledger import clean
from workers.runtime import Runtime


class RequestBody(BaseModel):
    """What is sent, without the characters that a database does not take."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        return clean(value, nul="\ufffd")


def parts_of(request: Request) -> Runtime:
    """The parts of this process."""
    found: Runtime = request.app.state.parts
    return found


Parts = Annotated[Runtime, Depends(parts_of)]
_bearer = HTTPBearer(auto_error=False, scheme_name="bearerAuth", bearerFormat="JWT")


def _admitted(
    request: Request, parts: Parts, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Iterator[Caller]:
    """The caller, as long as their request is under way."""
    if given is None:
        raise TokenRefused("there is no token", fix="send Authorization: Bearer TOKEN")
    caller = request.app.state.verifier.caller(given.credentials)
    with counted(parts, caller):
        yield caller


@contextmanager
def counted(parts: Runtime, caller: Caller) -> Iterator[None]:
    """A request of the caller's, by whatever door, is under way.

    Raises:
        RateLimited: they ask more than they may.
    """
    a, key = parts.rag.api, f"api:{caller.tenant}:{caller.subject}"
    try:
        ticket = parts.request_limiter.acquire(
            key, RequestLimits(per_minute=a.requests_per_minute, at_once=a.at_once)
        )
    except RateLimited as error:
        raise RateLimited("too many requests with this token", retry_after=error.retry_after) from None
    except SourceUnavailable:
        ticket = ""  # without the broker nobody counts, and searches go on
    try:
        yield
    finally:
        if ticket:
            parts.request_limiter.release(key, ticket)


def may(permission: str) -> Callable[[Caller], Caller]:
    """A dependency: the caller, if they have this permission; `Forbidden` otherwise."""

    def checked(caller: Annotated[Caller, Depends(_admitted)]) -> Caller:
        if not caller.may(permission):
            raise Forbidden(f"this needs the permission {permission!r}")
        return caller

    return checked


Reader = Annotated[Caller, Depends(may(READ))]
