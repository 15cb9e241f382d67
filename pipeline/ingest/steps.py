"""The three steps of a document: chunk, embed, upsert. Each claims, works outside transactions, and finishes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection

from pipeline.chunking.strategies import Chunker
from pipeline.database.engine import Database
from pipeline.documents import Chunk, SourceType
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.budget import BudgetedEmbedder
from pipeline.errors import (
    LarderError,
    StoreDamaged,
    StoreHindered,
    StoreUnavailable,
    TextRejected,
)
from pipeline.ingest import work_in_progress
from pipeline.ingest.work_in_progress import (
    SHARED_SECONDS,
    EmbeddingTerms,
    attributed_error,
    cut,
    embed_missing,
    giving_back,
    is_cut,
    missing,
    write_each,
)
from pipeline.ledger import Item, Stage, embedding_use, runs, search_indexes, work
from pipeline.search.chunk_store import PgVectorStore, SearchIndex
from pipeline.search.records import Replacement

logger = logging.getLogger(__name__)

BUILT_SECONDS = 15.0
"""How long a write stays away from an index that is being built: it would wait for that, and all behind it."""
HELD_SECONDS = 5.0
"""How soon a worker with another configuration may try what this one's hold stopped."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What an error means for the documents that met it."""

    delay: float
    """Seconds until the next try."""
    dead: bool
    """True: no further try."""


Decide = Callable[[LarderError, int], Decision]
"""`workers.control.steps.decide`: error and how many tries (or waits) have failed in, decision out."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step leaves to send: documents ready for the next stage, and some that wait in this or an earlier one."""

    ready: list[Item] = field(default_factory=list)
    stage: Stage = Stage.DONE
    again: list[Item] = field(default_factory=list)
    sizes: dict[UUID, int] = field(default_factory=dict)
    """Chunks per document, for cutting messages of even weight."""
    indexed: int = 0
    """Documents that became searchable in it."""

    @classmethod
    def joined(cls, steps: Sequence[Step]) -> Step:
        """What several, of one or more documents each, leave together."""
        return cls(
            ready=[item for step in steps for item in step.ready],
            stage=next((step.stage for step in steps if step.ready), Stage.DONE),
            again=[item for step in steps for item in step.again],
            sizes={i: size for step in steps for i, size in step.sizes.items()},
            indexed=sum(step.indexed for step in steps),
        )


@dataclass(kw_only=True)
class _Todo:
    """The texts of the documents to embed, and how far they are."""

    claim: work.Claim
    hashes: dict[UUID, list[bytes]]
    wanted: set[bytes]
    """Have no vector yet."""
    texts: dict[bytes, str]
    """Those of `wanted` that are ours to embed."""
    done: set[bytes] = field(default_factory=set)
    cut: set[bytes] = field(default_factory=set)
    """Those of `done` that were longer than the model reads."""
    refused: set[bytes] = field(default_factory=set)
    calls: int = 0

    def of(self, hashes: set[bytes], ids: Sequence[UUID]) -> list[UUID]:
        """Those of the documents that have one of these texts."""
        return [i for i in ids if not hashes.isdisjoint(self.hashes[i])]


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
    words_first: bool = True
    """New documents are found by their words until they have vectors; not worth a write if those take no time."""
    strategy: str = ""
    """The way of cutting of the index that was read when this was built."""
    decide: Decide
    pipeline_of: Callable[[str], str] | None = None
    """How this process cuts the documents of a source, by its name, as their `pipeline_version` ends."""
    lease: float = 120.0
    crashes: int = work.MOST_CRASHES
    """So often may a document take its worker with it."""
    slice_seconds: float = 60.0
    """After this long a step stops, and the rest is sent again: no message may outlive its lease or its time limit."""
    terms: EmbeddingTerms = field(default_factory=EmbeddingTerms)
    """Under which the embedder is asked."""

    # -- chunk -------------------------------------------------------------------------------------

    def chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Cut documents into staged chunks."""
        return self._apart(self._chunk, Stage.FETCHED, tenant, items)

    def _apart(
        self,
        step: Callable[[UUID, Sequence[Item]], Step],
        stage: Stage,
        tenant: UUID,
        items: Sequence[Item],
    ) -> Step:
        """All in one step; if the database fails at that, each for itself, so that the others get on."""
        try:
            return step(tenant, items)
        except StoreHindered as error:
            if len(items) > 1:
                return Step.joined([self._apart(step, stage, tenant, [item]) for item in items])
            with self.database.tenant(tenant, durable=False) as connection:
                claim = self._claim(connection, tenant, stage, items)
            self._fault(claim, claim.ids, error)
            return Step()

    def _chunk(self, tenant: UUID, items: Sequence[Item]) -> Step:
        of = {item.document_id: item for item in items}
        with self.database.tenant(tenant, durable=False) as connection:
            parts = work_in_progress.parts_by_size(connection, sorted(of))
        done, begun = list[Step](), time.monotonic()
        for number, ids in enumerate(parts):
            if number and time.monotonic() - begun > self.slice_seconds:
                left = [of[i] for part in parts[number:] for i in part]
                with self.database.tenant(tenant, durable=False) as connection:
                    work.mark_unsent(connection, left)
                done.append(Step(again=left))
                break
            done.append(self._chunk_part(tenant, [of[i] for i in ids]))
        return Step.joined(done)

    def _chunk_part(self, tenant: UUID, items: Sequence[Item]) -> Step:
        with self.database.tenant(tenant, durable=False) as connection:
            claim = self._claim(connection, tenant, Stage.FETCHED, items)
            bodies = work_in_progress.bodies(connection, claim.ids)
        pieces: dict[UUID, list[Chunk]] = {}
        failed: dict[UUID, LarderError] = {}
        for i in claim.ids:
            try:
                stored = claim.documents[i]
                pieces[i] = cut(self.chunker_of(stored.source, stored.source_type), stored, bodies.get(i))
            except LarderError as error:
                failed[i] = error
        for i, fault in failed.items():
            self._fault(claim, [i], fault)
        ready = write_each(
            list(pieces), lambda ids: self._stage(claim, ids, pieces), partial(self._fault, claim)
        )
        return Step(ready=ready, stage=Stage.CHUNKED, sizes={i: len(c) for i, c in pieces.items()})

    def _stage(
        self, claim: work.Claim, ids: Sequence[UUID], pieces: Mapping[UUID, list[Chunk]]
    ) -> list[Item]:
        """One transaction: stage what is still ours; what was cut for an index that is no longer read waits again.

        What was never indexed is found by its words from here on. Of what was, the last version is found whole until
        the new one has its vectors: it goes before all else, and an answer never mixes two versions.
        """
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            search_indexes.lock_active(connection)
            mine = [i for i in work.still_ours(connection, claim) if i in ids]
            index = self.index(connection)
            if index.strategy != self.strategy:
                work.postpone(connection, claim, mine, delay=0.0, reason=None)
                return []
            versions = {i: claim.documents[i].version for i in mine}
            staged = {i: pieces[i] for i in mine}
            work_in_progress.stage_chunks(connection, claim.tenant_id, staged, versions)
            if self.pipeline_of:
                made = {i: self.pipeline_of(claim.documents[i].source) for i in mine}
                work_in_progress.record_pipeline(connection, made)
            fresh = self._found_by_words(connection, index, mine)
            store = PgVectorStore(connection, index, claim.tenant_id)
            words = [Replacement(document=claim.documents[i], chunks=pieces[i], vectors=None) for i in fresh]
            store.replace(words, newest=True)
            return work.advance(connection, claim, mine, Stage.CHUNKED, {i: len(pieces[i]) for i in fresh})

    def _found_by_words(
        self, connection: Connection, index: SearchIndex, ids: Sequence[UUID]
    ) -> Sequence[UUID]:
        """Those of the documents that are stored before they have vectors; an index being built would make it wait."""
        if not self.words_first or search_indexes.is_being_built(connection, index.id):
            return []
        return search_indexes.never_indexed(connection, ids)

    def _fault(self, claim: work.Claim, ids: Sequence[UUID], error: LarderError) -> None:
        """Give documents back with their error."""
        for attempt in giving_back(self.lease):
            with attempt, self.database.tenant(claim.tenant_id, durable=False) as connection:
                self._decided(connection, claim, ids, error)

    def _claim(self, connection: Connection, tenant: UUID, stage: Stage, items: Sequence[Item]) -> work.Claim:
        return work.claim(connection, tenant, stage, items, lease=self.lease, crashes=self.crashes)

    def _decided(
        self, connection: Connection, claim: work.Claim, ids: Sequence[UUID], error: LarderError
    ) -> None:
        """Wait or fail; documents that have been tried differently often are decided about one by one."""
        error = attributed_error(connection, ids, error)
        tried = {i: d.waits if error.waits else d.attempts for i, d in claim.documents.items()}
        for count in sorted({tried[i] for i in ids}):
            same = [i for i in ids if tried[i] == count]
            decision = self.decide(error, count + 1)
            if error.waits:
                work.postpone(connection, claim, same, delay=decision.delay, reason=str(error))
            else:
                work.fail(connection, claim, same, error, delay=decision.delay, dead=decision.dead)
                told = {"code": error.code, "error": str(error), "attempt": count + 1, "dead": decision.dead}
                logger.warning("indexing_failed", extra={"documents": [str(i) for i in same], **told})

    # -- embed -------------------------------------------------------------------------------------

    def embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make the vectors that the cache lacks: documents whose texts all have one go on, the others wait or fail."""
        return self._apart(self._embed, Stage.CHUNKED, tenant, items)

    def _embed(self, tenant: UUID, items: Sequence[Item]) -> Step:
        with self.database.tenant(tenant, durable=False) as connection:
            claim = self._claim(connection, tenant, Stage.CHUNKED, items)
            if not claim.ids:
                return Step()
            todo = self._todo(connection, claim)
            held = self._held(connection) if todo.texts else None
        error = self._embed_all(todo) if todo.texts and held is None else None
        try:
            if isinstance(error, StoreDamaged):
                raise error
            return self._embedded(todo, error, held)
        except StoreUnavailable as lost:
            if isinstance(lost, StoreDamaged) and len(claim.ids) > 1:
                self._give_back(claim)
                raise
            self._fault(claim, claim.ids, lost)
            return Step()

    def _give_back(self, claim: work.Claim) -> None:
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            if self.terms.budget:
                embedding_use.release_texts(connection, claim)
            work.put_back(connection, claim, claim.ids)

    def _todo(self, connection: Connection, claim: work.Claim) -> _Todo:
        hashes = work_in_progress.staged_hashes(connection, claim.ids)
        every = list(dict.fromkeys(h for hs in hashes.values() for h in hs))
        work_in_progress.refill(connection, claim.tenant_id, self.index(connection), claim.ids, every)
        lease = self.lease if self.terms.budget else None
        wanted, ours = missing(connection, claim, self.model, every, lease=lease)
        texts = work_in_progress.texts(connection, claim.ids, list(ours))
        return _Todo(claim=claim, hashes=hashes, wanted=wanted, texts=texts)

    def _held(self, connection: Connection) -> embedding_use.Hold | None:
        """The hold on this configuration, unless this step is the one that tries again."""
        name, seconds = self.terms.fingerprint, self.terms.probe_seconds
        held = embedding_use.hold_on(connection, name, probe_seconds=seconds)
        if held and embedding_use.claim_probe(connection, name, probe_seconds=seconds):
            return None
        return held

    def _embed_all(self, todo: _Todo) -> LarderError | None:
        """Note the hashes embedded and refused, until all are, the slice of time is over, or an error comes."""
        claim = todo.claim
        try:
            embedder = self.embedder()
            tokens = embedder.limits.tokens
            if self.terms.budget:
                budget = self.terms.budget(claim.tenant_id)
                embedder = BudgetedEmbedder(embedder, budget)
                tokens = min(filter(None, (tokens, budget.tokens)), default=None)
            calls = embed_missing(
                self.database,
                embedder,
                claim.tenant_id,
                self.model,
                todo.texts,
                tokens=tokens,
                seconds=self.slice_seconds,
                renew=lambda connection: self._renew(connection, claim),
                lease=self.lease,
            )
            for embedded, refused in calls:
                todo.calls += 1
                todo.done |= set(embedded)
                todo.refused |= set(refused)
                todo.cut |= {h for h in embedded if is_cut(embedder, todo.texts[h])}
        except LarderError as error:
            return error
        return None

    def _renew(self, connection: Connection, claim: work.Claim) -> None:
        work.renew(connection, claim, lease=self.lease)
        if self.terms.budget:
            embedding_use.renew_texts(connection, claim, lease=self.lease)

    def _embedded(self, todo: _Todo, error: LarderError | None, held: embedding_use.Hold | None) -> Step:
        claim, late = todo.claim, todo.wanted - todo.done - todo.refused
        meter = embedding_use.Meter(
            tenant_id=claim.tenant_id, provider=self.terms.provider, model=self.model, kind="document"
        )
        embedded, reused = _attributed(todo.hashes, todo.done, late)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            ours = work.still_ours(connection, claim)
            bad = todo.of(todo.refused, ours)
            slow = todo.of(late, [i for i in ours if i not in bad])
            cut_short, _ = _attributed(todo.hashes, todo.cut, late)
            ready_made = {i: reused[i] for i in ours if i not in slow}
            versions = {i: claim.documents[i].version for i in ours}
            saved = runs.count_texts(connection, versions, embedded, ready_made, cut_short)
            if bad:
                refusal = TextRejected("the embedding provider refuses one of its texts")
                self._decided(connection, claim, bad, refusal)
            again = self._put_back(connection, todo, slow, error, held)
            fine = [i for i in ours if i not in bad and i not in slow]
            ready = work.advance(connection, claim, fine, Stage.EMBEDDED)
            self._note_health(connection, todo, error)
            used = embedding_use.Used(cache_hits=saved)
            if self.terms.budget:  # with one, the calls were counted one by one, before they were made
                embedding_use.release_texts(connection, claim)
            else:
                used = replace(used, calls=todo.calls, texts=len(todo.done))
            embedding_use.add_usage(connection, meter, used)
        self.terms.counted(meter, used)
        sizes = {i: len(todo.hashes[i]) for i in claim.ids}
        return Step(ready=ready, stage=Stage.EMBEDDED, again=again, sizes=sizes)

    def _put_back(
        self,
        connection: Connection,
        todo: _Todo,
        slow: Sequence[UUID],
        error: LarderError | None,
        held: embedding_use.Hold | None,
    ) -> list[Item]:
        """What has texts without vectors waits, fails, or is looked at again at once; returns the last."""
        claim = todo.claim
        if held is not None or (error is not None and embedding_use.is_configuration_error(error)):
            said = held.error if held is not None else str(error)
            work.postpone(connection, claim, slow, delay=HELD_SECONDS, reason=said)
            return []
        if error is not None:
            self._decided(connection, claim, slow, error)
            return []
        shared = todo.of(todo.wanted - set(todo.texts), slow)
        work.postpone(connection, claim, shared, delay=SHARED_SECONDS, reason=None)
        return work.put_back(connection, claim, [i for i in slow if i not in shared])

    def _note_health(self, connection: Connection, todo: _Todo, error: LarderError | None) -> None:
        """A refused configuration is held; one that was held and works now is not any more."""
        if error is not None and embedding_use.is_configuration_error(error):
            embedding_use.hold(
                connection, self.terms.fingerprint, error, probe_seconds=self.terms.probe_seconds
            )
        elif todo.done:
            embedding_use.release_hold(connection, self.terms.fingerprint)

    # -- upsert ------------------------------------------------------------------------------------

    def upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Make documents searchable in their wanted version."""
        return self._apart(self._upsert, Stage.EMBEDDED, tenant, items)

    def _upsert(self, tenant: UUID, items: Sequence[Item]) -> Step:
        with self.database.tenant(tenant, durable=False) as connection:
            claim = self._claim(connection, tenant, Stage.EMBEDDED, items)
            staged = work_in_progress.staged(connection, tenant, self.model, claim.ids)
            trimmed = [i for i in claim.ids if not staged[i].complete]
            again = work.put_back(connection, claim, trimmed, Stage.CHUNKED) if trimmed else []

        whole = [i for i in claim.ids if i not in trimmed]
        done: list[UUID] = []
        fault = partial(self._fault, claim)
        again += write_each(whole, lambda ids: self._write(claim, ids, staged, done), fault)
        return Step(again=again, indexed=len(done))

    def _write(
        self,
        claim: work.Claim,
        ids: Sequence[UUID],
        staged: dict[UUID, work_in_progress.Staged],
        done: list[UUID],
    ) -> list[Item]:
        """One transaction: what is still ours is replaced, marked as searchable and added to `done`, or nothing is.

        If an index of another model was made active meanwhile, these go back and are embedded for that one.
        """
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            index = self.index(connection)
            if index.model != self.model:
                return work.put_back(connection, claim, ids, Stage.CHUNKED)
            if search_indexes.is_being_built(connection, index.id):
                work.postpone(
                    connection, claim, ids, delay=BUILT_SECONDS, reason="its search index is being built"
                )
                return []
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
            results = PgVectorStore(connection, index, claim.tenant_id).replace(batch, newest=True)
            search_indexes.record_indexed(connection, claim.tenant_id, index.id, [held_of(r) for r in batch])
            indexed = [
                work.Indexed(document_id=r.document.id, chunks=len(r.chunks), written=n.written, kept=n.kept)
                for r, n in zip(batch, results, strict=True)
            ]
            work.finish(connection, claim, indexed)
        done.extend(one.document_id for one in indexed)
        return []


def _attributed(
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


def held_of(replacement: Replacement) -> search_indexes.IndexedDocument:
    """What an index holds of a document once this was written."""
    return search_indexes.IndexedDocument(
        document_id=replacement.document.id,
        version=replacement.document.version,
        chunks=len(replacement.chunks),
        centroid=centroid(replacement.vectors),
    )


def centroid(vectors: Vectors | None) -> HalfVector | None:
    """The mean of a document's vectors, length 1; None without vectors or if they cancel out."""
    if vectors is None or len(vectors) == 0:
        return None
    mean = vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    return HalfVector(mean / norm) if norm > 0 else None
