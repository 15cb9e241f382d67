"""Cutting one long text at its best seams, with an overlap between neighbours.

Every step looks at no more text than one chunk holds, so the work grows with the text and not faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pipeline.chunking.sizes import Ruler

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions

_BLANKS = re.compile(r"\s*")
_BLANK_RUN = re.compile(r"\s+")
# One mark at a time: a repetition here would read a long row of dots again from each of its dots.
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]」』）]*(?=\s)|[。！？][”’」』）]*(?=\S)")


class Piece(NamedTuple):
    """A stretch of text and the blanks that follow it; the text never ends with a blank."""

    text: str
    gap: str


class Seam(Protocol):
    """A kind of place where a text may be cut."""

    def last(self, text: str, low: int, high: int) -> int | None:
        """The largest end of a part, `low < end <= high`; `high` lies inside the text."""
        ...

    def first(self, text: str, low: int, high: int) -> int | None:
        """The smallest start of a part, `low <= start < high`."""
        ...


class Sentences:
    """Behind a full stop, question or exclamation mark that a blank follows."""

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        best = None
        for match in _SENTENCE_END.finditer(text, low, high + 1):
            if low < match.end() <= high:
                best = match.end()
        return best

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        # Two back: the mark and the blank before a sentence that starts exactly at `low`.
        for match in _SENTENCE_END.finditer(text, max(0, low - 2), high):
            start = skip_blanks(text, match.end())
            if low <= start < high:
                return start
        return None


class Words:
    """At blanks."""

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        window = text[low:high]
        if text[high].isspace() or window[-1:].isspace():
            return low + len(window.rstrip()) if window.strip() else None
        head = window.rsplit(None, 1)
        return low + len(head[0]) if len(head) > 1 else None

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        if low == 0 or text[low - 1].isspace():
            start = skip_blanks(text, low)
        else:
            match = _BLANK_RUN.search(text, low, high)
            start = match.end() if match else high
        return start if start < high else None


@dataclass(frozen=True, kw_only=True)
class Separator:
    """Behind a given text; its trailing blanks count as the gap."""

    mark: str

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        visible = len(self.mark.rstrip())
        found = text.rfind(self.mark, max(0, low - visible + 1), high - visible + len(self.mark))
        return found + visible if found >= 0 and text[low : found + visible].strip() else None

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        found = text.find(self.mark, max(0, low - len(self.mark)), high)
        start = skip_blanks(text, found + len(self.mark)) if found >= 0 else high
        return start if low <= start < high else None


Seams = Sequence[tuple[Seam, float]]
"""Best first, each with the share of a window that must be full before a cut there is worth it."""

PROSE: Seams = ((Sentences(), 0.5), (Words(), 0.0))
"""Sentence ends unless they leave more than half a chunk empty, then words, then anywhere."""


def skip_blanks(text: str, start: int) -> int:
    """The first place from `start` that is no blank, or the end."""
    match = _BLANKS.match(text, start)
    return match.end() if match else start


def split_rows(text: str) -> Iterator[Piece]:
    """Line by line; a line's gap is its end and the blank lines behind it."""
    held, gap = "", [""]
    for line in StringIO(text, newline=""):
        body = line.rstrip()
        if not body:
            gap.append(line)
            continue
        if held:
            yield Piece(held, "".join(gap))
        held, gap = body, [line[len(body) :]]
    if held:
        yield Piece(held, "".join(gap))


def split_windows(
    text: str, options: ChunkingOptions, ruler: Ruler, seams: Seams, *, first: int | None = None
) -> Iterator[Piece]:
    """Pieces of at most `max_size` that overlap by up to `overlap`; the first holds at most `first`.

    The last piece brings at least `min_size` of new text if the one before can spare it.
    """
    end = len(text.rstrip())
    start, fresh = 0, skip_blanks(text, 0)
    spare = ruler.back(text, end, options.min_size)
    room = first or options.max_size
    while fresh < end:
        high = ruler.reach(text, start, room)
        if high >= end:
            yield Piece(text[start:end], text[end:])
            return
        if high <= fresh:
            start = fresh
            continue
        high = max(min(high, spare), start + (high - start) // 2, fresh + 1)
        cut, hard = _cut(text, (start, fresh, high), seams)
        body = text[start:cut].rstrip()
        cut = start + len(body)
        fresh = skip_blanks(text, cut)
        yield Piece(body, text[cut:fresh])
        tail = max(start, ruler.back(text, fresh, options.overlap))
        start = _resume(text, tail, cut, () if hard else seams)
        room = options.max_size


def _cut(text: str, window: tuple[int, int, int], seams: Seams) -> tuple[int, bool]:
    """Where to end the piece, and whether that is in the middle of a word."""
    start, fresh, high = window
    for seam, share in seams:
        found = seam.last(text, max(fresh, start + int((high - start) * share)), high)
        if found is not None:
            return found, False
    return high, True


def _resume(text: str, tail: int, cut: int, seams: Seams) -> int:
    """Where the next piece starts: at the first seam between `tail` and `cut`, else at the tail itself."""
    for seam, _ in seams:
        found = seam.first(text, tail, cut)
        if found is not None:
            return found
    return skip_blanks(text, tail)
