"""Embedding of the texts of claimed documents: missing vectors, claims on texts, calls, counts and holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Connection

from pipeline.database.engine import Database
from pipeline.embedding import Embedder
from pipeline.embedding.budget import Budget, BudgetedEmbedder
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.errors import LarderError, StoreDamaged
from pipeline.ingest import work_in_progress
from pipeline.ledger import Lease, embedding_use, renewed, runs, work
from pipeline.search.chunk_store import SearchIndex


@dataclass(frozen=True, kw_only=True)
class EmbeddingTerms:
    """Budget, holds and counting for calls of the embedder."""

    provider: str = ""
    """The provider under which use is counted."""
    budget: Callable[[UUID], Budget] | None = None
    """The budget of a tenant; None for a model that costs nothing: then texts are not claimed either, since computing a
    vector twice is cheaper than a claim."""
    fingerprint: str = ""
    """Name of the configuration, for holds; empty: a refusal stops only the documents with that error."""
    probe_seconds: float = 300.0
    """Seconds between attempts with a configuration that was refused."""
    counted: Callable[[embedding_use.Meter, embedding_use.Used], None] = lambda _meter, _used: None
    """Called with the use of each step, after the ledger has counted it."""


@dataclass(kw_only=True)
class Texts:
    """The texts of the documents to embed, and the progress of embedding them."""

    claim: work.Claim
    hashes: dict[UUID, list[bytes]]
    """Document -> hashes of its chunks, in order."""
    missing: set[bytes]
    """Hashes without a vector at the start."""
    texts: dict[bytes, str]
    """Hash -> text, for the part of `missing` that this worker embeds."""
    hold: embedding_use.Hold | None = None
    """The hold because of which nothing may be embedded now."""
    error: LarderError | None = None
    """The error that ended the embedding."""
    done: set[bytes] = field(default_factory=set)
    cut: set[bytes] = field(default_factory=set)
    """Hashes of `done` whose text was longer than the model reads."""
    refused: set[bytes] = field(default_factory=set)
    calls: int = 0

    @property
    def late(self) -> set[bytes]:
        """Hashes that still have no vector, refused ones included."""
        return self.missing - self.done

    def documents_with(self, hashes: set[bytes], ids: Sequence[UUID]) -> list[UUID]:
        """Documents among `ids` that have at least one of these texts."""
        return [i for i in ids if not hashes.isdisjoint(self.hashes[i])]


@dataclass(frozen=True, kw_only=True)
class TextEmbedder:
    """One embedder with its terms, as the steps of documents use it."""

    database: Database
    embedder: Callable[[], Embedder]
    """Loaded on first use: a worker that only cuts must not load a model."""
    model: str
    lease: float = 120.0
    slice_seconds: float = 60.0
    """Seconds after which a step stops, and the rest is sent again: no message may outlast its lease or time limit."""
    terms: EmbeddingTerms = field(default_factory=EmbeddingTerms)

    def texts_to_embed(
        self,
        connection: Connection,
        claim: work.Claim,
        index: SearchIndex,
        hashes: dict[UUID, list[bytes]],
        texts_of: Callable[[list[bytes]], dict[bytes, str]],
    ) -> Texts:
        """The texts of chunks with these `hashes` that have no vector, and the ones that this worker embeds."""
        every = list(dict.fromkeys(h for hs in hashes.values() for h in hs))
        work_in_progress.refill(connection, claim.tenant_id, index, claim.ids, every)
        lease = self.lease if self.terms.budget else None
        lacking, to_embed = _missing(connection, claim, self.model, every, lease=lease)
        hold = self._active_hold(connection) if to_embed else None
        return Texts(claim=claim, hashes=hashes, missing=lacking, texts=texts_of(list(to_embed)), hold=hold)

    def _active_hold(self, connection: Connection) -> embedding_use.Hold | None:
        """The hold on this configuration, unless this step has claimed the probe."""
        name, seconds = self.terms.fingerprint, self.terms.probe_seconds
        hold = embedding_use.hold_on(connection, name, probe_seconds=seconds)
        if hold and embedding_use.claim_probe(connection, name, probe_seconds=seconds):
            return None
        return hold

    def embed_texts(self, todo: Texts) -> None:
        """Embed until all texts are done or refused, the slice of time ends, or an error occurs."""
        if not todo.texts or todo.hold is not None:
            return
        claim = todo.claim
        try:
            embedder = self.embedder()
            tokens = embedder.limits.tokens
            if self.terms.budget:
                budget = self.terms.budget(claim.tenant_id)
                embedder = BudgetedEmbedder(embedder, budget)
                tokens = min(filter(None, (tokens, budget.tokens)), default=None)
            calls = _embed_calls(
                self.database,
                embedder,
                claim.tenant_id,
                self.model,
                todo.texts,
                tokens=tokens,
                seconds=self.slice_seconds,
                renew=lambda connection: self.renew(connection, claim),
                lease=self.lease,
            )
            for embedded, refused in calls:
                todo.calls += 1
                todo.done |= set(embedded)
                todo.refused |= set(refused)
                todo.cut |= {h for h in embedded if _is_cut(embedder, todo.texts[h])}
        except StoreDamaged:
            raise
        except LarderError as error:
            todo.error = error

    def renew(self, connection: Connection, claim: work.Claim) -> None:
        """Extend the leases on the documents and the texts."""
        work.renew(connection, claim, lease=self.lease)
        if self.terms.budget:
            embedding_use.renew_texts(connection, claim, lease=self.lease)

    def count_texts(
        self, connection: Connection, todo: Texts, claimed_ids: Sequence[UUID], slow: Sequence[UUID]
    ) -> int:
        """Count the embedded and reused texts in the runs of documents; returns how many texts the cache saved."""
        embedded, reused = _attributed(todo.hashes, todo.done, todo.late)
        cut_short, _ = _attributed(todo.hashes, todo.cut, todo.late)
        ready_made = {i: reused[i] for i in claimed_ids if i not in slow}
        versions = {i: todo.claim.documents[i].version for i in claimed_ids}
        return runs.count_texts(connection, versions, embedded, ready_made, cut_short)

    def note_health(self, connection: Connection, todo: Texts) -> None:
        """Set the hold on a configuration that was refused, or remove it from one that works."""
        name, error = self.terms.fingerprint, todo.error
        if error is not None and embedding_use.is_configuration_error(error):
            if name:
                embedding_use.hold(connection, name, error, probe_seconds=self.terms.probe_seconds)
        elif todo.done:
            embedding_use.release_hold(connection, name)


def _missing(
    connection: Connection,
    claim: Lease,
    model: str,
    hashes: Collection[bytes],
    *,
    lease: float | None,
) -> tuple[set[bytes], set[bytes]]:
    """(hashes without a vector, those of them to embed here); with a `lease` in seconds, texts are claimed."""
    lacking = work_in_progress.uncached(connection, claim.tenant_id, model, list(hashes))
    if present := [h for h in hashes if h not in lacking]:
        work_in_progress.touch(connection, claim.tenant_id, model, present)
    if not lacking or lease is None:
        return lacking, lacking
    claimed_hashes = embedding_use.claim_texts(connection, claim, model, lacking, lease=lease)
    # Checked again: another worker may have finished the other texts between the two statements.
    lacking = work_in_progress.uncached(connection, claim.tenant_id, model, list(lacking))
    return lacking, claimed_hashes & lacking


def _embed_calls(
    database: Database,
    embedder: Embedder,
    tenant: UUID,
    model: str,
    texts: Mapping[bytes, str],
    *,
    tokens: int | None,
    seconds: float,
    renew: Callable[[Connection], None],
    lease: float,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Embed in calls of at most `tokens`, until all texts are embedded or `seconds` are over.

    Yields for each call the hashes whose vectors are in the cache now, and those that were refused. `renew` extends the
    `lease`, also during a call that takes longer.

    Raises:
        LarderError: the error of the embedder; vectors of earlier calls are kept.
    """
    started = time.monotonic()

    def keep() -> None:
        with database.tenant(tenant, durable=False) as connection:
            renew(connection)

    with renewed(keep, lease=lease):
        for part in _calls(embedder, texts, tokens):
            refused: tuple[int, ...] = ()
            try:
                vectors = embed_checked(embedder, [texts[h] for h in part])
            except TextsRejected as error:
                vectors, refused = error.vectors, error.indexes
            good = [n for n in range(len(part)) if n not in refused]
            embedded = [part[n] for n in good]
            if embedded:
                # Durable: these vectors may have cost money.
                with database.tenant(tenant) as connection:
                    work_in_progress.cache_vectors(connection, tenant, model, embedded, vectors[good])
            yield embedded, [part[n] for n in refused]
            if time.monotonic() - started > seconds:
                return


def _calls(embedder: Embedder, texts: Mapping[bytes, str], most: int | None) -> Iterator[list[bytes]]:
    """The hashes of the texts of each call."""
    part: list[bytes] = []
    tokens = 0
    for name, body in texts.items():
        more = embedder.count_tokens(body) if most else 0
        if part and (len(part) == embedder.limits.texts or tokens + more > (most or 0)):
            yield part
            part, tokens = [], 0
        part.append(name)
        tokens += more
    if part:
        yield part


def _is_cut(embedder: Embedder, text: str) -> bool:
    """True if the model cuts this text; counting tokens takes half a percent of the time of embedding."""
    limits = embedder.limits
    return limits.oversize == "cut" and embedder.count_tokens(text) > limits.tokens_per_text


def _attributed(
    hashes: dict[UUID, list[bytes]], done: set[bytes], late: set[bytes]
) -> tuple[dict[UUID, int], dict[UUID, int]]:
    """(embedded, reused) texts per document; a text of several documents counts as embedded for the first one."""
    embedded: dict[UUID, int] = {}
    reused: dict[UUID, int] = {}
    fresh = set(done)
    for document, document_hashes in hashes.items():
        first = set(document_hashes) & fresh
        fresh -= first
        embedded[document] = len(first)
        reused[document] = len([h for h in document_hashes if h not in late]) - len(first)
    return embedded, reused
