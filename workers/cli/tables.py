"""What commands draw: tables that become blocks on a narrow screen, the parts of scores as bars, progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

LEAST = 20
"""Columns that a folded text needs to be read with ease; shorter texts need what they have."""
INDENT = 2


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows to print; where they do not fit, each becomes a block under its first cell, which names it."""

    heads: Sequence[str]
    rows: list[Sequence[Text]] = field(default_factory=list)
    folded: frozenset[str] = frozenset()
    """Heads of columns that may take several lines, besides the first."""
    right: frozenset[str] = frozenset()
    """Heads of columns of numbers."""

    def add(self, *cells: object) -> None:
        """Add a row; what is no `Text` is printed as it stands, without markup."""
        self.rows.append([cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells])

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


def progress_bars(console: Console, *, transient: bool = False) -> Progress:
    """Bars for a terminal, with a `note` field behind each; nothing elsewhere."""
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        disable=not console.is_terminal,
        transient=transient,
    )


# Parts of scores ----------------------------------------------------------------------------------

SCORE_PARTS = (
    ("meaning", "semantic_score", "vector_part"),
    ("words", "overlap_score", "keyword_part"),
    ("title", "title_score", "title_part"),
    ("all words", "covered_score", "covered_part"),
    ("reranker", "rerank_score", "rerank_part"),
    ("outdated", "", "standing_part"),
    ("feedback", "feedback", "feedback_part"),
)
"""Label, the raw value and its part of the score in an explanation's JSON. The parts of a row add up to its score."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FIXED = 10
"""Columns of rank and score."""
_NUMBER = 7


def show_scores(console: Console, hits: Sequence[Any], widest: int) -> None:
    """Print a row per hit: parts of its score as bars over the raw values they come from."""
    told = [hit.explanation.to_json() for hit in hits]
    columns = [c for c in SCORE_PARTS if any(one[c[2]] or one.get(c[1]) for one in told)]
    room = (min(console.width, widest) - _FIXED) // max(1, len(columns)) - _NUMBER - 2
    width = max(2, min(12, room))
    most = max((abs(one[part]) for one in told for _, _, part in columns), default=0.0)
    plain = not console.encoding.startswith("utf")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("#", justify="right", style="bold")
    table.add_column("score", style="green")
    for name, _, _ in columns:
        table.add_column(f" {name}", no_wrap=True)

    def cell(one: Mapping[str, Any], raw: str, part: str) -> Text:
        drawn = bar(abs(one[part]) / most if most else 0.0, width, plain=plain)
        made = Text(f"{one[part]:>6.3f} ").append(f"{drawn}\n", style="red" if one[part] < 0 else "cyan")
        return made.append("" if one.get(raw) is None else f"{one[raw]:>6.3f}", style="dim")

    for n, (hit, one) in enumerate(zip(hits, told, strict=True), 1):
        table.add_row(f"{n}.", f"{hit.score:.3f}", *(cell(one, raw, part) for _, raw, part in columns))
    console.print(table)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A bar of `share` (0 to 1) of `width` columns, in eighths of a column; `plain` in ASCII."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if plain:
        return ("#" * round(eighths / 8)).ljust(width)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
