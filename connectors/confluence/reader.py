"""Reads pages by their ids, with comments and files: what became of each, and which belong to the source."""

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

GONE = frozenset({"", "trashed", "archived", "draft", "deleted", "historical"})
"""Statuses of a page that is no longer there."""
TOO_LARGE = "is larger than the limit of one answer; split it"
NONE = "0"
"""No content has this id."""


@dataclass(kw_only=True)
class ReadResult:
    """What became of the ids of one batch."""

    documents: list[Document] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> how many pages do not belong to the source or may not be stored."""
    deleted: list[str] = field(default_factory=list)
    """What is gone, or does not belong to the source any more."""
    admitted: int = 0
    """Pages that qualify, read or not."""
    rows: dict[str, datetime | None] = field(default_factory=dict)
    """`id:version` of all that was read, comments and attachments too, and when it changed."""

    def pages(self, before: Cursor, after: Cursor) -> Iterator[Page]:
        """At most 50 documents each; only the last page has the cursor behind them."""
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
    """A page as it came, with its comments and files."""

    page: Content
    attached: Sequence[Content]
    error: LarderError | None = None
    """Why its body could not be had."""


def before(moment: datetime | None, limit: datetime | None) -> bool:
    """True if a time is earlier than another; False if one of them is not known."""
    return moment is not None and limit is not None and moment < limit


def unreadable_problem(key: str, error: ConfluenceRefused) -> Problem:
    """The report of a content that we may not look at, and that therefore stays."""
    return Problem(external_id=key, reason=f"{error.message}; it is left as it is until it can be looked at")


class PageReader:
    """Turns ids into documents, with a request or two for fifty of them."""

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
        """The pages with these ids, at most 50, and their text files.

        Args:
            ids: of pages and blog posts.
            only: ids of the pages and attachments that documents are wanted of; None: of all.
            until: pages made later are passed over: they lie beyond the cap.
        """
        result = ReadResult()
        wanted = list(dict.fromkeys(ids))
        self._divider = Divider(
            probe=self._divider.probe
        )  # what was proven of the service was so a while ago
        found = self._fetch(wanted, result)
        there = {f.page.id for f in found} | {problem.external_id for problem in result.failed}
        found += self._missing([key for key in wanted if key not in there], result)
        found = [f for f in found if not before(until, f.page.created)]
        qualified = {page.id for page in self.qualified([f.page for f in found], result.left_out)}
        for fetched in found:
            if (error := self.restrictions.error(fetched.page)) and not self.filter.objection(fetched.page):
                what = "who may read it or a page above it"
                result.failed.append(culprit(fetched.page.id, error, what=what))
            else:
                self._take(fetched, fetched.page.id in qualified, only, result)
        return result

    def divider(self) -> Divider:
        """The one of this reading."""
        return self._divider

    def looked_at(self, ids: Sequence[str]) -> list[Content]:
        """These pages without their text, for a list that one of them breaks; those that do so are absent."""
        found: list[Content] = []
        for at in range(0, len(ids), IDS_AT_ONCE):
            batches, _ = self._divider.fetch(
                ids[at : at + IDS_AT_ONCE], lambda part: self._search(part, PAGE_WALK)
            )
            found += [page for batch in batches for page in batch]
        return found

    def qualified(self, pages: Sequence[Content], left_out: Counter[str]) -> list[Content]:
        """Those that belong to the source and may be stored; the others are counted in `left_out`.

        Neither are those whose restrictions the service failed over: see `Restrictions.error`.
        """
        reasons = {page.id: self.filter.objection(page) for page in pages}
        held = [page for page in pages if not reasons[page.id]]
        self.restrictions.load(held)
        held = [page for page in held if not self.restrictions.error(page)]
        restricted = self._options.include_restricted
        reasons |= {page.id: self.restrictions.barrier(page, restricted=restricted) for page in held}
        left_out.update(filter(None, reasons.values()))
        return [page for page in held if not reasons[page.id]]

    def comments_and_files(
        self, pages: Sequence[str] | None, *, texts: bool = False
    ) -> tuple[dict[str, list[Content]], bool]:
        """What is attached to these pages, or to all (None), with or without texts; whether the lists are complete.

        They are searched for: the endpoints per page are gone from Cloud, or cost a request each.

        Raises:
            SourceUnavailable: a list for given pages broke off.
        """
        found: dict[str, list[Content]] = {page: [] for page in pages or ()}
        complete = True
        for kind in self._options.attached_types:
            expand = {"comment": COMMENT_FULL if texts else COMMENT_WALK}.get(kind, FILE)
            clauses = [self.filter.clause([kind])]
            if pages is not None:
                clauses = [
                    f"type = {kind} and container in ({cql_ids(pages[at : at + IDS_AT_ONCE])})"
                    for at in range(0, len(pages), IDS_AT_ONCE)
                ]
            for where in clauses:
                search = self._client.search(f"{where} order by created asc", expand, key=BY_ID)
                for content in search.contents() if pages is None else search.all():
                    found.setdefault(content.container, []).append(content)
                complete &= search.complete
        return found, complete

    # -- requests --------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """What links for people start with."""
        return self._base or self._client.deployment.base

    def _fetch(self, ids: Sequence[str], result: ReadResult) -> list[_FetchedPage]:
        """With bodies; a page that breaks its batch is isolated and comes without, or is told in `result`."""
        batches, errors = self._divider.fetch(
            ids, lambda part: self._with_attachments(self._search(part, PAGE_FULL))
        )
        for key, error in errors.items():
            light, still = self._divider.fetch([key], partial(self._without_body, error))
            batches += light
            result.failed += [culprit(key, error) for error in still.values()]
        found = [fetched for batch in batches for fetched in batch]
        return sorted(found, key=lambda fetched: ids.index(fetched.page.id))

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
        found = search.all()
        self._base = search.base or self._base
        return [content for content in found if content.id in ids and content.is_page]

    def _missing(self, ids: Sequence[str], result: ReadResult) -> list[_FetchedPage]:
        """Pages that search does not show: gone, or only not shown just now? Those that come late."""
        gone: list[str] = []
        for key in ids:
            try:
                statuses, errors = self._divider.fetch([key], lambda ids: self._client.page_status(ids[0]))
                if errors:
                    result.failed.append(culprit(key, errors[key]))
                    continue
                if statuses[0] in GONE:
                    gone.append(key)
                    continue
                reason = f"page {key} is there, but search does not show it; the next full walk looks again"
                result.failed.append(Problem(external_id=key, reason=reason))
            except ConfluenceRefused as error:
                result.failed.append(unreadable_problem(key, error))
        late = self._fetch(gone, result)  # a 404 alone is not believed
        back = {fetched.page.id for fetched in late}
        result.deleted += [key for key in gone if key not in back]
        return late

    # -- documents -------------------------------------------------------------------------------------

    def _take(
        self, fetched: _FetchedPage, qualified: bool, only: Collection[str] | None, result: ReadResult
    ) -> None:
        page, attached, _ = fetched
        result.rows |= {content.versioned_id: content.changed for content in (page, *attached)}
        files = [one for one in attached if one.kind != "comment"]
        ids = [page.id, *(file.id for file in files)]
        if not qualified:
            result.deleted += ids
            return
        wanted = set(ids) if only is None else only
        layers = self.restrictions.layers(page)
        result.admitted += 1
        if page.id in wanted:
            self._take_page(fetched, layers, result)
        for file in files:
            if file.id in wanted:
                if file.becomes_document(self._options):
                    self._take_file(file, page, layers, result)
                else:  # it may have been one before it grew or got another name
                    result.deleted.append(file.id)

    def _take_page(self, fetched: _FetchedPage, layers: Layers, result: ReadResult) -> None:
        page, attached, error = fetched
        url, name = address(self.base, page), f"page {page.title!r}"
        if isinstance(error, BadAnswer):
            result.failed.append(culprit(page.id, error, url=url, what=f"the text of {name}"))
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
        reason = f"{name} holds no text; nothing of it can be found"
        skipped = Problem(external_id=page.id, reason=reason, url=url, because="holds no text")
        result.skipped.append(skipped)
        result.deleted.append(page.id)

    def _take_file(self, file: Content, page: Content, layers: Layers, result: ReadResult) -> None:
        """Downloads one text file.

        Raises:
            SourceDenied: the credentials are refused altogether.
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
                result.failed.append(culprit(file.id, error, url=at, what=file.title, key=page.id))
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
        """A refusal of this one file (it lies on another host) is no refusal of our credentials."""
        if self._files_elsewhere or isinstance(error, ConfluenceNotFound | ConfluenceRefused):
            return
        try:
            self._client.json(CURRENT_USER)
        except SourceDenied:
            raise error from None
        self._files_elsewhere = True


class ContentFilter:
    """The configured spaces, types, labels and trees: as CQL, and as a look at one page."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._spaces = frozenset(key.casefold() for key in options.space_keys)
        self._include = frozenset(label.casefold() for label in options.labels.include)
        self._exclude = frozenset(label.casefold() for label in options.labels.exclude)

    def clause(self, types: Sequence[str]) -> str:
        """Everything of these types in the spaces; what does not qualify is told apart by `holds`."""
        spaces = f" and space in ({cql_texts(self._options.space_keys)})" if self._spaces else ""
        return f"type in ({', '.join(types)}){spaces}"

    def page_clause(self) -> str:
        """Pages and blog posts only, and no more of them than need be: for walks over all of them."""
        found = self.clause(self._options.page_types)
        if self._include:
            found += f" and label in ({cql_texts(sorted(self._include))})"
        if self._options.ancestors:
            roots = cql_ids(self._options.ancestors)
            found += f" and (ancestor in ({roots}) or id in ({roots}))"
        return found

    def objection(self, page: Content) -> str:
        """Why it does not belong to the source; empty if it does. Restrictions are not looked at."""
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
    """The restrictions of pages; what was found out is kept until `forget`."""

    def __init__(self, client: ConfluenceClient, divider: Callable[[], Divider]) -> None:
        self._client = client
        self._divider = divider
        self._known: dict[str, Readers] = {}
        self._unclear: dict[str, str] = {}
        """Why the restrictions of these could not be found out."""
        self._errors: dict[str, LarderError] = {}
        """Where the service failed over them."""

    def forget(self) -> None:
        """A new walk asks anew."""
        self._known.clear()
        self._unclear.clear()
        self._errors.clear()

    def error(self, page: Content) -> LarderError | None:
        """Why it is not known now who may read a page, where that is a fault of the service: it stays as it is."""
        path = (*(ancestor for ancestor, _ in page.ancestors), page.id)
        return next((self._errors[key] for key in path if key in self._errors), None)

    def load(self, pages: Sequence[Content]) -> None:
        """Takes in what the answers say, and finds out about the pages above."""
        unclear = [page.id for page in pages if not self._note(page)]
        above = {ancestor for page in pages for ancestor, _ in page.ancestors if ancestor}
        missing = sorted(above - self._known.keys())
        for at in range(0, len(missing), IDS_AT_ONCE):
            batch = missing[at : at + IDS_AT_ONCE]
            answers, _ = self._divider().fetch(batch, self._shown)
            clear = {content.id for shown in answers for content in shown if self._note(content)}
            unclear += [key for key in batch if key not in clear]
        for key in dict.fromkeys(unclear):
            if key not in self._known:
                self._known[key] = self._of_one(key)

    def layers(self, page: Content) -> list[list[str]]:
        """Outermost first; empty if everybody in the space may read it, which no answer tells the readers of."""
        path = (*(ancestor for ancestor, _ in page.ancestors), page.id)
        return [list(readers) for key in path if (readers := self._known.get(key, NOBODY))]

    def barrier(self, page: Content, *, restricted: bool) -> str:
        """Why it may not be stored; empty if everybody may read it, or those few are known and it is wanted."""
        path, layers = (*(ancestor for ancestor, _ in page.ancestors), page.id), self.layers(page)
        why = next((self._unclear[key] for key in path if key in self._unclear), "")
        if why or [*NOBODY] in layers:
            return f"{UNREADABLE}, because {why or 'one of its readers, or a page above it, has no name'}"
        return "not open to everybody" * bool(layers and not restricted)

    def _note(self, content: Content) -> bool:
        """Keeps the restriction that a search has shown; False if it has not."""
        if content.readers is None:
            return False
        self._known[content.id] = content.readers
        return True

    def _shown(self, ids: Sequence[str]) -> list[Content]:
        return self._client.search(f"id in ({cql_ids(ids)})", READERS).all()

    def _of_one(self, key: str) -> Readers:
        """From the endpoint for one page; nobody if that does not tell either."""
        try:
            answers, errors = self._divider().fetch([key], self._told)
        except (ConfluenceNotFound, ConfluenceRefused, ServerFault) as error:
            if isinstance(error, ServerFault) and error.status != 404:  # noqa: PLR2004 (a web page: Not Found)
                raise
            self._unclear[key] = error.message
            return NOBODY
        self._errors |= errors
        readers = readers_of(answers[0].get("restrictions")) if answers else NOBODY
        if readers is None:
            self._unclear[key] = f"{PRODUCT} does not show them"
        return NOBODY if readers is None else readers

    def _told(self, ids: Sequence[str]) -> Json:
        path = f"rest/api/content/{ids[0]}/restriction/byOperation/read"
        return self._client.json(path, {"expand": "restrictions.user,restrictions.group"})
