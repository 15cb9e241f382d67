"""Blocks written as lines of Markdown, each with the prefix of all it stands in."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.markup.escapes import code_fence, escape_heading, paragraph_lines
from connectors.markup.sinks import LINE, PARAGRAPH
from connectors.markup.tables import Table

MOST_INDENT = 40
"""Quotes, lists and items within each other that are shown as such."""


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

    def gap(self, size: int) -> int:
        """At least this much before the next block."""
        self._gap = max(self._gap, size)
        return self._gap

    def paragraph(self, text: str) -> None:
        """Lines of running text."""
        self._write(paragraph_lines(text))

    def heading(self, level: int, text: str) -> None:
        """One line, with a blank one before and behind."""
        self._gap = PARAGRAPH
        self._write([f"{'#' * level} {escape_heading(text)}"])
        self._gap = PARAGRAPH

    def code(self, text: str, language: str) -> None:
        """A fenced block; every blank of it counts."""
        fence = code_fence(text)
        self._gap = PARAGRAPH
        self._write([fence + language, *text.split("\n")], last=fence)
        self._gap = PARAGRAPH

    def rule(self) -> bool:
        """A line across."""
        self._gap = PARAGRAPH
        self._write(["---"])
        self._gap = PARAGRAPH
        return True

    def table(self, table: Table) -> None:
        """A table with its head."""
        self._gap = PARAGRAPH
        self._write(table.lines(), whole=True)
        self._gap = PARAGRAPH

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
