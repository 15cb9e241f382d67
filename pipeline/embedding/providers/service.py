"""The only way to an embedding service over HTTP: one address, in bounded time and size, errors translated."""

from __future__ import annotations

import json
import os
import ssl
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from pipeline.embedding.providers.answers import Answer, judge
from pipeline.errors import ConfigurationError, EmbedderRefused, EmbedderUnavailable, LarderError

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
MOST_BYTES = 256 * 1024 * 1024
"""Of one answer: the largest call, 2,048 texts of 3,072 numbers, is about 140 MB as JSON."""
_ERROR_BYTES = 64 * 1024
_OK = 200

LASTS = "it is tried again by itself; if it lasts, look whether the service is up and reachable from here"
ADDRESS = "check embedding.baseUrl"
CERTIFICATE = (
    f"{ADDRESS}: scheme, host and port; a certificate of your own authority must be known to this machine"
)

Row = tuple[type[LarderError], str, str]
_SLOW: Row = (EmbedderUnavailable, "did not answer in time", LASTS)
_BROKE: Row = (EmbedderUnavailable, "broke the connection", LASTS)
_UNREACHED: Row = (EmbedderUnavailable, "cannot be reached", f"{ADDRESS}, and whether the service is up")
_DAMAGED: Row = (EmbedderUnavailable, "sent a damaged answer", LASTS)
_ADDRESS: Row = (EmbedderRefused, "has an address that cannot be used", ADDRESS)
_CERTIFICATE: Row = (EmbedderRefused, "has a certificate that is not trusted", CERTIFICATE)

TABLE: Mapping[str, Row] = {
    "HTTPError": _BROKE,
    "HTTPStatusError": _BROKE,
    "RequestError": _BROKE,
    "TransportError": _BROKE,
    "TimeoutException": _SLOW,
    "ConnectTimeout": _SLOW,
    "ReadTimeout": _SLOW,
    "WriteTimeout": _SLOW,
    "PoolTimeout": _SLOW,
    "NetworkError": _BROKE,
    "ConnectError": _UNREACHED,
    "ReadError": _BROKE,
    "WriteError": _BROKE,
    "CloseError": _BROKE,
    "ProxyError": _UNREACHED,
    "UnsupportedProtocol": _ADDRESS,
    "ProtocolError": _BROKE,
    "LocalProtocolError": _ADDRESS,
    "RemoteProtocolError": _BROKE,
    "DecodingError": _DAMAGED,
    "TooManyRedirects": _ADDRESS,
    "InvalidURL": _ADDRESS,
    "CookieConflict": _DAMAGED,
    "SSEError": _DAMAGED,
    "StreamError": _BROKE,
    "StreamConsumed": _BROKE,
    "StreamClosed": _BROKE,
    "RequestNotRead": _BROKE,
    "ResponseNotRead": _BROKE,
}
"""Every exception of the HTTP library by name; the library itself is loaded with the first call."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """One service: where it is, and who we are there.

    Raises:
        ConfigurationError: the key has characters that no header can carry.
    """

    title: str
    """Its name in messages."""
    model: str
    base_url: str
    """This address is the only one ever contacted: redirects are not followed, and no proxy is used."""
    key: str = field(default="", repr=False)
    """Empty: none is sent."""
    timeout: float = 30.0
    """Seconds a whole call may take, connecting and reading included."""

    def __post_init__(self) -> None:
        if not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise ConfigurationError(
                f"the key for {self.title} has characters that no header can carry",
                fix="look for line breaks, blanks or typographic characters in embedding.apiKey",
            )

    def __str__(self) -> str:
        return f"{self.title} at {self.base_url}"


class Service:
    """Calls one embedding service; safe to share between threads, and to carry over a fork."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._lock = Lock()
        self._client: httpx2.Client | None = None
        self._owner = 0

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answered.

        Raises:
            EmbedderUnavailable: may work later.
            EmbedderRefused: key, model, plan or address are refused.
            TextTooLong, TextRejected: it does not take one of the texts.
        """
        return judge(self.send(path, body), self.access)

    def send(self, path: str, body: Mapping[str, Any]) -> Answer:
        """The answer as it came, whatever its status.

        Raises:
            EmbedderUnavailable: no whole answer came.
            EmbedderRefused: the address cannot be used.
        """
        import httpx2

        # Half characters (lone surrogates) cannot be sent; they become `?`, as for the embedder on this machine.
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            return self._exchange(f"{self.access.base_url.rstrip('/')}/{path}", content)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, httpx2.CookieConflict) as error:
            raise translated(error, self.access) from None

    def _exchange(self, url: str, content: bytes) -> Answer:
        with self._opened().stream("POST", url, content=content) as response:
            most = MOST_BYTES if response.status_code == _OK else _ERROR_BYTES
            pieces: list[bytes] = []
            size = 0
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > most and response.status_code == _OK:
                    raise EmbedderRefused(
                        f"{self.access} sent an answer larger than {most:,} bytes",
                        fix="lower embedding.batchSize",
                    )
                if size > most:
                    break
            return Answer(
                status=response.status_code, headers=response.headers, content=b"".join(pieces)[:most]
            )

    def _opened(self) -> httpx2.Client:
        """One client for all calls of a process: a connection must not be shared with the process it forked from."""
        import httpx2

        from pipeline.embedding.deadline_transport import Timely

        with self._lock:
            if self._client is None or self._owner != os.getpid():
                access = self.access
                headers = {"Content-Type": "application/json", "Accept": "application/json"}
                if access.key:
                    headers["Authorization"] = f"Bearer {access.key}"
                self._client = httpx2.Client(
                    headers=headers,
                    timeout=httpx2.Timeout(access.timeout, connect=min(CONNECT_SECONDS, access.timeout)),
                    transport=Timely(),
                    follow_redirects=False,
                    # The environment would bring proxies, and passwords out of ~/.netrc.
                    trust_env=False,
                )
                self._owner = os.getpid()
                weakref.finalize(self, self._client.close)
            return self._client


def translated(error: Exception, access: Access) -> LarderError:
    """Our error for one of the HTTP library; its own words may hold addresses and texts and are left out."""
    name = next(c.__name__ for c in type(error).__mro__ if c.__name__ in TABLE)
    kind, what, fix = _CERTIFICATE if _distrusted(error) else TABLE[name]
    return kind(f"{access} {what}", fix=fix)


def _distrusted(error: BaseException | None) -> bool:
    seen = 0
    while error is not None and seen < 10:  # noqa: PLR2004 - a chain of causes is short, or a circle
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False
