"""Opening an embedder, and calling it safely: within its limits, with short retries, and with checked answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from pipeline.documents.plain_text import composed, first_names, plural
from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderUnavailable,
    TextRejected,
    TextTooLong,
)

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
    """Open the embedder that the options name.

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
            f"embedding.oversize is cut, which the provider {options.provider} cannot do",
            fix="use split or refuse, or leave it out",
        )
    embedder.limits = replace(embedder.limits, oversize=options.oversize or embedder.limits.oversize)
    return embedder


_MOST_NAMED = 10
"""Most rejected texts that a message names; `indexes` has all of them."""
_HALVINGS = 4
"""Most halvings of a segment that a provider finds too long although its count of tokens fits."""
_LENGTH_TOLERANCE = 1e-5
"""Largest deviation of a squared length from 1 that needs no normalisation: 16-bit numbers keep three digits."""
_PROBE_TEXT = "harbour"
"""A text that every model has a vector for: its answer shows whether a rejected text or the service is the cause."""
_JSON_OVERHEAD_BYTES = 256
"""Bytes that a provider's JSON may add to one text: model, task, width and punctuation."""


class TextsRejected(TextRejected):
    """The embedder refuses some of the texts; the others have vectors."""

    def __init__(self, message: str, *, indexes: Sequence[int], vectors: Vectors, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.indexes = tuple(indexes)
        """Positions of the rejected texts, counted from 0, ascending."""
        self.vectors = vectors
        """A row per text, so that paid vectors are not lost; zeros for the rejected texts."""


ATTEMPTS = Retrying(
    # Seconds only: longer waits belong to the ledger, where they do not block a worker.
    stop=stop_after_attempt(3),
    wait=wait_exponential(multiplier=0.5) + wait_random(0, 0.5),
    retry=retry_if_exception(lambda e: isinstance(e, EmbedderUnavailable) and e.retry_after is None),
    reraise=True,
)


def normalised(rows: NDArray[np.floating[Any]]) -> Vectors:
    """Scale rows to length 1; rows without a finite length, and arrays that are no table, are left to the caller."""
    if rows.ndim != 2:  # noqa: PLR2004 - rows and columns
        return rows.astype(np.float32)
    with np.errstate(over="ignore"):  # overflows become infinite, and are refused for that
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, np.newaxis]
        usable = np.isfinite(lengths) & (lengths > 0.0)
        vectors: Vectors = (rows / np.where(usable, lengths, 1.0)).astype(np.float32)
    return vectors


def embed_checked(embedder: Embedder, texts: Sequence[str], *, attempts: Retrying = ATTEMPTS) -> Vectors:
    """Embed documents: one finite vector of length 1 per text, in order, in as many calls as the limits require.

    A text too long for the model is split into segments, and its vector is their mean, weighted by tokens; or it is
    refused, or cut by the model: `limits.oversize` decides. A call is repeated by `attempts` (three times within 3
    seconds) if the embedder is unavailable or its answer lacks a usable vector, unless the embedder sets
    `retry_after`. If the answer stays malformed, the texts are sent in halves, so that only those texts are refused
    that have no vector by themselves while others have one.

    Raises:
        TextsRejected: some texts are refused or have no usable vector; `indexes` says which.
        EmbedderUnavailable: may work later.
        EmbedderRefused: key, model or plan are refused.
        ConfigurationError: the vectors have another length than the embedder's dimensions.
        AnswerMalformed: no text at all gets a usable vector; it may work later.
    """
    request = _Request(embedder, embedder.limits, embedder.embed_documents, len(texts), attempts)
    vectors = request.vectors([composed(text) for text in texts])
    if request.rejected:
        indexes = sorted(request.rejected)
        numbers, first = first_names(indexes, _MOST_NAMED), request.rejected[indexes[0]]
        raise TextsRejected(
            f"{embedder.model} refuses {len(indexes)} of {plural(len(texts), 'text')}, no. {numbers} from 0: "
            f"{first.message}",
            indexes=indexes,
            vectors=vectors,
            fix=first.fix,
        )
    return vectors


def embed_query_checked(embedder: Embedder, text: str) -> Vectors:
    """Embed a query: its vector is finite and of length 1, shape (dimensions,).

    A query too long for the model is never refused: it is split where `limits.oversize` would refuse a document.
    The call is made once, since the caller waits and can fall back on keywords.

    Raises:
        EmbeddingError: as `embed_checked`; TextRejected for this text.
        ConfigurationError: the vector has another length than the embedder's dimensions.
    """
    text = composed(text)
    if embedder.limits.oversize == "cut" and embedder.limits.empty:
        # One call for any length, and nothing to count: nearly all such models return vectors of length 1.
        row = embedder.embed_query(text)
        well_formed = row.shape == (embedder.dimensions,) and row.dtype == np.float32
        if well_formed and abs(row.dot(row) - 1.0) < _LENGTH_TOLERANCE:
            return row
    limits = replace(embedder.limits, texts=1)
    if limits.oversize == "refuse":
        limits = replace(limits, oversize="split")
    request = _Request(embedder, limits, lambda texts: embedder.embed_query(texts[0])[np.newaxis], 1)
    vector: Vectors = request.vectors([text])[0]
    if request.rejected:
        raise request.rejected[0]
    return vector


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """A whole text, or a section of one that is too long for the model."""

    text: str
    text_index: int
    """Position of the text that the segment belongs to."""
    tokens: int
    bytes: int
    halved: int = 0


class _Request:
    """Embedding of a caller's texts, in one or more calls of the embedder."""

    def __init__(
        self,
        embedder: Embedder,
        limits: EmbedderLimits,
        ask: Callable[[list[str]], Vectors],
        texts: int,
        attempts: Retrying | None = None,
    ) -> None:
        """Without `attempts` each call is tried once, and a malformed answer is raised, since a caller waits."""
        self.embedder = embedder
        self.limits = limits
        self.ask = ask
        self.attempts = attempts
        self.sums = np.zeros((texts, embedder.dimensions), dtype=np.float32)
        """A row per text: the sum of its segments' vectors."""
        self.rejected: dict[int, TextRejected] = {}
        """Position of a rejected text -> the reason."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """A row per text; zeros for `rejected` texts."""
        segments = [segment for index, text in enumerate(texts) for segment in self._segments_of(text, index)]
        for batch in _batches(segments, self.limits):
            self._add(batch)
        self.sums[list(self.rejected)] = 0.0
        for row in np.flatnonzero(~self.sums.any(axis=1)):
            self.rejected.setdefault(int(row), _unusable())
        return normalised(self.sums)

    def _segments_of(self, text: str, index: int) -> list[_Segment]:
        """The text's segments as they are sent; none if the text is rejected without a call."""
        if not self.limits.empty and (not text or text.isspace()):
            self.rejected[index] = TextRejected(
                "this model has no vector for a text of white space only", fix="leave this text out"
            )
            return []
        if self.limits.oversize == "cut":  # nothing to decide, so nothing is counted
            return [_Segment(text=text, text_index=index, tokens=0, bytes=0)]
        whole = self._segment(text, index)
        excess = self._excess(whole)
        if excess <= 1:
            return [whole]
        if self.limits.oversize == "refuse":
            self.rejected[index] = TextTooLong(
                f"a text of {whole.tokens} tokens and {whole.bytes} bytes is {excess:.1f} times as long as "
                f"{self.embedder.model} takes",
                fix="set embedding.oversize to split, or chunk documents smaller",
            )
            return []
        segments = split_text(text, lambda segment: self._excess(self._segment(segment, index)))
        return [self._segment(segment, index) for segment in segments]

    def _segment(self, text: str, index: int) -> _Segment:
        # JSON is longest with non-ASCII characters escaped, as some providers' clients do.
        size = len(json.dumps(text)) + _JSON_OVERHEAD_BYTES if self.limits.bytes else 0
        return _Segment(text=text, text_index=index, tokens=self.embedder.count_tokens(text), bytes=size)

    def _excess(self, segment: _Segment) -> float:
        """Length of the segment relative to the limits; at most 1 if it fits."""
        excess = segment.tokens / min(self.limits.tokens_per_text, self.limits.tokens or segment.tokens or 1)
        return max(excess, segment.bytes / self.limits.bytes) if self.limits.bytes else excess

    def _add(self, segments: Sequence[_Segment]) -> None:
        """Embed the segments and add up their vectors; rejected texts are recorded in `rejected`."""
        segments = [segment for segment in segments if segment.text_index not in self.rejected]
        if not segments:
            return
        try:
            texts = [segment.text for segment in segments]
            rows = self.attempts(self._call, texts) if self.attempts else self._call(texts)
        except (TextRejected, AnswerMalformed) as error:
            self._isolate(segments, error)
            return
        lengths = np.einsum("ij,ij->i", rows, rows)
        for row in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0.0))):
            self.rejected[segments[row].text_index] = _unusable()
            rows[row] = 0.0
        rows *= np.array([max(segment.tokens, 1) for segment in segments], dtype=np.float32)[:, np.newaxis]
        np.add.at(self.sums, [segment.text_index for segment in segments], rows)

    def _call(self, texts: list[str]) -> Vectors:
        """Call the embedder once: a vector for each text, checked to be finite if the call can be repeated."""
        rows = np.asarray(self.ask(texts), dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(texts):  # noqa: PLR2004 - rows and columns
            raise AnswerMalformed(
                f"{self.embedder.model} answers {plural(len(texts), 'text')} with an array of shape {rows.shape}",
                fix="if it persists, check that the provider's address serves this model's embeddings",
            )
        if rows.shape[1] != self.embedder.dimensions:
            raise ConfigurationError(
                f"{self.embedder.model} gives {rows.shape[1]} dimensions instead of {self.embedder.dimensions}",
                fix=f"set embedding.dimensions to {rows.shape[1]} and rebuild the index",
            )
        rows = normalised(rows)
        if self.attempts and not np.isfinite(rows).all():
            raise AnswerMalformed(f"{self.embedder.model} answers with a vector that is not finite")
        return rows

    def _isolate(self, segments: Sequence[_Segment], error: TextRejected | AnswerMalformed) -> None:
        """Find the rejected text by smaller calls; one that is only too long is split again.

        A text without a usable vector is rejected only if another text has one.
        """
        if len(segments) > 1:
            middle = len(segments) // 2
            self._add(segments[:middle])
            self._add(segments[middle:])
            return
        segment = segments[0]
        if isinstance(error, AnswerMalformed):
            if self.attempts is None:
                raise error
            if not self.sums.any():
                self._call([_PROBE_TEXT])
            error = _unusable()
        smaller = (
            halves(segment.text) if isinstance(error, TextTooLong) and segment.halved < _HALVINGS else []
        )
        if len(smaller) < 2 or self.limits.oversize == "refuse":  # noqa: PLR2004 - cut, or not
            self.rejected[segment.text_index] = error
            return
        for text in smaller:
            self._add([replace(self._segment(text, segment.text_index), halved=segment.halved + 1)])


def _batches(segments: Sequence[_Segment], limits: EmbedderLimits) -> Iterator[list[_Segment]]:
    """Group segments in order, each batch as large as the limits allow."""
    batch: list[_Segment] = []
    tokens = size = 0
    for segment in segments:
        tokens, size = tokens + segment.tokens, size + segment.bytes
        full = len(batch) == limits.texts
        if batch and (full or tokens > (limits.tokens or tokens) or size > (limits.bytes or size)):
            yield batch
            batch, tokens, size = [], segment.tokens, segment.bytes
        batch.append(segment)
    if batch:
        yield batch


def _unusable() -> TextRejected:
    return TextRejected(
        "its vector is not finite or has no length", fix="leave this text out, or use another model"
    )


_CUT_PATTERNS = tuple(re.compile(p) for p in (r"\n\s*\n", r"\n", r"[.!?;:]\s", r"\s", r"(?<=\W)(?=\w)"))
"""Preferred positions of a cut, best first: after a paragraph, line, sentence or word, or at a word's start."""
_SEARCHED_SHARE = 8
"""Inverse share of a segment that is searched for a cut: the last eighth, since segments should be full."""


def split_text(text: str, excess: Callable[[str], float]) -> list[str]:
    """Split a text into segments, each as long as fits and cut at a preferred position.

    `excess` is the length of a text relative to the limit; at most 1 means that it fits. Segments of white space only
    are left out, unless there is nothing else. A single character that does not fit is still a segment: the
    embedder refuses it.
    """
    segments = []
    position, guess = 0, max(1, int(len(text) / max(1.0, excess(text))))
    while position < len(text):
        # Only a little more than one segment is examined, so that the work does not grow with the square of the text.
        segment = _longest(text[position : position + 2 * guess], excess)
        segments.append(segment)
        position, guess = position + len(segment), len(segment)
    return [segment for segment in segments if not segment.isspace()] or segments[:1]


def halves(text: str) -> list[str]:
    """Split a text into two halves of about equal length; one if it cannot be split."""
    cut = _cut_position(text, len(text) // 2 + len(text) // (2 * _SEARCHED_SHARE))
    return [half for half in (text[:cut], text[cut:]) if half and not half.isspace()] or [text]


def _longest(text: str, excess: Callable[[str], float]) -> str:
    """The longest beginning of the text, approximately, that fits."""
    while (excess_ratio := excess(text)) > 1 and len(text) > 1:
        text = text[: _cut_position(text, min(len(text) - 1, int(len(text) / excess_ratio)))]
    return text


def _cut_position(text: str, most: int) -> int:
    """Position of the best cut shortly before `most`; at least 1."""
    for pattern in _CUT_PATTERNS:
        positions = [m.end() for m in pattern.finditer(text, most - most // _SEARCHED_SHARE, most)]
        if positions:
            return max(1, positions[-1])
    return max(1, most)
