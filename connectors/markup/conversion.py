"""Conversion of a page's elements to lines of Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from connectors.markup.inline import (
    LINK,
    STRONG,
    Inline,
    LinkResolver,
    around,
    code_fence,
    code_span,
    escape_heading,
    link,
    paragraph_lines,
)
from connectors.markup.parsing import BLOCKS, HIDDEN, Element

MOST_COLUMNS_SPANNED = 50
MOST_REPEATED = 1_000_000
"""Most characters of one table that repeat the text of spanning cells; beyond, the repeated cells are empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One `td` or `th`: its text as Markdown, and how many columns and rows it spans."""

    text: str
    heads: bool
    across: int = 1
    down: int = 1


@dataclass(slots=True)
class Table:
    """The rows of one table, in the order of the markup."""

    rows: list[list[Cell]] = field(default_factory=list)
    has_head: bool = False
    """True if the first row is in a `thead`."""

    def flat(self) -> str:
        """The table on one line, for a table within a cell."""
        rows = (", ".join(cell.text for cell in row if cell.text) for row in self.rows)
        return " / ".join(row for row in rows if row)

    def lines(self) -> list[str]:
        """Lines of a Markdown table; an empty list if all cells are empty.

        The first row is the head if it is in a `thead` or consists of `th` only; else the head is empty.
        """
        rows = [(row, texts) for row, texts in zip(self.rows, self._texts(), strict=True) if any(texts)]
        if not rows:
            return []
        body = [texts for _, texts in rows]
        width = max(map(len, body))
        head = body.pop(0) if self.has_head or all(cell.heads for cell in rows[0][0]) else []
        lines = [head + [""] * (width - len(head)), ["---"] * width, *body]
        return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]

    def _texts(self) -> list[list[str]]:
        """Texts by row and column, with spans repeated; rows may differ in length."""
        grid: list[list[str]] = []
        room = MOST_REPEATED
        above: dict[int, tuple[str, int]] = {}
        """By column: text of a cell that spans further rows, and the number of these rows."""
        for row in self.rows:
            line = {column: text for column, (text, _) in above.items()}
            room -= sum(map(len, line.values())) + 3 * len(line)
            below = {
                column: (text, rows_left - 1) for column, (text, rows_left) in above.items() if rows_left > 1
            }
            column = 0
            for cell in row:
                while column in line:
                    column += 1
                across = min(cell.across, MOST_COLUMNS_SPANNED) if room > 0 else 1
                room -= (across - 1) * (len(cell.text) + 3)
                places = range(column, column + across)
                line |= dict.fromkeys(places, cell.text)
                if cell.down > 1:
                    below |= dict.fromkeys(places, (cell.text, cell.down - 1))
            width = max(line, default=-1) + 1
            room -= 3 * (width - len(line))
            above = below if room > 0 else {}
            grid.append([line.get(column, "") for column in range(width)])
        return grid


LINE, PARAGRAPH = 1, 2
"""Gap between two blocks: a line end, or a blank line."""
MOST_INDENT = 40
"""Nesting depth of quotes, lists and items that is indented; deeper ones are not."""
MOST_PARAMETER = 10_000
"""Most characters of a macro's parameter."""
_NO_LANGUAGE = frozenset({"none", "text", "plain", "plaintext", "noformat"})


@dataclass(kw_only=True)
class Macro:
    """A macro, or a node of the new editor."""

    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def inline(self) -> bool:
        """True if the macro is part of a line of text."""
        return self.first("atlassian-macro-output-type").upper() == "INLINE"

    def first(self, *names: str) -> str:
        """The first parameter of these names that is not blank; empty if there is none."""
        return next((value for name in names if (value := self.parameters.get(name, "").strip())), "")


@dataclass(slots=True, kw_only=True)
class _Container:
    """The page, a cell, a quote, a list, an item or a definition: its lines and their prefixes."""

    kind: str
    prefix: str = ""
    """Prefix of every line but the first."""
    marker: str = ""
    """Prefix of the first line."""
    depth: int = 0
    indent: int = 0
    """Characters before a line, with the prefixes of outer containers."""
    lines: list[str] = field(default_factory=list)
    gap: int = 0
    """Gap before the first line."""
    begin: int | None = None
    number: int | None = None
    """Numbers of a list's first and next item; None for bullets."""
    style: str = ""
    width: int = 0
    """Characters of the marker of a list's last item."""
    ended: str = ""
    """Style of the list that is the container's last block so far; empty if it is another block."""

    def add(self, lines: Iterable[str], gap: int, *, blank: bool) -> None:
        if not self.lines:
            self.gap = gap
        elif blank:
            self.lines.append("")
        self.lines += lines
        self.ended = ""

    def add_all_of(self, inner: _Container) -> None:
        """Appends a finished inner container; no blank line between items of a list, or an item and its list."""
        if not inner.lines:
            return
        blank = inner.gap >= PARAGRAPH
        if inner.kind == "item" and self.kind == "list":
            blank = False
        elif inner.kind == "list" and self.kind in ("item", "list") and not self.ended:
            blank = inner.begin not in (None, 1)  # such a list cannot interrupt a paragraph
        first, *later_lines = inner.lines
        blank_line = inner.prefix.rstrip()
        lines = [inner.marker + first, *(inner.prefix + line if line else blank_line for line in later_lines)]
        self.add(lines, inner.gap, blank=blank)
        self.ended = inner.style


class Conversion:
    """State of one page's conversion, which the handlers of elements change."""

    def __init__(self, handlers: Mapping[str, Handler], links: LinkResolver, most_characters: int) -> None:
        self.links = links
        self.inline = Inline()
        self.heading = 0
        """Level of the open heading; 0 if none is open."""
        self.words = 0
        """Number of visible pieces of text so far; an unchanged number means that nothing was written."""
        self.code: list[str] | None = None
        """Pieces of the open code block; None if none is open."""
        self.table: Table | None = None
        self.macro = Macro()
        self.full = False
        self._handlers = handlers
        self._room = most_characters
        self._container = _Container(kind="page")
        self._gap = 0
        self._in_cell = False

    def result(self) -> str:
        """The page as Markdown."""
        self.flush(0)
        return "\n".join(self._container.lines).rstrip()

    def render(self, nodes: Iterable[Element | str]) -> None:
        """Writes the nodes; within code, elements of HTML give line ends only, no formatting."""
        for node in nodes:
            if self.full:
                return
            if isinstance(node, str):
                self.text(node)
            elif node.name in HIDDEN:
                continue
            elif self.code is None or ":" in node.name or node.name == "time":
                self._handlers.get(node.name, Conversion._within)(self, node)
            elif node.name == "br":
                self.text("\n")
            else:
                if node.name in BLOCKS:
                    self.flush(LINE)
                self.render(node.children)

    def _within(self, element: Element) -> None:
        self.render(element.children)

    # -- running text ------------------------------------------------------------------------------------

    def text(self, data: str) -> None:
        """Appends text as it is in the markup."""
        if self.code is not None:
            self.code.append(data)
            self.words += 1
        elif self.inline.text(data):
            self.words += 1

    def literal(self, markdown: str) -> None:
        """Appends a piece of a line that is Markdown already."""
        if self.code is not None:
            self.text(markdown)
        elif markdown:
            self.inline.literal(markdown)
            self.words += 1

    def link(self, label: str, url: str | None) -> None:
        """Appends a link within the line."""
        with self.inline.mark(LINK, lambda body: link(body, url)):
            self.text(label)

    def box(self, text: str) -> None:
        """Appends a text that pages show in a box, such as a status, apart from the words beside it."""
        if text.strip():
            with self.inline.box():
                self.text(text.strip())

    def formula(self, tex: str, *, block: bool = False) -> None:
        """Appends a formula as TeX, in the line or as a block."""
        tex = " ".join(tex.split()).strip("$ ").removeprefix("\\(").removesuffix("\\)")
        if not tex:
            return
        sign = "$$" if block else "$"
        if block:
            self.flush(PARAGRAPH)
        self.literal(f"{sign}{tex}{sign}")
        if block:
            self.flush(PARAGRAPH)

    def flush(self, gap: int) -> None:
        """Ends the block, within code the line; the next block follows after at least `gap`."""
        if self.code is not None:
            if self.code and not self.code[-1].endswith("\n"):
                self.code.append("\n")
            return
        text = self.inline.take()
        if text and self._in_cell:
            lines = [" ".join(text.split())] if self.heading else text.split("\n")
            self._write(list(map(str.strip, lines)))
        elif text and self.heading:
            self._write([f"{'#' * self.heading} {escape_heading(text)}"], PARAGRAPH)
        elif text:
            self._write(paragraph_lines(text))
        self._gap = max(self._gap, gap)

    def line_break(self) -> None:
        """Ends the line; at the start of a line, ends the paragraph."""
        if self.inline.at_line_start:
            self.flush(PARAGRAPH)
        else:
            self.inline.literal("\n")

    # -- blocks ------------------------------------------------------------------------------------------

    def block(self, element: Element, gap: int) -> None:
        """Writes an element's content on separate lines, with at least `gap` before and after."""
        self.flush(gap)
        self.render(element.children)
        self.flush(gap)

    def bold_line(self, text: str) -> None:
        """Writes a bold paragraph, such as a panel's title."""
        self.flush(PARAGRAPH)
        with self.inline.mark(STRONG, around("**")):
            self.text(text)
        self.flush(PARAGRAPH)

    def rule(self) -> None:
        """Writes a horizontal rule; in a cell nothing."""
        self.flush(PARAGRAPH)
        if not self._in_cell:
            self._write(["---"], PARAGRAPH)

    def code_block(self, element: Element, language: str) -> None:
        """Writes an element's text as code, with its blanks; one line end at the end is dropped."""
        self.flush(PARAGRAPH)
        if self.code is not None:  # code within code is part of it
            self.render(element.children)
            self.flush(LINE)
            return
        self.code = []
        self.render(element.children)
        text, self.code = "".join(self.code), None
        if element.name == "pre":
            text = text.removeprefix("\n")  # as browsers do
        text = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
        name = re.sub(r"[^\w+#.-]", "", language.strip().lower()[:40])
        if text.strip() and self._in_cell:
            self._write([code_span(line) for line in text.split("\n")])
        elif text.strip():
            fence = code_fence(text)
            opening = fence + ("" if name in _NO_LANGUAGE else name)
            self._write([opening, *text.split("\n")], PARAGRAPH, last=fence)

    def write_table(self, table: Table) -> None:
        """Writes a table with its head; in a cell, on one line."""
        self._write([table.flat()] if self._in_cell else table.lines(), PARAGRAPH, by_line=True)

    def cell(self, element: Element) -> str:
        """An element's content on one line, ` / ` between its blocks."""
        around = self._container, self.inline, self.heading, self._in_cell, self._gap
        self._container, self.inline, self.heading = _Container(kind="cell"), Inline(), 0
        self._in_cell = True
        self.render(element.children)
        self.flush(0)
        text = " / ".join(filter(None, self._container.lines))
        self._container, self.inline, self.heading, self._in_cell, self._gap = around
        return text

    def quoted(self, element: Element, header: str = "") -> None:
        """Writes an element's content as a quote, below `header` as a bold line."""
        self.flush(PARAGRAPH)
        self._render_in(_Container(kind="quote", prefix="> ", marker="> "), element, PARAGRAPH, header)

    def definition(self, element: Element) -> None:
        """Writes the definition of the term before."""
        self.flush(LINE)
        self._render_in(_Container(kind="definition", prefix="  ", marker=": "), element, LINE)

    def listed(self, element: Element, begin: int | None = None) -> None:
        """Writes a list, numbered from `begin` if given; directly after a list of its style with the other marker."""
        container = self._container
        self.flush(LINE if container.kind in ("item", "list") else PARAGRAPH)
        style = "-" if begin is None else "."
        if container.ended == style and not self._in_cell:  # else Markdown would read both lists as one
            style = "*" if begin is None else ")"
        # A list right in a list, as old editors write it, belongs to the item before it.
        inset = " " * container.width
        inner = _Container(kind="list", prefix=inset, marker=inset, begin=begin, number=begin, style=style)
        self._render_in(inner, element, PARAGRAPH)

    def item(self, element: Element, box: str = "", number: int | None = None) -> None:
        """Writes an item of a list; in a cell with its number or check box, without a bullet."""
        self.flush(LINE)
        parent, marker = self._container, "" if self._in_cell else f"{self._container.style or '-'} "
        if parent.number is not None:
            number = parent.number if number is None else number
            marker = f"{number}{parent.style} "
            parent.number = number + 1
        prefix = "" if self._in_cell else " " * len(marker)
        parent.width = len(prefix) if parent.kind == "list" else 0
        marker += f"{box} " if box else ""
        self._render_in(_Container(kind="item", prefix=prefix, marker=marker), element, LINE)

    def tick(self, box: str) -> None:
        """Writes a check box: as part of the marker of an item just opened, else in the text."""
        item = self._container
        if item.kind == "item" and not item.lines and self.inline.empty and "[" not in item.marker:
            item.marker += f"{box} "
        else:
            self.literal(f"{box} ")

    def _render_in(self, inner: _Container, element: Element, gap_after: int, header: str = "") -> None:
        outer, self._container = self._container, inner
        inner.depth = outer.depth + 1
        if inner.depth > MOST_INDENT or (self._in_cell and inner.kind != "item"):
            inner.prefix = inner.marker = ""
        inner.indent = outer.indent + len(inner.prefix)
        if header:
            self.bold_line(header)
        self.render(element.children)
        self.flush(gap_after)
        self._container = outer
        outer.add_all_of(inner)

    def _write(self, lines: list[str], gap: int = LINE, *, last: str = "", by_line: bool = False) -> None:
        """Writes a block; `last` ends it even if it does not fit, `by_line` cuts it between lines only."""
        lines = lines if not self._in_cell else [line for line in lines if line]
        if self.full or not lines:
            return
        self._gap = max(self._gap, gap)
        self._room -= self._gap - 1
        for index, line in enumerate(() if self._in_cell else lines):
            room = self._room - self._container.indent - 1
            if len(line) > room:
                self.full = True
                lines = lines[:index] + ([] if by_line else [line[: max(0, room)]])
                break
            self._room = room - len(line)
        self._container.add([*lines, last] if last else lines, self._gap, blank=self._gap >= PARAGRAPH)
        self._gap = gap


Handler = Callable[[Conversion, Element], None]
"""Function that writes one element."""
