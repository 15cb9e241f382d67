"""Runtime of one process, which all its tenants share: servers, models, limits, health."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.database.encryption import Keyring
from pipeline.database.engine import Database, ServerTimeouts
from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import open_embedder
from pipeline.embedding.known_models import options_for, vector_key
from pipeline.enrichment.degradation import Health
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ledger.audit import AuditLog
from pipeline.ledger.search_indexes import WantedIndex
from pipeline.reranking import Reranker, RerankOptions, open_reranker
from pipeline.search.cache import Caches, MemoryCache
from pipeline.search.chunk_store import SearchIndex
from workers.monitoring import metrics, tracing
from workers.queue.rabbit import is_rabbit
from workers.settings import EmbeddingModel, Settings

if TYPE_CHECKING:
    from connectors.web.limiter import RequestLimiter
    from pipeline.search.stores.mirror import Mirror
    from pipeline.search.stores.registry import VectorStores
    from workers.limits.allowance import Allowance


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses of the servers, and encryption keys; secret. Empty for a command that needs none."""

    database: str = ""
    control: str = ""
    admin: str = ""
    broker: str = ""
    valkey_url: str = ""
    """Empty where the broker is a Valkey."""
    encryption_keys: str = ""

    @property
    def valkey(self) -> str:
        """The server of limits, alerts about the database and answers to apps: the broker, unless that is RabbitMQ."""
        return self.valkey_url or ("" if is_rabbit(self.broker) else self.broker)


_ACTOR: ContextVar[str] = ContextVar("actor", default="")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Within the block `current_user` is this user, and not the one who started the process."""
    before = _ACTOR.set(name)
    try:
        yield
    finally:
        _ACTOR.reset(before)


def current_user() -> str:
    """The name for the audit: that of `acting_as`, else `cli:` and the operating system's user."""
    if name := _ACTOR.get():
        return name
    with suppress(OSError, KeyError):
        return f"cli:{getpass.getuser()}"
    return "cli"


class Runtime:
    """Servers, models and limits of a process, built on first use, so that each holds only what its work needs."""

    def __init__(self, settings: Settings, addresses: Addresses, *, database: Database | None = None) -> None:
        """`database` is that of whoever shares its connections; by default it has its own."""
        self.settings = settings
        if database is not None:
            self.database = database
        self.rag = settings.rag
        tracing.configure(self.rag.monitoring.tracing)
        self._embedders: dict[str, Embedder] = {}
        """Embedders of stories, and of other search indexes than the configured one, by model."""
        self.addresses = addresses
        self.heartbeat_folder = settings.data / "heartbeat"
        self.metrics_folder: Path | None = None
        """Folder in which the processes of this machine count together, if they do."""
        self.answer_timeout: float | None = None
        """Seconds of silence after which the database counts as gone; set by commands that a person waits for."""
        self.start_timeout = 0.0
        """Seconds in which such commands wait for a database that is being started."""

    def forget_connections(self) -> None:
        """Drop the parent's connections after a fork, without closing them under its feet."""
        if "database" in self.__dict__:
            self.database.forget_connections()
            del self.__dict__["database"]
        for name in ("request_limiter", "caches", "health", "allowance", "audit_log", "stores", "_mirrors"):
            self.__dict__.pop(name, None)

    def patient(self, answer_timeout: float | None, start_timeout: float) -> Runtime:
        """The models and caches of this one, as far as they are loaded, with connections that wait so many seconds."""
        other = copy(self)
        for name in ("database", "allowance", "audit_log", "stores", "_mirrors"):
            other.__dict__.pop(name, None)
        other.answer_timeout, other.start_timeout = answer_timeout, start_timeout
        return other

    def close(self) -> None:
        """Write what waits for the audit, and close the connections."""
        if "audit_log" in self.__dict__:
            self.audit_log.flush()
        self.database.close()

    @cached_property
    def database(self) -> Database:
        """The database; connections are opened on first use, in the process that uses them."""
        return Database(
            self.addresses.database,
            self.addresses.control,
            pool_size=self.rag.storage.database.pool_size,
            answer_timeout=self.answer_timeout,
            start_timeout=self.start_timeout,
            timeouts=ServerTimeouts.within(self.rag.queue.lease_seconds, self.rag.enrichment.lease_seconds),
        )

    @cached_property
    def stores(self) -> VectorStores | None:
        """Vector stores beside PostgreSQL, for searches; None if none is configured."""
        if not self.settings.stores:
            return None
        from pipeline.search.stores.registry import SLOW_SECONDS, VectorStores

        options = {n: replace(one, timeout=SLOW_SECONDS) for n, one in self.settings.stores.items()}
        return VectorStores(self.database, options)

    @cached_property
    def _mirrors(self) -> dict[str, Mirror]:
        return {}

    def mirror(self, name: str) -> Mirror:
        """The mirror of a configured store, opened once; raises as `open_store` does."""
        if name not in self._mirrors:
            from pipeline.search.stores import open_store
            from pipeline.search.stores.mirror import Mirror

            queue, store = self.rag.queue, open_store(self.settings.stores[name])
            self._mirrors[name] = Mirror(
                self.database, name, store, lease=queue.lease_seconds, crashes=queue.max_crashes
            )
        return self._mirrors[name]

    @cached_property
    def allowance(self) -> Allowance:
        """Allowance of embedding, shared with all other workers."""
        from workers.limits.allowance import Allowance  # with the client of the broker, which no search needs

        return Allowance(self.rag, self.model, self.database, self.addresses.valkey)

    @cached_property
    def caches(self) -> Caches:
        """Memory of this process for searches."""
        c = self.rag.retrieval.cache
        if not c.enabled:
            return Caches()
        return Caches(
            vectors=MemoryCache(
                entries=c.max_entries,
                seconds=c.ttl,
                looked=metrics.record_vector_look,
            ),
            answers=MemoryCache(entries=c.max_entries, seconds=c.ttl),
        )

    @cached_property
    def audit_log(self) -> AuditLog:
        """The writer of what this process answered into the audit."""
        return AuditLog(self.database)

    @cached_property
    def health(self) -> Health:
        """Health of this process's services; without the store no request reaches a worker, so none can answer.

        Clients remember answers themselves: `workers.client`.
        """
        health = Health(moved=metrics.record_level)
        health.switch(on=self.rag.enabled)
        return health

    @cached_property
    def request_limiter(self) -> RequestLimiter:
        """Limiter of calls to foreign hosts, shared with all other workers; a command without servers is alone."""
        from connectors.web.limiter import LocalRequestLimiter
        from workers.limits.limiters import ValkeyRequestLimiter

        return ValkeyRequestLimiter(self.addresses.valkey) if self.addresses.valkey else LocalRequestLimiter()

    @cached_property
    def embedding_options(self) -> EmbeddingOptions:
        """Options of the configured embedding model."""
        return self.options_of(self.rag.embedding)

    def options_of(self, e: EmbeddingModel) -> EmbeddingOptions:
        """Options to open the model of a section."""
        return e.options(self.settings.resolve(e.model_path) if e.model_path else None)

    @cached_property
    def embedder(self) -> Embedder:
        """The configured model; loading it takes about a second."""
        return _PRELOADED.get(self.embedding_options) or open_embedder(self.embedding_options)

    @cached_property
    def model(self) -> str:
        """Name of the configured model, under which its vectors are kept; known without loading it."""
        return vector_key(self.embedding_options)

    def embedder_of(self, index: SearchIndex) -> Embedder:
        """The model an index was made with, which its chunks and the questions to it must be embedded by.

        Raises:
            EmbedderRefused: the configuration describes no provider that could be asked for it.
            LarderError: it cannot be opened with this configuration.
        """
        if index.model == self.model:
            return self.embedder
        previous = self.rag.embedding.previous
        described = [self.embedding_options, *([self.options_of(previous)] if previous else [])]
        options = options_for(
            described, provider=index.provider, key=index.model, dimensions=index.dimensions
        )
        return self.embedder_with(options)

    def embedder_with(self, options: EmbeddingOptions) -> Embedder:
        """The model of these options, opened once in a process; raises as `open_embedder` does."""
        key = vector_key(options)
        if key == self.model:
            return self.embedder
        if key not in self._embedders:
            self._embedders[key] = open_embedder(options)
        return self._embedders[key]

    @cached_property
    def keyring(self) -> Keyring:
        """Keys that encrypt some of the metadata."""
        return Keyring(keys=self.addresses.encryption_keys, fields=self.rag.security.encrypt)

    @property
    def wanted_index(self) -> WantedIndex:
        """The search index that the configuration asks for."""
        e = self.rag.embedding
        return WantedIndex(provider=e.provider, model=self.model, dimensions=e.dimensions)

    @cached_property
    def rerank_options(self) -> RerankOptions:
        """Options of the model that reranks the best results."""
        r = self.rag.retrieval.rerank
        folder = self.settings.resolve(Path(r.model))
        return RerankOptions(
            enabled=r.enabled,
            model=r.model,
            model_path=folder if folder.is_dir() else None,
            candidates=r.candidates,
            seconds=r.seconds,
        )

    @cached_property
    def reranker(self) -> Reranker | None:
        """The reranking model, loaded; None if it is switched off."""
        return open_reranker(self.rerank_options)


_PRELOADED: dict[EmbeddingOptions, Embedder] = {}
"""Models that forks of this process need not load."""


def preload(runtime: Runtime) -> None:
    """Load the configured model for all forks of this process, if it runs here and bears to be forked."""
    if runtime.rag.embedding.provider == "minilm":
        with suppress(LarderError):  # whoever needs it will hear
            runtime.embedder.embed_query("warm")
            _PRELOADED[runtime.embedding_options] = runtime.embedder


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
