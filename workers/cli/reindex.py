"""larder reindex: another model or chunker beside the one that is searched."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from pipeline.documents import Json
from workers.cli.door import PARTLY, ConfigOption, DataOption, Door, JsonOption, YesOption, opened
from workers.cli.status import span

app = typer.Typer(
    help="Fill another search index beside the one that is searched, and switch.",
    invoke_without_command=True,
)
ForceOption = Annotated[bool, typer.Option("--force", help="Even if it lacks documents.")]


@app.callback()
def reindex(
    context: typer.Context,
    provider: Annotated[str | None, typer.Option("--provider", help="[default: as configured]")] = None,
    model: Annotated[str | None, typer.Option("--model", help="[default: as configured]")] = None,
    dimensions: Annotated[int | None, typer.Option("--dimensions", help="[default: the model's]")] = None,
    chunker: Annotated[
        str | None,
        typer.Option("--chunker", help="Cut all sources like this. [default: as each is configured]"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is full.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin an index with another model or chunker, filled from stored texts; searches go on as before."""
    if context.invoked_subcommand is not None:
        return
    with opened(config, as_json, data, patience=None) as door:
        from workers.admin import reindex as reindexing

        door.knock()
        asked = reindexing.Asked(provider=provider, model=model, dimensions=dimensions, chunker=chunker)
        begun = reindexing.begin(door.parts, asked)
        if not begun["begun"]:
            said = f"nothing to do: index {begun['index']} is active and made with {begun['made_with']}"
            door.answer({"success": True, **begun}, text=said)
            return
        if not wait:
            said = f"index {begun['index']} ({begun['made_with']}) is being filled: larder reindex status"
            door.answer({"success": True, **begun}, text=said)
            return
        _wait(door, begun)


def _wait(door: Door, begun: Json) -> None:
    from workers.admin import reindex as reindexing
    from workers.admin import sync_now

    with sync_now.borrowed_workers(door.parts) as borrowed:
        if borrowed:
            door.console.print("no workers are running: started some for this command (see `larder up`)")
        with Progress(
            TextColumn("index {task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=door.console,
            disable=not door.console.is_terminal,
        ) as progress:
            bar = progress.add_task(str(begun["index"]), total=None, note="")

            def show(figures: Json) -> None:
                note = f"{figures['dead']} dead" if figures["dead"] else figures["last_error"] or ""
                progress.update(bar, completed=figures["documents"], total=figures["total"], note=note)

            figures = reindexing.wait(door.parts, show)
    said = f"index {figures['id']} holds {figures['documents']} of {figures['total']} documents"
    door.answer(
        {"success": not figures["dead"], **begun, "figures": figures},
        text=f"{said}, {figures['dead']} dead" if figures["dead"] else f"{said}: larder reindex switch",
    )
    if figures["dead"]:
        raise typer.Exit(PARTLY)


@app.command("status")
def show_status(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """How far each index is, which one is searched, and whether a switch is possible."""
    with opened(config, as_json, data) as door:
        from workers.admin import reindex_status

        found = reindex_status.status(door.parts)
        door.answer(found)
        if not door.as_json:
            _tell(door, found)


_COLUMNS = ("index", "status", "model", "chunker", "documents", "missing", "dead", "chunks", "lag", "built")


def _tell(door: Door, found: Json) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for i in found["indexes"]:
        lag = "-" if i["lag_seconds"] is None else span(i["lag_seconds"])
        cells = (i["id"], i["status"], f"{i['model']} ({i['dimensions']})", i["chunker"])
        counts = (i["documents"], i["missing"], i["dead"], i["chunks"], lag)
        built = f"{i['vector_index']}, {i['keyword_index']}"
        table.add_row(*(escape(str(cell)) for cell in (*cells, *counts, built)))
    door.console.print(table)
    for reason in found["reasons"]:
        door.console.print(escape(reason), soft_wrap=True)
    door.console.print(f"[bold]next[/]  {escape(found['next'])}" if found["next"] else "nothing to do")


@app.command("switch")
def switch(
    force: ForceOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let searches read the new index; the one before is kept and kept up to date."""
    with opened(config, as_json, data, patience=None) as door:
        from workers.admin import index_switch

        door.knock()
        _changed(door, index_switch.switch(door.parts, force=force))


@app.command("rollback")
def rollback(
    force: ForceOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let searches read the index before again; the two change places."""
    with opened(config, as_json, data, patience=None) as door:
        from workers.admin import index_switch

        door.knock()
        _changed(door, index_switch.rollback(door.parts, force=force))


def _changed(door: Door, done: dict[str, Any]) -> None:
    door.answer(
        {"success": True, **done},
        text=f"searches read index {done['active']} ({done['made_with']}), "
        f"switched in {done['milliseconds']:.0f} ms; index {done['kept']} is kept: larder reindex rollback",
    )


@app.command("drop")
def drop(
    index: Annotated[int | None, typer.Argument(metavar="[INDEX]", help="Its number in the status.")] = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the index that is kept for a rollback, or the one that is being filled."""
    with opened(config, as_json, data, patience=None) as door:
        from workers.admin import index_switch

        door.knock()
        chosen = index_switch.droppable(door.parts, index)
        if not yes:
            said = f"drop index {chosen.id} ({chosen.status}, {chosen.model})"
            door.unconfirmed(said, "dropped", index=chosen.id)
        done = index_switch.drop(door.parts, chosen)
        door.answer({"success": True, **done}, text=f"dropped index {done['dropped']} ({done['made_with']})")
