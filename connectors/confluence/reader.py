"""Reading of pages by their ids, with comments and files, selection and restrictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple

from connectors.confluence.client import (
    BY_ID,
    CURRENT_USER,
    ConfluenceClient,
    ConfluenceNotFound,
    ConfluenceRefused,
    cql_ids,
    cql_texts,
)
from connectors.confluence.document import (
    COMMENT_FULL,
    COMMENT_WALK,
    FILE,
    NOBODY,
    PAGE_FULL,
    PAGE_WALK,
    READERS,
    Content,
    Layers,
    Readers,
    address,
    file_document,
    page_document,
    readers_of,
)
from connectors.confluence.options import MOST_PER_PAGE, PRODUCT, ConfluenceOptions
from connectors.documents.encodings import Unreadable, decode
from connectors.documents.values import build_document
from connectors.web.answers import AnswerTooLarge, BadAnswer, ServerFault
from connectors.web.division import Divider, culprit
from pipeline.documents import Cursor, Document, Json, Page, Problem
from pipeline.errors import DocumentRejected, LarderError, SourceDenied

GONE_STATUSES = frozenset({"", "trashed", "archived", "draft", "deleted", "historical"})
"""Statuses of a page that no longer exists for readers."""
TOO_LARGE = "is larger than the limit of one answer; split it"
NONE = "0"
"""An id that no content has."""


@dataclass(kw_only=True)
class ReadResult:
    """Results of the ids of one batch."""

    documents: list[Document] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of pages that do not belong to the source or may not be stored."""
    deleted: list[str] = field(default_factory=list)
    """Ids that no longer exist, or no longer belong to the source."""
    admitted: int = 0
    """Number of pages that qualify, whether they could be read or not."""
    rows: dict[str, datetime | None] = field(default_factory=dict)
    """`id:version` of all contents read, also comments and attachments, and the time of their change."""

    def pages(self, before: Cursor, after: Cursor) -> Iterator[Page]:
        """Pages of at most 50 documents; only the last one has the cursor `after`."""
        last = max(0, len(self.documents) - 1) // MOST_PER_PAGE * MOST_PER_PAGE
        for at in range(0, last, MOST_PER_PAGE):
            yield Page(cursor=before, documents=tuple(self.documents[at : at + MOST_PER_PAGE]))
        yield Page(
            cursor=after,
            documents=tuple(self.documents[last:]),
            failed=tuple(self.failed),
            skipped=tuple(self.skipped),
            left_out=self.left_out,
            deleted=tuple(dict.fromkeys(self.deleted)),
        )


class _FetchedPage(NamedTuple):
    """A page as returned, with its comments and files."""

    page: Content
    attached: Sequence[Content]
    error: LarderError | None = None
    """Reason why its body could not be read."""


def before(moment: datetime | None, limit: datetime | None) -> bool:
    """True if a time is earlier than another; False if one of them is unknown."""
    return moment is not None and limit is not None and moment < limit


def unreadable_problem(key: str, error: ConfluenceRefused) -> Problem:
    """The problem of a content that the account may not read; its stored document is kept."""
    return Problem(external_id=key, reason=f"{error.message}; its stored state is kept until it can be read")


class PageReader:
    """Reads documents by ids, with one or two requests for fifty of them."""

    def __init__(self, client: ConfluenceClient, options: ConfluenceOptions) -> None:
        self._client = client
        self._options = options
        self.filter = ContentFilter(options)
        self._divider = Divider(probe=lambda: self._search([NONE], PAGE_FULL))
        self.restrictions = Restrictions(client, self.divider)
        self._base = ""
        self._files_elsewhere = False

    def read(
        self, ids: Sequence[str], *, only: Collection[str] | None = None, until: datetime | None = None
    ) -> ReadResult:
        """Read the pages with these ids, at most 50, and their text files.

        Args:
            ids: of pages and blog posts.
            only: ids of the pages and attachments to return documents of; None: of all.
            until: pages created later are skipped, as beyond the cap.
        """
        result = ReadResult()
        unique_ids = list(dict.fromkeys(ids))
        self._divider = Divider(
            probe=self._divider.probe
        )  # an earlier probe of the service may no longer hold
        fetched_pages = self._fetch(unique_ids, result)
        known_ids = {f.page.id for f in fetched_pages} | {problem.external_id for problem in result.failed}
        fetched_pages += self._missing([key for key in unique_ids if key not in known_ids], result)
        fetched_pages = [f for f in fetched_pages if not before(until, f.page.created)]
        qualified = {page.id for page in self.qualified([f.page for f in fetched_pages], result.left_out)}
        for fetched in fetched_pages:
            if (error := self.restrictions.error(fetched.page)) and not self.filter.objection(fetched.page):
                subject = "its restrictions or those of a page above it"
                result.failed.append(culprit(fetched.page.id, error, subject=subject))
            else:
                self._take(fetched, fetched.page.id in qualified, only, result)
        return result

    def divider(self) -> Divider:
        """The divider of the current read."""
        return self._divider

    def pages_without_bodies(self, ids: Sequence[str]) -> list[Content]:
        """These pages without their bodies, for lists that fail because of a page; such pages are absent."""
        pages: list[Content] = []
        for at in range(0, len(ids), IDS_AT_ONCE):
            batches, _ = self._divider.fetch(
                ids[at : at + IDS_AT_ONCE], lambda part: self._search(part, PAGE_WALK)
            )
            pages += [page for batch in batches for page in batch]
        return pages

    def qualified(self, pages: Sequence[Content], left_out: Counter[str]) -> list[Content]:
        """The pages that belong to the source and may be stored; others are counted in `left_out`.

        Pages whose restrictions failed to load are not returned either: see `Restrictions.error`.
        """
        reasons = {page.id: self.filter.objection(page) for page in pages}
        candidates = [page for page in pages if not reasons[page.id]]
        self.restrictions.load(candidates)
        candidates = [page for page in candidates if not self.restrictions.error(page)]
        restricted = self._options.include_restricted
        reasons |= {page.id: self.restrictions.barrier(page, restricted=restricted) for page in candidates}
        left_out.update(filter(None, reasons.values()))
        return [page for page in candidates if not reasons[page.id]]

    def comments_and_files(
        self, pages: Sequence[str] | None, *, texts: bool = False
    ) -> tuple[dict[str, list[Content]], bool]:
        """Comments and files by page, of these pages or of all (None), and whether the lists are complete.

        By search, because the endpoints per page are gone from Cloud, or cost a request each.

        Raises:
            SourceUnavailable: a list for given pages is incomplete.
        """
        attached: dict[str, list[Content]] = {page: [] for page in pages or ()}
        complete = True
        for kind in self._options.attached_types:
            expand = {"comment": COMMENT_FULL if texts else COMMENT_WALK}.get(kind, FILE)
            clauses = [self.filter.clause([kind])]
            if pages is not None:
                clauses = [
                    f"type = {kind} and container in ({cql_ids(pages[at : at + IDS_AT_ONCE])})"
                    for at in range(0, len(pages), IDS_AT_ONCE)
                ]
            for clause in clauses:
                search = self._client.search(f"{clause} order by created asc", expand, key=BY_ID)
                for content in search.contents() if pages is None else search.all():
                    attached.setdefault(content.container, []).append(content)
                complete &= search.complete
        return attached, complete

    # -- requests --------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """Base address of links for people."""
        return self._base or self._client.deployment.base

    def _fetch(self, ids: Sequence[str], result: ReadResult) -> list[_FetchedPage]:
        """Pages with bodies; one that fails its batch is isolated, and read without body or reported in `result`."""
        batches, errors = self._divider.fetch(
            ids, lambda part: self._with_attachments(self._search(part, PAGE_FULL))
        )
        for key, error in errors.items():
            without_body, errors_without_body = self._divider.fetch([key], partial(self._without_body, error))
            batches += without_body
            result.failed += [culprit(key, error) for error in errors_without_body.values()]
        fetched_pages = [fetched for batch in batches for fetched in batch]
        return sorted(fetched_pages, key=lambda fetched: ids.index(fetched.page.id))

    def _without_body(self, error: LarderError, ids: Sequence[str]) -> list[_FetchedPage]:
        return self._with_attachments(self._search(ids, PAGE_WALK), error)

    def _with_attachments(
        self, pages: Sequence[Content], error: LarderError | None = None
    ) -> list[_FetchedPage]:
        if not pages:
            return []
        attached, _ = self.comments_and_files([page.id for page in pages], texts=error is None)
        return [_FetchedPage(page, attached[page.id], error) for page in pages]

    def _search(self, ids: Sequence[str], expand: Sequence[str]) -> list[Content]:
        search = self._client.search(f"id in ({cql_ids(ids)})", expand)
        contents = search.all()
        self._base = search.base or self._base
        return [content for content in contents if content.id in ids and content.is_page]

    def _missing(self, ids: Sequence[str], result: ReadResult) -> list[_FetchedPage]:
        """Check pages that search did not return: report them as deleted or missing; returns those found after all."""
        missing_ids: list[str] = []
        for key in ids:
            try:
                statuses, errors = self._divider.fetch([key], lambda ids: self._client.page_status(ids[0]))
                if errors:
                    result.failed.append(culprit(key, errors[key]))
                    continue
                if statuses[0] in GONE_STATUSES:
                    missing_ids.append(key)
                    continue
                reason = f"page {key} exists, but search does not return it; the next full walk tries again"
                result.failed.append(Problem(external_id=key, reason=reason))
            except ConfluenceRefused as error:
                result.failed.append(unreadable_problem(key, error))
        late_pages = self._fetch(missing_ids, result)  # a 404 alone is no proof
        found_late = {fetched.page.id for fetched in late_pages}
        result.deleted += [key for key in missing_ids if key not in found_late]
        return late_pages

    # -- documents -------------------------------------------------------------------------------------

    def _take(
        self, fetched: _FetchedPage, qualified: bool, only: Collection[str] | None, result: ReadResult
    ) -> None:
        page, attached, _ = fetched
        result.rows |= {content.versioned_id: content.changed for content in (page, *attached)}
        files = [content for content in attached if content.kind != "comment"]
        ids = [page.id, *(file.id for file in files)]
        if not qualified:
            result.deleted += ids
            return
        requested_ids = set(ids) if only is None else only
        layers = self.restrictions.layers(page)
        result.admitted += 1
        if page.id in requested_ids:
            self._take_page(fetched, layers, result)
        for file in files:
            if file.id in requested_ids:
                if file.becomes_document(self._options):
                    self._take_file(file, page, layers, result)
                else:  # it may have been one before it grew or was renamed
                    result.deleted.append(file.id)

    def _take_page(self, fetched: _FetchedPage, layers: Layers, result: ReadResult) -> None:
        page, attached, error = fetched
        url, name = address(self.base, page), f"page {page.title!r}"
        if isinstance(error, BadAnswer):
            result.failed.append(culprit(page.id, error, url=url, subject=f"the text of {name}"))
            return
        try:
            if error:
                raise DocumentRejected(f"{name} {TOO_LARGE}")  # noqa: TRY301 (as every other reason)
            document = build_document(
                lambda: page_document(self._options, self.base, page, layers, attached), name
            )
        except DocumentRejected as error:
            result.failed.append(Problem(external_id=page.id, reason=str(error), url=url))
            return
        if document:
            result.documents.append(document)
            return
        reason = f"{name} holds no text, so no search can find it"
        skipped = Problem(external_id=page.id, reason=reason, url=url, because="holds no text")
        result.skipped.append(skipped)
        result.deleted.append(page.id)

    def _take_file(self, file: Content, page: Content, layers: Layers, result: ReadResult) -> None:
        """Download one text file into `result`.

        Raises:
            SourceDenied: the credentials are refused in general.
            SourceUnavailable: the service does not answer.
        """
        problems, reason, because = result.failed, "", ""
        try:
            if not file.download:
                raise Unreadable("has no address to download it from")  # noqa: TRY301 (as every other reason)
            answers, errors = self._divider.fetch(
                [file.id], lambda _id: self._client.download(file.download, html=file.suffix == ".html")
            )
            if error := errors.get(file.id):
                if not isinstance(error, BadAnswer):
                    raise error
                at = address(self.base, file)
                result.failed.append(culprit(file.id, error, url=at, subject=file.title, key=page.id))
                return
            data = answers[0]
            if len(data) > self._options.attachment_max_bytes:
                raise AnswerTooLarge  # noqa: TRY301 (ditto)
            text, encoding = decode(data)
            document = build_document(
                lambda: file_document(self._options, self.base, file, page, layers, text, encoding),
                file.title,
            )
        except AnswerTooLarge:
            problems, reason = result.skipped, "is larger than the limit; split it"
            because = "larger than attachmentMaxBytes"
        except (Unreadable, DocumentRejected) as error:
            reason = str(error)
        except (ConfluenceNotFound, SourceDenied) as error:
            self._prove_credentials(error)
            reason = f"cannot be downloaded: {error.message}"
        else:
            if document:
                result.documents.append(document)
                return
            problems, reason = result.skipped, "holds no text"
            because = reason
        url = address(self.base, file)
        reason = f"{file.title} {reason}"
        problems.append(Problem(external_id=file.id, reason=reason, url=url, because=because))

    def _prove_credentials(self, error: ConfluenceNotFound | SourceDenied) -> None:
        """Raise `error` if the credentials are refused in general, not only for a file on another host."""
        if self._files_elsewhere or isinstance(error, ConfluenceNotFound | ConfluenceRefused):
            return
        try:
            self._client.json(CURRENT_USER)
        except SourceDenied:
            raise error from None
        self._files_elsewhere = True


class ContentFilter:
    """The configured spaces, types, labels and trees, as CQL and as a test of one page."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._spaces = frozenset(key.casefold() for key in options.space_keys)
        self._include = frozenset(label.casefold() for label in options.labels.include)
        self._exclude = frozenset(label.casefold() for label in options.labels.exclude)

    def clause(self, types: Sequence[str]) -> str:
        """CQL for all contents of these types in the spaces; `objection` tests the other conditions."""
        spaces = f" and space in ({cql_texts(self._options.space_keys)})" if self._spaces else ""
        return f"type in ({', '.join(types)}){spaces}"

    def page_clause(self) -> str:
        """CQL for the configured pages and blog posts, for walks over all of them."""
        clause = self.clause(self._options.page_types)
        if self._include:
            clause += f" and label in ({cql_texts(sorted(self._include))})"
        if self._options.ancestors:
            roots = cql_ids(self._options.ancestors)
            clause += f" and (ancestor in ({roots}) or id in ({roots}))"
        return clause

    def objection(self, page: Content) -> str:
        """Reason why a page does not belong to the source; empty if it does. Restrictions are not tested."""
        roots = self._options.ancestors
        tree = {page.id, *(ancestor for ancestor, _ in page.ancestors)}
        labels = {label.casefold() for label in page.labels}
        wrong = {
            "of a type that is not read": page.kind not in self._options.page_types,
            "archived or a draft": page.status != "current",
            "in another space": self._spaces and page.space_key.casefold() not in self._spaces,
            "not below ancestors": roots and tree.isdisjoint(roots),
            "without a label of labels.include": self._include and labels.isdisjoint(self._include),
            "with a label of labels.exclude": not labels.isdisjoint(self._exclude),
        }
        return next((reason for reason, holds in wrong.items() if holds), "")


IDS_AT_ONCE = 100
UNREADABLE = "restrictions unreadable"


class Restrictions:
    """The restrictions of pages, cached until `forget`."""

    def __init__(self, client: ConfluenceClient, divider: Callable[[], Divider]) -> None:
        self._client = client
        self._divider = divider
        self._readers: dict[str, Readers] = {}
        self._unknown_because: dict[str, str] = {}
        """Reasons why restrictions could not be determined, by page."""
        self._errors: dict[str, LarderError] = {}
        """Errors of the service, by page."""

    def forget(self) -> None:
        """Clear the cache, for a new walk."""
        self._readers.clear()
        self._unknown_because.clear()
        self._errors.clear()

    def error(self, page: Content) -> LarderError | None:
        """The service's error over restrictions of a page or a page above it, if any; its stored state is kept then."""
        path = (*(ancestor for ancestor, _ in page.ancestors), page.id)
        return next((self._errors[key] for key in path if key in self._errors), None)

    def load(self, pages: Sequence[Content]) -> None:
        """Load the restrictions of these pages from their answers, and those of the pages above by requests."""
        unresolved = [page.id for page in pages if not self._record(page)]
        above = {ancestor for page in pages for ancestor, _ in page.ancestors if ancestor}
        missing = sorted(above - self._readers.keys())
        for at in range(0, len(missing), IDS_AT_ONCE):
            batch = missing[at : at + IDS_AT_ONCE]
            answers, _ = self._divider().fetch(batch, self._search_readers)
            resolved_ids = {
                content.id for contents in answers for content in contents if self._record(content)
            }
            unresolved += [key for key in batch if key not in resolved_ids]
        for key in dict.fromkeys(unresolved):
            if key not in self._readers:
                self._readers[key] = self._readers_of_page(key)

    def layers(self, page: Content) -> list[list[str]]:
        """Restrictions of a page, outermost first; empty if it has none. Readers of its space are unknown."""
        path = (*(ancestor for ancestor, _ in page.ancestors), page.id)
        return [list(readers) for key in path if (readers := self._readers.get(key, NOBODY))]

    def barrier(self, page: Content, *, restricted: bool) -> str:
        """Reason why a page may not be stored; empty if it is open, or if `restricted` and its readers are known."""
        path, layers = (*(ancestor for ancestor, _ in page.ancestors), page.id), self.layers(page)
        reason = next((self._unknown_because[key] for key in path if key in self._unknown_because), "")
        if reason or [*NOBODY] in layers:
            return f"{UNREADABLE}, because {reason or 'a reader of it, or of a page above it, has no name'}"
        return "not open to everybody" * bool(layers and not restricted)

    def _record(self, content: Content) -> bool:
        """Record the restriction in a search result; False if it has none."""
        if content.readers is None:
            return False
        self._readers[content.id] = content.readers
        return True

    def _search_readers(self, ids: Sequence[str]) -> list[Content]:
        return self._client.search(f"id in ({cql_ids(ids)})", READERS).all()

    def _readers_of_page(self, key: str) -> Readers:
        """Readers of a page from the endpoint for one page; NOBODY if they are not in the answer."""
        try:
            answers, errors = self._divider().fetch([key], self._request_readers)
        except (ConfluenceNotFound, ConfluenceRefused, ServerFault) as error:
            if isinstance(error, ServerFault) and error.status != 404:  # noqa: PLR2004 (a web page: Not Found)
                raise
            self._unknown_because[key] = error.message
            return NOBODY
        self._errors |= errors
        readers = readers_of(answers[0].get("restrictions")) if answers else NOBODY
        if readers is None:
            self._unknown_because[key] = f"{PRODUCT} does not return them"
        return NOBODY if readers is None else readers

    def _request_readers(self, ids: Sequence[str]) -> Json:
        path = f"rest/api/content/{ids[0]}/restriction/byOperation/read"
        return self._client.json(path, {"expand": "restrictions.user,restrictions.group"})
