"""A source of its own in a real ledger, and short words for what tests do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import Chunker, open_chunker
from pipeline.database.engine import Database
from pipeline.documents import Document, Kind, Page, Problem, SourceType
from pipeline.embedding import Embedder
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import LarderError
from pipeline.ingest.steps import Decision, Indexer
from pipeline.ledger import Item, Stage, admission, document_id, runs, source_id, sources, work
from pipeline.search.chunk_store import SearchIndex, open_index
from tests.ledger import Ledger, ago, of_tenant

DIMENSIONS = 32
MODEL = f"hashing-{DIMENSIONS}"
PIPELINE = f"test-1|structure-1|{MODEL}"
LEASE = 60.0


def document(external_id: str, body: str = "Some words.", **changes: Any) -> Document:
    """A text document; keyword arguments override its fields."""
    plain: dict[str, Any] = {
        "external_id": external_id,
        "title": f"Title of {external_id}",
        "text": body,
        "source_type": SourceType.TEXT,
        "kind": Kind.REFERENCE,
    }
    return Document(**{**plain, **changes})


def problem(external_id: str) -> Problem:
    """An item that could not be read."""
    return Problem(external_id=external_id, reason="it could not be read")


def paragraphs(count: int, word: str = "word") -> str:
    """`count` paragraphs that become a chunk each with the chunker of this source."""
    return "\n\n".join(f"{word} {n} " + "filler " * 12 + f"end {n}." for n in range(count))


def retry_once(error: LarderError, attempts: int) -> Decision:
    """Transient errors wait a minute, two times; all else is final."""
    dead = not error.transient or attempts >= 2
    return Decision(delay=0.0 if dead else 60.0, dead=dead)


def fill_index(connection: Connection) -> SearchIndex:
    """The index of the source's embedder."""
    return open_index(
        connection, provider="hashing", model=MODEL, dimensions=DIMENSIONS, chunker="structure", pipeline="p"
    )


class SourceLedger(Ledger):
    """One source of one tenant: admit documents, index them, look at the rows."""

    def __init__(self, database: Database, tenant: UUID, project: UUID, name: str = "notes") -> None:
        super().__init__(of_tenant(database, tenant))
        self.database = database
        self.tenant = tenant
        self.project = project
        self.source = source_id(tenant, name)
        self.chunker: Chunker = open_chunker(ChunkingOptions(min_size=0, max_size=120, overlap=0))
        self.embedder: Embedder = HashingEmbedder(DIMENSIONS, batch_size=4)
        with database.tenant(tenant) as connection:
            sources.ensure_tenant(connection, tenant, str(tenant), project, str(project))
            sources.register(connection, [self.registration(name)])

    def registration(self, name: str = "notes", **changes: Any) -> sources.Registration:
        """What `register` takes for this source."""
        plain: dict[str, Any] = {
            "id": source_id(self.tenant, name),
            "tenant_id": self.tenant,
            "project_id": self.project,
            "name": name,
            "kind": "text",
            "config_hash": "c1",
        }
        return sources.Registration(**{**plain, **changes})

    # -- the rows ----------------------------------------------------------------------------------

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Rows of a statement run as the tenant."""
        with self.database.tenant(self.tenant) as connection:
            found = connection.execute(text(statement), values)
            return list(found.mappings()) if found.returns_rows else []

    def id(self, external_id: str) -> UUID:
        """The id of a document."""
        return document_id(self.source, external_id)

    def row(self, external_id: str) -> Any:
        """The ledger row of a document."""
        return self.documents.one(id=self.id(external_id))

    def set(self, external_id: str, /, **values: Any) -> None:
        """Change a document's row behind the ledger's back, to make time pass or workers die."""
        self.documents.set({"id": self.id(external_id)}, **values)

    def contents(self, external_id: str) -> list[str]:
        """What search has of a document, in order."""
        return self.chunks.values("content", document_id=self.id(external_id))

    def texts_counted(self) -> tuple[int, int]:
        """How many texts the items of all runs had embedded, and how many were there already."""
        items = self.run_items()
        return sum(i["texts_embedded"] for i in items), sum(i["texts_reused"] for i in items)

    # -- runs --------------------------------------------------------------------------------------

    def open_run(self, **options: Any) -> int:
        """A new run; the one that is open, if any, is closed first."""
        for one in self.runs(finished_at=None):
            self.runs.set(one["id"], state="finished", finished_at=ago())
        with self.database.tenant(self.tenant) as connection:
            run = runs.open_run(connection, self.tenant, self.source, **{"trigger": "manual", **options})
        assert run is not None
        return run

    def run(self, run_id: int) -> runs.RunRow:
        """A run's row."""
        with self.database.tenant(self.tenant) as connection:
            found = runs.get(connection, run_id)
        assert found is not None
        return found

    def where(self, run: int, *, force: bool = False, pipeline: str = PIPELINE) -> admission.Admission:
        """Whose page it is."""
        return admission.Admission(
            tenant_id=self.tenant,
            source_id=self.source,
            run_id=run,
            pipeline_version=pipeline,
            force=force,
        )

    def admit_page(
        self, page: Page, *, run: int | None = None, force: bool = False, pipeline: str = PIPELINE
    ) -> runs.Counts:
        """Take a page into a run (a new one by default), with its counts."""
        run = self.open_run() if run is None else run
        with self.database.tenant(self.tenant) as connection:
            where = self.where(run, force=force, pipeline=pipeline)
            admitted = admission.admit(connection, where, page)
            runs.add(connection, run, admitted, cursor=page.cursor)
        return admitted

    def admit(self, *documents: Document, run: int | None = None, **options: Any) -> runs.Counts:
        """Take documents into a run (a new one by default)."""
        return self.admit_page(Page(cursor={}, documents=documents), run=run, **options)

    def close_run(self, run: int) -> None:
        """End the walk of a run and close it as the pump does."""
        with self.database.tenant(self.tenant) as connection:
            runs.finish_walk(connection, run)
        with self.database.control() as connection:
            runs.close(connection, [s.id for s in runs.list_settled(connection)])

    # -- work --------------------------------------------------------------------------------------

    def items(self, *external_ids: str) -> list[Item]:
        """What a message about these documents would name; all waiting ones by default."""
        return [
            Item(row["id"], row["desired_version"])
            for row in self.documents()
            if (row["external_id"] in external_ids if external_ids else row["state"] == "pending")
        ]

    def claim(self, *external_ids: str, stage: Stage = Stage.FETCHED, lease: float = LEASE) -> work.Claim:
        """Claim documents as a worker does."""
        with self.database.tenant(self.tenant) as connection:
            return work.claim(connection, self.tenant, stage, self.items(*external_ids), lease=lease)

    def indexer(self, **changes: Any) -> Indexer:
        """The three steps with its embedder and chunker."""
        chunker_of: Callable[[str, SourceType], Chunker] = lambda _name, _type: self.chunker  # noqa: E731
        plain: dict[str, Any] = {
            "database": self.database,
            "chunker_of": chunker_of,
            "embedder": lambda: self.embedder,
            "model": MODEL,
            "index": fill_index,
            "decide": retry_once,
            "lease": LEASE,
        }
        return Indexer(**{**plain, **changes})

    def index(self, items: Sequence[Item] | None = None, **changes: Any) -> None:
        """All three steps for these documents, or for all that wait."""
        indexer = self.indexer(**changes)
        todo = self.items() if items is None else items
        for step in (indexer.chunk, indexer.embed, indexer.upsert):
            step(self.tenant, todo)

    def dead_letters(self) -> list[Any]:
        """Dead letters that nobody has resolved."""
        return self.dead(resolved_at=None)
