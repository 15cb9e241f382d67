"""One Confluence as an HTTP service: the client library underneath, answers proven to be JSON."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import requests
from atlassian.confluence import ConfluenceServer
from requests.auth import HTTPBasicAuth

from connectors.confluence.faults import CATCH, Missing, ServerFault, by_status, ours
from connectors.confluence.options import PRODUCT, ConfluenceOptions
from connectors.web import is_html, json_of, open_session
from pipeline.documents import Json
from pipeline.errors import LarderError, SourceDenied

WHO = "rest/api/user/current"
CLOUD_CONTEXT = "/wiki"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What was found at the configured address."""

    cloud: bool
    base: str
    """scheme://host[:port][/context], without a slash at its end."""
    zone: ZoneInfo | None
    """Of the account; CQL reads dates in it. None: not known."""
    looks_cloud: bool
    """What answers, whatever is configured."""


class Site:
    """Sends requests to one Confluence; each method raises errors of pipeline.errors only."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._session = open_session(options.access)
        if options.username:
            # As bytes: text would have to be Latin-1.
            self._session.auth = HTTPBasicAuth(options.username.encode(), options.api_token.encode())
        self._clients: dict[str, Any] = {}
        self._place: Place | None = None
        # The client logs whole answers, which are other people's documents, at this level.
        logging.getLogger("atlassian").setLevel(logging.INFO)

    @property
    def place(self) -> Place:
        """Found out by the first use, with one to three requests."""
        if self._place is None:
            self._place = self._find_place()
        return self._place

    def json(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        """The object at `path`, relative to the base.

        Raises:
            Missing: 404 of the API.
            Refused: another refusal.
        """
        return self._json(self.place.base, path, params)

    def follow(self, link: str) -> Json:
        """The object at a whole address that an answer gave, kept exactly as it was sent."""
        # The client cuts slashes off at the end, and a cursor may end with one.
        address = f"{link}&" if link.endswith("/") else link
        return self._object(self._get(self.place.base, address, absolute=True))

    def download(self, path: str, *, html: bool) -> bytes:
        """The bytes at `path`, relative to the base; redirects stay on the host.

        Args:
            path: as the answer gave it.
            html: whether a web page may be what was asked for; else it is a sign-in page or the like.

        Raises:
            Missing: it is not there.
            Refused: something else came.
        """
        response = self._get(self.place.base, path, headers={"Accept": "text/html, */*" if html else "*/*"})
        if response.status_code != requests.codes.ok or (is_html(response) and not html):
            raise by_status(response.status_code)
        return bytes(response.content)

    def close(self) -> None:
        """Give the connections back; the site may be used again."""
        self._session.close()

    def _json(self, base: str, path: str, params: Mapping[str, Any] | None = None) -> Json:
        return self._object(self._get(base, path, params=dict(params or {})))

    def _object(self, response: requests.Response) -> Json:
        if response.status_code != requests.codes.ok:
            raise by_status(response.status_code)
        found: Json = json_of(response, product=PRODUCT)
        return found

    def _get(self, base: str, path: str, **more: Any) -> requests.Response:
        try:
            answer: requests.Response = self._client(base).get(path, advanced_mode=True, **more)
        except LarderError:
            raise
        except CATCH as error:
            raise ours(error) from None
        return answer

    def _client(self, base: str) -> Any:
        """The library's class for Server: of its classes the only one that finds v1 on Cloud as well."""
        if base not in self._clients:
            credentials = {"token": self._options.token} if self._options.token else {}
            library: Any = ConfluenceServer
            self._clients[base] = library(
                base, session=self._session, retry_with_header=False, backoff_and_retry=False, **credentials
            )
        return self._clients[base]

    def _find_place(self) -> Place:
        *first, last = _bases(self._options)
        for base in first:
            try:
                return self._place_of(base, self._json(base, WHO))
            except (Missing, ServerFault) as error:
                # A gateway's 5xx says nothing about the address; a web page with 404 does.
                if isinstance(error, ServerFault) and error.status != requests.codes.not_found:
                    raise
        return self._place_of(last, self._json(last, WHO))

    def _place_of(self, base: str, user: Json) -> Place:
        options = self._options
        if user.get("type") == "anonymous" and (options.username or options.token):
            fix = "check auth: use username and apiToken, or on a Server token"
            raise SourceDenied(f"{PRODUCT} takes us for an anonymous visitor", fix=fix)
        looks_cloud = "accountId" in user
        cloud = looks_cloud if options.deployment == "auto" else options.deployment == "cloud"
        return Place(cloud=cloud, base=base, zone=options.zone or _zone(user), looks_cloud=looks_cloud)


def _bases(options: ConfluenceOptions) -> list[str]:
    """Where the API may be, most likely first; at least one."""
    base = options.base_url.strip().rstrip("/")
    with_context = base if base.endswith(CLOUD_CONTEXT) else base + CLOUD_CONTEXT
    host = urlsplit(base).hostname or ""
    if options.deployment == "server":
        return [base]
    if options.deployment == "cloud" or host.endswith((".atlassian.net", "api.atlassian.com")):
        return [with_context]
    return list(dict.fromkeys((base, with_context)))


def _zone(user: Json) -> ZoneInfo | None:
    name = user.get("timeZone")
    try:
        return ZoneInfo(name) if isinstance(name, str) and name else None
    except (KeyError, ValueError, OSError):
        return None
