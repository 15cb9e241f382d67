"""A second, closer look at the best results: the port, its options, and the table of rerankers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.errors import ConfigurationError, SearchError


class RerankerUnavailable(SearchError):
    """The reranker failed or took too long; the ranking before it still stands."""

    transient = True


class TimeLimit:
    """The seconds that one question may take; they run from the moment this is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds that are left.

        Raises:
            RerankerUnavailable: none are.
        """
        left = self._end - self._clock()
        if left <= 0:
            raise self.spent()
        return left

    def spent(self) -> RerankerUnavailable:
        """The error that says so."""
        return RerankerUnavailable(
            f"the reranker did not finish within {self.seconds:g} s",
            fix="lower retrieval.rerank.candidates, take a smaller model, or give it more time",
        )


class Reranker(Protocol):
    """One model that reads a question and a text together."""

    name: str

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question, 0 to 1, in the order of the texts.

        Raises:
            RerankerUnavailable: it failed, or its time is up; the caller goes on without it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RerankOptions:
    """Which model looks again, at how many results, for how long."""

    enabled: bool = False
    provider: str = ""
    """A key of `PROVIDERS`; empty: `onnx` if there is a `model_path`, else `sentence-transformers`."""
    model: str = "cross-encoder/ms-marco-MiniLM-L-6-v2"
    model_path: Path | None = None
    """A folder with `model.onnx` and `tokenizer.json`."""
    candidates: int = 30
    """Results looked at; those behind them keep their places."""
    batch_size: int = 10
    """Pairs of question and text in one call of the model."""
    seconds: float = 1.0
    """For one question; a slower answer is given up."""


def _open_onnx(options: RerankOptions) -> Reranker:
    from pipeline.reranking.cross_encoder import OnnxReranker

    if options.model_path is None:
        raise ConfigurationError(
            f"no model is shipped for retrieval.rerank, and {options.model!r} is no folder",
            fix="set it to a folder with the model's model.onnx and tokenizer.json",
        )
    return OnnxReranker(options.model_path, options)


def _open_sentence_transformers(options: RerankOptions) -> Reranker:
    from pipeline.embedding.providers.transformers import load
    from pipeline.reranking.cross_encoder import SentenceTransformerReranker

    name = str(options.model_path or options.model)
    model = load(
        "CrossEncoder",
        name,
        setting=f"retrieval.rerank.model is {name!r}",
        instead="name a folder with model.onnx and tokenizer.json",
    )
    return SentenceTransformerReranker(model, name, options)


PROVIDERS: Mapping[str, Callable[[RerankOptions], Reranker]] = {
    "onnx": _open_onnx,
    "sentence-transformers": _open_sentence_transformers,
}
"""Name -> what builds it; each entry imports its libraries only when it is called."""


def open_reranker(options: RerankOptions) -> Reranker | None:
    """The reranker the options name, loaded; None if they switch it off.

    Raises:
        ConfigurationError: unknown provider, or a package that is not installed.
        ModelMissing: the model's files are absent or no cross-encoder.
    """
    if not options.enabled:
        return None
    provider = options.provider or ("onnx" if options.model_path else "sentence-transformers")
    build = PROVIDERS.get(provider)
    if build is None:
        raise ConfigurationError(
            f"the provider of retrieval.rerank is {provider!r}", fix=f"use one of {', '.join(PROVIDERS)}"
        )
    return build(options)
