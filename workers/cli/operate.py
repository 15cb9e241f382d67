"""Commands for whoever looks after it: sources, dead, doctor."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from workers.cli.columns import Columns
from workers.cli.door import (
    FAILED,
    LONG_PATIENCE,
    PARTLY,
    ConfigOption,
    DataOption,
    Door,
    JsonOption,
    YesOption,
    opened,
)

MOST_SHOWN = 50
"""Rows of a list on the screen; --json has all."""

sources = typer.Typer(no_args_is_help=True, help="List, check, pause and reconcile sources.")
dead = typer.Typer(no_args_is_help=True, help="Documents that were given up on.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name, or TENANT/NAME.")]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All if none is named.")]
SourceOption = Annotated[str | None, typer.Option("--source", help="Only those of this source.")]


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


# Sources ------------------------------------------------------------------------------------------


@sources.command("list")
def list_sources(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show every source the ledger knows, of all tenants."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        found = operations.listing(door.parts)
        door.answer({"sources": found})
        if door.as_json:
            return
        heads = ("source", "tenant", "type", "state", "schedule", "last sync", "held", "last error")
        table = Columns(heads=heads, folded=frozenset({"last error"}))
        for s in found:
            cells = (s["name"], s["tenant"], s["type"], s["state"], s["schedule"] or "-")
            rest = (_minute(s["last_sync"]), str(s["held"]), s["last_error"] or "")
            table.add(*cells, *rest)
        door.console.print(table)


def _minute(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else "never"


@sources.command("check")
def check_sources(
    names: NamesArgument = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try to read configured sources and tell what came back; needs no server."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations
        from workers.runtime import Addresses, Runtime

        parts = Runtime(door.settings, Addresses(database="", control="", admin="", broker=""))
        found = operations.check(parts, names or [])
        ok = all(one["ok"] for one in found)
        door.answer({"success": ok, "sources": found})
        if not door.as_json:
            _tell_findings(door, found)
        if not ok:
            raise typer.Exit(FAILED)


def _tell_findings(door: Door, found: list[Json]) -> None:
    if not found:
        door.console.print("no sources are configured")
    for one in found:
        door.console.print(f"[bold]{escape(one['source'])}[/]")
        for finding in one["findings"]:
            mark = "ok  " if finding["ok"] else "[red]bad[/] "
            door.console.print(f"  {mark} {escape(finding['subject'])}: {escape(finding['detail'])}")
            if finding["fix"]:
                door.console.print(f"       {escape(finding['fix'])}")


@sources.command("pause")
def pause(
    name: NameArgument, config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Stop a source's schedule; what is queued goes on."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        done = operations.pause(door.parts, name, paused=True)
        door.answer(
            {"success": True, **done}, text=f"{name} is paused; `larder sources resume {name}` ends that"
        )


@sources.command("resume")
def resume(
    name: NameArgument, config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Let a paused source follow its schedule again."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        done = operations.pause(door.parts, name, paused=False)
        door.answer({"success": True, **done}, text=f"{name} follows its schedule again")


@sources.command("release")
def release(
    name: NameArgument, config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Let held deletions go: allow them for a day, and start a sync that looks for what is gone."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        done = operations.release(door.parts, name)
        door.answer(
            {"success": True, **done}, text=f"released {done['released']} deletions; {_begun([done])}"
        )


@sources.command("reconcile")
def reconcile(
    names: NamesArgument = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start syncs that walk all ids and find what is gone."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        done = operations.reconcile(door.parts, names or [])
        door.answer({"success": True, "runs": done}, text=_begun(done))


def _begun(runs: list[Json]) -> str:
    begun = [r["source"] for r in runs if r["run"] is not None]
    busy = [r["source"] for r in runs if r["run"] is None]
    said = [f"started a sync of {', '.join(begun)}"] if begun else []
    said += [f"{', '.join(busy)} is being synced already: repeat this when it has ended"] if busy else []
    return "; ".join(said) or "there is no source to sync"


# Dead letters -------------------------------------------------------------------------------------


@dead.command("list")
def list_dead(
    source: SourceOption = None,
    every: Annotated[bool, typer.Option("--all", help="Settled ones too.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was given up on and why, newest first; never a text."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        found = operations.dead_letters(door.parts, source, settled=every)
        door.answer({"dead_letters": [letter.to_json() for letter in found]})
        if not door.as_json:
            _tell_letters(door, found)


def _tell_letters(door: Door, found: list[Any]) -> None:
    if not found:
        door.console.print("no dead letters")
        return
    heads = ("id", "source", "item", "stage", "reason", "at", "settled")
    table = Columns(heads=heads, folded=frozenset({"source", "item", "reason"}))
    for letter in found[:MOST_SHOWN]:
        when = _minute(letter.at.isoformat())
        cells = (str(letter.id), letter.source, letter.item, letter.stage, letter.reason, when)
        table.add(*cells, letter.resolution or "")
    door.console.print(table)
    if len(found) > MOST_SHOWN:
        door.console.print(f"... and {len(found) - MOST_SHOWN} more; --json has all")
    door.console.print("look closer: larder dead show ID    try again: larder dead replay ID, or --all")


@dead.command("show")
def show_dead(
    letter_id: Annotated[int, typer.Argument(metavar="ID")],
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of one dead letter and its document, without the text."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        letter = operations.letters(door.parts, [letter_id])[0]
        others = [one.to_json() for one in operations.history(door.parts, letter) if one.id != letter.id]
        door.answer({**letter.to_json(), "history": others})
        if not door.as_json:
            for name, value in letter.to_json().items():
                door.console.print(f"[bold]{name:<16}[/] {escape(str(value))}", soft_wrap=True)
            door.console.print(f"[bold]{'other letters':<16}[/] {len(others)}")


@dead.command("replay")
def replay_dead(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...")] = None,
    source: SourceOption = None,
    every: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue documents that were given up on again, with a clean record."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        if bool(ids) + bool(source) + every != 1:
            raise ConfigurationError("say what to replay", fix="give ids, or --source NAME, or --all")
        chosen = operations.letters(door.parts, ids) if ids else operations.dead_letters(door.parts, source)
        done = operations.replay(door.parts, chosen)
        said = f"queued {len(done['replayed'])} documents again"
        said += f"; no longer dead: {', '.join(done['skipped'])}" if done["skipped"] else ""
        door.answer({"success": not done["skipped"], **done}, text=said)
        if done["skipped"]:
            raise typer.Exit(PARTLY if done["replayed"] else FAILED)


@dead.command("drop")
def drop_dead(
    ids: Annotated[list[int], typer.Argument(metavar="ID...")],
    yes: YesOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take documents off the list; they stay out of the index until they change."""
    with opened(config, as_json, data) as door:
        from workers.admin import operations

        chosen = operations.letters(door.parts, ids)
        items = sorted({letter.item for letter in chosen})
        if not yes:
            door.unconfirmed(f"drop {', '.join(items)}", "dropped", items=items)
        done = operations.drop(door.parts, chosen)
        door.answer({"success": True, **done}, text=f"dropped {', '.join(done['dropped'])}")


# Doctor -------------------------------------------------------------------------------------------


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended without loss.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at everything; exit 1 if an error remains."""
    with opened(config, as_json, data, patience=None if repair else LONG_PATIENCE) as door:
        from workers.admin.doctor import doctor as doctors

        found = doctors.report(doctors.examine(door.parts, repair=repair))
        door.answer(found)
        if not door.as_json:
            _tell_health(door, found)
        if not found["ok"]:
            raise typer.Exit(FAILED)


_COLOURS = {"ok": "none", "warning": "yellow", "error": "red"}


def _tell_health(door: Door, found: Json) -> None:
    door.console.print(f"larder {found['version']}, Python {platform.python_version()}")
    table = _table("", "check", "found")
    for one in found["findings"]:
        fix = f"\n-> {escape(one['fix'])}" if one["fix"] else ""
        colour = _COLOURS[one["status"]]
        table.add_row(f"[{colour}]{one['status']}[/]", one["check"], escape(one["detail"]) + fix)
    door.console.print(table)
    bad = sum(one["status"] != "ok" for one in found["findings"])
    door.console.print(f"{bad} of {len(found['findings'])} checks found something" if bad else "all is well")
