"""What a process remembers of searches: vectors of questions, and answers for when the database is away."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pipeline.embedding import Vectors
    from pipeline.search.records import SearchResults

V = TypeVar("V")


class MemoryCache(Generic[V]):
    """Values under a key, in spaces that are bounded one by one, such as one per tenant; safe for several threads."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`entries` of each space are kept for at most `seconds`."""
        self._entries = entries
        self._seconds = seconds
        self._clock = clock
        self._spaces: dict[str, OrderedDict[str, tuple[float, V]]] = {}
        self._lock = threading.Lock()

    def get(self, space: str, key: str) -> V | None:
        """What was put there, unless it is too old or has been pushed out."""
        with self._lock:
            kept = self._spaces.get(space, OrderedDict())
            found = kept.get(key)
            if found is None:
                return None
            if found[0] <= self._clock():
                del kept[key]
                return None
            kept.move_to_end(key)
            return found[1]

    def put(self, space: str, key: str, value: V) -> None:
        """Remember `value`; pushes out what of this space was not used for the longest time."""
        with self._lock:
            kept = self._spaces.setdefault(space, OrderedDict())
            kept[key] = (self._clock() + self._seconds, value)
            kept.move_to_end(key)
            while len(kept) > self._entries:
                kept.popitem(last=False)


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What a retriever remembers; None remembers nothing."""

    vectors: MemoryCache[Vectors] | None = None
    """Vectors of questions."""
    answers: MemoryCache[SearchResults] | None = None
    """Whole answers, given only while the database is away or too slow (level 2)."""
