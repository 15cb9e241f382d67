"""The walk over a page's elements, and the lines of Markdown it leaves."""

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
    has_head: bool = False
    """True if its first row stands in a `thead`."""

    def flat(self) -> str:
        """All in one line, for a table within a cell."""
        rows = (", ".join(cell.text for cell in row if cell.text) for row in self.rows)
        return " / ".join(row for row in rows if row)

    def lines(self) -> list[str]:
        """A Markdown table; nothing if no cell holds anything.

        The first row is the head if it stands in a `thead` or has nothing but `th`; else the head is empty.
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
        """By row and column; a row may be shorter than the others."""
        found: list[list[str]] = []
        room = MOST_REPEATED
        above: dict[int, tuple[str, int]] = {}
        """By column, the text of a cell that reaches down, and how many rows are still to come."""
        for row in self.rows:
            line = {column: text for column, (text, _) in above.items()}
            room -= sum(map(len, line.values())) + 3 * len(line)
            below = {column: (text, left - 1) for column, (text, left) in above.items() if left > 1}
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
            found.append([line.get(column, "") for column in range(width)])
        return found


LINE, PARAGRAPH = 1, 2
"""What lies between two blocks: a line end, or a blank line."""
MOST_INDENT = 40
"""Quotes, lists and items within each other that are shown as such."""
MOST_PARAMETER = 10_000
"""Characters of a macro's parameter."""
_NO_LANGUAGE = frozenset({"none", "text", "plain", "plaintext", "noformat"})


@dataclass(kw_only=True)
class Macro:
    """A macro, or a node of the new editor."""

    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def inline(self) -> bool:
        """True if it stands within a line."""
        return self.first("atlassian-macro-output-type").upper() == "INLINE"

    def first(self, *names: str) -> str:
        """The first parameter of these names that holds anything."""
        return next((value for name in names if (value := self.parameters.get(name, "").strip())), "")


@dataclass(slots=True, kw_only=True)
class _Container:
    """The page, a cell, or a quote, list, item or definition: lines, and what stands before them."""

    kind: str
    prefix: str = ""
    """Of every line but the first."""
    marker: str = ""
    """Of its first line."""
    depth: int = 0
    indent: int = 0
    """Characters of all prefixes of a line."""
    lines: list[str] = field(default_factory=list)
    gap: int = 0
    """Before its first line."""
    begin: int | None = None
    number: int | None = None
    """Of a list's first and next item."""
    style: str = ""
    width: int = 0
    """Of the marker of a list's last item."""
    ended: str = ""
    """Style of a list that ended last in here, with nothing behind it yet."""

    def add(self, lines: Iterable[str], gap: int, *, blank: bool) -> None:
        if not self.lines:
            self.gap = gap
        elif blank:
            self.lines.append("")
        self.lines += lines
        self.ended = ""

    def add_all_of(self, inner: _Container) -> None:
        """Items of one list, and a list and the item it is in, stand close together."""
        if not inner.lines:
            return
        blank = inner.gap >= PARAGRAPH
        if inner.kind == "item" and self.kind == "list":
            blank = False
        elif inner.kind == "list" and self.kind in ("item", "list") and not self.ended:
            blank = inner.begin not in (None, 1)  # such a list cannot interrupt a paragraph
        head, *rest = inner.lines
        bare = inner.prefix.rstrip()
        lines = [inner.marker + head, *(inner.prefix + line if line else bare for line in rest)]
        self.add(lines, inner.gap, blank=blank)
        self.ended = inner.style


class Conversion:
    """The state of one page's conversion, for the handlers of elements to work on."""

    def __init__(self, handlers: Mapping[str, Handler], links: LinkResolver, most_characters: int) -> None:
        self.links = links
        self.inline = Inline()
        self.heading = 0
        """The level of the heading that is open, or 0."""
        self.words = 0
        """Grows with every piece of visible text: compare before and after."""
        self.code: list[str] | None = None
        """Pieces of the code block that is open."""
        self.table: Table | None = None
        self.macro = Macro()
        self.full = False
        self._handlers = handlers
        self._room = most_characters
        self._here = _Container(kind="page")
        self._gap = 0
        self._in_cell = False

    def result(self) -> str:
        """All that was written."""
        self.flush(0)
        return "\n".join(self._here.lines).rstrip()

    def render(self, nodes: Iterable[Element | str]) -> None:
        """Writes what these say; within code, elements of HTML are but colours and line ends."""
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

    def link(self, label: str, url: str | None) -> None:
        """A link within the line."""
        with self.inline.mark(LINK, lambda body: link(body, url)):
            self.text(label)

    def box(self, text: str) -> None:
        """A piece of the line in a box of its own, such as a status."""
        if text.strip():
            with self.inline.box():
                self.text(text.strip())

    def formula(self, tex: str, *, block: bool = False) -> None:
        """A formula as TeX, in the line or as a block of its own."""
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
        """Ends the block, within code the line; at least `gap` lies before the next block."""
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
        """One ends the line, a second one the paragraph."""
        if self.inline.at_line_start:
            self.flush(PARAGRAPH)
        else:
            self.inline.literal("\n")

    # -- blocks ------------------------------------------------------------------------------------------

    def block(self, element: Element, gap: int) -> None:
        """What it holds, on lines of its own, `gap` away from what is around it."""
        self.flush(gap)
        self.render(element.children)
        self.flush(gap)

    def bold_line(self, text: str) -> None:
        """A line of its own, such as a panel's title."""
        self.flush(PARAGRAPH)
        with self.inline.mark(STRONG, around("**")):
            self.text(text)
        self.flush(PARAGRAPH)

    def rule(self) -> None:
        """A line across; a cell has none."""
        self.flush(PARAGRAPH)
        if not self._in_cell:
            self._write(["---"], PARAGRAPH)

    def code_block(self, element: Element, language: str) -> None:
        """All text in it, each blank as it was; one line end at its end belongs to the fence."""
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
        """A table with its head; in a cell, all in one line."""
        self._write([table.flat()] if self._in_cell else table.lines(), PARAGRAPH, whole=True)

    def cell(self, element: Element) -> str:
        """What it holds, on one line; ` / ` stands between its blocks."""
        around = self._here, self.inline, self.heading, self._in_cell, self._gap
        self._here, self.inline, self.heading = _Container(kind="cell"), Inline(), 0
        self._in_cell = True
        self.render(element.children)
        self.flush(0)
        text = " / ".join(filter(None, self._here.lines))
        self._here, self.inline, self.heading, self._in_cell, self._gap = around
        return text

    def quoted(self, element: Element, header: str = "") -> None:
        """What it holds as a quote, below a bold line if there is a header."""
        self.flush(PARAGRAPH)
        self._render_in(_Container(kind="quote", prefix="> ", marker="> "), element, PARAGRAPH, header)

    def definition(self, element: Element) -> None:
        """It says what the term before means."""
        self.flush(LINE)
        self._render_in(_Container(kind="definition", prefix="  ", marker=": "), element, LINE)

    def listed(self, element: Element, begin: int | None = None) -> None:
        """A list, with numbers if it has a `begin`; right behind one of its kind it takes the other marker."""
        here = self._here
        self.flush(LINE if here.kind in ("item", "list") else PARAGRAPH)
        style = "-" if begin is None else "."
        if here.ended == style and not self._in_cell:  # else Markdown would read both lists as one
            style = "*" if begin is None else ")"
        # A list right in a list, as old editors write it, belongs to the item before it.
        inset = " " * here.width
        inner = _Container(kind="list", prefix=inset, marker=inset, begin=begin, number=begin, style=style)
        self._render_in(inner, element, PARAGRAPH)

    def item(self, element: Element, box: str = "", number: int | None = None) -> None:
        """An item of a list. In a cell, a number or a box shows and a bullet does not."""
        self.flush(LINE)
        parent, marker = self._here, "" if self._in_cell else f"{self._here.style or '-'} "
        if parent.number is not None:
            number = parent.number if number is None else number
            marker = f"{number}{parent.style} "
            parent.number = number + 1
        prefix = "" if self._in_cell else " " * len(marker)
        parent.width = len(prefix) if parent.kind == "list" else 0
        marker += f"{box} " if box else ""
        self._render_in(_Container(kind="item", prefix=prefix, marker=marker), element, LINE)

    def tick(self, box: str) -> None:
        """A check box: of the item just opened, else where it stands."""
        item = self._here
        if item.kind == "item" and not item.lines and self.inline.empty and "[" not in item.marker:
            item.marker += f"{box} "
        else:
            self.literal(f"{box} ")

    def _render_in(self, inner: _Container, element: Element, behind: int, header: str = "") -> None:
        outer, self._here = self._here, inner
        inner.depth = outer.depth + 1
        if inner.depth > MOST_INDENT or (self._in_cell and inner.kind != "item"):
            inner.prefix = inner.marker = ""
        inner.indent = outer.indent + len(inner.prefix)
        if header:
            self.bold_line(header)
        self.render(element.children)
        self.flush(behind)
        self._here = outer
        outer.add_all_of(inner)

    def _write(self, lines: list[str], gap: int = LINE, *, last: str = "", whole: bool = False) -> None:
        """One block; `last` ends it even if there is no room for all of it, a `whole` one is cut between lines."""
        lines = lines if not self._in_cell else [line for line in lines if line]
        if self.full or not lines:
            return
        self._gap = max(self._gap, gap)
        self._room -= self._gap - 1
        for index, line in enumerate(() if self._in_cell else lines):
            room = self._room - self._here.indent - 1
            if len(line) > room:
                self.full = True
                lines = lines[:index] + ([] if whole else [line[: max(0, room)]])
                break
            self._room = room - len(line)
        self._here.add([*lines, last] if last else lines, self._gap, blank=self._gap >= PARAGRAPH)
        self._gap = gap


Handler = Callable[[Conversion, Element], None]
"""Writes one element."""
