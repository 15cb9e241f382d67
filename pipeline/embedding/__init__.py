"""Turning text into vectors: the port and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Shape (texts, dimensions), every row of length 1."""


@dataclass(frozen=True, kw_only=True)
class EmbedderLimits:
    """How much one call may carry."""

    texts: int = 256
    """Most texts of one call."""
    tokens_per_text: int = 256
    """What lies beyond is cut off by the model."""


class Embedder(Protocol):
    """One embedding model. Every implementation passes tests/contracts/test_embedder.py."""

    model: str
    dimensions: int
    limits: EmbedderLimits

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: may work later.
            TextRejected: one of these texts is refused; smaller calls tell which.
        """
        ...

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); some models encode questions differently from documents."""
        ...
