"""Source of Azure DevOps Boards: a first walk by queries, then the revision feed; items are read by ids."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import chain, islice

from connectors.azure_devops.client import (
    BATCH,
    LARGEST_ID,
    BoardsClient,
    id_in,
    id_ranges,
    quoted,
    select,
)
from connectors.azure_devops.document import BoardsComment, WorkItem, document_of
from connectors.azure_devops.options import PRODUCT, AzureDevOpsOptions
from connectors.azure_devops.sdk import SCOPE, BoardsRefused, WorkItemMissing
from connectors.documents.options import cursor_json, read_cursor
from connectors.documents.values import build_document
from connectors.web.answers import LASTS, BadAnswer, ServerFault
from connectors.web.division import Divider, Retries, culprit, due, may_be_item_fault, updated_retries
from pipeline.documents import Cursor, Document, Finding, Listing, Page, Problem
from pipeline.documents.plain_text import plural
from pipeline.errors import DocumentRejected, LarderError

HEAD_FIELDS = ("System.Id", "System.Rev", "System.Title", "System.WorkItemType", "System.TeamProject")


Result = Document | Problem | None
"""Result of one id: its document, a problem, or None if it does not belong to the source any more."""


class WorkItemReader:
    """Reads the items of one source as documents."""

    def __init__(self, options: AzureDevOpsOptions, client: BoardsClient) -> None:
        self._options = options
        self._client = client

    def results(
        self, ids: Sequence[int], *, queried: bool, divider: Divider | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Each id with its result, in the given order.

        Args:
            ids: of items in any state.
            queried: a query has just returned them, so that the configured condition is not tested again.
            divider: isolates items for which the service fails.
        """
        remaining, divider = iter(dict.fromkeys(ids)), divider or self.divider()
        while batch := list(islice(remaining, BATCH)):
            items, failed = self._load(batch, divider, queried=queried)
            linked_items = self._linked_items(list(items.values()), divider)
            for n in batch:
                if n in items:
                    yield n, self._result(items.pop(n), linked_items, divider)
                else:
                    yield n, failed.get(n)

    def divider(self, *, at_once: bool = True) -> Divider:
        """A new divider, whose probe requests an item that does not exist."""
        return Divider(probe=lambda: self._client.items([LARGEST_ID]), at_once=at_once)

    def fetch(
        self, ids: Sequence[int], divider: Divider, fields: Sequence[str] = ()
    ) -> tuple[dict[int, WorkItem], dict[int, Problem]]:
        """Readable items, with these fields or with all, and problems by id; at most BATCH ids."""
        batches, errors = divider.fetch(ids, lambda part: self._client.items(part, fields))
        return dict(ChainMap(*batches)), {n: self._failure(n, error) for n, error in errors.items()}

    def _result(self, item: WorkItem, linked_items: Mapping[int, WorkItem], divider: Divider) -> Result:
        comments, errors = divider.fetch([item.id], lambda _id: self._comments(item))
        if item.id in errors:
            return self._failure(item.id, errors[item.id], "its list of comments")
        try:
            return build_document(
                lambda: document_of(item, self._options, linked_items, comments[0]), f"work item {item.id}"
            )
        except DocumentRejected as error:  # one item must not stop the others
            return self._failure(item.id, error)

    def _failure(self, item_id: int, error: LarderError | str, subject: str = "it") -> Problem:
        url = f"{self._options.organization}/_workitems/edit/{item_id}"
        if isinstance(error, BadAnswer):
            return culprit(str(item_id), error, url=url, subject=subject)
        return Problem(external_id=str(item_id), reason=str(error), url=url)

    def _load(
        self, ids: Sequence[int], divider: Divider, *, queried: bool
    ) -> tuple[dict[int, WorkItem], dict[int, Problem]]:
        """The items that belong to the source, and the problems of those that could not be read."""
        items, failed = self.fetch(ids, divider)
        # Deleted, destroyed, moved and forbidden items look the same here; queries distinguish them.
        reason = (
            f"{PRODUCT} lists the item, but does not permit to read it; "
            "give the token's account the right to view its area"
        )
        missing = set(ids) - items.keys() - failed.keys()
        failed |= {n: self._failure(n, reason) for n in self._listed(missing, in_project)}
        items = {n: i for n, i in items.items() if belongs(self._options, i)}
        if self._options.wiql.strip() and not queried:
            doubtful = items.keys() - self._listed(items, partial(conditions, self._options))
            # A service with a broken index lists nothing, which does not mean that the condition is false.
            unlisted = doubtful - self._listed(doubtful, in_project)
            reason = f"{PRODUCT} returns the item, but does not list it; it is read again later"
            failed |= {n: self._failure(n, reason) for n in unlisted}
            items = {n: i for n, i in items.items() if n not in doubtful}
        return items, failed

    def _listed(self, ids: Collection[int], conditions_of: Callable[[str], list[str]]) -> set[int]:
        """The ids that meet these conditions in one of the projects, by queries."""
        projects = self._options.projects if ids else ()
        queries = [(project, select([*conditions_of(project), id_in(sorted(ids))])) for project in projects]
        return {n for project, wiql in queries for n in self._client.query(project, wiql)} & set(ids)

    def _linked_items(self, items: Sequence[WorkItem], divider: Divider) -> dict[int, WorkItem]:
        """Items linked from these, if they can be read and are in a configured project, by id."""
        if not self._options.include_links:
            return {}
        found_items = {item.id: item for item in items}
        targets = {r.target for item in items for r in item.shown_relations} - {None, *found_items}
        missing_ids = sorted(n for n in targets if n is not None)
        for start in range(0, len(missing_ids), BATCH):
            found_items |= self.fetch(missing_ids[start : start + BATCH], divider, HEAD_FIELDS)[0]
        names = {project.casefold() for project in self._options.projects}
        return {n: item for n, item in found_items.items() if item.project.casefold() in names}

    def _comments(self, item: WorkItem) -> list[BoardsComment]:
        if not self._options.include_comments or not item.fields.get("System.CommentCount"):
            return []
        try:
            return self._client.comments(item.project, item.id)
        except WorkItemMissing:  # deleted since it was read; the feed will report it
            return []


def in_project(project: str) -> list[str]:
    """Query condition of the items of a project."""
    return [f"[System.TeamProject] = {quoted(project)}"]


def conditions(options: AzureDevOpsOptions, project: str) -> list[str]:
    """Query conditions of the items of this source; without the first, other projects would be included."""
    clauses = in_project(project)
    if options.work_item_types:
        clauses.append(f"[System.WorkItemType] IN ({quoted(*options.work_item_types)})")
    if options.area_paths:
        places = [f"[System.AreaPath] UNDER {quoted(_area(path))}" for path in options.area_paths]
        clauses.append(f"({' OR '.join(places)})")
    if options.states:
        clauses.append(f"[System.State] IN ({quoted(*options.states)})")
    if options.wiql.strip():
        clauses.append(f"({options.wiql.strip()})")
    return clauses


def belongs(options: AzureDevOpsOptions, item: WorkItem) -> bool:
    """Whether an item meets the `conditions`, except the configured `wiql`; upper and lower case are equal."""
    area = item.text("System.AreaPath").casefold() + "\\"
    chosen = (
        (item.project, options.projects),
        (item.type, options.work_item_types),
        (item.text("System.State"), options.states),
    )
    return all(
        not allowed or value.casefold() in {choice.strip().casefold() for choice in allowed}
        for value, allowed in chosen
    ) and (
        not options.area_paths
        or any(area.startswith(_area(path).casefold() + "\\") for path in options.area_paths)
    )


def _area(path: str) -> str:
    r"""An area path as the service writes it: `Shop\Web` for `\Shop\Web\`."""
    return path.strip().replace("/", "\\").strip("\\")


PAGE_ITEMS = 50
BEYOND = "beyond maxItems"
PIECE = 5 * BATCH
"""Items in a piece of the id walk."""
FEED_MARGIN = timedelta(minutes=10)
"""Time before the service's own at which the feed is entered, because clocks of its machines may differ."""

Tokens = Mapping[str, str | None]
"""Tokens of positions in the feeds by project; None is the start of a feed."""


@dataclass(frozen=True, kw_only=True)
class BoardsCursor:
    """Position of a sync, stored with each page to resume from."""

    selection: str
    tokens: Tokens = field(default_factory=dict)
    """Projects after their first walk -> position in their feed."""
    walks: Tokens = field(default_factory=dict)
    """Projects before the end of their first walk -> position in their feed when it began."""
    floor: int | None = None
    """Walks read ids above this one (maxItems); None before the items are counted."""
    project: str = ""
    """Project of the current walk."""
    after: int = 0
    """Last id of `project` that was read."""
    todo: tuple[int, ...] = ()
    """Ids from the feed that were not read yet."""
    stumbled: bool = False
    """True if the previous sync ended with an error at this position that a single item may cause."""
    retries: Retries = field(default_factory=dict)
    """Retries of items for which the service fails."""


Step = Callable[[BoardsCursor, int], BoardsCursor]
Steps = Generator[Page, None, BoardsCursor]


class AzureDevOpsSource:
    """Work items of one or more projects; the external id is the item's id."""

    extractor = "azure_devops-3"
    walks_all = False

    def __init__(self, options: AzureDevOpsOptions, *, client: BoardsClient | None = None) -> None:
        self._options = options
        self._client = client or BoardsClient(options)
        self._reader = WorkItemReader(options, self._client)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of a sync: first all items, by project and ascending id; later the changes in the feeds.

        The cursor of a page resumes after it. Before an error ends a sync, the results so far are yielded.
        """
        selection = self._options.selection_hash
        cursor = read_cursor(BoardsCursor, since, selection) or BoardsCursor(selection=selection)
        # Without projects that are no longer configured.
        projects = self._options.projects
        positions = [{n: at for n, at in t.items() if n in projects} for t in (cursor.tokens, cursor.walks)]
        cursor = replace(cursor, tokens=positions[0], walks=positions[1])
        last_cursor: Cursor = cursor_json(cursor)
        for page in self._steps(cursor):
            if page.cursor != last_cursor or page.documents or page.failed or page.skipped or page.deleted:
                last_cursor = page.cursor
                yield page

    def ids(self, since: Cursor | None = None) -> Listing:
        """Ids of all present items, in pieces by ascending id; the fingerprint of an item is its revision number."""
        listed_ids = sorted(set(self._listed(self._options.projects)))
        floor, after = (since["floor"], since["after"]) if since else (self._floor(listed_ids), 0)
        ids = [n for n in listed_ids if n > max(floor, after)]
        piece, later_ids = ids[:PIECE], ids[PIECE:]
        versions: dict[str, str] = {}
        divider = self._reader.divider()
        for start in range(0, len(piece), BATCH):
            batch = piece[start : start + BATCH]
            items, _ = self._reader.fetch(batch, divider, ("System.Id", "System.Rev"))
            versions |= {str(n): str(item.rev) for n, item in items.items()}
        omitted = sum(n <= floor for n in listed_ids)
        return Listing(
            ids=frozenset(map(str, piece)),
            complete=not omitted,
            versions=versions,
            left_out={BEYOND: omitted} if omitted and not since else {},
            cursor={"floor": floor, "after": piece[-1]} if later_ids else {},
        )

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Read these items; those that no longer exist, or no longer belong to the source, are in `deleted`."""
        numbers = [text for text in ids if text.isdecimal() and text.isascii()]
        if foreign := tuple(text for text in ids if not (text.isdecimal() and text.isascii())):
            yield Page(cursor={}, deleted=foreign)
        results = self._reader.results(list(map(int, numbers)), queried=False)
        for page in self._paged(BoardsCursor(selection=""), results, lambda cursor, _id: cursor):
            yield replace(page, cursor={})

    def check(self) -> list[Finding]:
        """Findings for each project, up to the first error.

        Raises:
            SourceUnavailable: the service cannot be reached, or asks for a pause.
        """
        results: list[Finding] = []
        for project in self._options.projects:
            try:
                for finding in findings(self._options, self._client, project):
                    results.append(finding)  # noqa: PERF402 (findings before an error are kept)
            except LarderError as error:
                # A web page with a 4xx status: a server answers, but not the API.
                refused = isinstance(error, ServerFault) and 400 <= error.status < 500  # noqa: PLR2004 (4xx)
                if error.transient and not refused:
                    raise
                subject = f"project {project}"
                results.append(Finding(ok=False, subject=subject, detail=error.message, fix=error.fix))
        return results

    def stamp(self) -> str | None:
        """Unsupported, returns None: detecting changes costs as much as a sync without changes."""
        return None

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> None:  # noqa: ARG002
        """Unsupported, returns None: the cursor selects the changes."""
        return

    # -- pages -----------------------------------------------------------------------------------------

    def _steps(self, cursor: BoardsCursor) -> Iterator[Page]:
        """All pages of a sync, also those without changes."""
        cursor = yield from self._work_off(cursor)
        # The feeds' positions of new projects are taken before any list: later changes are in the feeds.
        known_projects = {*cursor.tokens, *cursor.walks}
        if new := {
            name: self._feed_end(name) for name in self._options.projects if name not in known_projects
        }:
            cursor = replace(cursor, walks={**cursor.walks, **new})
            yield Page(cursor=cursor_json(cursor))
        if cursor.walks and cursor.floor is None:
            cursor = yield from self._count(cursor)
        for project in self._options.projects:
            if project in cursor.walks:
                cursor = yield from self._walk(cursor, project)
            elif project in cursor.tokens:
                cursor = yield from self._follow(cursor, project)
        for key in due(cursor.retries):  # one by one, because they would fail each other's batches
            results = self._reader.results([int(key)], queried=False)
            cursor = yield from self._paged(cursor, results, lambda cursor, _id: cursor)
        yield Page(cursor=cursor_json(cursor))

    def _count(self, cursor: BoardsCursor) -> Steps:
        """Set the floor, the id above which there are at most maxItems items."""
        if self._options.max_items is None:
            return replace(cursor, floor=0)
        listed_ids = self._listed(cursor.walks)
        floor = self._floor(listed_ids)
        cursor = replace(cursor, floor=floor)
        if left_out := sum(n <= floor for n in listed_ids):
            reason = (
                f"maxItems is {self._options.max_items}: the {left_out} oldest work items are left out; "
                "raise maxItems to have them, or narrow the selection"
            )
            problem = Problem(external_id="maxItems", reason=reason, because=BEYOND)
            yield Page(cursor=cursor_json(cursor), skipped=(problem,))
        return cursor

    def _walk(self, cursor: BoardsCursor, project: str) -> Steps:
        """Walk over the items of a project: after the cursor if its walk was interrupted, else from the first."""
        if cursor.project != project:
            cursor = replace(cursor, project=project, after=0)
        above = max(cursor.after, cursor.floor or 0)
        ranges = selected_ids(self._options, self._client, project, above)
        divider = self._reader.divider(at_once=cursor.stumbled)
        results = (
            result for ids in ranges for result in self._reader.results(ids, queried=True, divider=divider)
        )
        cursor = yield from self._paged(cursor, results, lambda c, n: replace(c, after=n))
        walks, tokens = dict(cursor.walks), dict(cursor.tokens)
        tokens[project] = walks.pop(project)
        floor = cursor.floor if walks else None
        return replace(cursor, tokens=tokens, walks=walks, floor=floor, project="", after=0)

    def _follow(self, cursor: BoardsCursor, project: str) -> Steps:
        """Read the changes in the feed of a project."""
        last = False
        while not last:
            try:
                feed = self._client.feed(project, token=cursor.tokens[project])
            except BoardsRefused:
                if cursor.tokens[project] is None:
                    raise
                # The service no longer accepts the token: the next sync reads all items.
                return replace(cursor, tokens={n: t for n, t in cursor.tokens.items() if n != project})
            deleted_ids = tuple(str(n) for n, deleted in feed.deleted.items() if deleted)
            todo = tuple(n for n, deleted in feed.deleted.items() if not deleted)
            cursor = replace(cursor, tokens={**cursor.tokens, project: feed.token}, todo=todo)
            if deleted_ids:
                yield Page(cursor=cursor_json(cursor), deleted=deleted_ids)
            cursor = yield from self._work_off(cursor)
            last = feed.last
        return cursor

    def _work_off(self, cursor: BoardsCursor) -> Steps:
        """Read the ids from the feed that were not read yet."""
        if not cursor.todo:
            return cursor

        def done(cursor: BoardsCursor, item_id: int) -> BoardsCursor:
            return replace(cursor, todo=tuple(n for n in cursor.todo if n != item_id))

        divider = self._reader.divider(at_once=cursor.stumbled)
        results = self._reader.results(cursor.todo, queried=False, divider=divider)
        return (yield from self._paged(cursor, results, done))

    def _paged(self, cursor: BoardsCursor, results: Iterable[tuple[int, Result]], step: Step) -> Steps:
        """Pages of results; before an error is raised, the results so far are yielded."""
        batch: list[tuple[int, Result]] = []
        try:
            for item_id, result in results:
                batch.append((item_id, result))
                problems = [result] if isinstance(result, Problem) else []
                retries = updated_retries(cursor.retries, [str(item_id)], problems)
                cursor = replace(step(cursor, item_id), stumbled=False, retries=retries)
                if len(batch) >= PAGE_ITEMS:
                    yield _page(batch, cursor)
                    batch = []
        except LarderError as error:
            # If the error recurs at this position, the next sync isolates the item, or finds the service at fault.
            cursor = replace(cursor, stumbled=cursor.stumbled or may_be_item_fault(error))
            yield _page(batch, cursor)
            raise
        if batch:
            yield _page(batch, cursor)
        return cursor

    # -- lists of ids ----------------------------------------------------------------------------------

    def _listed(self, projects: Iterable[str]) -> list[int]:
        ranges_by_project = (selected_ids(self._options, self._client, project) for project in projects)
        return [n for ranges in ranges_by_project for ids in ranges for n in ids]

    def _floor(self, ids: Sequence[int]) -> int:
        """The id above which there are at most maxItems, the newest."""
        most = self._options.max_items
        return sorted(ids, reverse=True)[most] if most is not None and len(ids) > most else 0

    def _feed_end(self, project: str) -> str | None:
        """Position of the end of the feed; None if it is empty, to read it from its start."""
        page = self._client.feed(project, start=self._client.now(project) - FEED_MARGIN)
        while not page.last:
            page = self._client.feed(project, token=page.token)
        return page.token


def selected_ids(
    options: AzureDevOpsOptions, client: BoardsClient, project: str, above: int = 0
) -> Iterator[list[int]]:
    """Ids of a project's items that belong to the source, ascending, a list per query."""
    selection = conditions(options, project)
    return id_ranges(lambda more: client.query(project, select([*selection, *more])), above)


def _page(batch: Sequence[tuple[int, Result]], cursor: BoardsCursor) -> Page:
    return Page(
        cursor=cursor_json(cursor),
        documents=tuple(result for _, result in batch if isinstance(result, Document)),
        failed=tuple(result for _, result in batch if isinstance(result, Problem)),
        deleted=tuple(str(item_id) for item_id, result in batch if result is None),
    )


SHOWN_TYPES = 12


def findings(options: AzureDevOpsOptions, client: BoardsClient, project: str) -> Iterator[Finding]:
    """Findings on access, types, the selection with its number of items, and the feed; raises if access fails."""
    types = client.types(project)
    yield Finding(
        ok=True,
        subject=f"project {project}",
        detail=f"{options.organization} accepts the credentials and has this project",
    )
    type_names = set(map(str.casefold, types))
    for type_name in options.work_item_types:
        if type_name.casefold() not in type_names:
            detail = f"project {project} has no such work item type"
            fix = f"take it out of workItemTypes, or choose among {', '.join(sorted(types)[:SHOWN_TYPES])}"
            yield Finding(ok=False, subject=f"type {type_name}", detail=detail, fix=fix)
    ids = list(chain.from_iterable(selected_ids(options, client, project)))
    detail, fix = f"{plural(len(ids), 'matches', 'match')} the selection", ""
    if not ids:
        detail = "nothing matches the selection"
        fix = "widen workItemTypes, areaPaths, states or wiql, or check that the account may view the areas"
    elif options.max_items is not None and len(ids) > options.max_items:
        detail += f"; maxItems takes the newest {options.max_items}"
    yield Finding(ok=bool(ids), subject=f"work items of {project}", detail=detail, fix=fix)
    client.feed(project, start=client.now(project))
    yield Finding(ok=True, subject=f"changes in {project}", detail="the revision feed can be read")
    if ids:
        reader = WorkItemReader(options, client)
        readable, problems = reader.fetch(ids[-1:], reader.divider())
        detail, fix = "a work item can be read", ""
        if not readable:
            detail, fix = f"work item {ids[-1]} is listed, but cannot be read", SCOPE
        if problems:
            detail, fix = f"work item {ids[-1]}: {problems[ids[-1]].reason}", LASTS
        yield Finding(ok=bool(readable), subject=f"contents of {project}", detail=detail, fix=fix)
