"""What a search may remember: the port, a memory of one process, and one in front of another."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Value: TypeAlias = bytes | Callable[[], bytes]
"""What is put: bytes, or what makes them, which is called where they are written."""


class Cache(Protocol):
    """Bytes under a key, in spaces that are bounded one by one. Never raises: what is away is not remembered."""

    def get(self, space: str, key: str) -> bytes | None:
        """What was put there, unless it is too old or has been pushed out."""
        ...

    def put(self, space: str, key: str, value: Value) -> None:
        """Remember `value`; pushes out what of this space was not used for the longest time."""
        ...


def made(value: Value) -> bytes:
    """The bytes themselves."""
    return value if isinstance(value, bytes) else value()


class MemoryCache:
    """A cache of one process; may be used by several threads."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`entries` of each space are kept for at most `seconds`."""
        self._entries = entries
        self._seconds = seconds
        self._clock = clock
        self._spaces: dict[str, OrderedDict[str, tuple[float, bytes]]] = {}
        self._lock = threading.Lock()

    def get(self, space: str, key: str) -> bytes | None:
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

    def put(self, space: str, key: str, value: Value) -> None:
        """Remember `value`."""
        value = made(value)
        with self._lock:
            kept = self._spaces.setdefault(space, OrderedDict())
            kept[key] = (self._clock() + self._seconds, value)
            kept.move_to_end(key)
            while len(kept) > self._entries:
                kept.popitem(last=False)


class LayeredCache:
    """A near cache in front of a far one."""

    def __init__(self, near: Cache, far: Cache) -> None:
        self._near = near
        self._far = far

    def get(self, space: str, key: str) -> bytes | None:
        """From the near one, else from the far one, which the near one then learns."""
        found = self._near.get(space, key)
        if found is None and (found := self._far.get(space, key)) is not None:
            self._near.put(space, key, found)
        return found

    def put(self, space: str, key: str, value: Value) -> None:
        """In both."""
        value = made(value)
        self._near.put(space, key, value)
        self._far.put(space, key, value)


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What a retriever remembers; None remembers nothing."""

    vectors: Cache | None = None
    """Vectors of questions."""
    results: Cache | None = None
    """Ids and scores of answers, never a text."""
