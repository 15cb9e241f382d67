"""From a YAML engine's settings and secrets to an embedder and a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.actions.collections import CollectionStore
from pipeline.actions.settings import RagSettings
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.embedding import Embedder, EmbeddingOptions


@dataclass(frozen=True, kw_only=True)
class _Service:
    """How a provider on the network is configured; empty where it has no such thing."""

    secret: str = ""
    base_url: str = ""
    timeout: str = ""


_SERVICES: Mapping[str, _Service] = {
    "openai": _Service(secret="OPENAI_API_KEY", base_url="openai_base_url"),  # noqa: S106 (a name)
    "ollama": _Service(base_url="ollama_base_url", timeout="ollama_timeout"),
    "gemini": _Service(secret="GEMINI_API_KEY"),  # noqa: S106
    "huggingface": _Service(secret="HF_TOKEN"),  # noqa: S106
}
"""Provider -> the secret and the settings it takes; all others run on this machine."""

_KEYS: Mapping[str, str] = {
    "embedding.provider": "settings.rag.embedding_provider",
    "embedding.model": "settings.rag.embedding_model",
    "embedding.dimensions": "settings.rag.embedding_dimensions",
    "embedding.baseUrl": "settings.rag.openai_base_url or ollama_base_url",
    "embedding.apiKey": "the provider's key among the secrets",
}
"""A key of Larder's own configuration -> what it is called here."""

_SHORTEST_SECRET = 4
"""Shorter ones would black out half of every sentence."""


def enabled(engine: object) -> bool:
    """The engine's flag `enable_rag`; on unless it says otherwise."""
    return bool(getattr(engine, "enable_rag", True))


class EngineParts:
    """Embedders and stores as an engine's settings ask for them, each opened once, when it is first used."""

    def __init__(self, engine: object) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._embedders: dict[EmbeddingOptions, Embedder] = {}
        self._stores: dict[tuple[str, str, str], CollectionStore] = {}
        self._closing = ExitStack()

    def check(self, group: str) -> None:
        """Nothing, if the actions of this group are switched on; raises as `Parts` says."""
        if not enabled(self._engine):
            raise ConfigurationError(
                "the actions are switched off", fix="set the engine's enable_rag to true"
            )
        if group not in self._settings().actions:
            raise ConfigurationError(
                f"the actions {group}.* are switched off", fix=f"add {group} to settings.rag.actions"
            )

    def shown(self, message: str) -> str:
        """`message` without the engine's secrets, and with keys as `settings.rag` calls them."""
        for name, ours in _KEYS.items():
            message = message.replace(name, ours)
        for secret in self._secrets().values():
            if isinstance(secret, str) and len(secret) >= _SHORTEST_SECRET:
                message = message.replace(secret, "***")
        return message

    def embedder(self, model: str | None, dimensions: int | None) -> Embedder:
        """The embedder for a model; None takes that of the settings; raises as `Parts` says."""
        try:
            from pipeline.embedding import open_embedder
        except ModuleNotFoundError as error:
            # Every provider of ours answers with arrays: without numpy, vectors come from the caller.
            raise ConfigurationError(
                f"{error.name} is not installed, which embedding needs",
                fix="install it, or give vectors: `embeddings` to vector.store, `embedding` to vector.query",
            ) from error

        options = self._options(model, dimensions)
        with self._lock:
            if options not in self._embedders:
                self._embedders[options] = open_embedder(options)
            return self._embedders[options]

    def store(self) -> CollectionStore:
        """The store of the settings; raises as `Parts` says."""
        wanted = self._settings()
        name = wanted.vector_store
        build = _STORES.get(name)
        if build is None:
            raise ConfigurationError(
                f"settings.rag.vector_store is {name!r}", fix=f"use one of {', '.join(_STORES)}"
            )
        url = wanted.database_url or self._secret("LARDER_DATABASE_URL")
        # What is in memory stays, whatever becomes of an address that it does not use.
        key = (name, "", "") if name == "memory" else (name, url, wanted.tenant)
        with self._lock:
            if key not in self._stores:
                self._stores[key] = build(url, wanted.tenant, self._closing)
            return self._stores[key]

    def close(self) -> None:
        """Give connections back; what is used later is opened anew."""
        with self._lock:
            self._stores = {key: store for key, store in self._stores.items() if key[0] == "memory"}
            self._closing.close()

    def _settings(self) -> RagSettings:
        settings = getattr(self._engine, "settings", None) or {}
        return RagSettings.of(
            settings.get("rag") if isinstance(settings, Mapping) else getattr(settings, "rag", None)
        )

    def _secrets(self) -> Mapping[str, Any]:
        found = getattr(self._engine, "secrets", None)
        return found if isinstance(found, Mapping) else {}

    def _secret(self, name: str) -> str:
        """A secret; empty if the engine has none of this name, or could not fill in its variable."""
        value = str(self._secrets().get(name) or "")
        return "" if value.startswith("${") else value

    def _options(self, model: str | None, dimensions: int | None) -> EmbeddingOptions:
        from pipeline.embedding import EmbeddingOptions

        wanted = self._settings()
        service = _SERVICES.get(wanted.embedding_provider, _Service())
        options = EmbeddingOptions(
            provider=wanted.embedding_provider,
            model=model or wanted.embedding_model,
            dimensions=dimensions or wanted.embedding_dimensions,
            base_url=getattr(wanted, service.base_url) if service.base_url else "",
            api_key=self._secret(service.secret) if service.secret else "",
        )
        return replace(options, timeout=getattr(wanted, service.timeout)) if service.timeout else options


def _memory(_url: str, _tenant: str, _closing: ExitStack) -> CollectionStore:
    from pipeline.actions.collections.memory import MemoryCollections

    return MemoryCollections()


def _pgvector(url: str, tenant: str, closing: ExitStack) -> CollectionStore:
    if not url.startswith("postgresql"):
        raise ConfigurationError(
            "there is no address of PostgreSQL for vector_store pgvector",
            fix="put LARDER_DATABASE_URL, postgresql://user:password@host/larder, into the secrets",
        )
    from pipeline.actions.collections.pgvector import open_collections
    from pipeline.database.engine import Database

    database = Database(url)
    with ExitStack() as opening:
        opening.callback(database.close)
        made = open_collections(database, tenant)
        closing.callback(opening.pop_all().close)
    return made


_STORES: Mapping[str, Callable[[str, str, ExitStack], CollectionStore]] = {
    "memory": _memory,
    "pgvector": _pgvector,
}
"""`vector_store` of the settings -> what opens it: address of the database, tenant, and what is closed at the end."""
