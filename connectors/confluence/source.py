"""Confluence as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectors.confluence.checking import findings
from connectors.confluence.chosen import Chosen
from connectors.confluence.id_walk import Census
from connectors.confluence.missing_pages import Vanished
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.position import Position
from connectors.confluence.reader import Reader
from connectors.confluence.site import Site
from connectors.confluence.spaces import prove_some
from connectors.confluence.walk_policy import Tactics
from connectors.confluence.walks import Walks
from pipeline.documents import Cursor, Finding, Listing, Page


class ConfluenceSource:
    """Pages with their comments, and text files attached to them; external ids are those of Confluence."""

    extractor = "confluence-2"
    walks_all = False

    def __init__(self, options: ConfluenceOptions, tactics: Tactics | None = None) -> None:
        """`tactics` is for tests that put a wrong one in place; the default is right."""
        self._options = options
        self._tactics = tactics or Tactics()
        self._site = Site(options)
        self._reader = Reader(self._site, options, self._tactics)
        self._census = Census(self._site, options, self._tactics, self._reader)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """First everything, oldest first; later what search shows as changed since the cursor."""
        self._reader.restrictions.forget()
        position = Position.read(self._tactics.resume(since), self._options.selection)
        try:
            if position is None:
                prove_some(self._site, self._tactics, self._options.space_keys)
            yield from Walks(self._site, self._options, self._tactics, self._reader).pages(position)
        finally:
            self._site.close()

    def ids(self) -> Listing:
        """Everything that is there now, with fingerprints, at 200 items a request."""
        self._reader.restrictions.forget()
        try:
            return self._census.listing()
        finally:
            self._site.close()

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These pages and attachments as they are now."""
        chosen = Chosen(self._options, self._reader, Vanished(self._site, self._options), self._census.owners)
        try:
            yield from chosen.pages(ids)
        finally:
            self._site.close()

    def check(self) -> list[Finding]:
        """Address, credentials, deployment, spaces, number of pages."""
        try:
            return findings(self._site, self._options, self._tactics)
        finally:
            self._site.close()

    def stamp(self) -> None:
        """Nothing cheaper than a sync tells whether something changed."""
        return
