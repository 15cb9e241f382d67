"""What is read of a question: keywords, intent and synonyms."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from pipeline.plain_text import composed
from pipeline.search.words import searchable

Intent = Literal["question", "similar_work", "decision"]

MOST_KEYWORDS = 12
MOST_READ = 20_000
"""Most characters of a question that are read."""
SHORT = 200
"""Characters up to which a question mark anywhere makes a text a question."""

_WORD = re.compile(r"[^\W_](?:[\w./:\-]*[^\W_])?")
_STOP_WORDS = (
    "a about after again all also am an and any are as at be because been before being but by can cannot "
    "could did do does doing don't during each few for from further had has have having he her here hers him "
    "his how i if in into is isn't it its itself just let me more most my no nor not now of off on once only "
    "or other our out over own same she should so some such than that the their them then there these they "
    "this those through to too under until up us very was we were what when where which while who whom why "
    "will with within without would you your "
    "als auf das dem den der des die ein eine für im in ist mit nicht oder sind und von warum was wer wie wo zu "
)
_STOP = frozenset(_STOP_WORDS.split())
_ASKS = re.compile(
    r"^\s*(?:how|what|why|where|when|which|who|whom|whose|can|could|does|do|did|is|are|should|may|must|will|"
    r"wie|was|warum|wieso|weshalb|wo|wann|welche[rsn]?|wer|kann|können|soll|darf)\b",
    re.IGNORECASE,
)
_DECIDES = re.compile(
    r"\b(?:decid\w+|decision\w*|adrs?|rfcs?|why (?:did|do|are|have) we|agreed|trade-?offs?|"
    r"entscheidung\w*|entschieden|beschlossen)\b",
    re.IGNORECASE,
)


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


def keywords(text: str, most: int = MOST_KEYWORDS) -> tuple[str, ...]:
    """The words that carry a question, the most repeated first; names such as HADOOP-123 stay whole."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for match in _WORD.finditer(text[:MOST_READ]):
        word = match.group()
        if word.lower() not in _STOP and (len(word) > 1 or word.isdigit()):
            shown.setdefault(word.lower(), word)
            count[word.lower()] += 1
    return tuple(shown[key] for key, _ in count.most_common(most))


def intent_of(text: str) -> Intent:
    """What a person is after: an answer, a decision and its reasons, or work like this."""
    head = text[:500]
    if _DECIDES.search(head):
        return "decision"
    short = len(text) <= SHORT
    return "question" if _ASKS.match(head) or (short and "?" in head) else "similar_work"


def key_of(question: str, item: str = "", project: UUID | None = None) -> str:
    """Key of a question, for feedback: by project and id of its backlog item, else by its words.

    Case and white space make no difference.
    """
    named = f"id:{project or ''}:{item}" if item else " ".join(composed(question).split()).casefold()
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(words: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", composed(words).lower()))
