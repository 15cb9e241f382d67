"""A populated Confluence, sources that read it, and a store that keeps what they bring."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from connectors import ProtectedSource
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.source import ConfluenceSource
from connectors.documents.options import DecisionRules, SourceContext
from connectors.web.limiter import LocalRequestLimiter
from pipeline.documents import Listing, Page, Source
from pipeline.errors import LarderError
from tests.connectors.worlds import Clock, SourceStore, World, in_pieces, options_facts, with_access
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault, Seen


def confluence(kind: str, **more: Any) -> FakeConfluence:
    """Cloud, a Server at the root of its host, or one below a context path."""
    if kind == "cloud":
        return FakeConfluence("cloud", **more)
    return FakeConfluence("server", context="/confluence" if kind == "server-context" else "", **more)


def options_for(fake: FakeConfluence, *, clock: Clock | None = None, **changes: Any) -> ConfluenceOptions:
    """Reads the space ENG; impatient enough for tests."""
    limiter = LocalRequestLimiter(clock) if clock else LocalRequestLimiter()
    by_name = {"username": fake.email, "api_token": fake.token}
    login = by_name if fake.cloud else {"token": fake.token}
    given = {
        "name": "wiki",
        "base_url": fake.base,
        "space_keys": ("ENG",),
        "connect_timeout": 2,
        "read_timeout": 5,
    }
    access, facts = changes.pop("access", None), options_facts(changes)
    context = SourceContext(limiter=lambda: limiter, decisions=changes.pop("decisions", DecisionRules()))
    options = ConfluenceOptions(**{**given, **login, **facts, **changes}).with_context(context)
    return with_access(options, access)


def source_for(fake: FakeConfluence, *, clock: Clock | None = None, **changes: Any) -> ProtectedSource:
    """Opened anew, as another process would."""
    options = options_for(fake, clock=clock, **changes)
    return ProtectedSource(ConfluenceSource(options), options)


def asks(place: str, key: str, expand: str = "") -> Callable[[Seen], bool]:
    """Accepts every request for this id with this word in what is to be expanded."""

    def fits(seen: Seen) -> bool:
        asked = f"{seen.path} {seen.first('cql')}"
        return (
            place in asked and re.search(rf"\b{key}\b", asked) is not None and expand in seen.first("expand")
        )

    return fits


class Store(SourceStore):
    """One that also does the daily walk, and knows how to open this source anew."""

    def take(self, pages: Iterable[Page], *, cursors: bool = True) -> None:
        """As any, of pages that are not too large."""
        for page in pages:
            assert len(page.documents) <= 50
            super().take([page], cursors=cursors)

    def reconcile(self, source: Source) -> list[str]:
        """The daily walk: reads what differs, removes what is absent from a complete one."""
        before = len(self.read)
        listing = Listing.merged(in_pieces(lambda: source))
        differ = [i for i in sorted(listing.ids) if self._fingerprint(i) != listing.versions[i]]
        self.take(source.read(differ), cursors=False)
        if listing.complete:
            for gone in set(self.documents) - listing.ids:
                del self.documents[gone]
        return self.read[before:]

    def sync_through(self, fake: FakeConfluence, clock: Clock, **changes: Any) -> list[LarderError]:
        """As `sync_until_done`."""
        return self.sync_until_done(lambda: source_for(fake, clock=clock, **changes), clock)

    def seen(self) -> dict[str, tuple[str, int]]:
        """Title and version by id."""
        return {i: (d.title, d.metadata["version"]) for i, d in self.documents.items()}

    def _fingerprint(self, key: str) -> str | None:
        document = self.documents.get(key)
        return document.fingerprint if document else None


def truth(fake: FakeConfluence, *kinds: str, space: str = "ENG") -> dict[str, tuple[str, int]]:
    """What a store should hold: title and version by id."""
    return {c.id: (c.title, c.version) for c in fake.living(*kinds) if c.space == space}


@contextmanager
def confluence_world(
    kind: str = "cloud", *, items: int = 110, most_rows: int = 50, page_size: int = 50
) -> Iterator[World[FakeConfluence]]:
    """Pages of the space ENG with some comments, a page a minute, beside another space; lists take some answers."""
    with confluence(kind) as fake:
        fake.most_rows = most_rows
        fake.add_space("ENG", "Engineering")
        fake.add_space("OPS")
        ids: list[str] = []
        for n in range(items):
            parent = ids[n // 10] if n >= 10 else None
            ids.append(
                fake.add_page(
                    "ENG", f"Item {n}", f"<p>Text first of {n}.</p>", parent=parent, labels=["a", f"b{n % 3}"]
                )
            )
            if n % 20 == 0:
                fake.comment(ids[-1], f"<p>Comment on {n}.</p>")
            fake.advance(minutes=1)
        fake.add_page("OPS", "Not ours")
        fake.advance(minutes=30)

        def edit(word: str) -> str:
            fake.edit(ids[11], f"<p>Text {word} of 11.</p>")
            fake.advance(minutes=1)
            return ids[11]

        def remove() -> str:
            fake.trash(ids[-5])
            return ids[-5]

        def add() -> str:
            made = fake.add_page("ENG", "New", "<p>Text new.</p>")
            fake.advance(minutes=1)
            return made

        def spoil() -> tuple[str, str]:
            fake.faults.next(Fault.status(500), when=asks("id in", ids[7]), times=None)
            return ids[7], ids[7]

        yield World.served(
            fake,
            partial(source_for, page_size=page_size),
            items,
            edit=edit,
            remove=remove,
            add=add,
            spoil=spoil,
        )
