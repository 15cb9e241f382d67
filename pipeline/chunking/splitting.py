"""Measures texts and cuts long ones at the best seams, with an overlap between neighbours.

Every step reads at most one chunk of text, so that the work is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class ChunkingOptions:
    """Options of a chunker; sizes in characters, or tokens of the embedder if `unit` is `tokens`.

    The settings ensure 0 <= `min_size` <= `max_size` and 0 <= `overlap` < `max_size`.
    """

    strategy: str = "structure"
    min_size: int = 100
    max_size: int = 1000
    overlap: int = 200
    split_on: tuple[str, ...] = ("\n\n", "\n", ". ", ", ")
    preserve_whitespace: bool = False
    unit: Literal["characters", "tokens"] = "characters"


CHARACTERS_PER_TOKEN = 4
"""Estimate used without a tokenizer; about right for English prose."""
MOST_CHARACTERS_PER_TOKEN = 16
"""Bound for tokenizers that make one unknown token of a word of any length, which would never be cut."""


class Ruler:
    """A measure of text: Unicode code points. The size of a whole is at most the sum of the sizes of its parts."""

    name = "characters"
    """Part of a chunker's version."""

    def size(self, text: str) -> int:
        """The size of `text`."""
        return len(text)

    def end_within(self, text: str, start: int, room: int) -> int:
        """The end of a piece from `start` that fits into `room`; at least one character further."""
        return min(len(text), start + max(1, room))

    def start_within(self, text: str, end: int, room: int) -> int:  # noqa: ARG002 - tokens look at the text
        """The start of a piece before `end` that fits into `room`; `end` itself if nothing fits."""
        return max(0, end - room)


class Tokens(Ruler):
    """Sizes are tokens, counted by the embedder's tokenizer or estimated.

    A size is a sixteenth of the characters if that is more. Pieces are within about 3 % of the longest that
    fits; finding that exactly would cost twice as many counts.
    """

    def __init__(self, count: Callable[[str], int] | None) -> None:
        """`count` leaves out special tokens; None estimates four characters a token."""
        self.name = "tokens" if count else f"tokens/{CHARACTERS_PER_TOKEN}"
        self._count = count or (lambda text: -(-len(text) // CHARACTERS_PER_TOKEN))

    def size(self, text: str) -> int:
        """See `Ruler`."""
        return max(self._count(text), len(text) // MOST_CHARACTERS_PER_TOKEN)

    def end_within(self, text: str, start: int, room: int) -> int:
        """See `Ruler`."""
        most = self._most(room, len(text) - start, lambda n: text[start : start + n])
        return min(len(text), start + max(1, most))

    def start_within(self, text: str, end: int, room: int) -> int:
        """See `Ruler`."""
        return end - self._most(room, end, lambda n: text[end - n : end])

    def _most(self, room: int, limit: int, piece: Callable[[int], str]) -> int:
        """The largest n up to `limit` with `piece(n)` in `room`, never looking far beyond it."""
        fits, fails = 0, min(limit, max(1, room * CHARACTERS_PER_TOKEN))
        while self.size(piece(fails)) <= room:
            if fails == limit:
                return limit
            fits, fails = fails, min(limit, fails * 2)
        while fails - fits > 1 + fits // 32:
            middle = (fits + fails) // 2
            if self.size(piece(middle)) <= room:
                fits = middle
            else:
                fails = middle
        return fits


_BLANKS = re.compile(r"\s*")
_BLANK_RUN = re.compile(r"\s+")
# One mark at a time: a repetition here would read a long row of dots again from each of its dots.
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]」』）]*(?=\s)|[。！？][”’」』）]*(?=\S)")


class Piece(NamedTuple):
    """A text without trailing blanks, and the blanks after it."""

    text: str
    gap: str


class Sentences:
    """Seams after a full stop, question or exclamation mark before a blank."""

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        ends = (match.end() for match in _SENTENCE_END.finditer(text, low, high + 1))
        return max((end for end in ends if low < end <= high), default=None)

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        # From two characters back: mark and blank before a sentence that starts exactly at `low`.
        marks = _SENTENCE_END.finditer(text, max(0, low - 2), high)
        starts = (skip_blanks(text, match.end()) for match in marks)
        return next((start for start in starts if low <= start < high), None)


class Words:
    """Seams at blanks."""

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        window = text[low:high]
        if text[high].isspace() or window[-1:].isspace():
            return low + len(window.rstrip()) if window.strip() else None
        head = window.rsplit(None, 1)
        return low + len(head[0]) if len(head) > 1 else None

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        blanks = _BLANKS if low == 0 or text[low - 1].isspace() else _BLANK_RUN
        match = blanks.search(text, low, high)
        start = match.end() if match else high
        return start if start < high else None


@dataclass(frozen=True, kw_only=True)
class Separator:
    """Seams after a given text, whose trailing blanks belong to the gap."""

    mark: str

    def last(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        visible = len(self.mark.rstrip())
        position = text.rfind(self.mark, max(0, low - visible + 1), high - visible + len(self.mark))
        return position + visible if position >= 0 and text[low : position + visible].strip() else None

    def first(self, text: str, low: int, high: int) -> int | None:
        """See `Seam`."""
        position = text.find(self.mark, max(0, low - len(self.mark)), high)
        start = skip_blanks(text, position + len(self.mark)) if position >= 0 else high
        return start if low <= start < high else None


Seam = Sentences | Words | Separator
"""A kind of place where a text may be cut.

`last` is the largest end of a part, `low < end <= high`, with `high` inside the text; `first` the smallest start of a
part, `low <= start < high`.
"""
Seams = Sequence[tuple[Seam, float]]
"""Seams, best first, each with the minimum share of a window that a cut there must fill."""

PROSE: Seams = ((Sentences(), 0.5), (Words(), 0.0))
"""Sentence ends that leave at most half a chunk empty, then blanks, then anywhere."""


def skip_blanks(text: str, start: int) -> int:
    """The first position from `start` that is no blank, or the end."""
    match = _BLANKS.match(text, start)
    return match.end() if match else start


def split_rows(text: str) -> Iterator[Piece]:
    """Yield line by line; the gap is the line end and the blank lines after it."""
    current, gap = "", [""]
    for line in StringIO(text, newline=""):
        body = line.rstrip()
        if not body:
            gap.append(line)
            continue
        if current:
            yield Piece(current, "".join(gap))
        current, gap = body, [line[len(body) :]]
    if current:
        yield Piece(current, "".join(gap))


class Frame(NamedTuple):
    """Lines repeated when a block is cut between two lines: `head` starts the next piece, `tail` ends this one."""

    head: str = ""
    tail: str = ""


_FENCE = re.compile(r"([ \t]*(?:>[ \t]?)*)((?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(`{3,}(?=[^`]*$)|~{3,})")
_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t|:-]*)?$")


_PADDING, _DASHES = re.compile(r"(?<=\S)[ \t]{2,}"), re.compile("-{4,}")
"""Padding of table columns, which a repeated head does not need."""


def holds_fence(text: str) -> bool:
    """True if a line of the text opens a block of code."""
    return ("```" in text or "~~~" in text) and any(map(_FENCE.match, text.splitlines()))


def framed_rows(text: str) -> Iterator[tuple[Piece, Frame]]:
    """The rows of `split_rows`, each with the frame of a cut after it: the marks of code, the head of a table."""
    frame, fence, before = Frame(), "", ""
    for number, row in enumerate(split_rows(text)):
        line = row.text
        if fence:
            bare = line.strip("> \t")
            if bare.startswith(fence) and not bare.strip(fence[0]):
                frame, fence = Frame(), ""
        elif opening := _FENCE.match(line):
            indent, fence = opening[1] + " " * len(opening[2]), opening[3]
            frame = Frame(indent + line[opening.start(3) :], indent + fence)
        elif number == 1 and "|" in before and "|" in line and _RULE.match(line):
            frame = Frame(f"{_PADDING.sub(' ', before)}\n{_PADDING.sub(' ', _DASHES.sub('---', line))}")
        before = line
        yield row, frame


def split_windows(
    text: str, options: ChunkingOptions, ruler: Ruler, seams: Seams, *, first: int | None = None
) -> Iterator[Piece]:
    """Pieces of at most `max_size` that overlap by up to `overlap`; the first holds at most `first`.

    The last piece brings at least `min_size` of new text if the one before can spare it.
    """
    end = len(text.rstrip())
    start, fresh = 0, skip_blanks(text, 0)
    spare = ruler.start_within(text, end, options.min_size)
    room = first or options.max_size
    while fresh < end:
        high = ruler.end_within(text, start, room)
        if high >= end:
            yield Piece(text[start:end], text[end:])
            return
        if high <= fresh:
            start = fresh
            continue
        high = max(min(high, spare), start + (high - start) // 2, fresh + 1)
        # At the best seam, else in the middle of a word.
        lows = ((seam, max(fresh, start + int((high - start) * share))) for seam, share in seams)
        seam_end = next((at for seam, low in lows if (at := seam.last(text, low, high)) is not None), None)
        cut = high if seam_end is None else seam_end
        body = text[start:cut].rstrip()
        cut = start + len(body)
        fresh = skip_blanks(text, cut)
        yield Piece(body, text[cut:fresh])
        # The next piece starts at the first seam between `tail` and `cut`, else at the tail itself.
        tail = max(start, ruler.start_within(text, fresh, options.overlap))
        starts = (seam.first(text, tail, cut) for seam, _ in seams if seam_end is not None)
        start = next((at for at in starts if at is not None), skip_blanks(text, tail))
        room = options.max_size
