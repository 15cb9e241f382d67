"""httpx2 for embedding services: a deadline for whole answers, and translation of the library's errors."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import httpx2

from pipeline.errors import EmbedderRefused, EmbedderUnavailable, EmbeddingError, causes_of
from pipeline.errors.http_rules import resolves_to_metadata_service

_LASTS = (
    "it is tried again automatically; if it persists, check that the service is up and reachable from here"
)
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
"""Exception of the library -> class, description and advice; for an unlisted one the nearest base class counts."""
FOREIGN = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, httpx2.CookieConflict)
"""Errors to catch around a call."""


def translated(error: Exception, service: object) -> EmbeddingError:
    """Translate one of `FOREIGN`; its text may hold addresses and documents and is left out.

    `service` is the called service, as messages name it.
    """
    nearest = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    distrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error))
    kind, problem, fix = _CERTIFICATE if distrusted else nearest
    return kind(f"{service} {problem} ({type(error).__name__})", fix=fix)


@cache
def trusted() -> ssl.SSLContext:
    """The trusted certificate authorities, read once per process, since that takes 25 ms of CPU."""
    return httpx2.create_ssl_context()


class DeadlineTransport(httpx2.BaseTransport):
    """Limits a whole call to its read timeout, which httpx2 alone restarts with every few bytes.

    A server that sends slowly for a while and then stops may take up to twice as long.
    """

    def __init__(
        self, inner: httpx2.BaseTransport | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Without `inner` the host is contacted directly, even if the environment names a proxy."""
        self.inner = inner or httpx2.HTTPTransport(verify=trusted())
        self.clock = clock

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; connecting, sending and waiting share the time.

        Raises:
            httpx2.ReadTimeout: the time is up and the answer is incomplete.
        """
        refuse_metadata_service(request)
        timeouts = request.extensions.get("timeout", {})
        seconds = timeouts.get("read")
        if seconds is None:
            return self.inner.handle_request(request)
        ends = self.clock() + seconds
        request.extensions = {**request.extensions, "timeout": _RemainingTime(ends, self.clock, timeouts)}
        response = self.inner.handle_request(request)
        return httpx2.Response(
            status_code=response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, ends, self.clock),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close the connections."""
        self.inner.close()


def refuse_metadata_service(request: httpx2.Request) -> None:
    """Request hook of a client that refuses metadata services of clouds, whatever host name resolves to them.

    Raises:
        EmbedderRefused: raised by the request before it connects to such a service.
    """
    request.extensions = {**request.extensions, "trace": _check_destination}


def _check_destination(step: str, info: Mapping[str, Any]) -> None:
    if step == "connection.connect_tcp.started" and resolves_to_metadata_service(info["host"], info["port"]):
        message = f"the host {info['host']} resolves to the metadata service of a cloud, which hands out keys"
        raise EmbedderRefused(message, fix=f"nothing was sent there; {_ADDRESS}, and the DNS")


class _RemainingTime(dict[str, float]):
    """Timeouts that httpx2 reads as each phase of a call begins: the phase's limit or the remaining time."""

    def __init__(self, ends: float, clock: Callable[[], float], timeouts: Mapping[str, float | None]) -> None:
        super().__init__()
        self._ends, self._clock, self._timeouts = ends, clock, timeouts

    def get(self, phase: str, _default: object = None) -> float:
        remaining = max(self._ends - self._clock(), 0.001)
        return min(self._timeouts.get(phase) or remaining, remaining)


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: object, ends: float, clock: Callable[[], float]) -> None:
        assert isinstance(stream, httpx2.SyncByteStream)  # noqa: S101 (a synchronous transport has no other)
        self._stream, self._ends, self._clock = stream, ends, clock

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            if self._clock() > self._ends:
                raise httpx2.ReadTimeout("the answer was not complete in time")
            yield piece

    def close(self) -> None:
        self._stream.close()
