"""The walk for ids and fingerprints: everything that is there, without a body."""

from __future__ import annotations

from dataclasses import replace

from connectors.confluence.attachments import Annex
from connectors.confluence.files import is_text_file
from connectors.confluence.fingerprints import file_fingerprint, page_fingerprint
from connectors.confluence.item import WALK, Item, item_of
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.reader import Reader
from connectors.confluence.search import Query, Rows
from connectors.confluence.site import Site
from connectors.confluence.spaces import prove_some
from connectors.confluence.walk_policy import Tactics
from pipeline.documents import Listing

ITEMS_AT_ONCE = 1000


class Census:
    """Counts what is there; knows afterwards which page each text file hangs on."""

    def __init__(self, site: Site, options: ConfluenceOptions, tactics: Tactics, reader: Reader) -> None:
        self._site = site
        self._options = options
        self._tactics = tactics
        self._reader = reader
        self.owners: dict[str, str] = {}
        """Attachment -> page."""

    def listing(self) -> Listing:
        """Complete only if every list reached its end, all spaces are visible and no cap was met."""
        spaces = prove_some(self._site, self._tactics, self._options.space_keys)
        pages, ended = self._pages()
        annexes, annexes_ended = self._reader.annexes.of_everything(self._reader.scope)
        versions: dict[str, str] = {}
        for page in pages:
            self._count(page, annexes.get(page.id, Annex()), versions)
        complete = spaces and ended and annexes_ended
        return Listing(ids=frozenset(versions), complete=complete, versions=versions)

    def _pages(self) -> tuple[list[Item], bool]:
        """Those that qualify, oldest first up to the cap, and whether they are all."""
        options, reader = self._options, self._reader
        query = Query(
            cql=f"{reader.scope.narrow_clause()} order by created asc",
            expand=WALK,
            archived=options.include_archived,
        )
        rows = Rows(self._site, query, self._tactics, lambda row: str(row.get("id")))
        found: list[Item] = []
        waiting: list[Item] = []
        for batch in rows:
            waiting += [item for item in map(item_of, batch) if reader.scope.holds(item)]
            if len(waiting) >= ITEMS_AT_ONCE:
                found += self._qualified(waiting)
                waiting = []
                if options.max_pages is not None and len(found) > options.max_pages:
                    return found[: options.max_pages], False
        found += self._qualified(waiting)
        capped = options.max_pages is not None and len(found) > options.max_pages
        return found[: options.max_pages], rows.complete and not capped

    def _qualified(self, items: list[Item]) -> list[Item]:
        self._reader.restrictions.learn(items)
        # Without their answers: those of 5,000 pages are 35 MB, and nothing asks for them again.
        return [replace(item, raw={}) for item in items if self._reader.qualifies(item)]

    def _count(self, page: Item, annex: Annex, versions: dict[str, str]) -> None:
        layers = self._reader.restrictions.layers(page)
        versions[page.id] = page_fingerprint(page, layers, annex)
        for file in annex.files:
            if is_text_file(file, self._options):
                versions[file.id] = file_fingerprint(file, page, layers)
                self.owners[file.id] = page.id
