"""The built parts of one process; with its models the only place that constructs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.database.engine import Database
from pipeline.enrichment.degradation import Health
from pipeline.errors import ConfigurationError
from pipeline.search.cache import Caches, LayeredCache, MemoryCache
from workers.limits.allowance import Allowance
from workers.models import Models
from workers.processes import metrics
from workers.settings import Settings

if TYPE_CHECKING:
    from connectors.web import RequestLimiter


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers are; secret."""

    database: str
    control: str
    admin: str
    broker: str


class Runtime(Models):
    """Parts are built on first use, so that each process holds only what its work needs."""

    def __init__(
        self, settings: Settings, addresses: Addresses, heartbeat_folder: Path | None = None
    ) -> None:
        super().__init__(settings)
        self.addresses = addresses
        self.heartbeat_folder = heartbeat_folder or settings.data / "heartbeat"
        self.patience: float | None = None
        """Seconds of silence after which the database counts as gone; set by commands that a person waits for."""

    def forget_connections(self) -> None:
        """After a fork: drop the parent's connections without closing them under its feet."""
        if "database" in self.__dict__:
            self.database.forget()
            del self.__dict__["database"]
        for name in ("gate", "caches", "health", "rewording", "allowance"):
            self.__dict__.pop(name, None)

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

    @cached_property
    def gate(self) -> RequestLimiter:
        """Who may call a foreign host when, shared with all other workers; a command without servers is alone."""
        from connectors.web import LocalRequestLimiter
        from workers.limits.requests import ValkeyRequestLimiter

        return ValkeyRequestLimiter(self.addresses.broker) if self.addresses.broker else LocalRequestLimiter()


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
