"""Budget of embedding calls: a grant is taken before each call, and its outcome is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol, TypeVar

from pipeline.embedding import Embedder, Vectors
from pipeline.errors import AnswerMalformed, EmbedderUnavailable, LarderError

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one call, charged to the budget."""

    texts: int
    tokens: int
    query: bool = False
    """Whether a search waits for the answer; documents leave a share of the budget to queries."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Permission for one call."""

    cost: Cost
    day: date | None = None
    """Day that the call is counted for; None without a daily limit."""
    slot: str = ""
    """Part of the minute that the call is counted in."""


class Budget(Protocol):
    """The budget of one tenant. Each grant ends with exactly one of `spent`, `failed` and `refused`."""

    @property
    def texts(self) -> int | None:
        """Most texts of one call for documents; None: as many as the embedder takes."""
        ...

    @property
    def tokens(self) -> int | None:
        """Most tokens of one call for documents."""
        ...

    def take(self, cost: Cost) -> Grant:
        """Take permission for one call, which must follow at once.

        Raises:
            BudgetSpent: not now; `retry_after` says in how many seconds.
        """
        ...

    def spent(self, grant: Grant, tokens: int | None) -> None:
        """Report an answered call; `tokens` is the number the service charged, if it named one."""
        ...

    def failed(self, grant: Grant, error: EmbedderUnavailable) -> None:
        """Report that the service was unreachable or overloaded; nothing was charged.

        May set `retry_after` of the error, if all users of the budget pause until then.
        """
        ...

    def refused(self, grant: Grant) -> None:
        """Report that the service refused the call; nothing was charged."""
        ...


class BudgetedEmbedder:
    """An Embedder whose calls take their grants from a budget."""

    def __init__(self, embedder: Embedder, budget: Budget) -> None:
        self._embedder = embedder
        self._budget = budget
        self.model = embedder.model
        self.dimensions = embedder.dimensions
        limits = embedder.limits
        # Texts only: a limit of tokens lower than a text's would split the text and so change its vector.
        self.limits = replace(limits, texts=min(limits.texts, budget.texts or limits.texts))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed documents as the inner embedder does, within the budget.

        Raises:
            BudgetSpent: not now; `retry_after` says in how many seconds.
        """
        cost = Cost(texts=len(texts), tokens=sum(map(self.count_tokens, texts)))
        return self._within(cost, lambda: self._embedder.embed_documents(texts))

    def embed_query(self, text: str) -> Vectors:
        """Embed a query as the inner embedder does; raises BudgetSpent as `embed_documents` does."""
        cost = Cost(texts=1, tokens=self.count_tokens(text), query=True)
        return self._within(cost, lambda: self._embedder.embed_query(text))

    def count_tokens(self, text: str) -> int:
        """Count tokens as the inner embedder does."""
        return self._embedder.count_tokens(text)

    def _within(self, cost: Cost, call: Callable[[], _Result]) -> _Result:
        grant = self._budget.take(cost)
        try:
            result = call()
        except AnswerMalformed:
            # The call was answered, and probably charged: one bad answer is no reason for a pause of the whole budget.
            self._budget.spent(grant, None)
            raise
        except EmbedderUnavailable as error:
            self._budget.failed(grant, error)
            raise
        except LarderError:
            self._budget.refused(grant)
            raise
        # An embedder whose service reports the charged tokens keeps the number of its last call.
        self._budget.spent(grant, getattr(self._embedder, "used_tokens", None))
        return result
