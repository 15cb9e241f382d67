"""From a YAML engine's settings and secrets to an embedder and a store."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from pipeline.actions.collections import CollectionStore, MemoryCollections
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.embedding import Embedder, EmbeddingOptions

GROUPS = ("embedding", "vector")
"""What can be switched on by itself, in the order in which to do so."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What an engine may say about the actions; every key is optional."""

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
    """memory or pgvector."""
    chroma_path: str = "./chroma_db"
    """Read and not used, so that files written for Chroma still load; see docs/decisions.md."""
    database_url: str = field(default="", repr=False)
    """PostgreSQL for pgvector; the secret LARDER_DATABASE_URL if empty."""
    tenant: str = "default"
    """Whose collections they are, with pgvector."""
    actions: tuple[str, ...] = GROUPS
    """Which groups are switched on."""

    @classmethod
    def of(cls, section: object) -> EngineSettings:
        """The section as an engine holds it; None is an empty one.

        Raises:
            ConfigurationError: an unknown key, or a value of the wrong kind.
        """
        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise ConfigurationError(f"settings.rag is a {type(section).__name__}", fix="make it a mapping")
        known = {f.name for f in fields(cls)}
        for key in section:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
                raise ConfigurationError(f"settings.rag has an unknown key {key!r}", fix=hint)
        given = {key: value for key, value in section.items() if value is not None}
        for key, value in given.items():
            fits, fix = _VALUES.get(key, _TEXT)
            if not fits(value):
                raise ConfigurationError(f"settings.rag.{key} is {value!r}", fix=fix)
        return cls(**given)


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
"""Keys whose value is no text: what it must be, and how to say so."""


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
        self._memory = MemoryCollections()
        self._stores: dict[tuple[str, str], CollectionStore] = {}
        """By address and tenant."""
        self._closing = ExitStack()

    def require_enabled(self, group: str) -> None:
        """Raise unless the actions of this group are switched on, as `Parts` says."""
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
            from pipeline.embedding.calls import open_embedder
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
        if wanted.vector_store == "memory":
            return self._memory
        if wanted.vector_store != "pgvector":
            raise ConfigurationError(
                f"settings.rag.vector_store is {wanted.vector_store!r}", fix="use one of memory, pgvector"
            )
        url = wanted.database_url or self._secret("LARDER_DATABASE_URL")
        if not url.startswith("postgresql"):
            raise ConfigurationError(
                "there is no address of PostgreSQL for vector_store pgvector",
                fix="put LARDER_DATABASE_URL, postgresql://user:password@host/larder, into the secrets",
            )
        from pipeline.actions.pgvector_collections import open_collections
        from pipeline.database.engine import Database

        with self._lock:
            if (url, wanted.tenant) not in self._stores:
                with ExitStack() as opening:
                    database = Database(url)
                    opening.callback(database.close)
                    self._stores[url, wanted.tenant] = open_collections(database, wanted.tenant)
                    self._closing.push(opening.pop_all())
            return self._stores[url, wanted.tenant]

    def close(self) -> None:
        """Give connections back; what is used later is opened anew."""
        with self._lock:
            self._stores.clear()
            self._closing.close()

    def _settings(self) -> EngineSettings:
        settings = getattr(self._engine, "settings", None) or {}
        return EngineSettings.of(
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
        from pipeline.embedding.known_models import KNOWN

        wanted = self._settings()
        openai = wanted.openai_base_url or KNOWN["openai"].variable in self._secrets()
        provider = wanted.embedding_provider or ("openai" if openai else "minilm")
        options = EmbeddingOptions(
            provider=provider,
            model=model or wanted.embedding_model,
            dimensions=dimensions or wanted.embedding_dimensions,
            base_url=getattr(wanted, f"{provider}_base_url", ""),
            api_key=self._secret(KNOWN[provider].variable) if provider in KNOWN else "",
        )
        facts = KNOWN.get(provider)
        if facts and facts.variable and not (options.api_key or options.base_url):
            fix = (
                f"put {facts.variable} into the secrets of the engine; no variable of the environment is read"
            )
            raise ConfigurationError(f"there is no key of {facts.title}", fix=fix)
        return replace(options, timeout=wanted.ollama_timeout) if provider == "ollama" else options
