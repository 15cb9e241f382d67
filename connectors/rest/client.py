"""Client of one REST service: requests as configured, lists page by page, single records, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from connectors.rest.expressions import filled, filled_in, value_at
from connectors.rest.options import Child, ListRequest, Paging, Request, RestOptions
from connectors.sections import secret_value
from connectors.web.answers import LASTS, BadAnswer, json_value
from connectors.web.session import GuardedSession
from pipeline.documents import Json
from pipeline.errors import RateLimited, SourceDenied, SourceUnavailable
from pipeline.errors.http_rules import RATE_LIMIT_SECONDS, http_date

Place = str | int | None
"""Position of a page in its list, as the service or the count of pages has it; None is the first page."""
MOST_CHILD_PAGES = 100
MOST_NAMES = 10
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")
MISSING = (requests.codes.not_found, requests.codes.gone)


class RestRefused(SourceDenied):
    """The service refuses the request."""


class RestMissing(SourceUnavailable):
    """There is no such record, or the account may not see it."""


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """One answer of a list."""

    records: list[Json]
    place: Place
    """Position of this page."""
    following: Place
    """Position of the next page; None at the end."""
    total: int | None = None
    """Number of all records, if the answer has it."""

    @property
    def last(self) -> bool:
        """Whether the list ends with this page."""
        return self.following is None


class _Key(AuthBase):
    """Adds a key to a request under the name that the service has for it."""

    def __init__(self, options: RestOptions) -> None:
        self._options = options

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        options = self._options
        if options.bearer:
            request.headers["Authorization"] = f"Bearer {secret_value(options.bearer)}"
        elif options.header:
            request.headers[options.header.name] = secret_value(options.header.value)
        elif options.query:
            request.prepare_url(request.url or "", {options.query.name: secret_value(options.query.value)})
        return request


class RestClient:
    """Sends requests to one service; each method raises errors of pipeline.errors only."""

    def __init__(self, options: RestOptions) -> None:
        self._options = options
        self._base = options.base_url.rstrip("/")
        self._session = GuardedSession(options.access)
        self._session.headers.update({"Accept": "application/json", **options.headers})
        self._session.auth = _Key(options)
        if options.basic:  # as bytes, because text may be Latin-1 only
            name, password = options.basic.username, secret_value(options.basic.password)
            self._session.auth = HTTPBasicAuth(name.encode(), password.encode())
        self._service_time: datetime | None = None

    @property
    def now(self) -> datetime:
        """Time of the service by its last answer; the local time if there was none, or it had no time."""
        return self._service_time or datetime.now(UTC)

    def close(self) -> None:
        """Close the connections; the client may be used again."""
        self._session.close()

    def record(self, request: Request, record_id: str) -> Any:
        """JSON of the answer to a request about one record.

        Raises:
            RestMissing: there is none.
            RestRefused: the service refuses the request.
        """
        return json_value(self._send(request, {"id": record_id}), product=self._options.product)

    def children(self, child: Child, record_id: str) -> list[Json]:
        """Records that belong to another one."""
        following = child.next or (
            self._options.list_.next if child.records == self._options.list_.records else None
        )
        request = ListRequest(
            path=child.path or "", params=child.params, records=child.records, next=following
        )
        children: list[Json] = []
        for number, page in enumerate(self.pages(request, {"id": record_id})):
            children += page.records
            if number >= MOST_CHILD_PAGES:
                break
        return children

    def pages(
        self, request: ListRequest, values: Mapping[str, Any], place: Place = None
    ) -> Iterator[ListPage]:
        """Pages of a list from a position on.

        Raises:
            RestRefused: the service refuses the request, perhaps as the position no longer exists.
            BadAnswer: an answer has no list, or the list does not advance.
        """
        visited: set[Place] = set()
        count = 0 if place is None else None
        while True:
            page = self._page(request, values, place)
            count = None if count is None else count + len(page.records)
            if (
                request.next
                and request.next.counts
                and None not in (count, page.total)
                and count == page.total
            ):
                page = replace(page, following=None)
            yield page
            if page.last:
                return
            visited.add(place)
            if page.following in visited:
                raise self._bad_answer("a list that does not advance")
            place = page.following

    def _page(self, request: ListRequest, values: Mapping[str, Any], place: Place) -> ListPage:
        response = self._send(request, values, request.next, place)
        payload = json_value(response, product=self._options.product)
        records = value_at(request.records, payload)
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            content = f"an answer without a list of records at {request.records}"
            raise self._bad_answer(f"{content} (it has {_shape(payload)})")
        paging = request.next
        total = value_at(paging.total, payload) if paging else None
        return ListPage(
            records=records,
            place=place,
            following=self._following(paging, payload, response, place, len(records)) if paging else None,
            total=total if isinstance(total, int) else None,
        )

    def _following(
        self, paging: Paging, payload: Any, response: requests.Response, place: Place, count: int
    ) -> Place:
        """Position of the page behind an answer; None at the end."""
        more = value_at(paging.more, payload) if paging.more else None
        if paging.more and not more:
            return None
        if paging.counts:
            return _next_number(paging, value_at(paging.total, payload), place, count)
        following = (
            value_at(paging.cursor, payload)
            if paging.cursor
            else self._next_address(paging, payload, response)
        )
        if following in (None, "", False):
            if more:
                raise self._bad_answer("a list with a further page, but without its position")
            return None
        if isinstance(following, bool) or not isinstance(following, str | int):
            raise self._bad_answer("a position of the next page that is neither text nor number")
        return following

    def _next_address(self, paging: Paging, payload: Any, response: requests.Response) -> str | None:
        address = response.links.get("next", {}).get("url") if paging.link else value_at(paging.url, payload)
        return self._relative(response, address) if address else None

    def _relative(self, response: requests.Response, link: Any) -> str:
        """Path and query of an address from an answer, without our key; one of another server stays whole."""
        url = urlsplit(urljoin(response.url, str(link)))
        key = self._options.query.name if self._options.query else None
        query = urlencode([pair for pair in parse_qsl(url.query, keep_blank_values=True) if pair[0] != key])
        is_local = self._options.access.origin.holds(url.geturl())
        return url._replace(
            query=query, fragment="", **({"scheme": "", "netloc": ""} if is_local else {})
        ).geturl()

    def _send(
        self, request: Request, values: Mapping[str, Any], paging: Paging | None = None, place: Place = None
    ) -> requests.Response:
        """The answer to a request, with status 2xx."""
        if paging and (paging.url or paging.link) and isinstance(place, str):
            return self._checked(self._session.get(urljoin(f"{self._base}/", place)))
        place = _first_number(paging) if place is None else place
        values = {**self._options.values, **values, "next": place}
        params = filled_in(request.params, values)
        if paging and paging.param and place is not None:
            params[paging.param] = place
        body = None if request.body is None else filled_in(request.body, values)
        url = f"{self._base}/{filled(request.path, values, in_path=True).lstrip('/')}"
        return self._checked(self._session.request(request.method, url, params=_texts(params), json=body))

    def _checked(self, response: requests.Response) -> requests.Response:
        self._service_time = http_date(response.headers.get("Date", ""))
        options, status = self._options, response.status_code
        if options.busy and response.content:
            self._check_busy(response)
        if response.ok:
            return response
        path = urlsplit(response.url).path
        if status in MISSING:
            fix = "check the path, and whether the account may see it; records that are missing were removed"
            raise RestMissing(f"{options.product} answered {status} to {path}", fix=fix)
        fix = "check the parameters, and the rights of the account"
        raise RestRefused(f"{options.product} answered {status} to {path}", fix=fix)

    def _check_busy(self, response: requests.Response) -> None:
        if value_at(self._options.busy, json_value(response, product=self._options.product)):
            message = f"{self._options.product} asks to come later"
            raise RateLimited(message, fix="nothing to do: it is tried again", retry_after=RATE_LIMIT_SECONDS)

    def _bad_answer(self, content: str) -> BadAnswer:
        return BadAnswer(
            f"{self._options.product} gave {content}", fix=f"check list.records and list.next; {LASTS}"
        )


def _first_number(paging: Paging | None) -> int | None:
    return paging.number or 0 if paging and paging.counts else None


def _next_number(paging: Paging, total: Any, place: Place, count: int) -> int | None:
    """Number or offset of the page behind one with `count` records; None at the end."""
    at = place if isinstance(place, int) else paging.number or 0
    is_end = paging.offset and isinstance(total, int) and at + count >= total
    return None if is_end or not count else at + (count if paging.offset else 1)


def _shape(payload: Any) -> str:
    """What an answer is: the names of its members, as far as they are plain names, or that it is a list."""
    if isinstance(payload, dict):
        names = [name for name in payload if _PLAIN_NAME.fullmatch(name)][:MOST_NAMES]
        return ", ".join(names) or "no members"
    return "a list" if isinstance(payload, list) else "neither members nor a list"


def _texts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as services read them: true and false in lower case."""
    texts: Callable[[Any], Any] = lambda value: str(value).lower() if isinstance(value, bool) else value  # noqa: E731
    return {
        key: [*map(texts, value)] if isinstance(value, list) else texts(value)
        for key, value in params.items()
    }
