"""What commands draw: tables, and progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()) -> Table:
    """Rows under their heads, folded where they do not fit; what is no `Text` is printed as it stands, not as markup.

    `right` are the heads of columns of numbers; without heads there is no line for them.
    """
    columns = [Column(head, overflow="fold", justify="right" if head in right else "left") for head in heads]
    made = Table(*columns, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    made.show_header = any(heads)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


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
