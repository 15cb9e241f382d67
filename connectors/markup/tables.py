"""Rows of cells as a Markdown table, with what spans several cells repeated in each."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        while above.cells and max(above.cells) >= len(line) and above.pay(""):
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
