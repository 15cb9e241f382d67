"""The time that one question may take."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.reranking import RerankerUnavailable


class Budget:
    """Seconds that run from the moment it is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds that are left.

        Raises:
            RerankerUnavailable: none are.
        """
        left = self._end - self._clock()
        if left <= 0:
            raise self.spent()
        return left

    def spent(self) -> RerankerUnavailable:
        """The error that says so."""
        return RerankerUnavailable(
            f"the reranker did not finish within {self.seconds:g} s",
            fix="lower retrieval.rerank.candidates, take a smaller model, or give it more time",
        )
