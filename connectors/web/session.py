"""HTTP sessions for foreign services: one host, through the limiter, with limits on time and size."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
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
from pipeline.errors import RateLimited, SourceDenied, SourceUnavailable
from pipeline.errors.http_rules import resolves_to_metadata_service, source_pause

READ_TIMEOUTS_IN_ALL = 5
"""Most read timeouts that a whole answer may take: a slowly dripping server never exceeds a single one."""

PIECE = 65_536


@dataclass(frozen=True, kw_only=True)
class Access:
    """Access to one service: its address, limits and timeouts.

    Raises:
        ConfigurationError: `base_url` is no http address, or holds a user name or password.
    """

    base_url: str
    """scheme://host[:port][/context]; only this host is ever contacted."""
    limiter: RequestLimiter = field(default_factory=LocalRequestLimiter, repr=False)
    limits: RequestLimits = field(default_factory=RequestLimits)
    connect_timeout: float = 10.0
    """Seconds, like `read_timeout`; both replace the values of an SDK."""
    read_timeout: float = 60.0
    max_pause: float = 0.0
    """Most seconds of pauses, in all, that are waited for here; a longer one is raised to the caller."""
    most_bytes: int = 64 * 1024 * 1024
    """Most bytes of one answer, unpacked."""
    product: str = "the service"
    """Name of the service in messages, such as "Confluence"."""
    ca_file: str | None = None
    """File of certificates to trust instead of the default ones; verification cannot be switched off."""
    on_request: Callable[[str, str], object] = field(default=lambda _method, _url: None, repr=False)
    """Called with the method and address of each request; an address may hold a key."""

    def __post_init__(self) -> None:
        _ = self.origin

    @cached_property
    def origin(self) -> Origin:
        """The server of the service, the only one contacted."""
        return Origin.configured(self.base_url)


_Kind = TypeVar("_Kind", bound=HTTPConnection)


def _guarded(kind: type[_Kind]) -> type[_Kind]:
    """A connection class that refuses metadata services of clouds, whatever host name resolves to them."""

    class Guarded(kind):  # type: ignore[valid-type,misc]
        def connect(self) -> None:
            if resolves_to_metadata_service(self.host, self.port):
                message = (
                    f"the host {self.host} resolves to the metadata service of a cloud, which hands out keys"
                )
                raise SourceDenied(
                    message, fix="nothing was sent there; check the configured address, and the DNS"
                )
            super().connect()

    return Guarded


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _guarded(HTTPConnection)


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _guarded(HTTPSConnection)


class GuardedAdapter(HTTPAdapter):
    """Sends requests of a session, with those of redirects; raises errors of pipeline.errors only."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._max_pause = access.max_pause
        super().__init__(max_retries=0, pool_maxsize=max(1, access.limits.at_once))

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Create the pools with guarded connections; otherwise as in requests."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    @property
    def max_retries(self) -> Retry:
        """No retries, because the ledger decides about them; values of SDKs are ignored."""
        return self._retries

    @max_retries.setter
    def max_retries(self, _ignored: object) -> None:
        self._retries = Retry(0, read=False)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 (the body is always read here)
        timeout: object = None,  # noqa: ARG002 (replaced by that of Access)
        verify: object = True,  # noqa: ARG002 (replaced by that of Access)
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002 (the host is contacted directly)
    ) -> requests.Response:
        """The answer with its body read, after `check_response`.

        Raises:
            SourceDenied: the request would go to another host; nothing was sent.
            RateLimited: the limiter refuses, or the service asks for a longer pause than `max_pause` allows.
            SourceUnavailable: no complete answer came.
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
            access.on_request(request.method or "", request.url or "")
            response = self._fetch(request, cert)
            pause = source_pause(response.status_code, response.headers)
            if pause is not None:
                # Before the ticket is returned, so that no request is admitted in between. An unreachable limiter
                # admits none.
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
        # As `Response.content` does after reading; from here on the answer needs no network.
        response._content = body  # noqa: SLF001 (there is no public way to give it a body)
        response._content_consumed = True  # noqa: SLF001 (ditto)
        return response

    def _body(self, raw: Any, until: float) -> bytes:
        """The body, unpacked; `read1` returns as soon as bytes are available, so that the time is checked."""
        product, most = self.access.product, self.access.most_bytes
        pieces: list[bytes] = []
        size = 0
        while piece := raw.read1(PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                fix = "request fewer items at once, or exclude items of this size"
                raise AnswerTooLarge(f"{product} sent an answer larger than {most:,} bytes", fix=fix)
            if time.monotonic() > until:
                raise SourceUnavailable(f"{product} did not finish an answer in time", fix=LASTS)
        return b"".join(pieces)


class GuardedSession(requests.Session):
    """A session that raises errors of pipeline.errors only, also before and between requests.

    It has no credentials yet, and must be closed.
    """

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access
        guard(self, access)

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request as in requests; raises errors of pipeline.errors only."""
        try:
            return super().request(*args, **kwargs)
        except FOREIGN as error:
            raise translate(error, self._access.product) from None


def guard(session: requests.Session, access: Access) -> None:
    """Mount the guarded adapter on a session of an SDK; may be called before every request.

    Errors of requests itself (circular redirects, an invalid address) still need `translate`.
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
