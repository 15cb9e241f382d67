"""When two states of a backlog item are of one item, and what an item is called."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

NEARLY_SAME = 0.85
_STORY = re.compile(r"^as an? [^,]{1,100}?,? i (?:want|need|would like) (?:to )?")


def plain_title(title: str) -> str:
    """The title without differences of case and blanks."""
    return " ".join(title.casefold().split())


def title_key(title: str) -> str:
    """Equal for titles that differ in case and blanks alone; short enough to be part of an id."""
    return hashlib.sha256(plain_title(title).encode()).hexdigest()[:8]


def item_name(pbi_id: str, title: str) -> str:
    """The external id of a backlog item where another one is called by its id alone."""
    return f"{pbi_id}~{title_key(title)}"


@lru_cache(maxsize=10_000)
def _title_words(title: str) -> frozenset[str]:
    """Beginnings of its words, without "As a ..., I want to": by the rest items are told apart."""
    return frozenset(re.findall(r"\b\w{1,5}", _STORY.sub("", plain_title(title))))


def is_same_title(one: str, other: str) -> bool:
    """True for titles of one backlog item, which may be reworded a little.

    They have the same numbers, and NEARLY_SAME of their letters stand in words of both.
    """
    words, others = _title_words(one), _title_words(other)
    shared, total = 2 * sum(map(len, words & others)), sum(map(len, words)) + sum(map(len, others))
    return one == other or (shared >= NEARLY_SAME * total > 0 and not any(map(str.isdecimal, words ^ others)))
