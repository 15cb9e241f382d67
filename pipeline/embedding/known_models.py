"""What is known of embedding providers and their models before one is opened, and the names of their vectors."""

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
    """Length of its vectors unless another is asked for."""
    tokens: int
    """How much of a text it reads, its own marks included."""
    shortest: int | None = None
    """The provider gives shorter vectors on request, down to this length; None: only the native one."""
    longest: int | None = None
    """None: `dimensions`."""
    document_prefix: str = ""
    query_prefix: str = ""
    english: bool = False
    """It cuts texts into the same tokens as the shipped MiniLM, which can therefore count them."""

    def gives(self, dimensions: int) -> bool:
        """Whether its vectors can have this length."""
        if self.shortest is None:
            return dimensions == self.dimensions
        return self.shortest <= dimensions <= (self.longest or self.dimensions)

    @property
    def lengths(self) -> str:
        """The lengths it gives, in words."""
        if self.shortest is None:
            return str(self.dimensions)
        return f"{self.shortest} to {self.longest or self.dimensions}"


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """One provider, as the configuration and the embedders need it."""

    title: str
    """Its name in messages."""
    about: str
    """One line for the reference of the configuration."""
    model: str
    """The model of a configuration that names none."""
    models: Mapping[str, ModelFacts]
    batch: int = 32
    """Texts of one call unless the configuration says otherwise."""
    most_texts: int = 2048
    """More texts are refused in one call."""
    most_tokens: int | None = None
    """The same of the tokens of all texts together."""
    unknown_tokens: int = 512
    """What a model surely reads that is not known here; most read this much or more."""
    base_url: str = ""
    """Its public address; empty: it runs in this process."""
    remote: bool = False
    """Whether texts are sent to it over the network."""
    timeout: float = 30.0
    """Seconds one call may take unless the configuration says otherwise."""
    needs_key: Literal["never", "public", "always"] = "never"
    """`public`: at its public address; a server of one's own behind `baseUrl` may do without."""
    variable: str = ""
    """The variable that holds its key by custom."""
    tagged: bool = False
    """Model names may end with `:tag`, and `:latest` is what a bare name means."""
    install: str = ""
    """What to do about a model that it does not have."""

    def named(self, model: str) -> str:
        """The model's full name: the default for an empty one, and with its tag where models have tags."""
        name = model or self.model
        return f"{name}:latest" if self.tagged and ":" not in name else name

    def of(self, model: str) -> ModelFacts | None:
        """What is known of a model; tags are variants of one model."""
        name = model or self.model
        return self.models.get(name.partition(":")[0] if self.tagged else name)

    def facts_of(self, options: EmbeddingOptions) -> ModelFacts:
        """What is known of the options' model, else what can be taken for granted."""
        unknown = ModelFacts(dimensions=options.dimensions or 0, tokens=self.unknown_tokens)
        return self.of(options.model) or unknown

    def dimensions_of(self, model: str, asked: int | None) -> int | None:
        """The length of the vectors; None for a model that is not known here unless the configuration says it."""
        known = self.of(model)
        return asked or (known.dimensions if known else None)


def _read() -> Mapping[str, ProviderFacts]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    hub, own = ({name: ModelFacts(**facts) for name, facts in table[kind].items()} for kind in ("hub", "own"))
    every = own | hub | {name: hub[other] for name, other in table["aliases"].items()}
    return {
        name: ProviderFacts(
            **facts | {"models": hub if facts["models"] == "hub" else {m: every[m] for m in facts["models"]}},
            remote="base_url" in facts,
        )
        for name, facts in table["providers"].items()
    }


KNOWN = MappingProxyType(_read())
"""Name in the configuration -> what is known of the provider."""


def _lacks_key(facts: ProviderFacts, options: EmbeddingOptions) -> bool:
    wanted = facts.needs_key == "always" or (facts.needs_key == "public" and not options.base_url)
    return wanted and not options.api_key.strip()


def misfits(options: EmbeddingOptions) -> list[Mismatch]:
    """All of provider, model, dimensions, batch size and key that cannot work together."""
    facts = KNOWN[options.provider]
    known = facts.of(options.model)
    name = options.model or facts.model
    wrong = []
    if options.dimensions is None:
        if known is None:
            fix = f"known without it are {', '.join(facts.models)}"
            wrong.append(Mismatch(key="dimensions", expected=f"the length of the vectors of {name}", fix=fix))
    elif known is not None and not known.gives(options.dimensions):
        wrong.append(Mismatch(key="dimensions", expected=f"{known.lengths}, which {name} gives"))
    if options.batch_size is not None and options.batch_size > facts.most_texts:
        expected = f"at most {facts.most_texts}, the most texts that {facts.title} takes in one call"
        wrong.append(Mismatch(key="batch_size", expected=expected))
    if _lacks_key(facts, options):
        fix = f"set the variable {facts.variable}, or write apiKey: ${{NAME}} with the variable that holds it"
        wrong.append(Mismatch(key="api_key", expected=f"the key of {facts.title}", fix=fix))
    return wrong


def refuse_misfits(options: EmbeddingOptions) -> None:
    """Raise if the options do not fit each other.

    Raises:
        ConfigurationError: the first of `misfits`.
    """
    for wrong in misfits(options):
        first, *others = wrong.key.split("_")
        key = first + "".join(map(str.capitalize, others))
        raise ConfigurationError(f"embedding.{key} does not fit: expected is {wrong.expected}", fix=wrong.fix)


_FREE = ("minilm", "hashing")
_PARTS = "+parts"
"""Ends a key of minilm whose longer texts are embedded in parts; all others are always embedded so."""


def vector_key(options: EmbeddingOptions) -> str:
    """The name of the options' vectors: cache key, model of a search index, part of the pipeline's version.

    It holds the provider, because one model gives slightly different vectors elsewhere, and the dimensions
    where they are not the model's usual ones. The two free embedders keep the names they always had.
    """
    facts = KNOWN[options.provider]
    dimensions = facts.dimensions_of(options.model, options.dimensions)
    if options.provider == "hashing":
        return f"hashing-{dimensions}"
    if options.provider == "minilm":
        folder = options.model_path
        name = f"{folder.name}-{dimensions}" if folder else options.model or facts.model
        return f"{name}{_PARTS}" if options.oversize == "split" else name
    known = facts.of(options.model)
    usual = known is None or dimensions == known.dimensions
    return f"{options.provider}/{facts.named(options.model)}" + ("" if usual else f"-{dimensions}")


@cache
def model_of(key: str) -> str:
    """The model's name inside a key, as its maker calls it: without provider, and without a shorter length."""
    provider, slash, name = key.partition("/")
    if not slash or provider not in KNOWN:
        return key.removesuffix(_PARTS)
    short, _, length = name.rpartition("-")
    known = KNOWN[provider].of(short)
    return short if known is not None and length.isdecimal() and known.gives(int(length)) else name


def options_for(
    described: Sequence[EmbeddingOptions], *, provider: str, key: str, dimensions: int
) -> EmbeddingOptions:
    """How to open the model behind a key, from the options that the configuration describes.

    Another model of a described provider is opened with that one's address and key. The two free embedders need
    no description.

    Raises:
        EmbedderRefused: nothing described leads to this model.
    """
    if provider in _FREE:
        short = model_of(key)
        others = [
            EmbeddingOptions(
                provider=provider,
                model=short if short in KNOWN[provider].models else "",
                dimensions=dimensions,
                oversize="split" if key.endswith(_PARTS) else None,
            )
        ]
    else:
        others = [replace(o, model=model_of(key), dimensions=dimensions) for o in described]
    for options in (*described, *others):
        if options.provider == provider and vector_key(options) == key:
            return options
    raise EmbedderRefused(
        f"the search index was made with {key} of the provider {provider}, which the configuration does not describe",
        fix="describe it under embedding.previous: provider, model, and its apiKey, baseUrl or modelPath",
    )
