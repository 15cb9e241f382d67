"""What the fakes of embedding services share: vectors made of words, and a count of tokens."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

Vectors = list[list[float]]
Change = Callable[[Vectors], Vectors]
"""What a test has done to the vectors of every answer before they leave."""

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w{1,4}|[^\w\s]")


@dataclass(kw_only=True)
class Usage:
    """What a service would put on the bill."""

    calls: int = 0
    texts: int = 0
    tokens: int = 0

    def add(self, texts: list[str]) -> None:
        """One good call."""
        self.calls += 1
        self.texts += len(texts)
        self.tokens += sum(count_tokens(text) for text in texts)


def unchanged(vectors: Vectors) -> Vectors:
    """A service that behaves."""
    return vectors


def count_tokens(text: str) -> int:
    """About four letters a token."""
    return len(_TOKEN.findall(text))


def word_vector(text: str, dimensions: int, *, salt: str = "") -> list[float]:
    """The same text, the same vector, in every process; texts with words in common lie close; length 1."""
    sums = [0.0] * dimensions
    for word, times in Counter(_WORD.findall(text.lower()) or [text or "nothing"]).items():
        for bits in _drawn(word, salt):
            sums[(bits >> 1) % dimensions] += times if bits & 1 else -times
    length = math.sqrt(sum(x * x for x in sums))
    if length == 0.0:
        sums[0], length = 1.0, 1.0
    return [x / length for x in sums]


@lru_cache(maxsize=4096)
def _drawn(word: str, salt: str) -> tuple[int, ...]:
    """Four numbers of 32 bits."""
    seed = f"{salt}|{word}".encode("utf-8", "surrogatepass")
    return struct.unpack("<4I", hashlib.blake2b(seed, digest_size=16).digest())
