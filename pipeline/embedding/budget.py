"""The allowance for embedding: asked before each call, told how the call went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol, TypeVar

from pipeline.embedding import Embedder, Vectors
from pipeline.errors import AnswerMalformed, EmbedderUnavailable, LarderError

_Made = TypeVar("_Made")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call takes out of the allowance."""

    texts: int
    tokens: int
    query: bool = False
    """A question of somebody who waits; documents leave a share to these."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A call that may be made."""

    cost: Cost
    day: date | None = None
    """The day it was counted for, where days are counted."""
    slot: str = ""
    """The part of the minute it was counted in."""


class Budget(Protocol):
    """The allowance of one tenant. Each grant ends with exactly one of `spent`, `failed` and `refused`."""

    @property
    def texts(self) -> int | None:
        """Most texts of one call for documents; None: as many as the embedder takes."""
        ...

    @property
    def tokens(self) -> int | None:
        """Most tokens of one call for documents."""
        ...

    def take(self, cost: Cost) -> Grant:
        """Permission for one call, to be made at once.

        Raises:
            BudgetSpent: not now; `retry_after` says in how many seconds.
        """
        ...

    def spent(self, grant: Grant, tokens: int | None) -> None:
        """The call was answered; `tokens` is what the service charged, if it told."""
        ...

    def failed(self, grant: Grant, error: EmbedderUnavailable) -> None:
        """The service could not be reached or sent us away; nothing was charged.

        May tell the error when to come back, if all who share the budget leave the service alone until then.
        """
        ...

    def refused(self, grant: Grant) -> None:
        """The service answered that it will not do it; nothing was charged."""
        ...


class BudgetedEmbedder:
    """An embedder that is asked within a budget; an Embedder itself."""

    def __init__(self, embedder: Embedder, budget: Budget) -> None:
        self._embedder = embedder
        self._budget = budget
        self.model = embedder.model
        self.dimensions = embedder.dimensions
        own = embedder.limits
        # Texts only: a limit of tokens lower than a text would have it embedded in parts, and its vector another.
        self.limits = replace(own, texts=min(own.texts, budget.texts or own.texts))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """As the embedder's.

        Raises:
            BudgetSpent: not now; `retry_after` says in how many seconds.
        """
        cost = Cost(texts=len(texts), tokens=sum(map(self.count_tokens, texts)))
        return self._within(cost, lambda: self._embedder.embed_documents(texts))

    def embed_query(self, text: str) -> Vectors:
        """As the embedder's; raises BudgetSpent as `embed_documents` does."""
        cost = Cost(texts=1, tokens=self.count_tokens(text), query=True)
        return self._within(cost, lambda: self._embedder.embed_query(text))

    def count_tokens(self, text: str) -> int:
        """As the embedder's."""
        return self._embedder.count_tokens(text)

    def _within(self, cost: Cost, call: Callable[[], _Made]) -> _Made:
        grant = self._budget.take(cost)
        try:
            made = call()
        except AnswerMalformed:
            # It was answered, and probably charged: that one answer is no reason for everybody to stay away.
            self._budget.spent(grant, None)
            raise
        except EmbedderUnavailable as error:
            self._budget.failed(grant, error)
            raise
        except LarderError:
            self._budget.refused(grant)
            raise
        # An embedder whose service tells what it charged keeps the number of its last call.
        self._budget.spent(grant, getattr(self._embedder, "used_tokens", None))
        return made
