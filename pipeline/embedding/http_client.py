"""httpx2 for embedding services: answers that come whole in time, and the library's errors as ours."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import httpx2

from pipeline.errors import EmbedderRefused, EmbedderUnavailable, EmbeddingError, causes_of
from pipeline.errors.http_rules import resolves_to_metadata_service

_LASTS = "it is tried again by itself; if it lasts, look whether the service is up and reachable from here"
_ADDRESS = "check embedding.baseUrl"

Row = tuple[type[EmbeddingError], str, str]
_BROKE: Row = (EmbedderUnavailable, "broke the connection", _LASTS)
_DAMAGED: Row = (EmbedderUnavailable, "sent a damaged answer", _LASTS)
_NOT_REACHED: Row = (EmbedderUnavailable, "cannot be reached", f"{_ADDRESS}, and whether the service is up")
_NO_ADDRESS: Row = (EmbedderRefused, "has an address that cannot be used", _ADDRESS)
_CERTIFICATE: Row = (
    EmbedderRefused,
    "has a certificate that is not trusted",
    f"{_ADDRESS}: scheme, host and port; a certificate of your own authority must be known to this machine",
)
TABLE: Mapping[type[Exception], Row] = {
    httpx2.HTTPError: _BROKE,
    httpx2.TimeoutException: (
        EmbedderUnavailable,
        "did not answer in time",
        f"{_LASTS}, or raise embedding.timeout",
    ),
    httpx2.ConnectError: _NOT_REACHED,
    httpx2.ProxyError: _NOT_REACHED,
    httpx2.UnsupportedProtocol: _NO_ADDRESS,
    httpx2.LocalProtocolError: _NO_ADDRESS,
    httpx2.TooManyRedirects: _NO_ADDRESS,
    httpx2.InvalidURL: _NO_ADDRESS,
    httpx2.DecodingError: _DAMAGED,
    httpx2.CookieConflict: _DAMAGED,
    httpx2.SSEError: _DAMAGED,
    httpx2.StreamError: _BROKE,
}
"""What each exception of the library means; the nearest base class counts for one that is not listed."""
FOREIGN = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, httpx2.CookieConflict)
"""What to catch around a call."""


def translated(error: Exception, service: object) -> EmbeddingError:
    """Our error for one of `FOREIGN`; its own words may hold addresses and texts and are left out.

    `service` is who was called, as messages name it.
    """
    nearest = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    distrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error))
    kind, what, fix = _CERTIFICATE if distrusted else nearest
    return kind(f"{service} {what} ({type(error).__name__})", fix=fix)


@cache
def trusted() -> ssl.SSLContext:
    """The authorities this machine trusts, for all clients of a process: reading them takes 25 ms of a core."""
    return httpx2.create_ssl_context()


class DeadlineTransport(httpx2.BaseTransport):
    """Bounds a whole call by its read timeout; httpx2 itself starts that clock anew with every few bytes.

    A server that drips for a while and then falls silent may take up to twice as long.
    """

    def __init__(
        self, inner: httpx2.BaseTransport | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Without `inner` the host is contacted directly, whatever proxies the environment names."""
        self.inner = inner or httpx2.HTTPTransport(verify=trusted())
        self.clock = clock

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it on; connecting, sending and waiting share the time.

        Raises:
            httpx2.ReadTimeout: the time is up and the answer is not whole.
        """
        refuse_metadata_service(request)
        wanted = request.extensions.get("timeout", {})
        seconds = wanted.get("read")
        if seconds is None:
            return self.inner.handle_request(request)
        ends = self.clock() + seconds
        request.extensions = {**request.extensions, "timeout": _TimeLeft(ends, self.clock, wanted)}
        response = self.inner.handle_request(request)
        return httpx2.Response(
            status_code=response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, ends, self.clock),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Let go of the connections."""
        self.inner.close()


def refuse_metadata_service(request: httpx2.Request) -> None:
    """For the hooks of a client: no connection to where clouds hand out keys, whatever name leads there.

    Raises:
        EmbedderRefused: when the request would connect there, whoever sends it.
    """
    request.extensions = {**request.extensions, "trace": _look}


def _look(step: str, told: Mapping[str, Any]) -> None:
    if step == "connection.connect_tcp.started" and resolves_to_metadata_service(told["host"], told["port"]):
        said = f"the host {told['host']} leads to the address where clouds hand out the keys of a machine"
        raise EmbedderRefused(said, fix=f"nothing was sent there; {_ADDRESS}, and the DNS")


class _TimeLeft(dict[str, float]):
    """Timeouts that are asked for as each part of a call begins: what is left by then, or the part's own."""

    def __init__(self, ends: float, clock: Callable[[], float], wanted: Mapping[str, float | None]) -> None:
        super().__init__()
        self._ends, self._clock, self._wanted = ends, clock, wanted

    def get(self, part: str, _default: object = None) -> float:
        left = max(self._ends - self._clock(), 0.001)
        return min(self._wanted.get(part) or left, left)


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: object, ends: float, clock: Callable[[], float]) -> None:
        assert isinstance(stream, httpx2.SyncByteStream)  # noqa: S101 (a synchronous transport has no other)
        self._stream, self._ends, self._clock = stream, ends, clock

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            if self._clock() > self._ends:
                raise httpx2.ReadTimeout("the answer is not whole in time")
            yield part

    def close(self) -> None:
        self._stream.close()
