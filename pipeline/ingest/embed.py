"""The embed step of a document: make the vectors that the cache does not have, and pay for none twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection

from pipeline.database.engine import Database
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.budget import Budget, BudgetedEmbedder
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.errors import LarderError, TextRejected
from pipeline.ingest import work_in_progress
from pipeline.ledger import Item, Stage, embedding_use, work
from pipeline.search.chunk_store import SearchIndex

HELD_SECONDS = 5.0
"""How soon a worker with another configuration may try what this one's hold stopped."""
SHARED_SECONDS = 1.0
"""How long to leave a document alone of which somebody else is embedding a text: about one call."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Under which terms the embedder is asked."""

    provider: str = ""
    """Whom the use is counted for."""
    budget: Callable[[UUID], Budget] | None = None
    """The allowance of a tenant; None for a model that costs nothing: then nobody claims a text either, since making
    a vector twice is cheaper than asking."""
    fingerprint: str = ""
    """Names the configuration, for holds."""
    probe_seconds: float = 300.0
    """How often a configuration that was refused is tried again."""
    counted: Callable[[embedding_use.Meter, embedding_use.Used], None] = lambda _meter, _used: None
    """Told what each step used, after the ledger was."""


@dataclass(kw_only=True)
class _Todo:
    """The texts of the claimed documents, and how far they are."""

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

    @property
    def late(self) -> set[bytes]:
        """Still without a vector."""
        return self.wanted - self.done - self.refused


@dataclass(frozen=True, kw_only=True)
class EmbedStep:
    """The parts it needs, as `Indexer` has them."""

    database: Database
    embedder: Callable[[], Embedder]
    model: str
    index: Callable[[Connection], SearchIndex]
    decide: Decide
    lease: float
    crashes: int
    slice_seconds: float
    terms: Terms

    def run(self, tenant: UUID, items: Sequence[Item]) -> Step:
        """Documents whose texts all have vectors go on; the others wait, or fail."""
        with self.database.tenant(tenant, durable=False) as connection:
            claim = work.claim(
                connection, tenant, Stage.CHUNKED, items, lease=self.lease, crashes=self.crashes
            )
            if not claim.ids:
                return Step()
            todo = self._todo(connection, claim)
            held = self._held(connection) if todo.texts else None
        if held is not None:
            return self._finish(todo, None, held=held)
        return self._finish(todo, self._fill(todo) if todo.texts else None)

    def _todo(self, connection: Connection, claim: work.Claim) -> _Todo:
        work_in_progress.refill(connection, claim.tenant_id, self.model, self.index(connection).id, claim.ids)
        hashes = work_in_progress.staged_hashes(connection, claim.ids)
        every = list(dict.fromkeys(h for hs in hashes.values() for h in hs))
        wanted = ours = work_in_progress.missing(connection, claim.tenant_id, self.model, every)
        if wanted and self.terms.budget:
            ours = embedding_use.claim_texts(connection, claim, self.model, wanted, lease=self.lease)
            # Looked at again: whoever had the others may have finished between the two statements.
            wanted = work_in_progress.missing(connection, claim.tenant_id, self.model, list(wanted))
        texts = work_in_progress.texts(connection, claim.ids, list(ours & wanted))
        return _Todo(claim=claim, hashes=hashes, wanted=wanted, texts=texts)

    def _held(self, connection: Connection) -> embedding_use.Hold | None:
        """The hold on this configuration, unless this step is the one that tries again."""
        name, seconds = self.terms.fingerprint, self.terms.probe_seconds
        held = embedding_use.hold_on(connection, name, probe_seconds=seconds)
        if held and embedding_use.claim_probe(connection, name, probe_seconds=seconds):
            return None
        return held

    # -- calling -----------------------------------------------------------------------------------

    def _fill(self, todo: _Todo) -> LarderError | None:
        """Note the hashes embedded and refused, until all are, the slice of time is over, or an error comes."""
        try:
            embedder = self.embedder()
            tokens = embedder.limits.tokens
            if self.terms.budget:
                budget = self.terms.budget(todo.claim.tenant_id)
                embedder = BudgetedEmbedder(embedder, budget)
                tokens = min(filter(None, (tokens, budget.tokens)), default=None)
            self._embed_all(embedder, todo, tokens)
        except LarderError as error:
            return error
        return None

    def _embed_all(self, embedder: Embedder, todo: _Todo, tokens: int | None) -> None:
        started = renewed = time.monotonic()
        for part in _calls(embedder, todo.texts, tokens):
            made, bad = _embed_part(embedder, [todo.texts[h] for h in part])
            todo.calls += 1
            todo.refused |= {part[n] for n in bad}
            good = [n for n in range(len(part)) if n not in bad]
            now = time.monotonic()
            # Durable: these vectors may have cost money.
            with self.database.tenant(todo.claim.tenant_id) as connection:
                if good:
                    hashes = [part[n] for n in good]
                    work_in_progress.cache_vectors(
                        connection, todo.claim.tenant_id, self.model, hashes, made[good]
                    )
                if now - renewed > self.lease / 3:
                    self._renew(connection, todo.claim)
                    renewed = now
            todo.done |= {part[n] for n in good}
            todo.cut |= {part[n] for n in good if _is_cut(embedder, todo.texts[part[n]])}
            if now - started > self.slice_seconds:
                break

    def _renew(self, connection: Connection, claim: work.Claim) -> None:
        work.renew(connection, claim, lease=self.lease)
        if self.terms.budget:
            embedding_use.renew_texts(connection, claim, lease=self.lease)

    # -- finishing ---------------------------------------------------------------------------------

    def _finish(self, todo: _Todo, error: LarderError | None, held: embedding_use.Hold | None = None) -> Step:
        claim, late = todo.claim, todo.late
        embedded, reused = attribute(todo.hashes, todo.done, late)
        with self.database.tenant(claim.tenant_id, durable=False) as connection:
            ours = work.still_ours(connection, claim)
            bad = [i for i in ours if todo.refused & set(todo.hashes[i])]
            slow = [i for i in ours if i not in bad and late & set(todo.hashes[i])]
            ready_made = {i: n for i, n in reused.items() if i not in slow}
            work.count_texts(
                connection, claim, embedded, ready_made, attribute(todo.hashes, todo.cut, late)[0]
            )
            if bad:
                refusal = TextRejected("the embedding provider refuses one of its texts")
                self._decided(connection, claim, bad, refusal)
            again = self._put_back(connection, todo, slow, error, held)
            fine = [i for i in ours if i not in bad and i not in slow]
            ready = work.advance(connection, claim, fine, Stage.EMBEDDED)
            self._note_health(connection, todo, error)
            if self.terms.budget:
                embedding_use.release_texts(connection, claim)
            used = self._used(todo, sum(reused[i] for i in ours if i not in slow))
            embedding_use.add_usage(connection, self._meter(claim), used)
        self.terms.counted(self._meter(claim), used)
        return Step(
            ready=ready,
            stage=Stage.EMBEDDED,
            again=again,
            again_stage=Stage.CHUNKED,
            sizes={i: len(todo.hashes[i]) for i in claim.ids},
        )

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
        if held is not None or (error is not None and embedding_use.concerns_configuration(error)):
            said = held.error if held is not None else str(error)
            work.wait(connection, claim, slow, delay=HELD_SECONDS, reason=said)
            return []
        if error is not None:
            self._decided(connection, claim, slow, error)
            return []
        foreign = todo.late - set(todo.texts)
        shared = [i for i in slow if foreign & set(todo.hashes[i])]
        work.wait(connection, claim, shared, delay=SHARED_SECONDS, reason=None)
        return work.put_back(connection, claim, [i for i in slow if i not in shared])

    def _decided(
        self, connection: Connection, claim: work.Claim, ids: Sequence[UUID], error: LarderError
    ) -> None:
        """Wait or fail; documents that have been tried differently often are decided about one by one."""
        tried = claim.waits if error.waits else claim.attempts
        for count in sorted({tried[i] for i in ids}):
            same = [i for i in ids if tried[i] == count]
            decision = self.decide(error, count + 1)
            if error.waits:
                work.wait(connection, claim, same, delay=decision.delay, reason=str(error))
            else:
                work.fail(connection, claim, same, error, delay=decision.delay, dead=decision.dead)

    def _note_health(self, connection: Connection, todo: _Todo, error: LarderError | None) -> None:
        """A refused configuration is held; one that was held and works now is not any more."""
        if error is not None and embedding_use.concerns_configuration(error):
            embedding_use.hold(
                connection, self.terms.fingerprint, error, probe_seconds=self.terms.probe_seconds
            )
        elif todo.done:
            embedding_use.release_hold(connection, self.terms.fingerprint)

    def _meter(self, claim: work.Claim) -> embedding_use.Meter:
        return embedding_use.Meter(
            tenant_id=claim.tenant_id, provider=self.terms.provider, model=self.model, kind="document"
        )

    def _used(self, todo: _Todo, cache_hits: int) -> embedding_use.Used:
        """With a budget the calls were counted one by one, before they were made."""
        if self.terms.budget:
            return embedding_use.Used(cache_hits=cache_hits)
        return embedding_use.Used(calls=todo.calls, texts=len(todo.done), cache_hits=cache_hits)


def _calls(embedder: Embedder, texts: Mapping[bytes, str], most: int | None) -> Iterator[list[bytes]]:
    """Hashes of the texts that go into one call, of `most` tokens: what it brought is kept before the next is made."""
    part: list[bytes] = []
    tokens = 0
    for name, text in texts.items():
        more = embedder.count_tokens(text) if most else 0
        if part and (len(part) == embedder.limits.texts or tokens + more > (most or 0)):
            yield part
            part, tokens = [], 0
        part.append(name)
        tokens += more
    if part:
        yield part


def _is_cut(embedder: Embedder, text: str) -> bool:
    """Counting costs half a hundredth of what the vector does, and only models of our own cut."""
    limits = embedder.limits
    return limits.oversize == "cut" and embedder.count_tokens(text) > limits.tokens_per_text


def _embed_part(embedder: Embedder, texts: list[str]) -> tuple[Vectors, set[int]]:
    """A row per text, and the places of the refused ones."""
    try:
        return embed_checked(embedder, texts), set()
    except TextsRejected as error:
        return error.vectors, set(error.indexes)


def attribute(
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


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What an error means for the documents that met it."""

    delay: float
    """Seconds until the next try."""
    dead: bool
    """True: no further try."""


class Decide(Protocol):
    """`workers.queue.retry.decide`: a pure question, error and number of tries in, decision out."""

    def __call__(self, error: LarderError, attempts: int) -> Decision:
        """The decision for the `attempts`-th try that failed, or the `attempts`-th wait."""
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
