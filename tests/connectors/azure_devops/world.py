"""A populated Azure DevOps, sources that read it, and a store that keeps what they bring."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from connectors import ProtectedSource
from connectors.azure_devops.client import BoardsClient
from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.source import AzureDevOpsSource
from connectors.documents.options import DecisionRules, SourceContext
from connectors.web.limiter import LocalRequestLimiter
from pipeline.errors import LarderError
from tests.connectors.worlds import Clock, SourceStore, World, options_facts, with_access
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.server import Fault, Seen

TYPES = ("User Story", "Bug", "Task", "Feature")
PAT = "secret-pat"


def options_for(fake: FakeAzureDevOps, *, clock: Clock | None = None, **changes: Any) -> AzureDevOpsOptions:
    """Reads the project Web; impatient enough for tests."""
    limiter = LocalRequestLimiter(clock) if clock else LocalRequestLimiter()
    given = {"name": "boards", "organization": fake.url, "projects": ("Web",), "pat": PAT}
    timeouts = {"connect_timeout": 2, "read_timeout": 2}
    access, facts = changes.pop("access", None), options_facts(changes)
    context = SourceContext(limiter=lambda: limiter, decisions=changes.pop("decisions", DecisionRules()))
    options = AzureDevOpsOptions(**{**given, **timeouts, **facts, **changes}).with_context(context)
    return with_access(options, access)


def source_for(
    fake: FakeAzureDevOps,
    *,
    client: type[BoardsClient] = BoardsClient,
    clock: Clock | None = None,
    **changes: Any,
) -> ProtectedSource:
    """Opened anew, as another process would."""
    options = options_for(fake, clock=clock, **changes)
    return ProtectedSource(AzureDevOpsSource(options, client=client(options)), options)


def batch_with(*ids: int) -> Callable[[Seen], bool]:
    """Accepts every batch in which one of these items is."""

    def fits(seen: Seen) -> bool:
        batch = seen.path.lower().endswith("/workitemsbatch")
        return batch and not set(ids).isdisjoint(json.loads(seen.body)["ids"])

    return fits


class Store(SourceStore):
    """One that knows how to open this source anew."""

    def sync_through(self, fake: FakeAzureDevOps, clock: Clock, **changes: Any) -> list[LarderError]:
        """As `sync_until_done`; somebody signs in again where that is what it takes."""

        def met(error: LarderError) -> None:
            if not error.transient:
                fake.token, fake.sign_in_html = "valid", False

        return self.sync_until_done(lambda: source_for(fake, clock=clock, **changes), clock, met)

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


@contextmanager
def azure_world(server_collection: str | None = None, *, items: int = 60) -> Iterator[World[FakeAzureDevOps]]:
    """Work items of four types in the project Web, among those of another project."""
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
            for n in range(items)
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

        def spoil() -> tuple[str, str]:
            fake.faults.next(Fault.status(500), when=batch_with(ids[7]), times=None)
            return str(ids[7]), str(ids[7])

        yield World.served(fake, source_for, items, edit=edit, remove=remove, add=add, spoil=spoil)
