"""The table of what scores are made of, with small bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Column, the raw value, its part of the score. All parts of a row add up to its score.
PARTS = (
    ("meaning", "similarity", "vector_part"),
    ("words", "overlap", "keyword_part"),
    ("title", "title", "title_part"),
    ("all words", "covered", "covered_part"),
    ("reranker", "rerank", "rerank_part"),
    ("outdated", None, "standing_part"),
    ("feedback", "feedback", "feedback_part"),
)
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FIXED = 10
"""Columns of rank and score."""
_NUMBER = 7


def show_scores(console: Console, hits: Sequence[Any], widest: int) -> None:
    """Print a row per hit: parts of its score as bars over the raw values they come from."""
    told = [hit.explanation for hit in hits if hit.explanation is not None]
    columns = [c for c in PARTS if any(_counts(e, c) for e in told)]
    room = (min(console.width, widest) - _FIXED) // max(1, len(columns)) - _NUMBER - 2
    width = max(2, min(12, room))
    most = max((abs(getattr(e, part)) for e in told for _, _, part in columns), default=0.0)
    plain = not (console.encoding or "").lower().startswith("utf")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("#", justify="right", style="bold")
    table.add_column("score", style="green")
    for name, _, _ in columns:
        table.add_column(f" {name}", no_wrap=True)
    for n, hit in enumerate(hits, 1):
        cells = [_cell(hit.explanation, column, most, width, plain=plain) for column in columns]
        table.add_row(f"{n}.", f"{hit.score:.3f}", *cells)
    console.print(table)


def _counts(explanation: Any, column: tuple[str, str | None, str]) -> bool:
    _, raw, part = column
    return bool(getattr(explanation, part)) or bool(raw and getattr(explanation, raw))


def _cell(
    explanation: Any, column: tuple[str, str | None, str], most: float, width: int, *, plain: bool
) -> Text:
    _, raw, part = column
    value = getattr(explanation, part)
    drawn = bar(abs(value) / most if most else 0.0, width, plain=plain)
    cell = Text(f"{value:>6.3f} ")
    cell.append(f"{drawn}\n", style="red" if value < 0 else "cyan")
    source = getattr(explanation, raw) if raw else None
    cell.append("" if source is None else f"{source:>6.3f}", style="dim")
    return cell


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A bar of `share` (0 to 1) of `width` columns, in eighths of a column; `plain` in ASCII."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if plain:
        return ("#" * round(eighths / 8)).ljust(width)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
