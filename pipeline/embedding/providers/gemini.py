"""Gemini's embedding models, through google-genai."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.embedding import EmbedderLimits, EmbeddingOptions, Vectors, readable, unit
from pipeline.embedding.gemini_client import open_client, translating
from pipeline.embedding.known_models import KNOWN, ModelFacts, refuse_misfits
from pipeline.embedding.providers.http_service import PerProcess
from pipeline.embedding.token_bound import most_tokens
from pipeline.errors import EmbedderUnavailable, TextTooLong

FACTS = KNOWN["gemini"]
MOST_BYTES = 4 * 2**20
"""Of one call, names and punctuation included."""
_UNKNOWN_TOKENS = 2048
"""What a model is taken to read that is not in the table: as much as the oldest."""


class GeminiEmbedder:
    """Vectors by Google's service; until the first call nothing is imported and nobody contacted.

    Documents and questions are encoded differently. Safe to share between threads, and after a fork each process
    opens a client of its own.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        """Takes model, dimensions, key, address, timeout and batch size from the options.

        Raises:
            ConfigurationError: no key, or a model or dimensions that Gemini does not have.
        """
        options = replace(options, model=options.model.removeprefix("models/"))
        refuse_misfits(options)
        self.model = FACTS.named(options.model)
        self.dimensions = FACTS.dimensions_of(self.model, options.dimensions) or 0
        self._facts = FACTS.of(self.model) or ModelFacts(dimensions=self.dimensions, tokens=_UNKNOWN_TOKENS)
        prefixes = (self._facts.document_prefix, self._facts.query_prefix)
        self.limits = EmbedderLimits(
            texts=options.batch_size or FACTS.most_texts,
            tokens_per_text=(options.max_tokens or self._facts.tokens) - max(map(most_tokens, prefixes)),
            bytes=MOST_BYTES,
            empty=False,
        )
        self._client = PerProcess(lambda: open_client(options.api_key, options.base_url, options.timeout))

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
        self._refuse_long(texts)
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
        with translating("embedding"):
            answer = client.models.embed_content(model=self.model, contents=contents, config=config)
            rows = np.array([found.values for found in answer.embeddings or ()], dtype=np.float64)
        if not rows.size:
            raise EmbedderUnavailable("Gemini's answer holds no embeddings")
        # Only the full length comes with length 1; shorter vectors are its first numbers.
        return unit(rows)

    def _refuse_long(self, texts: Sequence[str]) -> None:
        most, longest = self.limits.tokens_per_text, max(self.count_tokens(text) for text in texts)
        if longest > most:
            raise TextTooLong(
                f"a text may have {longest} tokens, and {self.model} would read {most} without a word",
                fix="embed it in parts",
            )
