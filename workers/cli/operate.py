"""Commands for whoever looks after it: sources, dead, doctor."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, PARTLY, CommandContext, YesOption, command
from workers.cli.tables import Columns

MOST_SHOWN = 50
"""Rows of a list on the screen; --json has all."""

sources = typer.Typer(no_args_is_help=True, help="List, check, pause and reconcile sources.")
dead = typer.Typer(no_args_is_help=True, help="Documents that were given up on.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name, or TENANT/NAME.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All if none is named.")]
SourceOption = Annotated[str | None, typer.Option("--source", help="Only those of this source.")]


# Sources ------------------------------------------------------------------------------------------


@sources.command("list")
@command()
def list_sources(context: CommandContext) -> None:
    """Show every source the ledger knows, of all tenants."""
    from workers.admin import operations

    found = operations.listing(context.parts)
    heads = ("source", "tenant", "type", "state", "schedule", "last sync", "held", "last error")
    table = Columns(heads=heads, folded=frozenset({"last error"}))
    for s in found:
        when = _minute(s["last_sync"])
        cells = (s["name"], s["tenant"], s["type"], s["state"], s["schedule"] or "-", when, s["held"])
        table.add(*cells, s["last_error"] or "")
    context.answer({"sources": found}, lambda: context.console.print(table))


def _minute(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else "never"


@sources.command("check")
@command()
def check_sources(context: CommandContext, names: NamesArgument = None) -> None:
    """Try to read configured sources and tell what came back; needs no server."""
    from workers.admin import operations
    from workers.runtime import Addresses, Runtime

    parts = Runtime(context.settings, Addresses(database="", control="", admin="", broker=""))
    found = operations.check(parts, names or [])
    ok = all(one["ok"] for one in found)
    context.answer({"success": ok, "sources": found}, lambda: _tell_findings(context, found))
    if not ok:
        raise typer.Exit(FAILED)


def _tell_findings(context: CommandContext, found: list[Json]) -> None:
    if not found:
        context.console.print("no sources are configured")
    for one in found:
        context.console.print(f"[bold]{escape(one['source'])}[/]")
        for finding in one["findings"]:
            mark = "ok  " if finding["ok"] else "[red]bad[/] "
            context.console.print(f"  {mark} {escape(finding['subject'])}: {escape(finding['detail'])}")
            if finding["fix"]:
                context.console.print(f"       {escape(finding['fix'])}")


@sources.command("pause")
@command()
def pause(context: CommandContext, name: NameArgument) -> None:
    """Stop a source's schedule; what is queued goes on."""
    _pause(context, name, f"{name} is paused; `larder sources resume {name}` ends that", paused=True)


@sources.command("resume")
@command()
def resume(context: CommandContext, name: NameArgument) -> None:
    """Let a paused source follow its schedule again."""
    _pause(context, name, f"{name} follows its schedule again", paused=False)


def _pause(context: CommandContext, name: str, said: str, *, paused: bool) -> None:
    from workers.admin import operations

    context.answer({"success": True, **operations.pause(context.parts, name, paused=paused)}, said)


@sources.command("release")
@command()
def release(context: CommandContext, name: NameArgument) -> None:
    """Let held deletions go: allow them for a day, and start a sync that looks for what is gone."""
    from workers.admin import operations

    done = operations.release(context.parts, name)
    context.answer({"success": True, **done}, f"released {done['released']} deletions; {_begun([done])}")


@sources.command("reconcile")
@command()
def reconcile(context: CommandContext, names: NamesArgument = None) -> None:
    """Start syncs that walk all ids and find what is gone."""
    from workers.admin import operations

    done = operations.reconcile(context.parts, names or [])
    context.answer({"success": True, "runs": done}, _begun(done))


def _begun(runs: list[Json]) -> str:
    begun = [r["source"] for r in runs if r["run"] is not None]
    busy = [r["source"] for r in runs if r["run"] is None]
    said = [f"started a sync of {', '.join(begun)}"] if begun else []
    said += [f"{', '.join(busy)} is being synced already: repeat this when it has ended"] if busy else []
    return "; ".join(said) or "there is no source to sync"


# Dead letters -------------------------------------------------------------------------------------


@dead.command("list")
@command()
def list_dead(
    context: CommandContext,
    source: SourceOption = None,
    every: Annotated[bool, typer.Option("--all", help="Settled ones too.")] = False,
) -> None:
    """Show what was given up on and why, newest first; never a text."""
    from workers.admin import operations

    found = operations.dead_letters(context.parts, source, settled=every)
    context.answer(
        {"dead_letters": [letter.to_json() for letter in found]}, lambda: _tell_letters(context, found)
    )


def _tell_letters(context: CommandContext, found: list[Any]) -> None:
    if not found:
        context.console.print("no dead letters")
        return
    heads = ("id", "source", "item", "stage", "reason", "at", "settled")
    table = Columns(heads=heads, folded=frozenset({"source", "item", "reason"}))
    for letter in found[:MOST_SHOWN]:
        when = _minute(letter.at.isoformat())
        cells = (letter.id, letter.source, letter.item, letter.stage, letter.reason, when)
        table.add(*cells, letter.resolution or "")
    context.console.print(table)
    if len(found) > MOST_SHOWN:
        context.console.print(f"... and {len(found) - MOST_SHOWN} more; --json has all")
    context.console.print("look closer: larder dead show ID    try again: larder dead replay ID, or --all")


@dead.command("show")
@command()
def show_dead(context: CommandContext, letter_id: Annotated[int, typer.Argument(metavar="ID")]) -> None:
    """Show all that is known of one dead letter and its document, without the text."""
    from workers.admin import operations

    letter = operations.letters(context.parts, [letter_id])[0]
    others = [one.to_json() for one in operations.history(context.parts, letter) if one.id != letter.id]
    rows = {**letter.to_json(), "other letters": len(others)}
    said = Text("\n").join(Text(f"{name:<16} {value}") for name, value in rows.items())
    said.highlight_regex(r"(?m)^.{16}", "bold")
    context.answer(
        {**letter.to_json(), "history": others}, lambda: context.console.print(said, soft_wrap=True)
    )


@dead.command("replay")
@command()
def replay_dead(
    context: CommandContext,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...")] = None,
    source: SourceOption = None,
    every: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
) -> None:
    """Queue documents that were given up on again, with a clean record."""
    from workers.admin import operations

    if bool(ids) + bool(source) + every != 1:
        raise ConfigurationError("say what to replay", fix="give ids, or --source NAME, or --all")
    parts = context.parts
    chosen = operations.letters(parts, ids) if ids else operations.dead_letters(parts, source)
    done = operations.replay(parts, chosen)
    said = f"queued {len(done['replayed'])} documents again"
    said += f"; no longer dead: {', '.join(done['skipped'])}" if done["skipped"] else ""
    context.answer({"success": not done["skipped"], **done}, said)
    if done["skipped"]:
        raise typer.Exit(PARTLY if done["replayed"] else FAILED)


@dead.command("drop")
@command()
def drop_dead(
    context: CommandContext,
    ids: Annotated[list[int], typer.Argument(metavar="ID...")],
    yes: YesOption = False,
) -> None:
    """Take documents off the list; they stay out of the index until they change."""
    from workers.admin import operations

    chosen = operations.letters(context.parts, ids)
    items = sorted({letter.item for letter in chosen})
    if not yes:
        context.refuse_without_yes(f"drop {', '.join(items)}", "dropped", items=items)
    done = operations.drop(context.parts, chosen)
    context.answer({"success": True, **done}, f"dropped {', '.join(done['dropped'])}")


# Doctor -------------------------------------------------------------------------------------------


@command(answer_timeout=LONG_ANSWER_TIMEOUT)
def doctor(
    context: CommandContext,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended without loss.")] = False,
) -> None:
    """Look at everything; exit 1 if an error remains."""
    from workers.admin.doctor import doctor as doctors

    if repair:  # which may take any time
        context.answer_timeout = None
    found = doctors.report(doctors.examine(context.parts, repair=repair))
    context.answer(found, lambda: _tell_health(context, found))
    if not found["ok"]:
        raise typer.Exit(FAILED)


_COLOURS = {"ok": "", "warning": "yellow", "error": "red"}


def _tell_health(context: CommandContext, found: Json) -> None:
    context.console.print(f"larder {found['version']}, Python {platform.python_version()}")
    table = Columns(heads=(f"{'':8}check", "found"), folded=frozenset({"found"}))
    for one in found["findings"]:
        name = Text.assemble((f"{one['status']:8}", _COLOURS[one["status"]]), one["check"])
        table.add(name, one["detail"] + (f"\n-> {one['fix']}" if one["fix"] else ""))
    context.console.print(table)
    bad = sum(one["status"] != "ok" for one in found["findings"])
    context.console.print(
        f"{bad} of {len(found['findings'])} checks found something" if bad else "all is well"
    )
