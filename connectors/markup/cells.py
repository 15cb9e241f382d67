"""Blocks written one behind the other on one line, for a table's cell."""

from __future__ import annotations

from connectors.markup.escapes import code_span
from connectors.markup.tables import Table


class CellSink:
    """A line; ` / ` stands between its blocks."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._marker = ""
        self._levels: list[int | None] = []

    def text(self) -> str:
        """All that was written."""
        return " / ".join(self._pieces)

    def gap(self, size: int) -> int:  # noqa: ARG002 (whatever is asked for)
        """None: all of a cell stands on one line."""
        return 0

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

    def rule(self) -> bool:
        """None is drawn: all of a cell stands on one line."""
        return False

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
