"""The built parts of one process; with its models the only place that constructs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Connection

from pipeline.chunking import Chunker, ChunkingOptions, open_chunker
from pipeline.database.engine import Database
from pipeline.database.tenancy import project_id, tenant_id
from pipeline.documents import Source, SourceType
from pipeline.embedding.known_models import KNOWN
from pipeline.enrichment.degradation import Health
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ingest.backfill import Filler
from pipeline.ingest.steps import Decision, Indexer
from pipeline.ingest.sync import Schedule, Syncer
from pipeline.ledger import Limits, Stage, admission, jobs, source_id, sources
from pipeline.search.cache import Caches, LayeredCache, MemoryCache
from pipeline.search.chunk_store import SearchIndex, active_index, open_index
from workers.limits.allowance import Allowance
from workers.models import Models
from workers.processes import metrics
from workers.queue import dispatch, retry, schedule
from workers.settings import SOURCE_TYPES, Settings, SourceSettings
from workers.source_options import source_of

if TYPE_CHECKING:
    from connectors.web import RequestLimiter
    from workers.enrichment.job import EnrichIn


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers are; secret."""

    database: str
    control: str
    admin: str
    broker: str


@dataclass(frozen=True, kw_only=True)
class Configured:
    """A source of the configuration with the ids the ledger knows it by."""

    settings: SourceSettings
    id: UUID
    tenant_id: UUID
    project_id: UUID
    tenant: str
    project: str


class Runtime(Models):
    """Parts are built on first use, so that each process holds only what its work needs."""

    def __init__(
        self, settings: Settings, addresses: Addresses, heartbeat_folder: Path | None = None
    ) -> None:
        super().__init__(settings)
        self.addresses = addresses
        self._chunkers: dict[tuple[str, SourceType | None, str], Chunker] = {}
        self._enrichers: dict[UUID, EnrichIn] = {}
        self.heartbeat_folder = heartbeat_folder or settings.data / "heartbeat"
        self.patience: float | None = None
        """Seconds of silence after which the database counts as gone; set by commands that a person waits for."""

    # -- who and what ------------------------------------------------------------------------------

    @cached_property
    def tenant(self) -> UUID:
        """The tenant of this installation's commands."""
        return tenant_id(self.settings.tenant)

    @cached_property
    def project(self) -> UUID:
        """Its project."""
        return project_id(self.tenant, self.settings.project)

    @cached_property
    def configured(self) -> dict[UUID, Configured]:
        """The enabled sources of the configuration, by their id in the ledger."""
        found = {}
        for source in self.rag.sources:
            if source.enabled:
                tenant_name = source.tenant or self.settings.tenant
                tenant = tenant_id(tenant_name)
                project_name = source.project or self.settings.project
                one = Configured(
                    settings=source,
                    id=source_id(tenant, source.name),
                    tenant_id=tenant,
                    project_id=project_id(tenant, project_name),
                    tenant=tenant_name,
                    project=project_name,
                )
                found[one.id] = one
        return found

    def known(self, row: sources.SourceRow) -> Configured | None:
        """The source of a ledger row: from the configuration, or as a command registered it."""
        if row.origin == "file" or not row.config:
            return self.configured.get(row.id)
        source = SOURCE_TYPES[row.kind].model_validate(row.config)
        return Configured(
            settings=source,
            id=row.id,
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            tenant=self.settings.tenant,
            project=self.settings.project,
        )

    def forget_connections(self) -> None:
        """After a fork: drop the parent's connections without closing them under its feet."""
        if "database" in self.__dict__:
            self.database.forget()
            del self.__dict__["database"]
        for name in ("syncer", "gate", "caches", "health", "rewording", "allowance"):
            self.__dict__.pop(name, None)
        self._enrichers.clear()

    # -- parts -------------------------------------------------------------------------------------

    @cached_property
    def database(self) -> Database:
        """Connections are opened on first use, in the process that uses them."""
        return Database(
            self.addresses.database,
            self.addresses.control,
            pool_size=self.rag.storage.database.pool_size,
            patience=self.patience,
        )

    @cached_property
    def allowance(self) -> Allowance:
        """How much may be embedded, shared with all other workers."""
        return Allowance(self.rag, self.model, self.database, self.addresses.broker)

    @cached_property
    def caches(self) -> Caches:
        """What searches remember, shared with all processes of the broker; without one only questions' vectors."""
        c = self.rag.retrieval.cache
        if not c.enabled:
            return Caches()
        near = MemoryCache(entries=c.max_entries, seconds=c.ttl)
        if not self.addresses.broker:
            return Caches(vectors=near)
        from workers.limits.caches import Behind, ValkeyCache
        from workers.processes.metering import CountedCache

        far = Behind(ValkeyCache(self.addresses.broker, entries=c.max_entries, seconds=c.ttl))
        if (
            self.rag.embedding.provider == "hashing"
        ):  # which makes a vector in less time than asking for one takes
            return Caches(results=far)
        vectors = LayeredCache(CountedCache("near", near), CountedCache("far", far))
        return Caches(vectors=vectors, results=far)

    @cached_property
    def health(self) -> Health:
        """How this process's parts are; no text is remembered outside of the store, so without it none can answer.

        What askers remember is theirs: `workers.client`.
        """
        health = Health(cache=False, moved=metrics.moved)
        health.switch(on=self.rag.enabled)
        return health

    def chunker(self, name: str, kind: SourceType | None = None, strategy: str = "") -> Chunker:
        """The chunker of a source, by its name; `kind` decides for sources that a command registered.

        A `strategy` is that of a search index which cuts all sources in one way, with the sizes of each source.
        """
        key = (name, kind, strategy)
        if key not in self._chunkers:
            options = self._chunking(name, kind)
            options = replace(options, strategy=strategy) if strategy else options
            self._chunkers[key] = open_chunker(options, self._count_tokens)
        return self._chunkers[key]

    def _chunking(self, name: str, kind: SourceType | None) -> ChunkingOptions:
        for source in self.rag.sources:
            if source.name == name:
                return self.rag.chunking_of(source).options()
        section = self.rag.chunking
        if kind is SourceType.PBI:
            section = section.model_copy(update={"strategy": "pbi_aware"})
        return section.options()

    def _count_tokens(self, text: str) -> int:
        return self.embedder.count_tokens(text)

    def pipeline_version(self, source: SourceSettings, extractor: str) -> str:
        """What made a document's chunks: extractor and chunker; another one means to index it again.

        The model is that of the search index: another one is a matter of `larder reindex`.
        """
        return f"{extractor}|{self.chunker(source.name).version}"

    def fill_index(self, connection: Connection) -> SearchIndex:
        """The search index that new chunks go to: the one that is read, be it of another model than configured."""
        active = active_index(connection)
        if active is not None:
            return active
        e = self.rag.embedding
        chunker = self.rag.chunking.strategy
        return open_index(
            connection,
            provider=e.provider,
            model=self.model,
            dimensions=e.dimensions,
            chunker=chunker,
            pipeline=f"{chunker}|{self.model}:{e.dimensions}",
        )

    @cached_property
    def retry(self) -> retry.RetryOptions:
        """How often and how soon to try again."""
        q = self.rag.queue
        return retry.RetryOptions(
            base=q.retry_base_seconds, longest=q.retry_max_seconds, attempts=q.max_attempts
        )

    def decide(self, error: LarderError, attempts: int) -> Decision:
        """What an error means for its documents."""
        return retry.decide(error, attempts, self.retry)

    @property
    def indexer(self) -> Indexer:
        """The three steps of a document, into the index that is read at this moment."""
        with self.database.tenant(self.tenant, durable=False) as connection:
            index = self.fill_index(connection)
        q = self.rag.queue
        return Indexer(
            database=self.database,
            chunker_of=lambda name, kind: self.chunker(name, kind, index.strategy),
            embedder=lambda: self.embedder_of(index),
            model=index.model,
            index=self.fill_index,
            decide=self.decide,
            lease=q.lease_seconds,
            crashes=q.max_crashes,
            slice_seconds=min(60.0, q.soft_time_limit / 4),
            terms=self.allowance.terms_of(index.provider, index.model),
        )

    def filler(self, index: SearchIndex) -> Filler:
        """Brings documents into one search index that lacks them."""
        q = self.rag.queue
        return Filler(
            database=self.database,
            index=index,
            embedder=lambda tenant: self.allowance.within(tenant, self.embedder_of(index), index.model),
            chunker_of=lambda name, kind: self.chunker(name, kind, index.strategy),
            decide=self.decide,
            lease=q.lease_seconds,
            slice_seconds=min(60.0, q.soft_time_limit / 4),
            claims=self.allowance.terms_of(index.provider, index.model).budget is not None,
        )

    @cached_property
    def syncer(self) -> Syncer:
        """The walk through a source."""
        q = self.rag.queue
        return Syncer(
            database=self.database,
            lease=q.lease_seconds,
            guard=admission.DeletionGuard(share=q.deletion_guard.share, documents=q.deletion_guard.documents),
            after_page=self._ring,
        )

    @cached_property
    def limits(self) -> Limits:
        """How long the ledger waits and how often it tries."""
        q = self.rag.queue
        return Limits(
            lease=q.lease_seconds,
            resend=q.resend_after,
            in_flight=q.max_in_flight,
            batch=q.batch_documents,
            attempts=q.max_attempts,
            crashes=q.max_crashes,
        )

    @cached_property
    def job_limits(self) -> jobs.JobLimits:
        """The same for enrichments, for which somebody waits."""
        e = self.rag.enrichment
        return jobs.JobLimits(
            lease=e.lease_seconds,
            resend=e.resend_seconds,
            attempts=e.max_attempts,
            crashes=self.rag.queue.max_crashes,
        )

    def enricher_of(self, tenant: UUID) -> EnrichIn:
        """Answers requests of Step 4 from a tenant's documents."""
        from workers.enrichment import job

        if tenant not in self._enrichers:
            self._enrichers[tenant] = job.enricher(self, tenant)
        return self._enrichers[tenant]

    @cached_property
    def way_of_answering(self) -> str:
        """Equal where the same request finds and words the same: how is searched, looked again, worded and written."""
        from pipeline.enrichment.context import SHAPE
        from workers import search

        worded = f"{SHAPE} {self.wording_options.identity}"
        try:
            found = search.retriever(self)
        except LarderError:  # whoever answers a request will say so
            return worded
        return f"{worded} {found.options!r} {found.rerank!r}"

    @cached_property
    def weights(self) -> Mapping[Stage, int]:
        """Chunks per message of each stage: 0.1 to 4 seconds of work."""
        e = self.rag.embedding
        texts = 512 if e.provider == "hashing" else 64
        if KNOWN[e.provider].remote:
            texts = max(texts, e.batch_size)  # what one call may carry should come in one message
        return {Stage.CHUNKED: texts, Stage.EMBEDDED: self.rag.queue.upsert_rows}

    @staticmethod
    def _ring() -> None:
        dispatch.send("larder.pump", expires=10)

    # -- sources -----------------------------------------------------------------------------------

    def open_source(self, source: SourceSettings) -> Source:
        """The connector of a configured source."""
        return source_of(self.settings, source, lambda: self.gate)

    @cached_property
    def gate(self) -> RequestLimiter:
        """Who may call a foreign host when, shared with all other workers; a command without servers is alone."""
        from connectors.web import LocalRequestLimiter
        from workers.limits.requests import ValkeyRequestLimiter

        return ValkeyRequestLimiter(self.addresses.broker) if self.addresses.broker else LocalRequestLimiter()

    def schedule_of(self, source: SourceSettings) -> Schedule:
        """When a source that was just synced is due again."""
        now = datetime.now(UTC)
        return Schedule(
            next_sync_at=schedule.next_time(source.schedule, self.timezone_of(source), now),
            next_walk_at=now + timedelta(hours=self.rag.queue.reconcile_hours),
        )

    def timezone_of(self, source: SourceSettings) -> str:
        """The zone of a source's schedule."""
        return source.timezone or self.rag.timezone


_current: list[Runtime] = []


def use(runtime: Runtime) -> None:
    """Make `runtime` the one that this process's tasks use."""
    _current[:] = [runtime]


def current() -> Runtime:
    """The runtime of this process.

    Raises:
        ConfigurationError: the process was not started by one of our commands.
    """
    if not _current:
        raise ConfigurationError("no runtime in this process", fix="start workers with `larder worker`")
    return _current[0]
