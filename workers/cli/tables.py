"""What commands draw: tables and progress, on a screen that no text of a document can drive."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from pipeline.documents import CONTROLS, without_controls


class Screen(Console):
    """A console that shows controlling characters of no text; its own colours and movements stay."""

    def render(self, *given: Any, **named: Any) -> Iterator[Segment]:
        """What everything that is printed is made of."""
        for part in super().render(*given, **named):
            yield part if part.control else Segment(without_controls(part.text), part.style)


def warn(*lines: str) -> None:
    """Print lines on stderr, for a person."""
    print(without_controls("\n".join(lines)), file=sys.stderr)


def to_stdout_json(data: Any) -> str:
    """`data` as JSON that stdout can take: escaped where its encoding has not every letter, or a screen would obey."""
    every = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(data, indent=1, default=str, ensure_ascii=not every)
    return CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


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
