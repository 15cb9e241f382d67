"""The only way to a foreign HTTP service: one host, through the limiter, in bounded time and size."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.retry import Retry

from connectors.web.answers import (
    FOREIGN,
    LASTS,
    AnswerTooLarge,
    Origin,
    check_response,
    other_host,
    translate,
)
from connectors.web.limiter import LocalRequestLimiter, RequestLimiter, RequestLimits
from pipeline.documents import resolves_to_metadata_service
from pipeline.errors import RateLimited, SourceDenied, SourceUnavailable, source_pause

READ_TIMEOUTS_IN_ALL = 5
"""A whole answer may take this many read timeouts: a server that drips never runs into one of them."""

PIECE = 65_536


@dataclass(frozen=True, kw_only=True)
class Access:
    """One service: where it is, and how gently we ask it.

    Raises:
        ConfigurationError: `base_url` is no http address, or holds a user name or password.
    """

    base_url: str
    """scheme://host[:port][/context]; this host is the only one ever contacted."""
    limiter: RequestLimiter = field(default_factory=LocalRequestLimiter, repr=False)
    limits: RequestLimits = field(default_factory=RequestLimits)
    connect_timeout: float = 10.0
    """Seconds, like `read_timeout`; whatever an SDK asks for is replaced by these."""
    read_timeout: float = 60.0
    max_pause: float = 0.0
    """Seconds of pauses that are waited out where they are met, in all; a longer one is the caller's to wait for."""
    most_bytes: int = 64 * 1024 * 1024
    """Of one answer, unpacked."""
    product: str = "the service"
    """Its name in messages: "Confluence", "Azure DevOps"."""
    ca_file: str | None = None
    """Certificates to trust instead of the well-known ones; there is no way to trust without."""

    def __post_init__(self) -> None:
        _ = self.origin

    @cached_property
    def origin(self) -> Origin:
        """The only server that is contacted."""
        return Origin.configured(self.base_url)


_Kind = TypeVar("_Kind", bound=HTTPConnection)


def _guarded(kind: type[_Kind]) -> type[_Kind]:
    """Connections of this kind that go to no server which hands out keys, whatever name leads there."""

    class Guarded(kind):  # type: ignore[valid-type,misc]
        def connect(self) -> None:
            if resolves_to_metadata_service(self.host, self.port):
                said = (
                    f"the host {self.host} leads to the address where clouds hand out the keys of a machine"
                )
                raise SourceDenied(
                    said, fix="nothing was sent there; look at the configured address, and the DNS"
                )
            super().connect()

    return Guarded


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _guarded(HTTPConnection)


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _guarded(HTTPSConnection)


class GuardedAdapter(HTTPAdapter):
    """Sends requests of a session, also those that follow a redirect; errors that come out are ours."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._max_pause = access.max_pause
        super().__init__(max_retries=0, pool_maxsize=max(1, access.limits.at_once))

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As in requests, with connections that are looked at."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    @property
    def max_retries(self) -> Retry:
        """None: the ledger decides about retries. What SDKs set is ignored."""
        return self._retries

    @max_retries.setter
    def max_retries(self, _asked: object) -> None:
        self._retries = Retry(0, read=False)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 (the body is always read here)
        timeout: object = None,  # noqa: ARG002 (ours count)
        verify: object = True,  # noqa: ARG002 (ours count)
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002 (the host is contacted directly)
    ) -> requests.Response:
        """The answer with its body read, if it is one; see `check_response` for what is not.

        Raises:
            SourceDenied: the request would go to another host; nothing was sent.
            RateLimited: the limiter is closed, or the service asks to come back later.
            SourceUnavailable: no whole answer came.
            AnswerTooLarge: the answer is larger than the limit.
        """
        if not self.access.origin.holds(request.url or ""):
            raise other_host(request.url or "", self.access.origin, self.access.product)
        while True:
            try:
                return self._answer(request, cert)
            except RateLimited as error:
                if error.retry_after is None or error.retry_after > self._max_pause:
                    raise
                self._max_pause -= error.retry_after
                time.sleep(error.retry_after)

    def _answer(self, request: requests.PreparedRequest, cert: Any) -> requests.Response:
        access, origin = self.access, self.access.origin
        ticket = access.limiter.acquire(origin.key, access.limits)
        try:
            response = self._fetch(request, cert)
            pause = source_pause(response.status_code, response.headers)
            if pause is not None:
                # Before the ticket is back: nobody may slip in between. A limiter that is away lets nobody in.
                with contextlib.suppress(SourceUnavailable):
                    access.limiter.pause(origin.key, pause)
        finally:
            access.limiter.release(origin.key, ticket)
        check_response(response, origin, access.product, pause)
        return response

    def _fetch(self, request: requests.PreparedRequest, cert: Any) -> requests.Response:
        access = self.access
        timeouts = (access.connect_timeout, access.read_timeout)
        until = time.monotonic() + READ_TIMEOUTS_IN_ALL * access.read_timeout
        try:
            response = super().send(
                request, stream=True, timeout=timeouts, verify=access.ca_file or True, cert=cert, proxies=None
            )
            try:
                body = self._body(response.raw, until)
            except BaseException:
                response.raw.close()
                raise
        except FOREIGN as error:
            raise translate(error, access.product) from None
        response.raw.release_conn()
        # What `Response.content` does when it reads; from here on the answer costs no more network.
        response._content = body  # noqa: SLF001 (there is no public way to give it a body)
        response._content_consumed = True  # noqa: SLF001 (ditto)
        return response

    def _body(self, raw: Any, until: float) -> bytes:
        """All of it, unpacked; `read1` returns what is there, so that the clock is looked at."""
        product, most = self.access.product, self.access.most_bytes
        pieces: list[bytes] = []
        size = 0
        while piece := raw.read1(PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                fix = "ask for fewer items at once, or leave out what is this large"
                raise AnswerTooLarge(f"{product} sent an answer larger than {most:,} bytes", fix=fix)
            if time.monotonic() > until:
                raise SourceUnavailable(f"{product} did not finish an answer in time", fix=LASTS)
        return b"".join(pieces)


class GuardedSession(requests.Session):
    """A session whose errors are ours, also those that requests raises before and between the sending.

    It has no credentials yet; close it.
    """

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access
        guard(self, access)

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests; raises errors of pipeline.errors only."""
        try:
            return super().request(*args, **kwargs)
        except FOREIGN as error:
            raise translate(error, self._access.product) from None


def guard(session: requests.Session, access: Access) -> None:
    """Send what a session of an SDK sends through the guarded adapter; may be called for every request.

    What requests itself raises (a circle of redirects, an address it cannot read) still needs `translate`.
    """
    # The environment would bring proxies, certificates, and passwords out of ~/.netrc.
    session.trust_env = False
    session.proxies.clear()
    mounted = session.adapters.values()
    if mounted and all(isinstance(a, GuardedAdapter) and a.access is access for a in mounted):
        return
    session.close()
    session.adapters.clear()
    adapter = GuardedAdapter(access)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
