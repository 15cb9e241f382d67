"""Tables whose names stay whole: on a screen that is too narrow for the table each row becomes a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

LEAST = 20
"""Columns that a folded text needs to be read with ease; shorter texts need what they have."""
INDENT = 2


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows to print. The first column names the row."""

    heads: Sequence[str]
    rows: list[Sequence[Text]] = field(default_factory=list)
    folded: frozenset[str] = frozenset()
    """Heads of columns that may take several lines, besides the first."""
    right: frozenset[str] = frozenset()
    """Heads of columns of numbers."""

    def add(self, *cells: str | Text) -> None:
        """Add a row; what is no `Text` is printed as it stands, without markup."""
        self.rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table if it fits, else blocks."""
        if self._needs() <= options.max_width:
            yield self._table()
        else:
            for row in self.rows:
                yield from self._block(row, options.max_width)

    def _folds(self, n: int) -> bool:
        return n == 0 or self.heads[n] in self.folded

    def _needs(self) -> int:
        """Columns of the screen that the table takes at least."""
        widest = [
            max([len(head), *(row[n].cell_len for row in self.rows)]) for n, head in enumerate(self.heads)
        ]
        return sum(min(w, LEAST) if self._folds(n) else w for n, w in enumerate(widest)) + len(widest) - 1

    def _table(self) -> Table:
        table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
        for n, head in enumerate(self.heads):
            folds = self._folds(n)
            table.add_column(
                head, justify="right" if head in self.right else "left", no_wrap=not folds, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def _block(self, row: Sequence[Text], width: int) -> Iterator[Text | Padding]:
        """The name, then the rest in as few lines as it takes; a label never parts from its value."""
        yield Text(overflow="fold").append_text(row[0])
        line = Text(overflow="fold")
        for head, cell in zip(self.heads[1:], row[1:], strict=True):
            if not cell.plain:
                continue
            pair = Text.assemble((f"{head} ", "dim"), cell)
            if line and INDENT + line.cell_len + 2 + pair.cell_len > width:
                yield Padding(line, (0, 0, 0, INDENT))
                line = Text(overflow="fold")
            line.append("  " if line else "").append_text(pair)
        yield Padding(line, (0, 0, 0, INDENT))
