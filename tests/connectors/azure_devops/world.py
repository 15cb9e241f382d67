"""A populated Azure DevOps, sources that read it, and a store that keeps what they bring."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from connectors.azure_devops import AzureDevOpsOptions, AzureDevOpsSource
from connectors.azure_devops.boards import Boards
from connectors.web import Access, LocalGate
from pipeline.documents import Cursor, Document, Page, Problem, Source
from pipeline.errors import LarderError
from tests.fakes.azure_devops import FakeAzureDevOps

ITEMS = 230
TYPES = ("User Story", "Bug", "Task", "Feature")
PAT = "secret-pat"


@dataclass(kw_only=True)
class Clock:
    """Seconds that pass only when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def options_for(fake: FakeAzureDevOps, *, clock: Clock | None = None, **changes: Any) -> AzureDevOpsOptions:
    """Reads the project Web; impatient enough for tests."""
    gate = LocalGate(clock) if clock else LocalGate()
    access = changes.pop("access", None) or Access(
        base_url=fake.url, gate=gate, connect_timeout=2, read_timeout=2, product="Azure DevOps"
    )
    given = {"name": "boards", "organization": fake.url, "projects": ("Web",), "pat": PAT, "access": access}
    return AzureDevOpsOptions(**{**given, **changes})


def source_for(
    fake: FakeAzureDevOps, *, boards: type[Boards] = Boards, clock: Clock | None = None, **changes: Any
) -> AzureDevOpsSource:
    """Opened anew, as another process would."""
    options = options_for(fake, clock=clock, **changes)
    return AzureDevOpsSource(options, boards=boards(options))


@dataclass(kw_only=True)
class Store:
    """What the ledger would hold: documents, and the cursor of the last page."""

    documents: dict[str, Document] = field(default_factory=dict)
    cursor: Cursor | None = None
    failed: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    pages: int = 0

    def take(self, pages: Iterable[Page], *, cursors: bool = True) -> None:
        """Stores each page with its cursor, which goes through JSON as in the database."""
        for page in pages:
            self.pages += 1
            self.documents |= {d.external_id: d for d in page.documents}
            for gone in page.deleted:
                self.documents.pop(gone, None)
            self.deleted += page.deleted
            self.failed += page.failed
            self.skipped += page.skipped
            if cursors:
                self.cursor = json.loads(json.dumps(page.cursor, sort_keys=True))

    def sync(self, source: Source) -> None:
        self.take(source.pages(self.cursor))

    def sync_through(self, fake: FakeAzureDevOps, clock: Clock, **changes: Any) -> list[LarderError]:
        """Syncs in fresh processes until one ends without an error; those on the way come back."""
        errors: list[LarderError] = []
        while len(errors) < 50:
            try:
                self.sync(source_for(fake, clock=clock, **changes))
            except LarderError as error:
                errors.append(error)
                clock.now += error.retry_after or 0.0
                if not error.transient:
                    fake.token, fake.sign_in_html = "valid", False
            else:
                return errors
        raise AssertionError(f"no end: {errors[-3:]}")

    def seen(self) -> dict[str, tuple[str, int]]:
        """Title and revision by id."""
        return {i: (d.title, d.metadata["rev"]) for i, d in self.documents.items()}


def truth(
    fake: FakeAzureDevOps, project: str = "Web", types: Iterable[str] = TYPES
) -> dict[str, tuple[str, int]]:
    """What a store should hold: title and revision by id."""
    return {
        str(item.id): (str(item.now.fields["System.Title"]), item.now.rev)
        for item in fake.items.values()
        if fake.readable(item)
        and item.now.project == project
        and item.now.fields["System.WorkItemType"] in set(types)
    }


@dataclass(frozen=True, kw_only=True)
class AzureWorld:
    """What the contract of sources wants to know of a world."""

    source: Callable[[], Source]
    edit: Callable[[str], str]
    remove: Callable[[], str]
    add: Callable[[], str]
    destroy: Callable[[], None]
    fake: FakeAzureDevOps


@contextmanager
def azure_world(server_collection: str | None = None) -> Iterator[AzureWorld]:
    """ITEMS work items of four types in the project Web, among those of another project."""
    with FakeAzureDevOps(server_collection=server_collection, pat=PAT) as fake:
        fake.add_project("Web")
        fake.add_project("Other")
        ids = [
            fake.add_item(
                "Web",
                TYPES[n % 4],
                f"Item {n}",
                description=f"<div>Text first of {n}.</div>",
                tags=["a", f"b{n % 3}"],
            )
            for n in range(ITEMS)
        ]
        fake.add_item("Other", "Bug", "Not ours")

        def edit(word: str) -> str:
            fake.edit(ids[11], description=f"<div>Text {word} of 11.</div>")
            return str(ids[11])

        def remove() -> str:
            fake.delete(ids[5])
            return str(ids[5])

        def add() -> str:
            return str(fake.add_item("Web", "Task", "New", description="<div>Text new.</div>"))

        yield AzureWorld(
            source=lambda: source_for(fake), edit=edit, remove=remove, add=add, destroy=fake.stop, fake=fake
        )
