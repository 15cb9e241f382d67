"""Commands that fill the store: index, ingest, clear, sources, reindex."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError
from workers.cli.context import (
    FAILED,
    LONG_ANSWER_TIMEOUT,
    PARTLY,
    CommandContext,
    YesOption,
    command,
    resumable,
)
from workers.cli.tables import (
    duration_text,
    first_lines,
    item_and_reason,
    minute,
    progress_bars,
    progress_line,
    show_run,
    table,
    warn,
)

MOST_SHOWN = 20
"""Lines of a list on the screen; --json has all."""
TELL_SECONDS = 10.0
"""Seconds between lines that tell how far it is, where no bar can be drawn."""
ForceOption = Annotated[bool, Option("--force", help="Index unchanged documents again, too.")]


@command(answer_timeout=LONG_ANSWER_TIMEOUT, makes=True)
def index(
    context: CommandContext,
    names: Annotated[list[str] | None, Argument(metavar="[SOURCE]...", help="All if none is named.")] = None,
    force: ForceOption = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only tell what would be indexed.")] = False,
    no_wait: Annotated[bool, Option("--no-wait", help="Return as soon as the work is queued.")] = False,
) -> None:
    """Sync sources now: read them, and make what is new or changed searchable."""
    from workers.app.ingestion import sync, sync_now

    context.looks, context.makes = dry_run, not dry_run
    chosen = sync_now.configured_sources_named(context.settings, names or [])
    if not chosen:
        raise ConfigurationError(
            "no sources are configured", fix="`larder config init` writes an example file"
        )
    context.ping()
    if dry_run:
        previews = [sync_now.preview(context.runtime, one, force=force) for one in chosen]
        context.answer({"success": True, "dry_run": True, "runs": previews}, *_would_do(previews))
        return
    if not no_wait:
        sync_now.await_restarted(context.runtime, warn)
    undoable = sync_now.undoable(context.runtime, chosen)
    doable = [one for one in chosen if one.id not in undoable]
    if not doable:
        raise next(iter(undoable.values()))
    sync.register(context.runtime, besides=undoable)
    not_begun = [
        {"source": one.settings.name, "item": "", "reason": str(undoable[one.id]), "outcome": "failed"}
        for one in chosen
        if one.id in undoable
    ]
    if no_wait:
        _queue(context, sync_now.start(context.runtime, doable, force=force), not_begun)
    else:
        _run(context, doable, not_begun, force=force)


def _would_do(previews: Sequence[Json]) -> Iterator[RenderableType]:
    """The lines of a dry run."""
    for run in previews:
        counts = f"{run['listed']} listed, {run['unchanged']} unchanged, {run['queued']} would be indexed"
        yield f"{run['source']}: {counts}, {run['skipped']} skipped, {run['failed']} failed, {run['noted']} noted"
        problems = [f"{p['outcome']} {item_and_reason(p['item'], p['reason'])}" for p in run["problems"]]
        for lines in (run["would_index"], problems):
            yield from (f"  {line}" for line in first_lines(lines, MOST_SHOWN, "; --json has all"))


def _queue(context: CommandContext, started: Sequence[Any], not_begun: Sequence[Json]) -> None:
    queued = [{"source": w.source.settings.name, "run": w.run.id} for w in started if w.is_own]
    busy = [{"source": w.source.settings.name, "run": w.run.id} for w in started if not w.is_own]
    lines = [f"{one['source']} is being read already" for one in busy]
    lines += [f"failed {one['source']}: {one['reason']}" for one in not_begun]
    lines.append(f"queued {plural(len(queued), 'run')}; `larder status --watch` shows them")
    document = {"success": not not_begun, "queued": queued, "under_way": busy, "errors": not_begun}
    context.answer(document, *lines, code=PARTLY if not_begun else 0)


def _run(
    context: CommandContext, chosen: Sequence[Any], not_begun: Sequence[Json] = (), *, force: bool
) -> None:
    from workers.app.ingestion import sync_now
    from workers.monitoring import tracing

    begun = last_told = time.monotonic()
    with context.workers() as borrowed, tracing.span("larder index"):
        watched = sync_now.start(context.runtime, chosen, force=force)
        with resumable(goes_on=not borrowed), progress_bars(context.console) as progress:
            bars = [progress.add_task(w.source.settings.name, total=None, note="", run=0) for w in watched]

            def show(all_: list[Any]) -> None:
                nonlocal last_told
                for bar, w in zip(bars, all_, strict=True):
                    run = w.current
                    total = None if run.state == "discovering" else run.queued
                    note = progress_note(vars(run), earlier=run.id != w.run.id or not w.is_own)
                    show_run(progress, bar, run.id, sync_now.count_settled(run), total, note)
                if progress.disable and not context.as_json and time.monotonic() - last_told >= TELL_SECONDS:
                    last_told = time.monotonic()
                    lines = (
                        f"{task.description}: {progress_line(task)}, {task.fields['note']}"
                        for task in progress.tasks
                    )
                    warn(*lines)

            sync_now.wait(context.runtime, watched, show, force=force)
    result = sync_now.report(watched, time.monotonic() - begun, not_begun)
    context.answer(result, *summary(result), code=sync_now.exit_code(result))


def progress_note(run: Mapping[str, Any], *, earlier: bool = False) -> str:
    """Progress of a run under way, in words; `earlier`: it was under way before the command."""
    if run["state"] == "discovering":
        note = f"reading, {run['listed']} listed" + (f", waiting: {run['error']}" if run.get("error") else "")
    else:
        note = plural(run["texts_embedded"], "text")
    return "under way: " + note if earlier else note


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
_COLOURS = {"failed": "red", "skipped": "yellow", "noted": "cyan"}


def summary(result: Json) -> Iterator[RenderableType]:
    """Results of each source, and the errors."""
    stats, runs = result["stats"], result["runs"]
    rows = ((run["source"], *(sum(run[c] for c in counts) for counts in _COLUMNS.values())) for run in runs)
    yield table(("source", *_COLUMNS), rows, right=_COLUMNS)
    yield (
        f"{plural(stats['documents_processed'], 'document')} indexed, "
        f"{plural(stats['vectors_indexed'], 'chunk')} written "
        f"in {stats['time_elapsed']:.1f} s"
    )
    if cut := sum(run["texts_cut"] for run in runs):
        detail = (
            f" {plural(cut, 'text is', 'texts are')} longer than the model reads; vectors are of the "
            "beginning alone, search by words knows all of it (embedding.oversize)"
        )
        yield Text.assemble(("cut", "yellow"), detail)
    if partly_read := sum(run["noted"] for run in runs):
        in_part = f" {plural(partly_read, 'document was', 'documents were')} read in part"
        yield Text.assemble(("noted", _COLOURS["noted"]), in_part)
    errors = []
    for e in stats["errors"]:
        detail = f" {e['source']}: {item_and_reason(e['item'], e['reason'])}"
        errors.append(Text.assemble((e["outcome"], _COLOURS[e["outcome"]]), detail))
    yield from first_lines(errors, MOST_SHOWN, "; see `larder status`")


def _not_empty(folder: str) -> Path:
    """An empty name is a variable that is not set, and not this folder."""
    if not folder.strip():
        raise typer.BadParameter("it is empty")
    return Path(folder)


@command(answer_timeout=LONG_ANSWER_TIMEOUT, makes=True)
def ingest(
    context: CommandContext,
    folder: Annotated[
        Path,
        Argument(
            parser=_not_empty, help="Its Markdown, text, JSON, HTML, RST, AsciiDoc, PDF and DOCX files."
        ),
    ],
    force: ForceOption = False,
) -> None:
    """Index a folder that no source names; run it again to take in what changed."""
    from connectors import FileOptions
    from connectors.files.options import ENDINGS
    from workers.app.ingestion import sync_now

    fix = "give the folder that holds the files"
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder", fix=fix)
    named = [s for s in context.settings.rag.sources if isinstance(s, FileOptions)]
    places = (
        (s.name, context.settings.resolve(s.root) / path.partition("*")[0]) for s in named for path in s.paths
    )
    if same := [name for name, place in places if place.resolve() == folder.resolve()]:
        message = f"{folder} is the folder of the source {same[0]} already"
        raise ConfigurationError(message, fix=f"larder index {same[0]}")
    folder_sources = sync_now.sources_of_folder(context.runtime, folder.resolve())
    if not folder_sources:
        endings = ", ".join(end for ends in ENDINGS.values() for end in ends)
        raise ConfigurationError(f"{folder} holds no file that ends with one of {endings}", fix=fix)
    context.ping()
    sync_now.await_restarted(context.runtime, warn)
    sync_now.register_folder(context.runtime, folder_sources)
    _run(context, folder_sources, force=force)


@command(answer_timeout=None)
def clear(
    context: CommandContext,
    source: Annotated[str | None, Option(help="Only what this source brought.")] = None,
    yes: YesOption = False,
) -> None:
    """Remove documents and chunks of this tenant; the next sync brings them back."""
    from workers.app import operations

    context.ping()
    scope = f"of source {source}" if source else f"of tenant {context.settings.tenant}"
    if not yes:
        count = operations.count_documents(context.runtime, context.tenant, source)
        context.refuse_without_yes(f"remove {plural(count, 'document')} {scope}", "removed", documents=count)
    removed = operations.clear(context.runtime, context.tenant, source)
    context.answer(
        {"success": True, **removed}, f"removed {plural(removed['documents'], 'document')} {scope}"
    )


# Sources ------------------------------------------------------------------------------------------

sources = typer.Typer(no_args_is_help=True, help="List, check, pause, rename, forget and reconcile sources.")

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name, or TENANT/NAME.")]
NamesArgument = Annotated[list[str] | None, Argument(metavar="[NAME]...", help="All if none is named.")]


@command(sources, "list", looks=True)
def list_sources(context: CommandContext) -> None:
    """Show every source the ledger knows, of all tenants."""
    from workers.app import operations

    listing = operations.listing(context.runtime)
    heads = ("source", "tenant", "type", "state", "schedule", "last sync", "to approve")
    keys = ("name", "tenant", "type", "state", "schedule", "last_sync", "held")
    rows = ({**s, "last_sync": minute(s["last_sync"])} for s in listing)
    overview = table(heads, ([row[key] or "-" for key in keys] for row in rows))
    errors = [f"{s['name']}: {s['last_error']}" for s in listing if s["last_error"]]
    errors += [f"{s['name']}: {s['missing_folder']} is not there" for s in listing if s["missing_folder"]]
    context.answer({"sources": listing}, overview, *errors)


@command(sources, "check")
def check_sources(context: CommandContext, names: NamesArgument = None) -> None:
    """Try to read configured sources and tell what came back; needs no server."""
    from workers.app import operations
    from workers.runtime import Addresses, Runtime

    runtime = Runtime(context.settings, Addresses())
    checks = operations.check(runtime, names or [])
    ok = all(one["ok"] for one in checks)
    screen = Text() if checks else Text("no sources are configured")
    for one in checks:
        screen.append(f"{one['source']}\n", style="bold")
        for finding in one["findings"]:
            screen.append("  ok   " if finding["ok"] else "  bad  ", style="" if finding["ok"] else "red")
            screen.append(f"{finding['subject']}: {finding['detail']}\n")
            screen.append(f"       {finding['fix']}\n" if finding["fix"] else "")
    screen.rstrip()
    context.answer({"success": ok, "sources": checks}, screen, code=0 if ok else FAILED)


@command(sources, "pause")
def pause(context: CommandContext, name: NameArgument) -> None:
    """Stop a source's schedule; what is queued goes on."""
    from workers.app import operations

    done = operations.pause(context.runtime, name, paused=True)
    context.answer({"success": True, **done}, f"{name} is paused; `larder sources resume {name}` ends that")


@command(sources, "resume")
def resume(context: CommandContext, name: NameArgument) -> None:
    """Let a paused source follow its schedule again."""
    from workers.app import operations

    done = operations.pause(context.runtime, name, paused=False)
    context.answer({"success": True, **done}, f"{name} follows its schedule again")


@command(sources, "rename", answer_timeout=None)
def rename(
    context: CommandContext,
    old: Annotated[str, Argument(metavar="OLD", help="Its name before, or TENANT/NAME.")],
    new: Annotated[str, Argument(metavar="NEW", help="Its name in the configuration now.")],
) -> None:
    """Give what a source brought to the name that it has in the configuration now; nothing is embedded again."""
    from workers.app import operations

    done = operations.rename(context.runtime, old, new)
    moved, both = plural(done["moved"], "document"), plural(done["both"], "document")
    sentence = f"{done['source']} has {moved} of {old}"
    if done["both"]:
        sentence += f", and had {both} more of it already, which no longer come twice"
    if not done["moved"]:
        sentence = f"{done['source']} had {both} of {old} already, and they no longer come twice"
    if not done["moved"] + done["both"]:
        sentence = f"{old} had no documents; it is called {done['source']} now"
    context.answer({"success": True, **done}, sentence)


@command(sources, "forget", answer_timeout=None)
def forget(
    context: CommandContext,
    names: Annotated[list[str], Argument(metavar="NAME...", help="Name, or TENANT/NAME.")],
    yes: YesOption = False,
) -> None:
    """Remove sources that the configuration no longer has, with all that they brought."""
    from workers.app import operations

    unconfigured = operations.forgettable(context.runtime, names)
    called = ", ".join(f"{k.tenant}/{k.row.name}" for k in unconfigured)
    if not yes:
        count = sum(
            operations.count_documents(context.runtime, k.row.tenant_id, k.row.name) for k in unconfigured
        )
        would = f"forget {called} and remove {plural(count, 'document')}"
        context.refuse_without_yes(would, "forgotten", documents=count)
    done = operations.forget(context.runtime, unconfigured)
    removed = plural(done["documents"], "document")
    context.answer({"success": True, **done}, f"forgot {called} and removed {removed}")


@command(sources, "release")
def release(context: CommandContext, name: NameArgument) -> None:
    """Approve deletions: the next walk within a day may find as many gone as wait for approval, and it is started."""
    from workers.app import operations

    done = operations.release(context.runtime, name)
    sentence = f"released {plural(done['released'], 'deletion')}; {_begun([done])}"
    context.answer({"success": True, **done}, sentence)


@command(sources, "reconcile")
def reconcile(context: CommandContext, names: NamesArgument = None) -> None:
    """Start syncs that walk all ids and find what is gone."""
    from workers.app import operations

    done = operations.reconcile(context.runtime, names or [])
    context.answer({"success": True, "runs": done}, _begun(done))


def _begun(runs: list[Json]) -> str:
    begun = ", ".join(r["source"] for r in runs if r["run"] is not None)
    busy = ", ".join(r["source"] for r in runs if r["run"] is None)
    sentences = [f"started a sync of {begun}"] * bool(begun)
    sentences += [f"{busy} is being synced already: repeat this when it has ended"] * bool(busy)
    return "; ".join(sentences) or "there is no source to sync"


# Reindex ------------------------------------------------------------------------------------------

reindex = typer.Typer(
    help="Fill another search index beside the one that is searched, and switch.", invoke_without_command=True
)
LackingOption = Annotated[bool, Option("--force", help="Even if it lacks documents.")]


@reindex.callback()
@command(answer_timeout=None)
def begin_index(
    context: CommandContext,
    typer_context: typer.Context,
    provider: Annotated[str | None, Option(help="[default: as configured]")] = None,
    model: Annotated[str | None, Option(help="[default: as configured]")] = None,
    dimensions: Annotated[int | None, Option(min=1, max=4000, help="[default: the model's]")] = None,
    chunker: Annotated[
        str | None, Option(help="Cut all sources like this. [default: as each is configured]")
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Return when it is full.")] = False,
) -> None:
    """Begin an index with another model or chunker, filled from stored texts; searches go on as before."""
    if typer_context.invoked_subcommand is not None:
        return
    from workers.app import reindex as reindexing

    context.ping()
    begun = reindexing.begin(
        context.runtime, provider=provider, model=model, dimensions=dimensions, chunker=chunker
    )
    if not (begun["begun"] and wait):
        sentence = f"index {begun['index']} ({begun['made_with']}) is being filled: larder reindex status"
        if not begun["begun"]:
            sentence = f"nothing to do: index {begun['index']} is active and made with {begun['made_with']}"
        context.answer({"success": True, **begun}, sentence)
        return
    with context.workers(), progress_bars(context.console) as progress:
        bar = progress.add_task(f"index {begun['index']}", total=None, note="")

        def show(figures: Json) -> None:
            note = f"{figures['dead']} dead" if figures["dead"] else figures["last_error"] or ""
            progress.update(bar, completed=figures["documents"], total=figures["total"], note=note)

        figures = reindexing.wait(context.runtime, show)
    sentence = f"index {figures['id']} holds {figures['documents']} of {plural(figures['total'], 'document')}"
    sentence += f", {figures['dead']} dead" if figures["dead"] else ": larder reindex switch"
    code = PARTLY if figures["dead"] else 0
    context.answer({"success": not code, **begun, "figures": figures}, sentence, code=code)


@command(reindex, "status", looks=True)
def index_status(context: CommandContext) -> None:
    """Show how far each index is, which one is searched, and whether a switch is possible."""
    from workers.app import reindex as reindexing

    document = reindexing.status(context.runtime)
    counts = ("documents", "missing", "dead", "chunks")
    rows = []
    for i in document["indexes"]:
        facts = (i["id"], i["status"], f"{i['model']} ({i['dimensions']})", i["chunker"])
        lag = "-" if i["lag_seconds"] is None else duration_text(i["lag_seconds"])
        rows.append((*facts, *(i[n] for n in counts), lag, f"{i['vector_index']}, {i['keyword_index']}"))
    overview = table(("index", "status", "model", "chunker", *counts, "lag", "built"), rows, right=counts)
    next_ = f"next  {document['next']}" if document["next"] else "nothing to do"
    context.answer(document, overview, *document["reasons"], next_)


@command(reindex, "switch", answer_timeout=None)
def switch_index(context: CommandContext, force: LackingOption = False) -> None:
    """Let searches read the new index; the one before is kept and kept up to date."""
    _switch(context, "building", force=force)


@command(reindex, "rollback", answer_timeout=None)
def roll_back_index(context: CommandContext, force: LackingOption = False) -> None:
    """Let searches read the index before again; the two change places."""
    _switch(context, "retired", force=force)


def _switch(context: CommandContext, to: Literal["building", "retired"], *, force: bool) -> None:
    from workers.app import reindex as reindexing

    context.ping()
    done = reindexing.switch(context.runtime, to, force=force)
    context.answer(
        {"success": True, **done},
        f"searches read index {done['active']} ({done['made_with']}), "
        f"switched in {done['milliseconds']:.0f} ms; index {done['kept']} is kept: larder reindex rollback",
    )


@command(reindex, "drop", answer_timeout=None)
def drop_index(
    context: CommandContext,
    index: Annotated[int | None, Argument(metavar="[INDEX]", help="Its number in the status.")] = None,
    yes: YesOption = False,
) -> None:
    """Remove the index that is kept for a rollback, or the one that is being filled."""
    from workers.app import reindex as reindexing

    context.ping()
    chosen = reindexing.index_to_drop(context.runtime, index)
    if not yes:
        action = f"drop index {chosen.id} ({chosen.status}, {chosen.model})"
        context.refuse_without_yes(action, "dropped", index=chosen.id)
    done = reindexing.drop(context.runtime, chosen)
    context.answer({"success": True, **done}, f"dropped index {done['dropped']} ({done['made_with']})")
