"""Gemini's embedding models through google-genai, with a deadline per call and translated errors."""

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
from pipeline.embedding.known_models import PROVIDER_FACTS, refuse_misfits
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

FACTS = PROVIDER_FACTS["gemini"]
MOST_BYTES = 4 * 2**20
"""Most bytes of one call, including JSON names and punctuation."""
DAY_QUOTA_PAUSE = 3600.0
"""Seconds to pause when a day's quota is spent; the service does not say when its day ends."""
LONGEST_PAUSE = 86_400.0


def open_provider(options: EmbeddingOptions) -> Embedder:
    """Create the embedder; nothing is imported or contacted before the first call."""
    return GeminiEmbedder(replace(options, model=options.model.removeprefix("models/")))


class GeminiEmbedder:
    """Embedder for Google's service.

    Documents and queries are encoded differently. Safe to share between threads; after a fork each process opens
    its own client.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        """Take model, dimensions, key, address, timeout and batch size from the options.

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
            EmbedderRefused: key, plan or model are refused.
            TextTooLong: one of these texts may be longer than the model reads.
            TextRejected: one of these texts is refused.
        """
        return self._embed(texts, "RETRIEVAL_DOCUMENT", self._facts.document_prefix)

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,), encoded as a query."""
        vector: Vectors = self._embed([text], "RETRIEVAL_QUERY", self._facts.query_prefix)[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """Upper bound of the text's tokens: Gemini silently cuts long texts, and its tokenizer is not available."""
        return most_tokens(text)

    def _embed(self, texts: Sequence[str], task: str, prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        most, longest = self.limits.tokens_per_text, max(map(most_tokens, texts))
        if longest > most:
            raise TextTooLong(
                f"a text may have {longest} tokens, and {self.model} would read only {most} of them",
                fix="embed it in parts",
            )
        from google.genai import types

        # The newer models treat a list of plain strings as one content, with one vector.
        contents: list[types.ContentUnion] = [
            types.Content(parts=[types.Part(text=prefix + readable(text))]) for text in texts
        ]
        # Models with prefixes ignore the task type.
        config = types.EmbedContentConfig(
            task_type=None if prefix else task, output_dimensionality=self.dimensions
        )
        client = self._client.get()
        with translating():
            answer = client.models.embed_content(model=self.model, contents=contents, config=config)
            rows = np.array([embedding.values for embedding in answer.embeddings or ()], dtype=np.float64)
        if not rows.size:
            raise AnswerMalformed("Gemini's answer holds no embeddings")
        # Only vectors of full dimensions are normalised; shorter ones are their first numbers.
        return normalised(rows)


def open_client(api_key: str, base_url: str = "", timeout_seconds: float = 30.0) -> Client:
    """Open a client for one process, after the fork. Callers keep it: a collected client closes its connections.

    It reads nothing from the environment, follows no redirects, uses no proxy, tries once, and gives up a call after
    `timeout_seconds`.

    Raises:
        ConfigurationError: no key, or one that cannot be sent.
    """
    from google import genai

    from pipeline.embedding.http_client import DeadlineTransport, trusted

    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            "the key for Gemini is empty" if not key else "the key for Gemini has characters that no key has",
            fix="set apiKey, by a variable such as ${GEMINI_API_KEY}",
        )
    # With arguments instead of a client, the library creates its own and closes it.
    http = {
        "transport": DeadlineTransport(),
        "verify": trusted(),
        "trust_env": False,
        "follow_redirects": False,
    }
    options = genai.types.HttpOptions(
        base_url=base_url or FACTS.base_url,
        timeout=max(1, round(timeout_seconds * 1000)),  # 0 would mean no limit
        client_args=http,
        async_client_args={"ssl": trusted()},  # never used, but created for each client if it is missing
    )
    return genai.Client(vertexai=False, api_key=key, http_options=options)


@contextmanager
def translating() -> Iterator[None]:
    """Translate the client's errors raised in the block."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (`translated` raises foreign errors again)
        raise translated(error) from None


def translated(error: Exception) -> EmbeddingError:
    """Translate an error of the client, without its text, which may contain a document or the key.

    Raises:
        Exception: `error` itself, if it is not the client's, such as a time limit of the caller.
    """
    from google.genai import errors

    from pipeline.embedding import http_client

    if isinstance(error, errors.APIError):
        return _answered(error)
    if isinstance(error, http_client.FOREIGN):
        return http_client.translated(error, "Gemini")
    shapes = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
    if isinstance(error, (*shapes, errors.ContinuationInterruptedError)):
        # The client does not check the shape of an answer.
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
"""Status -> error; any other 3xx is a redirect, and the rest is temporary."""
# Patterns of the JSON of an answer; inside of a message the quotes would be escaped.
_BAD_KEY = re.compile(r'"reason": "API_KEY_(?:INVALID|EXPIRED|SERVICE_BLOCKED)"')
_PER_DAY = re.compile(r'"quotaId": "[^"]*PerDay', re.IGNORECASE)
_DELAY = re.compile(r'"retryDelay": "([^"]*)"')


def _answered(error: APIError) -> EmbeddingError:
    """Our error by status and details of the answer."""
    code = error.code if isinstance(error.code, int) else 0
    # Only status names such as NOT_FOUND: other texts might quote a document.
    status = error.status if re.fullmatch(r"[A-Z_]{2,40}", str(error.status)) else ""
    details = json.dumps(error.details, default=str)
    kind, reason, fix = _STATUS.get(code, http_service.NO_PLACE if code // 100 == 3 else http_service.LATER)  # noqa: PLR2004 - redirects
    if _BAD_KEY.search(details):
        kind, reason, fix = http_service.KEY
    elif kind is TextRejected and status == "FAILED_PRECONDITION":
        kind, reason, fix = http_service.PLAN
    wait = next((w for d in _DELAY.findall(details) if (w := duration(d)) is not None), None)
    if wait is None:
        wait = retry_after(getattr(error.response, "headers", None) or {})
    pause = None if wait is None else min(max(wait, 0.0), LONGEST_PAUSE)
    if code == 429 and _PER_DAY.search(details):  # noqa: PLR2004 - Too Many Requests
        (kind, reason, fix), pause = _DAY_IS_SPENT, DAY_QUOTA_PAUSE
    summary = f"Gemini answers {code} {status}".rstrip()
    return kind(
        f"{summary}: {reason}" if reason else summary,
        fix=fix,
        retry_after=pause if kind is EmbedderUnavailable else None,
    )
