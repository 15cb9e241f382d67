"""Work items of Azure DevOps Boards as a source: a walk by query first, then the feed of revisions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property

from connectors.azure_devops.boards import BATCH, FEED_PAGE, Boards
from connectors.azure_devops.checking import findings
from connectors.azure_devops.faults import Refused
from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.position import Position
from connectors.azure_devops.reading import Outcome, Reader
from connectors.azure_devops.selection import conditions
from connectors.azure_devops.wiql import ranges, select
from pipeline.documents import Cursor, Finding, Listing, Page, Problem
from pipeline.errors import LarderError

PAGE_ITEMS = 100
READ_ITEMS = 50
PAGE_CHARACTERS = 4_000_000
FEED_MARGIN = timedelta(minutes=10)
"""How far before the service's own time the feed is entered: the clocks of its machines may differ."""

Step = Callable[[Position, int], Position]
Steps = Generator[Page, None, Position]


class AzureDevOpsSource:
    """Work items of one or more projects; the external id is the item's id.

    Raises:
        ConfigurationError: the organization is neither a name nor an address.
    """

    extractor = "azure_devops-2"
    walks_all = False

    def __init__(self, options: AzureDevOpsOptions, *, boards: Boards | None = None) -> None:
        self._options = options
        self._boards = boards or Boards(options)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """First all items project by project, by ascending id; from then on what the feeds name.

        Each page's cursor resumes right behind that page. A sync that is broken off by an error first hands
        over what it has.
        """
        position = Position.of(since, self._options.selection).only(self._options.projects)
        kept: Cursor = position.cursor()
        for page in self._steps(position):
            if page.cursor != kept or page.documents or page.failed or page.skipped or page.deleted:
                kept = page.cursor
                yield page

    def ids(self) -> Listing:
        """What queries list now; the fingerprint of an item is its revision number."""
        ids: list[int] = []
        revs: dict[int, int] = {}
        capped = False
        by_project = {project: self._listed(project) for project in self._options.projects}
        floor = self._floor(by_project.values())
        for project, found in by_project.items():
            kept = [n for n in found if n > floor]
            capped = capped or len(kept) < len(found)
            ids += kept
            revs |= self._revs(project, kept)
        return Listing(
            ids=frozenset(map(str, ids)),
            complete=not capped,
            versions={str(n): str(revs[n]) for n in ids if n in revs},
        )

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These items as they are now; those that are gone, or no part of the source any more, in `deleted`."""
        numbers = [int(text) for text in ids if text.isdecimal() and text.isascii()]
        foreign = tuple(text for text in ids if not (text.isdecimal() and text.isascii()))
        if foreign:
            yield Page(cursor={}, deleted=foreign)
        outcomes = self._reader.outcomes(numbers, asked=False)
        for page in self._paged(Position(selection=""), outcomes, lambda position, _id: position, READ_ITEMS):
            yield replace(page, cursor={})

    def check(self) -> list[Finding]:
        """The organization and its token, each project, the types, the selection with its number of items."""
        return findings(self._options, self._boards)

    def stamp(self) -> str | None:
        """None: to know whether something changed costs as much as a sync without changes."""
        return None

    def _steps(self, position: Position) -> Iterator[Page]:
        """All pages, among them such as bring nothing new."""
        position = yield from self._work_off(position)
        position = yield from self._begin(position)
        listed: dict[str, list[int]] = {}
        if position.starts and position.floor is None:
            position = yield from self._count(position, listed)
        for project in self._options.projects:
            if project in position.starts:
                position = yield from self._walk(position, project, listed.pop(project, None))
            elif project in position.tokens:
                position = yield from self._follow(position, project)
        yield Page(cursor=position.cursor())

    @cached_property
    def _names(self) -> dict[str, str]:
        return {project: self._boards.project_name(project) for project in self._options.projects}

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._options, self._boards, list(self._names.values()))

    def _begin(self, position: Position) -> Steps:
        """Note where the feeds of new projects stand, before any list is made: what comes later is in the feeds."""
        known = {*position.tokens, *position.starts}
        new = [project for project in self._options.projects if project not in known]
        if new:
            position = position.starting({project: self._feed_end(project) for project in new})
            yield Page(cursor=position.cursor())
        return position

    def _count(self, position: Position, listed: dict[str, list[int]]) -> Steps:
        """Find the id above which the walk stays below maxItems; what was listed for it is left in `listed`."""
        if self._options.max_items is None:
            return position.above(0)
        listed |= {project: self._listed(project) for project in position.starts}
        floor = self._floor(listed.values())
        position = position.above(floor)
        left_out = sum(n <= floor for ids in listed.values() for n in ids)
        if left_out:
            yield Page(cursor=position.cursor(), skipped=(self._cap(left_out),))
        return position

    def _walk(self, position: Position, project: str, listed: list[int] | None) -> Steps:
        """All items of a project behind the position."""
        position = position.walking(project)
        above = max(position.after, position.floor or 0)
        stretches = [[n for n in listed if n > above]] if listed is not None else self._ranges(project, above)
        outcomes = (o for ids in stretches for o in self._reader.outcomes(ids, asked=True))
        position = yield from self._paged(position, outcomes, Position.took, PAGE_ITEMS)
        return position.walked(project)

    def _follow(self, position: Position, project: str) -> Steps:
        """What the feed of a project names."""
        last = False
        while not last:
            try:
                feed = self._boards.feed(self._names[project], token=position.tokens[project])
            except Refused:
                if position.tokens[project] is None:
                    raise
                # A token the service does not take any more: all is read again at the next sync.
                return position.forgetting(project)
            newest = {change.id: change for change in feed.changes}
            gone = tuple(str(n) for n, change in newest.items() if change.deleted)
            position = position.fed(project, feed.token, [n for n, c in newest.items() if not c.deleted])
            if gone:
                yield Page(cursor=position.cursor(), deleted=gone)
            position = yield from self._work_off(position)
            last = feed.last
        return position

    def _work_off(self, position: Position) -> Steps:
        """What the feed has named and was not read yet."""
        outcomes = self._reader.outcomes(position.todo, asked=False) if position.todo else iter(())
        return (yield from self._paged(position, outcomes, Position.did, PAGE_ITEMS))

    def _paged(self, position: Position, outcomes: Iterable[Outcome], step: Step, size: int) -> Steps:
        """Pages of outcomes. Whatever breaks the reading off, what was read before it is handed over first."""
        batch: list[Outcome] = []
        characters = 0
        try:
            for outcome in outcomes:
                batch.append(outcome)
                position = step(position, outcome.id)
                characters += len(outcome.document.text) if outcome.document else 0
                if len(batch) >= size or characters >= PAGE_CHARACTERS:
                    yield _page(batch, position)
                    batch, characters = [], 0
        except LarderError:
            if batch:
                yield _page(batch, position)
            raise
        if batch:
            yield _page(batch, position)
        return position

    def _feed_end(self, project: str) -> str | None:
        """Where the feed stands; None if it is empty even so, then it is read from its start one day."""
        name = self._names[project]
        feed = self._boards.feed(name, start=self._boards.now(name) - FEED_MARGIN)
        while not feed.last:
            feed = self._boards.feed(name, token=feed.token)
        return feed.token

    def _ranges(self, project: str, above: int) -> Iterator[list[int]]:
        name = self._names[project]
        asked = conditions(self._options, name)
        return ranges(lambda more: self._boards.query(name, select([*asked, *more])), above)

    def _listed(self, project: str) -> list[int]:
        return [n for ids in self._ranges(project, 0) for n in ids]

    def _floor(self, listed: Iterable[Sequence[int]]) -> int:
        """The id above which only as many as maxItems are left: the newest."""
        ids = sorted((n for found in listed for n in found), reverse=True)
        most = self._options.max_items
        return ids[most] if most is not None and len(ids) > most else 0

    def _revs(self, project: str, ids: Sequence[int]) -> dict[int, int]:
        """The revision number of each item that can be read.

        The feed brings a thousand for one request, a batch two hundred; but the feed brings all items of the
        project, so that a batch is cheaper for a small part of them.
        """
        revs: dict[int, int] = {}
        narrowed = self._options.area_paths or self._options.states or self._options.wiql.strip()
        if len(ids) > FEED_PAGE and not narrowed:
            revs = self._fed_revs(project)
        missing = [n for n in ids if n not in revs]
        for start in range(0, len(missing), BATCH):
            heads = self._boards.heads(missing[start : start + BATCH], ("System.Id", "System.Rev"))
            revs |= {n: head.rev for n, head in heads.items()}
        return revs

    def _fed_revs(self, project: str) -> dict[int, int]:
        revs: dict[int, int] = {}
        token, last = None, False
        while not last:
            feed = self._boards.feed(self._names[project], token=token)
            revs |= {change.id: change.rev for change in feed.changes}
            token, last = feed.token, feed.last
        return revs

    def _cap(self, left_out: int) -> Problem:
        most = self._options.max_items
        reason = (
            f"maxItems is {most}: the {left_out} oldest work items are left out; "
            "raise maxItems to have them, or narrow the selection"
        )
        return Problem(external_id="maxItems", reason=reason)


def _page(batch: Sequence[Outcome], position: Position) -> Page:
    return Page(
        cursor=position.cursor(),
        documents=tuple(o.document for o in batch if o.document),
        failed=tuple(o.failed for o in batch if o.failed),
        deleted=tuple(str(o.id) for o in batch if not o.document and not o.failed),
    )
