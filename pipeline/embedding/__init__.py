"""Turning text into vectors: the port, its limits, and the table of embedders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigurationError

Vectors = NDArray[np.float32]
"""Shape (texts, dimensions), every row of length 1."""


@dataclass(frozen=True, kw_only=True)
class EmbedderLimits:
    """How much one call may carry."""

    texts: int = 256
    """Most texts of one call."""
    tokens_per_text: int = 256
    """A longer text is split or refused before the call; no model gets to cut it without a word."""
    tokens: int | None = None
    """Most tokens of all texts of one call together."""
    bytes: int | None = None
    """Most bytes of all texts of one call together, in UTF-8."""
    empty: bool = True
    """False: the provider has no vector for a text of nothing but white space."""


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


def _open_minilm(options: EmbeddingOptions) -> Embedder:
    from pipeline.embedding.minilm import BATCH_SIZE, MODEL_NAMES, MiniLmEmbedder

    if options.model_path is None and options.model and options.model not in MODEL_NAMES:
        raise ConfigurationError(
            f"embedding.model is {options.model!r}; the provider minilm ships {MODEL_NAMES[0]} only",
            fix="set embedding.modelPath to a folder with that model's model.onnx and tokenizer.json",
        )
    return MiniLmEmbedder(model_path=options.model_path, batch_size=options.batch_size or BATCH_SIZE)


def _open_hashing(options: EmbeddingOptions) -> Embedder:
    from pipeline.embedding.hashing import BATCH_SIZE, DIMENSIONS, HashingEmbedder

    return HashingEmbedder(options.dimensions or DIMENSIONS, batch_size=options.batch_size or BATCH_SIZE)


PROVIDERS: Mapping[str, Callable[[EmbeddingOptions], Embedder]] = {
    "minilm": _open_minilm,
    "hashing": _open_hashing,
}
"""Name in the configuration -> what builds it; each entry imports its libraries only when it is called."""


def open_embedder(options: EmbeddingOptions) -> Embedder:
    """The embedder the options name.

    Raises:
        ConfigurationError: unknown provider or model, a size below 1, or dimensions the model does not have.
        ModelMissing: the model's files are absent or not the expected ones.
    """
    build = PROVIDERS.get(options.provider)
    if build is None:
        raise ConfigurationError(
            f"embedding.provider is {options.provider!r}", fix=f"use one of {', '.join(PROVIDERS)}"
        )
    for key, value in (("dimensions", options.dimensions), ("batchSize", options.batch_size)):
        if value is not None and value < 1:
            raise ConfigurationError(f"embedding.{key} is {value}", fix="use a number of at least 1")
    embedder = build(options)
    if options.dimensions not in {None, embedder.dimensions}:
        raise ConfigurationError(
            f"embedding.dimensions is {options.dimensions}, but {embedder.model} gives {embedder.dimensions}",
            fix=f"set embedding.dimensions to {embedder.dimensions} or leave it out",
        )
    return embedder
