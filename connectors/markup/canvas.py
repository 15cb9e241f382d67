"""The block that is being written, in the document or in a cell of a table."""

from __future__ import annotations

import re

from connectors.markup.cells import CellSink
from connectors.markup.inline import LINK, STRONG, Inline, link, strong
from connectors.markup.sinks import PARAGRAPH, Sink

_NO_LANGUAGE = frozenset({"none", "text", "plain", "plaintext", "noformat"})


class Canvas:
    """Running text, code and cells on their way into a sink."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.inline = Inline()
        self.heading = 0
        """The level of the heading that is open, or 0."""
        self.words = 0
        """Grows with every piece of visible text: compare before and after."""
        self.code: list[str] | None = None
        """Pieces of the code block that is open."""
        self._code_depth = 0
        self._around: list[tuple[Sink, Inline, int]] = []

    def text(self, data: str) -> None:
        """Takes text as the markup holds it."""
        if self.code is not None:
            self.code.append(data)
            self.words += 1
        elif self.inline.text(data):
            self.words += 1

    def literal(self, markdown: str) -> None:
        """Takes a piece of a line that is Markdown already."""
        if self.code is not None:
            self.text(markdown)
        elif markdown:
            self.inline.literal(markdown)
            self.words += 1

    def flush(self, gap: int) -> None:
        """Ends the block, within code the line; at least `gap` lies before the next block."""
        if self.code is not None:
            self._end_code_line()
            return
        text = self.inline.take()
        if text and self.heading:
            self.sink.heading(self.heading, text)
        elif text:
            self.sink.paragraph(text)
        self.sink.gap(gap)

    def line_break(self) -> None:
        """One ends the line, a second one the paragraph."""
        if self.inline.at_line_start:
            self.flush(PARAGRAPH)
        else:
            self.inline.line_break()

    def bold_line(self, text: str, gap: int) -> None:
        """A line of its own, such as a panel's title."""
        self.flush(gap)
        close = self.inline.open(STRONG, strong)
        self.text(text)
        close()
        self.flush(gap)

    def link(self, label: str, url: str | None) -> None:
        """A link within the line."""
        close = self.inline.open(LINK, lambda body: link(body, url))
        self.text(label)
        close()

    def begin_code(self) -> None:
        """All text up to `end_code` is code; code within code is part of it."""
        self.flush(PARAGRAPH)
        self._code_depth += 1
        if self.code is None:
            self.code = []

    def end_code(self, language: str) -> None:
        """Writes the code, each blank as it was; one line end at its end belongs to the fence."""
        self._code_depth -= 1
        if self._code_depth:
            self._end_code_line()
            return
        text = "".join(self.code or ()).replace("\r\n", "\n").replace("\r", "\n")
        self.code = None
        if text.strip():
            name = re.sub(r"[^\w+#.-]", "", language.strip().lower()[:40])
            self.sink.code(text.removesuffix("\n"), "" if name in _NO_LANGUAGE else name)

    def _end_code_line(self) -> None:
        if self.code and not self.code[-1].endswith("\n"):
            self.code.append("\n")

    def begin_cell(self) -> None:
        """All text up to `end_cell` is one cell's."""
        self._around.append((self.sink, self.inline, self.heading))
        self.sink, self.inline, self.heading = CellSink(), Inline(), 0

    def end_cell(self) -> str:
        """The cell's text on one line."""
        self.flush(0)
        cell = self.sink
        self.sink, self.inline, self.heading = self._around.pop()
        return cell.text() if isinstance(cell, CellSink) else ""
