"""How what a fake Confluence holds is made, changed and spoilt by a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

from tests.fakes.confluence_index import Entry, entry_of
from tests.fakes.confluence_records import Content, Restriction, Space
from tests.fakes.confluence_view import ConfluenceView


class ConfluenceModel(ConfluenceView):
    """The state, and the control methods of a test; ids go in and out as strings.

    A write stamps `now`, which moves by `advance` only. What the real service does not show in
    `lastmodified` (move, labels, restrictions, archiving, trash) changes neither version nor time here.
    """

    def __init__(self, lock: threading.RLock, account: str, zone: str) -> None:
        super().__init__(lock, account)
        self.zone = ZoneInfo(zone)
        self.people: dict[str, str] = {}
        """Display names; unknown users are called as they are named."""
        self.broken: set[str] = set()
        self.hide_zone = False
        """Cloud does not show the account's zone; Server never does."""
        self.hide_restrictions = False
        """The account may not see them: searches leave them out, and the endpoint is forbidden."""
        self.most_rows = 1000
        """Lists give no more rows at once, whatever is asked for: few make a list of several answers short."""
        self.undercount = False
        """Server: `start` in the next link of a capped answer is too small."""
        self.empty_page_at: int | None = None
        """Searches are empty from this row on, each answer with a link to more."""
        self.media_at = ""
        """Address of another host that Cloud redirects downloads to; empty: the same host."""
        self.cursors_from = self.now
        """Older cursors are refused."""
        self.generation = 0
        self._last_id = 65_536

    # -- clock, people, spaces -------------------------------------------------------------------------

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass."""
        with self.lock:
            self.now += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)

    def add_user(self, name: str, display: str) -> str:
        """Give a user a display name."""
        with self.lock:
            self.people[name] = display
            return name

    def add_space(self, key: str, name: str = "", *, archived: bool = False, visible: bool = True) -> str:
        """A space; its key comes back, as that is what queries name it by."""
        with self.lock:
            self.spaces[key] = Space(self._next_id(), key, name or f"Space {key}", archived, visible)
            self.generation += 1
            return key

    # -- pages -----------------------------------------------------------------------------------------

    def add_page(
        self,
        space: str,
        title: str,
        body: str = "<p>Text</p>",
        *,
        parent: str | None = None,
        labels: Sequence[str] = (),
        kind: str = "page",
        restricted_to: Sequence[Restriction] | None = None,
        status: str = "current",
        creator: str = "ann",
    ) -> str:
        """A page or blog post."""
        with self.lock:
            page = Content(
                id=self._next_id(),
                kind=kind,
                title=title,
                space=space,
                body=body,
                parent=parent,
                status=status,
                labels=list(labels),
                restrictions=list(restricted_to or ()),
                creator=creator,
                author=creator,
                created=self.now,
                when=self.now,
            )
            return self._store(page)

    def edit(
        self, page: str, body: str | None = None, *, title: str | None = None, author: str | None = None
    ) -> None:
        """A new version."""
        with self.lock:
            content = self.contents[page]
            content.body = content.body if body is None else body
            content.title = title or content.title
            self._stamp(content, author)

    def move(self, page: str, *, parent: str | None = None, space: str | None = None) -> None:
        """Hang a page (and all below it) elsewhere; no parent means the root of its space. No new version."""
        with self.lock:
            content = self.contents[page]
            content.parent = parent
            target = space or (self.contents[parent].space if parent else content.space)
            for moved in [content, *self._below(page)]:
                moved.space = target
                for hanging in self.hanging_on(moved.id):
                    hanging.space = target
                    self._reindex(hanging)
                self._reindex(moved)

    def label(self, page: str, name: str) -> None:
        """Add a label; no new version."""
        with self.lock:
            content = self.contents[page]
            content.labels = [*(n for n in content.labels if n != name), name]
            self._reindex(content)

    def unlabel(self, page: str, name: str) -> None:
        """Take a label away; no new version."""
        with self.lock:
            self.contents[page].labels.remove(name)
            self._reindex(self.contents[page])

    def restrict(self, page: str, to: Sequence[Restriction]) -> None:
        """Only these may read the page and what is below it; no new version."""
        with self.lock:
            self.contents[page].restrictions = list(to)
            self.generation += 1

    def unrestrict(self, page: str) -> None:
        """Everybody may read again."""
        self.restrict(page, ())

    def trash(self, page: str) -> None:
        """Into the bin; the pages below hang on the grandparent from now on."""
        self._retire(page, "trashed")

    def archive(self, page: str) -> None:
        """Out of search and tree, still readable by id."""
        self._retire(page, "archived")

    def restore(self, page: str) -> None:
        """Back from the bin, as a new version."""
        self._return(page)
        with self.lock:
            self._stamp(self.contents[page], None)

    def unarchive(self, page: str) -> None:
        """Back from the archive, with the old version."""
        self._return(page)

    def purge(self, page: str) -> None:
        """Gone for good, with comments and attachments; the pages below survive."""
        with self.lock:
            if self.contents[page].status == "current":
                self.trash(page)
            for hanging in self.hanging_on(page):
                self._remove(hanging.id)
            self._remove(page)

    # -- comments and attachments ----------------------------------------------------------------------

    def comment(
        self,
        page: str,
        body: str,
        location: str = "footer",
        *,
        parent: str | None = None,
        creator: str = "ben",
    ) -> str:
        """A comment (`footer`, `inline`, `resolved`), or a reply to `parent` at the place of its parent."""
        with self.lock:
            owner = self.contents[page]
            made = Content(
                id=self._next_id(),
                kind="comment",
                title=f"Re: {owner.title}",
                space=owner.space,
                body=body,
                parent=parent,
                container=page,
                creator=creator,
                author=creator,
                created=self.now,
                when=self.now,
                location=self.contents[parent].location if parent else location,
            )
            return self._store(made)

    def edit_comment(self, comment: str, body: str | None = None, *, location: str | None = None) -> None:
        """Another text; another `location` alone (resolving) makes no new version."""
        with self.lock:
            content = self.contents[comment]
            content.location = location or content.location
            self.generation += 1
            if body is not None:
                self.edit(comment, body)

    def delete_comment(self, comment: str) -> None:
        """With its replies."""
        with self.lock:
            replies = [c.id for c in self.contents.values() if c.kind == "comment" and c.parent == comment]
            for reply in replies:
                self.delete_comment(reply)
            self._remove(comment)

    def attach(
        self, page: str, name: str, data: bytes, media_type: str = "text/plain", *, creator: str = "ben"
    ) -> str:
        """A file on a page."""
        with self.lock:
            made = Content(
                id=f"att{self._next_id()}",
                kind="attachment",
                title=name,
                space=self.contents[page].space,
                container=page,
                creator=creator,
                author=creator,
                created=self.now,
                when=self.now,
                data=data,
                media_type=media_type,
            )
            return self._store(made)

    def replace_attachment(self, attachment: str, data: bytes) -> None:
        """A new version of the file."""
        with self.lock:
            self.contents[attachment].data = data
            self._stamp(self.contents[attachment], None)

    def detach(self, attachment: str) -> None:
        """Take the file away."""
        with self.lock:
            self._remove(attachment)

    # -- misbehaviour ----------------------------------------------------------------------------------

    def break_page(self, page: str) -> None:
        """From now on every answer that would hold its body is a 500."""
        with self.lock:
            self.broken.add(page)

    def mend_page(self, page: str) -> None:
        """Its body can be read again."""
        with self.lock:
            self.broken.discard(page)

    def hide_from_index(self, minutes: float) -> None:
        """Changes from now on show in CQL this much later, with their old timestamp; 0: at once again."""
        with self.lock:
            self._index.lag = timedelta(minutes=minutes)

    def lists_only(self, share: float) -> None:
        """Lists and searches hold this share of what they should, and look complete; 1: all again."""
        with self.lock:
            self.share = share
            self.generation += 1

    def expire_cursors(self) -> None:
        """Cursors given out up to now are a 400."""
        with self.lock:
            self.advance(seconds=1)
            self.cursors_from = self.now

    # -- inside ----------------------------------------------------------------------------------------

    def _next_id(self) -> str:
        self._last_id += 3
        return str(self._last_id)

    def _store(self, content: Content) -> str:
        self.contents[content.id] = content
        if content.container:
            self._children.setdefault(content.container, set()).add(content.id)
        self._reindex(content)
        return content.id

    def _remove(self, key: str) -> None:
        content = self.contents.pop(key)
        if content.container:
            self._children[content.container].discard(key)
        self._schedule(key, None)

    def _stamp(self, content: Content, author: str | None) -> None:
        content.version += 1
        content.when = self.now
        content.author = author or content.author
        self._reindex(content)

    def _below(self, page: str) -> Iterator[Content]:
        for child in [c for c in self.contents.values() if c.parent == page and c.container is None]:
            yield child
            yield from self._below(child.id)

    def _retire(self, page: str, status: str) -> None:
        with self.lock:
            content = self.contents[page]
            for child in [c for c in self.contents.values() if c.parent == page and c.container is None]:
                child.parent = content.parent
                self._reindex(child)
            content.status = status
            self._reindex(content)
            for hanging in self.hanging_on(page):
                self._reindex(hanging)

    def _return(self, page: str) -> None:
        with self.lock:
            content = self.contents[page]
            content.status = "current"
            above = self.contents.get(content.parent) if content.parent else None
            if above is None or above.status != "current":
                content.parent = None
            self._reindex(content)
            for hanging in self.hanging_on(page):
                self._reindex(hanging)

    def _reindex(self, content: Content) -> None:
        self._schedule(content.id, entry_of(content) if self.is_current(content) else None)

    def _schedule(self, key: str, entry: Entry | None) -> None:
        self.generation += 1
        self._index.put(key, entry, self.now)
