"""The client of Azure DevOps Boards: queries (WIQL), work items, the revision feed, comments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from connectors.azure_devops.document import BoardsComment, Relation, WorkItem, person, whole_number
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions
from connectors.azure_devops.sdk import TooManyHits, open_library, sdk_models, translated
from connectors.documents.values import parse_time, scalar_text
from connectors.sections import secret_value
from connectors.web.answers import LASTS, BadAnswer

BATCH = 200
"""Ids per call; the service refuses more."""
FEED_PAGE = 1000
COMMENTS_PAGE = 200
FEED_FIELDS = ("System.Id", "System.IsDeleted")
LARGEST_ID = 2**31 - 1
MOST_HITS = 20_000
"""A query with more hits is an error. That many consecutive ids cannot exceed it."""
_TIME_OF_DAY = re.compile(r"""['"]\s*\d{4}-\d{1,2}-\d{1,2}[T ]\s*\d{1,2}:""")


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """One answer of the feed of revisions."""

    deleted: Mapping[int, bool]
    """Of each item that changed, by its newest revision."""
    token: str | None
    """Where the feed goes on, also months later."""
    last: bool


class BoardsClient:
    """One organization or collection. Raises errors of pipeline.errors only; not thread-safe."""

    def __init__(self, options: AzureDevOpsOptions) -> None:
        self._options = options

    def now(self, project: str) -> datetime:
        """The service's own time, from a query without hits."""
        nothing = select([f"[System.TeamProject] = {quoted(project)}", "[System.Id] < 1"])
        answer = self._query(project, nothing)
        if not isinstance(answer.as_of, datetime):
            raise _shapeless("a query without its time")
        return answer.as_of

    def query(self, project: str, wiql: str) -> list[int]:
        """The ids that a query finds, in its order; `@project` is `project`.

        Raises:
            TooManyHits: more than the service lists at once (20,000).
            WiqlRefused: the query is wrong.
        """
        answer = self._query(project, wiql)
        if not isinstance(answer.work_items, list):
            raise _shapeless("a query without its list of items")
        ids = [whole_number(item.id) for item in answer.work_items if item is not None]
        return [one for one in ids if one is not None]

    def items(self, ids: Sequence[int], fields: Sequence[str] = ()) -> dict[int, WorkItem]:
        """At most BATCH items with these fields only, or with all and their relations; unreadable ones are absent."""
        what: dict[str, Any] = {"fields": list(fields)} if fields else {"expand": "all"}
        request = sdk_models().WorkItemBatchGetRequest(ids=list(ids), error_policy="omit", **what)
        found = self._call("reading work items", "get_work_items_batch", request)
        if not isinstance(found, list):
            raise _shapeless("a batch without its list")
        wanted = set(ids)
        try:
            # Unreadable ones are null at their place.
            read = [
                _work_item(item) for item in found if item is not None and whole_number(item.id) is not None
            ]
        except (AttributeError, TypeError, ValueError):
            raise _shapeless("a work item of another shape") from None
        return {item.id: item for item in read if item.id in wanted}

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        """The newest revision of each item, deleted ones too, that changed behind `token`, or since `start`.

        Raises:
            BadAnswer: the answer is no such page, or does not move on from `token`.
        """
        batch = self._call(
            "reading the revision feed",
            "read_reporting_revisions_get",
            project=project,
            fields=list(FEED_FIELDS),
            continuation_token=token,
            start_date_time=None if token else start,
            include_deleted=True,
            include_latest_only=True,
            max_page_size=FEED_PAGE,
        )
        # The library's own attributes stay empty; what came is among the additional properties.
        answer = _more(batch)
        values, after, last = map(answer.get, ("values", "continuationToken", "isLastBatch"))
        if not isinstance(values, list) or not isinstance(last, bool):
            raise _shapeless("a feed without its list of revisions")
        after = after or token
        if not last and after == token:
            raise _shapeless("a feed that does not move on")
        rows = [row for v in values if isinstance(v, dict) and isinstance(row := v.get("fields"), dict)]
        deleted = {
            one: row.get("System.IsDeleted") is True
            for row in rows
            if (one := whole_number(row.get("System.Id"))) is not None
        }
        return FeedPage(deleted=deleted, token=after, last=last)

    def comments(self, project: str, item_id: int) -> list[BoardsComment]:
        """All comments of an item, oldest first, without deleted ones."""
        found: list[BoardsComment] = []
        token, seen = None, set[str]()
        while True:
            answer = self._call(
                "reading comments",
                "get_comments",
                project=project,
                work_item_id=item_id,
                top=COMMENTS_PAGE,
                continuation_token=token,
                order="desc",
            )
            if not isinstance(answer.comments, list):
                raise _shapeless("comments without their list")
            found += [_comment(c) for c in answer.comments if c is not None and not c.is_deleted]
            token = answer.continuation_token
            if not token or token in seen:
                return found[::-1]
            seen.add(token)

    def types(self, project: str) -> list[str]:
        """The names of the work item types of a project."""
        found = self._call("listing work item types", "get_work_item_types", project)
        return [scalar_text(kind.name) for kind in found]

    @cached_property
    def _library(self) -> Any:
        return open_library(self._options.organization, secret_value(self._options.pat), self._options.access)

    def _call(self, doing: str, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = getattr(self._library, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (the library raises whatever an answer makes it stumble over)
            raise translated(error, doing) from None
        if answer is None:
            raise _shapeless("an empty answer")
        return answer

    def _query(self, project: str, wiql: str) -> Any:
        return self._call(
            f"asking for work items of {project}",
            "query_by_wiql",
            sdk_models().Wiql(query=wiql),
            team_context=sdk_models().TeamContext(project=project),
            # A date with a time of day is accepted only if this is said beside the query.
            time_precision=True if _TIME_OF_DAY.search(wiql) else None,
        )


def _more(thing: Any) -> Mapping[str, Any]:
    """What the library gives without attributes of its own."""
    return getattr(thing, "additional_properties", None) or {}


def _work_item(item: Any) -> WorkItem:
    formats = _more(item).get("multilineFieldsFormat")
    html = _more(item._links).get("html")  # noqa: SLF001 (the library's name for it)
    return WorkItem(
        id=whole_number(item.id) or 0,
        rev=whole_number(item.rev) or 0,
        fields=item.fields or {},
        relations=tuple(
            Relation(kind=scalar_text(link.rel), url=scalar_text(link.url), attributes=link.attributes or {})
            for link in item.relations or ()
        ),
        formats={k: str(v).lower() for k, v in formats.items()} if isinstance(formats, Mapping) else {},
        page=scalar_text(html.get("href")) if isinstance(html, Mapping) else "",
    )


def _comment(comment: Any) -> BoardsComment:
    by = comment.created_by
    return BoardsComment(
        author=person({"displayName": by.display_name, "uniqueName": by.unique_name}) if by else "",
        at=parse_time(comment.created_date),
        text=scalar_text(comment.text),
        markdown=scalar_text(comment.format).lower() == "markdown",
    )


def _shapeless(what: str) -> BadAnswer:
    return BadAnswer(f"{PRODUCT} gave {what}", fix=LASTS)


# -- WIQL ------------------------------------------------------------------------------------------------


def quoted(*texts: str) -> str:
    """Text values as a query spells them, separated by commas."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def select(conditions: Sequence[str]) -> str:
    """The query for the ids of all items that fulfil every condition, ascending."""
    return f"SELECT [System.Id] FROM WorkItems WHERE {' AND '.join(conditions)} ORDER BY [System.Id] ASC"


def id_in(ids: Sequence[int]) -> str:
    """The condition to be one of these."""
    return f"[System.Id] IN ({', '.join(map(str, ids))})"


def id_ranges(find: Callable[[Sequence[str]], list[int]], above: int) -> Iterator[list[int]]:
    """All ids above `above`, ascending, in as many queries as needed; ends only at the proven end.

    `find` runs the query with these further conditions. Usually one query is enough. If it has too many hits, a
    closed range of ids is asked for instead, then the open rest again.

    Raises:
        TooManyHits: even for a single id.
    """
    width, closed = MOST_HITS, False
    while True:
        upto = min(above + width, LARGEST_ID)
        try:
            found = find([f"[System.Id] > {above}", *([f"[System.Id] <= {upto}"] if closed else [])])
        except TooManyHits:
            if closed and width <= 1:
                raise
            width, closed = (width // 2 if closed else width), True
            continue
        yield sorted(found)
        if not closed:
            return
        # Twice as wide for next time: other projects may have the ids in between.
        above, width, closed = upto, width * 2, False
