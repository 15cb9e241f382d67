"""Filling a search index with what the ledger has: copied or cut anew, embedded with the index's own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from sqlalchemy import Connection

from pipeline.chunking.strategies import Chunker
from pipeline.database.engine import Database
from pipeline.documents import Chunk, SourceType
from pipeline.embedding import Embedder, Vectors
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    LarderError,
    ModelMissing,
    StoreDamaged,
    StoreHindered,
    StoreUnavailable,
    TextRejected,
)
from pipeline.ingest import work_in_progress
from pipeline.ingest.steps import Decide, held_of
from pipeline.ingest.work_in_progress import (
    SHARED_SECONDS,
    attributed_error,
    cut,
    embed_missing,
    giving_back,
    missing,
    write_each,
)
from pipeline.ledger import Item, embedding_use, fills
from pipeline.ledger.fills import FillClaim
from pipeline.search.chunk_store import PgVectorStore, SearchIndex
from pipeline.search.records import Replacement

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
        """What an embedder reads of all chunks."""
        return {bytes.fromhex(c.hash): c.embedding_text for chunks in self.pieces.values() for c in chunks}


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
        """Fill in what this index lacks of these documents; returns those to send a message about once more.

        If the database fails at that, each for itself, so that the others get in.
        """
        try:
            return self._fill(tenant, items)
        except StoreHindered as error:
            if len(items) > 1:
                return [again for item in items for again in self.fill(tenant, [item])]
            with self.database.tenant(tenant, durable=False) as connection:
                claim = self._claim(connection, tenant, items, bodies=False)
            self._fault(claim, claim.ids, error)
            return []

    def _fill(self, tenant: UUID, items: Sequence[Item]) -> list[Item]:
        with self.database.tenant(tenant, durable=False) as connection:
            claim = self._claim(connection, tenant, items)
            copied = fills.copied(connection, claim)
        try:
            return self._filled(claim, copied) if claim.ids else []
        except StoreUnavailable as error:
            if isinstance(error, StoreDamaged) and len(claim.ids) > 1:
                self._postpone(claim, claim.ids, str(error), delay=0.0, tried=False, release=True)
                raise
            self._fault(claim, claim.ids, error)
            return []

    def _claim(
        self, connection: Connection, tenant: UUID, items: Sequence[Item], *, bodies: bool = True
    ) -> FillClaim:
        ids, index = [i.document_id for i in items], self.index
        return fills.claim(connection, tenant, index.id, index.strategy, ids, lease=self.lease, bodies=bodies)

    def _filled(self, claim: FillClaim, copied: Mapping[UUID, list[Chunk]]) -> list[Item]:
        work = _Work()
        again = self._cut(claim, copied, work)
        try:
            self._embed(claim, work)
        except LarderError as error:
            if isinstance(error, StoreDamaged) and len(claim.ids) > 1:
                raise
            self._wait(claim, list(work.pieces), error)
            return again
        return again + self._settle(claim, work)

    def _cut(self, claim: FillClaim, copied: Mapping[UUID, list[Chunk]], work: _Work) -> list[Item]:
        """Chunks of every document; those that another index was just rewriting are looked at once more."""
        moved: list[UUID] = []
        for document, wanted in sorted(claim.wanted.items()):
            if wanted.copy_from is not None:
                if len(copied.get(document, [])) == wanted.copy_chunks:
                    work.pieces[document] = copied.get(document, [])
                else:
                    moved.append(document)
            elif wanted.body is not None:
                try:
                    chunker = self.chunker_of(wanted.source, wanted.source_type)
                    work.pieces[document] = cut(chunker, wanted, wanted.body)
                except LarderError as error:
                    self._fault(claim, [document], error)
            else:  # its text is that of a newer version, and nobody has the chunks: the newer version comes soon
                said = "its text is being indexed in a newer version"
                self._postpone(claim, [document], said, delay=self.lease / 4, tried=False)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            return fills.put_back(connection, claim, moved) if moved else []

    def _embed(self, claim: FillClaim, work: _Work) -> None:
        """All vectors that can be had within the slice of time."""
        model, tenant, texts = self.index.model, claim.tenant_id, work.texts()
        lease = self.lease if self.claims else None
        with self.database.tenant(tenant, durable=False) as connection:
            work_in_progress.refill(connection, tenant, self.index, claim.ids, list(texts))
            lacking, ours = missing(connection, claim, model, texts, lease=lease)
        work.foreign = lacking - ours
        if ours:
            calls = embed_missing(
                self.database,
                self.embedder(tenant),
                tenant,
                model,
                {h: t for h, t in texts.items() if h in ours},
                tokens=None,
                seconds=self.slice_seconds,
                renew=lambda connection: self._renew(connection, claim),
                lease=self.lease,
            )
            for _, refused in calls:
                work.refused |= set(refused)
        with self.database.tenant(tenant, durable=False) as connection:
            work.vectors = work_in_progress.cached(connection, tenant, model, list(texts))

    def _renew(self, connection: Connection, claim: FillClaim) -> None:
        fills.renew(connection, claim, lease=self.lease)
        if self.claims:
            embedding_use.renew_texts(connection, claim, lease=self.lease)

    def _settle(self, claim: FillClaim, work: _Work) -> list[Item]:
        """Write what is whole, give up on what is refused, and put the rest back."""
        bad = [i for i in work.pieces if work.refused & set(work.hashes(i))]
        if bad:
            self._fault(claim, bad, TextRejected("the embedding provider refuses one of its texts"))
        rest = [i for i in work.pieces if i not in bad]
        whole = [i for i in rest if all(h in work.vectors for h in work.hashes(i))]
        write_each(
            whole,
            lambda ids: self._write(claim, ids, work),
            lambda ids, error: self._fault(claim, ids, error),
        )
        late = [i for i in rest if i not in whole]
        shared = [i for i in late if work.foreign & set(work.hashes(i))]
        said = "another worker is embedding one of its texts"
        self._postpone(claim, shared, said, delay=SHARED_SECONDS, tried=False, release=True)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            return fills.put_back(connection, claim, [i for i in late if i not in shared])

    def _write(self, claim: FillClaim, ids: Sequence[UUID], work: _Work) -> list[Item]:
        """One transaction: what is still ours is replaced and noted, or nothing is; nothing to look at again."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            mine = set(fills.still_ours(connection, claim))
            batch = []
            for i in (i for i in ids if i in mine):
                vectors = np.asarray([work.vectors[h] for h in work.hashes(i)], dtype=np.float32)
                shaped = vectors.reshape(len(vectors), self.index.dimensions)
                batch.append(Replacement(document=claim.wanted[i], chunks=work.pieces[i], vectors=shaped))
            if batch:
                PgVectorStore(connection, self.index, claim.tenant_id).replace(batch)
                fills.finish(connection, claim, [held_of(r) for r in batch])
        return []

    def _wait(self, claim: FillClaim, ids: Sequence[UUID], error: LarderError) -> None:
        """The embedder failed as a whole, or one of the answers made no sense."""
        if not isinstance(error, _NO_FAULT):
            self._fault(claim, ids, error)
            return
        delay, away = HOLD_SECONDS, isinstance(error, EmbedderUnavailable)
        if away:
            first = max((claim.wanted[i].attempts for i in ids), default=0)
            delay = self.decide(error, first + 1).delay
        delay = max(delay, error.retry_after or 0.0) or self.lease
        tried = away and error.retry_after is None
        self._postpone(claim, ids, str(error), delay=delay, tried=tried, release=True)

    def _postpone(
        self,
        claim: FillClaim,
        ids: Sequence[UUID],
        error: str,
        *,
        delay: float,
        tried: bool,
        release: bool = False,
    ) -> None:
        """Try these again later; `release` gives back the claims on texts, too."""
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            if release and self.claims:
                embedding_use.release_texts(connection, claim)
            fills.postpone(connection, claim, ids, error=error, delay=delay, tried=tried)

    def _fault(self, claim: FillClaim, ids: Sequence[UUID], error: LarderError) -> None:
        """An error of these documents: later, or never in this index; the other indexes keep what they have."""
        for attempt in giving_back(self.lease):
            with attempt, self.database.tenant(claim.tenant_id, durable=False) as connection:
                fills.lock_documents(connection, ids)
                error = attributed_error(connection, ids, error, index=self.index.id)
                for document in ids:
                    decision = self.decide(error, claim.wanted[document].attempts + 1)
                    if decision.dead:
                        fills.give_up(connection, claim, document, code=error.code, reason=str(error))
                    else:
                        fills.postpone(connection, claim, [document], error=str(error), delay=decision.delay)
