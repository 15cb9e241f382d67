"""Tables as Markdown, with the cells that span columns and rows."""

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
        width = max(len(texts) for _, texts in rows)
        head_given = self.has_head or all(cell.heads for cell in rows[0][0])
        head = rows[0][1] if head_given else []
        body = [texts for _, texts in (rows[1:] if head_given else rows)]
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
            room -= sum(len(text) + 3 for text in line.values())
            below = {column: (text, left - 1) for column, (text, left) in above.items() if left > 1}
            column = 0
            for cell in row:
                while column in line:
                    column += 1
                across = min(cell.across, MOST_COLUMNS_SPANNED) if room > 0 else 1
                room -= (across - 1) * (len(cell.text) + 3)
                for place in range(column, column + across):
                    line[place] = cell.text
                    if cell.down > 1:
                        below[place] = (cell.text, cell.down - 1)
            width = max(line, default=-1) + 1
            room -= 3 * (width - len(line))
            above = below if room > 0 else {}
            found.append([line.get(column, "") for column in range(width)])
        return found
