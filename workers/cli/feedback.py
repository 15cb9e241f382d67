"""The command that marks documents as useful or noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from workers.cli.context import (
    LONG_PATIENCE,
    CommandContext,
    ConfigOption,
    DataOption,
    JsonOption,
    command_context,
)
from workers.cli.tables import Columns

COLOURS = {"useful": "green", "noise": "yellow"}
_USAGE = "write `larder feedback ITEM REF useful|noise|undo`, or --list, or --export DIR"


def feedback(
    item: Annotated[
        str | None,
        typer.Argument(
            metavar="ITEM",
            help="Id of a PBI that was enriched or of an indexed document, or a question in quotes.",
        ),
    ] = None,
    ref: Annotated[
        str | None, typer.Argument(metavar="REF", help="Of the document: its external id, or its id.")
    ] = None,
    verdict: Annotated[str | None, typer.Argument(metavar="VERDICT", help="useful, noise or undo.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was said.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show what was said, of ITEM if given.")] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Write a judged set for `larder eval`; it holds texts."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Of the item, if several projects have that ITEM.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Of the document, if several sources have that REF.")
    ] = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say that a document is useful or noise for an item: it ranks higher or lower, for this item above all."""
    with command_context(config, as_json, data, patience=LONG_PATIENCE) as door:
        said = "undo" if undo and verdict is None else verdict
        _check((item, ref, said), undo=undo, listing=listing, export=export, narrowed=source or project)
        if item is not None and ref is not None and said is not None:
            _mark(door, (item, ref, said), project, source)
        elif export is not None:
            _export(door, export)
        else:
            _list(door, item)


def _check(
    words: tuple[str | None, str | None, str | None],
    *,
    undo: bool,
    listing: bool,
    export: Path | None,
    narrowed: str | None,
) -> None:
    """Refuse what is not exactly one command: to mark with item, ref and verdict, to list or to export."""
    item, ref, said = words
    marks = None not in words
    wrong = [undo and said != "undo", listing and (ref or said), export and item, narrowed and not marks]
    if [marks, listing, export is not None].count(True) != 1 or any(wrong):
        raise ConfigurationError("that is no whole command", fix=_USAGE)


def _mark(door: CommandContext, words: tuple[str, str, str], project: str | None, source: str | None) -> None:
    from workers.admin import feedback as marking
    from workers.admin.operations import actor

    with door.parts.database.tenant(door.tenant) as connection:
        done = marking.mark(connection, door.tenant, *words, project=project, source=source, by=actor())
    asked = _named(done)
    what = f"{done['ref']} is {done['verdict']} for {asked}"
    if done["verdict"] is None:
        what = f"{done['ref']} is no longer {done['before']} for {asked}"
    elif done["before"] not in (None, done["verdict"]):
        what += f", no longer {done['before']}"
    door.answer({"success": True, **done}, text=what)


def _list(door: CommandContext, item: str | None) -> None:
    from workers.admin import feedback as marking

    with door.parts.database.tenant(door.tenant) as connection:
        found = marking.listed(connection, item)
    door.answer({"feedback": found})
    if not door.as_json:
        _show(door.console, found, item)


def _show(console: Console, found: list[Json], item: str | None) -> None:
    if not found:
        console.print("nothing is marked" + (f" for {item}" if item else ""), markup=False)
        return
    table = Columns(heads=("item", "verdict", "document", "when", "by"), folded=frozenset({"document"}))
    for one in found:
        gone = " (removed)" if one["removed"] else ""
        table.add(
            f"{_named(one)}  {one['item_title']}".strip(),
            Text(one["verdict"], style=COLOURS[one["verdict"]]),
            f"{one['ref']}  {one['title']}{gone}",
            one["at"][:10],
            one["by"],
        )
    console.print(table)


def _named(one: Json) -> str:
    return f"{one['item']} ({one['project']})" if one["project"] else str(one["item"])


def _export(door: CommandContext, folder: Path) -> None:
    from workers.admin.evaluation import feedback_set

    with door.parts.database.tenant(door.tenant) as connection:
        counts = feedback_set.export(connection, folder)
    said = f"{counts['queries']} questions with {counts['useful']} useful and {counts['noise']} noise"
    door.answer(
        {"success": True, "folder": str(folder), **counts},
        text=f"wrote {said} among {counts['documents']} documents to {folder}; see `larder eval {folder}`",
    )
