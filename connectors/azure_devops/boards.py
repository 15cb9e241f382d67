"""The calls we make to Azure DevOps Boards, their answers proven and made plain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from connectors.azure_devops.faults import translated
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions, base_url_of
from connectors.azure_devops.sdk import Clients, models, open_clients
from connectors.azure_devops.wiql import nothing, timed
from connectors.azure_devops.work_item import Comment, Relation, WorkItem, person
from connectors.documents.values import parse_time, scalar_text
from connectors.web.faults import LASTS
from pipeline.errors import SourceUnavailable

BATCH = 200
"""Ids per call; more are refused."""

FEED_PAGE = 1000
COMMENTS_PAGE = 200
FEED_FIELDS = ("System.Id", "System.Rev", "System.IsDeleted")
_GUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Change:
    """An item in the feed of revisions."""

    id: int
    rev: int
    deleted: bool


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """A stretch of the feed; `token` is where it goes on, now or in a month."""

    changes: tuple[Change, ...]
    token: str | None
    last: bool


class Boards:
    """One organization or collection. Raises errors of pipeline.errors only; not for several threads."""

    def __init__(self, options: AzureDevOpsOptions) -> None:
        self.base_url = base_url_of(options.organization)
        self._options = options
        self._names: dict[str, str] = {}

    def now(self, project: str) -> datetime:
        """The service's own time, by a query that finds nothing."""
        answer = self._query(project, nothing(project))
        if not isinstance(answer.as_of, datetime):
            raise _shapeless("a query without its time")
        return answer.as_of

    def query(self, project: str, wiql: str) -> list[int]:
        """The ids that a query finds, in its order; `@project` is `project`.

        Raises:
            TooManyHits: more than the service lists at once (20,000).
            QueryRefused: the query is wrong.
        """
        answer = self._query(project, wiql)
        if not isinstance(answer.work_items, list):
            raise _shapeless("a query without its list of items")
        return [item.id for item in answer.work_items if item is not None and isinstance(item.id, int)]

    def items(self, ids: Sequence[int]) -> dict[int, WorkItem]:
        """At most BATCH items with all fields and relations; what cannot be read is absent."""
        return self._batch(ids, expand="all")

    def heads(self, ids: Sequence[int], fields: Sequence[str]) -> dict[int, WorkItem]:
        """At most BATCH items with these fields and nothing else; what cannot be read is absent."""
        return self._batch(ids, fields=list(fields))

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        """The newest revision of each item that changed behind `token`, or since `start`; deleted ones too."""
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
        return feed_page(dict(batch.additional_properties or {}), asked=token)

    def comments(self, project: str, item_id: int) -> list[Comment]:
        """All of an item, oldest first."""
        found: list[Comment] = []
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
        return [
            scalar_text(t.name) for t in self._call("listing work item types", "get_work_item_types", project)
        ]

    def project_name(self, project: str) -> str:
        """The name of a project that may be given by its id: queries take names only."""
        if not _GUID.fullmatch(project.strip()):
            return project.strip()
        if project not in self._names:
            answer = self._call("reading the project", "get_project", project.strip(), of=self._clients.core)
            self._names[project] = scalar_text(answer.name)
        return self._names[project]

    @cached_property
    def _clients(self) -> Clients:
        return open_clients(self.base_url, self._options.pat, self._options.access)

    def _call(self, doing: str, method: str, *args: Any, of: Any = None, **kwargs: Any) -> Any:
        client = of or self._clients.work
        try:
            answer = getattr(client, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (the library raises whatever an answer makes it stumble over)
            raise translated(error, doing) from None
        if answer is None:
            raise _shapeless("an empty answer")
        return answer

    def _query(self, project: str, wiql: str) -> Any:
        return self._call(
            f"asking for work items of {project}",
            "query_by_wiql",
            models().Wiql(query=wiql),
            team_context=models().TeamContext(project=project),
            time_precision=True if timed(wiql) else None,
        )

    def _batch(self, ids: Sequence[int], **what: Any) -> dict[int, WorkItem]:
        request = models().WorkItemBatchGetRequest(ids=list(ids), error_policy="omit", **what)
        found = self._call("reading work items", "get_work_items_batch", request)
        if not isinstance(found, list):
            raise _shapeless("a batch without its list")
        wanted = set(ids)
        # Unreadable ones are null at their place.
        return {item.id: _work_item(item) for item in found if item is not None and item.id in wanted}


def feed_page(answer: Mapping[str, Any], *, asked: str | None) -> FeedPage:
    """A stretch of the feed out of the JSON that came.

    Raises:
        SourceUnavailable: it is no such stretch, or does not move on from the token it was asked for.
    """
    values, token, last = (answer.get(key) for key in ("values", "continuationToken", "isLastBatch"))
    if not isinstance(values, list) or not isinstance(last, bool):
        raise _shapeless("a feed without its list of revisions")
    token = token if isinstance(token, str) and token else None
    if not last and (token is None or token == asked):
        raise _shapeless("a feed that does not move on")
    changes = [_change(value) for value in values if isinstance(value, Mapping)]
    return FeedPage(changes=tuple(c for c in changes if c), token=token or asked, last=last)


def _change(value: Mapping[str, Any]) -> Change | None:
    fields = value.get("fields")
    fields = fields if isinstance(fields, Mapping) else {}
    item_id, rev = value.get("id", fields.get("System.Id")), value.get("rev", fields.get("System.Rev"))
    if not isinstance(item_id, int) or not isinstance(rev, int):
        return None
    return Change(id=item_id, rev=rev, deleted=fields.get("System.IsDeleted") is True)


def _work_item(item: Any) -> WorkItem:
    more = item.additional_properties or {}
    formats = more.get("multilineFieldsFormat")
    links = getattr(item._links, "additional_properties", None) or {}  # noqa: SLF001 (the library's name for it)
    html = links.get("html")
    return WorkItem(
        id=item.id,
        rev=item.rev if isinstance(item.rev, int) else 0,
        fields=item.fields or {},
        relations=tuple(
            Relation(kind=scalar_text(r.rel), url=scalar_text(r.url), attributes=r.attributes or {})
            for r in item.relations or ()
        ),
        formats={k: str(v).lower() for k, v in formats.items()} if isinstance(formats, Mapping) else {},
        page=scalar_text(html.get("href")) if isinstance(html, Mapping) else "",
    )


def _comment(comment: Any) -> Comment:
    by = comment.created_by
    return Comment(
        author=person({"displayName": by.display_name, "uniqueName": by.unique_name}) if by else "",
        at=parse_time(comment.created_date),
        text=scalar_text(comment.text),
        markdown=scalar_text(comment.format).lower() == "markdown",
    )


def _shapeless(what: str) -> SourceUnavailable:
    return SourceUnavailable(f"{PRODUCT} gave {what}", fix=LASTS)
