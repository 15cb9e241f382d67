"""Facts about embedding providers and models, available before one is opened, and the names of their vectors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.documents import Mismatch
from pipeline.embedding import EmbeddingOptions
from pipeline.errors import ConfigurationError, EmbedderRefused


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One model, as its card describes it."""

    dimensions: int
    """Length of the vectors by default."""
    tokens: int
    """Most tokens of a text that the model reads, including the special tokens it adds."""
    shortest: int | None = None
    """Shortest vectors that the provider returns on request; None: only the default length."""
    longest: int | None = None
    """Longest vectors that the provider returns on request; None: `dimensions`."""
    document_prefix: str = ""
    query_prefix: str = ""
    english: bool = False
    """Whether the model has the same tokens as the shipped MiniLM, whose tokenizer can then count them."""

    def gives(self, dimensions: int) -> bool:
        """Whether the model's vectors can have this length."""
        if self.shortest is None:
            return dimensions == self.dimensions
        return self.shortest <= dimensions <= (self.longest or self.dimensions)

    @property
    def lengths(self) -> str:
        """The supported lengths, for messages."""
        if self.shortest is None:
            return str(self.dimensions)
        return f"{self.shortest} to {self.longest or self.dimensions}"


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """Facts about one provider, for the configuration and the embedders."""

    title: str
    """Name of the provider in messages."""
    about: str
    """One line for the configuration reference."""
    model: str
    """The default model."""
    models: Mapping[str, ModelFacts]
    batch: int = 32
    """Default number of texts in one call."""
    most_texts: int = 2048
    """Most texts that the provider accepts in one call."""
    most_tokens: int | None = None
    """Most tokens of all texts of one call together."""
    unknown_tokens: int = 512
    """Tokens that an unregistered model is assumed to read; most models read at least this number."""
    base_url: str = ""
    """Public address of the provider; empty: the model runs in this process."""
    remote: bool = False
    """Whether texts are sent to it over the network."""
    timeout: float = 30.0
    """Default limit of one call, in seconds."""
    needs_key: Literal["never", "public", "always"] = "never"
    """When a key is required; `public`: at the public address, while a private server at `baseUrl` may need none."""
    variable: str = ""
    """Name of the environment variable that usually holds the key."""
    tagged: bool = False
    """Whether model names may end with `:tag`; a bare name means `:latest`."""
    install: str = ""
    """Advice for a model that the provider does not have."""

    def named(self, model: str) -> str:
        """The model's full name: the default for an empty one, and with its tag where models have tags."""
        name = model or self.model
        return f"{name}:latest" if self.tagged and ":" not in name else name

    def model_facts(self, model: str) -> ModelFacts | None:
        """Facts about a registered model; tags are variants of one model."""
        name = model or self.model
        return self.models.get(name.partition(":")[0] if self.tagged else name)

    def facts_of(self, options: EmbeddingOptions) -> ModelFacts:
        """Facts about the options' model; safe assumptions if it is not registered."""
        unknown = ModelFacts(dimensions=options.dimensions or 0, tokens=self.unknown_tokens)
        return self.model_facts(options.model) or unknown

    def dimensions_of(self, model: str, requested: int | None) -> int | None:
        """Length of the vectors; None for an unregistered model without `requested`."""
        facts = self.model_facts(model)
        return requested or (facts.dimensions if facts else None)


def _read() -> Mapping[str, ProviderFacts]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    hub, local_models = (
        {name: ModelFacts(**facts) for name, facts in table[kind].items()} for kind in ("hub", "own")
    )
    every = local_models | hub | {name: hub[other] for name, other in table["aliases"].items()}
    return {
        name: ProviderFacts(
            **facts | {"models": hub if facts["models"] == "hub" else {m: every[m] for m in facts["models"]}},
            remote="base_url" in facts,
        )
        for name, facts in table["providers"].items()
    }


PROVIDER_FACTS = MappingProxyType(_read())
"""Name in the configuration -> facts about the provider."""


def _lacks_key(facts: ProviderFacts, options: EmbeddingOptions) -> bool:
    required = facts.needs_key == "always" or (facts.needs_key == "public" and not options.base_url)
    return required and not options.api_key.strip()


def misfits(options: EmbeddingOptions) -> list[Mismatch]:
    """Options among dimensions, batch size and key that do not fit provider and model."""
    facts = PROVIDER_FACTS[options.provider]
    model = facts.model_facts(options.model)
    name = options.model or facts.model
    mismatches = []
    if options.dimensions is None:
        if model is None:
            fix = f"known without it are {', '.join(facts.models)}"
            mismatches.append(
                Mismatch(key="dimensions", expected=f"the length of the vectors of {name}", fix=fix)
            )
    elif model is not None and not model.gives(options.dimensions):
        mismatches.append(Mismatch(key="dimensions", expected=f"{model.lengths}, which {name} gives"))
    if options.batch_size is not None and options.batch_size > facts.most_texts:
        expected = f"at most {facts.most_texts}, the most texts that {facts.title} takes in one call"
        mismatches.append(Mismatch(key="batch_size", expected=expected))
    if _lacks_key(facts, options):
        fix = f"set the variable {facts.variable}, or write apiKey: ${{NAME}} with the variable that holds it"
        mismatches.append(Mismatch(key="api_key", expected=f"the key of {facts.title}", fix=fix))
    return mismatches


def refuse_misfits(options: EmbeddingOptions) -> None:
    """Raise if the options do not fit together.

    Raises:
        ConfigurationError: the first of `misfits`.
    """
    for mismatch in misfits(options):
        first_word, *more_words = mismatch.key.split("_")
        key = first_word + "".join(map(str.capitalize, more_words))
        raise ConfigurationError(
            f"embedding.{key} does not fit: expected is {mismatch.expected}", fix=mismatch.fix
        )


_FREE = ("minilm", "hashing")
_SPLIT_SUFFIX = "+parts"
"""Suffix of a minilm key whose longer texts are split; the other providers always split them."""


def vector_key(options: EmbeddingOptions) -> str:
    """The name of the options' vectors: cache key, model of a search index, part of the pipeline's version.

    It contains the provider, because the same model gives slightly different vectors elsewhere, and the dimensions
    if they are not the model's default. The two local embedders keep the names of earlier releases.
    """
    facts = PROVIDER_FACTS[options.provider]
    dimensions = facts.dimensions_of(options.model, options.dimensions)
    if options.provider == "hashing":
        return f"hashing-{dimensions}"
    if options.provider == "minilm":
        folder = options.model_path
        name = f"{folder.name}-{dimensions}" if folder else options.model or facts.model
        return f"{name}{_SPLIT_SUFFIX}" if options.oversize == "split" else name
    model = facts.model_facts(options.model)
    usual = model is None or dimensions == model.dimensions
    return f"{options.provider}/{facts.named(options.model)}" + ("" if usual else f"-{dimensions}")


@cache
def model_of(key: str) -> str:
    """The model's original name inside a key, without provider and without the length of shortened vectors."""
    provider, slash, name = key.partition("/")
    if not slash or provider not in PROVIDER_FACTS:
        return key.removesuffix(_SPLIT_SUFFIX)
    short, _, length = name.rpartition("-")
    model = PROVIDER_FACTS[provider].model_facts(short)
    return short if model is not None and length.isdecimal() and model.gives(int(length)) else name


def options_for(
    described: Sequence[EmbeddingOptions], *, provider: str, key: str, dimensions: int
) -> EmbeddingOptions:
    """Options for opening the model of a vector key, derived from those the configuration describes.

    Another model of a described provider is opened with the same address and API key. The two local embedders
    need no description.

    Raises:
        EmbedderRefused: no described provider has this model.
    """
    if provider in _FREE:
        short = model_of(key)
        candidates = [
            EmbeddingOptions(
                provider=provider,
                model=short if short in PROVIDER_FACTS[provider].models else "",
                dimensions=dimensions,
                oversize="split" if key.endswith(_SPLIT_SUFFIX) else None,
            )
        ]
    else:
        candidates = [replace(o, model=model_of(key), dimensions=dimensions) for o in described]
    for options in (*described, *candidates):
        if options.provider == provider and vector_key(options) == key:
            return options
    raise EmbedderRefused(
        f"the search index was made with {key} of the provider {provider}, which the configuration does not describe",
        fix="describe it under embedding.previous: provider, model, and its apiKey, baseUrl or modelPath",
    )
