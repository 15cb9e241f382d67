"""Commands that fill the store: index, ingest, clear, sources."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

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
    CommandContext,
    YesOption,
    command,
    resumable,
)
from workers.cli.tables import (
    findings_text,
    first_lines,
    item_and_reason,
    minute,
    progress_bars,
    progress_line,
    show_run,
    table,
    tried_lines,
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
    from_api = None if dry_run else _ask_api(context, names or [], force=force, wait=not no_wait)
    if from_api is not None:
        _answer(context, from_api)
        return
    from workers.app.ingestion import sync_now

    context.looks, context.makes = dry_run, not dry_run
    chosen = sync_now.sources_to_index(context.settings, names or [])
    context.ping()
    if dry_run:
        previews = [sync_now.preview(context.runtime, one, force=force) for one in chosen]
        context.answer({"success": True, "dry_run": True, "runs": previews}, *_would_do(previews))
        return
    able, not_begun = sync_now.doable(context.runtime, chosen, warn, wait=not no_wait)
    if no_wait:
        started = sync_now.start(context.runtime, able, force=force)
        _answer(context, sync_now.queued(started, not_begun))
    else:
        _run(context, able, not_begun, force=force)


def _ask_api(context: CommandContext, names: Sequence[str], *, force: bool, wait: bool) -> Json | None:
    """The document as the API of a running `larder up` has it; None if it cannot do that."""
    from workers.local.local_socket import ApiEnded

    with resumable(goes_on=True), _Progress(context) as progress, suppress(ApiEnded):
        arguments = {"names": names, "force": force, "wait": wait}
        document: Json = context.ask_api("index", arguments, progress.hear)
        return document
    return None


def _would_do(previews: Sequence[Json]) -> Iterator[RenderableType]:
    """The lines of a dry run."""
    for run in previews:
        counts = f"{run['listed']} listed, {run['unchanged']} unchanged, {run['queued']} would be indexed"
        yield f"{run['source']}: {counts}, {run['skipped']} skipped, {run['failed']} failed, {run['noted']} noted"
        problems = [f"{p['outcome']} {item_and_reason(p['item'], p['reason'])}" for p in run["problems"]]
        for lines in (run["would_index"], problems):
            yield from (f"  {line}" for line in first_lines(lines, MOST_SHOWN, "; --json has all"))


def _answer(context: CommandContext, document: Json) -> None:
    """End with what came of the runs, or with those that were begun."""
    code = document.pop("exit_code")
    if "queued" not in document:
        context.answer(document, *summary(document), code=code)
        return
    lines = [f"{one['source']} is being read already" for one in document["under_way"]]
    lines += [f"failed {one['source']}: {one['reason']}" for one in document["errors"]]
    lines.append(f"queued {plural(len(document['queued']), 'run')}; `larder status --watch` shows them")
    context.answer(document, *lines, code=code)


def _run(
    context: CommandContext, chosen: Sequence[Any], not_begun: Sequence[Json] = (), *, force: bool
) -> None:
    from workers.app.ingestion import sync_now
    from workers.monitoring import tracing

    with context.workers() as borrowed, tracing.span("larder index"):
        watched = sync_now.start(context.runtime, chosen, force=force)
        with resumable(goes_on=not borrowed), _Progress(context) as progress:
            result = sync_now.finish(context.runtime, watched, not_begun, progress.hear, force=force)
    _answer(context, result)


class _Progress:
    """Bars of the runs that a command waits for; where none can be drawn, lines every now and then."""

    def __init__(self, context: CommandContext) -> None:
        self._lines = not context.as_json
        self._last_told = time.monotonic()
        self._bars = progress_bars(context.console)
        self._of_source: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def hear(self, _kind: str, runs: Sequence[Json]) -> None:
        """Show how far each run is."""
        for run in runs:
            name = run["source"]
            if name not in self._of_source:
                self._of_source[name] = self._bars.add_task(name, total=None, note="", run=0)
            note = progress_note(run, earlier=run["earlier"])
            show_run(self._bars, self._of_source[name], run["id"], run["settled"], run["total"], note)
        if self._bars.disable and self._lines and time.monotonic() - self._last_told >= TELL_SECONDS:
            self._last_told = time.monotonic()
            tasks = self._bars.tasks
            warn(*(f"{task.description}: {progress_line(task)}, {task.fields['note']}" for task in tasks))


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
    from workers.app.ingestion.temporary_workers import await_restarted

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
    await_restarted(context.runtime, warn)
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

sources = typer.Typer(
    no_args_is_help=True, help="List, check, try, pause, rename, forget and reconcile sources."
)

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name, or TENANT/NAME.")]
NamesArgument = Annotated[list[str] | None, Argument(metavar="[NAME]...", help="All if none is named.")]


@command(sources, "list", looks=True)
def list_sources(context: CommandContext) -> None:
    """Show every source the ledger knows, of all tenants."""
    document = context.ask("sources-list")
    listing = document["sources"]
    heads = ("source", "tenant", "type", "state", "schedule", "last sync", "to approve")
    keys = ("name", "tenant", "type", "state", "schedule", "last_sync", "held")
    rows = ({**s, "last_sync": minute(s["last_sync"])} for s in listing)
    overview = table(heads, ([row[key] or "-" for key in keys] for row in rows))
    errors = [f"{s['name']}: {s['last_error']}" for s in listing if s["last_error"]]
    errors += [f"{s['name']}: {s['missing_folder']} is not there" for s in listing if s["missing_folder"]]
    context.answer(document, overview, *errors)


@command(sources, "check")
def check_sources(context: CommandContext, names: NamesArgument = None) -> None:
    """Try to read configured sources and tell what came back; needs no server."""
    from workers.app import operations
    from workers.app.ingestion import hooks
    from workers.runtime import Addresses, Runtime

    checks = operations.check(Runtime(context.settings, Addresses()), names or [])
    hooks.add_findings(checks, lambda: context.runtime)
    ok = all(one["ok"] for one in checks)
    context.answer({"success": ok, "sources": checks}, findings_text(checks), code=0 if ok else FAILED)


@command(sources, "try")
def try_source(
    context: CommandContext,
    name: Annotated[str, Argument(metavar="NAME", help="Name of a configured source.")],
    limit: Annotated[int, Option("--limit", min=1, max=50, help="How many documents.")] = 5,
) -> None:
    """Show documents that a source would bring, the requests made, and fields that were empty; stores nothing."""
    from workers.app import operations
    from workers.runtime import Addresses, Runtime

    answer = operations.try_out(Runtime(context.settings, Addresses()), name, limit)
    code = FAILED if answer["error"] or not answer["documents"] else 0
    context.answer({"success": not code, **answer}, *tried_lines(answer), code=code)


@command(sources, "hooks")
def show_hook(context: CommandContext, name: NameArgument) -> None:
    """Show what a source's service needs to tell of each change: address, secret and steps."""
    from workers.app.ingestion import hooks

    setup = hooks.setup(context.settings, name)
    lines = [f"address  https://HOST{setup['path']}, HOST as the service reaches `larder api`"]
    lines += [f"secret   {setup['secret']}", *(f"{n}. {step}" for n, step in enumerate(setup["steps"], 1))]
    context.answer(setup, "\n".join(lines))


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
