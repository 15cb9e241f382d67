"""What an HTTP answer means: whether it is one, where it comes from, its JSON, and which error of ours it is."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
from typing import Any, NamedTuple, Self
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests import exceptions as theirs
from urllib3 import exceptions as below

from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    RateLimited,
    SourceDenied,
    SourceUnavailable,
    causes_of,
)

LASTS = "it is tried again by itself; if it lasts, look whether the service is up and reachable from here"
ADDRESS = "check the configured address (baseUrl or organization)"
CERTIFICATE = (
    "check that the address begins with the right scheme and host, "
    "and that the certificate authority of a server of your own is known to Larder"
)


class BadAnswer(SourceUnavailable):
    """The service answered, and what came cannot be used."""


class ServerFault(BadAnswer):
    """The service answered with an error of its own."""

    def __init__(self, message: str = "", *, status: int = 0, **more: Any) -> None:
        """`status` is the HTTP status; the rest as in LarderError."""
        super().__init__(message, **more)
        self.status = status


class AnswerTooLarge(DocumentRejected):
    """One answer is larger than the limit: ask for less at once, or leave the item out."""


Row = tuple[type[LarderError], str, str]
_SLOW: Row = (SourceUnavailable, "did not answer in time", LASTS)
_BROKE: Row = (BadAnswer, "broke the connection", LASTS)
_DAMAGED: Row = (BadAnswer, "sent a damaged answer", LASTS)
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
    row = next((ROOT_CAUSES[type(e)] for e in causes_of(error) if type(e) in ROOT_CAUSES), None)
    row = row or next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        raise error
    made, what, fix = row
    return made(f"{product} {what} ({_name(error)})", fix=fix)


def _name(error: BaseException) -> str:
    """The classes at the top and at the bottom, which a person can look up; no text, which may hold secrets."""
    names = [type(e).__name__ for e in causes_of(error)]
    return names[0] if names[0] == names[-1] else f"{names[0]}, {names[-1]}"


PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """One server; two addresses lead to it if all three parts are the same."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Where a request to `url` goes.

        Raises:
            ValueError: it cannot be read.
        """
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0))

    @classmethod
    def configured(cls, address: str) -> Self:
        """Where a configured address leads.

        Raises:
            ConfigurationError: it is no http address, or holds a user name or password.
        """
        none = ConfigurationError("the configured address is none", fix=f"{ADDRESS}: it begins with https://")
        try:
            url = requests.Request("GET", address.strip()).prepare().url or ""
            found = cls.of(url)
        except (ValueError, requests.RequestException):
            raise none from None
        if "@" in urlsplit(url).netloc:
            fix = "write them to auth instead, where they are kept secret"
            raise ConfigurationError("the configured address holds a user name or password", fix=fix)
        if not all(found):
            raise none
        return found

    def holds(self, url: str) -> bool:
        """Whether a request to `url` would go to this server and nowhere else."""
        with contextlib.suppress(ValueError):
            return Origin.of(url) == self
        return False

    @property
    def key(self) -> str:
        """Name of this server at the limiter."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        port = "" if self.port == PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


CREDENTIALS = "check the user name and the token: it may be wrong, expired, or revoked"
NO_API = "check the configured address (baseUrl or organization): a web page answers there, not the API"
LOCKED_OUT = "sign in once in a browser with this account to answer the CAPTCHA, then correct the token"

HEAD_OF_PAGE = 65_536
_SIGN_IN_TEXT = r"sign[ _-]?in|log[ _-]?[io]n|authenti|anmeld"
_SIGN_IN_PAGE = re.compile(
    # A link "Log in" stands on every page of a site; a title, a form or a field for it does not.
    rf"<title[^<]{{0,200}}({_SIGN_IN_TEXT})|<form[^>]{{0,500}}({_SIGN_IN_TEXT})|samlrequest"
    r"|type\s*=\s*.?password",
    re.IGNORECASE,
)
_SIGN_IN_ADDRESS = re.compile(
    r"//(login|signin|sso|id|auth|accounts|adfs)\."
    r"|/(_?sign[_-]?in|log[_-]?[io]n|sso|saml2?|adfs|authorize)(\.(action|jspa?|aspx?|html?|php))?(/|$)",
    re.IGNORECASE,
)
_DOWNLOAD = re.compile(r"/download/|/attachments?/", re.IGNORECASE)
_PAGE_START = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)


def check_response(response: requests.Response, origin: Origin, product: str, pause: float | None) -> None:
    """Let a usable answer pass; 2xx, and the 4xx other than 401, 407, 408 and 429, are the caller's to read.

    Args:
        response: with its body read.
        origin: the only place redirects may lead to.
        product: for messages, such as "Confluence".
        pause: the seconds from `source_pause`.

    Raises:
        RateLimited: 429, or 503 with Retry-After.
        SourceDenied: 401, a sign-in page, a page that is no API, a redirect to elsewhere.
        ServerFault: 407, 408, 5xx, or an error page where JSON was wanted; `status` says which.
    """
    status = response.status_code
    if status in {429, 503} and pause is not None:
        fix = "nothing to do: it is tried again after that time; lower requestsPerMinute if it happens often"
        said = f"{product} answered {status} and asks us to stay away for {pause:.0f} s"
        raise RateLimited(said, fix=fix, retry_after=pause)
    if response.headers.get("X-Seraph-LoginReason", "").upper() == "AUTHENTICATION_DENIED":
        raise SourceDenied(f"{product} has locked this account out after failed sign-ins", fix=LOCKED_OUT)
    if status == 401:  # noqa: PLR2004 (Unauthorized)
        expired = b"expired" in response.content[:2000].lower()
        what = "the token has expired" if expired else "it does not accept the credentials"
        raise SourceDenied(f"{product} answered 401: {what}", fix=CREDENTIALS)
    if status in {407, 408} or status >= 500:  # noqa: PLR2004 (errors of the server's side)
        raise ServerFault(f"{product} answered {status}", fix=LASTS, status=status)
    if response.is_redirect:
        _judge_redirect(response, origin, product)
    elif _is_unwanted_page(response):
        _judge_page(response, product)


def is_html(response: requests.Response) -> bool:
    """Whether the body is a web page, whatever the header calls it."""
    kind = response.headers.get("Content-Type", "").lower()
    if "html" in kind:
        return True
    return "json" not in kind and bool(
        _PAGE_START.match(response.content[:2000].removeprefix(b"\xef\xbb\xbf"))
    )


def _judge_redirect(response: requests.Response, origin: Origin, product: str) -> None:
    """A hop inside the host is followed; to a sign-in page, or to elsewhere, it is the end."""
    target = urljoin(response.url, response.headers.get("Location", ""))
    parts = urlsplit(target)
    leaving = not origin.holds(target)
    if _SIGN_IN_ADDRESS.search(f"//{parts.netloc if leaving else ''}{parts.path}"):
        said = f"{product} answered {response.status_code} and leads to a sign-in page"
        raise SourceDenied(said, fix=CREDENTIALS)
    if leaving:
        raise other_host(target, origin, product)


def other_host(url: str, origin: Origin, product: str) -> SourceDenied:
    """The refusal of an address that is not the configured host."""
    try:
        there = str(Origin.of(url))  # paths and queries may hold secrets
    except ValueError:
        there = "an address that cannot be read"
    fix = f"nothing was sent there; if it is {product}'s true address, configure it instead of {origin}"
    return SourceDenied(f"{product} leads from {origin} to {there}, which is another place", fix=fix)


def _judge_page(response: requests.Response, product: str) -> None:
    status = response.status_code
    if status >= 400:  # noqa: PLR2004 (errors)
        # A page is no word of the API: a 404 in this form must never count as "this item is gone".
        raise ServerFault(f"{product} answered {status} with a web page", fix=NO_API, status=status)
    head = response.content[:HEAD_OF_PAGE].decode("utf-8", "replace")
    path = urlsplit(response.url).path
    if status == 203 or _SIGN_IN_ADDRESS.search(path) or _SIGN_IN_PAGE.search(head):  # noqa: PLR2004 (Azure's)
        said = f"{product} answered {status} with a sign-in page instead of data"
        raise SourceDenied(said, fix=CREDENTIALS)
    raise SourceDenied(f"{product} answered {status} with a web page instead of data", fix=NO_API)


def _is_unwanted_page(response: requests.Response) -> bool:
    """Whether it is a web page that was not asked for: neither by the Accept header, nor as a file to download."""
    wanted = "text/html" in response.request.headers.get("Accept", "").lower()
    return is_html(response) and not (wanted or _DOWNLOAD.search(urlsplit(response.request.url or "").path))


def json_of(response: requests.Response, *, product: str) -> dict[str, Any]:
    """The answer's JSON, which is an object; the status is not looked at.

    Raises:
        BadAnswer: it is empty, broken off, of another type or of another shape.
    """
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if is_html(response) or (kind and "json" not in kind):
        shown = kind if re.sub("[/+-]", "", kind).isalnum() else "something else"
        raise BadAnswer(f"{product} answered {shown} where JSON was wanted", fix=NO_API)
    if not response.content.strip():
        raise BadAnswer(f"{product} gave an empty answer where JSON was wanted", fix=LASTS)
    try:
        payload = json.loads(response.content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        # No cause: it would hold the text.
        raise BadAnswer(f"{product} gave broken JSON", fix=LASTS) from None
    if not isinstance(payload, dict):
        raise BadAnswer(f"{product} gave JSON that is not an object", fix=LASTS)
    return payload


def results_of(payload: dict[str, Any], product: str) -> list[dict[str, Any]]:
    """The list of objects under `results`; a missing one is not taken for empty.

    Raises:
        BadAnswer: there is no such list, or it holds something other than objects.
    """
    found = payload.get("results")
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadAnswer(f"{product} gave an answer without a list of results", fix=LASTS)
    return found
