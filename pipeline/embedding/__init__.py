"""Turning text into vectors: the port and its limits, and what an embedder is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
    """A folder with another model, of ONNX or as Hugging Face's hub has it, instead of the shipped one."""
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
