"""The client of Azure DevOps Boards: queries (WIQL), work items, the revision feed, comments, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from connectors.azure_devops.document import BoardsComment, Relation, WorkItem, person
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions, base_url_of
from connectors.azure_devops.sdk import SdkClients, open_clients, sdk_models
from connectors.documents.values import parse_time, scalar_text
from connectors.sections import revealed
from connectors.web import FOREIGN, translate
from connectors.web.faults import LASTS
from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    RateLimited,
    SourceDenied,
    SourceUnavailable,
)

BATCH = 200
"""Ids per call; the service refuses more."""
FEED_PAGE = 1000
COMMENTS_PAGE = 200
FEED_FIELDS = ("System.Id", "System.IsDeleted")
LARGEST_ID = 2**31 - 1
MOST_HITS = 20_000
"""A query with more hits is an error. That many consecutive ids cannot exceed it."""
_GUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
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
        self.base_url = base_url_of(options.organization)
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
        return [item.id for item in answer.work_items if item is not None and isinstance(item.id, int)]

    def items(self, ids: Sequence[int], fields: Sequence[str] = ()) -> dict[int, WorkItem]:
        """At most BATCH items with these fields only, or with all and their relations; unreadable ones are absent."""
        what: dict[str, Any] = {"fields": list(fields)} if fields else {"expand": "all"}
        request = sdk_models().WorkItemBatchGetRequest(ids=list(ids), error_policy="omit", **what)
        found = self._call("reading work items", "get_work_items_batch", request)
        if not isinstance(found, list):
            raise _shapeless("a batch without its list")
        wanted = set(ids)
        # Unreadable ones are null at their place.
        return {item.id: _work_item(item) for item in found if item is not None and item.id in wanted}

    def feed(self, project: str, *, token: str | None = None, start: datetime | None = None) -> FeedPage:
        """The newest revision of each item, deleted ones too, that changed behind `token`, or since `start`.

        Raises:
            SourceUnavailable: the answer is no such page, or does not move on from `token`.
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
        return _feed_page(batch.additional_properties or {}, token)

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

    def project_name(self, project: str) -> str:
        """The name of a project that may be given by its id; queries take names only."""
        if not _GUID.fullmatch(project.strip()):
            return project.strip()
        answer = self._call("reading the project", "get_project", project.strip(), of=self._clients.core)
        return scalar_text(answer.name)

    @cached_property
    def _clients(self) -> SdkClients:
        return open_clients(self.base_url, revealed(self._options.pat), self._options.access)

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
            sdk_models().Wiql(query=wiql),
            team_context=sdk_models().TeamContext(project=project),
            # A date with a time of day is accepted only if this is said beside the query.
            time_precision=True if _TIME_OF_DAY.search(wiql) else None,
        )


def _feed_page(answer: Mapping[str, Any], asked: str | None) -> FeedPage:
    values, token, last = map(answer.get, ("values", "continuationToken", "isLastBatch"))
    if not isinstance(values, list) or not isinstance(last, bool):
        raise _shapeless("a feed without its list of revisions")
    token = token if isinstance(token, str) else ""
    if not last and token in ("", asked):
        raise _shapeless("a feed that does not move on")
    found = (value.get("fields") for value in values if isinstance(value, dict))
    rows = [dict(row) for row in found if isinstance(row, dict)]
    deleted = {row["System.Id"]: row.get("System.IsDeleted") is True for row in rows if "System.Id" in row}
    return FeedPage(deleted=deleted, token=token or asked, last=last)


def _work_item(item: Any) -> WorkItem:
    formats = (item.additional_properties or {}).get("multilineFieldsFormat")
    links = getattr(item._links, "additional_properties", None) or {}  # noqa: SLF001 (the library's name for it)
    html = links.get("html")
    return WorkItem(
        id=item.id,
        rev=item.rev if isinstance(item.rev, int) else 0,
        fields=item.fields or {},
        relations=tuple(map(_relation, item.relations or ())),
        formats={k: str(v).lower() for k, v in formats.items()} if isinstance(formats, Mapping) else {},
        page=scalar_text(html.get("href")) if isinstance(html, Mapping) else "",
    )


def _relation(link: Any) -> Relation:
    return Relation(kind=scalar_text(link.rel), url=scalar_text(link.url), attributes=link.attributes or {})


def _comment(comment: Any) -> BoardsComment:
    by = comment.created_by
    return BoardsComment(
        author=person({"displayName": by.display_name, "uniqueName": by.unique_name}) if by else "",
        at=parse_time(comment.created_date),
        text=scalar_text(comment.text),
        markdown=scalar_text(comment.format).lower() == "markdown",
    )


def _shapeless(what: str) -> SourceUnavailable:
    return SourceUnavailable(f"{PRODUCT} gave {what}", fix=LASTS)


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
    width = MOST_HITS
    while True:
        try:
            yield sorted(find([f"[System.Id] > {above}"]))
        except TooManyHits:
            pass
        else:
            return
        found, width = _range(find, above, width)
        above += width
        yield found
        if len(found) < MOST_HITS // 2:  # sparse: other projects have the ids in between
            width *= 2


def _range(find: Callable[[Sequence[str]], list[int]], above: int, width: int) -> tuple[list[int], int]:
    """The ids of the next range, and how wide it could be."""
    while True:
        upto = min(above + width, LARGEST_ID)
        try:
            return sorted(find([f"[System.Id] > {above}", f"[System.Id] <= {upto}"])), width
        except TooManyHits:
            if width <= 1:
                raise
            width //= 2


# -- errors ----------------------------------------------------------------------------------------------

LONGEST_MESSAGE = 300
BLOCKED_SECONDS = 30.0
TOKEN = "check auth.pat: the token may be wrong, expired or revoked"  # noqa: S105 (advice, no token)
SCOPE = (
    "give the token the scope Work Items (read), and its account the right to view the project's work items"
)
ADDRESS = "check organization: the name as in https://dev.azure.com/NAME, or the full address of a collection"
PROJECT = "check project: its name as the address shows it, and whether the token's account is a member"
VERSION = "use Azure DevOps Services, or a Server of version 2020 or newer"
_CODE = re.compile(r"\b(?:TF|VS)\d{4,7}\b")
_STATUS = re.compile(r"Operation returned a (\d{3}) status code")


class WorkItemMissing(DocumentRejected):
    """The item does not exist, is deleted, or may not be read: the service does not say which."""


class TooManyHits(ConfigurationError):
    """A query hits more items than the service lists."""


class WiqlRefused(ConfigurationError):
    """The service does not take a query."""


class ProjectMissing(SourceDenied):
    """There is no such project, or the account may not see it."""


class BoardsRefused(SourceDenied):
    """The service refuses a request for a reason of its own."""


Row = tuple[type[LarderError], str, str]
"""Our error, what was found, what to do."""

_CREDENTIALS: Row = (SourceDenied, "does not accept the credentials", TOKEN)
_BROKEN: Row = (SourceUnavailable, "gave an answer that cannot be read", LASTS)
_MEANINGS: dict[Row, tuple[str, ...]] = {
    (WorkItemMissing, "does not show the item", SCOPE): (
        "WorkItemUnauthorizedAccessException", "WorkItemNotFoundException",
    ),
    (TooManyHits, "finds more items than it lists", "narrow the selection"): (
        "WorkItemTrackingQueryResultSizeLimitExceededException",
    ),
    (RateLimited, "asks to come back later", "nothing to do: it is tried again"): ("RequestBlockedException",),
    (ProjectMissing, "does not know the project", PROJECT): (
        "ProjectDoesNotExistWithNameException", "ProjectDoesNotExistException",
    ),
    (BoardsRefused, "does not offer this version of its interface", VERSION): (
        "VssInvalidPreviewVersionException", "VssVersionOutOfRangeException",
    ),
    (SourceDenied, "does not let this account or token do it", SCOPE): (
        "UnauthorizedRequestException", "AccessCheckException", "UnauthorizedAccessException",
    ),
    _CREDENTIALS: (
        "azure.devops.exceptions.AzureDevOpsAuthenticationError", "msrest.exceptions.AuthenticationError",
        "msrest.exceptions.TokenExpiredError",
    ),
    (BoardsRefused, "refuses the request", "look up the code; check organization, project and the settings"): (
        "azure.devops.exceptions.AzureDevOpsClientRequestError",
        "azure.devops.exceptions.AzureDevOpsServiceError", "msrest.exceptions.ValidationError",
        "azure.core.exceptions.SerializationError",
    ),
    (SourceUnavailable, "could not be asked", LASTS): (
        "azure.devops.exceptions.AzureDevOpsClientError", "msrest.exceptions.ClientRequestError",
        "msrest.exceptions.ClientException", "msrest.exceptions.HttpOperationError",
    ),
    _BROKEN: (  # the library walks into an answer of another shape
        "azure.core.exceptions.DeserializationError", "json.decoder.JSONDecodeError", "builtins.ValueError",
        "builtins.AttributeError", "builtins.TypeError", "builtins.LookupError",
    ),
}  # fmt: skip
FOREIGN_ERRORS = {name: row for row, names in _MEANINGS.items() for name in names}
"""What an error of the library means: by its `type_key`, since the library drops the HTTP status, or by its class,
whose nearest base class counts. Names, so that the library needs no import here."""


def translated(error: Exception, doing: str) -> LarderError:
    """Our error for whatever a call of the library raised; `doing` tells what was asked for.

    The original is not kept as the cause: it cannot be pickled, and its text may hold addresses and answers.
    """
    if isinstance(error, LarderError):
        return error
    for cause in (error, getattr(error, "inner_exception", None)):
        if isinstance(cause, FOREIGN):
            return translate(cause, PRODUCT)
    kind, found, fix = _row(error)
    said = f"{PRODUCT} {found} ({doing})"
    if kind is WiqlRefused:  # tells where the query is wrong; holds nothing but the query
        said += f": {' '.join(str(error).split())[:LONGEST_MESSAGE]}"
    elif code := _CODE.search(str(error)):
        said += f": {code[0]}"
    elif kind is BoardsRefused and getattr(error, "type_key", None):
        said += f": {str(getattr(error, 'type_key', ''))[:80]}"
    return kind(said, fix=fix, retry_after=BLOCKED_SECONDS if kind is RateLimited else None)


def _row(error: Exception) -> Row:
    key, text = getattr(error, "type_key", None), str(error)
    if key in FOREIGN_ERRORS:
        return FOREIGN_ERRORS[key]
    if key is not None and ("Query" in key or text.startswith("TF51")):
        return (WiqlRefused, "does not take the query", "check wiql, areaPaths, states and workItemTypes")
    if "is not registered on" in text or _STATUS.search(text):
        return _row_of_status(text)
    if "Cannot deserialize content-type" in text:  # a sign-in page, as the library sees it
        return _CREDENTIALS
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    return next((FOREIGN_ERRORS[name] for name in names if name in FOREIGN_ERRORS), _BROKEN)


def _row_of_status(text: str) -> Row:
    """For an answer without an error object in it: another server, or a gateway."""
    status = _STATUS.search(text)
    if status and status[1] in {"401", "403"}:
        return (SourceDenied, f"answered {status[1]}", f"{TOKEN}; {SCOPE}")
    if status and status[1] not in {"400", "404", "405", "410"}:
        return (SourceUnavailable, f"answered {status[1]}", LASTS)
    return (BoardsRefused, "does not offer work items at this address", ADDRESS)
