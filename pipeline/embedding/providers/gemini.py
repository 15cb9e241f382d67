"""Gemini's embedding models, through google-genai: a client that keeps its time, and its errors in our words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors, readable
from pipeline.embedding.calls import normalised
from pipeline.embedding.known_models import KNOWN, refuse_misfits
from pipeline.embedding.providers import http_service
from pipeline.embedding.token_bound import most_tokens
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    TextRejected,
    TextTooLong,
)
from pipeline.errors.http_rules import duration, retry_after

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError

FACTS = KNOWN["gemini"]
MOST_BYTES = 4 * 2**20
"""Of one call, names and punctuation included."""
DAY_QUOTA_PAUSE = 3600.0
"""Seconds to stay away when a day's quota is spent: whose midnight ends the day is not told."""
LONGEST_PAUSE = 86_400.0


def open_provider(options: EmbeddingOptions) -> Embedder:
    """The service's model that the options name; until the first call nothing is imported and nobody contacted."""
    return GeminiEmbedder(replace(options, model=options.model.removeprefix("models/")))


class GeminiEmbedder:
    """Vectors by Google's service.

    Documents and questions are encoded differently. Safe to share between threads, and after a fork each process
    opens a client of its own.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        """Takes model, dimensions, key, address, timeout and batch size from the options.

        Raises:
            ConfigurationError: no key, or a model or dimensions that Gemini does not have.
        """
        refuse_misfits(options)
        self.model = FACTS.named(options.model)
        self.dimensions = FACTS.dimensions_of(self.model, options.dimensions) or 0
        self._facts = FACTS.facts_of(options)
        prefixes = (self._facts.document_prefix, self._facts.query_prefix)
        self.limits = EmbedderLimits(
            texts=options.batch_size or FACTS.most_texts,
            tokens_per_text=(options.max_tokens or self._facts.tokens) - max(map(most_tokens, prefixes)),
            bytes=MOST_BYTES,
            empty=False,
        )
        self._client = http_service.PerProcess(
            lambda: open_client(options.api_key, options.base_url, options.timeout)
        )

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: down, busy, too slow, or an answer that cannot be read.
            EmbedderRefused: key, plan or model.
            TextTooLong: one of these texts may be longer than the model reads.
            TextRejected: one of these texts is refused.
        """
        return self._embed(texts, "RETRIEVAL_DOCUMENT", self._facts.document_prefix)

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,), encoded as a question."""
        vector: Vectors = self._embed([text], "RETRIEVAL_QUERY", self._facts.query_prefix)[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """Never fewer than it has: Gemini cuts a text without a word, and its tokenizer is not here."""
        return most_tokens(text)

    def _embed(self, texts: Sequence[str], task: str, prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        most, longest = self.limits.tokens_per_text, max(map(most_tokens, texts))
        if longest > most:
            raise TextTooLong(
                f"a text may have {longest} tokens, and {self.model} would read {most} without a word",
                fix="embed it in parts",
            )
        from google.genai import types

        # Of a list of plain strings the newer models make one content, and one vector.
        contents: list[types.ContentUnion] = [
            types.Content(parts=[types.Part(text=prefix + readable(text))]) for text in texts
        ]
        # A model that is told the task by a prefix pays no heed to a task type.
        config = types.EmbedContentConfig(
            task_type=None if prefix else task, output_dimensionality=self.dimensions
        )
        client = self._client.get()
        with translating():
            answer = client.models.embed_content(model=self.model, contents=contents, config=config)
            rows = np.array([found.values for found in answer.embeddings or ()], dtype=np.float64)
        if not rows.size:
            raise AnswerMalformed("Gemini's answer holds no embeddings")
        # Only the full length comes with length 1; shorter vectors are its first numbers.
        return normalised(rows)


def open_client(api_key: str, base_url: str = "", timeout_seconds: float = 30.0) -> Client:
    """A client for one process, opened after the fork and kept: one that is let go is closed under its calls.

    It takes nothing from the environment, follows no redirect, goes through no proxy, tries once, and gives up a
    call after `timeout_seconds`.

    Raises:
        ConfigurationError: no key, or one that cannot be sent.
    """
    from google import genai

    from pipeline.embedding.http_client import DeadlineTransport, trusted

    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            "the key for Gemini is empty" if not key else "the key for Gemini holds characters no key has",
            fix="set apiKey, by a variable such as ${GEMINI_API_KEY}",
        )
    # Given as arguments, the client is the library's own, which closes it.
    http = {
        "transport": DeadlineTransport(),
        "verify": trusted(),
        "trust_env": False,
        "follow_redirects": False,
    }
    options = genai.types.HttpOptions(
        base_url=base_url or FACTS.base_url,
        timeout=max(1, round(timeout_seconds * 1000)),  # 0 would mean to wait for ever
        client_args=http,
        async_client_args={"ssl": trusted()},  # never used, and made anew with each client if it is not given
    )
    return genai.Client(vertexai=False, api_key=key, http_options=options)


@contextmanager
def translating() -> Iterator[None]:
    """Put around one call of the client: its errors leave as ours."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (what is not the client's goes on as it is)
        raise translated(error) from None


def translated(error: Exception) -> EmbeddingError:
    """What an error of the client means to us, told without any of its words: they may hold a text or the key.

    Raises:
        Exception: `error` itself, if it is none of the client's, such as a time limit of the caller.
    """
    from google.genai import errors

    from pipeline.embedding import http_client

    if isinstance(error, errors.APIError):
        return _answered(error)
    if isinstance(error, http_client.FOREIGN):
        return http_client.translated(error, "Gemini")
    shapes = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
    if isinstance(error, (*shapes, errors.ContinuationInterruptedError)):
        # The client takes the shape of an answer for granted.
        return AnswerMalformed(f"Gemini's answer cannot be read ({type(error).__name__})")
    raise error


_DAY_IS_SPENT: http_service.Row = (
    EmbedderUnavailable,
    "the quota of the day is spent",
    "wait for tomorrow, or raise the quota",
)
_STATUS: Mapping[int, http_service.Row] = {
    **dict.fromkeys((400, 413), http_service.BAD_TEXT),
    **dict.fromkeys((401, 403), http_service.KEY),
    404: (EmbedderRefused, "there is no such model, or no longer", "check embedding.model"),
    405: http_service.NO_PLACE,
    429: http_service.TOO_MANY,
}
"""Status -> what it means; any other in the three hundreds is a redirect, and the rest passes."""
# In the JSON of an answer; the same words inside of a message have a backslash before each quote.
_BAD_KEY = re.compile(r'"reason": "API_KEY_(?:INVALID|EXPIRED|SERVICE_BLOCKED)"')
_PER_DAY = re.compile(r'"quotaId": "[^"]*PerDay', re.IGNORECASE)
_DELAY = re.compile(r'"retryDelay": "([^"]*)"')


def _answered(error: APIError) -> EmbeddingError:
    """By the status of the answer, and what its details say."""
    code = error.code if isinstance(error.code, int) else 0
    # One of Google's words, and not somebody's sentence.
    status = error.status if re.fullmatch(r"[A-Z_]{2,40}", str(error.status)) else ""
    details = json.dumps(error.details, default=str)
    kind, says, fix = _STATUS.get(code, http_service.NO_PLACE if code // 100 == 3 else http_service.LATER)  # noqa: PLR2004 - redirects
    if _BAD_KEY.search(details):
        kind, says, fix = http_service.KEY
    elif kind is TextRejected and status == "FAILED_PRECONDITION":
        kind, says, fix = http_service.PLAN
    wait = next((w for d in _DELAY.findall(details) if (w := duration(d)) is not None), None)
    if wait is None:
        wait = retry_after(getattr(error.response, "headers", None) or {})
    pause = None if wait is None else min(max(wait, 0.0), LONGEST_PAUSE)
    if code == 429 and _PER_DAY.search(details):  # noqa: PLR2004 - Too Many Requests
        (kind, says, fix), pause = _DAY_IS_SPENT, DAY_QUOTA_PAUSE
    said = f"Gemini answers {code} {status}".rstrip()
    return kind(
        f"{said}: {says}" if says else said,
        fix=fix,
        retry_after=pause if kind is EmbedderUnavailable else None,
    )
