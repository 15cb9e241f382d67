"""Source of Confluence pages: syncs by changes, the id walk, and reading by ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import filterfalse, islice
from typing import Self

from connectors.confluence.client import (
    BY_ID,
    PERMISSION,
    ConfluenceClient,
    ConfluenceNotFound,
    ConfluenceRefused,
    CqlSearch,
    cql_texts,
    is_page_id,
    missing_keys,
)
from connectors.confluence.document import PAGE_WALK, Content, fingerprints
from connectors.confluence.options import PRODUCT, ConfluenceOptions
from connectors.confluence.reader import (
    UNREADABLE,
    ContentFilter,
    PageReader,
    ReadResult,
    before,
    unreadable_problem,
)
from connectors.documents.options import cursor_json, read_cursor
from connectors.web.answers import BadAnswer
from connectors.web.division import Retries, culprit, due, updated_retries
from pipeline.documents import Cursor, Finding, Listing, Page, Problem
from pipeline.documents.plain_text import plural
from pipeline.errors import SourceDenied

FARTHEST_WEST = timedelta(hours=13)
"""Largest offset behind UTC: times minus this are early enough, whatever zone the service reads them in."""
ANSWERS_BACK = 3
OVERLAP = timedelta(minutes=10)
"""Longest delay with which search may show a change."""


@dataclass(frozen=True, kw_only=True)
class ConfluenceCursor:
    """Position of a sync: in the first walk by time of creation, which edits do not change; later in the changes."""

    selection: str
    walking: bool = False
    """True during the first walk."""
    created: datetime | None = None
    """First walk: creation of the last page read."""
    read_then: tuple[str, ...] = ()
    """First walk: sorted ids of the pages read that were created in the same minute as the last one."""
    admitted: int = 0
    """First walk: number of pages that count towards the cap."""
    until: datetime | None = None
    """Creation of the last page within the cap, if it was reached; later pages are skipped."""
    at: datetime | None = None
    """Time of the newest change processed. During the first walk: of the newest change when it began."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """`id:version` of the changes processed since the horizon, with their times in epoch seconds."""
    retries: Retries = field(default_factory=dict)
    """Retries of pages for which the service fails."""

    @property
    def horizon(self) -> datetime | None:
        """Time from which changes are searched again, because search may show them late; None without `at`."""
        return minute(self.at - OVERLAP) if self.at else None

    def having_seen(self, rows: Iterable[tuple[str, datetime | None]]) -> Self:
        """The cursor with these rows processed, without rows before the horizon."""
        now = self.at.timestamp() if self.at else 0
        seen_rows = {**self.seen, **{key: int(moment.timestamp() if moment else now) for key, moment in rows}}
        since = self.horizon.timestamp() if self.horizon else 0
        return replace(self, seen={key: at for key, at in seen_rows.items() if at >= since})

    def past(self, contents: Sequence[Content], admitted: int) -> Self:
        """The cursor of the first walk with these pages read, of which `admitted` count towards the cap."""
        created = reached(self.created, contents[-1].created)
        last_minute = minute(created) if created else None
        same_minute = {content.id for content in contents if not before(content.created, last_minute)}
        if self.created and minute(self.created) == last_minute:
            same_minute.update(self.read_then)
        read_then = tuple(sorted(same_minute))
        return replace(self, created=created, read_then=read_then, admitted=self.admitted + admitted)

    def after_first_walk(self, until: datetime | None) -> Self:
        """The cursor at the beginning of the changes; `until` is set if the cap was reached."""
        return replace(self, walking=False, created=None, read_then=(), admitted=0, until=until)


def minute(moment: datetime) -> datetime:
    """The beginning of the minute, in UTC."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def since(name: str, moment: datetime) -> str:
    """CQL condition `name >= moment`, some hours earlier, because the service reads times in a zone of its own."""
    return f'{name} >= "{moment - FARTHEST_WEST:%Y-%m-%d %H:%M}"'


def reached(position: datetime | None, row: datetime | None) -> datetime | None:
    """Position of the cursor after a row, by the service's clock, never the local one."""
    return max(filter(None, (position, row)), default=None)


class PageWalk:
    """The pages of one sync, from a stored cursor on."""

    def __init__(self, client: ConfluenceClient, options: ConfluenceOptions, reader: PageReader) -> None:
        self._client = client
        self._options = options
        self._reader = reader

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages from the cursor on; without a cursor, from the beginning.

        Raises:
            SourceDenied: none of the configured spaces is visible, which is checked at the beginning.
        """
        cursor = read_cursor(ConfluenceCursor, since, self._options.selection_hash)
        if cursor is None:
            self._client.sees_all_spaces()
            cursor = self._beginning()
        if cursor.walking:
            cursor = yield from self._all_pages(cursor)
        if not cursor.walking:
            cursor = yield from self._changes(cursor)
            yield from self._retry(cursor)

    # -- all pages -------------------------------------------------------------------------------------

    def _beginning(self) -> ConfluenceCursor:
        """First cursor, with the newest change, after which changes during the walk are searched later."""
        newest = self._client.search(f"{self._all_types()} order by lastmodified desc", ("version",), limit=1)
        first = next(iter(newest), [])
        at = self._by_now(first[0].changed if first else None)
        return ConfluenceCursor(selection=self._options.selection_hash, walking=True, at=at)

    def unread(self, cursor: ConfluenceCursor, expand: Sequence[str]) -> tuple[CqlSearch, Iterator[Content]]:
        """The search for pages after the cursor by time of creation, and its pages not yet read."""
        clause, begin = self._reader.filter.page_clause(), None
        if cursor.created:
            begin = minute(cursor.created)
            clause += f" and {since('created', begin)}"
        search = self._client.search(f"{clause} order by created asc", expand, key=BY_ID)
        rows = (c for c in search.contents() if not before(c.created, begin))
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
        result.deleted.clear()  # none of these was stored before
        after = cursor.past(contents, result.admitted).having_seen(result.rows.items())
        after = replace(
            after, retries=updated_retries(cursor.retries, [c.id for c in contents], result.failed)
        )
        yield from result.pages(cursor_json(cursor), cursor_json(after))
        return after

    def _capped(self, cursor: ConfluenceCursor) -> Generator[Page, None, ConfluenceCursor]:
        most = self._options.max_pages
        cursor = cursor.after_first_walk(until=cursor.created)
        reason = (
            f"there are more than {most} pages (maxPages); only the {most} that were created first are "
            "read, and removed pages are not deleted: raise syncOptions.maxPages, or name fewer spaces"
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
        """The time, at most the service's present: a cursor in the future would hide all changes until then."""
        return min(moment, self._client.now) if moment else None

    def _changes(self, cursor: ConfluenceCursor) -> Generator[Page, None, ConfluenceCursor]:
        cursor = replace(cursor, at=self._by_now(cursor.at))
        horizon = cursor.horizon
        if horizon is None:
            return cursor
        rows: list[Content] = []
        pages: dict[str, None] = {}
        for row in self._changed(horizon):
            if before(row.changed, horizon):
                continue
            rows.append(row)
            if row.versioned_id not in cursor.seen and _may_concern(row, cursor):
                pages.setdefault(row.id if row.is_page else row.container)
            if len(pages) >= self._options.page_size:
                cursor = yield from self._read_changed(cursor, rows, list(pages))
                rows, pages = [], {}
        return (yield from self._read_changed(cursor, rows, list(pages)))

    def _retry(self, cursor: ConfluenceCursor) -> Iterator[Page]:
        """Read the pages that are due for a retry."""
        for key in due(cursor.retries):  # one by one, because they would fail each other's batches
            cursor = yield from self._read_changed(cursor, (), [key])

    def _read_changed(
        self, cursor: ConfluenceCursor, rows: Sequence[Content], pages: Sequence[str]
    ) -> Generator[Page, None, ConfluenceCursor]:
        """Read pages for rows of changes; yields nothing if there are no pages and the cursor does not move."""
        result = self._reader.read(pages, until=cursor.until) if pages else ReadResult()
        at = cursor.at
        for row in rows:
            at = self._by_now(reached(at, row.changed))
        changed_rows = {**result.rows, **{row.versioned_id: row.changed for row in rows}}
        retries = updated_retries(cursor.retries, pages, result.failed)
        after = replace(cursor, at=at, retries=retries).having_seen(changed_rows.items())
        if pages or after != cursor:
            yield from result.pages(cursor_json(cursor), cursor_json(after))
        return after

    def _changed(self, horizon: datetime) -> Iterable[Content]:
        """Rows since the horizon, oldest first: a few by a list from the newest back, many by a longer list in order.

        Each needs few requests where the other needs many; even a low limit on requests must suffice.
        """
        expand = ("version", "history", "container")
        cql = f"{self._all_types()} and {since('lastmodified', horizon)} order by lastmodified"
        search, changed = self._client.search(f"{cql} desc", expand), list[Content]()
        for rows in islice(search, ANSWERS_BACK):
            changed += [row for row in rows if not before(row.changed, horizon)]
            if any(before(row.changed, horizon) for row in rows):
                return reversed(changed)
        return reversed(changed) if search.complete else self._client.search(f"{cql} asc", expand).contents()

    def _all_types(self) -> str:
        return self._reader.filter.clause((*self._options.page_types, *self._options.attached_types))


def _may_concern(row: Content, cursor: ConfluenceCursor) -> bool:
    """False for a page beyond the cap, and for a comment or file of a space's description, which has no page."""
    if row.is_page:
        return not before(cursor.until, row.created)
    return bool(row.container) and row.container_kind in ("page", "blogpost")


PAGES_AT_ONCE = 400
"""Pages in a piece of the id walk: about a dozen requests, so that a low limit on requests suffices."""


class ConfluenceSource:
    """Pages with their comments, and text files attached to them; external ids are those of Confluence."""

    extractor = "confluence-3"
    walks_all = False

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._client = ConfluenceClient(options)
        self._reader = PageReader(self._client, options)
        self._owners: dict[str, str] = {}
        """Attachment -> page, from the last id walk."""

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of a sync: first all contents, oldest first; later the changes since the cursor."""
        self._reader.restrictions.forget()
        with closing(self._client):
            yield from PageWalk(self._client, self._options, self._reader).pages(since)

    def ids(self, since: Cursor | None = None) -> Listing:
        """The id walk: ids and fingerprints of all present contents, 200 a request, in pieces.

        Complete only if every list reached its end, all spaces are visible and the cap was not reached.
        """
        begin = ConfluenceCursor(selection=self._options.selection_hash, walking=True)
        cursor = read_cursor(ConfluenceCursor, since, self._options.selection_hash) or begin
        left_out = Counter[str]()
        with closing(self._client):
            spaces = True
            if cursor == begin:
                self._reader.restrictions.forget()
                spaces = self._client.sees_all_spaces()
            pages, failing_ids, after, pages_complete = self._piece(cursor, left_out)
            # Listing all attachments costs less than those of given pages.
            all_pages = cursor == begin and after is None
            attached, unlisted, attached_complete = self._attached(
                [page.id for page in pages], all_pages=all_pages
            )
        versions: dict[str, str] = {}
        for page in pages:
            layers = self._reader.restrictions.layers(page)
            values = fingerprints(self._options, page, layers, attached.get(page.id, ()))
            self._owners |= dict.fromkeys(values.keys() - {page.id}, page.id)
            versions |= values if page.id not in unlisted else {}
        files = [c.id for page in failing_ids for c in attached.get(page, ()) if c.kind != "comment"]
        return Listing(
            ids=frozenset((*versions, *unlisted, *failing_ids, *files)),
            complete=all((spaces, pages_complete, attached_complete)),
            versions=versions,
            left_out=left_out,
            cursor={} if after is None else cursor_json(after),
        )

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Read these pages and attachments."""
        with closing(self._client):
            yield from self._read(ids)

    def check(self) -> list[Finding]:
        """Findings on address, credentials, deployment, spaces and number of pages."""
        with closing(self._client):
            return findings(self._client, self._options)

    def stamp(self) -> None:
        """Unsupported, returns None: only a sync detects changes."""
        return

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> None:  # noqa: ARG002
        """Unsupported, returns None: the cursor selects the changes."""
        return

    # -- the id walk -----------------------------------------------------------------------------------

    def _piece(
        self, cursor: ConfluenceCursor, left_out: Counter[str]
    ) -> tuple[list[Content], set[str], ConfluenceCursor | None, bool]:
        """The next pages that qualify, and the ids of those for which the service fails.

        Also the cursor of the next piece, None at the end, and whether no page is missing so far.
        """
        walk = PageWalk(self._client, self._options, self._reader)
        try:
            search, contents = walk.unread(cursor, PAGE_WALK)
            pages = rows = list(islice(contents, PAGES_AT_ONCE))
            has_more = next(contents, None) is not None
        except BadAnswer:  # as a single page may make it fail
            search, contents = walk.unread(cursor, ("version", "history"))
            rows = list(islice(contents, PAGES_AT_ONCE))
            has_more = next(contents, None) is not None
            pages = self._reader.pages_without_bodies([row.id for row in rows])
        qualified = self._reader.qualified(pages, left_out)
        failing_ids = {row.id for row in rows} - {page.id for page in pages}
        failing_ids |= {page.id for page in pages if self._reader.restrictions.error(page)}
        most = self._options.max_pages
        if most is not None and cursor.admitted + len(qualified) > most:
            return qualified[: most - cursor.admitted], failing_ids, None, False
        return (
            qualified,
            failing_ids,
            cursor.past(rows, len(qualified)) if has_more else None,
            has_more or search.complete,
        )

    def _attached(
        self, pages: Sequence[str], *, all_pages: bool
    ) -> tuple[Mapping[str, Sequence[Content]], set[str], bool]:
        """Comments and files by page, the pages whose lists fail, and whether no file is missing."""
        try:
            attached, complete = self._reader.comments_and_files(None if all_pages else pages)
        except BadAnswer:  # as a single comment may make it fail
            answers, errors = self._reader.divider().fetch(pages, self._reader.comments_and_files)
            listed = {page: contents for by_page, _ in answers for page, contents in by_page.items()}
            return listed, set(errors), not (errors and self._options.include_attachments)
        return attached, set(), complete

    # -- reading by ids --------------------------------------------------------------------------------

    def _read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Pages of results, one per batch; attachments are read with their pages."""
        pages, owners, problems = filter(is_page_id, ids), dict[str, str](), list[Problem]()
        for key in filterfalse(is_page_id, ids):
            try:
                owner_pages, errors = self._reader.divider().fetch([key], lambda ids: self._owner(ids[0]))
                problems += [culprit(key, error) for error in errors.values()]
                owners |= dict(zip([key], owner_pages, strict=False))
            except ConfluenceRefused as error:
                problems.append(unreadable_problem(key, error))
        deleted = tuple(key for key, owner in owners.items() if not owner)
        if deleted or problems:
            yield Page(cursor={}, deleted=deleted, failed=tuple(problems))
        todo = list(dict.fromkeys((*pages, *filter(None, owners.values()))))
        for at in range(0, len(todo), self._options.page_size):
            batch = todo[at : at + self._options.page_size]
            result = self._reader.read(batch, only=frozenset(ids))
            # Files are deleted if a page that was read no longer has them, or is deleted itself.
            present = {row.rpartition(":")[0] for row in result.rows}
            read_pages = present.union(result.deleted).intersection(batch)
            result.deleted += [k for k in owners.keys() - present if owners[k] in read_pages]
            yield from result.pages({}, {})

    def _owner(self, key: str) -> str:
        """Id of the page of an attachment; empty if it is deleted, or attachments are not read."""
        if not self._options.include_attachments:
            return ""
        return self._owners.get(key) or self._client.page_of_attachment(key)


SHOWN_SPACES = 20
SAMPLE = 50
READABLE = (
    "let the account read the restrictions of pages, on Cloud with the scope read:content.restriction:confluence; "
    "pages with unknown restrictions are not stored"
)
WRONG_ADDRESS = "check baseUrl: on Cloud https://NAME.atlassian.net/wiki, on a Server with its context path"


def findings(client: ConfluenceClient, options: ConfluenceOptions) -> list[Finding]:
    """Findings of the check: access, deployment, spaces, sample of pages.

    Raises:
        SourceUnavailable: the host cannot be reached, or asks for a pause.
    """
    subject = f"sign in at {options.base_url}"
    try:
        deployment = client.deployment
    except ConfluenceNotFound:
        detail = f"there is no API of {PRODUCT} at this address (404)"
        return [Finding(ok=False, subject=subject, detail=detail, fix=WRONG_ADDRESS)]
    except SourceDenied as error:
        return [Finding(ok=False, subject=subject, detail=error.message, fix=error.fix)]
    kind = "Confluence Cloud" if deployment.looks_cloud else "Confluence Server or Data Center"
    if deployment.looks_cloud != deployment.cloud:  # further errors would follow from that
        detail = f"{kind} answers, and deployment says {options.deployment}"
        fix = f"set deployment to {'cloud' if deployment.looks_cloud else 'server'}, or to auto"
        return [Finding(ok=False, subject=subject, detail=detail, fix=fix)]
    detail = f"{kind} accepts the credentials, API at {deployment.base}"
    results = [Finding(ok=True, subject=subject, detail=detail)]
    try:
        results += _contents(client, options)
    except (ConfluenceRefused, ConfluenceNotFound) as error:
        results.append(Finding(ok=False, subject="spaces", detail=error.message, fix=error.fix))
    return results


def _contents(client: ConfluenceClient, options: ConfluenceOptions) -> Iterator[Finding]:
    visible_spaces = client.spaces(options.space_keys)
    for key in missing_keys(visible_spaces, options.space_keys):
        detail = "does not exist, or this account may not see it"
        fix = f"check the key in spaceKeys (it is part of the space's address), or {PERMISSION}"
        yield Finding(ok=False, subject=f"space {key}", detail=detail, fix=fix)
    content_filter = ContentFilter(options)
    if options.space_keys:
        for key in sorted(visible_spaces)[:SHOWN_SPACES]:
            count = client.count(f"{content_filter.page_clause()} and space in ({cql_texts([key])})")
            archived = visible_spaces[key].get("status") == "archived" and not options.include_archived
            fix = "set includeArchived, or leave the space out" if archived else ""
            detail = f"{'is archived; ' if archived else ''}{plural(count, 'page')} found by search"
            yield Finding(ok=not archived, subject=f"space {key}", detail=detail, fix=fix)
    count = client.count(content_filter.page_clause())
    # Invisible configured spaces have findings of their own already.
    ok = bool(visible_spaces)
    detail = f"{plural(len(visible_spaces), 'space')} visible, {plural(count, 'page')} found by search"
    if options.max_pages is not None and count > options.max_pages:
        detail += (
            f", of which the {options.max_pages} oldest are read (maxPages); removed pages stay in the index"
        )
    yield Finding(ok=ok, subject="spaces", detail=detail, fix="" if ok else PERMISSION)
    yield from _sample(client, options)


def _sample(client: ConfluenceClient, options: ConfluenceOptions) -> Iterator[Finding]:
    """Finding on the newest pages, and why some are excluded: a source may have visible pages and read none."""
    reader, left_out = PageReader(client, options), Counter[str]()
    clause = f"{reader.filter.clause(options.page_types)} order by created desc"
    newest = next(iter(client.search(clause, PAGE_WALK, limit=SAMPLE)), [])
    qualified = reader.qualified(newest, left_out)
    if left_out:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in left_out.most_common())
        detail = f"of the newest {len(newest)} {len(qualified)} are read; excluded are: {reasons}"
        unreadable = any(reason.startswith(UNREADABLE) for reason in left_out)
        ok = bool(qualified) and not unreadable
        fix = "" if ok else READABLE if unreadable else "widen labels or ancestors, or set includeRestricted"
        yield Finding(ok=ok, subject="pages", detail=detail, fix=fix)
