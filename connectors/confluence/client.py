"""The client of one Confluence: requests, searches by CQL, spaces, single contents, and errors."""

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
from atlassian import errors as theirs
from atlassian.confluence import ConfluenceServer
from pydantic import ValidationError
from requests.auth import HTTPBasicAuth

from connectors.confluence.document import Content
from connectors.confluence.options import MOST_PER_PAGE, PRODUCT, ConfluenceOptions
from connectors.sections import secret_value
from connectors.web.answers import LASTS, BadAnswer, ServerFault, is_html, json_of, results_of
from connectors.web.session import GuardedSession
from pipeline.documents import Json
from pipeline.errors import LarderError, SourceDenied, SourceUnavailable, http_date

CURRENT_USER = "rest/api/user/current"
SEARCH = "rest/api/content/search"
CLOUD_CONTEXT = "/wiki"
MOST_ROWS = 200
"""Rows given at once when anything but bodies is asked for."""
MOST_SPACE_KEYS = 50
MOST_RESTARTS = 5
MOST_STEPS_BACK = 20
ROWS_AGAIN = 3
"""Rows of the answer before that are asked for once more, to see that the list did not move in between."""
PERMISSION = "give the account permission to view these spaces, and permission to use Confluence"

BY_ID = attrgetter("id")
BY_ID_AND_VERSION = attrgetter("versioned_id")
"""An edited page comes again at the end of a list by time of change."""


# -- errors ----------------------------------------------------------------------------------------------


class ConfluenceRefused(SourceDenied):
    """Confluence understood the request and will not answer it."""


class ConfluenceNotFound(SourceUnavailable):
    """There is nothing at this address, or nothing that this account may see."""


CATCH: tuple[type[Exception], ...] = (theirs.ApiError, theirs.JsonRPCError)
"""The library's own errors. It hands refusals on as answers, and errors of our session are ours."""
CHECK_ADDRESS = "check baseUrl, deployment and the account's permissions"
MEANINGS: dict[int, tuple[str, str]] = {
    400: (
        ": it does not understand the search",
        "check spaceKeys, labels and ancestors for wrong characters",
    ),
    403: (
        ": not permitted",
        f"{PERMISSION}; on Cloud check that auth.username and auth.apiToken are both given",
    ),
    404: ("", "check baseUrl; single items that are missing were removed or are hidden from this account"),
    410: (": this part of its API is gone", "set deployment to cloud if this is Cloud, else update Larder"),
}
"""Of a status that is no success: what it says, and what to do."""


def by_status(status: int) -> LarderError:
    """The error for an answer other than 2xx that the guarded session let pass."""
    said, fix = MEANINGS.get(status, ("", CHECK_ADDRESS))
    kind = ConfluenceNotFound if status == requests.codes.not_found else ConfluenceRefused
    return kind(f"{PRODUCT} answered {status}{said}", fix=fix)


# -- requests --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What was found at the configured address."""

    cloud: bool
    base: str
    """scheme://host[:port][/context], without a slash at its end."""
    looks_cloud: bool
    """What answers, whatever is configured."""


class ConfluenceClient:
    """Sends requests to one Confluence; each method raises errors of pipeline.errors only."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._session = GuardedSession(options.access)
        if options.username:
            # As bytes: text would have to be Latin-1.
            self._session.auth = HTTPBasicAuth(
                options.username.encode(), secret_value(options.api_token).encode()
            )
        self._libraries: dict[str, Any] = {}
        self._told: datetime | None = None
        self._archived = {"includeArchivedSpaces": "true"} if options.include_archived else {}
        # The library logs whole answers, which are other people's documents, at this level.
        logging.getLogger("atlassian").setLevel(logging.INFO)

    @cached_property
    def deployment(self) -> Deployment:
        """Found out by the first use, with one to three requests."""
        *first, last = _bases(self._options)
        for base in first:
            with contextlib.suppress(ConfluenceNotFound):
                return self._deployment_at(base)
        return self._deployment_at(last)

    @property
    def now(self) -> datetime:
        """The service's own time, as its last answer told it; ours if it tells none."""
        _ = self.deployment
        return self._told or datetime.now(UTC)

    def json(self, path: str, params: Mapping[str, Any] | None = None, *, base: str = "") -> Json:
        """The object at `path`, relative to the base that was found, or to another.

        Raises:
            ConfluenceNotFound: 404 of the API.
            ConfluenceRefused: another refusal.
        """
        return _object(self._get(base or self.deployment.base, path, params=dict(params or {})))

    def follow(self, link: str) -> Json:
        """The object at a whole address that an answer gave, kept exactly as it was sent."""
        # The library cuts slashes off at the end, and a cursor may end with one.
        address = f"{link}&" if link.endswith("/") else link
        return _object(self._get(self.deployment.base, address, absolute=True))

    def download(self, path: str, *, html: bool) -> bytes:
        """The bytes at `path`, relative to the base; redirects stay on the host.

        Args:
            path: as the answer gave it.
            html: whether a web page may be what was asked for; else it is a sign-in page or the like.

        Raises:
            ConfluenceNotFound: it is not there.
            ConfluenceRefused: something else came.
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
        """The contents that a query finds; nothing is sent yet.

        Args:
            cql: with its order, if it may have more than one answer.
            expand: what is shown of each content.
            limit: rows of an answer; as many as Confluence gives unless said.
            key: tells two rows apart.
        """
        limit = limit or (MOST_PER_PAGE if "body.storage" in expand else MOST_ROWS)
        params = {"cql": cql, "expand": ",".join(expand), "limit": limit, **self._archived}
        return CqlSearch(self, params, key)

    def count(self, cql: str) -> int:
        """How many contents a query finds."""
        total = self.json("rest/api/search", {"cql": cql, "limit": 1, **self._archived}).get("totalSize")
        return total if isinstance(total, int) else 0

    def spaces(self, keys: Sequence[str]) -> dict[str, Json]:
        """The visible spaces by key, spelled as Confluence does; all there are if no keys are given."""
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
        wanted = set(map(str.casefold, keys))
        found = {str(row.get("key")): row for row in rows}
        return {key: row for key, row in found.items() if not wanted or key.casefold() in wanted}

    def sees_all_spaces(self) -> bool:
        """Whether all configured spaces are visible.

        Raises:
            SourceDenied: none is; a search would show an empty Confluence.
        """
        keys = self._options.space_keys
        hidden = missing_keys(self.spaces(keys), keys) if keys else []
        if hidden and len(hidden) == len(keys):
            said = f"{PRODUCT} shows this account none of the configured spaces ({', '.join(hidden[:10])})"
            raise SourceDenied(said, fix=f"check spaceKeys, and {PERMISSION}")
        return not hidden

    def page_status(self, page: str) -> str:
        """`current`, `trashed` or the like; empty if there is no such page or blog post, or it is not shown."""
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
        """Id of the page an attachment hangs on; empty if there is no such attachment.

        Raises:
            ConfluenceRefused: it is not shown to us.
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
        """Give the connections back; the client may be used again."""
        self._session.close()

    def _get(self, base: str, path: str, **more: Any) -> requests.Response:
        if base not in self._libraries:
            # The class for Server: of the library's classes the only one that finds v1 on Cloud as well.
            token = secret_value(self._options.token)
            credentials = {"token": token} if token else {}
            library: Any = ConfluenceServer
            self._libraries[base] = library(
                base, session=self._session, retry_with_header=False, backoff_and_retry=False, **credentials
            )
        try:
            answer: requests.Response = self._libraries[base].get(path, advanced_mode=True, **more)
        except CATCH as error:  # its text holds what the service said
            said = f"{PRODUCT} refuses the request ({type(error).__name__})"
            raise ConfluenceRefused(said, fix=CHECK_ADDRESS) from None
        self._told = http_date(answer.headers.get("Date", ""))
        return answer

    def _deployment_at(self, base: str) -> Deployment:
        options = self._options
        try:
            user = self.json(CURRENT_USER, base=base)
        except ServerFault as error:
            # A gateway's 5xx says nothing about the address; a web page with 404 does.
            raise by_status(error.status) if error.status == requests.codes.not_found else error from None
        if user.get("type") == "anonymous" and (options.username or options.token):
            fix = "check auth: use username and apiToken, or on a Server token"
            raise SourceDenied(f"{PRODUCT} takes us for an anonymous visitor", fix=fix)
        looks_cloud = "accountId" in user
        cloud = looks_cloud if options.deployment == "auto" else options.deployment == "cloud"
        return Deployment(cloud=cloud, base=base, looks_cloud=looks_cloud)


def missing_keys(found: Mapping[str, Json], keys: Sequence[str]) -> list[str]:
    """The configured keys that are not among these spaces."""
    seen = {key.casefold() for key in found}
    return [key for key in keys if key.casefold() not in seen]


def _object(response: requests.Response) -> Json:
    if response.status_code != requests.codes.ok:
        raise by_status(response.status_code)
    return json_of(response, product=PRODUCT)


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


# -- searches --------------------------------------------------------------------------------------------


def cql_texts(values: Iterable[str]) -> str:
    """A list of texts for `in`."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ", ".join(f'"{value}"' for value in escaped)


def is_page_id(key: str) -> bool:
    """Whether it may be the id of a page; attachments on Cloud have others."""
    return key.isascii() and key.isdigit()


def cql_ids(ids: Iterable[str]) -> str:
    """A list of page ids for `in`; what is none is left out, so that no text gets into a query."""
    return ", ".join(filter(is_page_id, ids)) or "0"


def next_address(base: str, answer: Json) -> str | None:
    """The whole address of the next answer on Cloud; None at the end.

    v1 leaves the context path out of its links and v2 does not. The host is always ours: what an answer
    calls its base may be a public name that is not to be contacted.
    """
    link = (answer.get("_links") or {}).get("next")
    if not isinstance(link, str) or not link:
        return None
    parts, found = urlsplit(base), urlsplit(link)
    link, context = f"/{found.path.lstrip('/')}?{found.query}", parts.path
    above, _, last = context.rpartition("/")
    if last and link.startswith(f"/{last}/"):
        link = above + link  # Atlassian's gateway puts a path of its own before that of Cloud
    elif context and not link.startswith(f"{context}/"):
        link = context + link
    return f"{parts.scheme}://{parts.netloc}{link}"


def is_last(answer: Json, _asked: int) -> bool:
    """Whether the list ends here; few rows are no end, because the service lowers limits silently."""
    return not (answer.get("_links") or {}).get("next")


class CqlSearch:
    """The contents of one query, a list for each answer, each once.

    Raises while iterating:
        ConfluenceRefused, SourceUnavailable: what the service answers.
    """

    def __init__(
        self, client: ConfluenceClient, params: Mapping[str, Any], key: Callable[[Content], str]
    ) -> None:
        self._client = client
        self._params = params
        self._key = key
        self._seen: set[str] = set()
        self.complete = False
        """True once the end is proven."""
        self.base = ""
        """What links for people are relative to."""

    def __iter__(self) -> Iterator[list[Content]]:
        return self._by_link() if self._client.deployment.cloud else self._by_offset()

    def contents(self) -> Iterator[Content]:
        """One after the other."""
        return (content for batch in self for content in batch)

    def all(self) -> list[Content]:
        """Every content at once.

        Raises:
            SourceUnavailable: the list broke off.
        """
        found = list(self.contents())
        if not self.complete:
            raise SourceUnavailable(
                f"{PRODUCT} broke a list off with an empty page", fix="it is tried again by itself"
            )
        return found

    def _by_link(self) -> Iterator[list[Content]]:
        """Cloud: by the link of each answer; `start` means nothing there."""
        link: str | None = None
        followed: set[str | None] = {None}
        restarts = 0
        while True:
            try:
                answer = self._client.follow(link) if link else self._client.json(SEARCH, self._params)
            except (ConfluenceRefused, ConfluenceNotFound):
                # A cursor grows old; then the list begins again, and what was seen is passed over.
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
        """Server: by counting, in a list that may move meanwhile.

        Each answer begins with rows of the one before. If it does not, rows before it went away or moved
        to the end, others took their places, and we go back as far as it takes.
        """
        start, back, steps_back = 0, 0, 0
        while steps_back < MOST_STEPS_BACK:
            at = max(0, start - back)
            answer = self._client.json(SEARCH, {**self._params, "start": at} if at else self._params)
            rows = self._rows(answer)
            joins = self._key(rows[0]) in self._seen if rows else not is_last(answer, self._params["limit"])
            if at and back and not joins:
                back, steps_back = back * 4, steps_back + 1
                continue
            new = self._new(rows)
            yield new
            if self._ends(answer, rows):
                return
            steps_back = 0 if new else steps_back
            start = at + len(rows)  # the service's own count may be too small
            back = min(ROWS_AGAIN, len(rows) // 2)

    def _rows(self, answer: Json) -> list[Content]:
        base = (answer.get("_links") or {}).get("base")
        if isinstance(base, str) and base.startswith(("http://", "https://")):
            self.base = base.rstrip("/")
        try:
            return [Content.model_validate(row) for row in results_of(answer, PRODUCT)]
        except ValidationError:
            raise BadAnswer(f"{PRODUCT} gave a content of another shape", fix=LASTS) from None

    def _new(self, rows: list[Content]) -> list[Content]:
        new = {self._key(row): row for row in rows if self._key(row) not in self._seen}
        self._seen.update(new)
        return list(new.values())

    def _ends(self, answer: Json, rows: list[Content]) -> bool:
        if is_last(answer, self._params["limit"]):
            self.complete = True
            return True
        return not rows  # an empty page that promises more would be followed for ever
