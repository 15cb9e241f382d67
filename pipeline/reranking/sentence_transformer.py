"""A cross-encoder by name, through the package sentence-transformers, which is an extra."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pipeline.errors import ConfigurationError, ModelMissing
from pipeline.reranking import RerankerUnavailable
from pipeline.reranking.budget import Budget

PACKAGE = "sentence-transformers"


class Predictor(Protocol):
    """What is used of `sentence_transformers.CrossEncoder`."""

    def predict(self, sentences: list[tuple[str, str]], **options: Any) -> Any:
        """One number per pair of question and text."""
        ...


class SentenceTransformer:
    """Scores pairs batch by batch; the time is looked at between two batches."""

    def __init__(
        self,
        model: Predictor,
        *,
        name: str,
        batch_size: int = 10,
        seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._model = model
        self._batch_size = batch_size
        self._seconds = seconds
        self._clock = clock

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question, 0 to 1, in order.

        Raises:
            RerankerUnavailable: the model failed, or the time is up.
            ModelMissing: the model gives more than one number per pair.
        """
        budget = Budget(self._seconds, self._clock)
        found: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            budget.left()
            found += self._batch(query, texts[start : start + self._batch_size])
        return found

    def _batch(self, query: str, texts: Sequence[str]) -> list[float]:
        try:
            answer = self._model.predict(
                [(query, text) for text in texts], batch_size=len(texts), show_progress_bar=False
            )
        except Exception as error:  # noqa: BLE001 - torch raises nothing narrower, and its message may quote texts
            raise RerankerUnavailable(f"{PACKAGE} failed with {type(error).__name__}") from None
        numbers = np.asarray(answer, dtype=np.float64)
        if numbers.shape != (len(texts),):
            raise ModelMissing(
                f"{self.name} answers {len(texts)} pairs with the shape {numbers.shape}",
                fix="use a cross-encoder with one score per pair",
            )
        if not np.isfinite(numbers).all():
            raise RerankerUnavailable(f"the reranker {self.name} gives a score that is no number")
        # Some models give logits, some the sigmoid of them; squashing either keeps the order.
        return [float(score) for score in 1.0 / (1.0 + np.exp(-numbers))]


def load(name: str) -> Predictor:
    """The model of this name or folder; a name that is not on this machine yet is downloaded by the package.

    Raises:
        ConfigurationError: the package is not installed.
        ModelMissing: there is no such model.
    """
    try:
        from sentence_transformers import CrossEncoder  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ConfigurationError(
            f"retrieval.rerank.model is {name!r}, which needs the package {PACKAGE}",
            fix=f"pip install {PACKAGE}, or name a folder with model.onnx and tokenizer.json",
        ) from None
    try:
        model: Predictor = CrossEncoder(name)
    except Exception as error:
        raise ModelMissing(
            f"{PACKAGE} cannot load {name}: {type(error).__name__}",
            fix="check the name, or download the model to a folder first",
            cause=error,
        ) from error
    return model
