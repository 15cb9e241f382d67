"""Words brought to a common form, to tell whether two short texts speak of the same."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from functools import lru_cache

WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ies", "ers", "es", "ed", "er", "s", "e", "y")
_SHORTEST = 3
_CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_STOP = frozenset(
    re.findall(
        r"\w+",
        """about after all also and any are been but can could did does for from had has have how into its may more must
    not our out shall should than that the their them then there these they this those was want were what when where
    which who why will with would you your
    aber als auch auf aus bei das dass dem den der des die durch ein eine einem einen einer eines für hat ich ihr im
    ist kann mit nach nicht oder sich sie sind soll und von war wenn werden wie wird zum zur
    aux avec car ces cette dans des doit elle est être les leur mais nous ont par pas pour que qui sans ses son sont
    sur une vous""",
    )
)


def stems(text: str) -> frozenset[str]:
    """The words that carry meaning, each as enough of it that its usual forms look alike."""
    words = (match.group().lower() for match in WORD.finditer(text))
    return frozenset(
        stem(word)
        for word in words
        if word not in _STOP and (len(word) >= _SHORTEST or any(c.isdigit() for c in word))
    )


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Enough of a word that its usual forms look alike; for comparing and marking, never for ranking."""
    low = word.lower()
    for ending in _ENDINGS:
        if low.endswith(ending) and len(low) - len(ending) >= _SHORTEST:
            return low[: -len(ending)]
    return low


def covered(part: AbstractSet[str], whole: AbstractSet[str]) -> float:
    """The share of `part` that `whole` has, 0 to 1; all of nothing is had."""
    return len(part & whole) / len(part) if part else 1.0


def likeness(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """How much two sets of words have in common, 0 to 1 (cosine)."""
    if not one or not other:
        return 0.0
    return float(len(one & other) / (len(one) * len(other)) ** 0.5)


def flat(text: str) -> str:
    """The text on one line with single blanks."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """The text on one line, without characters that control a screen or turn the direction of what follows."""
    return flat(_CONTROLS.sub("", text))
