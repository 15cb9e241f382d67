"""A second, closer look at the best results by cross-encoders, which read question and text as one pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding import readable
from pipeline.embedding.bert import read_json
from pipeline.embedding.model_folder import open_model, open_tokenizer, tokens_of
from pipeline.embedding.providers.transformers import PACKAGE, load
from pipeline.errors import ConfigurationError, ModelMissing, SearchError


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
    """A folder with `model.onnx` and `tokenizer.json`, or with the files of Hugging Face's hub."""
    candidates: int = 30
    """Results looked at; those behind them keep their places."""
    batch_size: int = 10
    """Pairs of question and text in one call of the model."""
    seconds: float = 1.0
    """For one question; a slower answer is given up."""


MOST_TOKENS = 512
"""Longest pair, if neither the tokenizer nor the model's own files ask for a shorter one."""
_PROBE_SECONDS = 60
"""For the first pair of all, whose time is no sign of what a question takes."""
_USUAL = RerankOptions()


class FolderReranker:
    """Scores pairs on one thread; loaded and checked on construction, safe to share between threads.

    Reads at most as many tokens as the model takes. The question gets no more than half of them, so that a whole
    work item as a question leaves room for the text.
    """

    def __init__(
        self, folder: Path, options: RerankOptions = _USUAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = folder.resolve().name
        self._options = options
        self._clock = clock
        self._model = open_model(folder, "retrieval.rerank", pairs=True)
        self._tokenizer, self._pad = open_tokenizer(folder)
        self.most_tokens = _longest(folder, self._tokenizer)
        self._tokenizer.no_truncation()
        self._marks: int = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        self._run(self._pairs("probe", ["probe"]), TimeLimit(_PROBE_SECONDS))

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question, 0 to 1, in order.

        Raises:
            RerankerUnavailable: OpenVINO failed, or the time is up; a running batch is not waited for.
            ModelMissing: the model answers with something else than one logit or two classes.
        """
        limit = TimeLimit(self._options.seconds, self._clock)
        pairs = self._pairs(query, texts)
        found = np.zeros(len(pairs))
        # By length, so that little is padded; each score returns to its own place.
        order = sorted(range(len(pairs)), key=lambda place: len(pairs[place].ids))
        for start in range(0, len(order), self._options.batch_size):
            batch = order[start : start + self._options.batch_size]
            found[batch] = self._run([pairs[place] for place in batch], limit)
        return list(map(float, found))

    def _pairs(self, query: str, texts: Sequence[str]) -> list[Any]:
        """The tokens of question and text in the tokenizer's own template for pairs."""
        room = self.most_tokens - self._marks
        asked = self._tokenizer.encode(readable(query), add_special_tokens=False)
        asked.truncate(max(1, room // 2))
        pairs = []
        for text in texts:
            # One by one on purpose: encode_batch starts threads of its own and complains after a fork.
            read = self._tokenizer.encode(readable(text), add_special_tokens=False)
            read.truncate(max(1, room - len(asked.ids)))
            pairs.append(self._tokenizer.post_process(asked, read))
        return pairs

    def _run(self, pairs: Sequence[Any], limit: TimeLimit) -> NDArray[np.float64]:
        rows, types = [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]
        tokens = tokens_of(rows, self._pad, types, most=self.most_tokens)
        try:
            answer = self._model.run(tokens, limit.left())
        except TimeoutError:
            raise limit.spent() from None
        except (RuntimeError, IndexError) as error:
            raise RerankerUnavailable(
                f"OpenVINO failed with {type(error).__name__}",
                fix="check that tokenizer.json belongs to the model",
                cause=error,
            ) from error
        return _probabilities(answer, len(pairs), self.name)


def _probabilities(answer: Any, rows: int, name: str) -> NDArray[np.float64]:
    """0 to 1: of one logit its sigmoid, of two classes the share of the second, "relevant".

    A model that ends in a sigmoid of its own is squashed once more, which changes no order.
    """
    numbers = np.asarray(answer, dtype=np.float64)
    columns = numbers.reshape(rows, -1) if numbers.size and numbers.shape[0] == rows else numbers
    if columns.shape not in {(rows, 1), (rows, 2)}:
        raise ModelMissing(
            f"{name} answers {rows} pairs with the shape {numbers.shape}",
            fix="use a cross-encoder with one score, or two classes, per pair",
        )
    logits = columns[:, 0] if columns.shape[1] == 1 else columns[:, 1] - columns[:, 0]
    with np.errstate(over="ignore"):
        squashed: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-logits))
    if not np.isfinite(squashed).all():
        raise RerankerUnavailable(f"the reranker {name} gives a score that is no number")
    return squashed


def _longest(folder: Path, tokenizer: Any) -> int:
    """The most tokens of a pair: the least that any of the model's files asks for."""
    asked = [MOST_TOKENS, (tokenizer.truncation or {}).get("max_length")]
    asked.append(read_json(folder / "tokenizer_config.json").get("model_max_length"))
    asked.append(read_json(folder / "config.json").get("max_position_embeddings"))
    return int(min(n for n in asked if isinstance(n, int | float) and n > 0))


class SentenceTransformerReranker:
    """Scores pairs by a `sentence_transformers.CrossEncoder`; looks at the time between two batches."""

    def __init__(
        self,
        model: Any,
        name: str,
        options: RerankOptions = _USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._model = model
        self._options = options
        self._clock = clock

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question, 0 to 1, in order.

        Raises:
            RerankerUnavailable: the model failed, or the time is up.
            ModelMissing: the model gives more than one number per pair.
        """
        limit = TimeLimit(self._options.seconds, self._clock)
        found: list[float] = []
        for start in range(0, len(texts), self._options.batch_size):
            limit.left()
            batch = [(query, text) for text in texts[start : start + self._options.batch_size]]
            try:
                answer = self._model.predict(batch, batch_size=len(batch), show_progress_bar=False)
            except Exception as error:  # noqa: BLE001 - torch raises nothing narrower, and its message may quote texts
                raise RerankerUnavailable(f"{PACKAGE} failed with {type(error).__name__}") from None
            # Some models give logits, some the sigmoid of them; squashing either keeps the order.
            found += _probabilities(answer, len(batch), self.name).tolist()
        return found


def _open_onnx(options: RerankOptions) -> Reranker:
    if options.model_path is None:
        raise ConfigurationError(
            f"no model is shipped for retrieval.rerank, and {options.model!r} is no folder",
            fix="set it to a folder with the model's files",
        )
    return FolderReranker(options.model_path, options)


def _open_sentence_transformers(options: RerankOptions) -> Reranker:
    name = str(options.model_path or options.model)
    model = load(
        "CrossEncoder",
        name,
        setting=f"retrieval.rerank.model is {name!r}",
        instead="name a folder with the model's files",
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
