"""The operator's screen, larder status; and commands for vector stores beside PostgreSQL, larder stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.documents.plain_text import first_names, plural
from pipeline.errors import ConfigurationError
from workers.app.health.source_words import count_rejected, left_out_in_words, nothing_stored
from workers.cli.context import FAILED, CommandContext, YesOption, command
from workers.cli.tables import duration_text, first_lines, item_and_reason, rate_and_time_left, table, warn

SLOW_SECONDS = 2.0
"""Seconds of a way to the database from which on workers answer at level 2 at least."""
WATCH_SECONDS = 2.0
CUT_WORTH_SAYING = 0.01
"""Share of the texts of the last load from which on cut texts are told."""
MOST_ALERTS = 3
"""Most alerts on the screen, the oldest first."""
MOST_STEPS = 3
"""Most things to do on the screen, the most urgent first."""
_COLOURS = {"failed": "red", "skipped": "yellow", "noted": "cyan"}
MOST_LINES = 3
"""Most lines of errors and of problems: the screen is 24 lines high."""


@command(looks=True)
def status(
    context: CommandContext,
    watch: Annotated[bool, Option("--watch", help="Look again every two seconds.")] = False,
) -> None:
    """Show sources, backlog, workers and what to do next, over all tenants."""
    if watch and context.as_json:
        raise ConfigurationError("--watch and --json exclude each other", fix="call it again for each look")
    if watch:
        console = context.console
        with Live(screen(_look(context)), console=console, screen=console.is_terminal) as live:
            while True:  # until Ctrl-C
                time.sleep(WATCH_SECONDS)
                live.update(screen(_look(context)), refresh=True)
    document = _look(context)
    context.answer(document, screen(document))
    if document["database"] != "ok":
        error = document["error"]
        warn(f"{error['code']}: {error['message']}\n  {error['fix']}".rstrip())
        raise typer.Exit(FAILED)


def _look(context: CommandContext) -> Json:
    document: Json = context.ask("status")
    return document


# The screen ---------------------------------------------------------------------------------------

_SERVER = {"ok": "ok", "error": "[bold red]away[/]", "refused": "[bold red]refuses us[/]"}
_COLUMNS = ("docs", "chunks", "pending", "dead", "hidden", "fresh", "next")


def screen(document: Json) -> RenderableType:
    """The screen, in at most 24 lines of 80 columns for five sources."""
    servers = {name: f"{name} {_SERVER[document[name]]}" for name in ("database", "broker")}
    if (document["database_seconds"] or 0) > SLOW_SECONDS:
        servers["database"] = f"[yellow]database slow ({document['database_seconds']:.1f} s)[/]"
    level = f"level {document['degradation_level']}"
    head = ["larder", *servers.values(), f"[yellow]{level}[/]" if document["degradation_level"] else level]
    blocks: list[RenderableType] = [Text.from_markup("    ".join(head))]
    bars = [*filter(None, map(_running, document["sources"]))]
    if document["database"] == "ok":
        blocks += [_source_table(document["sources"]), *_troubles(document["sources"])]
        if bars:
            blocks += [Text(), table(("", "", "", ""), bars)]
        figures = (
            (Text(name, style="bold"), Text.from_markup(markup)) for name, markup in _figures(document)
        )
        blocks += [Text(), table(("", ""), figures)]
    idle = "nothing to do: it goes on by itself" if bars else "nothing to do"
    blocks += [*_next_steps(document["next"])] or [idle]
    return Group(*blocks)


def _next_steps(steps: list[Json]) -> Iterator[Text]:
    """Errors before warnings, as far as they fit."""
    lines = [
        Text(f"{one['detail']}: {one['fix']}", style="red" if one["status"] == "error" else "")
        for one in steps
    ]
    for n, line in enumerate(first_lines(lines, MOST_STEPS, "; see larder status --json")):
        yield Text.assemble(("      " if n else "next  ", "bold"), line)


def _source_table(sources: list[Json]) -> RenderableType:
    """A row for each source; with its tenant if there are several."""
    several = len({s["tenant"] for s in sources}) > 1
    rows = (_source(s, several=several) for s in sources)
    return table(("source", *_COLUMNS, "state"), rows, right=_COLUMNS)


def _running(s: Json) -> tuple[object, ...]:
    """The bar of a source's run under way, as `larder index` shows it; nothing if there is none."""
    run = s.get("running")
    if not run:
        return ()
    done, total = run["indexed"] + run["dead"] + run["superseded"], run["queued"]
    if run["state"] == "discovering" or not total:
        return s["name"], "", f"reading, {run['listed']} listed", ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(run["started_at"])).total_seconds()
    rate = done / seconds if seconds > 0 else 0.0
    bar = ProgressBar(total=total, completed=done, width=14)
    pace = rate_and_time_left(rate, (total - done) / rate if rate else None)
    return s["name"], bar, f"{done}/{total}", pace


def _source(s: Json, *, several: bool) -> tuple[object, ...]:
    states = (
        ("removed", s["removed"], "dim"),
        ("paused", s["paused"], "yellow"),
        (f"{s['held']} to approve", s["held"], "yellow"),
        ("failing", s["last_error"], "red"),
        ("empty", nothing_stored(s), "yellow"),
        ("syncing", (s["last_run"] or {"finished_at": "-"})["finished_at"] is None, "none"),
        (f"{count_rejected(s)} failed", count_rejected(s), "yellow"),
        ("ok", True, "none"),
    )
    state = next(Text(word, style=colour) for word, holds, colour in states if holds)
    name = f"{s['tenant']}/{s['name']}" if several else s["name"]
    dead = Text(str(s["dead"]), style="red" if s["dead"] else "")
    counts = (s["documents"], s["chunks"], s["pending"], dead, s["hidden"])
    fresh = duration_text(s["freshness_seconds"]) if s["documents"] else ""
    return name, *counts, fresh, _until(s["next_sync"]), state


def _troubles(sources: list[Json]) -> list[Text | str]:
    """One line per failing source, then the newest files that could not be taken, as far as they fit."""
    sources = [s for s in sources if not s["removed"]]
    every = [("red", s["name"], s["last_error"]) for s in sources if s["last_error"]]
    for s in sources:
        for p in s["problems"]:
            problem = f"{p['outcome']} {item_and_reason(p['item'], p['reason'])}"
            every.append((_COLOURS[p["outcome"]], s["name"], problem))
    # Items that are named are not counted once more.
    every += [
        ("yellow", s["name"], left_out_in_words(s["left_out"]))
        for s in sources
        if sum(s["left_out"].values()) > _named(s, "skipped")
    ]
    every += [
        ("cyan", s["name"], f"{plural(s['noted'], 'document was', 'documents were')} read in part")
        for s in sources
        if s["noted"] > _named(s, "noted")
    ]
    lines = [
        Text.assemble((name, colour), f" {text}", no_wrap=True, overflow="ellipsis")
        for colour, name, text in every
    ]
    return first_lines(lines, MOST_LINES, "; see larder status --json")


def _named(source: Json, outcome: str) -> int:
    return sum(problem["outcome"] == outcome for problem in source["problems"])


def _figures(document: Json) -> Iterator[tuple[str, str]]:
    """Labels, and what is said of each as markup."""
    b, e = document["backlog"], document["enrichment"]
    stages = ", ".join(f"{n} {stage}" for stage, n in b["by_stage"].items() if n)
    oldest = _since("; oldest due {}", b["oldest_due_seconds"])
    pending = f"{b['pending']} pending{f' ({stages})' if stages else ''}"
    yield "backlog", f"{pending}, {b['in_flight']} in flight{oldest}"
    waiting = _since("; oldest waits {}", e["oldest_seconds"])
    failed = f", [red]{e['failed']} failed[/]" if e["failed"] else ""
    yield "step 4", f"{e['waiting']} waiting, {e['running']} running{failed}{waiting}"
    yield "queues", _queues(document)
    unserved = {queue: seconds for queue, seconds in document["unserved"].items() if seconds is not None}
    silent = (f"[yellow]none serves {q} since {duration_text(seconds)}[/]" for q, seconds in unserved.items())
    yield "workers", ", ".join([*map(_worker, document["workers"]), *silent]) or "none running"
    yield "index", _index(document["index"]) if document["index"] else "none yet"
    if document["vector_stores"]["stores"]:
        yield "stores", _vector_stores(document["vector_stores"])
    if document["partial"]:
        few, all_ = document["partial"]["without_vectors"], document["partial"]["documents"]
        yield "partial", f"[yellow]{few:,} of {all_:,} documents have no vectors yet[/]: found by words alone"
    yield "embed", _embedding(document["embedding"])
    load = document["embedding"]["last_load"]
    if load["cut"] >= max(1, CUT_WORTH_SAYING * load["texts"]):
        share = f"{load['cut'] / load['texts']:.0%} of {load['texts']:,} texts"
        yield "cut", f"[yellow]{share} are longer than the model reads[/]: docs/search.md"
    if raised := document["alerts"]:
        yield "alerts", f"[yellow]{first_names([*map(_alert, raised)], MOST_ALERTS)}[/]"
    for i in document["other_indexes"]:
        yield "", _inactive_index(i)


def _queues(document: Json) -> str:
    """Messages that wait in the broker, and the time within which every queue was heard of."""
    queues, ages = document["backlog"]["queues"], document["canaries"]
    if queues is None:
        return f"[red]unknown: the broker {escape(document['broker_error'])}[/]"
    lengths = "   ".join(f"{q} {n}" for q, n in queues.items())
    if queue_ages := [ages[q] for q in queues if q in ages]:
        lengths += f"   (seen within {duration_text(max(queue_ages))})"
    aside = document["backlog"]["set_aside"]
    return lengths + (f"   [yellow]{plural(aside, 'message')} quarantined[/]" if aside else "")


def _worker(w: Json) -> str:
    from workers.monitoring.liveness import DEAF_SECONDS

    name, age = escape(w["name"].split("@")[0]), w["age_seconds"]
    return f"[red]{name} silent {duration_text(age)}[/]" if age > DEAF_SECONDS else name


def _alert(a: Json) -> str:
    age = (datetime.now(UTC) - datetime.fromisoformat(a["since"])).total_seconds()
    return f"{a['name']} {escape(a['subject'])} for {duration_text(age)}".replace("  ", " ")


def _inactive_index(i: Json) -> str:
    """Line of an index that is being filled, or kept for a rollback."""
    lag = f", {i['stale']} older, {duration_text(i['lag_seconds'])} behind" if i["stale"] else ""
    dead = f", [red]{i['dead']} dead[/]" if i["dead"] else ""
    filled = f"{i['documents']} of {plural(i['total'], 'document')}"
    return f"{escape(i['model'])}, {i['status']}, {filled}{lag}{dead}"


def _index(i: Json) -> str:
    vectors = f"vectors {i['vector_index']}, keywords {i['keyword_index']}"
    state = "" if i["status"] == "active" else f", {i['status']}"
    return f"{escape(i['model'])}, {i['dimensions']} dimensions, {plural(i['chunks'], 'chunk')}, {vectors}{state}"


def _embedding(e: Json) -> str:
    used = {key: sum(row[key] for row in e["today"]) for key in ("texts", "tokens", "cache_hits", "cost")}
    cost = used.pop("cost")
    # Models of this machine count no tokens.
    figures = {key: n for key, n in used.items() if n or key == "texts"}
    usage = "today " + ", ".join(
        f"{n:,.0f} {(key[:-1] if n == 1 else key).replace('_', ' ')}" for key, n in figures.items()
    )
    usage += f", cost {cost:,.2f}" if cost else ""
    if e["state"] == "held":
        return f"[bold red]paused[/], tried again in {_until(e['until'])}: {escape(e['error'])}; {usage}"
    if e["state"] == "waiting":
        waiting = f"{plural(e['documents'], 'document waits', 'documents wait')} {_until(e['until'])}"
        return f"[yellow]{waiting}[/]: {escape(e['error'])}; {usage}"
    return usage


def _vector_stores(document: Json) -> str:
    """Which one answers, and what each lacks."""
    lines = []
    for s in document["stores"]:
        waiting = f", {s['outbox']:,} to send" if s["outbox"] else ""
        oldest = _since(", oldest {}", s["oldest_unsent_seconds"])
        failing = f", [red]{escape(s['last_error'] or '')}[/]" if s["failures"] else ""
        lines.append(f"{s['name']} {s['status']}{waiting}{oldest}{failing}")
    return f"{document['answers']} answers; {'; '.join(lines)}"


def _since(words: str, seconds: float | None) -> str:
    """Put a duration into `words`; empty for None."""
    return "" if seconds is None else words.format(duration_text(seconds))


def _until(moment: str | None) -> str:
    if moment is None:
        return "-"
    remaining = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    return "due" if remaining <= 0 else duration_text(remaining)


# Vector stores ------------------------------------------------------------------------------------

stores = typer.Typer(no_args_is_help=True, help="Vector stores beside PostgreSQL.")

NameArgument = Annotated[str, Argument(metavar="NAME", help="Its type, such as chroma.")]


@command(stores, "list", looks=True)
def list_stores(context: CommandContext) -> None:
    """Show the vector stores, which one searches ask, and what each lacks."""
    from workers.app import stores as beside

    document = beside.listed(context.runtime)
    rows = []
    for s in document["stores"]:
        oldest = "" if s["oldest_unsent_seconds"] is None else duration_text(s["oldest_unsent_seconds"])
        state = s["status"] if s["configured"] else f"{s['status']}, not configured"
        asked = "yes" if s["name"] == document["answers"] else ""
        rows.append((s["name"], state, asked, s["outbox"], oldest, s["refused"], s["last_error"] or ""))
    heads = ("store", "state", "asked", "to send", "oldest", "refused", "error")
    lines = [table(heads, rows, right=heads[3:6])] if rows else ["none is configured (docs/stores.md)"]
    context.answer(document, *lines, f"searches ask {document['answers']}")


@command(stores, "check", answer_timeout=None, looks=True)
def check_stores(
    context: CommandContext,
    names: Annotated[list[str] | None, Argument(metavar="[NAME]...", help="All if none is named.")] = None,
    questions: Annotated[int, Option(min=0, help="Questions for the comparison.")] = 200,
) -> None:
    """Compare stores with PostgreSQL: counts, a sample of chunks, recall of exact search; exit 1 if one differs."""
    from workers.app import stores as beside

    names = names or list(context.settings.stores)
    documents = [beside.check(context.runtime, name, questions=questions) for name in names]
    rows = []
    for one in documents:
        figures = ["" if one[key] is None else one[key] for key in ("questions", "recall", "milliseconds")]
        rows.append((one["store"], one["status"], *figures, "; ".join(one["problems"]) or "ok"))
    heads = ("store", "state", "questions", "recall@10", "ms", "found")
    failed = any(one["problems"] for one in documents)
    context.answer(
        {"success": not failed, "stores": documents},
        table(heads, rows, right=heads[2:5]) if rows else "none is configured (docs/stores.md)",
        code=FAILED if failed else 0,
    )


@command(stores, "add", answer_timeout=None)
def add_store(context: CommandContext, name: NameArgument) -> None:
    """Have a configured store filled beside the one that searches ask."""
    from workers.app import stores as beside

    context.ping()
    done = beside.add(context.runtime, name)
    sentence = f"{name} is being filled: larder stores list" if done["added"] else f"{name} was added before"
    context.answer({"success": True, **done}, sentence)


@command(stores, "switch")
def switch_store(
    context: CommandContext,
    name: Annotated[str, Argument(metavar="NAME", help="Its type, or pgvector.")],
    force: Annotated[bool, Option("--force", help="Even if it is not full.")] = False,
) -> None:
    """Have searches ask another store; the one before is kept up to date."""
    from workers.app import stores as beside

    done = beside.switch(context.runtime, name, force=force)
    context.answer(
        {"success": True, **done},
        f"searches ask {name} within two seconds; back: larder stores switch {done['before']}",
    )


@command(stores, "drop", answer_timeout=None)
def drop_store(context: CommandContext, name: NameArgument, yes: YesOption = False) -> None:
    """Empty a store that searches do not ask, and note no changes for it any more."""
    from workers.app import stores as beside

    context.ping()
    if not yes:
        context.refuse_without_yes(f"empty {name} and forget it", "dropped", store=name)
    done = beside.drop(context.runtime, name)
    emptied = "" if done["emptied"] else "; its contents could not be deleted"
    context.answer({"success": True, **done}, f"dropped {name}{emptied}")


@command(stores, "rebuild")
def rebuild_store(context: CommandContext, name: NameArgument) -> None:
    """Have a store emptied and filled anew; another one answers meanwhile."""
    from workers.app import stores as beside

    done = beside.rebuild(context.runtime, name)
    retried = f", {plural(done['retried'], 'refused chunk')} among it" if done["retried"] else ""
    context.answer({"success": True, **done}, f"{name} is being filled anew{retried}: larder stores list")
