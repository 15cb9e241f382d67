"""Exact BM25 in plain Python, for the store that lives in memory."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K1 = 1.2
B = 0.75

Key = TypeVar("Key", bound=Hashable)

# A word, or several held together by single marks: HADOOP-123, src/a/b.v2, user_name, api:v1, don't.
_COMPOUND = re.compile(r"[^\W_]+(?:[-_./:'’@+#][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def tokenize(text: str) -> list[str]:
    """Lower-case words in order; identifiers come whole, then in parts, then in the parts of their parts.

    `HADOOP-123` gives `hadoop-123`, `hadoop`, `123`; `HttpServer` gives `httpserver`, `http`, `server`.
    """
    words: list[str] = []
    for compound in _COMPOUND.findall(unicodedata.normalize("NFKC", text)):
        parts = _PART.findall(compound)
        if len(parts) > 1:
            words.append(compound.lower())
        for part in parts:
            words.append(part.lower())
            humps = _HUMP.split(part)
            if len(humps) > 1:
                words.extend(hump.lower() for hump in humps)
    return words


class Bm25Index(Generic[Key]):
    """Texts by key, scored by the words of a question; frequencies count all texts, filtered or not."""

    def __init__(self) -> None:
        self._postings: dict[str, dict[Key, int]] = {}
        """Word -> key -> how often."""
        self._words: dict[Key, tuple[str, ...]] = {}
        """Key -> its distinct words, so that a text can be taken out again."""
        self._lengths: dict[Key, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, key: Key, text: str) -> None:
        """Index `text`; one that is there under this key is replaced."""
        self.remove(key)
        counts = Counter(tokenize(text))
        for word, count in counts.items():
            self._postings.setdefault(word, {})[key] = count
        self._words[key] = tuple(counts)
        self._lengths[key] = counts.total()
        self._total += counts.total()

    def remove(self, key: Key) -> None:
        """Forget a text; an unknown key is no error."""
        self._total -= self._lengths.pop(key, 0)
        for word in self._words.pop(key, ()):
            postings = self._postings[word]
            del postings[key]
            if not postings:
                del self._postings[word]

    def scores(self, question: str, allowed: Collection[Key]) -> dict[Key, float]:
        """BM25 of every allowed text that has a word of the question; all above 0.

        A word that the question repeats counts as often as it stands there. `allowed` should be a set.
        """
        scores: dict[Key, float] = {}
        mean = self._total / max(len(self), 1)
        for word, times in Counter(tokenize(question)).items():
            postings = self._postings.get(word, {})
            weight = times * idf(len(self), len(postings))
            for key, count in postings.items():
                if key in allowed:
                    saturated = count * (K1 + 1) / (count + K1 * (1 - B + B * self._lengths[key] / mean))
                    scores[key] = scores.get(key, 0.0) + weight * saturated
        return scores


def idf(texts: int, having: int) -> float:
    """How much a word tells that stands in `having` of `texts`; never below 0."""
    return math.log1p((texts - having + 0.5) / (having + 0.5))
