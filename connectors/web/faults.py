"""Errors of the HTTP libraries, translated into ours where they enter."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import requests
import urllib3
from requests import exceptions as theirs
from urllib3 import exceptions as below

from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    SourceDenied,
    SourceUnavailable,
)

LASTS = "it is tried again by itself; if it lasts, look whether the service is up and reachable from here"
ADDRESS = "check the configured address (baseUrl or organization)"
CERTIFICATE = (
    "check that the address begins with the right scheme and host, "
    "and that the certificate authority of a server of your own is known to Larder"
)


class ServerFault(SourceUnavailable):
    """The service answered with an error of its own."""

    def __init__(self, message: str = "", *, status: int = 0, **more: Any) -> None:
        """`status` is the HTTP status; the rest as in LarderError."""
        super().__init__(message, **more)
        self.status = status


class AnswerTooLarge(DocumentRejected):
    """One answer is larger than the limit: ask for less at once, or leave the item out."""


Row = tuple[type[LarderError], str, str]
_SLOW: Row = (SourceUnavailable, "did not answer in time", LASTS)
_BROKE: Row = (SourceUnavailable, "broke the connection", LASTS)
_DAMAGED: Row = (SourceUnavailable, "sent a damaged answer", LASTS)
_UNKNOWN_HOST: Row = (SourceUnavailable, "has a host name that cannot be resolved", f"{ADDRESS}, and the DNS")
_REFUSED: Row = (
    SourceUnavailable,
    "refuses connections",
    f"{ADDRESS}, its port, and whether the service is up",
)
_ADDRESS: Row = (ConfigurationError, "has an address that cannot be used", ADDRESS)
_HEADER: Row = (
    ConfigurationError,
    "would get a header that cannot be sent",
    "look for line breaks or special characters in the user name and token",
)
_CIRCLE: Row = (
    SourceDenied,
    "redirects in a circle",
    f"{ADDRESS} and the credentials: this is how a sign-in looks to a program",
)
_TLS: Row = (SourceDenied, "cannot be reached securely: the TLS connection is refused", CERTIFICATE)

_MEANINGS: dict[Row, tuple[type[BaseException], ...]] = {
    _BROKE: (OSError, http.client.HTTPException, below.HTTPError, below.NewConnectionError),
    _DAMAGED: (
        theirs.InvalidJSONError, theirs.ContentDecodingError, theirs.StreamConsumedError, below.DecodeError,
        below.ResponseNotChunked, below.BodyNotHttplibCompatible, below.InvalidChunkLength, below.HeaderParsingError,
    ),
    _TLS: (theirs.SSLError, below.SSLError, ssl.SSLError),
    _SLOW: (theirs.Timeout, below.TimeoutError, TimeoutError),
    _ADDRESS: (
        theirs.URLRequired, theirs.MissingSchema, theirs.InvalidSchema, theirs.InvalidURL, below.HostChangedError,
        below.LocationValueError, below.ProxySchemeUnsupported, http.client.InvalidURL, UnicodeError,
    ),
    _CIRCLE: (theirs.TooManyRedirects,),
    _HEADER: (theirs.InvalidHeader, below.InvalidHeader),
    _UNKNOWN_HOST: (below.NameResolutionError, socket.gaierror),
}  # fmt: skip
TABLE = {kind: row for row, kinds in _MEANINGS.items() for kind in kinds}
"""What each foreign error means; the nearest base class counts for one that is not listed."""

ROOT_CAUSES: dict[type[BaseException], Row] = {
    ssl.SSLCertVerificationError: _TLS,
    ssl.SSLEOFError: _BROKE,  # a reset during the handshake, not a wrong certificate
    ssl.SSLZeroReturnError: _BROKE,
    below.NameResolutionError: _UNKNOWN_HOST,
    socket.gaierror: _UNKNOWN_HOST,
    ConnectionRefusedError: _REFUSED,
}
"""What lies below a wrapped error tells more than the wrapping."""

FOREIGN: tuple[type[Exception], ...] = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    below.ProxySchemeUnsupported,
    http.client.HTTPException,
    OSError,
    UnicodeError,
)
"""What to catch around a call of requests."""


def translate(error: Exception, product: str) -> LarderError:
    """Our error for one of `FOREIGN`; ours come back as they are, any other is raised again.

    The original is not kept as the cause: its text holds the full address and its request the credentials.
    """
    if isinstance(error, LarderError):
        return error
    row = next((ROOT_CAUSES[type(e)] for e in _chain(error) if type(e) in ROOT_CAUSES), None)
    row = row or next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        raise error
    made, what, fix = row
    return made(f"{product} {what} ({_name(error)})", fix=fix)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, each once."""
    todo, seen = [error], set()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        todo += [e for e in inner if isinstance(e, BaseException)]


def _name(error: BaseException) -> str:
    """The classes at the top and at the bottom, which a person can look up; no text, which may hold secrets."""
    names = [type(e).__name__ for e in _chain(error)]
    return names[0] if names[0] == names[-1] else f"{names[0]}, {names[-1]}"
