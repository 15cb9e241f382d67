"""Words of a query and their synonyms, and its key for feedback."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pipeline.documents.plain_text import composed
from pipeline.search.words import searchable

MOST_READ = 20_000
"""Most characters of a question that are read."""


@dataclass(frozen=True)
class Synonyms:
    """Groups of synonyms in an installation; a term of several words is matched as a whole."""

    groups: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def from_groups(cls, synonyms: Mapping[str, Sequence[str]] | Iterable[Sequence[str]]) -> Synonyms:
        """Synonyms from groups, or from a word and its synonyms; all words of a group are equivalent."""
        rows = (
            [(word, *variants) for word, variants in synonyms.items()]
            if isinstance(synonyms, Mapping)
            else synonyms
        )
        groups = (tuple(dict.fromkeys(_plain(word) for word in row if _plain(word))) for row in rows)
        return cls(tuple(group for group in groups if len(group) > 1))

    def added_to(self, question: str) -> tuple[str, ...]:
        """Synonyms of the question's words, without those that are already in it."""
        if not self.groups:
            return ()
        text = f" {_plain(question[:MOST_READ])} "
        words: dict[str, None] = {}
        for group in self.groups:
            present = [word for word in group if f" {word} " in text]
            if present:
                words |= dict.fromkeys(word for word in group if word not in present)
        return tuple(words)

    def searchable(self, question: str) -> str:
        """Words of a question and their synonyms, for the keyword search."""
        return searchable(" ".join([question, *self.added_to(question)])[:MOST_READ])


def key_of(question: str, item: str = "", project: UUID | None = None) -> str:
    """Key of a question, for feedback: by project and id of its backlog item, else by its words.

    Case and white space make no difference.
    """
    named = f"id:{project or ''}:{item}" if item else " ".join(composed(question).split()).casefold()
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(words: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", composed(words).lower()))
