"""Opening an embedder, and calling it safely: in pieces it can take, tried again shortly, its answer never trusted."""

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
    """The embedder the options name.

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
            f"embedding.oversize is cut, and the provider {options.provider} is not sent half a text",
            fix="use split or refuse, or leave it out",
        )
    embedder.limits = replace(embedder.limits, oversize=options.oversize or embedder.limits.oversize)
    return embedder


_NAMED = 10
"""How many bad texts a message names; `indexes` has them all."""
_HALVINGS = 4
"""How often a part is halved that a provider finds too long although it was counted as short enough."""
_AS_GOOD_AS_ONE = 1e-5
"""A vector whose length differs by less than half of this has length 1: halves keep three digits."""
_PLAIN = "harbour"
"""A text that every model has a vector for: what is answered to it tells whether a text is to blame or the service."""
_WRAPPING = 256
"""Bytes a provider's JSON may put around one text: model, task, width and punctuation."""


class TextsRejected(TextRejected):
    """The embedder refuses some of the texts; the others are good."""

    def __init__(self, message: str, *, indexes: Sequence[int], vectors: Vectors, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.indexes = tuple(indexes)
        """Positions in the texts given, counted from 0, ascending."""
        self.vectors = vectors
        """A row per text given, so that what was paid for the good ones is not lost; zeros for the bad."""


ATTEMPTS = Retrying(
    # Seconds only: longer waits are the ledger's business, where a worker is not held up by them.
    stop=stop_after_attempt(3),
    wait=wait_exponential(multiplier=0.5) + wait_random(0, 0.5),
    retry=retry_if_exception(lambda e: isinstance(e, EmbedderUnavailable) and e.retry_after is None),
    reraise=True,
)


def normalised(rows: NDArray[np.floating[Any]]) -> Vectors:
    """The rows at length 1; what has no length, or is no table, stays as it is, for the caller to refuse."""
    if rows.ndim != 2:  # noqa: PLR2004 - rows and columns
        return rows.astype(np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as that
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, np.newaxis]
        usable = np.isfinite(lengths) & (lengths > 0.0)
        vectors: Vectors = (rows / np.where(usable, lengths, 1.0)).astype(np.float32)
    return vectors


def embed_checked(embedder: Embedder, texts: Sequence[str], *, attempts: Retrying = ATTEMPTS) -> Vectors:
    """One finite vector of length 1 per text, in order, in as many calls as the limits ask for.

    A text too long for the model is embedded in parts, and its vector is their mean, each part counted by its
    tokens; or it is refused, or left to the model to cut: `limits.oversize` says which. A call that finds the
    embedder unavailable, or an answer without a usable vector for each text, is tried as `attempts` says: three times
    within 3 seconds, unless the embedder says when to come back. An answer that stays wrong is asked for by halves,
    so that only those texts are refused that have none by themselves while others have.

    Raises:
        TextsRejected: some texts are refused or have no usable vector; `indexes` says which.
        EmbedderUnavailable: may work later.
        EmbedderRefused: key, model or plan are refused.
        ConfigurationError: the vectors have another length than the embedder's dimensions.
        AnswerMalformed: no text at all gets a usable vector; it may later.
    """
    request = _Request(embedder, embedder.limits, embedder.embed_documents, len(texts), attempts)
    vectors = request.vectors([composed(text) for text in texts])
    if request.bad:
        indexes = sorted(request.bad)
        numbers, first = first_names(indexes, _NAMED), request.bad[indexes[0]]
        raise TextsRejected(
            f"{embedder.model} refuses {len(indexes)} of {plural(len(texts), 'text')}, no. {numbers} from 0: "
            f"{first.message}",
            indexes=indexes,
            vectors=vectors,
            fix=first.fix,
        )
    return vectors


def embed_query_checked(embedder: Embedder, text: str) -> Vectors:
    """The question's vector, finite and of length 1, shape (dimensions,).

    A question too long for the model is never refused: it is asked in parts where `limits.oversize` would refuse
    a document. It is tried once: somebody waits for it, and can be answered by words alone.

    Raises:
        EmbeddingError: and its kinds, as `embed_checked`; TextRejected for this text.
        ConfigurationError: the vector has another length than the embedder's dimensions.
    """
    text = composed(text)
    if embedder.limits.oversize == "cut" and embedder.limits.empty:
        # One call whatever its length, and nothing to count: nearly every such model gives length 1 by itself.
        row = embedder.embed_query(text)
        known = row.shape == (embedder.dimensions,) and row.dtype == np.float32
        if known and abs(row.dot(row) - 1.0) < _AS_GOOD_AS_ONE:
            return row
    limits = replace(embedder.limits, texts=1)
    if limits.oversize == "refuse":
        limits = replace(limits, oversize="split")
    request = _Request(embedder, limits, lambda part: embedder.embed_query(part[0])[np.newaxis], 1)
    vector: Vectors = request.vectors([text])[0]
    if request.bad:
        raise request.bad[0]
    return vector


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A whole text, or a part of one that is too long."""

    text: str
    owner: int
    """Position of the text it belongs to."""
    tokens: int
    bytes: int
    halved: int = 0


class _Request:
    """What one caller wants, which may take many calls of the embedder."""

    def __init__(
        self,
        embedder: Embedder,
        limits: EmbedderLimits,
        ask: Callable[[list[str]], Vectors],
        texts: int,
        attempts: Retrying | None = None,
    ) -> None:
        """Without `attempts` each call is tried once, and a malformed answer is passed on: somebody waits."""
        self.embedder = embedder
        self.limits = limits
        self.ask = ask
        self.attempts = attempts
        self.sums = np.zeros((texts, embedder.dimensions), dtype=np.float32)
        """A row per text, where the vectors of its parts are added up."""
        self.bad: dict[int, TextRejected] = {}
        """Position of a refused text -> why."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """A row per text, those of `bad` texts zeros."""
        parts = [part for at, text in enumerate(texts) for part in self._parts(text, at)]
        for batch in _batches(parts, self.limits):
            self._add(batch)
        self.sums[list(self.bad)] = 0.0
        for at in np.flatnonzero(~self.sums.any(axis=1)):
            self.bad.setdefault(int(at), _unusable())
        return normalised(self.sums)

    def _parts(self, text: str, at: int) -> list[_Part]:
        """The text as it is sent; nothing if it is refused without asking."""
        if not self.limits.empty and (not text or text.isspace()):
            self.bad[at] = TextRejected(
                "a text of nothing but white space has no vector here", fix="leave this text out"
            )
            return []
        if self.limits.oversize == "cut":  # nothing to decide, so that nothing need be counted
            return [_Part(text=text, owner=at, tokens=0, bytes=0)]
        whole = self._part(text, at)
        times = self._excess(whole)
        if times <= 1:
            return [whole]
        if self.limits.oversize == "refuse":
            self.bad[at] = TextTooLong(
                f"a text of {whole.tokens} tokens and {whole.bytes} bytes is {times:.1f} times as long as "
                f"{self.embedder.model} takes",
                fix="set embedding.oversize to split, or chunk documents smaller",
            )
            return []
        return [self._part(part, at) for part in in_parts(text, lambda t: self._excess(self._part(t, at)))]

    def _part(self, text: str, at: int) -> _Part:
        # Escaped to ASCII, JSON is longest; a provider's client may do it.
        size = len(json.dumps(text)) + _WRAPPING if self.limits.bytes else 0
        return _Part(text=text, owner=at, tokens=self.embedder.count_tokens(text), bytes=size)

    def _excess(self, part: _Part) -> float:
        """How many times as long as allowed it is."""
        times = part.tokens / min(self.limits.tokens_per_text, self.limits.tokens or part.tokens or 1)
        return max(times, part.bytes / self.limits.bytes) if self.limits.bytes else times

    def _add(self, parts: Sequence[_Part]) -> None:
        """Ask for these parts' vectors and add them up; refused texts are noted in `bad`."""
        parts = [part for part in parts if part.owner not in self.bad]
        if not parts:
            return
        try:
            texts = [part.text for part in parts]
            rows = self.attempts(self._answered, texts) if self.attempts else self._answered(texts)
        except (TextRejected, AnswerMalformed) as error:
            self._isolate(parts, error)
            return
        lengths = np.einsum("ij,ij->i", rows, rows)
        for place in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0.0))):
            self.bad[parts[place].owner] = _unusable()
            rows[place] = 0.0
        rows *= np.array([max(part.tokens, 1) for part in parts], dtype=np.float32)[:, np.newaxis]
        np.add.at(self.sums, [part.owner for part in parts], rows)

    def _answered(self, texts: list[str]) -> Vectors:
        """A vector for each text, as one answer gives them, finite if it can be asked for again."""
        rows = np.asarray(self.ask(texts), dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(texts):  # noqa: PLR2004 - rows and columns
            raise AnswerMalformed(
                f"{self.embedder.model} answers {plural(len(texts), 'text')} with an array of shape {rows.shape}",
                fix="if it lasts, check that the provider's address serves this model's embeddings",
            )
        if rows.shape[1] != self.embedder.dimensions:
            raise ConfigurationError(
                f"{self.embedder.model} gives {rows.shape[1]} dimensions, configured are {self.embedder.dimensions}",
                fix=f"set embedding.dimensions to {rows.shape[1]} and rebuild the index",
            )
        rows = normalised(rows)
        if self.attempts and not np.isfinite(rows).all():
            raise AnswerMalformed(f"{self.embedder.model} answers with a vector that is not finite")
        return rows

    def _isolate(self, parts: Sequence[_Part], error: TextRejected | AnswerMalformed) -> None:
        """Smaller calls tell which text is meant; one that is only too long is cut once more.

        A text without a usable vector is to blame only if another text has one.
        """
        if len(parts) > 1:
            middle = len(parts) // 2
            self._add(parts[:middle])
            self._add(parts[middle:])
            return
        part = parts[0]
        if isinstance(error, AnswerMalformed):
            if self.attempts is None:
                raise error
            if not self.sums.any():
                self._answered([_PLAIN])
            error = _unusable()
        smaller = halves(part.text) if isinstance(error, TextTooLong) and part.halved < _HALVINGS else []
        if len(smaller) < 2 or self.limits.oversize == "refuse":  # noqa: PLR2004 - cut, or not
            self.bad[part.owner] = error
            return
        for text in smaller:
            self._add([replace(self._part(text, part.owner), halved=part.halved + 1)])


def _batches(parts: Sequence[_Part], limits: EmbedderLimits) -> Iterator[list[_Part]]:
    """In order, each as large as the limits allow."""
    batch: list[_Part] = []
    tokens = size = 0
    for part in parts:
        tokens, size = tokens + part.tokens, size + part.bytes
        full = len(batch) == limits.texts
        if batch and (full or tokens > (limits.tokens or tokens) or size > (limits.bytes or size)):
            yield batch
            batch, tokens, size = [], part.tokens, part.bytes
        batch.append(part)
    if batch:
        yield batch


def _unusable() -> TextRejected:
    return TextRejected(
        "its vector is not finite or has no length", fix="leave this text out, or use another model"
    )


_PLACES = tuple(re.compile(p) for p in (r"\n\s*\n", r"\n", r"[.!?;:]\s", r"\s", r"(?<=\W)(?=\w)"))
"""Where a cut does least harm, best first: behind a paragraph, a line, a sentence, a word, at a word's start."""
_REACH = 8
"""A place is looked for in the last eighth of what fits: parts should be full, the first above all."""


def in_parts(text: str, excess: Callable[[str], float]) -> list[str]:
    """The text in order, each part as long as fits and cut where it does least harm.

    `excess` says how many times as long as allowed a text is; at most 1 means that it fits. Parts of nothing but
    white space are left out, unless there is nothing else. A single character that does not fit is a part all the
    same: who sends it will hear.
    """
    parts = []
    at, guess = 0, max(1, int(len(text) / max(1.0, excess(text))))
    while at < len(text):
        # Looks at little more than what one part can take, so that the work grows with the text and not its square.
        part = _longest(text[at : at + 2 * guess], excess)
        parts.append(part)
        at, guess = at + len(part), len(part)
    return [part for part in parts if not part.isspace()] or parts[:1]


def halves(text: str) -> list[str]:
    """Two parts of about one length; one, if nothing is left to cut."""
    cut = _place(text, len(text) // 2 + len(text) // (2 * _REACH))
    return [part for part in (text[:cut], text[cut:]) if part and not part.isspace()] or [text]


def _longest(text: str, excess: Callable[[str], float]) -> str:
    """About as much of the text's beginning as fits."""
    while (times := excess(text)) > 1 and len(text) > 1:
        text = text[: _place(text, min(len(text) - 1, int(len(text) / times)))]
    return text


def _place(text: str, most: int) -> int:
    """The best place to cut at, not far before `most`; at least 1."""
    for place in _PLACES:
        found = [m.end() for m in place.finditer(text, most - most // _REACH, most)]
        if found:
            return max(1, found[-1])
    return max(1, most)
