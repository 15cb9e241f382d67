"""The three steps of a document: chunk, embed, upsert. Each claims, works outside transactions, and finishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection

from pipeline import staging
from pipeline.chunking import Chunker
from pipeline.database import Database
from pipeline.documents import Chunk, Document, SourceType
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import embed_checked
from pipeline.errors import DocumentRejected, LarderError, StoreRejected, TextRejected
from pipeline.ledger import Item, Stage, work
from pipeline.stores import Replacement, StoredDocument
from pipeline.stores.pgvector import PgVectorStore, SearchIndex


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What an error means for the documents that met it."""

    delay: float
    """Seconds until the next try."""
    dead: bool
    """True: no further try."""


class Decide(Protocol):
    """`workers.retry.decide`: a pure question, error and number of tries in, decision out."""

    def __call__(self, error: LarderError, attempts: int) -> Decision:
        """The decision for the `attempts`-th try that failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step leaves to send: documents ready for the next stage, and some to look at once more."""

    ready: list[Item] = field(default_factory=list)
    stage: Stage = Stage.DONE
    again: list[Item] = field(default_factory=list)
    again_stage: Stage = Stage.DONE
    sizes: dict[UUID, int] = field(default_factory=dict)
    """Chunks per document, for cutting messages of even weight."""


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
    """The search index that is being filled."""
    decide: Decide
    lease: float = 120.0
    slice_seconds: float = 60.0
    """After this long an embed step stops and is sent again: no message may outlive its time limit."""

    def chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Cut documents into staged chunks."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(connection, tenant, Stage.FETCHED, items, lease=self.lease)
            bodies = staging.bodies(connection, claim.ids)
        pieces: dict[UUID, list[Chunk]] = {}
        failed: dict[UUID, LarderError] = {}
        for i in claim.ids:
            try:
                pieces[i] = self._cut(claim.documents[i], bodies.get(i))
            except LarderError as error:
                failed[i] = error
        with self.database.tenant(tenant, durable=False) as connection:
            ours = work.still_ours(connection, claim)
            kept = {i: pieces[i] for i in ours if i in pieces}
            versions = {i: claim.documents[i].version for i in kept}
            staging.stage_chunks(connection, tenant, kept, versions)
            for i, fault in failed.items():
                self._fail(connection, claim, [i], fault)
            ready = work.advance(connection, claim, list(kept), Stage.CHUNKED)
        return Step(ready=ready, stage=Stage.CHUNKED, sizes={i: len(c) for i, c in kept.items()})

    def _cut(self, stored: StoredDocument, body: str | None) -> list[Chunk]:
        if body is None:
            raise DocumentRejected("its text is not in the ledger", fix="sync the source with --force")
        document = Document(
            external_id=str(stored.id),
            title=stored.title,
            text=body,
            source_type=stored.source_type,
            kind=stored.kind,
            url=stored.url,
            tags=stored.tags,
            metadata=stored.metadata,
        )
        try:
            return self.chunker_of(stored.source, stored.source_type).chunk(document)
        except LarderError:
            raise
        except Exception as error:  # noqa: BLE001 - any fault of ours on one text is a fault of that document
            # It must not take the other documents of the batch with it, and its message may quote the text.
            raise DocumentRejected(f"the chunker failed with {type(error).__name__}") from None

    def embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make the vectors that the cache does not have."""
        embedder = self.embedder()
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(connection, tenant, Stage.CHUNKED, items, lease=self.lease)
            staging.refill(connection, tenant, self.model, self.index(connection).id, claim.ids)
            hashes = staging.staged_hashes(connection, claim.ids)
            every = list(dict.fromkeys(h for hs in hashes.values() for h in hs))
            wanted = staging.missing(connection, tenant, self.model, every)
            texts = staging.texts(connection, claim.ids, list(wanted))
        if not claim.ids:
            return Step()
        done: set[bytes] = set()
        refused: set[bytes] = set()
        try:
            self._embed_missing(embedder, claim, texts, done, refused)
        except LarderError as error:
            with self.database.tenant(tenant, durable=False) as connection:
                # What was embedded before is kept and was paid for: it counts now.
                work.count_texts(connection, claim, _attribute(hashes, done, wanted - done)[0], {})
                self._fail(connection, claim, claim.ids, error)
            return Step()
        return self._finish_embed(claim, hashes, wanted, done, refused)

    def _embed_missing(
        self,
        embedder: Embedder,
        claim: work.Claim,
        texts: dict[bytes, str],
        done: set[bytes],
        refused: set[bytes],
    ) -> None:
        """Note the hashes embedded and refused; stops early when its slice of time is over."""
        order = list(texts)
        started = renewed = time.monotonic()
        size = embedder.limits.texts
        for start in range(0, len(order), size):
            part = order[start : start + size]
            vectors, bad = self._embed_part(embedder, [texts[h] for h in part])
            refused |= {part[n] for n in bad}
            good = [h for n, h in enumerate(part) if n not in bad]
            now = time.monotonic()
            # Durable: these vectors may have cost money.
            with self.database.tenant(claim.tenant_id) as connection:
                if good:
                    staging.cache_vectors(connection, claim.tenant_id, self.model, good, vectors)
                if now - renewed > self.lease / 3:
                    work.renew(connection, claim, lease=self.lease)
                    renewed = now
            done |= set(good)
            if now - started > self.slice_seconds:
                break

    @staticmethod
    def _embed_part(embedder: Embedder, texts: list[str]) -> tuple[Vectors, set[int]]:
        """Vectors of the accepted texts, and the places of the refused ones."""
        try:
            return embed_checked(embedder, texts), set()
        except TextRejected as error:
            bad = set(getattr(error, "indexes", ()))
            if not bad:
                raise
        good = [t for n, t in enumerate(texts) if n not in bad]
        empty: Vectors = np.zeros((0, embedder.dimensions), dtype=np.float32)
        return (embed_checked(embedder, good) if good else empty), bad

    def _finish_embed(
        self,
        claim: work.Claim,
        hashes: dict[UUID, list[bytes]],
        wanted: set[bytes],
        done: set[bytes],
        refused: set[bytes],
    ) -> Step:
        late = wanted - done - refused
        embedded, reused = _attribute(hashes, done, late)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            ours = work.still_ours(connection, claim)
            bad = [i for i in ours if refused & set(hashes[i])]
            slow = [i for i in ours if i not in bad and late & set(hashes[i])]
            work.count_texts(connection, claim, embedded, {i: n for i, n in reused.items() if i not in slow})
            if bad:
                self._fail(
                    connection, claim, bad, TextRejected("the embedding provider refuses one of its texts")
                )
            again = work.put_back(connection, claim, slow)
            fine = [i for i in ours if i not in bad and i not in slow]
            ready = work.advance(connection, claim, fine, Stage.EMBEDDED)
        return Step(
            ready=ready,
            stage=Stage.EMBEDDED,
            again=again,
            again_stage=Stage.CHUNKED,
            sizes={i: len(hashes[i]) for i in claim.ids},
        )

    def upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make documents searchable in their wanted version."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(connection, tenant, Stage.EMBEDDED, items, lease=self.lease)
            staged = staging.staged(connection, tenant, self.model, claim.ids)
        if not claim.ids:
            return Step()
        again = self._back_to_embed(claim, [i for i in claim.ids if not staged[i].complete])
        whole = [i for i in claim.ids if staged[i].complete]
        try:
            self._write(claim, whole, staged)
        except StoreRejected as error:
            if len(whole) == 1:
                with self.database.tenant(tenant, durable=False) as connection:
                    self._fail(connection, claim, whole, error)
            else:
                # One of them is refused: each for itself, so that the others get in.
                for i in whole:
                    self._write_alone(claim, i, staged)
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

    def _write_alone(self, claim: work.Claim, document: UUID, staged: dict[UUID, staging.Staged]) -> None:
        try:
            self._write(claim, [document], staged)
        except LarderError as error:
            with self.database.tenant(claim.tenant_id, durable=False) as connection:
                self._fail(connection, claim, [document], error)

    def _write(self, claim: work.Claim, ids: Sequence[UUID], staged: dict[UUID, staging.Staged]) -> None:
        """One transaction: what is still ours is replaced and marked as searchable, or nothing is."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
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
            store = PgVectorStore(connection, self.index(connection), claim.tenant_id)
            results = store.replace(batch)
            work.finish(
                connection,
                claim,
                [
                    work.Indexed(
                        document_id=r.document.id,
                        chunks=len(r.chunks),
                        written=result.written,
                        kept=result.kept,
                        centroid=centroid(r.vectors),
                    )
                    for r, result in zip(batch, results, strict=True)
                ],
            )

    def _fail(
        self, connection: Connection, claim: work.Claim, ids: Sequence[UUID], error: LarderError
    ) -> None:
        """Note the error; documents that have been tried differently often are decided about one by one."""
        for attempts in sorted({claim.attempts[i] for i in ids}):
            same = [i for i in ids if claim.attempts[i] == attempts]
            decision = self.decide(error, attempts + 1)
            work.fail(connection, claim, same, error, delay=decision.delay, dead=decision.dead)


def _attribute(
    hashes: dict[UUID, list[bytes]], done: set[bytes], late: set[bytes]
) -> tuple[dict[UUID, int], dict[UUID, int]]:
    """(embedded, reused) texts per document: a text that several share counts as embedded for the first."""
    embedded: dict[UUID, int] = {}
    reused: dict[UUID, int] = {}
    fresh = set(done)
    for document, own in hashes.items():
        mine = set(own) & fresh
        fresh -= mine
        embedded[document] = len(mine)
        reused[document] = len([h for h in own if h not in late]) - len(mine)
    return embedded, reused


def centroid(vectors: Vectors) -> HalfVector | None:
    """The mean of a document's vectors, length 1; None without vectors or if they cancel out."""
    if len(vectors) == 0:
        return None
    mean = vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    return HalfVector(mean / norm) if norm > 0 else None
