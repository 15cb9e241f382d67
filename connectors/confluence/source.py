"""Confluence as a source: syncs by `walk`, the id walk, and reading by ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import filterfalse, islice

from connectors.confluence.client import (
    PERMISSION,
    ConfluenceClient,
    ConfluenceNotFound,
    ConfluenceRefused,
    cql_texts,
    is_page_id,
    missing_keys,
)
from connectors.confluence.document import PAGE_WALK, Content, fingerprints
from connectors.confluence.options import PRODUCT, ConfluenceOptions
from connectors.confluence.reader import UNREADABLE, ContentFilter, PageReader, left_as_it_is
from connectors.confluence.walk import ConfluenceCursor, PageWalk
from connectors.documents.cursors import cursor_json, read_cursor
from pipeline.documents import Cursor, Finding, Listing, Page, Problem
from pipeline.errors import SourceDenied

PAGES_AT_ONCE = 400
"""Pages in a piece of the id walk: a dozen requests, which a small allowance must lead through."""


class ConfluenceSource:
    """Pages with their comments, and text files attached to them; external ids are those of Confluence."""

    extractor = "confluence-2"
    walks_all = False

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._client = ConfluenceClient(options)
        self._reader = PageReader(self._client, options)
        self._owners: dict[str, str] = {}
        """Attachment -> page, as far as an id walk has shown."""

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """First everything, oldest first; later what search shows as changed since the cursor."""
        self._reader.restrictions.forget()
        with closing(self._client):
            yield from PageWalk(self._client, self._options, self._reader).pages(since)

    def ids(self, since: Cursor | None = None) -> Listing:
        """The id walk: everything that is there now, with fingerprints, at 200 contents a request, in pieces.

        Complete only if every list reached its end, all spaces are visible and the cap was not met.
        """
        begin = ConfluenceCursor(selection=self._options.selection, walking=True)
        cursor = read_cursor(ConfluenceCursor, since, self._options.selection) or begin
        left_out = Counter[str]()
        with closing(self._client):
            spaces = True
            if cursor == begin:
                self._reader.restrictions.forget()
                spaces = self._client.sees_all_spaces()
            pages, after, pages_complete = self._piece(cursor, left_out)
            # All there are cost less than those of some pages.
            of = None if cursor == begin and after is None else [page.id for page in pages]
            attached, attached_complete = self._reader.comments_and_files(of)
        versions: dict[str, str] = {}
        for page in pages:
            layers = self._reader.restrictions.layers(page)
            found = fingerprints(self._options, page, layers, attached.get(page.id, ()))
            self._owners |= dict.fromkeys(found.keys() - {page.id}, page.id)
            versions |= found
        return Listing(
            ids=frozenset(versions),
            complete=spaces and pages_complete and attached_complete,
            versions=versions,
            left_out=left_out,
            cursor={} if after is None else cursor_json(after),
        )

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These pages and attachments as they are now."""
        with closing(self._client):
            yield from self._read(ids)

    def check(self) -> list[Finding]:
        """Address, credentials, deployment, spaces, number of pages."""
        with closing(self._client):
            return findings(self._client, self._options)

    def stamp(self) -> None:
        """Nothing cheaper than a sync tells whether something changed."""
        return

    # -- the id walk -----------------------------------------------------------------------------------

    def _piece(
        self, cursor: ConfluenceCursor, left_out: Counter[str]
    ) -> tuple[list[Content], ConfluenceCursor | None, bool]:
        """The next pages that qualify, where the piece behind them begins, and whether none is missing so far."""
        search, contents = PageWalk(self._client, self._options, self._reader).unread(cursor, PAGE_WALK)
        rows = list(islice(contents, PAGES_AT_ONCE))
        more = next(contents, None) is not None
        found = self._reader.qualified(rows, left_out)
        most = self._options.max_pages
        if most is not None and cursor.admitted + len(found) > most:
            return found[: most - cursor.admitted], None, False
        return found, cursor.behind(rows, len(found)) if more else None, more or search.complete

    # -- reading by ids --------------------------------------------------------------------------------

    def _read(self, ids: Sequence[str]) -> Iterator[Page]:
        """What became of each id, a batch a page; the page of each attachment is found first."""
        pages, owners, problems = filter(is_page_id, ids), dict[str, str](), list[Problem]()
        for key in filterfalse(is_page_id, ids):
            try:
                owners[key] = self._owner(key)
            except ConfluenceRefused as error:
                problems.append(left_as_it_is(key, error))
        gone = tuple(key for key, owner in owners.items() if not owner)
        if gone or problems:
            yield Page(cursor={}, deleted=gone, failed=tuple(problems))
        todo = list(dict.fromkeys((*pages, *filter(None, owners.values()))))
        for at in range(0, len(todo), self._options.page_size):
            batch = todo[at : at + self._options.page_size]
            result = self._reader.read(batch, only=frozenset(ids))
            # Files that hang no more on a page that was looked at are gone, and so are those of a page that is.
            present = {row.rpartition(":")[0] for row in result.rows}
            looked_at = present.union(result.deleted).intersection(batch)
            result.deleted += [k for k, owner in owners.items() if k not in present and owner in looked_at]
            yield from result.pages({}, {})

    def _owner(self, key: str) -> str:
        """The page an attachment hangs on; empty if it is gone, or attachments are not wanted."""
        if not self._options.include_attachments:
            return ""
        return self._owners.get(key) or self._client.page_of_attachment(key)


SHOWN_SPACES = 20
SAMPLE = 50
READABLE = (
    "let the account read the restrictions of pages, on Cloud with the scope read:content.restriction:confluence; "
    "what is not known to be open is not stored"
)
WRONG_ADDRESS = "check baseUrl: on Cloud https://NAME.atlassian.net/wiki, on a Server with its context path"


def findings(client: ConfluenceClient, options: ConfluenceOptions) -> list[Finding]:
    """What was tried, what came back, what to do.

    Raises:
        SourceUnavailable: the host cannot be reached, or asks to come back later.
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
    if deployment.looks_cloud != deployment.cloud:  # what else goes wrong follows from that
        detail = f"{kind} answers, and deployment says {options.deployment}"
        fix = f"set deployment to {'cloud' if deployment.looks_cloud else 'server'}, or to auto"
        return [Finding(ok=False, subject=subject, detail=detail, fix=fix)]
    detail = f"{kind} accepts the credentials, API at {deployment.base}"
    found = [Finding(ok=True, subject=subject, detail=detail)]
    try:
        found += _contents(client, options)
    except (ConfluenceRefused, ConfluenceNotFound) as error:
        found.append(Finding(ok=False, subject="spaces", detail=error.message, fix=error.fix))
    return found


def _contents(client: ConfluenceClient, options: ConfluenceOptions) -> Iterator[Finding]:
    found = client.spaces(options.space_keys)
    for key in missing_keys(found, options.space_keys):
        detail = "does not exist, or this account may not see it"
        fix = f"check the key in spaceKeys (it stands in the space's address), or {PERMISSION}"
        yield Finding(ok=False, subject=f"space {key}", detail=detail, fix=fix)
    content_filter = ContentFilter(options)
    if options.space_keys:
        for key in sorted(found)[:SHOWN_SPACES]:
            count = client.count(f"{content_filter.page_clause()} and space in ({cql_texts([key])})")
            archived = found[key].get("status") == "archived" and not options.include_archived
            fix = "set includeArchived, or leave the space out" if archived else ""
            state = "is archived; " if archived else ""
            yield Finding(ok=not archived, subject=f"space {key}", detail=f"{state}{_pages(count)}", fix=fix)
    count = client.count(content_filter.page_clause())
    # A list of configured spaces that are all invisible has been said already.
    ok, detail = bool(found), f"{len(found)} spaces visible, {_pages(count)}"
    if options.max_pages is not None and count > options.max_pages:
        detail += f", of which maxPages lets the {options.max_pages} oldest in; pages removed there stay in the index"
    yield Finding(ok=ok, subject="spaces", detail=detail, fix="" if ok else PERMISSION)
    yield from _sample(client, options)


def _sample(client: ConfluenceClient, options: ConfluenceOptions) -> Iterator[Finding]:
    """Which of the newest pages would be left out, and why: a source may show pages and yield none."""
    reader, left_out = PageReader(client, options), Counter[str]()
    clause = f"{reader.filter.clause(options.page_types)} order by created desc"
    newest = next(iter(client.search(clause, PAGE_WALK, limit=SAMPLE)), [])
    taken = reader.qualified(newest, left_out)
    if left_out:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in left_out.most_common())
        detail = f"of the newest {len(newest)} {len(taken)} are taken in; left out are: {reasons}"
        unreadable = any(reason.startswith(UNREADABLE) for reason in left_out)
        ok = bool(taken) and not unreadable
        fix = "" if ok else READABLE if unreadable else "widen labels or ancestors, or set includeRestricted"
        yield Finding(ok=ok, subject="pages", detail=detail, fix=fix)


def _pages(count: int) -> str:
    return f"{count} page{'' if count == 1 else 's'} found by search"
