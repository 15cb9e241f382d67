"""Markdown pages made up from a seed: Zipf-like words, headings, lists, code and tables; 1 to 15 KB each."""

from __future__ import annotations

import random
from itertools import accumulate

SYLLABLES = [
    a + b
    for a in [
        "b",
        "c",
        "d",
        "f",
        "g",
        "h",
        "k",
        "l",
        "m",
        "n",
        "p",
        "r",
        "s",
        "t",
        "v",
        "w",
        "st",
        "tr",
        "pl",
        "gr",
    ]
    for b in ["a", "e", "i", "o", "u", "ai", "ou"]
]
WORDS = 9000


def vocabulary(seed: int) -> tuple[list[str], list[float]]:
    """Words and their cumulative weights: a few are everywhere, most are rare."""
    chance = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < WORDS:
        words["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4)))] = None
    return list(words), list(accumulate(1.0 / (rank + 3) for rank in range(WORDS)))


class Pages:
    """The n-th page is the same whoever asks, and does not depend on how many there are."""

    def __init__(self, seed: int = 11) -> None:
        self.seed = seed
        self.words, self.weights = vocabulary(seed)

    def _pick(self, chance: random.Random, count: int) -> list[str]:
        return chance.choices(self.words, cum_weights=self.weights, k=count)

    def sentence(self, chance: random.Random) -> str:
        """Five to twenty words."""
        return " ".join(self._pick(chance, chance.randint(5, 20))).capitalize() + "."

    def block(self, chance: random.Random) -> str:
        """A paragraph, list, code block or table."""
        kind = chance.choices(["text", "list", "code", "table"], weights=[60, 20, 12, 8])[0]
        if kind == "list":
            return "\n".join("- " + " ".join(self._pick(chance, chance.randint(3, 12))) for _ in range(5))
        if kind == "code":
            names = self._pick(chance, 8)
            return "```python\n" + "\n".join(f"{n} = load({n!r}, limit={len(n)})" for n in names) + "\n```"
        if kind == "table":
            rows = [" | ".join(self._pick(chance, 3)) for _ in range(5)]
            return "\n".join(["| a | b | c |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)])
        return " ".join(self.sentence(chance) for _ in range(chance.randint(2, 6)))

    def page(self, number: int, edits: int = 0) -> str:
        """Page `number` as Markdown; `edits` paragraphs differ from the page with none."""
        chance = random.Random(f"{self.seed}-{number}")
        target = min(15_000, max(1_000, int(chance.lognormvariate(8.2, 0.6))))
        blocks = ["# " + " ".join(self._pick(chance, 5)).capitalize()]
        while sum(map(len, blocks)) < target:
            if len(blocks) % 4 == 1:
                blocks.append("## " + " ".join(self._pick(chance, 3)).capitalize())
            blocks.append(self.block(chance))
        fresh = random.Random(f"{self.seed}-{number}-edit")
        for _ in range(edits):
            place = fresh.randrange(2, len(blocks))
            blocks[place] = " ".join(self.sentence(fresh) for _ in range(4))
        return "\n\n".join(blocks) + "\n"
