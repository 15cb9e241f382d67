"""Filling a search index with what the ledger has: copied or cut anew, embedded with the index's own model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from sqlalchemy import Connection

from pipeline.chunking import Chunker
from pipeline.database.engine import Database
from pipeline.documents import Chunk, SourceType
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    LarderError,
    ModelMissing,
    StoreRejected,
    TextRejected,
)
from pipeline.ingest import work_in_progress
from pipeline.ingest.embed import SHARED_SECONDS, Decide
from pipeline.ingest.steps import centroid, cut
from pipeline.ledger import Item, embedding_use, fills
from pipeline.ledger.fills import FillClaim, Wanted
from pipeline.ledger.search_indexes import Held, contents, touch_documents
from pipeline.search.chunk_store import PgVectorStore, SearchIndex
from pipeline.search.chunks import Replacement

HOLD_SECONDS = 300.0
"""How long a fill waits when its model or key is refused: somebody has to mend that first."""

_NO_FAULT = (EmbedderUnavailable, EmbedderRefused, ConfigurationError, ModelMissing)
"""Errors of the embedder as a whole: they are no fault of a document, however often they come."""


@dataclass(kw_only=True)
class _Work:
    """What one fill has of its documents so far."""

    pieces: dict[UUID, list[Chunk]] = field(default_factory=dict)
    vectors: dict[bytes, Vectors] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    foreign: set[bytes] = field(default_factory=set)
    """Somebody else is embedding these."""

    def hashes(self, document: UUID) -> list[bytes]:
        """Of its chunks, in order."""
        return [bytes.fromhex(chunk.hash) for chunk in self.pieces[document]]

    def texts(self) -> dict[bytes, str]:
        """What is to be embedded still."""
        every = {bytes.fromhex(c.hash): c.embedding_text for chunks in self.pieces.values() for c in chunks}
        return {h: t for h, t in every.items() if h not in self.vectors and h not in self.foreign}


@dataclass(frozen=True, kw_only=True)
class Filler:
    """Brings documents into one search index, in the version that is searchable elsewhere."""

    database: Database
    index: SearchIndex
    embedder: Callable[[UUID], Embedder]
    """The index's own model for a tenant, whose allowance it may be; loaded on first use."""
    chunker_of: Callable[[str, SourceType], Chunker]
    """By source name and type, in the index's own way."""
    decide: Decide
    lease: float = 120.0
    slice_seconds: float = 60.0
    """After this long a fill stops and the rest is sent again: no message may outlive its time limit."""
    claims: bool = False
    """Claim each text before it is embedded, so that nobody pays for it twice; not worth it for a free model."""

    def fill(self, tenant: UUID, items: Sequence[Item]) -> list[Item]:
        """Fill in what this index lacks of these documents; returns those to send a message about once more."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = fills.claim(
                connection,
                tenant,
                self.index.id,
                self.index.strategy,
                [i.document_id for i in items],
                lease=self.lease,
            )
            copied = _copied(connection, claim)
        if not claim.ids:
            return []
        work = _Work()
        again = self._cut(claim, copied, work)
        try:
            self._embed(claim, work)
        except LarderError as error:
            self._wait(claim, list(work.pieces), error)
            return again
        return again + self._settle(claim, work)

    def _cut(self, claim: FillClaim, copied: Mapping[UUID, list[Chunk]], work: _Work) -> list[Item]:
        """Chunks of every document; those that another index was just rewriting are looked at once more."""
        moved: list[UUID] = []
        for document in claim.ids:
            wanted = claim.wanted[document]
            if wanted.copy_from is not None:
                chunks = copied.get(document, [])
                if len(chunks) == wanted.copy_chunks:
                    work.pieces[document] = chunks
                else:
                    moved.append(document)
            elif wanted.body is not None:
                self._cut_one(claim, document, wanted, work)
            else:
                self._wait_for_text(claim, document)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            return fills.put_back(connection, claim, moved) if moved else []

    def _cut_one(self, claim: FillClaim, document: UUID, wanted: Wanted, work: _Work) -> None:
        try:
            stored = wanted.document
            work.pieces[document] = cut(
                self.chunker_of(stored.source, stored.source_type), stored, wanted.body
            )
        except LarderError as error:
            self._fault(claim, [document], error)

    def _wait_for_text(self, claim: FillClaim, document: UUID) -> None:
        """Its text is that of a newer version, and nobody has the chunks: the newer version comes soon."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            error = "its text is being indexed in a newer version"
            fills.postpone(connection, claim, [document], error=error, delay=self.lease / 4, tried=False)

    def _embed(self, claim: FillClaim, work: _Work) -> None:
        """All vectors that can be had within the slice of time; those that may have cost money are kept at once."""
        model, tenant = self.index.model, claim.tenant_id
        every = list(work.texts())
        with self.database.tenant(tenant, durable=False) as connection:
            work_in_progress.refill_from(connection, tenant, self.index, claim.ids, every)
            work.vectors |= work_in_progress.cached(connection, tenant, model, every)
            if self.claims and work.texts():
                wanted = set(work.texts())
                ours = embedding_use.claim_texts(connection, claim, model, wanted, lease=self.lease)
                # Looked at again: whoever had the others may have finished between the two statements.
                work.vectors |= work_in_progress.cached(connection, tenant, model, list(wanted))
                work.foreign = wanted - ours - set(work.vectors)
        texts = work.texts()
        if not texts:
            return
        embedder = self.embedder(tenant)
        order, size = list(texts), embedder.limits.texts
        started = time.monotonic()
        for start in range(0, len(order), size):
            part = order[start : start + size]
            good, vectors = _embedded(embedder, part, texts, work.refused)
            with self.database.tenant(tenant) as connection:
                if good:
                    work_in_progress.cache_vectors(connection, tenant, model, good, vectors)
                fills.renew(connection, claim, lease=self.lease)
                if self.claims:
                    embedding_use.renew_texts(connection, claim, lease=self.lease)
            work.vectors |= dict(zip(good, vectors, strict=True))
            if time.monotonic() - started > self.slice_seconds:
                break

    def _settle(self, claim: FillClaim, work: _Work) -> list[Item]:
        """Write what is whole, give up on what is refused, and put the rest back."""
        bad = [i for i in work.pieces if work.refused & set(work.hashes(i))]
        if bad:
            self._fault(claim, bad, TextRejected("the embedding provider refuses one of its texts"))
        whole = [i for i in work.pieces if i not in bad and all(h in work.vectors for h in work.hashes(i))]
        self._write_each(claim, whole, work)
        late = [i for i in work.pieces if i not in bad and i not in whole]
        shared = [i for i in late if work.foreign & set(work.hashes(i))]
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            self._release(connection, claim)
            said = "another worker is embedding one of its texts"
            fills.postpone(connection, claim, shared, error=said, delay=SHARED_SECONDS, tried=False)
            late = [i for i in late if i not in shared]
            return fills.put_back(connection, claim, late) if late else []

    def _release(self, connection: Connection, claim: FillClaim) -> None:
        if self.claims:
            embedding_use.release_texts(connection, claim)

    def _write_each(self, claim: FillClaim, whole: list[UUID], work: _Work) -> None:
        """All in one transaction; if one of them is refused, each for itself, so that the others get in."""
        try:
            self._write(claim, whole, work)
        except StoreRejected as error:
            if len(whole) == 1:
                self._fault(claim, whole, error)
                return
            for document in whole:
                self._write_each(claim, [document], work)
        except LarderError as error:
            self._fault(claim, whole, error)

    def _write(self, claim: FillClaim, ids: Sequence[UUID], work: _Work) -> None:
        """One transaction: what is still ours is replaced and noted, or nothing is."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            mine = set(fills.still_ours(connection, claim))
            batch = [self._replacement(claim.wanted[i], work, i) for i in ids if i in mine]
            if not batch:
                return
            PgVectorStore(connection, self.index, claim.tenant_id).replace(batch)
            held = [
                Held(
                    document_id=r.document.id,
                    version=r.document.version,
                    chunks=len(r.chunks),
                    centroid=centroid(r.vectors),
                )
                for r in batch
            ]
            fills.finish(connection, claim, held)
            # Only if it is the one that is read: answers that were kept from before no longer hold.
            touch_documents(connection, self.index, [h.document_id for h in held])

    def _replacement(self, wanted: Wanted, work: _Work, document: UUID) -> Replacement:
        vectors = [work.vectors[h] for h in work.hashes(document)]
        shaped = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), self.index.dimensions)
        return Replacement(document=wanted.document, chunks=work.pieces[document], vectors=shaped)

    def _wait(self, claim: FillClaim, ids: Sequence[UUID], error: LarderError) -> None:
        """The embedder failed as a whole, or one of the answers made no sense."""
        if not isinstance(error, _NO_FAULT):
            self._fault(claim, ids, error)
            return
        first = max((claim.wanted[i].attempts for i in ids), default=0)
        delay = (
            self.decide(error, first + 1).delay if isinstance(error, EmbedderUnavailable) else HOLD_SECONDS
        )
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            self._release(connection, claim)
            fills.postpone(
                connection,
                claim,
                ids,
                error=str(error),
                delay=max(delay, error.retry_after or 0.0) or self.lease,
                tried=error.retry_after is None and isinstance(error, EmbedderUnavailable),
            )

    def _fault(self, claim: FillClaim, ids: Sequence[UUID], error: LarderError) -> None:
        """An error of these documents: later, or never in this index; the other indexes keep what they have."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            for document in ids:
                decision = self.decide(error, claim.wanted[document].attempts + 1)
                if decision.dead:
                    fills.give_up(connection, claim, [document], code=error.code, reason=str(error))
                else:
                    fills.postpone(connection, claim, [document], error=str(error), delay=decision.delay)


def _copied(connection: Connection, claim: FillClaim) -> dict[UUID, list[Chunk]]:
    """The chunks that other indexes have of documents in the very version that is wanted."""
    keys = [(i, w.copy_from, w.document.version) for i, w in claim.wanted.items() if w.copy_from is not None]
    return contents(connection, keys) if keys else {}


def _embedded(
    embedder: Embedder, part: Sequence[bytes], texts: Mapping[bytes, str], refused: set[bytes]
) -> tuple[list[bytes], Vectors]:
    """Hashes and vectors of the accepted texts; the refused ones are noted."""
    good = list(part)
    try:
        return good, embed_checked(embedder, [texts[h] for h in good])
    except TextsRejected as error:
        refused |= {part[n] for n in error.indexes}
        kept = [n for n in range(len(part)) if n not in error.indexes]
        return [part[n] for n in kept], error.vectors[kept]
