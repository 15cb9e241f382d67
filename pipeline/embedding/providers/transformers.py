"""Local models of the package sentence-transformers, which is an optional extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors, readable
from pipeline.embedding.known_models import PROVIDER_FACTS, refuse_misfits
from pipeline.embedding.token_bound import MARKS
from pipeline.errors import ConfigurationError, EmbedderUnavailable, ModelMissing

PACKAGE = "sentence-transformers"
_UNLIMITED = 8192
"""Most tokens of a text for a model without a limit of its own."""


def open_provider(options: EmbeddingOptions) -> Embedder:
    """Load the model that the options name; the package downloads a model that is not on this machine yet.

    Raises:
        ConfigurationError: the package is not installed, or dimensions or batch size do not fit the model.
        ModelMissing: there is no such model, or the device cannot run it.
    """
    facts = PROVIDER_FACTS["transformers"]
    refuse_misfits(options)
    name = facts.named(options.model)
    return TransformersEmbedder(
        load(
            "SentenceTransformer",
            name,
            device=options.device,
            setting="embedding.provider is 'transformers'",
            instead="the extra larder[transformers]; the provider minilm needs neither",
        ),
        name=name,
        batch_size=options.batch_size or facts.batch,
    )


class TransformersEmbedder:
    """An embedder for a `sentence_transformers.SentenceTransformer`, with the prefixes that the model defines."""

    def __init__(self, encoder: Any, *, name: str, batch_size: int = 32) -> None:
        dimensions = encoder.get_sentence_embedding_dimension()
        if not dimensions:
            raise ModelMissing(f"{name} does not say how long its vectors are", fix="use an embedding model")
        self.model = name
        self.dimensions = dimensions
        self._encoder = encoder
        # Prefixes of the model's own settings, else those of its card.
        facts = PROVIDER_FACTS["transformers"].model_facts(name)
        prompts: Mapping[str, str] = encoder.prompts
        document = prompts.get("document") or prompts.get("passage")
        self._document_prefix = document or (facts.document_prefix if facts else "")
        self._query_prefix = prompts.get("query") or (facts.query_prefix if facts else "")
        reserved_tokens = MARKS + max(map(self.count_tokens, (self._document_prefix, self._query_prefix)))
        self.limits = EmbedderLimits(
            texts=batch_size, tokens_per_text=(encoder.max_seq_length or _UNLIMITED) - reserved_tokens
        )

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: the package failed, for example for want of memory.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return self._encoded([self._document_prefix + text for text in texts])

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); errors as for documents."""
        vector: Vectors = self._encoded([self._query_prefix + text])[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """Number of tokens of the whole text, without the special tokens that the model adds."""
        # `verbose`: the tokenizer would warn of texts longer than the model takes, which the count is meant to find.
        encoding = self._encoder.tokenizer(
            readable(text), add_special_tokens=False, truncation=False, verbose=False
        )
        return len(encoding["input_ids"])

    def _encoded(self, texts: list[str]) -> Vectors:
        try:
            rows = self._encoder.encode(
                [readable(text) for text in texts],
                batch_size=self.limits.texts,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        except Exception as error:  # noqa: BLE001 - torch raises nothing narrower, and its message may quote texts
            raise EmbedderUnavailable(f"{PACKAGE} failed with {type(error).__name__}") from None
        return np.asarray(rows, dtype=np.float32)


def load(kind: str, name: str, *, device: str | None = None, setting: str, instead: str) -> Any:
    """Load a model by class (`kind`) and name or folder; the package downloads one that is not on this machine yet.

    `setting` is the setting that requires the package, `instead` the alternative without it, both for messages.

    Raises:
        ConfigurationError: the package is not installed.
        ModelMissing: there is no such model, or the device cannot run it.
    """
    try:
        package = import_module("sentence_transformers")
    except ImportError:
        raise ConfigurationError(
            f"{setting}, which needs the package {PACKAGE}",
            fix=f"pip install '{PACKAGE}>=4', or {instead}",
        ) from None
    try:
        return getattr(package, kind)(name, device=device)
    except Exception as error:
        on_device = f" on {device}" if device else ""
        raise ModelMissing(
            f"{PACKAGE} cannot load {name}{on_device}: {type(error).__name__}",
            fix="check the name and the device, or download the model to a folder first",
            cause=error,
        ) from error
