"""Calling an embedder safely: in pieces it can take, with one short retry, and never trusting its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from pipeline.embedding import Embedder, Vectors
from pipeline.errors import ConfigurationError, EmbedderUnavailable, EmbeddingError, TextRejected

_NAMED = 10
"""How many bad texts a message names; `indexes` has them all."""
_UNUSABLE = "its vector is not finite or has no length"


class TextsRejected(TextRejected):
    """The embedder refuses some of the texts; the others are good."""

    def __init__(self, message: str, *, indexes: Sequence[int], fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.indexes = tuple(indexes)
        """Positions in the texts given, counted from 0, ascending."""


def embed_checked(
    embedder: Embedder, texts: Sequence[str], *, sleep: Callable[[float], None] = time.sleep
) -> Vectors:
    """One finite vector of length 1 per text, in order, in as many calls as the limits ask for.

    A call that finds the embedder unavailable is tried three times within 3 seconds, unless the embedder says
    when to come back. `sleep` takes seconds.

    Raises:
        TextsRejected: some texts are refused or have no usable vector; `indexes` says which.
        EmbedderUnavailable: may work later.
        ConfigurationError: the vectors have another length than the embedder's dimensions.
        EmbeddingError: the answer has another number of vectors than there were texts.
    """
    call = _Call(embedder=embedder, sleep=sleep)
    size = embedder.limits.texts
    parts = [call.isolated(texts[at : at + size], at) for at in range(0, len(texts), size)]
    if call.bad:
        raise call.rejection(len(texts))
    return np.concatenate(parts) if parts else np.zeros((0, embedder.dimensions), dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One request of a caller, which may take many calls of the embedder."""

    embedder: Embedder
    sleep: Callable[[float], None]
    bad: dict[int, TextRejected] = field(default_factory=dict)
    """Position of a refused text -> why."""

    def isolated(self, texts: Sequence[str], at: int) -> Vectors:
        """Vectors of texts[at:]; refused texts are noted in `bad` and have a row of zeros."""
        try:
            vectors = self._retried(texts)
        except TextRejected as error:
            if len(texts) == 1:
                self.bad[at] = error
                return np.zeros((1, self.embedder.dimensions), dtype=np.float32)
            half = len(texts) // 2
            return np.concatenate([self.isolated(texts[:half], at), self.isolated(texts[half:], at + half)])
        return self._unit(_shaped(self.embedder, vectors, len(texts)), at)

    def rejection(self, count: int) -> TextsRejected:
        """The error that names every bad text by its number."""
        indexes = sorted(self.bad)
        numbers = ", ".join(str(n) for n in indexes[:_NAMED])
        first = self.bad[indexes[0]]
        more = f" and {len(self.bad) - _NAMED} more" if len(self.bad) > _NAMED else ""
        return TextsRejected(
            f"{self.embedder.model} refuses {len(self.bad)} of {count} texts, no. {numbers}{more} from 0: "
            f"{first.message}",
            indexes=indexes,
            fix=first.fix,
        )

    def _retried(self, texts: Sequence[str]) -> Vectors:
        """Seconds only: longer waits are the ledger's business, where a worker is not held up by them."""
        attempts = Retrying(
            stop=stop_after_attempt(3),
            wait=wait_exponential(multiplier=0.5) + wait_random(0, 0.5),
            retry=retry_if_exception(lambda e: isinstance(e, EmbedderUnavailable) and e.retry_after is None),
            sleep=self.sleep,
            reraise=True,
        )
        return attempts(self.embedder.embed_documents, texts)

    def _unit(self, vectors: Vectors, at: int) -> Vectors:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unusable = ~(np.isfinite(lengths) & (lengths > 0.0))
        for row in np.flatnonzero(unusable):
            self.bad[at + int(row)] = TextRejected(_UNUSABLE, fix="leave this text out, or use another model")
        unit: Vectors = (vectors / np.where(unusable, 1.0, lengths)).astype(np.float32)
        return unit


def _shaped(embedder: Embedder, vectors: Vectors, count: int) -> Vectors:
    """The answer as an array, if it has a row per text and a column per dimension."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count:  # noqa: PLR2004 - rows and columns
        raise EmbeddingError(
            f"{embedder.model} answers {count} texts with an array of shape {rows.shape}",
            fix="check that the provider's address serves this model's embeddings",
        )
    if rows.shape[1] != embedder.dimensions:
        raise ConfigurationError(
            f"{embedder.model} gives {rows.shape[1]} dimensions, configured are {embedder.dimensions}",
            fix=f"set embedding.dimensions to {rows.shape[1]} and rebuild the index",
        )
    return rows
