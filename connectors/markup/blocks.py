"""Blocks written as lines of Markdown, in the document, in a table, or in a cell of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from connectors.markup.inline import (
    LINK,
    STRONG,
    Inline,
    around,
    code_fence,
    code_span,
    escape_heading,
    link,
    paragraph_lines,
)

LINE, PARAGRAPH = 1, 2
"""What lies between two blocks: a line end, or a blank line."""
MOST_INDENT = 40
"""Quotes, lists and items within each other that are shown as such."""
MOST_COLUMNS_SPANNED = 50
MOST_REPEATED = 1_000_000
"""Characters of one table that are there only because a cell spans several; beyond, the repeats stay empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one `td` or `th` holds."""

    text: str
    heads: bool
    across: int = 1
    down: int = 1


@dataclass(slots=True)
class Table:
    """The rows of one table, as they are found."""

    rows: list[list[Cell]] = field(default_factory=list)
    head_rows: int = 0
    """How many of the first rows stand in a `thead`."""

    def add(self, cell: Cell) -> None:
        """Puts a cell at the end of the last row."""
        if not self.rows:
            self.rows.append([])
        self.rows[-1].append(cell)

    def flat(self) -> str:
        """All in one line, for a table within a cell."""
        rows = (", ".join(cell.text for cell in row if cell.text) for row in self.rows)
        return " / ".join(row for row in rows if row)

    def lines(self) -> list[str]:
        """A Markdown table; nothing if no cell holds anything.

        The first row is the head if it stands in a `thead` or has nothing but `th`; else the head is empty.
        """
        rows = [(row, grid) for row, grid in zip(self.rows, _grid(self.rows), strict=True) if any(grid)]
        if not rows:
            return []
        width = max(len(grid) for _, grid in rows)
        head_given = self.head_rows > 0 or all(cell.heads for cell in rows[0][0])
        head = rows[0][1] if head_given else []
        body = rows[1:] if head_given else rows
        head = head + [""] * (width - len(head))
        return [_line(head), _line(["---"] * width), *(_line(grid) for _, grid in body)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _grid(rows: list[list[Cell]]) -> list[list[str]]:
    """The texts by row and column; a row may be shorter than the others."""
    above = _Above()
    found: list[list[str]] = []
    for row in rows:
        line: list[str] = []
        above.reach(line)
        for cell in row:
            for index in range(min(cell.across, MOST_COLUMNS_SPANNED)):
                if index and not above.pay(cell.text):
                    break
                if cell.down > 1 and above.budget > 0:
                    above.cells[len(line)] = (cell.text, cell.down - 1)
                line.append(cell.text)
            above.reach(line)
        while max(above.cells, default=-1) >= len(line) and above.pay(""):
            line.append("")  # a gap before columns that are reached
            above.reach(line)
        found.append(line)
    return found


@dataclass(slots=True)
class _Above:
    """Cells that reach down into the rows to come."""

    budget: int = MOST_REPEATED
    cells: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By column, the text and how many rows are still to come."""

    def pay(self, text: str) -> bool:
        """False if no more may be repeated in this table."""
        self.budget -= len(text) + 3
        if self.budget <= 0:
            self.cells.clear()
        return self.budget > 0

    def reach(self, line: list[str]) -> None:
        """Appends the cells that reach into the columns that follow."""
        while (column := len(line)) in self.cells:
            text, left = self.cells.pop(column)
            if not self.pay(text):
                return
            line.append(text)
            if left > 1:
                self.cells[column] = (text, left - 1)


class CellSink:
    """A line; ` / ` stands between its blocks."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._marker = ""
        self._levels: list[int | None] = []

    def text(self) -> str:
        """All that was written."""
        return " / ".join(self._pieces)

    def paragraph(self, text: str) -> None:
        """Each line is a piece."""
        for line in text.split("\n"):
            self._add(line.strip())

    def heading(self, level: int, text: str) -> None:  # noqa: ARG002 (a cell has none)
        """A piece like any other."""
        self._add(" ".join(text.split()))

    def code(self, text: str, language: str) -> None:  # noqa: ARG002 (a span has none)
        """Each line is a span of code."""
        for line in text.split("\n"):
            self._add(code_span(line))

    def table(self, table: Table) -> None:
        """The whole table is a piece."""
        self._add(table.flat())

    def open_quote(self) -> None:
        """Only counted: a cell shows no quotes."""
        self._levels.append(None)

    def open_list(self, start: int | None) -> None:
        """Items follow, until `close`."""
        self._levels.append(start)

    def open_item(self, box: str = "", number: int | None = None) -> None:
        """A number or a box stands before its first piece; bullets are left out."""
        current = self._levels[-1] if self._levels else None
        self._marker = f"{box} " if box else ""
        if current is not None:
            current = current if number is None else number
            self._marker = f"{current}. {self._marker}"
            self._levels[-1] = current + 1
        self._levels.append(None)

    def open_definition(self) -> None:
        """Only counted: a cell shows no definitions."""
        self._levels.append(None)

    def tick(self, box: str) -> bool:
        """Gives the item just opened a box."""
        if not self._levels or self._marker:
            return False
        self._marker = f"{box} "
        return True

    def close(self) -> None:
        """Ends what was opened last."""
        self._marker = ""
        if self._levels:
            self._levels.pop()

    def _add(self, piece: str) -> None:
        if piece:
            self._pieces.append(self._marker + piece)
            self._marker = ""


@dataclass(slots=True)
class _Level:
    """A quote, list or item that is open."""

    kind: str
    prefix: str
    """Of every line in it but the first."""
    marker: str
    """What it adds to its first line."""
    used: bool = False
    begin: int | None = None
    number: int | None = None
    """Of a list's first and next item."""
    style: str = ""
    width: int = 0
    """Of the marker of a list's last item."""
    ended: str = ""
    """Style of a list that ended last in here, with nothing behind it yet."""


class DocumentSink:
    """The page's own lines; a prefix is written once and never again, whatever the depth."""

    def __init__(self, most_characters: int) -> None:
        self.full = False
        self.depth_capped = False
        self._room = most_characters
        self._lines: list[str] = []
        self._levels = [_Level("root", "", "", used=True)]
        self._gap = 0
        self._shared = 1  # how many levels the last block and the next one have in common

    def text(self) -> str:
        """All that was written."""
        return "\n".join(self._lines).rstrip()

    def gap(self, size: int) -> None:
        """At least this much before the next block."""
        self._gap = max(self._gap, size)

    def paragraph(self, text: str) -> None:
        """Lines of running text."""
        self._write(paragraph_lines(text))

    def heading(self, level: int, text: str) -> None:
        """One line, with a blank one before and behind."""
        self._write_apart([f"{'#' * level} {escape_heading(text)}"])

    def code(self, text: str, language: str) -> None:
        """A fenced block; every blank of it counts."""
        fence = code_fence(text)
        self._write_apart([fence + language, *text.split("\n")], last=fence)

    def rule(self) -> None:
        """A line across."""
        self._write_apart(["---"])

    def table(self, table: Table) -> None:
        """A table with its head."""
        self._write_apart(table.lines(), whole=True)

    def open_quote(self) -> None:
        """What follows is quoted, until `close`."""
        self.gap(PARAGRAPH)
        self._open("quote", "> ", "> ")

    def open_list(self, start: int | None) -> None:
        """Items follow; a second list right behind one of its kind takes the other marker."""
        top = self._levels[-1]
        if top.kind not in ("item", "list"):
            self.gap(PARAGRAPH)
        style = "." if start is not None else "-"
        if top.ended == style:  # else Markdown would read both lists as one
            style = ")" if start is not None else "*"
        # A list right in a list, as old editors write it, belongs to the item before it.
        inset = " " * top.width if top.kind == "list" else ""
        self._open("list", inset, inset)
        level = self._levels[-1]
        level.begin, level.number, level.style = start, start, style

    def open_item(self, box: str = "", number: int | None = None) -> None:
        """What follows is one item, until `close`."""
        self.gap(LINE)
        parent = self._levels[-1]
        marker = "- "
        if parent.kind == "list":
            marker = f"{parent.style} "
            if parent.number is not None:
                parent.number = parent.number if number is None else number
                marker = f"{parent.number}{marker}"
                parent.number += 1
            parent.width = len(marker)
        self._open("item", " " * len(marker), f"{marker}{box} " if box else marker)

    def open_definition(self) -> None:
        """What follows says what the term before means, until `close`."""
        self.gap(LINE)
        self._open("definition", "  ", ": ")

    def tick(self, box: str) -> bool:
        """Gives the item just opened a box; False if it has text already, or none is open."""
        level = self._levels[-1]
        if level.kind != "item" or level.used or not level.marker or "[" in level.marker:
            return False
        level.marker += f"{box} "
        return True

    def close(self) -> None:
        """Ends the innermost quote, list, item or definition."""
        level = self._levels.pop()
        self._shared = min(self._shared, len(self._levels))
        self.gap(LINE if level.kind in ("item", "definition") else PARAGRAPH)
        if level.kind == "list" and level.used:
            self._levels[-1].ended = level.style

    def _open(self, kind: str, prefix: str, marker: str) -> None:
        if len(self._levels) > MOST_INDENT:
            prefix = marker = ""
            self.depth_capped = True
        self._levels.append(_Level(kind, self._levels[-1].prefix + prefix, marker))

    def _write_apart(self, lines: list[str], *, last: str = "", whole: bool = False) -> None:
        """One block with a blank line before and behind."""
        self._gap = PARAGRAPH
        self._write(lines, last=last, whole=whole)
        self._gap = PARAGRAPH

    def _write(self, lines: list[str], *, last: str = "", whole: bool = False) -> None:
        """One block; `last` ends it even if there is no room for all of it."""
        if self.full or not lines:
            return
        first = self._begin()
        prefix = self._levels[-1].prefix
        for line in lines:
            room = self._room - len(prefix) - 1
            if len(line) > room:
                self.full = True
                if room > 0 and not whole:
                    self._put(first, line[:room])
                break
            self._put(first, line)
            first = prefix
        if last:
            self._put(prefix, last)
        self._gap = LINE

    def _put(self, prefix: str, line: str) -> None:
        whole = prefix + line if line else prefix.rstrip()
        self._room -= len(whole) + 1
        self._lines.append(whole)

    def _begin(self) -> str:
        """Writes what lies between the blocks; the prefix of the next line comes back."""
        levels = self._levels
        fresh = len(levels)
        while not levels[fresh - 1].used:
            fresh -= 1
        if self._lines and self._wants_blank(fresh):
            self._put("", levels[self._shared - 1].prefix.rstrip())
        levels[fresh - 1].ended = ""
        first = levels[fresh - 1].prefix + "".join(level.marker for level in levels[fresh:])
        for level in levels[fresh:]:
            level.used = True
        self._shared = len(levels)
        return first

    def _wants_blank(self, fresh: int) -> bool:
        """Items of one list, and a list and the item it is in, stand close together."""
        levels = self._levels
        if fresh < len(levels):
            opened, around = levels[fresh], levels[fresh - 1]
            if opened.kind == "item" and around.kind == "list":
                return False
            if opened.kind == "list" and around.kind in ("item", "list") and not around.ended:
                return opened.begin not in (None, 1)  # such a list cannot interrupt a paragraph
        return self._gap >= PARAGRAPH


_NO_LANGUAGE = frozenset({"none", "text", "plain", "plaintext", "noformat"})


Sink = DocumentSink | CellSink
"""Takes blocks in their order, and the quotes and lists they stand in."""


class Writer:
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
        if isinstance(self.sink, DocumentSink):  # a cell has no lines to keep apart
            self.sink.gap(gap)

    def line_break(self) -> None:
        """One ends the line, a second one the paragraph."""
        if self.inline.at_line_start:
            self.flush(PARAGRAPH)
        else:
            self.inline.literal("\n")

    def bold_line(self, text: str, gap: int) -> None:
        """A line of its own, such as a panel's title."""
        self.flush(gap)
        with self.inline.mark(STRONG, around("**")):
            self.text(text)
        self.flush(gap)

    def link(self, label: str, url: str | None) -> None:
        """A link within the line."""
        with self.inline.mark(LINK, lambda body: link(body, url)):
            self.text(label)

    def leave(self, gap: int) -> None:
        """Ends the block, and the innermost quote, list, item or definition."""
        self.flush(gap)
        self.sink.close()

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
