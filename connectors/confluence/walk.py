"""The two walks of a sync, over all pages once and then over what changed, and the cursor between them.

The decisions that a walk depends on are small functions of their own here and in `client`, so that tests can put a
wrong one in the place of each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Self

from connectors.confluence.client import BY_ID, ConfluenceClient, CqlSearch
from connectors.confluence.document import Content
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.reader import PageReader, ReadResult
from connectors.documents.cursors import cursor_json, read_cursor
from pipeline.documents import Cursor, Page, Problem

FARTHEST_WEST = timedelta(hours=13)
"""No clock on earth is further behind UTC: whatever zone the service reads a time in, it is early enough."""
ANSWERS_BACK = 3
OVERLAP = timedelta(minutes=10)
"""How late the search index may show a change."""


@dataclass(frozen=True, kw_only=True)
class ConfluenceCursor:
    """Where a sync stands: first in all pages by time of creation, which no edit disturbs; then in what changed."""

    selection: str
    walking: bool = False
    """The first walk is not over."""
    created: datetime | None = None
    """First walk: of the last page read."""
    read_then: tuple[str, ...] = ()
    """First walk: ids of the pages read that were created in the same minute as the last one, sorted."""
    admitted: int = 0
    """First walk: pages that count towards the cap."""
    until: datetime | None = None
    """Creation of the last page within the cap, if the cap was met; later ones are passed over."""
    at: datetime | None = None
    """The newest change dealt with. During the first walk: what was the newest when it began."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """`id:version` of what was dealt with in the last minutes before `at`, with its time in epoch seconds."""

    @property
    def horizon(self) -> datetime | None:
        """From here on changes are looked at once more, because search may show them late."""
        return minute(self.at - OVERLAP) if self.at else None

    def having_seen(self, rows: Iterable[tuple[str, datetime | None]]) -> Self:
        """With these rows dealt with; what lies before the horizon is forgotten."""
        now = self.at.timestamp() if self.at else 0
        seen = {**self.seen, **{key: int(moment.timestamp() if moment else now) for key, moment in rows}}
        since = self.horizon.timestamp() if self.horizon else 0
        return replace(self, seen={key: at for key, at in seen.items() if at >= since})

    def behind(self, contents: Sequence[Content], admitted: int) -> Self:
        """First walk: with these pages read, of which so many count towards the cap."""
        created = reached(self.created, contents[-1].created)
        then = minute(created) if created else None
        same_minute = {content.id for content in contents if not _before(content.created, then)}
        if self.created and minute(self.created) == then:
            same_minute.update(self.read_then)
        read_then = tuple(sorted(same_minute))
        return replace(self, created=created, read_then=read_then, admitted=self.admitted + admitted)

    def after_first_walk(self, until: datetime | None) -> Self:
        """At the beginning of the changes; `until` if the cap was met."""
        return replace(self, walking=False, created=None, read_then=(), admitted=0, until=until)


def minute(moment: datetime) -> datetime:
    """The beginning of its minute."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def since(name: str, moment: datetime) -> str:
    """In CQL; the service reads times in a zone of its own, so that rows of some hours before come as well."""
    return f'{name} >= "{moment - FARTHEST_WEST:%Y-%m-%d %H:%M}"'


def reached(before: datetime | None, row: datetime | None) -> datetime | None:
    """How far the cursor stands behind a row: by the service's clock, never by ours."""
    return max((moment for moment in (before, row) if moment), default=None)


class PageWalk:
    """Yields the pages of one sync, from a stored cursor on."""

    def __init__(self, client: ConfluenceClient, options: ConfluenceOptions, reader: PageReader) -> None:
        self._client = client
        self._options = options
        self._reader = reader

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """From the cursor, or from the very beginning.

        Raises:
            SourceDenied: none of the configured spaces is visible; it is looked at in the beginning.
        """
        cursor = read_cursor(ConfluenceCursor, since, self._options.selection)
        if cursor is None:
            self._client.sees_all_spaces()
            cursor = self._beginning()
        if cursor.walking:
            cursor = yield from self._all_pages(cursor)
        if not cursor.walking:
            yield from self._changes(cursor)

    # -- all pages -------------------------------------------------------------------------------------

    def _beginning(self) -> ConfluenceCursor:
        """Remembers what is the newest now: what changes during the walk is looked for behind it."""
        newest = self._client.search(f"{self._all_types()} order by lastmodified desc", ("version",), limit=1)
        first = next(iter(newest), [])
        at = self._by_now(first[0].changed if first else None)
        return ConfluenceCursor(selection=self._options.selection, walking=True, at=at)

    def unread(self, cursor: ConfluenceCursor, expand: Sequence[str]) -> tuple[CqlSearch, Iterator[Content]]:
        """The pages behind the cursor by time of creation, and the search that brings them."""
        clause, begin = self._reader.filter.page_clause(), None
        if cursor.created:
            begin = minute(cursor.created)
            clause += f" and {since('created', begin)}"
        search = self._client.search(f"{clause} order by created asc", expand, key=BY_ID)
        rows = (c for c in search.contents() if not _before(c.created, begin))
        return search, (content for content in rows if content.id not in cursor.read_then)

    def _all_pages(self, cursor: ConfluenceCursor) -> Generator[Page, None, ConfluenceCursor]:
        search, contents = self.unread(cursor, ("version", "history"))
        waiting: list[Content] = []
        for content in contents:
            if self._room(cursor) == 0:
                return (yield from self._capped(cursor))
            waiting.append(content)
            if len(waiting) >= min(self._options.page_size, self._room(cursor)):
                cursor = yield from self._read(cursor, waiting)
                waiting = []
        if waiting:
            cursor = yield from self._read(cursor, waiting)
        if not search.complete or cursor.at is None:
            return cursor
        cursor = cursor.after_first_walk(until=None)
        yield Page(cursor=cursor_json(cursor))
        return cursor

    def _read(
        self, cursor: ConfluenceCursor, contents: Sequence[Content]
    ) -> Generator[Page, None, ConfluenceCursor]:
        result = self._reader.read([content.id for content in contents])
        result.deleted.clear()  # nothing of it was ever taken in
        after = cursor.behind(contents, result.admitted).having_seen(result.rows.items())
        yield from result.pages(cursor_json(cursor), cursor_json(after))
        return after

    def _capped(self, cursor: ConfluenceCursor) -> Generator[Page, None, ConfluenceCursor]:
        most = self._options.max_pages
        cursor = cursor.after_first_walk(until=cursor.created)
        reason = (
            f"there are more than maxPages {most} pages; only the {most} that were created first are "
            "read, and pages that were removed stay: raise syncOptions.maxPages, or name fewer spaces"
        )
        problem = Problem(
            external_id="maxPages", reason=reason, url=self._client.deployment.base, because="beyond maxPages"
        )
        yield Page(cursor=cursor_json(cursor), skipped=(problem,))
        return cursor

    def _room(self, cursor: ConfluenceCursor) -> int:
        most = self._options.max_pages
        return self._options.page_size if most is None else max(0, most - cursor.admitted)

    # -- changes ---------------------------------------------------------------------------------------

    def _by_now(self, moment: datetime | None) -> datetime | None:
        """A change may be stamped with a time to come: a cursor there would hide all that changes until then."""
        return min(moment, self._client.now) if moment else None

    def _changes(self, cursor: ConfluenceCursor) -> Iterator[Page]:
        cursor = replace(cursor, at=self._by_now(cursor.at))
        horizon = cursor.horizon
        if horizon is None:
            return
        rows: list[Content] = []
        pages: dict[str, None] = {}
        for row in self._changed(horizon):
            if _before(row.changed, horizon):
                continue
            rows.append(row)
            if row.row not in cursor.seen and _may_concern(row, cursor):
                pages.setdefault(row.id if row.is_page else row.container)
            if len(pages) >= self._options.page_size:
                cursor = yield from self._read_changed(cursor, rows, list(pages))
                rows, pages = [], {}
        yield from self._read_changed(cursor, rows, list(pages))

    def _read_changed(
        self, cursor: ConfluenceCursor, rows: Sequence[Content], pages: Sequence[str]
    ) -> Generator[Page, None, ConfluenceCursor]:
        """Reads pages for rows; no page comes if there are none and the cursor stays where it is."""
        result = self._reader.read(pages, until=cursor.until) if pages else ReadResult()
        at = cursor.at
        for row in rows:
            at = self._by_now(reached(at, row.changed))
        seen = {**result.rows, **{row.row: row.changed for row in rows}}
        after = replace(cursor, at=at).having_seen(seen.items())
        if pages or after != cursor:
            yield from result.pages(cursor_json(cursor), cursor_json(after))
        return after

    def _changed(self, horizon: datetime) -> Iterable[Content]:
        """Rows since the horizon, oldest first; few are found from the newest back, many by a longer list in order.

        Each spares requests where the other takes many, and a small allowance of requests must lead to the end.
        """
        expand = ("version", "history", "container")
        cql = f"{self._all_types()} and {since('lastmodified', horizon)} order by lastmodified"
        search, found = self._client.search(f"{cql} desc", expand), list[Content]()
        for rows in islice(search, ANSWERS_BACK):
            found += [row for row in rows if not _before(row.changed, horizon)]
            if any(_before(row.changed, horizon) for row in rows):
                return reversed(found)
        return reversed(found) if search.complete else self._client.search(f"{cql} asc", expand).contents()

    def _all_types(self) -> str:
        return self._reader.filter.clause((*self._options.page_types, *self._options.attached_types))


def _before(moment: datetime | None, limit: datetime | None) -> bool:
    return moment is not None and limit is not None and moment < limit


def _may_concern(row: Content, cursor: ConfluenceCursor) -> bool:
    """Not a page behind the cap, and no comment or file of a space's description: those hang on no page."""
    if row.is_page:
        return not (cursor.until and row.created and row.created > cursor.until)
    return bool(row.container) and row.container_kind in ("page", "blogpost")
