"""A text too long for a model, in parts that fit."""

from __future__ import annotations

import re
from collections.abc import Callable

_PLACES = tuple(re.compile(p) for p in (r"\n\s*\n", r"\n", r"[.!?;:]\s", r"\s", r"(?<=\W)(?=\w)"))
"""Where a cut does least harm, best first: behind a paragraph, a line, a sentence, a word, at a word's start."""
_REACH = 8
"""A place is looked for in the last eighth of what fits: parts should be full, the first above all."""


def in_parts(text: str, excess: Callable[[str], float]) -> list[str]:
    """The text in order, each part as long as fits and cut where it does least harm.

    `excess` says how many times as long as allowed a text is; at most 1 means that it fits. Parts of nothing but
    white space are left out, unless there is nothing else. A single character that does not fit is a part all the
    same: who sends it will hear.
    """
    parts = []
    at, guess = 0, max(1, int(len(text) / max(1.0, excess(text))))
    while at < len(text):
        # Looks at little more than what one part can take, so that the work grows with the text and not its square.
        part = _longest(text[at : at + 2 * guess], excess)
        parts.append(part)
        at, guess = at + len(part), len(part)
    return [part for part in parts if not part.isspace()] or parts[:1]


def halves(text: str) -> list[str]:
    """Two parts of about one length; one, if nothing is left to cut."""
    cut = _place(text, len(text) // 2 + len(text) // (2 * _REACH))
    return [part for part in (text[:cut], text[cut:]) if part and not part.isspace()] or [text]


def _longest(text: str, excess: Callable[[str], float]) -> str:
    """About as much of the text's beginning as fits."""
    while (times := excess(text)) > 1 and len(text) > 1:
        text = text[: _place(text, min(len(text) - 1, int(len(text) / times)))]
    return text


def _place(text: str, most: int) -> int:
    """The best place to cut at, not far before `most`; at least 1."""
    for place in _PLACES:
        found = [m.end() for m in place.finditer(text, most - most // _REACH, most)]
        if found:
            return max(1, found[-1])
    return max(1, most)
