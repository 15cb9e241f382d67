"""What is read of a question: its words, and those that mean the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pipeline.documents.plain_text import composed
from pipeline.search.words import searchable

MOST_READ = 20_000
"""Characters of a question that are looked at."""


@dataclass(frozen=True)
class Synonyms:
    """Groups of words that mean the same in an installation; a word of several words is matched as a whole."""

    groups: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Sequence[str]] | Iterable[Sequence[str]]) -> Synonyms:
        """From groups, or from a word and what else it is called; both directions count alike."""
        rows = [(word, *others) for word, others in given.items()] if isinstance(given, Mapping) else given
        groups = (tuple(dict.fromkeys(_plain(word) for word in row if _plain(word))) for row in rows)
        return cls(tuple(group for group in groups if len(group) > 1))

    def added_to(self, question: str) -> tuple[str, ...]:
        """The words that mean the same as one in the question, without those that already stand in it."""
        if not self.groups:
            return ()
        text = f" {_plain(question[:MOST_READ])} "
        found: dict[str, None] = {}
        for group in self.groups:
            there = [word for word in group if f" {word} " in text]
            if there:
                found |= dict.fromkeys(word for word in group if word not in there)
        return tuple(found)

    def searchable(self, question: str) -> str:
        """What the keyword search reads of a question: its words and those that mean the same."""
        return searchable(" ".join([question, *self.added_to(question)])[:MOST_READ])


def key_of(question: str, item: str = "", project: UUID | None = None) -> str:
    """Names a question: by project and id of the item that it asks about, else by its words.

    Case and blanks of the words make no difference.
    """
    named = f"id:{project or ''}:{item}" if item else " ".join(composed(question).split()).casefold()
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(words: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", composed(words).lower()))
