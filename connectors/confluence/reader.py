"""Reads pages by their ids: what became of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from connectors.confluence.addresses import address
from connectors.confluence.attachments import Annex, Annexes
from connectors.confluence.files import Files, is_text_file
from connectors.confluence.item import FULL, WALK, Item, item_of
from connectors.confluence.missing_pages import Vanished
from connectors.confluence.options import MOST_PER_PAGE, ConfluenceOptions
from connectors.confluence.page_document import page_document
from connectors.confluence.restrictions import Restrictions
from connectors.confluence.scope import Scope
from connectors.confluence.search import Query, Rows, numbers
from connectors.confluence.site import Site
from connectors.confluence.walk_policy import Tactics
from connectors.web import AnswerTooLarge, ServerFault
from pipeline.documents import Cursor, Document, Page, Problem


@dataclass(kw_only=True)
class Outcome:
    """What became of the ids of one batch."""

    documents: list[Document] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """What is gone, or is none of ours any more."""
    admitted: int = 0
    """Pages that qualify, read or not."""
    rows: dict[str, datetime | None] = field(default_factory=dict)
    """`id:version` of all that was read, comments and attachments too, and when it changed."""

    def pages(self, before: Cursor, after: Cursor) -> Iterator[Page]:
        """At most 50 documents each; only the last one's cursor stands behind them."""
        parts = [
            self.documents[at : at + MOST_PER_PAGE] for at in range(0, len(self.documents), MOST_PER_PAGE)
        ]
        for part in parts[:-1]:
            yield Page(cursor=before, documents=tuple(part))
        yield Page(
            cursor=after,
            documents=tuple(parts[-1]) if parts else (),
            failed=tuple(self.failed),
            skipped=tuple(self.skipped),
            deleted=tuple(dict.fromkeys(self.deleted)),
        )


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A page as it came, judged."""

    item: Item
    annex: Annex
    broken: str = ""
    """Why its body could not be had."""


class Reader:
    """Turns ids into documents, with a request or two for fifty of them."""

    def __init__(self, site: Site, options: ConfluenceOptions, tactics: Tactics) -> None:
        self._site = site
        self._options = options
        self._tactics = tactics
        self.scope = Scope(options)
        self.restrictions = Restrictions(site, tactics, archived=options.include_archived)
        self.annexes = Annexes(site, options, tactics)
        self._files = Files(site, options)
        self._vanished = Vanished(site, options)
        self._base = ""

    def read(
        self, ids: Sequence[str], *, only: Collection[str] | None = None, until: datetime | None = None
    ) -> Outcome:
        """The pages with these ids, at most 50, and their text files.

        Args:
            ids: of pages and blog posts.
            only: ids of the pages and attachments that documents are wanted of; None: of all.
            until: pages made later are passed over: they lie beyond the cap.
        """
        outcome = Outcome()
        wanted = list(dict.fromkeys(ids))
        found = self._fetch(wanted)
        missing = [key for key in wanted if key not in {f.item.id for f in found}]
        if missing:
            gone, found_late, failed = self._sort_out(missing)
            outcome.deleted += gone
            outcome.failed += failed
            found += found_late
        found = [f for f in found if until is None or f.item.created is None or f.item.created <= until]
        self.restrictions.learn([f.item for f in found if self.scope.holds(f.item)])
        for fetched in found:
            self._take(fetched, only, outcome)
        return outcome

    def qualifies(self, item: Item) -> bool:
        """One of ours that may be stored; its restrictions were learnt before."""
        if not self.scope.holds(item):
            return False
        return self._options.include_restricted or not self.restrictions.layers(item)

    def _take(self, fetched: Fetched, only: Collection[str] | None, outcome: Outcome) -> None:
        item, annex = fetched.item, fetched.annex
        for part in (item, *annex.comments, *annex.files):
            outcome.rows[part.row] = part.changed
        if not self.qualifies(item):
            outcome.deleted += [item.id, *(file.id for file in annex.files)]
            return
        layers = self.restrictions.layers(item)
        outcome.admitted += 1
        if only is None or item.id in only:
            self._take_page(fetched, layers, outcome)
        for file in annex.files:
            if only is None or file.id in only:
                self._take_file(file, item, layers, outcome)

    def _take_file(self, file: Item, page: Item, layers: list[list[str]], outcome: Outcome) -> None:
        if not is_text_file(file, self._options):
            # It may have been one before it grew or got another name.
            outcome.deleted.append(file.id)
            return
        read = self._files.read(self.base, file, page, layers)
        outcome.documents += [read.document] if read.document else []
        outcome.failed += [read.failed] if read.failed else []
        outcome.skipped += [read.skipped] if read.skipped else []

    def _take_page(self, fetched: Fetched, layers: list[list[str]], outcome: Outcome) -> None:
        item = fetched.item
        url = address(self.base, item)
        if fetched.broken:
            reason = f"page {item.title!r} {fetched.broken}"
            outcome.failed.append(Problem(external_id=item.id, reason=reason, url=url))
            return
        document = page_document(self._options, self.base, item, layers, fetched.annex)
        if document is not None:
            outcome.documents.append(document)
            return
        reason = f"page {item.title!r} holds no text; nothing of it can be found"
        outcome.skipped.append(Problem(external_id=item.id, reason=reason, url=url))
        outcome.deleted.append(item.id)

    @property
    def base(self) -> str:
        """What links for people start with."""
        return self._base or self._site.place.base

    def _fetch(self, ids: Sequence[str]) -> list[Fetched]:
        """With bodies; a page that breaks its batch is found by halving and comes without."""
        found: list[Fetched] = []
        waiting, proven = [list(ids)] if ids else [], False
        while waiting:
            batch = waiting.pop()
            try:
                found += self._fetch_batch(batch)
            except (ServerFault, AnswerTooLarge) as error:
                # Of the errors only 500 is known to come from a page; the others are the service's own.
                if isinstance(error, ServerFault) and error.status != 500:  # noqa: PLR2004 (Internal Server Error)
                    raise
                light = self._search(batch, WALK) if len(batch) == 1 or not proven else []
                proven = True  # without bodies it answers: it is not the service that is ill
                if len(batch) == 1:
                    annexes = self.annexes.of_pages(batch, texts=False)
                    found += [Fetched(item=i, annex=annexes[i.id], broken=_why(error)) for i in light]
                else:
                    middle = len(batch) // 2
                    waiting += [batch[middle:], batch[:middle]]
        place = {key: n for n, key in enumerate(ids)}
        return sorted(found, key=lambda fetched: place.get(fetched.item.id, 0))

    def _fetch_batch(self, ids: Sequence[str]) -> list[Fetched]:
        items = self._search(ids, FULL)
        annexes = self.annexes.of_pages([item.id for item in items])
        return [Fetched(item=item, annex=annexes[item.id]) for item in items]

    def _search(self, ids: Sequence[str], expand: tuple[str, ...]) -> list[Item]:
        query = Query(
            cql=f"id in ({numbers(ids)})",
            expand=expand,
            limit=MOST_PER_PAGE,
            archived=self._options.include_archived,
        )
        rows = Rows(self._site, query, self._tactics)
        items = [item_of(row) for row in rows.all()]
        self._base = rows.base or self._base
        return [item for item in items if item.id in ids and item.is_page]

    def _sort_out(self, missing: Sequence[str]) -> tuple[list[str], list[Fetched], list[Problem]]:
        """Search does not know them: gone, or not shown just now?"""
        gone, failed = self._vanished.ask(missing)
        late = self._fetch(gone) if gone else []
        back = {fetched.item.id for fetched in late}
        return [key for key in gone if key not in back], late, failed


def _why(error: Exception) -> str:
    if isinstance(error, AnswerTooLarge):
        return "is larger than the limit of one answer; split it"
    return "cannot be read: Confluence fails with 500 when its text is asked for; open and save it there"
