"""A source with a vector store beside PostgreSQL, carried over as workers do."""

from __future__ import annotations

from typing import Any

from pipeline.search.stores import Scope, VectorStore, outbox
from pipeline.search.stores.memory import MemoryStore
from pipeline.search.stores.mirror import NOBODY, Mirror
from pipeline.search.stores.outbox import StoreRow, point_id
from tests.pipeline.source_ledger import SourceLedger


def set_up(notes: SourceLedger, name: str = "memory", *, preferred: bool = True) -> None:
    """Register a store, as `larder stores add` does."""
    outbox.note_changes(notes.database, on=True)
    with notes.database.control() as connection:
        assert outbox.register(connection, name, preferred=preferred)


class Mirrored:
    """A store in memory that is registered, and its mirror."""

    def __init__(
        self, notes: SourceLedger, store: VectorStore | None = None, *, name: str = "memory"
    ) -> None:
        self.notes = notes
        self.store: Any = store or MemoryStore()
        set_up(notes, name)
        self.mirror = Mirror(notes.database, name, self.store)

    def carry(self) -> int:
        """Carry all that is due over; returns the number of chunks."""
        carried = 0
        for _ in range(200):
            self.mirror.look_after()
            with self.notes.database.control() as connection:
                tenants = outbox.due_tenants(connection, self.mirror.name)
            batch = sum(self.mirror.carry(tenant) for tenant in tenants)
            carried += batch
            if not batch and self.row.status == "ready":
                return carried
        raise AssertionError(f"it never ends: {self.row}, {self.outbox()}")

    @property
    def row(self) -> StoreRow:
        with self.notes.database.control() as connection:
            return next(row for row in outbox.listed(connection) if row.name == self.mirror.name)

    def outbox(self) -> list[Any]:
        return self.notes.outbox()

    def stored(self) -> set[str]:
        """Ids in the store, without marks."""
        return {
            id_
            for points in self.store.collections.values()
            for tenant, id_ in points
            if tenant != str(NOBODY)
        }

    def expected(self) -> set[str]:
        """Ids that it should have by PostgreSQL."""
        shown = self.notes.documents.values("id", hidden=False, deleted=False)
        rows = [row for row in self.notes.chunks() if row["embedding"] is not None]
        return {point_id(row["document_id"], row["ord"]) for row in rows if row["document_id"] in shown}

    def scope(self) -> Scope:
        return Scope(collection="chunks-1", tenant=self.notes.tenant)
