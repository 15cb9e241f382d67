"""Embedding services over HTTP: OpenAI and compatible servers, Ollama, Hugging Face."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors
from pipeline.embedding.calls import normalised
from pipeline.embedding.known_models import PROVIDER_FACTS, refuse_misfits
from pipeline.embedding.providers.http_service import LASTS, HttpService
from pipeline.embedding.token_bound import MARKS, token_counter
from pipeline.errors import AnswerMalformed, EmbedderRefused


class RemoteEmbedder:
    """Embedder that adds the model's prefixes to texts, calls the service and scales its vectors to length 1."""

    def __init__(self, options: EmbeddingOptions) -> None:
        """Check the options; nothing is sent yet.

        Raises:
            ConfigurationError: dimensions, batch size or key do not fit the model.
        """
        refuse_misfits(options)
        provider = PROVIDER_FACTS[options.provider]
        self.model = provider.named(options.model)
        self.dimensions = provider.dimensions_of(options.model, options.dimensions) or 0
        self.facts = provider.facts_of(options)
        self.count_tokens = token_counter(english=self.facts.english)
        prefixes = (self.facts.document_prefix, self.facts.query_prefix)
        reserved_tokens = max(map(self.count_tokens, prefixes)) + MARKS
        self.limits = EmbedderLimits(
            texts=options.batch_size or provider.batch,
            tokens_per_text=max(1, (options.max_tokens or self.facts.tokens) - reserved_tokens),
            tokens=provider.most_tokens,
            empty=False,
        )
        self.public = not options.base_url
        self._language = _LANGUAGES[options.provider]
        self._charged = threading.local()
        self._service = HttpService(
            provider,
            model=self.model,
            base_url=options.base_url,
            key=options.api_key,
            timeout=options.timeout,
        )

    @property
    def used_tokens(self) -> int | None:
        """Tokens that the service charged for the last call of this thread; None if it did not report them."""
        tokens = getattr(self._charged, "tokens", None)
        return tokens if isinstance(tokens, int) and tokens > 0 else None

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: may work later.
            EmbedderRefused: key, model, plan or address are refused, or the model has no vectors for whole texts.
            TextTooLong, TextRejected: one of these texts is refused; smaller calls tell which.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        # Servers written in C would silently end a text at a NUL.
        return self._embedded([self.facts.document_prefix + text.replace("\0", " ") for text in texts])

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); errors as for documents."""
        rows = self._embedded([self.facts.query_prefix + text.replace("\0", " ")])
        if len(rows) != 1:
            raise self._unreadable()
        vector: Vectors = rows[0]
        return vector

    def _embedded(self, texts: list[str]) -> Vectors:
        answer = self._service.post(
            self._language.path.format(model=self.model), self._language.body(self, texts)
        )
        try:
            rows = self._language.rows(answer)
            if isinstance(rows[0][0], list):
                # The pooling of token vectors (mean, first, last) is part of a model and must not be guessed.
                raise EmbedderRefused(
                    f"{self._service} answers with a vector per token: {self.model} has no vectors for whole texts",
                    fix="use a model of sentence-transformers whose card names a pooling",
                )
            numbers = np.asarray(rows, dtype=np.float64)
            if numbers.ndim != 2:  # noqa: PLR2004 - rows and columns
                raise self._unreadable()
            self._charged.tokens = self._language.charged(answer)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._unreadable() from None
        with np.errstate(over="ignore"):
            return normalised(numbers.astype(np.float32))

    def _unreadable(self) -> AnswerMalformed:
        return AnswerMalformed(f"{self._service} sent an answer without embeddings in it", fix=LASTS)


open_provider: Callable[[EmbeddingOptions], Embedder] = RemoteEmbedder


def _openai_body(embedder: RemoteEmbedder, texts: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": embedder.model, "input": texts}
    if embedder.dimensions != embedder.facts.dimensions:  # most servers refuse the key
        body["dimensions"] = embedder.dimensions
    if embedder.public:  # a quarter of the bytes; not every compatible server supports it
        body["encoding_format"] = "base64"
    return body


def _openai_rows(answer: Any) -> list[Any]:
    items = answer["data"]
    if any("index" in item for item in items):
        # Each index must occur once: a text must not get its neighbour's vector.
        by_index = {item["index"]: item for item in items}
        items = [by_index[n] for n in range(len(items))]
    embeddings = [item["embedding"] for item in items]
    return [
        np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        if isinstance(embedding, str)
        else embedding
        for embedding in embeddings
    ]


@dataclass(frozen=True, kw_only=True)
class _Language:
    """The protocol of a service: path, request body, and readers of the answer."""

    path: str
    body: Callable[[RemoteEmbedder, list[str]], dict[str, Any]]
    rows: Callable[[Any], Any]
    charged: Callable[[Any], Any] = lambda _: None
    """The tokens that a call cost."""


# Without `truncate: false` Ollama, and Hugging Face servers with automatic truncation, would cut long texts silently.
_LANGUAGES: Mapping[str, _Language] = {
    "openai": _Language(  # also of vLLM, LocalAI, LM Studio, TEI
        path="embeddings",
        body=_openai_body,
        rows=_openai_rows,
        charged=lambda answer: (answer.get("usage") or {}).get("total_tokens"),
    ),
    "ollama": _Language(
        path="api/embed",
        body=lambda e, texts: {"model": e.model, "input": texts, "truncate": False},
        rows=lambda answer: answer["embeddings"],
        charged=lambda answer: answer.get("prompt_eval_count"),
    ),
    "huggingface": _Language(  # at the router or at a private endpoint
        path="models/{model}/pipeline/feature-extraction",
        body=lambda _, texts: {"inputs": texts, "normalize": True, "truncate": False},
        rows=lambda answer: answer,
    ),
}
