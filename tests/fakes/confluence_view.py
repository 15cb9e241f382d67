"""What a fake Confluence holds, and who may see it: spaces, pages, comments and attachments, and their search index."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tests.fakes.confluence_index import Entry, SearchIndex
from tests.fakes.confluence_records import Content, Restriction, Space, number


class ConfluenceView:
    """The contents as the account of the credentials, a list or a search shows them."""

    def __init__(self, lock: threading.RLock, account: str) -> None:
        self.lock = lock
        self.account = account
        """The user the credentials belong to."""
        self.groups: set[str] = {"confluence-users"}
        """Groups of that user."""
        self.now = datetime(2025, 3, 3, 12, 0, 30, 123000, tzinfo=UTC)
        self.spaces: dict[str, Space] = {}
        self.contents: dict[str, Content] = {}
        self.share = 1.0
        """What part of what they should hold lists and searches do hold."""
        self._index = SearchIndex()
        self._children: dict[str, set[str]] = {}
        """Page -> its comments and attachments."""

    def get(self, content: str) -> Content:
        """The content as it is, whoever may see it."""
        return self.contents[content]

    def living(self, *kinds: str) -> list[Content]:
        """What the account can see and is current, oldest id first: the truth to compare a store with."""
        with self.lock:
            wanted = kinds or ("page",)
            return [
                c
                for c in self.contents.values()
                if c.kind in wanted and self.is_current(c) and self.is_visible(c)
            ]

    def indexed(self) -> Iterator[Entry]:
        """What search finds by now and the database still has."""
        for entry in self._index.entries(self.now):
            content = self.contents.get(entry.id)
            if content is not None and self.is_current(content) and self.is_visible(content):
                yield entry

    def is_current(self, content: Content) -> bool:
        """Itself and the page it hangs on."""
        owner = self.contents.get(content.container) if content.container else content
        return content.status == "current" and owner is not None and owner.status == "current"

    def is_visible(self, content: Content) -> bool:
        """May the account read it: its space, every page above, itself."""
        page = self.contents[content.container] if content.container else content
        space = self.spaces[page.space]
        return space.visible and all(self._admits(p.restrictions) for p in (*self.ancestors(page), page))

    def ancestors(self, content: Content) -> list[Content]:
        """Above it, outermost first; of a reply the comments."""
        found: list[Content] = []
        above = content.parent
        while above in self.contents:
            found.insert(0, self.contents[above])
            above = self.contents[above].parent
        return found

    def is_listed(self, key: str) -> bool:
        """Do lists hold it at the moment (`lists_only`)?"""
        return self.share >= 1 or zlib.crc32(key.encode()) % 1000 < self.share * 1000

    def hanging_on(self, page: str) -> list[Content]:
        """Comments and attachments of a page, oldest first."""
        ids = self._children.get(page, set())
        return sorted((self.contents[i] for i in ids), key=lambda c: number(c.id))

    def pages_below(self, page: str) -> list[Content]:
        """Current pages right below, oldest first."""
        return [
            c
            for c in self.contents.values()
            if c.parent == page and c.kind == "page" and c.status == "current"
        ]

    def _admits(self, restrictions: Sequence[Restriction]) -> bool:
        users = {name for kind, name in restrictions if kind == "user"}
        groups = {name for kind, name in restrictions if kind == "group"}
        return not restrictions or self.account in users or bool(groups & self.groups)
