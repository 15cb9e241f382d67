"""What the worlds of the connectors' tests share: a clock, a store that keeps what a source brings, and the contract's view."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from connectors.documents.options import ServiceOptions, SourceMetadata
from connectors.web.session import Access
from pipeline.documents import Cursor, Document, Listing, Page, Problem, Source
from pipeline.errors import LarderError
from tests.fakes.server import FakeServer

Fake = TypeVar("Fake", bound=FakeServer)
Service = TypeVar("Service", bound=ServiceOptions)


def options_facts(changes: dict[str, Any]) -> dict[str, Any]:
    """Takes fixed metadata and the source type out of `changes`, as the key of a section."""
    facts = changes.pop("metadata", {}), changes.pop("source_type", None)
    return {"metadata": SourceMetadata(**facts[0], source_type=facts[1])}


def with_access(options: Service, access: Access | None) -> Service:
    """Options whose service is asked in this way, if one is given."""
    if access is not None:
        vars(options)["access"] = access
    return options


@dataclass(kw_only=True)
class Clock:
    """Seconds that pass only when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def in_pieces(opened: Callable[[], Source]) -> list[Listing]:
    """The id walk, each piece by another process."""
    found = [opened().ids()]
    while found[-1].cursor:
        found.append(opened().ids(json.loads(json.dumps(found[-1].cursor))))
    return found


@dataclass(kw_only=True)
class SourceStore:
    """What the ledger would hold: documents, and the cursor of the last page."""

    documents: dict[str, Document] = field(default_factory=dict)
    cursor: Cursor | None = None
    failed: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    pages: int = 0
    read: list[str] = field(default_factory=list)
    """Ids of the documents that came, also those that came again."""

    def take(self, pages: Iterable[Page], *, cursors: bool = True) -> None:
        """Stores each page with its cursor, which goes through JSON as in the database."""
        for page in pages:
            self.pages += 1
            self.documents |= {d.external_id: d for d in page.documents}
            self.read += [d.external_id for d in page.documents]
            for gone in page.deleted:
                self.documents.pop(gone, None)
            self.deleted += page.deleted
            self.failed += page.failed
            self.skipped += page.skipped
            if cursors:
                self.cursor = json.loads(json.dumps(page.cursor, sort_keys=True))

    def sync(self, source: Source) -> list[str]:
        """One sync; ids of what it read come back."""
        before = len(self.read)
        self.take(source.pages(self.cursor))
        return self.read[before:]

    def sync_until_done(
        self, opened: Callable[[], Source], clock: Clock, met: Callable[[LarderError], None] = lambda _: None
    ) -> list[LarderError]:
        """Syncs in fresh processes until one ends without an error; those on the way come back, each told to `met`."""
        errors: list[LarderError] = []
        while len(errors) < 50:
            try:
                self.sync(opened())
            except LarderError as error:
                errors.append(error)
                clock.now += error.retry_after or 0.0
                met(error)
            else:
                return errors
        raise AssertionError(f"no end: {errors[-3:]}")


@dataclass(frozen=True, kw_only=True)
class World(Generic[Fake]):
    """What the contract of sources wants to know of a populated service."""

    source: Callable[[], Source]
    edit: Callable[[str], str]
    remove: Callable[[], str]
    add: Callable[[], str]
    spoil: Callable[[], tuple[str, str]]
    destroy: Callable[[], None]
    items: int
    fake: Fake

    @classmethod
    def served(cls, fake: Fake, opened: Callable[[Fake], Source], items: int, **acts: Any) -> Self:
        """One of so many items, by the fake's own address; `acts` are edit, remove, add and spoil."""
        return cls(source=lambda: opened(fake), destroy=fake.stop, items=items, fake=fake, **acts)
