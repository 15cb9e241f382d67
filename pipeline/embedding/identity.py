"""Under which name a model's vectors are kept, and back from that name to the model; nothing is opened for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.known_models import KNOWN
from pipeline.errors import EmbedderRefused

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
    for options in described:
        if options.provider == provider and vector_key(options) == key:
            return options
    if provider in _FREE:
        short = model_of(key)
        free = EmbeddingOptions(
            provider=provider,
            model=short if short in KNOWN[provider].models else "",
            dimensions=dimensions,
            oversize="split" if key.endswith(_PARTS) else None,
        )
        candidates = [free]
    else:
        candidates = [replace(o, model=model_of(key), dimensions=dimensions) for o in described]
    for options in candidates:
        if options.provider == provider and vector_key(options) == key:
            return options
    raise EmbedderRefused(
        f"the search index was made with {key} of the provider {provider}, which the configuration does not describe",
        fix="describe it under embedding.previous: provider, model, and its apiKey, baseUrl or modelPath",
    )
