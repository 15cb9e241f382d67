"""Which model makes the vectors: the keys that `embedding` and `embedding.previous` share, and what must fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from connectors.sections import (
    ConfigSection,
    Folder,
    Mismatch,
    Number,
    OneOf,
    Secret,
    Text,
    WebUrl,
    Whole,
    mismatched,
    refuse,
    secret_value,
)
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.known_models import PROVIDER_FACTS, misfits

EMBEDDING_PROVIDERS: Mapping[str, str] = {name: f.about for name, f in PROVIDER_FACTS.items()}
"""One line per embedder that this version knows."""

_PROVIDERS_DEFAULT = "Left out: the provider's own."


class EmbeddingModel(ConfigSection):
    """A provider and one of its models."""

    provider: Annotated[str, OneOf(EMBEDDING_PROVIDERS)] = Field(
        default="minilm",
        description="Who embeds. "
        + "; ".join(f"{name}: {about}" for name, about in EMBEDDING_PROVIDERS.items())
        + ".",
    )
    model: Text = Field(default="all-MiniLM-L6-v2", description=f"Name of the model. {_PROVIDERS_DEFAULT}")
    dimensions: Whole = Field(default=384, ge=1, le=4000)
    """Length of its vectors. Left out: the model's own; needed for a model not known to Larder."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu or cuda, for the provider transformers."""
    model_path: Folder | None = Field(default=None, examples=["./models/minilm"])
    """Folder of another model for the provider minilm: model.onnx and tokenizer.json, or config.json, model.safetensors
    and tokenizer.json."""
    base_url: WebUrl | None = Field(default=None, examples=["https://embeddings.example.com/v1"])
    """Address of a provider on the network. Empty: its public one."""
    api_key: Secret | None = Field(default=None, examples=["${LARDER_EMBEDDING_API_KEY}"])
    """Key of a provider on the network. Empty, and without baseUrl: GEMINI_API_KEY, OPENAI_API_KEY or
    HF_TOKEN, whichever is the provider's."""
    timeout: Number = Field(
        default=30, gt=0, le=3600, description=f"Seconds one call may take. {_PROVIDERS_DEFAULT}"
    )
    max_tokens: Whole | None = Field(default=None, ge=16, examples=[8192])
    """Tokens of a text that the model reads, where Larder does not know it or the server allows others;
    longer texts are embedded in parts."""

    oversize: Literal["split", "refuse", "cut"] | None = Field(default=None, examples=["split"])
    """Treatment of a text that is longer than the model reads: split, the mean of its parts; refuse, a
    dead letter; cut, its beginning alone (minilm only). Empty: cut for minilm, else split."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_provider_has_it(cls, value: Any) -> Any:
        """Fill in the provider's values for keys that are left out."""
        section = {} if value is None else value
        provider = cls.provider_of(section) if isinstance(section, dict) else ""
        facts = PROVIDER_FACTS.get(provider)
        if facts is None:
            return section
        defaults = {
            "provider": provider,
            "model": facts.model,
            "batch_size": facts.batch,
            "timeout": facts.timeout,
        }
        if model_facts := facts.model_facts(str(section.get("model", ""))):
            defaults["dimensions"] = model_facts.dimensions
        return {
            k: v for k, v in defaults.items() if k in cls.model_fields and to_camel(k) not in section
        } | section

    @classmethod
    def provider_of(cls, section: Mapping[str, Any]) -> str:
        """The provider of a section as it is written."""
        return str(section.get("provider", "minilm")).lower()

    @property
    def texts_per_call(self) -> int | None:
        """Texts of one call; None: the provider's own."""
        return None

    def options(self, model_path: Path | None) -> EmbeddingOptions:
        """Options for opening the model, whose folder is given as an absolute path."""
        hashing = self.provider == "hashing"
        return EmbeddingOptions(
            provider=self.provider,
            model="" if hashing else self.model,
            dimensions=self.dimensions,
            model_path=model_path,
            batch_size=None if hashing else self.texts_per_call,
            base_url=self.base_url or "",
            api_key=secret_value(self.api_key),
            timeout=self.timeout,
            device=self.device,
            oversize=self.oversize,
            max_tokens=self.max_tokens,
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        dimensions = self.dimensions if "dimensions" in self.model_fields_set else None
        choice = replace(self.options(self.model_path), dimensions=dimensions)
        if self.oversize == "cut" and self.provider != "minilm":
            refuse(self, [Mismatch(key="oversize", expected="split or refuse", fix="only minilm cuts")])
        unopened = self.model_path is None and self.provider not in _CHECKED_WHEN_OPENED
        if unopened and (mismatches := misfits(choice)):
            # Without the section: what was left out is nothing here, and no default of another provider.
            raise mismatched(mismatches)
        return self


_CHECKED_WHEN_OPENED = ("minilm", "hashing")
"""Providers whose models are files of this machine, or none at all: opening them says more than a table could."""


class PreviousEmbedding(EmbeddingModel):
    """The model of an older search index, so that it can be searched while a new one is filled."""


class StoryEmbedding(EmbeddingModel):
    """The model that turns user stories into vectors.

    Left out are gemini and its model; address and key are those of `embedding`, if that has the same provider.
    """

    @classmethod
    def provider_of(cls, section: Mapping[str, Any]) -> str:
        """The provider of a section; one that names its model only means the first provider that has it."""
        having = (name for name, facts in PROVIDER_FACTS.items() if section.get("model") in facts.models)
        return str(section.get("provider") or next(having, "gemini")).lower()


class EmbeddingCacheSettings(ConfigSection):
    """Vectors kept so that no text is embedded twice."""

    max_size: Whole = Field(default=1000, ge=1)
    """Megabytes; the longest unused go first."""


class EmbeddingBudgetSettings(ConfigSection):
    """The allowance for embedding; a part of the section `embedding`."""

    probe_seconds: ClassVar[float] = 300.0
    """Pause between tries while the provider refuses key, model or plan."""
    requests_per_minute: Whole | None = Field(default=None, ge=1)
    """Most calls a minute, of all workers together. Empty: no limit."""
    texts_per_minute: Whole | None = Field(default=None, ge=1)
    """Most texts a minute, of all workers together. Empty: no limit."""
    tokens_per_minute: Whole | None = Field(default=None, ge=1)
    """Most tokens a minute, of all workers together. Empty: no limit."""
    query_share: Number = Field(default=0.1, ge=0, le=0.9)
    """Part of every limit that documents leave to searches."""
    daily_tokens: Whole | None = Field(default=None, ge=1)
    """Most tokens of a tenant's day (UTC). Empty: no limit."""
    daily_cost: Number | None = Field(default=None, gt=0)
    """Most money of a tenant's day, by costPerMillionTokens. Empty: no limit."""
    cost_per_million_tokens: Number = Field(default=0, ge=0)
    """Price of a million tokens, for the cost that is shown and limited."""

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.daily_cost is not None and not self.cost_per_million_tokens:
            expected = "more than 0, since dailyCost is set"
            refuse(self, [Mismatch(key="cost_per_million_tokens", expected=expected)])
        return self

    @property
    def limited(self) -> bool:
        """True if any limit is set."""
        limits = (self.requests_per_minute, self.texts_per_minute, self.tokens_per_minute)
        return any(n is not None for n in (*limits, self.daily_tokens, self.daily_cost))


class EmbeddingSettings(EmbeddingBudgetSettings, EmbeddingModel):
    """The model that turns text into vectors."""

    batch_size: Whole = Field(default=32, ge=1, le=2048)
    """Texts of one call. Left out: the provider's own."""
    cache: EmbeddingCacheSettings = EmbeddingCacheSettings()
    """Vectors kept so that no text is embedded twice."""
    previous: PreviousEmbedding | None = Field(default=None, examples=[{"provider": "minilm"}])
    """Model of an older search index that is still searched while a new one is filled."""

    @property
    def texts_per_call(self) -> int:
        """Texts of one call."""
        return self.batch_size
