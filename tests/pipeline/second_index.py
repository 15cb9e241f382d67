"""A second search index beside the active one, filled as the pump and the embed worker would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import TextRejected
from pipeline.ingest.steps import Indexer
from pipeline.ledger import Item, Limits, Stage, due_work, search_indexes, work
from pipeline.ledger.search_indexes import IndexedDocument, WantedIndex, activate, begin_index
from pipeline.search.chunk_store import SearchIndex, active_index, indexes
from tests.ledger import ago, of_connection
from tests.pipeline.source_ledger import LEASE, SourceLedger

OTHER = 16
LIMITS = Limits(resend=60)


class SecondIndex:
    """A source with a second index beside the active one."""

    def __init__(self, notes: SourceLedger, strategy: str = "") -> None:
        self.notes = notes
        self.embedder = HashingEmbedder(OTHER)
        wanted = WantedIndex(
            provider="hashing", model=f"hashing-{OTHER}", dimensions=OTHER, strategy=strategy
        )
        with notes.database.control() as connection:
            self.index = begin_index(connection, wanted, chunker="structure")

    def filler(self, index: SearchIndex | None = None, **changes: Any) -> Indexer:
        index = index or self.index
        plain: dict[str, Any] = {
            "index": lambda _connection: index,
            "target": index.id,
            "model": index.model,
            "strategy": index.strategy,
            "embedder": lambda: HashingEmbedder(index.dimensions),
        }
        return self.notes.indexer(**{**plain, **changes})

    def claim(self, ids: Sequence[UUID], index: SearchIndex | None = None) -> work.Claim:
        """Take documents that the index lacks, as a worker does."""
        items, index = [Item(i, 1) for i in ids], index or self.index
        with self.notes.database.tenant(self.notes.tenant) as connection:
            return work.claim(
                connection, self.notes.tenant, Stage.FETCHED, items, lease=LEASE, index=index.id
            )

    def finish(self, connection: Connection, claim: work.Claim, filled: Sequence[IndexedDocument]) -> None:
        """Note that documents are in the index now; the caller holds their rows."""
        search_indexes.record_indexed(connection, claim.tenant_id, claim.index, filled)
        work.finish(connection, claim, filled)

    def due(self, index: SearchIndex | None = None) -> list[due_work.Batch]:
        """What a look of the pump would send."""
        with self.notes.database.control() as connection:
            of_connection(connection).work_items.set({"lease_token": None}, enqueued_at=None)
            return due_fills(connection, index or self.index)

    def fill(self, index: SearchIndex | None = None, **changes: Any) -> list[Item]:
        """Fill all that is due; returns what is to be looked at once more."""
        again: list[Item] = []
        for one in self.due(index):
            again += self.filler(index, **changes).fill(one.tenant_id, one.items).requeued
        return again

    def kill(self, external_id: str) -> None:
        """Have three workers killed by a document, the last a moment ago."""
        key = {"index_id": self.index.id, "document_id": self.notes.id(external_id)}
        lease = {"lease_token": uuid4(), "lease_until": ago(seconds=1)}
        self.notes.work_items.set(key, crash_count=3, enqueued_at=ago(seconds=2), **lease)

    def progress(self, index: SearchIndex | None = None) -> search_indexes.Progress:
        with self.notes.database.control() as connection:
            return search_indexes.progress(connection, (index or self.index).id)

    def switch(self) -> None:
        with self.notes.database.control() as connection:
            old = active_index(connection)
            assert old is not None
            new = next(i for i in indexes(connection) if i.id != old.id)
            activate(connection, new, old)

    def contents(self, index: SearchIndex | None = None) -> dict[str, list[str]]:
        """Texts in an index by the document's name."""
        rows = self.notes.chunks(index_id=(index or self.index).id)
        found: dict[str, list[str]] = {}
        for key, name in self.notes.documents.values("id", "external_id"):
            if texts := [row["content"] for row in rows if row["document_id"] == key]:
                found[name] = texts
        return found


def due_fills(connection: Connection, index: SearchIndex, limits: Limits = LIMITS) -> list[due_work.Batch]:
    """Messages for an index in a tick of the pump."""
    assert due_work.pump_once(connection, limits)
    return [batch for batch in due_work.choose_fills(connection, limits) if batch.index == index.id]


class Counting(HashingEmbedder):
    """Knows what it was paid for, and refuses texts with a certain word."""

    def __init__(self, dimensions: int, refuses: str = "\0") -> None:
        super().__init__(dimensions)
        self.refuses = refuses
        self.seen: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if any(self.refuses in one for one in texts):
            raise TextRejected("too rude")
        self.seen += texts
        return super().embed_documents(texts)


def first(second_index: SecondIndex) -> SearchIndex:
    with second_index.notes.database.control() as connection:
        found = active_index(connection)
    assert found is not None
    return found
