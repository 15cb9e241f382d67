"""The section `settings.rag` of a YAML engine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pipeline.errors import ConfigurationError

GROUPS = ("embedding", "vector")
"""What can be switched on by itself, in the order in which to do so."""


@dataclass(frozen=True, kw_only=True)
class RagSettings:
    """What an engine may say about the actions; every key is optional."""

    embedding_provider: str = "openai"
    """A key of `pipeline.embedding.PROVIDERS`."""
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
    def of(cls, section: object) -> RagSettings:
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
        read: dict[str, Any] = {key: _VALUES.get(key, _text)(key, value) for key, value in given.items()}
        return cls(**read)


def _text(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise ConfigurationError(f"settings.rag.{key} is a {type(value).__name__}", fix="give a text")
    return value


def _dimensions(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"settings.rag.{key} is {value!r}", fix="give a whole number of at least 1")
    return value


def _seconds(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"settings.rag.{key} is {value!r}", fix="give seconds, more than 0")
    return float(value)


def _groups(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not set(value) <= set(GROUPS):
        raise ConfigurationError(f"settings.rag.{key} is {value!r}", fix=f"list some of {', '.join(GROUPS)}")
    return tuple(value)


_VALUES: Mapping[str, Callable[[str, Any], Any]] = {
    "embedding_dimensions": _dimensions,
    "ollama_timeout": _seconds,
    "actions": _groups,
}
"""Keys whose value is no text."""
