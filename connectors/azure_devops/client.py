"""Client of Azure DevOps Boards: queries (WIQL), work items, the revision feed, comments."""

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
"""Most ids of a request; the service refuses more."""
FEED_PAGE = 1000
COMMENTS_PAGE = 200
FEED_FIELDS = ("System.Id", "System.IsDeleted")
LARGEST_ID = 2**31 - 1
MOST_HITS = 20_000
"""Most hits of a query; more are an error. A range of this many ids cannot exceed it."""
_TIME_OF_DAY = re.compile(r"""['"]\s*\d{4}-\d{1,2}-\d{1,2}[T ]\s*\d{1,2}:""")


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """One answer of the revision feed."""

    deleted: Mapping[int, bool]
    """Changed item -> whether its newest revision is a deletion."""
    token: str | None
    """Token of the position after this page, valid for months."""
    last: bool
    """True if the feed ends here."""


class BoardsClient:
    """Client of one organization or collection. Raises errors of pipeline.errors only; not thread-safe."""

    def __init__(self, options: AzureDevOpsOptions) -> None:
        self._options = options

    def now(self, project: str) -> datetime:
        """Time of the service, from a query without hits."""
        wiql = select([f"[System.TeamProject] = {quoted(project)}", "[System.Id] < 1"])
        answer = self._query(project, wiql)
        if not isinstance(answer.as_of, datetime):
            raise _bad_answer("a query without its time")
        return answer.as_of

    def query(self, project: str, wiql: str) -> list[int]:
        """Ids of the hits of a query, in its order; `@project` is `project`.

        Raises:
            TooManyHits: there are more than the service lists at once (20,000).
            WiqlRefused: the query is invalid.
        """
        answer = self._query(project, wiql)
        if not isinstance(answer.work_items, list):
            raise _bad_answer("a query without its list of items")
        ids = [whole_number(item.id) for item in answer.work_items if item is not None]
        return [item_id for item_id in ids if item_id is not None]

    def items(self, ids: Sequence[int], fields: Sequence[str] = ()) -> dict[int, WorkItem]:
        """At most BATCH items with these fields, or with all fields and relations; unreadable items are absent."""
        selection: dict[str, Any] = {"fields": list(fields)} if fields else {"expand": "all"}
        request = sdk_models().WorkItemBatchGetRequest(ids=list(ids), error_policy="omit", **selection)
        answer = self._call("reading work items", "get_work_items_batch", request)
        if not isinstance(answer, list):
            raise _bad_answer("a batch without its list")
        requested_ids = set(ids)
        try:
            # Unreadable items are null in the list.
            read = [
                _work_item(item) for item in answer if item is not None and whole_number(item.id) is not None
            ]
        except (AttributeError, TypeError, ValueError):
            raise _bad_answer("a work item in an unknown format") from None
        return {item.id: item for item in read if item.id in requested_ids}

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        """The newest revision of each item changed after `token` or since `start`, with deleted items.

        Raises:
            BadAnswer: the answer is no page of the feed, or does not advance from `token`.
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
        # The library leaves the attributes empty; the values are among the additional properties.
        answer = _additional_properties(batch)
        values, after, last = map(answer.get, ("values", "continuationToken", "isLastBatch"))
        if not isinstance(values, list) or not isinstance(last, bool):
            raise _bad_answer("a feed without its list of revisions")
        after = after or token
        if not last and after == token:
            raise _bad_answer("a feed that does not advance")
        rows = [row for v in values if isinstance(v, dict) and isinstance(row := v.get("fields"), dict)]
        deleted = {
            item_id: row.get("System.IsDeleted") is True
            for row in rows
            if (item_id := whole_number(row.get("System.Id"))) is not None
        }
        return FeedPage(deleted=deleted, token=after, last=last)

    def comments(self, project: str, item_id: int) -> list[BoardsComment]:
        """Comments of an item, oldest first, without deleted ones."""
        comments: list[BoardsComment] = []
        token, used_tokens = None, set[str]()
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
                raise _bad_answer("comments without their list")
            comments += [_comment(c) for c in answer.comments if c is not None and not c.is_deleted]
            token = answer.continuation_token
            if not token or token in used_tokens:
                return comments[::-1]
            used_tokens.add(token)

    def types(self, project: str) -> list[str]:
        """Names of the work item types of a project."""
        types = self._call("listing work item types", "get_work_item_types", project)
        return [scalar_text(kind.name) for kind in types]

    @cached_property
    def _library(self) -> Any:
        return open_library(self._options.organization, secret_value(self._options.pat), self._options.access)

    def _call(self, doing: str, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = getattr(self._library, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (an unexpected answer makes the library raise any error)
            raise translated(error, doing) from None
        if answer is None:
            raise _bad_answer("an empty answer")
        return answer

    def _query(self, project: str, wiql: str) -> Any:
        return self._call(
            f"asking for work items of {project}",
            "query_by_wiql",
            sdk_models().Wiql(query=wiql),
            team_context=sdk_models().TeamContext(project=project),
            # A date with a time of day is accepted only with this parameter.
            time_precision=True if _TIME_OF_DAY.search(wiql) else None,
        )


def _additional_properties(sdk_object: Any) -> Mapping[str, Any]:
    """Values of an answer for which the library has no attributes."""
    return getattr(sdk_object, "additional_properties", None) or {}


def _work_item(item: Any) -> WorkItem:
    formats = _additional_properties(item).get("multilineFieldsFormat")
    html = _additional_properties(item._links).get("html")  # noqa: SLF001 (the library's name for it)
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
    creator = comment.created_by
    return BoardsComment(
        author=person({"displayName": creator.display_name, "uniqueName": creator.unique_name})
        if creator
        else "",
        at=parse_time(comment.created_date),
        text=scalar_text(comment.text),
        markdown=scalar_text(comment.format).lower() == "markdown",
    )


def _bad_answer(content: str) -> BadAnswer:
    return BadAnswer(f"{PRODUCT} gave {content}", fix=LASTS)


# -- WIQL ------------------------------------------------------------------------------------------------


def quoted(*texts: str) -> str:
    """Text values quoted for a query, separated by commas."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def select(conditions: Sequence[str]) -> str:
    """Query for the ids of all items that meet every condition, ascending."""
    return f"SELECT [System.Id] FROM WorkItems WHERE {' AND '.join(conditions)} ORDER BY [System.Id] ASC"


def id_in(ids: Sequence[int]) -> str:
    """Query condition for one of these ids."""
    return f"[System.Id] IN ({', '.join(map(str, ids))})"


def id_ranges(find: Callable[[Sequence[str]], list[int]], above: int) -> Iterator[list[int]]:
    """All ids above `above`, ascending, a list per query, to the last id.

    `find` runs the query with further conditions. One query is usually enough. If it has too many hits, a closed
    range of ids is queried, then the open range above it.

    Raises:
        TooManyHits: even for a single id.
    """
    width, closed = MOST_HITS, False
    while True:
        upto = min(above + width, LARGEST_ID)
        try:
            ids = find([f"[System.Id] > {above}", *([f"[System.Id] <= {upto}"] if closed else [])])
        except TooManyHits:
            if closed and width <= 1:
                raise
            width, closed = (width // 2 if closed else width), True
            continue
        yield sorted(ids)
        if not closed:
            return
        # The next range is twice as wide, because ids may belong to other projects.
        above, width, closed = upto, width * 2, False
