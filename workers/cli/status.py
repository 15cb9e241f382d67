"""The operator's one screen: larder status."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, StoreError
from workers.cli.context import FAILED, CommandContext, command
from workers.cli.tables import Columns

SLOW_SECONDS = 2.0
"""Of one way to the database: from there on workers answer at level 2 at least."""
WATCH_SECONDS = 2.0
NARROW = 60
"""Columns below which long lines wrap."""
MOST_LINES = 5
"""Of errors and of problems: the screen is 24 lines high."""


@command()
def status(
    context: CommandContext,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")] = False,
) -> None:
    """Show sources, backlog, workers and what to do next, over all tenants."""
    if watch and context.as_json:
        raise ConfigurationError("--watch and --json exclude each other", fix="call it again for each look")
    if watch:
        _watch(context)
    found = _look(context)
    context.answer(found, lambda: context.console.print(screen(found)))
    if found["database"] != "ok":
        error = found["error"]
        print(f"{error['code']}: {error['message']}\n  {error['fix']}".rstrip(), file=sys.stderr)
        raise typer.Exit(FAILED)


def _look(context: CommandContext) -> Json:
    from workers.admin import status as figures

    try:
        return figures.status(context.parts, _ask_for_patience)
    except StoreError as error:
        return figures.without_database(context.parts, error)


def _ask_for_patience(seconds: float) -> None:
    said = f"the database takes {seconds:.1f} s for each answer: this takes about {25 * seconds:.0f} s"
    print(said, file=sys.stderr)


def _watch(context: CommandContext) -> None:
    """Until Ctrl-C."""
    console = context.console
    with Live(screen(_look(context)), console=console, screen=console.is_terminal) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(screen(_look(context)), refresh=True)


# The screen ---------------------------------------------------------------------------------------


def screen(found: Json) -> RenderableType:
    """The whole picture in at most 24 lines of 80 columns for five sources."""
    parts: list[RenderableType] = [_servers(found)]
    if found["database"] == "ok":
        parts += [_sources(found["sources"]), *_troubles(found["sources"]), Text()]
        parts.append(_figures(found))
    advice = escape(found["next"])
    parts.append(Text.from_markup(f"[bold]next[/]  {advice}" if advice else "nothing to do"))
    return Group(*parts)


_SERVER = {"ok": "ok", "error": "[bold red]away[/]", "refused": "[bold red]refuses us[/]"}


def _servers(found: Json) -> Text:
    said = [f"{name} {_SERVER[found[name]]}" for name in ("database", "broker")]
    if (found.get("database_seconds") or 0) > SLOW_SECONDS:
        said[0] = f"[yellow]database slow ({found['database_seconds']:.1f} s)[/]"
    level = found["degradation_level"]
    said.append(f"level {level}" if level == 0 else f"[yellow]level {level}[/]")
    return Text.from_markup("larder    " + "    ".join(said))


_COLUMNS = ("docs", "chunks", "pending", "dead", "hidden", "fresh", "next")


def _sources(sources: list[Json]) -> Columns:
    table = Columns(heads=("source", *_COLUMNS, "state"), right=frozenset(_COLUMNS))
    several = len({s["tenant"] for s in sources}) > 1
    for s in sources:
        name = f"{s['tenant']}/{s['name']}" if several else s["name"]
        dead = Text(str(s["dead"]), style="red" if s["dead"] else "")
        counts = (s["documents"], s["chunks"], s["pending"], dead, s["hidden"])
        table.add(name, *counts, span(s["freshness_seconds"]), _until(s["next_sync"]), _state(s))
    return table


def _state(source: Json) -> Text:
    states = (
        ("removed", source["removed"], "dim"),
        ("paused", source["paused"], "yellow"),
        (f"held {source['held']}", source["held"], "yellow"),
        ("failing", source["last_error"], "red"),
        ("syncing", (source["last_run"] or {"finished_at": "-"})["finished_at"] is None, "none"),
    )
    return next((Text(word, style=colour) for word, holds, colour in states if holds), Text("ok"))


@dataclass(frozen=True)
class _CutLine:
    """Cut at the end of the line; on a narrow screen, where that would leave little but the name, wrapped."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.no_wrap = options.max_width >= NARROW
        self.text.overflow = "ellipsis" if self.text.no_wrap else "fold"
        yield self.text


def _troubles(sources: list[Json]) -> list[_CutLine]:
    """One line per failing source, then the newest files that could not be taken, as far as they fit."""
    every = [("red", s["name"], s["last_error"]) for s in sources if s["last_error"] and not s["removed"]]
    for s in sources:
        for p in s["problems"]:
            colour = "red" if p["outcome"] == "failed" else "yellow"
            every.append((colour, s["name"], f"{p['outcome']} {p['item']}: {p['reason']}"))
    lines = [Text.assemble((name, colour), f" {said}") for colour, name, said in every[:MOST_LINES]]
    if len(every) > MOST_LINES:
        lines[-1] = Text(f"... and {len(every) - MOST_LINES + 1} more; see larder status --json")
    return [_CutLine(line) for line in lines]


def _figures(found: Json) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, min_width=7, style="bold")
    table.add_column(overflow="fold")
    for name, line in (
        ("backlog", _backlog(found["backlog"])),
        ("step 4", _enrichment(found.get("enrichment") or {})),
        ("queues", _queues(found)),
        ("workers", _workers(found["workers"])),
        ("index", _index(found["index"])),
        ("embed", _embedding(found["embedding"])),
        *(("", _other(other)) for other in found.get("other_indexes") or []),
    ):
        table.add_row(name, line)
    return table


def _backlog(backlog: Json) -> str:
    stages = ", ".join(f"{n} {stage}" for stage, n in backlog["by_stage"].items() if n)
    due = backlog["oldest_due_seconds"]
    waiting = f"; oldest due {span(due)}" if due is not None else ""
    return f"{backlog['pending']} pending{f' ({stages})' if stages else ''}, {backlog['in_flight']} in flight{waiting}"


def _enrichment(enrichment: Json) -> str:
    oldest = enrichment.get("oldest_seconds")
    waiting = f"; oldest waits {span(oldest)}" if oldest is not None else ""
    return f"{enrichment.get('waiting', 0)} waiting, {enrichment.get('running', 0)} running{waiting}"


def _queues(found: Json) -> str:
    queues = found["backlog"]["queues"]
    if queues is None:
        return f"[red]unknown: the broker {escape(found.get('broker_error') or 'is away')}[/]"
    ages = found["canaries"]
    return "   ".join(
        f"{q} {n}" + (f" (seen {span(ages[q])} ago)" if q in ages else "") for q, n in queues.items()
    )


def _workers(workers: list[Json]) -> str:
    from workers.processes.liveness import DEAF_SECONDS

    said = []
    for worker in workers:
        name = escape(worker["name"].split("@")[0])
        late = worker["age_seconds"] > DEAF_SECONDS
        said.append(f"[red]{name} silent {span(worker['age_seconds'])}[/]" if late else name)
    return ", ".join(said) or "none running"


def _index(index: Json | None) -> str:
    if index is None:
        return "none yet"
    vectors = f"vectors {index['vector_index']}, keywords {index['keyword_index']}"
    state = "" if index["status"] == "active" else f", {index['status']}"
    return f"{escape(index['model'])}, {index['dimensions']} dimensions, {index['chunks']} chunks, {vectors}{state}"


def _embedding(embedding: Json) -> str:
    today = embedding["today"]
    used = ", ".join(
        f"{sum(row[key] for row in today):,.0f} {key.replace('_', ' ')}"
        for key in ("texts", "tokens", "cache_hits")
    )
    cost = sum(row["cost"] for row in today)
    said = f"today {used}" + (f", cost {cost:,.2f}" if cost else "")
    if embedding["state"] == "held":
        return f"[bold red]held[/], tried again in {_until(embedding['until'])}: {escape(embedding['error'])}; {said}"
    if embedding["state"] == "waiting":
        waiting = f"{embedding['documents']} documents wait {_until(embedding['until'])}"
        return f"[yellow]{waiting}[/]: {escape(embedding['error'])}; {said}"
    return said


def _other(index: Json) -> str:
    """One that is being filled or kept for a rollback."""
    lag = "" if not index["stale"] else f", {index['stale']} older, {span(index['lag_seconds'])} behind"
    dead = f", [red]{index['dead']} dead[/]" if index["dead"] else ""
    of = f"{index['documents']} of {index['total']} documents"
    return f"{escape(index['model'])}, {index['status']}, {of}{lag}{dead}"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def span(seconds: float | None) -> str:
    """Seconds as people say them, in at most four characters or so; `never` for None."""
    if seconds is None:
        return "never"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _until(moment: str | None) -> str:
    if moment is None:
        return "-"
    left = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    return "due" if left <= 0 else span(left)
