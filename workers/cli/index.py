"""Commands that fill the store: index, ingest, clear."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pipeline.errors import ConfigurationError
from workers.cli.columns import Columns
from workers.cli.door import (
    LONG_PATIENCE,
    ConfigOption,
    DataOption,
    Door,
    JsonOption,
    YesOption,
    opened,
    resumable,
)

MOST_SHOWN = 20
"""Lines of a list on the screen; --json has all."""


def index(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SOURCE]...", help="All if none is named.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Index unchanged documents again, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be indexed.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the work is queued.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sync sources now: read them, and make what is new or changed searchable."""
    with opened(config, as_json, data, patience=LONG_PATIENCE) as door:
        from workers.admin import sync_now
        from workers.control import sync

        wanted = sync_now.chosen(door.parts, names or [])
        if not wanted:
            raise ConfigurationError(
                "no sources are configured", fix="`larder config init` writes an example file"
            )
        door.knock()
        if dry_run:
            _preview(door, [sync_now.preview(door.parts, one, force=force) for one in wanted])
            return
        sync.register(door.parts)
        if no_wait:
            started = sync_now.start(door.parts, wanted, force=force)
            queued = [{"source": w.source.settings.name, "run": w.run.id} for w in started]
            door.answer({"success": True, "queued": queued}, text=f"queued {len(queued)} runs")
            return
        _run(door, wanted, force=force)


def _run(door: Door, wanted: Sequence[Any], *, force: bool) -> None:
    from workers.admin import sync_now

    begun = time.monotonic()
    with sync_now.borrowed_workers(door.parts) as borrowed:
        if borrowed:
            door.console.print("no workers are running: started some for this command (see `larder up`)")
        watched = sync_now.start(door.parts, wanted, force=force)
        with resumable(), _progress(door.console) as progress:
            bars = {w.run.id: progress.add_task(w.source.settings.name, total=None, note="") for w in watched}

            def show(all_: list[Any]) -> None:
                for w in all_:
                    total = w.run.queued if w.run.state != "discovering" else None
                    progress.update(bars[w.run.id], completed=w.settled, total=total, note=_note(w))

            sync_now.wait(door.parts, watched, show)
    result = sync_now.report(watched, time.monotonic() - begun)
    door.answer(result)
    if not door.as_json:
        _summary(door.console, result)
    code = sync_now.exit_code(result)
    if code:
        raise typer.Exit(code)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )


def _note(watched: Any) -> str:
    run = watched.run
    if run.state == "discovering":
        return f"reading, {run.listed} listed" + (f", waiting: {run.error}" if run.error else "")
    return f"{run.unchanged} unchanged, {watched.live.get('texts_embedded', 0)} texts embedded"


_COLUMNS = {
    "listed": ("listed",),
    "same": ("unchanged",),
    "indexed": ("indexed",),
    "gone": ("hidden", "deleted"),
    "skipped": ("skipped",),
    "failed": ("failed", "dead"),
    "embedded": ("texts_embedded",),
    "reused": ("texts_reused",),
}
"""Column of the summary -> the counts it adds up; eighty characters hold no more."""


def _summary(console: Console, result: dict[str, Any]) -> None:
    table = Columns(heads=("source", *_COLUMNS), right=frozenset(_COLUMNS))
    for run in result["runs"]:
        table.add(run["source"], *(str(sum(run[c] for c in counts)) for counts in _COLUMNS.values()))
    console.print(table)
    stats = result["stats"]
    console.print(
        f"{stats['documents_processed']} documents indexed, {stats['vectors_indexed']} chunks written "
        f"in {stats['time_elapsed']:.1f} s",
    )
    cut = sum(run["texts_cut"] for run in result["runs"])
    if cut:
        console.print(
            f"[yellow]cut[/] {cut} texts are longer than the model reads; its vectors are of their "
            "beginning alone, search by words knows all of them (embedding.oversize)"
        )
    for error in stats["errors"][:MOST_SHOWN]:
        colour = "yellow" if error["outcome"] == "skipped" else "red"
        # What is wrong with a source as a whole names no item.
        where = ": ".join(filter(None, (error["source"], error["item"])))
        console.print(f"[{colour}]{error['outcome']}[/] {where}: {error['reason']}")
    if len(stats["errors"]) > MOST_SHOWN:
        console.print(f"... and {len(stats['errors']) - MOST_SHOWN} more; see `larder status`")


def _preview(door: Door, found: list[dict[str, Any]]) -> None:
    door.answer({"success": True, "dry_run": True, "runs": found})
    if door.as_json:
        return
    for run in found:
        door.console.print(
            f"{run['source']}: {run['listed']} listed, {run['unchanged']} unchanged, {run['queued']} would be indexed, "
            f"{run['skipped']} skipped, {run['failed']} failed",
        )
        for item in run["would_index"][:MOST_SHOWN]:
            door.console.print(f"  {item}")
        for problem in run["problems"][:MOST_SHOWN]:
            door.console.print(f"  [red]{problem['outcome']}[/] {problem['item']}: {problem['reason']}")


_SUFFIXES = {"markdown": (".md", ".markdown"), "text": (".txt",), "json": (".json",)}


def _named(folder: str) -> Path:
    """An empty name is a variable that is not set, and not this folder."""
    if not folder.strip():
        raise typer.BadParameter("it is empty")
    return Path(folder)


def ingest(
    folder: Annotated[Path, typer.Argument(parser=_named, help="Every .md, .txt and .json below it.")],
    force: Annotated[bool, typer.Option("--force", help="Index unchanged documents again, too.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index a folder that no source names; run it again to take in what changed."""
    with opened(config, as_json, data, patience=LONG_PATIENCE) as door:
        from workers.admin import sync_now
        from workers.admin.folders import sources_of

        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder", fix="give the folder that holds the files")
        wanted = sources_of(door.parts, folder.resolve(), _SUFFIXES)
        if not wanted:
            raise ConfigurationError(
                f"{folder} holds no .md, .txt or .json file", fix="give the folder that holds the files"
            )
        door.knock()
        sync_now.register_folder(door.parts, wanted)
        _run(door, wanted, force=force)


def clear(
    source: Annotated[str | None, typer.Option("--source", help="Only what this source brought.")] = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove documents and chunks of this tenant; the next sync brings them back."""
    with opened(config, as_json, data, patience=None) as door:
        from workers.admin import clear as clearing

        door.knock()
        what = f"of source {source}" if source else f"of tenant {door.settings.tenant}"
        if not yes:
            count = clearing.count(door.parts, source)
            door.unconfirmed(f"remove {count} documents {what}", "removed", documents=count)
        removed = clearing.clear(door.parts, source)
        door.answer({"success": True, **removed}, text=f"removed {removed['documents']} documents {what}")
