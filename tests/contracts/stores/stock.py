"""The stores that the contract is run for, and short words for filling and asking them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.search import term_statistics
from pipeline.search.chunk_store import ChunkStore, open_index
from pipeline.search.records import Replaced, Replacement, StoredDocument
from tests.ledger import Ledger, of_tenant
from tests.pipeline.stores.corpus import Candidate, candidates, enter

DIMENSIONS = 384
NOWHERE = UUID(int=0xD)
"""The project of documents that name none: the ledger knows no document without one."""


class InLedger:
    """ChunkStore joins documents and sources, so they are put into the ledger before their chunks.

    Each call is a transaction of its own; the counts for BM25 are made anew after each write.
    """

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant
        with database.tenant(tenant) as connection:
            self.index = open_index(
                connection,
                provider="hashing",
                model="hashing-384",
                dimensions=DIMENSIONS,
                chunker="structure",
                pipeline="structure|hashing-384:384",
            )

    def replace(self, batch: Sequence[Replacement]) -> list[Replaced]:
        placed = [
            replace(r, document=replace(r.document, project_id=r.document.project_id or NOWHERE))
            for r in batch
        ]
        with self.database.tenant(self.tenant) as connection:
            for replacement in placed:
                enter(connection, self.tenant, replacement.document)
            done = ChunkStore(connection, self.index, self.tenant).replace(placed)
            term_statistics.refresh(connection, self.tenant, self.index.id)
        return done

    def counts(self) -> tuple[int, int]:
        """How many documents and chunks are searchable."""
        chunks = Ledger(of_tenant(self.database, self.tenant)).chunks
        of = chunks.values("document_id", index_id=self.index.id)
        return len(set(of)), len(of)


NEAR = 0.005
"""A store may keep vectors at half precision."""
EMBEDDER = HashingEmbedder(DIMENSIONS)
PROJECT_A, PROJECT_B = UUID(int=0xA), UUID(int=0xB)


def document(**changes: Any) -> StoredDocument:
    plain = StoredDocument(
        id=uuid4(), version=1, title="Title", source_type=SourceType.TEXT, kind=Kind.REFERENCE, source="notes"
    )
    return replace(plain, **changes)


def replacement(of: StoredDocument, *contents: str, context: str = "") -> Replacement:
    chunks = [Chunk(ord=n, content=content, context=context) for n, content in enumerate(contents)]
    return Replacement(
        document=of, chunks=chunks, vectors=EMBEDDER.embed_documents([c.embedding_text for c in chunks])
    )


def put(store: InLedger, *contents: str, **changes: Any) -> StoredDocument:
    """Store one document with these chunks."""
    stored = document(**changes)
    store.replace([replacement(stored, *contents)])
    return stored


def ask(store: InLedger, words: str, **changes: Any) -> list[Candidate]:
    """Both arms, unless `changes` to the query say otherwise."""
    given = {"vector": EMBEDDER.embed_query(words), **changes}
    return candidates(store.database, store.tenant, words, **given)


def by_words(store: InLedger, words: str, **changes: Any) -> list[Candidate]:
    """The keyword arm alone."""
    return ask(store, words, vector=None, **changes)


def contents(found: Sequence[Candidate]) -> list[str]:
    return [c.chunk.content for c in found]


def all_of(store: InLedger, of: StoredDocument) -> list[tuple[int, str]]:
    """A document's chunks as the store shows them, in order."""
    found = [c for c in ask(store, "anything", candidates=1000) if c.document.id == of.id]
    return sorted((c.chunk.ord, c.chunk.content) for c in found)
