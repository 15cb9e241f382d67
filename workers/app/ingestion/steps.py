"""Tools for the steps of documents: the indexer of a search index, the syncer of sources, their limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from uuid import UUID

from sqlalchemy import Connection

from pipeline.chunking.strategies import Chunker, open_chunker
from pipeline.documents import SourceType
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.errors import LarderError, pause_after
from pipeline.ingest.pipeline_version import PipelineVersion
from pipeline.ingest.steps import Decision, Indexer
from pipeline.ingest.sync import Syncer
from pipeline.ledger import ACTIVE, Item, Limits, Stage, admission, jobs, runs
from pipeline.search.chunk_store import SearchIndex, active_index, open_index
from workers.monitoring import metrics, tracing
from workers.queue import dispatch
from workers.runtime import Runtime
from workers.settings import Configuration
from workers.settings.queue import QueueSettings

INSTANT = ("hashing",)
"""Providers whose vectors take less time than any of the messages about them."""
SLICE_SECONDS = 4.0
"""Seconds for which a large document is embedded until others get their turn."""


def indexer(runtime: Runtime, tenant: UUID, beside: SearchIndex | None = None) -> Indexer:
    """Brings documents into the search index that is read at this moment, or into another one that lacks them."""
    if beside is None:
        with runtime.database.tenant(tenant, durable=False) as connection:
            index = target_index(runtime, connection)
    else:
        index = beside
    q, configured = runtime.rag.queue, chunkers(runtime)
    terms = runtime.allowance.terms_of(index.provider, index.model)
    return Indexer(
        database=runtime.database,
        chunker_of=chunkers(runtime, index.strategy),
        embedder=lambda: runtime.embedder_of(index),
        model=index.model,
        index=lambda connection: beside or target_index(runtime, connection),
        target=beside.id if beside else ACTIVE,
        words_first=index.provider not in INSTANT,
        strategy=index.strategy,
        decide=partial(decide, q),
        pipeline_of=lambda name: configured(name, None).version,
        lease=q.lease_seconds,
        crashes=q.max_crashes,
        slice_seconds=min(SLICE_SECONDS, q.soft_time_limit / 4),
        # Another model that is refused must not hold up the one that is read.
        terms=replace(terms, fingerprint="") if beside else terms,
    )


def traces_of(runtime: Runtime, tenant: UUID, items: Sequence[Item]) -> list[str]:
    """Traces that the work on these documents continues: those of the runs that brought them; [] without tracing."""
    if not tracing.enabled():
        return []
    with runtime.database.tenant(tenant, durable=False) as connection:
        return runs.traces_of(connection, items)


def syncer(runtime: Runtime) -> Syncer:
    """The walk through a source; each page stored tells the pump."""
    q = runtime.rag.queue
    return Syncer(
        database=runtime.database,
        lease=q.lease_seconds,
        read_all_after=q.reconcile_hours * 3600,
        guard=admission.DeletionGuard(share=q.deletion_guard.share, documents=q.deletion_guard.documents),
        after_page=partial(dispatch.wake_pump, seldom=True),
    )


def target_index(runtime: Runtime, connection: Connection) -> SearchIndex:
    """The search index that new chunks go to: the one that is read, be it of another model than configured."""
    active = active_index(connection)
    if active is not None:
        return active
    e, strategy = runtime.rag.embedding, runtime.rag.chunking.strategy
    return open_index(
        connection,
        provider=e.provider,
        model=runtime.model,
        dimensions=e.dimensions,
        chunker=strategy,
        pipeline=f"{strategy}|{runtime.model}:{e.dimensions}",
    )


def chunkers(runtime: Runtime, strategy: str = "") -> Callable[[str, SourceType | None], Chunker]:
    """The chunker of a source, by its name; its type decides for sources that a command registered.

    A `strategy` is that of a search index which cuts all sources in one way, with the sizes of each source.
    """

    @cache
    def chunker(name: str, kind: SourceType | None = None) -> Chunker:
        section = runtime.rag.chunking
        cut = strategy or ("pbi_aware" if kind is SourceType.PBI else section.strategy)
        if source := next((s for s in runtime.rag.sources if s.name == name), None):
            section = runtime.rag.chunking_of(source)
            cut = strategy or section.strategy
        options = replace(section.options(), strategy=cut)
        # A model is loaded when its tokens are asked for.
        return open_chunker(options, lambda text: runtime.embedder.count_tokens(text))  # noqa: PLW0108

    return chunker


def pipeline_version(runtime: Runtime, extractor: str, source: str, kind: SourceType | None = None) -> str:
    """Version of extractor and chunker, which make a document's chunks; another one means to index it again."""
    return str(PipelineVersion(extractor, chunkers(runtime)(source, kind).version))


def decide(queue: QueueSettings, error: LarderError, attempts: int) -> Decision:
    """Decide what an error means for its documents, and count it; `attempts` includes this failed try, or this wait.

    Permanent errors and the last try are final; waits never are.
    """
    decision = _decision(queue, error, attempts)
    outcome = "dead" if decision.dead else "wait" if error.waits else "retry"
    metrics.FAILURES.labels(error.code, outcome).inc()
    tracing.mark_failed(error)
    return decision


def _decision(queue: QueueSettings, error: LarderError, attempts: int) -> Decision:
    chance = random.random()  # noqa: S311 - spreads load, guards nothing
    requested_pause = error.retry_after
    if error.waits and requested_pause is not None:
        # Whoever names a time knows it exactly; a little chance keeps all who wait from coming at once.
        return Decision(delay=requested_pause + min(1.0, requested_pause / 10) * chance, dead=False)
    if not error.waits and (not error.transient or attempts >= queue.max_attempts):
        return Decision(delay=0.0, dead=True)
    step = pause_after(attempts, first=queue.retry_base_seconds, most=queue.retry_max_seconds)
    # Half is fixed: full jitter would use up eight tries within a second of a rate limit (measured with Celery's own).
    return Decision(delay=max(step / 2 + step / 2 * chance, requested_pause or 0.0), dead=False)


def limits(rag: Configuration) -> Limits:
    """Waits and numbers of tries of the ledger."""
    q = rag.queue
    return Limits(
        resend=q.resend_after,
        in_flight=q.max_in_flight,
        at_once=max(Limits.at_once, q.max_in_flight // 4),
        batch=q.batch_documents,
        crashes=q.max_crashes,
    )


def job_limits(rag: Configuration) -> jobs.JobLimits:
    """Waits and numbers of tries of enrichments, for which somebody waits."""
    e = rag.enrichment
    return jobs.JobLimits(
        lease=e.lease_seconds,
        resend=e.resend_seconds,
        attempts=e.max_attempts,
        crashes=rag.queue.max_crashes,
    )


def weights(rag: Configuration) -> Mapping[Stage, int]:
    """Chunks per message of each stage: 0.1 to 4 seconds of work."""
    e = rag.embedding
    # What is embedded at once is written at once, too.
    texts = rag.queue.upsert_rows if e.provider in INSTANT else 64
    if PROVIDER_FACTS[e.provider].remote:
        texts = max(texts, e.batch_size)  # what one call may carry should come in one message
    return {Stage.CHUNKED: texts, Stage.EMBEDDED: rag.queue.upsert_rows}
