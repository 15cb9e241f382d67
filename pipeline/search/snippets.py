"""The part of a chunk that a person should see: the lines where the question's words stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.enrichment.text import WORD, stem, stems


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A piece of text on one line, with the places of the question's words."""

    text: str
    marks: Sequence[tuple[int, int]]
    """Start and end of each, in order, not overlapping."""


def passage(content: str, question: str, *, length: int) -> Passage:
    """At most `length` characters of `content` with as many different words of the question as possible.

    White space is brought to single blanks; three dots stand where the text goes on.
    """
    flat = " ".join(content.split())
    wanted = stems(question)
    found = [(m.start(), m.end(), stem(m.group())) for m in WORD.finditer(flat)]
    hits = [(start, end, form) for start, end, form in found if form in wanted]
    if len(flat) <= length:
        return Passage(text=flat, marks=[(start, end) for start, end, _ in hits])
    begin = _begin(flat, hits, length)
    end = _end(flat, begin, length)
    head = "... " if begin else ""
    shift = len(head) - begin
    marks = [(s + shift, e + shift) for s, e, _ in hits if s >= begin and e <= end]
    return Passage(text=head + flat[begin:end].rstrip() + (" ..." if end < len(flat) else ""), marks=marks)


def _begin(flat: str, hits: Sequence[tuple[int, int, str]], length: int) -> int:
    """Where the richest window starts: a few words before its first hit, at a word's start."""
    room = length - 8
    best, richest = 0, 0
    for n, (start, _, _) in enumerate(hits):
        reach = start - min(start, room // 5) + room
        different = len({form for _, end, form in hits[n:] if end <= reach})
        if different > richest:
            best, richest = start, different
    begin = best - min(best, room // 5)
    if begin == 0 or begin + room >= len(flat):
        begin = max(0, min(begin, len(flat) - room))
    while begin > 0 and flat[begin - 1] != " ":
        begin += 1
        if begin >= best:
            return best
    return begin


def _end(flat: str, begin: int, length: int) -> int:
    """The last blank that keeps the window within its length, or the length if it is one long word."""
    end = begin + length - 8
    if end >= len(flat):
        return len(flat)
    blank = flat.rfind(" ", begin + 1, end + 1)
    return blank if blank > begin else end
