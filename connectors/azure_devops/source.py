"""Azure DevOps Boards as a source: first a walk by query, then the feed of revisions, and items read by their ids."""

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
from connectors.web.division import Divider, Retries, comes_of_an_item, culprit, due, noted
from pipeline.documents import Cursor, Document, Finding, Listing, Page, Problem, plural
from pipeline.errors import DocumentRejected, LarderError

HEAD_FIELDS = ("System.Id", "System.Rev", "System.Title", "System.WorkItemType", "System.TeamProject")


Result = Document | Problem | None
"""What became of one id: a document, a failure, or neither: it does not belong to the source any more."""


class WorkItemReader:
    """Makes documents of the items of one source."""

    def __init__(self, options: AzureDevOpsOptions, client: BoardsClient) -> None:
        self._options = options
        self._client = client

    def results(
        self, ids: Sequence[int], *, queried: bool, divider: Divider | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Each id with its result, in the order given.

        Args:
            ids: of items in any state.
            queried: a query has just found them, so that the configured condition need not be asked again.
            divider: isolates items that the service fails over.
        """
        rest, divider = iter(dict.fromkeys(ids)), divider or self.divider()
        while batch := list(islice(rest, BATCH)):
            items, failed = self._load(batch, divider, queried=queried)
            others = self._others(list(items.values()), divider)
            for n in batch:
                if n in items:
                    yield n, self._result(items.pop(n), others, divider)
                else:
                    yield n, failed.get(n)

    def divider(self, *, at_once: bool = True) -> Divider:
        """A new one; it looks whether the service answers for an item that nobody has."""
        return Divider(probe=lambda: self._client.items([LARGEST_ID]), at_once=at_once)

    def fetch(
        self, ids: Sequence[int], divider: Divider, fields: Sequence[str] = ()
    ) -> tuple[dict[int, WorkItem], dict[int, Problem]]:
        """The items that can be read, with these fields only or with all; at most BATCH."""
        found, errors = divider.fetch(ids, lambda part: self._client.items(part, fields))
        return dict(ChainMap(*found)), {n: self._failure(n, error) for n, error in errors.items()}

    def _result(self, item: WorkItem, others: Mapping[int, WorkItem], divider: Divider) -> Result:
        found, errors = divider.fetch([item.id], lambda _id: self._comments(item))
        if item.id in errors:
            return self._failure(item.id, errors[item.id], "its list of comments")
        try:
            return build_document(
                lambda: document_of(item, self._options, others, found[0]), f"work item {item.id}"
            )
        except DocumentRejected as error:  # one item must not stop all others
            return self._failure(item.id, error)

    def _failure(self, item_id: int, error: LarderError | str, what: str = "it") -> Problem:
        url = f"{self._options.organization}/_workitems/edit/{item_id}"
        if isinstance(error, BadAnswer):
            return culprit(str(item_id), error, url=url, what=what)
        return Problem(external_id=str(item_id), reason=str(error), url=url)

    def _load(
        self, ids: Sequence[int], divider: Divider, *, queried: bool
    ) -> tuple[dict[int, WorkItem], dict[int, Problem]]:
        """The items that belong to the source, and a problem for each that could not be read."""
        items, failed = self.fetch(ids, divider)
        # Deleted, destroyed, moved out of sight and forbidden look the same here; queries tell more.
        reason = (
            f"{PRODUCT} lists the item and does not let us read it; "
            "give the token's account the right to view its area"
        )
        missing = set(ids) - items.keys() - failed.keys()
        failed |= {n: self._failure(n, reason) for n in self._listed(missing, in_project)}
        items = {n: i for n, i in items.items() if belongs(self._options, i)}
        if self._options.wiql.strip() and not queried:
            doubtful = items.keys() - self._listed(items, partial(conditions, self._options))
            # A service that has lost its index lists nothing: that says nothing about the condition.
            unlisted = doubtful - self._listed(doubtful, in_project)
            reason = f"{PRODUCT} lets us read the item and does not list it; look at it again later"
            failed |= {n: self._failure(n, reason) for n in unlisted}
            items = {n: i for n, i in items.items() if n not in doubtful}
        return items, failed

    def _listed(self, ids: Collection[int], of: Callable[[str], list[str]]) -> set[int]:
        """Those that queries with these conditions find in one of the projects."""
        projects = self._options.projects if ids else ()
        queries = [(project, select([*of(project), id_in(sorted(ids))])) for project in projects]
        return {n for project, wiql in queries for n in self._client.query(project, wiql)} & set(ids)

    def _others(self, items: Sequence[WorkItem], divider: Divider) -> dict[int, WorkItem]:
        """The items at the other ends of links, as far as they can be read and are in a configured project."""
        if not self._options.include_links:
            return {}
        known = {item.id: item for item in items}
        targets = {r.target for item in items for r in item.shown_relations} - {None, *known}
        wanted = sorted(n for n in targets if n is not None)
        for start in range(0, len(wanted), BATCH):
            known |= self.fetch(wanted[start : start + BATCH], divider, HEAD_FIELDS)[0]
        names = {project.casefold() for project in self._options.projects}
        return {n: item for n, item in known.items() if item.project.casefold() in names}

    def _comments(self, item: WorkItem) -> list[BoardsComment]:
        if not self._options.include_comments or not item.fields.get("System.CommentCount"):
            return []
        try:
            return self._client.comments(item.project, item.id)
        except WorkItemMissing:  # deleted since it was read; the feed will say so
            return []


def in_project(project: str) -> list[str]:
    """The query condition of an item of this project."""
    return [f"[System.TeamProject] = {quoted(project)}"]


def conditions(options: AzureDevOpsOptions, project: str) -> list[str]:
    """The query conditions of an item of this source; without the first, other projects would leak in."""
    found = in_project(project)
    if options.work_item_types:
        found.append(f"[System.WorkItemType] IN ({quoted(*options.work_item_types)})")
    if options.area_paths:
        places = [f"[System.AreaPath] UNDER {quoted(_area(path))}" for path in options.area_paths]
        found.append(f"({' OR '.join(places)})")
    if options.states:
        found.append(f"[System.State] IN ({quoted(*options.states)})")
    if options.wiql.strip():
        found.append(f"({options.wiql.strip()})")
    return found


def belongs(options: AzureDevOpsOptions, item: WorkItem) -> bool:
    """Whether an item fulfils all that `conditions` ask, but for the configured `wiql`, in any case."""
    area = item.text("System.AreaPath").casefold() + "\\"
    chosen = (
        (item.project, options.projects),
        (item.type, options.work_item_types),
        (item.text("System.State"), options.states),
    )
    return all(
        not allowed or value.casefold() in {one.strip().casefold() for one in allowed}
        for value, allowed in chosen
    ) and (
        not options.area_paths
        or any(area.startswith(_area(path).casefold() + "\\") for path in options.area_paths)
    )


def _area(path: str) -> str:
    r"""`\Shop\Web\` as the service writes it: `Shop\Web`."""
    return path.strip().replace("/", "\\").strip("\\")


PAGE_ITEMS = 50
BEYOND = "beyond maxItems"
PIECE = 5 * BATCH
"""Items in a piece of the id walk."""
FEED_MARGIN = timedelta(minutes=10)
"""How far before the service's own time the feed is entered: the clocks of its machines may differ."""

Tokens = Mapping[str, str | None]
"""Places in the feeds by project; None is the very start of a feed."""


@dataclass(frozen=True, kw_only=True)
class BoardsCursor:
    """Where a sync stands; it can be stored and resumed from after each page."""

    selection: str
    tokens: Tokens = field(default_factory=dict)
    """Projects whose first walk ended -> where their feed goes on."""
    walks: Tokens = field(default_factory=dict)
    """Projects whose items are still to be walked over -> where their feed stood before."""
    floor: int | None = None
    """Walks take ids above this one (maxItems); None until they are counted."""
    project: str = ""
    """The one that is being walked."""
    after: int = 0
    """The last id of `project` that was taken."""
    todo: tuple[int, ...] = ()
    """Ids the feed has named and that were not read yet."""
    stumbled: bool = False
    """The sync before ended with a fault of what comes next, which a single item may be to blame for."""
    retries: Retries = field(default_factory=dict)
    """Items that the service fails over."""


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
        """First all items project by project, by ascending id; from then on what the feeds name.

        Each page's cursor resumes right behind that page. A sync that an error ends first yields what it has.
        """
        selection = self._options.selection_hash
        cursor = read_cursor(BoardsCursor, since, selection) or BoardsCursor(selection=selection)
        # Without projects that are no longer configured.
        projects = self._options.projects
        held = [{n: at for n, at in t.items() if n in projects} for t in (cursor.tokens, cursor.walks)]
        cursor = replace(cursor, tokens=held[0], walks=held[1])
        kept: Cursor = cursor_json(cursor)
        for page in self._steps(cursor):
            if page.cursor != kept or page.documents or page.failed or page.skipped or page.deleted:
                kept = page.cursor
                yield page

    def ids(self, since: Cursor | None = None) -> Listing:
        """What queries list now, in pieces by ascending id; the fingerprint of an item is its revision number."""
        found = sorted(set(self._listed(self._options.projects)))
        floor, after = (since["floor"], since["after"]) if since else (self._floor(found), 0)
        ids = [n for n in found if n > max(floor, after)]
        here, rest = ids[:PIECE], ids[PIECE:]
        versions: dict[str, str] = {}
        divider = self._reader.divider()
        for start in range(0, len(here), BATCH):
            batch = here[start : start + BATCH]
            items, _ = self._reader.fetch(batch, divider, ("System.Id", "System.Rev"))
            versions |= {str(n): str(item.rev) for n, item in items.items()}
        more = sum(n <= floor for n in found)
        return Listing(
            ids=frozenset(map(str, here)),
            complete=not more,
            versions=versions,
            left_out={BEYOND: more} if more and not since else {},
            cursor={"floor": floor, "after": here[-1]} if rest else {},
        )

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These items as they are now; those that are gone, or no part of the source any more, in `deleted`."""
        numbers = [text for text in ids if text.isdecimal() and text.isascii()]
        if foreign := tuple(text for text in ids if not (text.isdecimal() and text.isascii())):
            yield Page(cursor={}, deleted=foreign)
        results = self._reader.results(list(map(int, numbers)), queried=False)
        for page in self._paged(BoardsCursor(selection=""), results, lambda cursor, _id: cursor):
            yield replace(page, cursor={})

    def check(self) -> list[Finding]:
        """One line per thing that was tried of each project; ends where nothing more can be tried.

        Raises:
            SourceUnavailable: the service cannot be reached, or asks to come back later.
        """
        found: list[Finding] = []
        for project in self._options.projects:
            try:
                for finding in findings(self._options, self._client, project):
                    found.append(finding)  # noqa: PERF402 (what was found before an error counts)
            except LarderError as error:
                # A web page with a 4xx status: something answers, and it is not the interface we want.
                refused = isinstance(error, ServerFault) and 400 <= error.status < 500  # noqa: PLR2004 (4xx)
                if error.transient and not refused:
                    raise
                subject = f"project {project}"
                found.append(Finding(ok=False, subject=subject, detail=error.message, fix=error.fix))
        return found

    def stamp(self) -> str | None:
        """None: to know whether something changed costs as much as a sync without changes."""
        return None

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> None:  # noqa: ARG002
        """None: its cursor tells what changed."""
        return

    # -- pages -----------------------------------------------------------------------------------------

    def _steps(self, cursor: BoardsCursor) -> Iterator[Page]:
        """All pages, also those that bring nothing new."""
        cursor = yield from self._work_off(cursor)
        # Where the feeds of new projects stand, before any list is made: what comes later is in the feeds.
        known = {*cursor.tokens, *cursor.walks}
        if new := {name: self._feed_end(name) for name in self._options.projects if name not in known}:
            cursor = replace(cursor, walks={**cursor.walks, **new})
            yield Page(cursor=cursor_json(cursor))
        if cursor.walks and cursor.floor is None:
            cursor = yield from self._count(cursor)
        for project in self._options.projects:
            if project in cursor.walks:
                cursor = yield from self._walk(cursor, project)
            elif project in cursor.tokens:
                cursor = yield from self._follow(cursor, project)
        for key in due(cursor.retries):  # one by one: they would only break each other's batches
            results = self._reader.results([int(key)], queried=False)
            cursor = yield from self._paged(cursor, results, lambda cursor, _id: cursor)
        yield Page(cursor=cursor_json(cursor))

    def _count(self, cursor: BoardsCursor) -> Steps:
        """Finds the id above which the walk stays below maxItems."""
        if self._options.max_items is None:
            return replace(cursor, floor=0)
        found = self._listed(cursor.walks)
        floor = self._floor(found)
        cursor = replace(cursor, floor=floor)
        if left_out := sum(n <= floor for n in found):
            reason = (
                f"maxItems is {self._options.max_items}: the {left_out} oldest work items are left out; "
                "raise maxItems to have them, or narrow the selection"
            )
            problem = Problem(external_id="maxItems", reason=reason, because=BEYOND)
            yield Page(cursor=cursor_json(cursor), skipped=(problem,))
        return cursor

    def _walk(self, cursor: BoardsCursor, project: str) -> Steps:
        """All items of a project behind the cursor; from its first, unless it is the one that was interrupted."""
        if cursor.project != project:
            cursor = replace(cursor, project=project, after=0)
        above = max(cursor.after, cursor.floor or 0)
        ranges = selected_ids(self._options, self._client, project, above)
        divider = self._reader.divider(at_once=cursor.stumbled)
        results = (
            result for ids in ranges for result in self._reader.results(ids, queried=True, divider=divider)
        )
        cursor = yield from self._paged(cursor, results, lambda c, n: replace(c, after=n))
        left, tokens = dict(cursor.walks), dict(cursor.tokens)
        tokens[project] = left.pop(project)
        floor = cursor.floor if left else None
        return replace(cursor, tokens=tokens, walks=left, floor=floor, project="", after=0)

    def _follow(self, cursor: BoardsCursor, project: str) -> Steps:
        """What the feed of a project names."""
        last = False
        while not last:
            try:
                feed = self._client.feed(project, token=cursor.tokens[project])
            except BoardsRefused:
                if cursor.tokens[project] is None:
                    raise
                # A token the service does not take any more: all is read again at the next sync.
                return replace(cursor, tokens={n: t for n, t in cursor.tokens.items() if n != project})
            gone = tuple(str(n) for n, deleted in feed.deleted.items() if deleted)
            todo = tuple(n for n, deleted in feed.deleted.items() if not deleted)
            cursor = replace(cursor, tokens={**cursor.tokens, project: feed.token}, todo=todo)
            if gone:
                yield Page(cursor=cursor_json(cursor), deleted=gone)
            cursor = yield from self._work_off(cursor)
            last = feed.last
        return cursor

    def _work_off(self, cursor: BoardsCursor) -> Steps:
        """What the feed has named and was not read yet."""
        if not cursor.todo:
            return cursor

        def done(cursor: BoardsCursor, item_id: int) -> BoardsCursor:
            return replace(cursor, todo=tuple(n for n in cursor.todo if n != item_id))

        divider = self._reader.divider(at_once=cursor.stumbled)
        results = self._reader.results(cursor.todo, queried=False, divider=divider)
        return (yield from self._paged(cursor, results, done))

    def _paged(self, cursor: BoardsCursor, results: Iterable[tuple[int, Result]], step: Step) -> Steps:
        """Pages of results; if an error ends the reading, what was read before it comes first."""
        batch: list[tuple[int, Result]] = []
        try:
            for item_id, result in results:
                batch.append((item_id, result))
                problems = [result] if isinstance(result, Problem) else []
                retries = noted(cursor.retries, [str(item_id)], problems)
                cursor = replace(step(cursor, item_id), stumbled=False, retries=retries)
                if len(batch) >= PAGE_ITEMS:
                    yield _page(batch, cursor)
                    batch = []
        except LarderError as error:
            # A fault that comes again here is of an item, or of the service: then that is found out.
            cursor = replace(cursor, stumbled=cursor.stumbled or comes_of_an_item(error))
            yield _page(batch, cursor)
            raise
        if batch:
            yield _page(batch, cursor)
        return cursor

    # -- lists of ids ----------------------------------------------------------------------------------

    def _listed(self, projects: Iterable[str]) -> list[int]:
        found = (selected_ids(self._options, self._client, project) for project in projects)
        return [n for ranges in found for ids in ranges for n in ids]

    def _floor(self, ids: Sequence[int]) -> int:
        """The id above which only as many as maxItems are left: the newest."""
        most = self._options.max_items
        return sorted(ids, reverse=True)[most] if most is not None and len(ids) > most else 0

    def _feed_end(self, project: str) -> str | None:
        """Where the feed stands; None if it is empty, then it will be read from its start."""
        page = self._client.feed(project, start=self._client.now(project) - FEED_MARGIN)
        while not page.last:
            page = self._client.feed(project, token=page.token)
        return page.token


def selected_ids(
    options: AzureDevOpsOptions, client: BoardsClient, project: str, above: int = 0
) -> Iterator[list[int]]:
    """The ids of a project's items that belong to the source, ascending, a list for each query."""
    asked = conditions(options, project)
    return id_ranges(lambda more: client.query(project, select([*asked, *more])), above)


def _page(batch: Sequence[tuple[int, Result]], cursor: BoardsCursor) -> Page:
    return Page(
        cursor=cursor_json(cursor),
        documents=tuple(result for _, result in batch if isinstance(result, Document)),
        failed=tuple(result for _, result in batch if isinstance(result, Problem)),
        deleted=tuple(str(item_id) for item_id, result in batch if result is None),
    )


SHOWN_TYPES = 12


def findings(options: AzureDevOpsOptions, client: BoardsClient, project: str) -> Iterator[Finding]:
    """Access, types, the selection with its number of items, the feed; raises where the rest depends on it."""
    types = client.types(project)
    yield Finding(
        ok=True, subject=f"project {project}", detail=f"{options.organization} lets us in and knows it"
    )
    known = set(map(str.casefold, types))
    for wanted in options.work_item_types:
        if wanted.casefold() not in known:
            detail = f"project {project} has no such work item type"
            fix = f"take it out of workItemTypes, or choose among {', '.join(sorted(types)[:SHOWN_TYPES])}"
            yield Finding(ok=False, subject=f"type {wanted}", detail=detail, fix=fix)
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
            detail, fix = f"work item {ids[-1]} is listed and cannot be read", SCOPE
        if problems:
            detail, fix = f"work item {ids[-1]}: {problems[ids[-1]].reason}", LASTS
        yield Finding(ok=bool(readable), subject=f"contents of {project}", detail=detail, fix=fix)
