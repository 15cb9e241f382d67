"""Commands for whoever looks after it: keys, dead, audit, logs, doctor, reindex."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError
from workers.app import ID_CHARACTERS
from workers.cli.context import FAILED, LONG_ANSWER_TIMEOUT, PARTLY, CommandContext, YesOption, command
from workers.cli.tables import duration_text, item_and_reason, minute, progress_bars, table

MOST_SHOWN = 50
"""Most rows of a list on the screen; --json has all."""

dead = typer.Typer(no_args_is_help=True, help="Documents that were given up on.")
audit = typer.Typer(no_args_is_help=True, help="Who searched and who changed something.")
keys = typer.Typer(no_args_is_help=True, help="Keys of encrypted metadata (docs/security.md).")

SourceOption = Annotated[str | None, Option("--source", help="Only those of this source.")]
TenantOption = Annotated[str | None, Option(help="[default: that of the configuration]")]


# Keys ---------------------------------------------------------------------------------------------


@command(keys, "new")
def new_key(context: CommandContext) -> None:
    """Print a new key for LARDER_ENCRYPTION_KEYS; needs no server."""
    from cryptography.fernet import Fernet

    key = Fernet.generate_key().decode()
    context.answer({"key": key}, key)


@command(keys, "status", looks=True)
def count_keys(context: CommandContext) -> None:
    """Count the documents that each key opens, of all tenants; the first key encrypts."""
    _show_keys(context, context.ask("keys-status"))


@command(keys, "rotate")
def rotate_keys(context: CommandContext) -> None:
    """Encrypt by the first key what others encrypted, while everything runs; interrupted, call it again."""
    from workers.app import operations

    counts = operations.keys(context.runtime, rotate=True)
    rotated = f"{plural(counts['rotated'], 'document was', 'documents were')} encrypted anew"
    _show_keys(context, counts, rotated, code=PARTLY)


def _show_keys(context: CommandContext, counts: Json, *lines: str, code: int = 0) -> None:
    """Show how many documents each key opens; `code` ends the command if some are opened by none."""
    rows = [(name, str(count)) for name, count in counts["documents"].items()]
    unreadable = counts["unreadable"]
    if unreadable:
        fix = "put their key back behind the others, or store them anew: larder index --force"
        words = plural(unreadable, "document is", "documents are")
        lines = (*lines, f"{words} opened by none of these keys; {fix}")
    context.answer(counts, table(("key", "documents"), rows), *lines, code=code if unreadable else 0)


# Dead letters -------------------------------------------------------------------------------------


@command(dead, "list", looks=True)
def list_dead(
    context: CommandContext,
    source: SourceOption = None,
    every: Annotated[bool, Option("--all", help="Settled ones too.")] = False,
) -> None:
    """Show what was given up on and why, newest first; never a text."""
    document = context.ask("dead-list", {"source": source, "every": every})
    letters, jobs = document["dead_letters"], document["jobs"]
    keys = ("id", "source", "item", "stage", "reason", "at", "resolution")
    rows = [{**one, "at": minute(one["at"])} for one in letters[:MOST_SHOWN]]
    for job in jobs[:MOST_SHOWN]:
        cells = {"id": job["id"][:ID_CHARACTERS], "item": "user stories", "at": minute(job["at"])}
        rows.append({**dict.fromkeys(keys), "reason": job["reason"], **cells})
    listed = table((*keys[:-1], "settled"), ([row[key] or "" for key in keys] for row in rows))
    more = len(letters) + len(jobs) - len(rows)
    hint = f"... and {more} more; --json has all\n" if more > 0 else ""
    hint += "look closer: larder dead show ID    try again: larder dead replay ID, or --all"
    context.answer(document, *([listed, hint] if rows else ["no dead letters"]))


@command(dead, "show", looks=True)
def show_dead(context: CommandContext, letter_id: Annotated[str, Argument(metavar="ID")]) -> None:
    """Show all that is known of one dead letter and its document, without the text."""
    document = context.ask("dead-show", {"letter_id": letter_id})
    entry = {**document, "other letters": len(document["history"])}
    lines = "\n".join(f"{name:<16} {value}" for name, value in entry.items() if name != "history")
    context.answer(document, lines)


@command(dead, "replay")
def replay_dead(
    context: CommandContext,
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...")] = None,
    source: SourceOption = None,
    every: Annotated[bool, Option("--all", help="All that wait.")] = False,
) -> None:
    """Queue what was given up on again, with a clean record."""
    from pipeline.ledger import jobs
    from workers.app import operations

    if bool(ids) + bool(source) + every != 1:
        raise ConfigurationError("say what to replay", fix="give ids, or --source NAME, or --all")
    runtime = context.runtime
    if ids:
        letters, failed = operations.dead_letters_and_jobs(runtime, ids)
    else:
        letters = operations.dead_letters(runtime, source)
        failed = operations.failed_jobs(runtime) if every else []
    done = operations.replay(runtime, letters)
    requeued = operations.settle_jobs(runtime, failed, "dead.replay", jobs.replay)
    done = {"replayed": [*done["replayed"], *requeued], "skipped": done["skipped"]}
    done["skipped"] += sorted({job["id"] for job in failed} - set(requeued))
    messages = [f"queued {plural(len(done['replayed']) - len(requeued), 'document')} again"] * (
        bool(letters) or not requeued
    )
    messages += [f"queued {plural(len(requeued), 'job')} of user stories again"] * bool(requeued)
    messages += [f"no longer dead: {', '.join(done['skipped'])}"] * bool(done["skipped"])
    code = (PARTLY if done["replayed"] else FAILED) if done["skipped"] else 0
    context.answer({"success": not code, **done}, "; ".join(messages), code=code)


@command(dead, "drop")
def drop_dead(
    context: CommandContext, ids: Annotated[list[str], Argument(metavar="ID...")], yes: YesOption = False
) -> None:
    """Take documents off the list; they stay out of the index until they change. Jobs go with their stories."""
    from pipeline.ledger import jobs
    from workers.app import operations

    letters, failed = operations.dead_letters_and_jobs(context.runtime, ids)
    items = sorted({letter.item for letter in letters} | {job["id"] for job in failed})
    if not yes:
        context.refuse_without_yes(f"drop {', '.join(items)}", "dropped", items=items)
    done = operations.drop(context.runtime, letters)
    done["dropped"] += operations.settle_jobs(context.runtime, failed, "dead.drop", jobs.drop)
    context.answer({"success": True, **done}, f"dropped {', '.join(done['dropped'])}")


@command(dead, "messages")
def set_aside(
    context: CommandContext,
    drop: Annotated[bool, Option("--drop", help="Forget them, and count from 0.")] = False,
    yes: YesOption = False,
) -> None:
    """Show messages of the queue that no worker could take, newest first; never what they ask."""
    context.looks = not drop
    document = context.ask("dead-messages")
    total = document["total"]
    if not drop:
        listed = table(
            ("at", "task", "id"),
            ([minute(one["at"]), one["task"], one["id"]] for one in document["messages"][:MOST_SHOWN]),
        )
        hint = f"{plural(total, 'message')}; forget them: larder dead messages --drop --yes"
        context.answer(document, *([listed, hint] if total else ["no messages"]))
        return
    if not yes:
        context.refuse_without_yes(f"forget {plural(total, 'message')}", "dropped", messages=total)
    from workers.queue import broker

    broker.drop_quarantined(context.runtime.addresses.broker)
    context.answer({"success": True, "dropped": total}, f"dropped {plural(total, 'message')}")


# Audit --------------------------------------------------------------------------------------------


@command(audit, "list", looks=True)
def list_audit(
    context: CommandContext,
    number: Annotated[int, Option("-n", min=1, help="How many entries.")] = 20,
    action: Annotated[str | None, Option(help="rag_search, enrich, clear, ...")] = None,
    tenant: TenantOption = None,
) -> None:
    """Show the newest entries of a tenant's audit, newest first."""
    document = context.ask("audit-list", {"number": number, "action": action, "tenant": tenant})
    entries = document["entries"]
    keys = ("seq", "at", "actor", "action", "subject", "detail")
    rows = []
    for one in entries:
        detail = ", ".join(f"{k} {v}" for k, v in (one["detail"] or {}).items())
        row = {**one, "at": minute(one["at"]), "detail": detail}
        rows.append([row[key] for key in keys])
    context.answer(document, table(keys, rows) if entries else "no entries")


@command(audit, "verify", answer_timeout=None, looks=True)
def verify_audit(
    context: CommandContext,
    tenant: TenantOption = None,
    head: Annotated[str | None, Option(metavar="HASH", help="A head that was noted before.")] = None,
) -> None:
    """Check every entry of a tenant's audit; exit 1 if one was changed, taken out or put in."""
    document = context.ask("audit-verify", {"tenant": tenant, "head": head})
    lines = [one["problem"] for one in document["problems"]] or ["all fit"]
    summary = f"{plural(document['entries'], 'entry', 'entries')}, head {document['head'] or '-'}"
    context.answer(document, summary, *lines, code=0 if document["success"] else FAILED)


# Runs and logs ------------------------------------------------------------------------------------


@command(looks=True)
def runs(
    context: CommandContext,
    names: Annotated[list[str] | None, Argument(metavar="[SOURCE]...", help="All if none is named.")] = None,
    number: Annotated[int, Option("-n", min=1, help="How many.")] = 10,
) -> None:
    """Show the last syncs with their counts, times and errors, newest first."""
    document = context.ask("runs", {"names": names or [], "number": number})
    run_rows = document["runs"]
    heads = ("run", "source", "began", "took", "state", "listed", "indexed", "failed", "noted")
    rows = []
    for one in run_rows:
        times = {"began": minute(one["started_at"]), "took": duration_text(one["seconds"])}
        row = {**one, **times, "failed": one["failed"] + one["dead"]}
        rows.append([row[head] for head in heads])
    run_table = table(heads, rows, right=heads[5:])
    errors = [f"run {one['run']}: {one['error']}" for one in run_rows if one["error"]]
    errors += [
        f"run {one['run']}: {item_and_reason(p['item'], p['reason'])}"
        for one in run_rows
        for p in one["problems"]
    ]
    lines = errors[:MOST_SHOWN] + ["... and more; --json has all"] * (len(errors) > MOST_SHOWN)
    context.answer(document, *([run_table, *lines] if run_rows else ["no source was synced yet"]))


_TICK = re.compile(r"Task larder\.(?:pump|upkeep\.canary)\[.*(?:received|succeeded in)")
"""Lines that are logged every few seconds, shown from the level debug on."""
LEVELS = ("debug", "info", "warning", "error", "critical")
FOLLOW_SECONDS = 0.5


@command(looks=True, without={"as_json"})
def logs(
    context: CommandContext,
    process: Annotated[
        str | None, Argument(metavar="[PROCESS]", help="Such as worker-embed; all if none is named.")
    ] = None,
    follow: Annotated[bool, Option("-f", "--follow", help="Go on with what comes.")] = False,
    level: Annotated[str, Option(help=f"At least: {', '.join(LEVELS)}.")] = "info",
    number: Annotated[int, Option("-n", min=1, help="How many lines.")] = 50,
) -> None:
    """Read what the processes of this machine log, as lines for people."""
    if level not in LEVELS:
        raise ConfigurationError(f"--level: {level!r} is none", fix=f"use one of {', '.join(LEVELS)}")
    folder = context.settings.data / "logs"
    pattern = f"{process or '*'}.log"
    read = dict.fromkeys(sorted(folder.glob(pattern)), 0)
    if not read:
        present = ", ".join(path.stem for path in sorted(folder.glob("*.log"))) or "none yet, see `larder up`"
        raise ConfigurationError(f"there is no {pattern} in {folder}", fix=f"there are: {present}")
    while True:
        lines: list[tuple[str, str]] = []
        for path, place in read.items():
            new_lines, read[path] = _read_on(path, place)
            lines += _of_level(path.stem, new_lines, LEVELS.index(level), every=process is not None)
        context.answer(None, *(line for _, line in sorted(lines, key=itemgetter(0))[-number:]))
        if not follow:
            return
        number = 0  # from here on all
        time.sleep(FOLLOW_SECONDS)


def _read_on(path: Path, place: int) -> tuple[list[str], int]:
    """The whole lines of a file from a place on, and where they end; all of them if it was emptied since."""
    with path.open("rb") as file:
        begin = file.seek(place if place <= path.stat().st_size else 0)
        whole = file.read()
    whole = whole[: whole.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").splitlines(), begin + len(whole)


def _of_level(process: str, lines: list[str], least: int, *, every: bool) -> Iterator[tuple[str, str]]:
    """Time and text of the lines that `_log_line` shows; one without a time has that of the line before."""
    at = ""
    for line in lines:
        if entry := _log_line(process, line, least, every=every):
            at = entry[0] or at
            yield at, entry[1]


def _log_line(process: str, line: str, least: int, *, every: bool) -> tuple[str, str] | None:
    """Time and line of what is of this level at least.

    Lines of other programs (PostgreSQL, a banner, a traceback) have no level and count as info; only `every` has them.
    """
    try:
        at, level, event, more = _entry(json.loads(line))
    except (ValueError, AttributeError):
        if process != "supervisor":
            return ("", line) if every and least <= LEVELS.index("info") else None
        parsed = re.fullmatch(r"(\d{4}-\S+Z) (.*)", line)
        at, event, level = (*parsed.groups(), "warning") if parsed else ("", line, "info")
        more = ""
    if (level in LEVELS and LEVELS.index(level) < least) or (least and _TICK.match(event)):
        return None
    return at, f"{at[:19].replace('T', ' ')} {process:<14} {level:<8} {event}{more}"


def _entry(entry: Json) -> tuple[str, str, str, str]:
    """Time, level, event and other fields of a log entry, as text."""
    at, level, event = str(entry.pop("timestamp", "")), entry.pop("level", "info"), entry.pop("event", "")
    entry.pop("logger", None)
    # Celery's own lines begin with the task and its id.
    named = [name for name in ("task", "task_id") if str(entry.get(name)) in event]
    return at, level, event, "".join(f" {name}={value}" for name, value in entry.items() if name not in named)


# Doctor -------------------------------------------------------------------------------------------

_COLOURS = {"ok": "", "warning": "yellow", "error": "red"}


@command(answer_timeout=LONG_ANSWER_TIMEOUT)
def doctor(
    context: CommandContext,
    repair: Annotated[bool, Option("--repair", help="Mend what can be mended without loss.")] = False,
) -> None:
    """Look at everything; exit 1 if an error remains."""
    from workers.app.doctor import doctor as doctors

    context.looks = not repair
    if repair:  # which may take any time
        context.answer_timeout = None
    report = doctors.report(doctors.examine(context.runtime, repair=repair))
    findings = report["findings"]
    rows = []
    for one in findings:
        fix = f"\n-> {one['fix']}" if one["fix"] else ""
        rows.append((Text(one["status"], style=_COLOURS[one["status"]]), one["check"], one["detail"] + fix))
    bad = sum(one["status"] != "ok" for one in findings)
    context.answer(
        report,
        f"larder {report['version']}, Python {platform.python_version()}",
        table(("", "check", "found"), rows),
        f"{bad} of {len(findings)} checks found something" if bad else "all is well",
        code=0 if report["ok"] else FAILED,
    )


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
    document = context.ask("reindex-status")
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
