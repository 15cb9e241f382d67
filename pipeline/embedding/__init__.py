"""The port for embedders: protocol, limits and options."""

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
"""Handling of texts longer than the model reads: mean of the segments' vectors, an error, or the beginning's vector."""


@dataclass(frozen=True, kw_only=True)
class EmbedderLimits:
    """Limits of one call."""

    texts: int = 256
    """Most texts of one call."""
    tokens_per_text: int = 256
    """Most tokens of one text by `count_tokens`; `oversize` decides on longer texts."""
    tokens: int | None = None
    """Most tokens of all texts of one call together."""
    bytes: int | None = None
    """Most bytes of all texts of one call together, in UTF-8."""
    empty: bool = True
    """False: the provider has no vector for a text of nothing but white space."""
    oversize: Oversize = "split"
    """Handling of longer documents; `cut`: callers send the whole text, and the embedder reads only its beginning."""


def readable(text: str) -> str:
    """Replace lone surrogates, which broken sources contain and UTF-8 cannot encode, with `?`."""
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
            EmbedderRefused: key, model or plan are refused until an operator changes something.
            TextRejected: one of these texts is refused; smaller calls tell which.
        """
        ...

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); some models encode questions differently from documents."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of the text; an upper bound if the model's tokenizer is not installed."""
        ...


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Selection of the embedding model, and options of its calls."""

    provider: str = "minilm"
    """A key of `PROVIDERS`."""
    model: str = ""
    """Empty: the provider's own default."""
    dimensions: int | None = None
    """Length of the vectors, which the model must support; None: the model's usual length."""
    model_path: Path | None = None
    """A folder with another model, of ONNX or as Hugging Face's hub has it, instead of the shipped one."""
    batch_size: int | None = None
    """Most texts of one call; None: the provider's usual number."""
    base_url: str = ""
    """Address of a provider on the network; empty: the provider's public one."""
    api_key: str = field(default="", repr=False)
    """Key of a provider on the network; secret."""
    timeout: float = 30.0
    """Seconds one call may take."""
    device: str = "cpu"
    """cpu or cuda, for models that run here."""
    oversize: Oversize | None = None
    """Handling of documents longer than the model reads; None: the best one for the model."""
    max_tokens: int | None = None
    """Most tokens of a text that a service's model reads, if Larder does not know the model or the number differs."""
