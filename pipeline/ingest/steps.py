"""The three steps of a document: chunk, embed, upsert. Each claims, works outside transactions, and finishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection

from pipeline.chunking import Chunker
from pipeline.chunking.prose import prose_of
from pipeline.database.engine import Database
from pipeline.documents import Chunk, Document, Kind, SourceType
from pipeline.embedding import Embedder, Vectors
from pipeline.errors import DocumentRejected, LarderError, StoreRejected
from pipeline.ingest import work_in_progress
from pipeline.ingest.embed import Decide, Decision, EmbedStep, Step, Terms
from pipeline.ledger import Item, Stage, search_indexes, work
from pipeline.search.chunk_store import PgVectorStore, SearchIndex
from pipeline.search.chunks import Replacement, StoredDocument

__all__ = ["Decide", "Decision", "Indexer", "Step", "centroid"]


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """The parts that indexing needs, built once per process."""

    database: Database
    chunker_of: Callable[[str, SourceType], Chunker]
    """By source name and type."""
    embedder: Callable[[], Embedder]
    """Loaded on first use: the worker that only chunks must not hold a model."""
    model: str
    index: Callable[[Connection], SearchIndex]
    """The search index that is read; its model is `model`, unless another one was made active meanwhile."""
    decide: Decide
    lease: float = 120.0
    crashes: int = work.MOST_CRASHES
    """So often may a document take its worker with it."""
    slice_seconds: float = 60.0
    """After this long an embed step stops and is sent again: no message may outlive its time limit."""
    terms: Terms = field(default_factory=Terms)
    """Under which the embedder is asked."""

    def chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Cut documents into staged chunks."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(
                connection, tenant, Stage.FETCHED, items, lease=self.lease, crashes=self.crashes
            )
            bodies = work_in_progress.bodies(connection, claim.ids)
        pieces: dict[UUID, list[Chunk]] = {}
        failed: dict[UUID, LarderError] = {}
        for i in claim.ids:
            try:
                stored = claim.documents[i]
                pieces[i] = cut(self.chunker_of(stored.source, stored.source_type), stored, bodies.get(i))
            except LarderError as error:
                failed[i] = error
        with self.database.tenant(tenant, durable=False) as connection:
            ours = work.still_ours(connection, claim)
            kept = {i: pieces[i] for i in ours if i in pieces}
            versions = {i: claim.documents[i].version for i in kept}
            work_in_progress.stage_chunks(connection, tenant, kept, versions)
            for i, fault in failed.items():
                self._fail(connection, claim, [i], fault)
            ready = work.advance(connection, claim, list(kept), Stage.CHUNKED)
        return Step(ready=ready, stage=Stage.CHUNKED, sizes={i: len(c) for i, c in kept.items()})

    def embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make the vectors that the cache does not have."""
        return EmbedStep(
            database=self.database,
            embedder=self.embedder,
            model=self.model,
            index=self.index,
            decide=self.decide,
            lease=self.lease,
            crashes=self.crashes,
            slice_seconds=self.slice_seconds,
            terms=self.terms,
        ).run(tenant, items)

    def upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make documents searchable in their wanted version."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(
                connection, tenant, Stage.EMBEDDED, items, lease=self.lease, crashes=self.crashes
            )
            staged = work_in_progress.staged(connection, tenant, self.model, claim.ids)
        if not claim.ids:
            return Step()
        again = self._back_to_embed(claim, [i for i in claim.ids if not staged[i].complete])
        whole = [i for i in claim.ids if staged[i].complete]
        try:
            again += self._write(claim, whole, staged)
        except StoreRejected as error:
            if len(whole) == 1:
                with self.database.tenant(tenant, durable=False) as connection:
                    self._fail(connection, claim, whole, error)
            else:
                # One of them is refused: each for itself, so that the others get in.
                for i in whole:
                    again += self._write_alone(claim, i, staged)
        except LarderError as error:
            with self.database.tenant(tenant, durable=False) as connection:
                self._fail(connection, claim, whole, error)
        return Step(again=again, again_stage=Stage.CHUNKED)

    def _back_to_embed(self, claim: work.Claim, ids: list[UUID]) -> list[Item]:
        """Their vectors were trimmed from the cache meanwhile."""
        if not ids:
            return []
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            return work.put_back(connection, claim, ids, Stage.CHUNKED)

    def _write_alone(
        self, claim: work.Claim, document: UUID, staged: dict[UUID, work_in_progress.Staged]
    ) -> list[Item]:
        try:
            return self._write(claim, [document], staged)
        except LarderError as error:
            with self.database.tenant(claim.tenant_id, durable=False) as connection:
                self._fail(connection, claim, [document], error)
            return []

    def _write(
        self, claim: work.Claim, ids: Sequence[UUID], staged: dict[UUID, work_in_progress.Staged]
    ) -> list[Item]:
        """One transaction: what is still ours is replaced and marked as searchable, or nothing is.

        If an index of another model was made active meanwhile, these go back and are embedded for that one.
        """
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            index = self.index(connection)
            if index.model != self.model:
                return work.put_back(connection, claim, ids, Stage.CHUNKED)
            mine = set(work.still_ours(connection, claim))
            batch = [
                Replacement(
                    document=claim.documents[i],
                    chunks=staged[i].chunks,
                    vectors=np.asarray(staged[i].vectors),
                )
                for i in ids
                if i in mine
            ]
            results = PgVectorStore(connection, index, claim.tenant_id).replace(batch)
            search_indexes.note(connection, claim.tenant_id, index.id, [_held(r) for r in batch])
            work.finish(
                connection,
                claim,
                [
                    work.Indexed(
                        document_id=r.document.id,
                        chunks=len(r.chunks),
                        written=result.written,
                        kept=result.kept,
                    )
                    for r, result in zip(batch, results, strict=True)
                ],
            )
        return []

    def _fail(
        self, connection: Connection, claim: work.Claim, ids: Sequence[UUID], error: LarderError
    ) -> None:
        """Note the error; documents that have been tried differently often are decided about one by one."""
        for attempts in sorted({claim.attempts[i] for i in ids}):
            same = [i for i in ids if claim.attempts[i] == attempts]
            decision = self.decide(error, attempts + 1)
            work.fail(connection, claim, same, error, delay=decision.delay, dead=decision.dead)


def _held(replacement: Replacement) -> search_indexes.Held:
    return search_indexes.Held(
        document_id=replacement.document.id,
        version=replacement.document.version,
        chunks=len(replacement.chunks),
        centroid=centroid(replacement.vectors),
    )


def cut(chunker: Chunker, stored: StoredDocument, body: str | None) -> list[Chunk]:
    """The chunks of a document's text without what is no prose.

    Of a text of nothing else none remains, but a work item's title says what it is about and stands for it.

    Raises:
        DocumentRejected: there is no text, or the chunker fails on it.
    """
    if body is None:
        raise DocumentRejected("its text is not in the ledger", fix="sync the source with --force")
    try:
        text = prose_of(body)
        if stored.kind is Kind.WORK and body.strip() and not text.strip():
            text = stored.title
        document = Document(
            external_id=str(stored.id),
            title=stored.title,
            text=text,
            source_type=stored.source_type,
            kind=stored.kind,
            url=stored.url,
            tags=stored.tags,
            metadata=stored.metadata,
        )
        return chunker.chunk(document)
    except LarderError:
        raise
    except Exception as error:  # noqa: BLE001 - any fault of ours on one text is a fault of that document
        # It must not take the other documents of the batch with it, and its message may quote the text.
        raise DocumentRejected(f"the chunker failed with {type(error).__name__}") from None


def centroid(vectors: Vectors) -> HalfVector | None:
    """The mean of a document's vectors, length 1; None without vectors or if they cancel out."""
    if len(vectors) == 0:
        return None
    mean = vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    return HalfVector(mean / norm) if norm > 0 else None
