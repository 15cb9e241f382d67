"""Client of one Confluence: requests, searches by CQL, spaces, single contents, and errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import requests
from atlassian import errors as sdk_errors
from atlassian.confluence import ConfluenceServer
from pydantic import ValidationError
from requests.auth import HTTPBasicAuth

from connectors.confluence.document import Content
from connectors.confluence.options import MOST_PER_PAGE, PRODUCT, ConfluenceOptions
from connectors.sections import secret_value
from connectors.web.answers import LASTS, BadAnswer, ServerFault, is_html, json_of, results_of
from connectors.web.session import GuardedSession
from pipeline.documents import Json
from pipeline.errors import LarderError, SourceDenied, SourceUnavailable
from pipeline.errors.http_rules import http_date

CURRENT_USER = "rest/api/user/current"
SEARCH = "rest/api/content/search"
CLOUD_CONTEXT = "/wiki"
MOST_ROWS = 200
"""Most rows of an answer without bodies."""
MOST_SPACE_KEYS = 50
MOST_RESTARTS = 5
MOST_STEPS_BACK = 20
ROWS_AGAIN = 3
"""Rows of the previous answer that are requested again, to detect that the list moved in between."""
PERMISSION = "give the account permission to view these spaces, and permission to use Confluence"

BY_ID = attrgetter("id")
BY_ID_AND_VERSION = attrgetter("versioned_id")
"""Key of a row in a list by time of change, where an edited page appears again at the end."""


# -- errors ----------------------------------------------------------------------------------------------


class ConfluenceRefused(SourceDenied):
    """Confluence refuses the request."""


class ConfluenceNotFound(SourceUnavailable):
    """There is no content at this address, or the account may not see it."""


CATCH: tuple[type[Exception], ...] = (sdk_errors.ApiError, sdk_errors.JsonRPCError)
"""Errors of the library itself; refusals are returned as answers, and the session raises LarderErrors."""
CHECK_ADDRESS = "check baseUrl, deployment and the account's permissions"
MEANINGS: dict[int, tuple[str, str]] = {
    400: (
        ": it does not understand the search",
        "check spaceKeys, labels and ancestors for invalid characters",
    ),
    403: (
        ": not permitted",
        f"{PERMISSION}; on Cloud check that auth.username and auth.apiToken are both given",
    ),
    404: ("", "check baseUrl; single items that are missing were removed or are hidden from this account"),
    410: (": this part of its API is gone", "set deployment to cloud if this is Cloud, else update Larder"),
}
"""HTTP status -> description for the message, and advice."""


def by_status(status: int) -> LarderError:
    """The error of an answer other than 2xx that the guarded session passes on."""
    description, fix = MEANINGS.get(status, ("", CHECK_ADDRESS))
    kind = ConfluenceNotFound if status == requests.codes.not_found else ConfluenceRefused
    return kind(f"{PRODUCT} answered {status}{description}", fix=fix)


# -- requests --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The product at the configured address."""

    cloud: bool
    """Whether the API of Cloud is used, by the option `deployment`."""
    base: str
    """scheme://host[:port][/context], without a slash at its end."""
    looks_cloud: bool
    """Whether the answers are those of Cloud, whatever is configured."""


class ConfluenceClient:
    """Sends requests to one Confluence; each method raises errors of pipeline.errors only."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._session = GuardedSession(options.access)
        if options.username:
            # As bytes, because text may be Latin-1 only.
            self._session.auth = HTTPBasicAuth(
                options.username.encode(), secret_value(options.api_token).encode()
            )
        self._libraries: dict[str, Any] = {}
        self._service_time: datetime | None = None
        self._archived = {"includeArchivedSpaces": "true"} if options.include_archived else {}
        # Below this level, the library logs whole answers, which are documents.
        logging.getLogger("atlassian").setLevel(logging.INFO)

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment, detected on first use with one to three requests."""
        *first, last = _bases(self._options)
        for base in first:
            with contextlib.suppress(ConfluenceNotFound):
                return self._deployment_at(base)
        return self._deployment_at(last)

    @property
    def now(self) -> datetime:
        """Time of the service by its last answer; the local time if answers have none."""
        _ = self.deployment
        return self._service_time or datetime.now(UTC)

    def json(self, path: str, params: Mapping[str, Any] | None = None, *, base: str = "") -> Json:
        """The JSON object at `path`, relative to the base of the deployment, or to another.

        Raises:
            ConfluenceNotFound: 404 of the API.
            ConfluenceRefused: another refusal.
        """
        return _object(self._get(base or self.deployment.base, path, params=dict(params or {})))

    def follow(self, link: str) -> Json:
        """The JSON object at a complete address from an answer, which is not changed."""
        # The library removes slashes at the end, and a cursor may end with one.
        address = f"{link}&" if link.endswith("/") else link
        return _object(self._get(self.deployment.base, address, absolute=True))

    def download(self, path: str, *, html: bool) -> bytes:
        """The bytes at `path`, relative to the base; redirects must stay on the host.

        Args:
            path: from an answer.
            html: whether a web page is acceptable; else one is taken for a sign-in page.

        Raises:
            ConfluenceNotFound: there is no such file.
            ConfluenceRefused: another answer came.
        """
        accept = {"Accept": "text/html, */*" if html else "*/*"}
        response = self._get(self.deployment.base, path, headers=accept)
        if response.status_code != requests.codes.ok or (is_html(response) and not html):
            raise by_status(response.status_code)
        return bytes(response.content)

    def search(
        self,
        cql: str,
        expand: Sequence[str],
        *,
        limit: int = 0,
        key: Callable[[Content], str] = BY_ID_AND_VERSION,
    ) -> CqlSearch:
        """The contents that match a query; nothing is sent yet.

        Args:
            cql: with an order, if the result may need more than one answer.
            expand: properties of each content to include.
            limit: rows of an answer; 0 for the most that Confluence returns.
            key: identity of a row; a row with a known key is dropped.
        """
        limit = limit or (MOST_PER_PAGE if "body.storage" in expand else MOST_ROWS)
        params = {"cql": cql, "expand": ",".join(expand), "limit": limit, **self._archived}
        return CqlSearch(self, params, key)

    def count(self, cql: str) -> int:
        """Number of contents that match a query."""
        total = self.json("rest/api/search", {"cql": cql, "limit": 1, **self._archived}).get("totalSize")
        return total if isinstance(total, int) else 0

    def spaces(self, keys: Sequence[str]) -> dict[str, Json]:
        """The visible spaces by their keys in Confluence's spelling; without keys, all visible spaces."""
        cloud = self.deployment.cloud
        path = "api/v2/spaces" if cloud else "rest/api/space"
        params: dict[str, Any] = {"limit": MOST_ROWS}
        if 0 < len(keys) <= MOST_SPACE_KEYS:
            params |= {"keys": ",".join(keys)} if cloud else {"spaceKey": list(keys)}
        answer = self.json(path, params)
        rows = new = results_of(answer, PRODUCT)
        while new and (link := next_address(self.deployment.base, answer)):
            answer = self.follow(link) if cloud else self.json(path, {**params, "start": len(rows)})
            new = results_of(answer, PRODUCT)
            rows = rows + new
        requested_keys = set(map(str.casefold, keys))
        visible_spaces = {str(row.get("key")): row for row in rows}
        return {
            key: row
            for key, row in visible_spaces.items()
            if not requested_keys or key.casefold() in requested_keys
        }

    def sees_all_spaces(self) -> bool:
        """Whether all configured spaces are visible.

        Raises:
            SourceDenied: none is visible; searches would return nothing then.
        """
        keys = self._options.space_keys
        hidden = missing_keys(self.spaces(keys), keys) if keys else []
        if hidden and len(hidden) == len(keys):
            message = f"{PRODUCT} shows this account none of the configured spaces ({', '.join(hidden[:10])})"
            raise SourceDenied(message, fix=f"check spaceKeys, and {PERMISSION}")
        return not hidden

    def page_status(self, page: str) -> str:
        """Status such as `current` or `trashed`; empty if there is no such page or blog post, or it is not visible."""
        if not is_page_id(page):
            return ""
        kinds = ("pages", "blogposts") if self._options.include_blog_posts else ("pages",)
        cloud = self.deployment.cloud
        for path in [f"api/v2/{kind}/{page}" for kind in kinds] if cloud else [f"rest/api/content/{page}"]:
            try:
                answer = self.json(path, {} if cloud else {"status": "any"})
            except ConfluenceNotFound:
                continue
            return str(answer.get("status") or "current")
        return ""

    def page_of_attachment(self, key: str) -> str:
        """Id of the page of an attachment; empty if there is no such attachment.

        Raises:
            ConfluenceRefused: the account may not see it.
        """
        try:
            if self.deployment.cloud:
                return str(self.json(f"api/v2/attachments/{key}").get("pageId") or "")
            return Content.model_validate(
                self.json(f"rest/api/content/{key}", {"expand": "container"})
            ).container
        except ConfluenceNotFound:
            return ""

    def close(self) -> None:
        """Close the connections; the client may be used again."""
        self._session.close()

    def _get(self, base: str, path: str, **more: Any) -> requests.Response:
        if base not in self._libraries:
            # The class for Server is the only one of the library that uses v1 on Cloud as well.
            token = secret_value(self._options.token)
            credentials = {"token": token} if token else {}
            library: Any = ConfluenceServer
            self._libraries[base] = library(
                base, session=self._session, retry_with_header=False, backoff_and_retry=False, **credentials
            )
        try:
            answer: requests.Response = self._libraries[base].get(path, advanced_mode=True, **more)
        except CATCH as error:  # its text holds the answer of the service
            message = f"{PRODUCT} refuses the request ({type(error).__name__})"
            raise ConfluenceRefused(message, fix=CHECK_ADDRESS) from None
        self._service_time = http_date(answer.headers.get("Date", ""))
        return answer

    def _deployment_at(self, base: str) -> Deployment:
        options = self._options
        try:
            user = self.json(CURRENT_USER, base=base)
        except ServerFault as error:
            # A web page with 404 shows a wrong address; a 5xx of a gateway does not.
            raise by_status(error.status) if error.status == requests.codes.not_found else error from None
        if user.get("type") == "anonymous" and (options.username or options.token):
            fix = "check auth: use username and apiToken, or on a Server token"
            raise SourceDenied(f"{PRODUCT} treats the requests as those of an anonymous visitor", fix=fix)
        looks_cloud = "accountId" in user
        cloud = looks_cloud if options.deployment == "auto" else options.deployment == "cloud"
        return Deployment(cloud=cloud, base=base, looks_cloud=looks_cloud)


def missing_keys(spaces: Mapping[str, Json], keys: Sequence[str]) -> list[str]:
    """The configured keys without a visible space."""
    visible_keys = {key.casefold() for key in spaces}
    return [key for key in keys if key.casefold() not in visible_keys]


def _object(response: requests.Response) -> Json:
    if response.status_code != requests.codes.ok:
        raise by_status(response.status_code)
    return json_of(response, product=PRODUCT)


def _bases(options: ConfluenceOptions) -> list[str]:
    """Candidates for the base address of the API, the most likely first; at least one."""
    base = options.base_url.strip().rstrip("/")
    with_context = base if base.endswith(CLOUD_CONTEXT) else base + CLOUD_CONTEXT
    host = urlsplit(base).hostname or ""
    if options.deployment == "server":
        return [base]
    if options.deployment == "cloud" or host.endswith((".atlassian.net", "api.atlassian.com")):
        return [with_context]
    return list(dict.fromkeys((base, with_context)))


# -- searches --------------------------------------------------------------------------------------------


def cql_texts(values: Iterable[str]) -> str:
    """Texts quoted for `in (...)` of CQL."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ", ".join(f'"{value}"' for value in escaped)


def is_page_id(key: str) -> bool:
    """Whether the id may be that of a page; ids of attachments on Cloud differ."""
    return key.isascii() and key.isdigit()


def cql_ids(ids: Iterable[str]) -> str:
    """Page ids for `in (...)` of CQL; others are dropped, so that no text is injected into a query."""
    return ", ".join(filter(is_page_id, ids)) or "0"


def next_address(base: str, answer: Json) -> str | None:
    """The complete address of the next answer on Cloud; None at the end.

    Links of v1 lack the context path, those of v2 have it. The configured host is always kept, because the
    base in an answer may be a public name that must not be contacted.
    """
    link = (answer.get("_links") or {}).get("next")
    if not isinstance(link, str) or not link:
        return None
    base_url, link_url = urlsplit(base), urlsplit(link)
    link, context = f"/{link_url.path.lstrip('/')}?{link_url.query}", base_url.path
    above, _, last = context.rpartition("/")
    if last and link.startswith(f"/{last}/"):
        link = above + link  # Atlassian's gateway prefixes the path of Cloud with another one
    elif context and not link.startswith(f"{context}/"):
        link = context + link
    return f"{base_url.scheme}://{base_url.netloc}{link}"


def is_last(answer: Json, _limit: int) -> bool:
    """Whether the list ends here; fewer rows than requested are no sign, because the service lowers limits silently."""
    return not (answer.get("_links") or {}).get("next")


class CqlSearch:
    """The contents of one query, one list per answer, without repetitions.

    Raises while iterating:
        ConfluenceRefused, SourceUnavailable: by the answers of the service.
    """

    def __init__(
        self, client: ConfluenceClient, params: Mapping[str, Any], key: Callable[[Content], str]
    ) -> None:
        self._client = client
        self._params = params
        self._key = key
        self._seen_keys: set[str] = set()
        self.complete = False
        """True once the end of the list was reached for certain."""
        self.base = ""
        """Base address of links for people."""

    def __iter__(self) -> Iterator[list[Content]]:
        return self._by_link() if self._client.deployment.cloud else self._by_offset()

    def contents(self) -> Iterator[Content]:
        """The contents, one after the other."""
        return (content for batch in self for content in batch)

    def all(self) -> list[Content]:
        """All contents.

        Raises:
            SourceUnavailable: the list is incomplete.
        """
        contents = list(self.contents())
        if not self.complete:
            raise SourceUnavailable(
                f"{PRODUCT} ended a list early with an empty page", fix="it is tried again automatically"
            )
        return contents

    def _by_link(self) -> Iterator[list[Content]]:
        """Lists on Cloud, by the link in each answer; `start` is ignored there."""
        link: str | None = None
        followed: set[str | None] = {None}
        restarts = 0
        while True:
            try:
                answer = self._client.follow(link) if link else self._client.json(SEARCH, self._params)
            except (ConfluenceRefused, ConfluenceNotFound):
                # A cursor expires; then the list is restarted, and rows returned before are skipped.
                if link is None or restarts >= MOST_RESTARTS:
                    raise
                link, followed, restarts = None, {None}, restarts + 1
                continue
            rows = self._rows(answer)
            yield self._new(rows)
            link = next_address(self._client.deployment.base, answer)
            if self._ends(answer, rows) or link in followed:
                return
            followed.add(link)

    def _by_offset(self) -> Iterator[list[Content]]:
        """Lists on Server, by offset, although rows may move meanwhile.

        Each answer overlaps the one before. If it does not, earlier rows were removed or moved to the end, so
        that others moved up, and the offset goes back as far as needed.
        """
        start, overlap, steps_back = 0, 0, 0
        while steps_back < MOST_STEPS_BACK:
            at = max(0, start - overlap)
            answer = self._client.json(SEARCH, {**self._params, "start": at} if at else self._params)
            rows = self._rows(answer)
            overlaps = (
                self._key(rows[0]) in self._seen_keys if rows else not is_last(answer, self._params["limit"])
            )
            if at and overlap and not overlaps:
                overlap, steps_back = overlap * 4, steps_back + 1
                continue
            new = self._new(rows)
            yield new
            if self._ends(answer, rows):
                return
            steps_back = 0 if new else steps_back
            start = at + len(rows)  # the service's own count may be too small
            overlap = min(ROWS_AGAIN, len(rows) // 2)

    def _rows(self, answer: Json) -> list[Content]:
        base = (answer.get("_links") or {}).get("base")
        if isinstance(base, str) and base.startswith(("http://", "https://")):
            self.base = base.rstrip("/")
        try:
            return [Content.model_validate(row) for row in results_of(answer, PRODUCT)]
        except ValidationError:
            raise BadAnswer(f"{PRODUCT} gave a content in an unknown format", fix=LASTS) from None

    def _new(self, rows: list[Content]) -> list[Content]:
        new = {self._key(row): row for row in rows if self._key(row) not in self._seen_keys}
        self._seen_keys.update(new)
        return list(new.values())

    def _ends(self, answer: Json, rows: list[Content]) -> bool:
        if is_last(answer, self._params["limit"]):
            self.complete = True
            return True
        return not rows  # an empty page with a further link would be followed for ever
