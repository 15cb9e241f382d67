"""Opens embedder and collection store from a YAML engine's settings and secrets."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.actions.collections import CollectionStore, MemoryCollections
from pipeline.database.vector_stores import FOREIGN_TYPES, IMPLEMENTATIONS, StoreOptions
from pipeline.documents.plain_text import json_type_name
from pipeline.errors import ConfigurationError
from pipeline.ledger import tenant_id

if TYPE_CHECKING:
    from pipeline.actions.indexed_collections import KeptCollections
    from pipeline.embedding import Embedder, EmbeddingOptions
    from pipeline.embedding.known_models import ProviderFacts

GROUPS = ("embedding", "vector")
"""Groups of actions that can be enabled separately, in the suggested order."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The section `settings.rag` of an engine; every key is optional."""

    embedding_provider: str = ""
    """A key of `pipeline.embedding.PROVIDERS`. Empty: openai if its key or address is named, else minilm."""
    embedding_model: str = ""
    """Empty: the provider's own default, text-embedding-3-small with openai."""
    embedding_dimensions: int | None = None
    """Shorter vectors, of models that can."""
    openai_base_url: str = ""
    """Empty: OpenAI itself; else a compatible server, such as LocalAI or vLLM."""
    ollama_base_url: str = ""
    """Empty: Ollama on this machine."""
    ollama_timeout: float = 60.0
    """Seconds; the first call of a model loads it."""
    vector_store: str = "memory"
    """memory, pgvector, or a key of `FOREIGN_TYPES`, whose client is an extra of its name."""
    chroma_path: str = "./chroma_db"
    """Folder of chroma, and of texts and metadata beside it."""
    vector_path: str = "./vector_db"
    """The same of every other store."""
    vector_url: str = ""
    """Address of a server of chroma, qdrant or weaviate. Empty: chroma and qdrant are a folder."""
    vector_grpc_url: str = ""
    """Address of weaviate's second port, if it is not 50051 of the same machine."""
    vector_index: str = "larder-actions"
    """Name of the index of pinecone; of others the beginning of the names of collections."""
    pinecone_environment: str = "us-east-1-aws"
    """Region of an index of pinecone that is created, with its cloud at the end."""
    database_url: str = field(default="", repr=False)
    """PostgreSQL of Larder, where pgvector and, if it is given, every other store keep texts; the secret
    LARDER_DATABASE_URL if empty."""
    tenant: str = "default"
    """Tenant that owns the collections; not of memory."""
    actions: tuple[str, ...] = GROUPS
    """Enabled groups."""

    @classmethod
    def from_section(cls, section: object) -> EngineSettings:
        """Read the section of an engine; None is an empty one.

        Raises:
            ConfigurationError: an unknown key, or a value of the wrong kind.
        """
        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise ConfigurationError(f"settings.rag is {json_type_name(section)}", fix="make it a mapping")
        known_keys = {f.name for f in fields(cls)}
        for key in section:
            if key not in known_keys:
                near = difflib.get_close_matches(str(key), known_keys, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known_keys))}"
                raise ConfigurationError(f"settings.rag has an unknown key {key!r}", fix=hint)
        values = {key: value for key, value in section.items() if value is not None}
        for key, value in values.items():
            fits, fix = _VALUES.get(key, _TEXT)
            if not fits(value):
                raise ConfigurationError(f"settings.rag.{key} is {value!r}", fix=fix)
        return cls(**values)


_TEXT = (lambda value: isinstance(value, str), "give a text")
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "embedding_dimensions": (
        lambda value: type(value) is int and value >= 1,
        "give a whole number of at least 1",
    ),
    "ollama_timeout": (lambda value: type(value) in (int, float) and value > 0, "give seconds, more than 0"),
    "actions": (
        lambda value: isinstance(value, list | tuple) and set(value) <= set(GROUPS),
        f"list some of {', '.join(GROUPS)}",
    ),
}
"""Key whose value is no text -> its check, and the advice if it fails."""


_KEYS: Mapping[str, str] = {
    "embedding.provider": "settings.rag.embedding_provider",
    "embedding.model": "settings.rag.embedding_model",
    "embedding.dimensions": "settings.rag.embedding_dimensions",
    "embedding.baseUrl": "settings.rag.openai_base_url or ollama_base_url",
    "embedding.apiKey": "the provider's key among the secrets",
}
"""Key of Larder's configuration -> its name in an engine's settings."""

_SHORTEST_SECRET = 4
"""Minimum characters of a secret to redact; shorter ones would blank out ordinary words."""


def enabled(engine: object) -> bool:
    """The engine's flag `enable_rag`; on unless it says otherwise."""
    return bool(getattr(engine, "enable_rag", True))


class EngineResources:
    """Embedders and stores named by an engine's settings; each is opened once, on first use."""

    def __init__(self, engine: object) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._embedders: dict[EmbeddingOptions, Embedder] = {}
        self._memory = MemoryCollections()
        self._stores: dict[EngineSettings, CollectionStore] = {}
        self._closing = ExitStack()

    def require_enabled(self, group: str) -> None:
        """Raise unless the actions of this group are switched on, as `Resources` says."""
        if not enabled(self._engine):
            raise ConfigurationError(
                "the actions are switched off", fix="set the engine's enable_rag to true"
            )
        if group not in self._settings().actions:
            raise ConfigurationError(
                f"the actions {group}.* are switched off", fix=f"add {group} to settings.rag.actions"
            )

    def redacted(self, message: str) -> str:
        """`message` without the engine's secrets, with the key names of `settings.rag`."""
        for name, engine_name in _KEYS.items():
            message = message.replace(name, engine_name)
        for secret in self._secrets().values():
            if isinstance(secret, str) and len(secret) >= _SHORTEST_SECRET:
                message = message.replace(secret, "***")
        return message

    def embedder(self, model: str | None, dimensions: int | None) -> Embedder:
        """The embedder for a model; None takes that of the settings; raises as `Resources` says."""
        try:
            from pipeline.embedding.calls import open_embedder
        except ModuleNotFoundError as error:
            # Every provider returns numpy arrays; without numpy the caller must give vectors.
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
        """The store of the settings; raises as `Resources` says."""
        settings = self._settings()
        if settings.vector_store == "memory":
            return self._memory
        if settings.vector_store not in ("pgvector", *FOREIGN_TYPES):
            types = ", ".join(("memory", "pgvector", *FOREIGN_TYPES))
            raise ConfigurationError(
                f"settings.rag.vector_store is {settings.vector_store!r}", fix=f"use one of {types}"
            )
        url = settings.database_url or self._secret("LARDER_DATABASE_URL")
        settings = replace(settings, database_url=url, actions=())  # which are on is no matter of the store
        with self._lock:
            if settings not in self._stores:
                key = self._secret(f"{settings.vector_store.upper()}_API_KEY")
                self._stores[settings] = _opened_collections(settings, key, self._closing)
            return self._stores[settings]

    def close(self) -> None:
        """Close database connections; later use opens them again."""
        with self._lock:
            self._stores.clear()
            self._closing.close()

    def _settings(self) -> EngineSettings:
        settings = getattr(self._engine, "settings", None) or {}
        return EngineSettings.from_section(
            settings.get("rag") if isinstance(settings, Mapping) else getattr(settings, "rag", None)
        )

    def _secrets(self) -> Mapping[str, Any]:
        secrets = getattr(self._engine, "secrets", None)
        return secrets if isinstance(secrets, Mapping) else {}

    def _secret(self, name: str) -> str:
        """A secret; empty if the engine has none of this name, or left its variable unresolved."""
        value = str(self._secrets().get(name) or "")
        return "" if value.startswith("${") else value

    def _options(self, model: str | None, dimensions: int | None) -> EmbeddingOptions:
        from pipeline.embedding import EmbeddingOptions
        from pipeline.embedding.known_models import PROVIDER_FACTS

        settings = self._settings()
        openai = settings.openai_base_url or PROVIDER_FACTS["openai"].variable in self._secrets()
        provider = settings.embedding_provider or ("openai" if openai else "minilm")
        options = EmbeddingOptions(
            provider=provider,
            model=model or settings.embedding_model,
            dimensions=dimensions or settings.embedding_dimensions,
            base_url=getattr(settings, f"{provider}_base_url", ""),
            api_key=self._secret(PROVIDER_FACTS[provider].variable) if provider in PROVIDER_FACTS else "",
        )
        _require_key(options, PROVIDER_FACTS.get(provider))
        return replace(options, timeout=settings.ollama_timeout) if provider == "ollama" else options


def _require_key(options: EmbeddingOptions, facts: ProviderFacts | None) -> None:
    if facts and facts.variable and not (options.api_key or options.base_url):
        fix = f"put {facts.variable} into the secrets of the engine; no variable of the environment is read"
        raise ConfigurationError(f"the API key of {facts.title} is missing", fix=fix)


# Collections ---------------------------------------------------------------------------------------


def _opened_collections(settings: EngineSettings, key: str, closing: ExitStack) -> CollectionStore:
    """The collections of a tenant; `key` is that of the service, and `closing` gets what is to be closed.

    Raises:
        ConfigurationError: a setting, a secret or a package is missing or wrong.
        StoreUnavailable: the store does not answer.
    """
    if settings.vector_store == "pgvector":
        return _kept(settings, closing)
    options = _options(settings, key)
    try:
        from pipeline.actions.indexed_collections import IndexedCollections
        from pipeline.search.stores import open_store
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed, which {settings.vector_store} needs", fix="install it"
        ) from error
    index = open_store(options)
    return IndexedCollections(_kept(settings, closing), index, tenant_id(settings.tenant))


def _kept(settings: EngineSettings, closing: ExitStack) -> KeptCollections:
    """Where texts and metadata lie: in PostgreSQL if its address is given, else in a file of the store's folder."""
    if not settings.database_url and settings.vector_store != "pgvector":
        from pipeline.actions.file_collections import FileCollections

        return FileCollections(_folder(settings) / f"texts-{tenant_id(settings.tenant)}.db")
    if not settings.database_url.startswith("postgresql"):
        raise ConfigurationError(
            f"vector_store {settings.vector_store} has no address of PostgreSQL",
            fix="put LARDER_DATABASE_URL, postgresql://user:password@host/larder, into the secrets",
        )
    from pipeline.actions.pgvector_collections import open_collections
    from pipeline.database.engine import Database

    with ExitStack() as opening:
        database = Database(settings.database_url)
        opening.callback(database.close)
        collections = open_collections(database, settings.tenant)
        closing.push(opening.pop_all())
    return collections


def _folder(settings: EngineSettings) -> Path:
    return Path(settings.chroma_path if settings.vector_store == "chroma" else settings.vector_path)


def _options(settings: EngineSettings, key: str) -> StoreOptions:
    kind = settings.vector_store
    if kind == "pinecone" and not key:
        raise ConfigurationError(
            "the API key of Pinecone is missing", fix="put PINECONE_API_KEY into the secrets of the engine"
        )
    if kind == "weaviate" and not settings.vector_url:
        raise ConfigurationError(
            "vector_store weaviate has no address", fix="write settings.rag.vector_url, http://host:8080"
        )
    implementation = IMPLEMENTATIONS[kind]
    if not re.fullmatch(implementation.name_pattern, settings.vector_index):
        raise ConfigurationError(
            f"settings.rag.vector_index is {settings.vector_index!r}",
            fix=f"give a name that {kind} takes: {implementation.name_words}",
        )
    return StoreOptions(
        kind,
        path=_folder(settings) / kind,
        url=settings.vector_url,
        grpc_url=settings.vector_grpc_url,
        api_key=key,
        collection=settings.vector_index,
        environment=settings.pinecone_environment,
        timeout=30.0,
    )
