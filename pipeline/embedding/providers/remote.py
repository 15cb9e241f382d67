"""An embedder whose model is a service's: what is sent is the service's own affair, all else is here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding import EmbedderLimits, EmbeddingOptions, Vectors, unit
from pipeline.embedding.known_models import KNOWN, Choice, ModelFacts, misfits
from pipeline.embedding.providers.service import LASTS, Access
from pipeline.embedding.token_bound import MARKS, counter
from pipeline.errors import ConfigurationError, EmbedderUnavailable

UNKNOWN_TOKENS = 512
"""What a model that is not known here surely reads; most read this much or more."""

Ask = Callable[[Sequence[str]], Vectors]
"""One call: a row per text, of any length; texts already have their prefix."""


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """A model of a service, with everything the options leave to the provider filled in."""

    name: str
    facts: ModelFacts
    dimensions: int
    texts: int
    tokens: int
    """How much of a text it reads."""
    access: Access

    @classmethod
    def of(cls, options: EmbeddingOptions) -> RemoteModel:
        """The model the options name.

        Raises:
            ConfigurationError: dimensions, batch size or key do not fit it.
        """
        provider = KNOWN[options.provider]
        choice = Choice(
            provider=options.provider,
            model=options.model,
            dimensions=options.dimensions,
            batch=options.batch_size,
            own_address=bool(options.base_url),
            has_key=bool(options.api_key),
        )
        for wrong in misfits(choice):
            raise ConfigurationError(str(wrong), fix=wrong.fix)
        name = provider.named(options.model)
        dimensions = provider.dimensions_of(options.model, options.dimensions) or 0
        unknown = ModelFacts(dimensions=dimensions, tokens=UNKNOWN_TOKENS)
        facts = provider.of(options.model) or unknown
        return cls(
            name=name,
            facts=facts,
            tokens=options.max_tokens or facts.tokens,
            dimensions=dimensions,
            texts=options.batch_size or provider.batch,
            access=Access(
                title=provider.title,
                model=name,
                base_url=options.base_url or provider.base_url,
                key=options.api_key,
                timeout=options.timeout,
            ),
        )


class Charged(threading.local):
    """What a service said it charged for the last call of this thread."""

    tokens: int | None = None

    def note(self, tokens: Any) -> None:
        """Remember a number of tokens; anything else is as if nothing was said."""
        self.tokens = tokens if isinstance(tokens, int) and tokens > 0 else None


class RemoteEmbedder:
    """Puts a model's prefixes before the texts, asks the service, and brings its vectors to length 1."""

    def __init__(
        self, model: RemoteModel, ask: Ask, *, tokens: int | None = None, charged: Charged | None = None
    ) -> None:
        """`tokens` is the most of one call; `charged` is told by `ask` what each call cost."""
        self.model = model.name
        self.dimensions = model.dimensions
        facts = model.facts
        self.count_tokens = counter(english=facts.english)
        prefixes = (facts.document_prefix, facts.query_prefix)
        self._document_prefix, self._query_prefix = prefixes
        own = max(self.count_tokens(prefix) for prefix in prefixes) + MARKS
        self.limits = EmbedderLimits(
            texts=model.texts, tokens_per_text=max(1, model.tokens - own), tokens=tokens, empty=False
        )
        self._ask = ask
        self._access = model.access
        self._charged = charged or Charged()

    @property
    def used_tokens(self) -> int | None:
        """What the service charged for the last call of this thread; None if it did not tell."""
        return self._charged.tokens

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order.

        Raises:
            EmbedderUnavailable: may work later.
            EmbedderRefused: key, model, plan or address are refused.
            TextTooLong, TextRejected: one of these texts is refused; smaller calls tell which.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return unit(self._ask([self._document_prefix + _sendable(text) for text in texts]))

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); errors as for documents."""
        rows = unit(self._ask([self._query_prefix + _sendable(text)]))
        if len(rows) != 1:
            raise unreadable(self._access)
        vector: Vectors = rows[0]
        return vector


def rows_of(answer: Any, access: Access) -> Vectors:
    """A list of lists of numbers as an array with a row for each.

    Raises:
        EmbedderUnavailable: it is no such list, or its lists have different lengths.
    """
    try:
        numbers: NDArray[np.float64] = np.asarray(answer, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise unreadable(access) from None
    if numbers.ndim != 2:  # noqa: PLR2004 - rows and columns
        raise unreadable(access)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def unreadable(access: Access) -> EmbedderUnavailable:
    """The error of JSON that is no list of vectors."""
    return EmbedderUnavailable(f"{access} sent an answer without embeddings in it", fix=LASTS)


def _sendable(text: str) -> str:
    """Without NUL, at which servers written in C would end the text and say nothing."""
    return text.replace("\0", " ")
