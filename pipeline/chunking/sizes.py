"""How long a text is, in characters or in tokens of the embedder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions

CHARACTERS_PER_TOKEN = 4
"""Used where nobody can count tokens; about right for English prose."""
MOST_CHARACTERS_PER_TOKEN = 16
"""Some tokenizers make one unknown token of a word of any length; without this bound it would never be cut."""


class Ruler(Protocol):
    """A measure of text. The size of a whole is at most the sum of the sizes of its parts."""

    name: str
    """Part of a chunker's version."""

    def size(self, text: str) -> int:
        """How long `text` is."""
        ...

    def reach(self, text: str, start: int, room: int) -> int:
        """The end of a piece from `start` that fits into `room`; at least one character further."""
        ...

    def back(self, text: str, end: int, room: int) -> int:
        """The start of a piece before `end` that fits into `room`; `end` itself if nothing fits."""
        ...


class Characters:
    """Sizes are Unicode code points."""

    name = "characters"

    def size(self, text: str) -> int:
        """The number of code points."""
        return len(text)

    def reach(self, text: str, start: int, room: int) -> int:
        """Exactly `room` characters, fewer only at the end of the text."""
        return min(len(text), start + max(1, room))

    def back(self, text: str, end: int, room: int) -> int:  # noqa: ARG002 - the port names the text
        """Exactly `room` characters, fewer only at the start of the text."""
        return max(0, end - room)


class Tokens:
    """Sizes are tokens, counted by the embedder's tokenizer or estimated."""

    def __init__(self, count: Callable[[str], int] | None) -> None:
        """`count` leaves out special tokens; None estimates four characters a token."""
        self.name = "tokens" if count else f"tokens/{CHARACTERS_PER_TOKEN}"
        self._count = count or _estimate

    def size(self, text: str) -> int:
        """The number of tokens, or a sixteenth of the characters if that is more."""
        return max(self._count(text), len(text) // MOST_CHARACTERS_PER_TOKEN)

    def reach(self, text: str, start: int, room: int) -> int:
        """Within about 3 % of the longest piece that fits; finding it exactly costs twice the counting."""
        most = self._most(room, len(text) - start, lambda n: text[start : start + n])
        return min(len(text), start + max(1, most))

    def back(self, text: str, end: int, room: int) -> int:
        """Within about 3 % of the longest piece that fits."""
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


def _estimate(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def version_of(name: str, options: ChunkingOptions, ruler: Ruler) -> str:
    """Such as `structure-2:100/1000/200:characters`; `name` carries the number of the code's version."""
    sizes = f"{options.min_size}/{options.max_size}/{options.overlap}"
    kept = ":preserve" if options.preserve_whitespace else ""
    return f"{name}:{sizes}:{ruler.name}{kept}"
