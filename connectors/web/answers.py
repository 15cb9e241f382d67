"""Which answers are none: refusals, sign-in pages, gateways' pages, redirects to elsewhere."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import requests

from connectors.web.faults import LASTS, ServerFault
from connectors.web.origin import Origin
from pipeline.errors import RateLimited, SourceDenied

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


def judge(response: requests.Response, origin: Origin, product: str, pause: float | None) -> None:
    """Let a usable answer pass; 2xx, and the 4xx other than 401, 407, 408 and 429, are the caller's to read.

    Args:
        response: with its body read.
        origin: the only place redirects may lead to.
        product: for messages, such as "Confluence".
        pause: the seconds from `pause_of`.

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
    elif is_html(response) and not _html_is_welcome(response):
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
        raise elsewhere(target, origin, product)


def elsewhere(url: str, origin: Origin, product: str) -> SourceDenied:
    """The refusal of an address that is not the configured host."""
    there = Origin.shown(url)
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


def _html_is_welcome(response: requests.Response) -> bool:
    """Whether a web page can be what was asked for: by the Accept header, or as a file to download."""
    accept = response.request.headers.get("Accept", "").lower()
    return "text/html" in accept or bool(_DOWNLOAD.search(urlsplit(response.request.url or "").path))
