"""Tables and progress of commands, on a screen that no text of a document can drive."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.containers import Lines
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from pipeline.documents import Json
from pipeline.documents.plain_text import CONTROLS, plural, without_controls


class Screen(Console):
    """A console that shows controlling characters of no text; its own colours and movements stay."""

    def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
        """Segments of everything that is printed, without controlling characters."""
        for part in super().render(*args, **kwargs):
            yield part if part.control else Segment(without_controls(part.text), part.style)


def warn(*lines: str) -> None:
    """Print lines on stderr, for a person."""
    print(without_controls("\n".join(lines)), file=sys.stderr)


def to_stdout_json(data: Any) -> str:
    """`data` as JSON that stdout can take: escaped where its encoding has not every letter, or a screen would obey."""
    every = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(data, indent=1, default=str, ensure_ascii=not every)
    return CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], text)


_PIECE = re.compile(r"[^-_./\\@,:;=]+[-_./\\@,:;=]*|[-_./\\@,:;=]+")


class TableCell(Text):
    """Plain text of a table, of which a word that is longer than its column is broken behind one of its marks."""

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """Lines of the cell."""

        def broken(word: re.Match[str]) -> str:
            lines = [""]
            for piece in _PIECE.findall(word[0]):
                if len(lines[-1]) + len(piece) > width and lines[-1]:
                    lines.append("")
                lines[-1] += piece
            return "\n".join(lines)

        plain = re.sub(rf"\S{{{width + 1},}}", broken, self.plain)
        return Text(plain, self.style).wrap(console, width, **options)


MOST_PIECE = 12
"""Characters of a word that its column has room for; a longer one may be broken anywhere."""


class FittingTable(Table):
    """A table; on a screen too narrow for the words of its columns, the cells of each row as a list."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, or lists where it does not fit."""
        least = [self._least_width(column) for column in self.columns]
        fits = sum(least) + len(least) <= options.max_width
        drawn = super().__rich_console__(console, options)
        yield from drawn if fits or not self.show_header else self._lists()

    def _lists(self) -> Iterator[Text]:
        heads = [f"  {column.header}: " for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            heads[0] = f"{self.columns[0].header} " if str(row[0]).isdecimal() else ""
            for head, cell in zip(heads, row, strict=True):
                if isinstance(cell, Text) and cell.plain:
                    yield Text(head).append_text(cell)

    @staticmethod
    def _least_width(column: Column) -> int:
        texts = (str(cell) for cell in (column.header, *column.cells) if isinstance(cell, str | Text))
        return max((min(len(piece), MOST_PIECE) for text in texts for piece in _words(text)), default=1)


def _words(text: str) -> Iterator[str]:
    """The words of a text, and the pieces of those that are broken behind their marks."""
    for word in text.split():
        yield from _PIECE.findall(word)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()) -> Table:
    """Rows under their heads, broken between words where they do not fit; text is printed as it stands, not as markup.

    `right` are the heads of columns of numbers; without heads there is no line for them.
    """
    columns = [Column(head, overflow="fold", justify="right" if head in right else "left") for head in heads]
    fitting = FittingTable(*columns, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    fitting.show_header = any(heads)
    for row in rows:
        fitting.add_row(
            *(cell if isinstance(cell, Text | ProgressBar) else TableCell(str(cell)) for cell in row)
        )
    return fitting


def hanging(console: Console, lines: Sequence[str], indent: int) -> Iterator[str]:
    """Break lines between words for a person's screen, indented from the second on; elsewhere leave them whole."""
    for line in lines:
        if not (console.is_terminal and len(line) > console.width):
            yield line
            continue
        yield textwrap.fill(
            line,
            console.width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )


_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def duration_text(seconds: float | None) -> str:
    """Duration for people, in about four characters at most; `never` for None."""
    if seconds is None:
        return "never"
    return next((f"{int(seconds // size)}{unit}" for size, unit in _UNITS if seconds >= size), "0s")


def rate_and_time_left(rate: float | None, seconds_left: float | None) -> str:
    """Rate per second and time left as text; empty if they are not known."""
    return f"{rate:.1f}/s" + (f", {duration_text(seconds_left)} left" if seconds_left else "") if rate else ""


class PaceColumn(ProgressColumn):
    """Column of the rate and the time left."""

    def render(self, task: Task) -> Text:
        """Pace of the last half minute."""
        return Text(rate_and_time_left(task.speed, task.time_remaining))


_Line = TypeVar("_Line")


def first_lines(lines: Sequence[_Line], most: int, rest: str) -> list[_Line | str]:
    """At most `most` lines: if there are more, the last one tells how many, and ends with `rest`."""
    if len(lines) <= most:
        return [*lines]
    return [*lines[: most - 1], f"... and {len(lines) - most + 1} more{rest}"]


def findings_text(checks: Sequence[Json]) -> Text:
    """Findings of `larder sources check`, by source."""
    screen = Text() if checks else Text("no sources are configured")
    for one in checks:
        screen.append(f"{one['source']}\n", style="bold")
        for finding in one["findings"]:
            screen.append("  ok   " if finding["ok"] else "  bad  ", style="" if finding["ok"] else "red")
            screen.append(f"{finding['subject']}: {finding['detail']}\n")
            screen.append(f"       {finding['fix']}\n" if finding["fix"] else "")
    screen.rstrip()
    return screen


FIRST_CHARACTERS = 300
"""Characters of a document's text on the screen; --json has all."""
MOST_REQUESTS = 50


def tried_lines(answer: Json) -> list[Text | str]:
    """Documents of `larder sources try`, the requests, and what was empty, left out or failed."""
    screen = Text()
    for one in answer["documents"]:
        screen.append(f"{one['title']}\n", style="bold")
        screen.append("".join(_fact_lines(one)))
        more = len(one["text"]) - FIRST_CHARACTERS
        end = f"\n... and {plural(more, 'character')} more" if more > 0 else ""
        screen.append(textwrap.indent(one["text"][:FIRST_CHARACTERS] + end, "    ") + "\n\n")
    lines = [f"{plural(len(answer['documents']), 'document')}, {plural(len(answer['requests']), 'request')}:"]
    lines += [f"  {request}" for request in answer["requests"][:MOST_REQUESTS]]
    lines += [f"empty in {plural(count, 'record')}: {key}" for key, count in answer["empty"].items()]
    lines += [f"left out: {reason}, {count}" for reason, count in answer["left_out"].items()]
    lines += [f"failed: {item_and_reason(one['item'], one['reason'])}" for one in answer["failed"]]
    return [
        *([screen] if answer["documents"] else []),
        *lines,
        *[f"error: {answer['error']}"] * bool(answer["error"]),
    ]


def _fact_lines(document: Json) -> Iterator[str]:
    facts = {key: document[key] for key in ("external_id", "kind", "url", "created_at", "updated_at", "tags")}
    for key, value in {**facts, **document["metadata"]}.items():
        if value:
            yield f"  {key:<16} {fact_line(value)}\n"


def fact_line(value: Any) -> str:
    """A fact of a document on one line; layers of an ACL are joined by `and`."""
    if not isinstance(value, list | tuple):
        return str(value)
    joint = " and " if any(isinstance(one, list | tuple) for one in value) else ", "
    return joint.join(map(fact_line, value))


def item_and_reason(item: str, reason: str) -> str:
    """Text that names an item once with what is wrong; the reason alone where it is about a source as a whole."""
    return reason if not item or item in reason else f"{item}: {reason}"


def progress_line(task: Task) -> str:
    """Progress as a line, where no bar can be drawn."""
    total = f" of {task.total:.0f}" if task.total else ""
    return ", ".join(
        filter(None, (f"{task.completed:.0f}{total}", rate_and_time_left(task.speed, task.time_remaining)))
    )


def show_run(progress: Progress, bar: TaskID, run: int, done: int, total: int | None, note: str) -> None:
    """Let a bar show a run; a later one than it showed before begins anew, without the pace of that one."""
    task = next(one for one in progress.tasks if one.id == bar)
    if task.fields["run"] != run:
        progress.reset(bar, run=run, note=note)
    task.total = total  # None, which Rich takes for no change, is not known yet
    progress.update(bar, completed=done, note=note)


def progress_bars(console: Console, *, transient: bool = False) -> Progress:
    """Bars for a terminal, with a `note` field behind each; nothing elsewhere."""
    note = Column(no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        PaceColumn(),
        TextColumn("{task.fields[note]}", markup=False, table_column=note),
        console=console,
        disable=not console.is_terminal,
        transient=transient,
    )


def minute(moment: str | None) -> str:
    """An ISO time as a person reads it."""
    return moment[:16].replace("T", " ") if moment else "never"
