"""Steps that bring documents into a search index: each claims work items, works outside transactions, and finishes.

New versions come into the active index by three steps, chunk, embed and upsert, with queues of their own and chunks
staged in between. Another index gets documents that are searchable already by one step, fill.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection

from pipeline.chunking.strategies import Chunker
from pipeline.documents import Chunk, SourceType
from pipeline.embedding import Vectors
from pipeline.errors import (
    LarderError,
    StoreDamaged,
    StoreHindered,
    StoreUnavailable,
    TextRejected,
)
from pipeline.ingest import work_in_progress
from pipeline.ingest.pipeline_version import record_chunkers
from pipeline.ingest.text_embedding import TextEmbedder, Texts
from pipeline.ingest.work_in_progress import Staged, attributed_error, cut, giving_back, write_each
from pipeline.ledger import ACTIVE, Item, Stage, embedding_use, search_indexes, work
from pipeline.search.chunk_store import ChunkStore, SearchIndex
from pipeline.search.records import Replacement

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARED_SECONDS = 1.0
"""Seconds until the next try of a document with a text that another worker is embedding: about one call."""
BUILT_SECONDS = 15.0
"""Seconds until the next try of a write to an index that is being built, which would block a connection meanwhile."""
HELD_SECONDS = 5.0
"""Seconds after which a worker with another configuration may try documents that a hold stopped."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The consequence of an error for its documents."""

    delay: float
    """Seconds until the next try."""
    dead: bool
    """True: no further try."""


Decide = Callable[[LarderError, int], Decision]
"""`workers.app.ingestion.steps.decide`: from an error and the number of failed attempts (or waits) to a decision."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of a step: documents ready for the next stage, and those that wait in this or an earlier one."""

    ready: list[Item] = field(default_factory=list)
    stage: Stage = Stage.DONE
    requeued: list[Item] = field(default_factory=list)
    """Items put back for this or an earlier stage; the pump chooses them once more."""
    sizes: dict[UUID, int] = field(default_factory=dict)
    """Chunks per document, for messages of even weight."""
    indexed: int = 0
    """The number of documents that became searchable."""

    @classmethod
    def joined(cls, steps: Sequence[Step]) -> Step:
        """The combined result of several steps."""
        return cls(
            ready=[item for step in steps for item in step.ready],
            stage=next((step.stage for step in steps if step.ready), Stage.DONE),
            requeued=[item for step in steps for item in step.requeued],
            sizes={i: size for step in steps for i, size in step.sizes.items()},
            indexed=sum(step.indexed for step in steps),
        )


@dataclass(frozen=True, kw_only=True)
class Indexer(TextEmbedder):
    """Brings documents into one search index, with its chunkers and its embedder."""

    chunker_of: Callable[[str, SourceType], Chunker]
    """The chunker for documents of a source, by its name and type."""
    index: Callable[[Connection], SearchIndex]
    """The search index to write; its model is `model`, unless another one was made active meanwhile."""
    target: int = ACTIVE
    """Number of the search index as work items have it."""
    words_first: bool = True
    """Make new documents searchable by their words until they have vectors; not worth a write for a fast embedder."""
    strategy: str = ""
    """The strategy of the index that was active when this object was made."""
    decide: Decide
    pipeline_of: Callable[[str], str] | None = None
    """The version of the chunker that this process has for a source, by its name."""
    crashes: int = work.MOST_CRASHES
    """Crashes after which a document is not claimed any more."""

    # -- claims and errors -------------------------------------------------------------------------

    def _apart(
        self,
        step: Callable[[UUID, Sequence[Item]], Step],
        stage: Stage,
        tenant: UUID,
        items: Sequence[Item],
    ) -> Step:
        """Run a step for all items; if the database fails on them, for each item alone, so that only some fail."""
        try:
            return step(tenant, items)
        except StoreHindered as error:
            if len(items) > 1:
                return Step.joined([self._apart(step, stage, tenant, [item]) for item in items])
            with self.database.tenant(tenant, durable=False) as connection:
                claim = self._claim(connection, tenant, stage, items)
            self._fault(claim, claim.ids, error)
            return Step()

    def _claimed(
        self,
        tenant: UUID,
        stage: Stage,
        items: Sequence[Item],
        read: Callable[[Connection, work.Claim], T],
        do: Callable[[work.Claim, T], Step],
    ) -> Step:
        """Claim documents and `read` the input of `do` in one transaction; if the database fails, give them back."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = self._claim(connection, tenant, stage, items)
            if not claim.ids:
                return Step()
            content = read(connection, claim)
        try:
            return do(claim, content)
        except StoreUnavailable as error:
            if isinstance(error, StoreDamaged) and len(claim.ids) > 1:
                with self.database.tenant(tenant, durable=False) as connection:
                    if self.terms.budget:
                        embedding_use.release_texts(connection, claim)
                    work.put_back(connection, claim, claim.ids)
                raise
            self._fault(claim, claim.ids, error)
            return Step()

    def _claim(self, connection: Connection, tenant: UUID, stage: Stage, items: Sequence[Item]) -> work.Claim:
        return work.claim(
            connection, tenant, stage, items, lease=self.lease, crashes=self.crashes, index=self.target
        )

    def _fault(self, claim: work.Claim, ids: Sequence[UUID], error: LarderError) -> None:
        """Give documents back with their error."""
        for attempt in giving_back(self.lease):
            with attempt, self.database.tenant(claim.tenant_id, durable=False) as connection:
                self._decided(connection, claim, ids, error)

    def _decided(
        self, connection: Connection, claim: work.Claim, ids: Sequence[UUID], error: LarderError
    ) -> None:
        """Postpone or fail documents, as `decide` says for each number of attempts among them."""
        error = attributed_error(connection, ids, error, index=self.target)
        if not error.waits:
            # Before any work item: some may be given up, after others are not.
            work.lock_documents(connection, ids)
        tried = {i: d.waits if error.waits else d.attempts for i, d in claim.documents.items()}
        for count in sorted({tried[i] for i in ids}):
            same = [i for i in ids if tried[i] == count]
            decision = self.decide(error, count + 1)
            if error.waits:
                work.postpone(connection, claim, same, delay=decision.delay, reason=str(error))
            else:
                work.fail(connection, claim, same, error, delay=decision.delay, dead=decision.dead)
                log_fields = {
                    "code": error.code,
                    "error": str(error),
                    "attempt": count + 1,
                    "dead": decision.dead,
                }
                logger.warning("indexing_failed", extra={"documents": [str(i) for i in same], **log_fields})

    # -- chunk -------------------------------------------------------------------------------------

    def chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Cut documents into staged chunks."""
        return self._apart(self._chunk, Stage.FETCHED, tenant, items)

    def _chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        by_id = {item.document_id: item for item in items}
        with self.database.tenant(tenant, durable=False) as connection:
            batches = work_in_progress.batches_by_size(connection, sorted(by_id))
        done, begun = list[Step](), time.monotonic()
        for number, ids in enumerate(batches):
            if number and time.monotonic() - begun > self.slice_seconds:
                not_begun = [by_id[i] for part in batches[number:] for i in part]
                with self.database.tenant(tenant, durable=False) as connection:
                    work.mark_unsent(connection, not_begun)
                done.append(Step(requeued=not_begun))
                break
            part = [by_id[i] for i in ids]
            done.append(
                self._claimed(tenant, Stage.FETCHED, part, work_in_progress.bodies, self._cut_and_stage)
            )
        return Step.joined(done)

    def _cut_and_stage(self, claim: work.Claim, bodies: Mapping[UUID, str]) -> Step:
        pieces = self._cut(claim, claim.ids, bodies)
        ready = write_each(
            list(pieces), lambda ids: self._stage(claim, ids, pieces), partial(self._fault, claim)
        )
        return Step(ready=ready, stage=Stage.CHUNKED, sizes={i: len(c) for i, c in pieces.items()})

    def _cut(
        self, claim: work.Claim, ids: Sequence[UUID], bodies: Mapping[UUID, str]
    ) -> dict[UUID, list[Chunk]]:
        """The chunks of each document; one that cannot be cut is given back with its error."""
        pieces: dict[UUID, list[Chunk]] = {}
        failed: dict[UUID, LarderError] = {}
        for i in ids:
            try:
                stored = claim.documents[i]
                pieces[i] = cut(self.chunker_of(stored.source, stored.source_type), stored, bodies.get(i))
            except LarderError as error:
                failed[i] = error
        for i, fault in failed.items():
            self._fault(claim, [i], fault)
        return pieces

    def _stage(
        self, claim: work.Claim, ids: Sequence[UUID], pieces: Mapping[UUID, list[Chunk]]
    ) -> list[Item]:
        """Stage the chunks of documents whose lease is valid; postpone all if another way of cutting became active.

        A document that was never indexed is found by its words from here on. Of one that was, the last version stays
        searchable as a whole until the new one has its vectors, so that an answer never mixes two versions.
        """
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            search_indexes.lock_active(connection)
            claimed_ids = [i for i in work.still_ours(connection, claim) if i in ids]
            index = self.index(connection)
            if index.strategy != self.strategy:
                work.postpone(connection, claim, claimed_ids, delay=0.0, reason=None)
                return []
            versions = {i: claim.documents[i].version for i in claimed_ids}
            staged = {i: pieces[i] for i in claimed_ids}
            work_in_progress.stage_chunks(connection, claim.tenant_id, staged, versions)
            if self.pipeline_of:
                chunkers = {i: self.pipeline_of(claim.documents[i].source) for i in claimed_ids}
                record_chunkers(connection, chunkers)
            fresh = self._found_by_words(connection, index, claimed_ids)
            store = ChunkStore(connection, index, claim.tenant_id)
            words = [Replacement(document=claim.documents[i], chunks=pieces[i], vectors=None) for i in fresh]
            store.replace(words, newest=True)
            return work.advance(
                connection, claim, claimed_ids, Stage.CHUNKED, {i: len(pieces[i]) for i in fresh}
            )

    def _found_by_words(
        self, connection: Connection, index: SearchIndex, ids: Sequence[UUID]
    ) -> Sequence[UUID]:
        """Documents to make searchable before they have vectors; none while a build would make the write wait."""
        if not self.words_first or search_indexes.is_being_built(connection, index.id):
            return []
        return search_indexes.never_indexed(connection, ids)

    # -- embed -------------------------------------------------------------------------------------

    def embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Embed texts without a cached vector: documents with all vectors advance, the others wait or fail."""
        return self._apart(self._embed, Stage.CHUNKED, tenant, items)

    def _embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        return self._claimed(
            tenant, Stage.CHUNKED, items, self._staged_todo, lambda _claim, todo: self._embedded(todo)[1]
        )

    def _staged_todo(self, connection: Connection, claim: work.Claim) -> Texts:
        hashes = work_in_progress.staged_hashes(connection, claim.ids)
        texts_of = partial(work_in_progress.texts, connection, claim.ids)
        return self.texts_to_embed(connection, claim, self.index(connection), hashes, texts_of)

    def _embedded(self, todo: Texts) -> tuple[list[UUID], Step]:
        """Embed the texts; returns (documents that have all their vectors, the result of the step).

        In the active index such documents advance to the next stage, for another index they stay claimed.
        """
        self.embed_texts(todo)
        claim, late = todo.claim, todo.late
        meter = embedding_use.Meter(
            tenant_id=claim.tenant_id, provider=self.terms.provider, model=self.model, kind="document"
        )
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            claimed_ids = [i for i in work.still_ours(connection, claim) if i in todo.hashes]
            bad = todo.documents_with(todo.refused, claimed_ids)
            slow = todo.documents_with(late, [i for i in claimed_ids if i not in bad])
            fine = [i for i in claimed_ids if i not in bad and i not in slow]
            saved = 0 if self.target else self.count_texts(connection, todo, claimed_ids, slow)
            if bad:
                refusal = TextRejected("the embedding provider refuses one of its texts")
                self._decided(connection, claim, bad, refusal)
            requeued = self._put_back(connection, todo, slow)
            ready = [] if self.target else work.advance(connection, claim, fine, Stage.EMBEDDED)
            self.note_health(connection, todo)
            used = embedding_use.Used(cache_hits=saved)
            if self.terms.budget:  # with one, the calls were counted one by one, before they were made
                embedding_use.release_texts(connection, claim)
            else:
                used = replace(used, calls=todo.calls, texts=len(todo.done))
            embedding_use.add_usage(connection, meter, used)
        self.terms.counted(meter, used)
        sizes = {i: len(todo.hashes[i]) for i in todo.hashes}
        return fine, Step(ready=ready, stage=Stage.EMBEDDED, requeued=requeued, sizes=sizes)

    def _put_back(self, connection: Connection, todo: Texts, slow: Sequence[UUID]) -> list[Item]:
        """Postpone, fail or put back documents that lack vectors; returns the items that were put back."""
        claim, error = todo.claim, todo.error
        if todo.hold is not None or (error is not None and embedding_use.is_configuration_error(error)):
            reason = todo.hold.error if todo.hold is not None else str(error)
            delay = HELD_SECONDS if self.terms.fingerprint else self.terms.probe_seconds
            work.postpone(connection, claim, slow, delay=delay, reason=reason)
            return []
        if error is not None:
            self._decided(connection, claim, slow, error)
            return []
        shared = todo.documents_with(todo.missing - set(todo.texts), slow)
        work.postpone(connection, claim, shared, delay=SHARED_SECONDS, reason=None)
        return work.put_back(connection, claim, [i for i in slow if i not in shared])

    # -- upsert ------------------------------------------------------------------------------------

    def upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make documents searchable in their newest version."""
        return self._apart(self._upsert, Stage.EMBEDDED, tenant, items)

    def _upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        def read(connection: Connection, claim: work.Claim) -> dict[UUID, Staged]:
            return work_in_progress.staged(connection, tenant, self.model, claim.ids)

        return self._claimed(tenant, Stage.EMBEDDED, items, read, self._write_all)

    def _write_all(self, claim: work.Claim, staged: dict[UUID, Staged]) -> Step:
        """Write the documents with all vectors; those with vectors trimmed from the cache are embedded again."""
        requeued: list[Item] = []
        if trimmed := [i for i in staged if not staged[i].complete]:
            with self.database.tenant(claim.tenant_id, durable=False) as connection:
                requeued = work.put_back(connection, claim, trimmed, Stage.CHUNKED)
        whole = [i for i in staged if i not in trimmed]
        done: list[UUID] = []
        fault = partial(self._fault, claim)
        requeued += write_each(whole, lambda ids: self._write(claim, ids, staged, done), fault)
        return Step(requeued=requeued, indexed=len(done))

    def _write(
        self, claim: work.Claim, ids: Sequence[UUID], staged: dict[UUID, Staged], done: list[UUID]
    ) -> list[Item]:
        """Replace the chunks of documents whose lease is valid, mark them as searchable and add them to `done`.

        All in one transaction. If an index of another model became active meanwhile, the documents go back to be
        embedded for that one.
        """
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            search_indexes.lock_active(connection)
            index = self.index(connection)
            if index.model != self.model:
                return work.put_back(connection, claim, ids, Stage.CHUNKED)
            if search_indexes.is_being_built(connection, index.id):
                work.postpone(
                    connection, claim, ids, delay=BUILT_SECONDS, reason="its search index is being built"
                )
                return []
            claimed_ids = set(work.still_ours(connection, claim))
            batch = [
                Replacement(
                    document=claim.documents[i],
                    chunks=staged[i].chunks,
                    vectors=np.asarray(staged[i].vectors),
                )
                for i in ids
                if i in claimed_ids
            ]
            store = ChunkStore(connection, index, claim.tenant_id)
            replaced = store.replace(batch, newest=self.target == ACTIVE)
            indexed = [
                search_indexes.IndexedDocument(
                    document_id=r.document.id,
                    version=r.document.version,
                    chunks=len(r.chunks),
                    written=n.written,
                    unchanged=n.unchanged,
                    centroid=centroid(r.vectors),
                )
                for r, n in zip(batch, replaced, strict=True)
            ]
            search_indexes.record_indexed(connection, claim.tenant_id, index.id, indexed)
            work.finish(connection, claim, indexed)
        done.extend(one.document_id for one in indexed)
        return []

    # -- fill --------------------------------------------------------------------------------------

    def fill(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Write documents into an index beside the active one, in the version that is searchable there."""
        return self._apart(self._fill, Stage.FETCHED, tenant, items)

    def _fill(self, tenant: UUID, items: Sequence[Item]) -> Step:
        def read(
            connection: Connection, claim: work.Claim
        ) -> tuple[dict[UUID, list[Chunk]], dict[UUID, str]]:
            copied = work_in_progress.copied_chunks(connection, claim, self.strategy)
            return copied, work_in_progress.bodies(connection, claim, claim.documents.keys() - copied.keys())

        return self._claimed(
            tenant, Stage.FETCHED, items, read, lambda claim, content: self._filled(claim, *content)
        )

    def _filled(self, claim: work.Claim, copied: dict[UUID, list[Chunk]], bodies: Mapping[UUID, str]) -> Step:
        """Fill in documents with chunks that were copied or are cut anew; postpone those with neither."""
        pieces = copied | self._cut(claim, [i for i in claim.ids if i in bodies], bodies)
        texts = {bytes.fromhex(c.hash): c.embedding_text for chunks in pieces.values() for c in chunks}
        hashes = {i: [bytes.fromhex(c.hash) for c in chunks] for i, chunks in pieces.items()}
        without_text = [i for i in claim.ids if i not in copied and i not in bodies]
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            reason = "its text is being indexed in a newer version"
            work.postpone(connection, claim, without_text, delay=self.lease / 4, reason=reason)
            todo = self.texts_to_embed(
                connection,
                claim,
                self.index(connection),
                hashes,
                lambda missing: {h: texts[h] for h in missing},
            )
        fine, step = self._embedded(todo)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            needed = [h for i in fine for h in hashes[i]]
            vectors = work_in_progress.cached(connection, claim.tenant_id, self.model, needed)
        whole = {i: Staged(chunks=pieces[i], vectors=[vectors.get(h) for h in hashes[i]]) for i in fine}
        return Step.joined([step, self._write_all(claim, whole)])


def centroid(vectors: Vectors | None) -> HalfVector | None:
    """The mean of a document's vectors, length 1; None without vectors or if they cancel out."""
    if vectors is None or len(vectors) == 0:
        return None
    mean = vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    return HalfVector(mean / norm) if norm > 0 else None
