"""Interpretation of HTTP answers: errors, origin, unwanted pages, JSON."""

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
from requests import exceptions as requests_errors
from urllib3 import exceptions as urllib3_errors

from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    RateLimited,
    SourceDenied,
    SourceUnavailable,
    causes_of,
)

LASTS = (
    "it is tried again automatically; if it persists, check that the service is up and reachable from here"
)
ADDRESS = "check the configured address (baseUrl or organization)"
CERTIFICATE = (
    "check that the address begins with the right scheme and host, "
    "and that the certificate authority of a server of your own is known to Larder"
)


class BadAnswer(SourceUnavailable):
    """The service gave an answer that cannot be used."""


class ServerFault(BadAnswer):
    """The service answered with an error status."""

    def __init__(self, message: str = "", *, status: int = 0, **more: Any) -> None:
        """Keep the HTTP status; other arguments as in LarderError."""
        super().__init__(message, **more)
        self.status = status


class AnswerTooLarge(DocumentRejected):
    """An answer is larger than the limit: request fewer items at once, or leave the item out."""


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
    _BROKE: (OSError, http.client.HTTPException, urllib3_errors.HTTPError, urllib3_errors.NewConnectionError),
    _DAMAGED: (
        requests_errors.InvalidJSONError, requests_errors.ContentDecodingError,
        requests_errors.StreamConsumedError, urllib3_errors.DecodeError, urllib3_errors.ResponseNotChunked,
        urllib3_errors.BodyNotHttplibCompatible, urllib3_errors.InvalidChunkLength,
        urllib3_errors.HeaderParsingError,
    ),
    _TLS: (requests_errors.SSLError, urllib3_errors.SSLError, ssl.SSLError),
    _SLOW: (requests_errors.Timeout, urllib3_errors.TimeoutError, TimeoutError),
    _ADDRESS: (
        requests_errors.URLRequired, requests_errors.MissingSchema, requests_errors.InvalidSchema,
        requests_errors.InvalidURL, urllib3_errors.HostChangedError, urllib3_errors.LocationValueError,
        urllib3_errors.ProxySchemeUnsupported, http.client.InvalidURL, UnicodeError,
    ),
    _CIRCLE: (requests_errors.TooManyRedirects,),
    _HEADER: (requests_errors.InvalidHeader, urllib3_errors.InvalidHeader),
    _UNKNOWN_HOST: (urllib3_errors.NameResolutionError, socket.gaierror),
}  # fmt: skip
TABLE = {kind: row for row, kinds in _MEANINGS.items() for kind in kinds}
"""Error of a library -> class, description and advice; for an unlisted one the nearest base class counts."""

ROOT_CAUSES: dict[type[BaseException], Row] = {
    ssl.SSLCertVerificationError: _TLS,
    ssl.SSLEOFError: _BROKE,  # a reset during the handshake, not a wrong certificate
    ssl.SSLZeroReturnError: _BROKE,
    urllib3_errors.NameResolutionError: _UNKNOWN_HOST,
    socket.gaierror: _UNKNOWN_HOST,
    ConnectionRefusedError: _REFUSED,
}
"""Causes of wrapped errors that are more specific than the wrapper."""

FOREIGN: tuple[type[Exception], ...] = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    urllib3_errors.ProxySchemeUnsupported,
    http.client.HTTPException,
    OSError,
    UnicodeError,
)
"""Errors to catch around a call of requests."""


def translate(error: Exception, product: str) -> LarderError:
    """Translate one of `FOREIGN` to a LarderError; a LarderError is returned as it is, other errors are raised again.

    The original is not kept as the cause: its text holds the full address and its request the credentials.
    """
    if isinstance(error, LarderError):
        return error
    row = next((ROOT_CAUSES[type(e)] for e in causes_of(error) if type(e) in ROOT_CAUSES), None)
    row = row or next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        raise error
    error_type, problem, fix = row
    return error_type(f"{product} {problem} ({_name(error)})", fix=fix)


def _name(error: BaseException) -> str:
    """Names of the outermost and innermost error class, to look up; not the text, which may hold secrets."""
    names = [type(e).__name__ for e in causes_of(error)]
    return names[0] if names[0] == names[-1] else f"{names[0]}, {names[-1]}"


PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """A server; two addresses are on the same one if scheme, host and port are equal."""

    scheme: str
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The server of a URL.

        Raises:
            ValueError: the URL is invalid.
        """
        split = urlsplit(url)
        return cls(split.scheme, split.hostname or "", split.port or PORTS.get(split.scheme, 0))

    @classmethod
    def configured(cls, address: str) -> Self:
        """The server of a configured address.

        Raises:
            ConfigurationError: it is no http address, or holds a user name or password.
        """
        invalid = ConfigurationError(
            "the configured address is not valid", fix=f"{ADDRESS}: it begins with https://"
        )
        try:
            url = requests.Request("GET", address.strip()).prepare().url or ""
            origin = cls.from_url(url)
        except (ValueError, requests.RequestException):
            raise invalid from None
        if "@" in urlsplit(url).netloc:
            fix = "write them to auth instead, where they are kept secret"
            raise ConfigurationError("the configured address holds a user name or password", fix=fix)
        if not all(origin):
            raise invalid
        return origin

    def holds(self, url: str) -> bool:
        """Whether a URL is on this server."""
        with contextlib.suppress(ValueError):
            return Origin.from_url(url) == self
        return False

    @property
    def key(self) -> str:
        """Key of this server at the limiter."""
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
    # Every page of a site may have a link "Log in", but not a title, a form or a field for it.
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
    """Raise the error of an unusable answer; 2xx, and 4xx except 401, 407, 408 and 429, are left to the caller.

    Args:
        response: with its body read.
        origin: the only server that redirects may lead to.
        product: for messages, such as "Confluence".
        pause: the seconds from `source_pause`.

    Raises:
        RateLimited: 429, 503 with Retry-After, or 403 because of a limit.
        SourceDenied: 401, a sign-in page, a web page instead of data, a redirect to another server.
        ServerFault: 407, 408, 5xx, or a web page with 4xx; `status` is the HTTP status.
    """
    status = response.status_code
    if status in {403, 429, 503} and pause is not None:
        fix = (
            "nothing to do: it is tried again after that time; lower requestsPerMinute if this happens often"
        )
        message = f"{product} answered {status} and asks to wait {pause:.0f} s"
        raise RateLimited(message, fix=fix, retry_after=pause)
    if response.headers.get("X-Seraph-LoginReason", "").upper() == "AUTHENTICATION_DENIED":
        raise SourceDenied(f"{product} has locked this account out after failed sign-ins", fix=LOCKED_OUT)
    if status == 401:  # noqa: PLR2004 (Unauthorized)
        expired = b"expired" in response.content[:2000].lower()
        reason = "the token has expired" if expired else "it does not accept the credentials"
        raise SourceDenied(f"{product} answered 401: {reason}", fix=CREDENTIALS)
    if status in {407, 408} or status >= 500:  # noqa: PLR2004 (errors of the server's side)
        raise ServerFault(f"{product} answered {status}", fix=LASTS, status=status)
    if response.is_redirect:
        _judge_redirect(response, origin, product)
    elif _is_unwanted_page(response):
        _judge_page(response, product)


def is_html(response: requests.Response) -> bool:
    """Whether the body is a web page, by the header or by its content."""
    kind = response.headers.get("Content-Type", "").lower()
    if "html" in kind:
        return True
    return "json" not in kind and bool(
        _PAGE_START.match(response.content[:2000].removeprefix(b"\xef\xbb\xbf"))
    )


def _judge_redirect(response: requests.Response, origin: Origin, product: str) -> None:
    """Raise SourceDenied for a redirect to a sign-in page or to another server; others are followed."""
    target = urljoin(response.url, response.headers.get("Location", ""))
    split = urlsplit(target)
    leaving = not origin.holds(target)
    if _SIGN_IN_ADDRESS.search(f"//{split.netloc if leaving else ''}{split.path}"):
        message = f"{product} answered {response.status_code} and redirects to a sign-in page"
        raise SourceDenied(message, fix=CREDENTIALS)
    if leaving:
        raise other_host(target, origin, product)


def other_host(url: str, origin: Origin, product: str) -> SourceDenied:
    """The error of an address on another server than the configured one."""
    try:
        target = str(Origin.from_url(url))  # paths and queries may hold secrets
    except ValueError:
        target = "an invalid address"
    fix = f"nothing was sent there; if it is {product}'s true address, configure it instead of {origin}"
    return SourceDenied(f"{product} leads from {origin} to {target}, which is another server", fix=fix)


def _judge_page(response: requests.Response, product: str) -> None:
    status = response.status_code
    if status >= 400:  # noqa: PLR2004 (errors)
        # A web page is not from the API: a 404 of this form must never count as "this item is deleted".
        raise ServerFault(f"{product} answered {status} with a web page", fix=NO_API, status=status)
    head = response.content[:HEAD_OF_PAGE].decode("utf-8", "replace")
    path = urlsplit(response.url).path
    if status == 203 or _SIGN_IN_ADDRESS.search(path) or _SIGN_IN_PAGE.search(head):  # noqa: PLR2004 (Azure's)
        message = f"{product} answered {status} with a sign-in page instead of data"
        raise SourceDenied(message, fix=CREDENTIALS)
    raise SourceDenied(f"{product} answered {status} with a web page instead of data", fix=NO_API)


def _is_unwanted_page(response: requests.Response) -> bool:
    """Whether the answer is a web page, but neither the Accept header nor the download of a file asked for one."""
    accepts_html = "text/html" in response.request.headers.get("Accept", "").lower()
    return is_html(response) and not (
        accepts_html or _DOWNLOAD.search(urlsplit(response.request.url or "").path)
    )


def json_of(response: requests.Response, *, product: str) -> dict[str, Any]:
    """The JSON object of an answer; the status is not checked.

    Raises:
        BadAnswer: as `json_value` does, or it is no object.
    """
    payload = json_value(response, product=product)
    if not isinstance(payload, dict):
        raise BadAnswer(f"{product} gave JSON that is not an object", fix=LASTS)
    return payload


def json_value(response: requests.Response, *, product: str) -> Any:
    """The JSON value of an answer; the status is not checked.

    Raises:
        BadAnswer: it is empty, incomplete or of another type.
    """
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if is_html(response) or (kind and "json" not in kind):
        type_name = kind if re.sub("[/+-]", "", kind).isalnum() else "another format"
        raise BadAnswer(f"{product} answered {type_name} instead of JSON", fix=NO_API)
    if not response.content.strip():
        raise BadAnswer(f"{product} gave an empty answer instead of JSON", fix=LASTS)
    try:
        return json.loads(response.content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        # No cause: it would hold the text.
        raise BadAnswer(f"{product} gave broken JSON", fix=LASTS) from None


def results_of(payload: dict[str, Any], product: str) -> list[dict[str, Any]]:
    """The list of objects under `results`; a missing list is an error, not an empty list.

    Raises:
        BadAnswer: there is no such list, or it holds something other than objects.
    """
    results = payload.get("results")
    if not isinstance(results, list) or not all(isinstance(item, dict) for item in results):
        raise BadAnswer(f"{product} gave an answer without a list of results", fix=LASTS)
    return results
