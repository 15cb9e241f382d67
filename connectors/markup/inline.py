"""The running text of one block: white space, emphasis, links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from connectors.markup.escapes import code_span, escape_text

Wrap = Callable[[str], str]
"""What a mark makes of the text it is about: never blank, without blanks at its ends."""

STRONG, EMPHASIS, STRUCK, CODE, LINK, RAISED, LOWERED = "strong", "em", "del", "code", "link", "sup", "sub"
_MERGED = {STRONG: "**", EMPHASIS: "*", STRUCK: "~~"}


@dataclass(slots=True)
class _Mark:
    kind: str
    wrap: Wrap
    start: int


class Inline:
    """Collects pieces of text until its block ends."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._marks: list[_Mark] = []
        self._blank = True  # the last character is white space, or there is none
        self._ended = (0, "")  # length and kind after the last merged mark, for `<b>a</b><b>b</b>`

    @property
    def at_line_start(self) -> bool:
        """True if nothing, or a line break, came last."""
        return not self._parts or self._parts[-1].endswith("\n")

    @property
    def empty(self) -> bool:
        """True if nothing came yet."""
        return not self._parts

    def within(self, kind: str) -> bool:
        """True if such a mark is open."""
        return any(mark.kind == kind for mark in self._marks)

    def text(self, data: str) -> bool:
        """Takes text as it stands in the markup; True if there is anything to see."""
        words = data.split()
        if not words:
            if data and not self._blank:
                self._parts.append(" ")
                self._blank = True
            return False
        piece = " ".join(words)
        if not self.within(CODE):
            emphasised = self.within(STRONG) or self.within(EMPHASIS)
            piece = escape_text(piece, in_emphasis=emphasised, in_label=self.within(LINK))
        before = " " if data[0].isspace() and not self._blank else ""
        self._blank = data[-1].isspace()
        self._parts.append(f"{before}{piece} " if self._blank else before + piece)
        return True

    def literal(self, markdown: str) -> None:
        """Takes a piece that is Markdown already and has no line break."""
        if markdown:
            self._parts.append(markdown)
            self._blank = markdown[-1].isspace()

    def line_break(self) -> None:
        """The next text begins a line."""
        if self._parts:
            self._parts.append("\n")
            self._blank = True

    def ends_with_word(self) -> bool:
        """True if a letter, digit or bracket came last, so that `2` behind it may be an exponent."""
        last = self._parts[-1][-1:] if self._parts else ""
        return last.isalnum() or last in (")", "]")

    def open(self, kind: str, wrap: Wrap) -> Callable[[], None]:
        """Begins a mark; call what comes back at its end. A mark within its own kind, or in code, is none."""
        if self.within(kind) or self.within(CODE):
            return lambda: None
        mark = _Mark(kind, wrap, len(self._parts))
        self._marks.append(mark)
        return lambda: self._close(mark)

    def _close(self, mark: _Mark) -> None:
        if mark in self._marks:
            self._marks.remove(mark)
            self._apply(mark)

    def _apply(self, mark: _Mark) -> None:
        content = "".join(self._parts[mark.start :])
        body = content.strip()
        if not body:
            return
        lead = content[: len(content) - len(content.lstrip())]
        tail = content[len(content.rstrip()) :]
        merged = _MERGED.get(mark.kind, "")
        start = mark.start
        alone = all(other.start < start for other in self._marks if other is not mark)
        if merged and alone and not lead and self._ended == (start, mark.kind):
            start -= 1
            whole = self._parts[start][: -len(merged)] + body + merged
        else:
            whole = mark.wrap(body)
        self._parts[start:] = [piece for piece in (lead, whole) if piece]
        self._ended = (len(self._parts), mark.kind if merged else "")
        if tail:
            self._parts.append(tail)
        self._blank = bool(tail)

    def take(self) -> str:
        """The text of the block that ends here; marks still open go on in the next one."""
        for mark in reversed(self._marks):
            self._apply(mark)
        text = "".join(self._parts).strip()
        self._parts.clear()
        for mark in self._marks:
            mark.start = 0
        self._blank, self._ended = True, (0, "")
        return text


def strong(body: str) -> str:
    """Bold."""
    return f"**{body}**"


def emphasis(body: str) -> str:
    """Italics."""
    return f"*{body}*"


def struck(body: str) -> str:
    """Struck out."""
    return f"~~{body}~~"


def code(body: str) -> str:
    """Code within a line."""
    return code_span(body)


def raised(body: str) -> str:
    """A power: `10^5`; more than a word is held together by brackets."""
    return f"^{body}" if body.isalnum() else f"^({body})"


def lowered(body: str) -> str:
    """An index: digits as in `H2O`, words as in `x_max`."""
    return body if body.isdigit() or " " in body else f"_{body}"


def link(body: str, url: str | None) -> str:
    """Only the label if there is no address, only the address if the label repeats it."""
    if url is None:
        return body
    if body.replace("\\", "") == url:
        return url
    return f"[{' '.join(body.split())}]({url})"
