"""Reranking of the best candidates by cross-encoders, which read query and text as one pair."""

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
    """The reranker failed or took too long; the ranking without it is used."""

    transient = True


class TimeLimit:
    """Time limit of one query, in seconds from construction."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Remaining seconds.

        Raises:
            RerankerUnavailable: the time is up.
        """
        seconds = self._end - self._clock()
        if seconds <= 0:
            raise self.spent()
        return seconds

    def spent(self) -> RerankerUnavailable:
        """The error for an exceeded limit."""
        return RerankerUnavailable(
            f"the reranker did not finish within {self.seconds:g} s",
            fix="lower retrieval.rerank.candidates, take a smaller model, or give it more time",
        )


class Reranker(Protocol):
    """A model that scores pairs of query and text."""

    name: str

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score of each text for the query, 0 to 1, in the order of the texts.

        Raises:
            RerankerUnavailable: the model failed, or the time is up; the caller continues without it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RerankOptions:
    """Model, number of candidates and time limit of reranking."""

    enabled: bool = False
    provider: str = ""
    """A key of `PROVIDERS`; empty: `onnx` if there is a `model_path`, else `sentence-transformers`."""
    model: str = "cross-encoder/ms-marco-MiniLM-L-6-v2"
    model_path: Path | None = None
    """A folder with `model.onnx` and `tokenizer.json`, or with the files of Hugging Face's hub."""
    candidates: int = 30
    """Candidates to rerank; later ones keep their places."""
    batch_size: int = 10
    """Pairs of query and text per call of the model."""
    seconds: float = 1.0
    """Time limit per query; a slower model is not waited for."""


MAX_TOKENS = 512
"""Maximum tokens of a pair, unless the tokenizer or the model's files set a lower one."""
_PROBE_SECONDS = 60
"""Time limit of the first pair, which is slower than later ones."""
_DEFAULTS = RerankOptions()


class FolderReranker:
    """Scores pairs with OpenVINO on one thread; loaded and checked on construction, thread-safe.

    Pairs are cut to the model's maximum tokens. The query gets at most half of them, so that a whole work item
    as a query leaves room for the text.
    """

    def __init__(
        self, folder: Path, options: RerankOptions = _DEFAULTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = folder.resolve().name
        self._options = options
        self._clock = clock
        self._model = open_model(folder, "retrieval.rerank", pairs=True)
        self._tokenizer, self._pad = open_tokenizer(folder)
        self.max_tokens = _longest(folder, self._tokenizer)
        self._tokenizer.no_truncation()
        self._marks: int = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        self._run(self._pairs("probe", ["probe"]), TimeLimit(_PROBE_SECONDS))

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score of each text for the query, 0 to 1, in order.

        Raises:
            RerankerUnavailable: OpenVINO failed, or the time is up; a running batch is not waited for.
            ModelMissing: the model answers with something else than one logit or two classes.
        """
        limit = TimeLimit(self._options.seconds, self._clock)
        pairs = self._pairs(query, texts)
        scores = np.zeros(len(pairs))
        # Sorted by length to reduce padding; scores return to their own places.
        order = sorted(range(len(pairs)), key=lambda place: len(pairs[place].ids))
        for start in range(0, len(order), self._options.batch_size):
            batch = order[start : start + self._options.batch_size]
            scores[batch] = self._run([pairs[place] for place in batch], limit)
        return list(map(float, scores))

    def _pairs(self, query: str, texts: Sequence[str]) -> list[Any]:
        """The tokens of query and text in the tokenizer's template for pairs."""
        room = self.max_tokens - self._marks
        query_tokens = self._tokenizer.encode(readable(query), add_special_tokens=False)
        query_tokens.truncate(max(1, room // 2))
        pairs = []
        for text in texts:
            # One by one: encode_batch starts threads and warns after a fork.
            read = self._tokenizer.encode(readable(text), add_special_tokens=False)
            read.truncate(max(1, room - len(query_tokens.ids)))
            pairs.append(self._tokenizer.post_process(query_tokens, read))
        return pairs

    def _run(self, pairs: Sequence[Any], limit: TimeLimit) -> NDArray[np.float64]:
        rows, types = [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]
        tokens = tokens_of(rows, self._pad, types, most=self.max_tokens)
        try:
            answer = self._model.run(tokens, limit.remaining())
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
    """Scores from 0 to 1: the sigmoid of one logit, or the share of the second of two classes, "relevant".

    A model that ends in a sigmoid is squashed twice, which keeps the order.
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
    """Maximum tokens of a pair: the lowest limit in the model's files."""
    token_limits = [MAX_TOKENS, (tokenizer.truncation or {}).get("max_length")]
    token_limits.append(read_json(folder / "tokenizer_config.json").get("model_max_length"))
    token_limits.append(read_json(folder / "config.json").get("max_position_embeddings"))
    return int(min(n for n in token_limits if isinstance(n, int | float) and n > 0))


class SentenceTransformerReranker:
    """Scores pairs by a `sentence_transformers.CrossEncoder`; checks the time limit between batches."""

    def __init__(
        self,
        model: Any,
        name: str,
        options: RerankOptions = _DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._model = model
        self._options = options
        self._clock = clock

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score of each text for the query, 0 to 1, in order.

        Raises:
            RerankerUnavailable: the model failed, or the time is up.
            ModelMissing: the model gives more than one number per pair.
        """
        limit = TimeLimit(self._options.seconds, self._clock)
        scores: list[float] = []
        for start in range(0, len(texts), self._options.batch_size):
            limit.remaining()
            batch = [(query, text) for text in texts[start : start + self._options.batch_size]]
            try:
                answer = self._model.predict(batch, batch_size=len(batch), show_progress_bar=False)
            except Exception as error:  # noqa: BLE001 - torch raises nothing narrower, and its message may quote texts
                raise RerankerUnavailable(f"{PACKAGE} failed with {type(error).__name__}") from None
            # Some models give logits, some the sigmoid of them; squashing either keeps the order.
            scores += _probabilities(answer, len(batch), self.name).tolist()
        return scores


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
"""Name -> factory, which imports its libraries only when called."""


def open_reranker(options: RerankOptions) -> Reranker | None:
    """Load the reranker of the options; None if reranking is off.

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
