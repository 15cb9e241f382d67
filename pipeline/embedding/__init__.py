"""Turning text into vectors: the port, its limits, and the table of embedders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError

Vectors = NDArray[np.float32]
"""Shape (texts, dimensions), every row of length 1."""
Oversize = Literal["split", "refuse", "cut"]
"""What becomes of a longer text than a model reads: the mean of its parts, nothing, or the vector of its beginning."""


@dataclass(frozen=True, kw_only=True)
class EmbedderLimits:
    """How much one call may carry."""

    texts: int = 256
    """Most texts of one call."""
    tokens_per_text: int = 256
    """As `count_tokens` counts; a longer text is not cut unless `oversize` says so."""
    tokens: int | None = None
    """Most tokens of all texts of one call together."""
    bytes: int | None = None
    """Most bytes of all texts of one call together, in UTF-8."""
    empty: bool = True
    """False: the provider has no vector for a text of nothing but white space."""
    oversize: Oversize = "split"
    """What becomes of a longer document; `cut`: this embedder itself reads the beginning only, and callers let it."""


def readable(text: str) -> str:
    """Half characters (lone surrogates, from broken sources) become `?`: nothing that takes UTF-8 takes them."""
    return text.encode("utf-8", "replace").decode("utf-8")


class Embedder(Protocol):
    """One embedding model. Every implementation passes tests/contracts/test_embedder.py."""

    model: str
    dimensions: int
    limits: EmbedderLimits

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order; no more texts than `limits` allow.

        Raises:
            EmbedderUnavailable: may work later.
            EmbedderRefused: key, model or plan are refused, and will be until somebody mends it.
            TextRejected: one of these texts is refused; smaller calls tell which.
        """
        ...

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); some models encode questions differently from documents."""
        ...

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has; where the model's tokenizer is not here, never fewer than it has."""
        ...


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Which model makes the vectors, and how it is called."""

    provider: str = "minilm"
    """A key of `PROVIDERS`."""
    model: str = ""
    """Empty: the provider's own default."""
    dimensions: int | None = None
    """None: whatever the model gives; a number is checked against the model."""
    model_path: Path | None = None
    """A folder with `model.onnx` and `tokenizer.json`, instead of the shipped model."""
    batch_size: int | None = None
    """Most texts of one call; None: what the provider does best."""
    base_url: str = ""
    """Address of a provider on the network; empty: the provider's public one."""
    api_key: str = field(default="", repr=False)
    """Key of a provider on the network; secret."""
    timeout: float = 30.0
    """Seconds one call may take."""
    device: str = "cpu"
    """cpu or cuda, for models that run here."""
    oversize: Oversize | None = None
    """What becomes of a document's text that is longer than the model reads; None: what is best for the model."""
    max_tokens: int | None = None
    """How much of a text a service's model reads, if it is not the model's usual length or not known here."""


PROVIDERS: Mapping[str, str] = {
    "minilm": "minilm",
    "hashing": "hashing",
    "gemini": "gemini",
    "openai": "remote",
    "ollama": "remote",
    "huggingface": "remote",
    "transformers": "transformers",
}
"""Name in the configuration -> the module of `providers` whose `open_provider` builds it, imported only then."""


def open_embedder(options: EmbeddingOptions) -> Embedder:
    """The embedder the options name.

    Raises:
        ConfigurationError: unknown provider or model, a size below 1, or dimensions the model does not have.
        ModelMissing: the model's files are absent or not the expected ones.
    """
    if options.provider not in PROVIDERS:
        raise ConfigurationError(
            f"embedding.provider is {options.provider!r}", fix=f"use one of {', '.join(PROVIDERS)}"
        )
    for key, value in (("dimensions", options.dimensions), ("batchSize", options.batch_size)):
        if value is not None and value < 1:
            raise ConfigurationError(f"embedding.{key} is {value}", fix="use a number of at least 1")
    module = import_module(f"pipeline.embedding.providers.{PROVIDERS[options.provider]}")
    embedder: Embedder = module.open_provider(options)
    if options.dimensions not in {None, embedder.dimensions}:
        raise ConfigurationError(
            f"embedding.dimensions is {options.dimensions}, but {embedder.model} gives {embedder.dimensions}",
            fix=f"set embedding.dimensions to {embedder.dimensions} or leave it out",
        )
    if options.oversize == "cut" != embedder.limits.oversize:
        raise ConfigurationError(
            f"embedding.oversize is cut, and the provider {options.provider} is not sent half a text",
            fix="use split or refuse, or leave it out",
        )
    embedder.limits = replace(embedder.limits, oversize=options.oversize or embedder.limits.oversize)
    return embedder
