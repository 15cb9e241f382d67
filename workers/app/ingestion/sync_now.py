"""Syncing for commands: open the runs, wait for them, report them."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from connectors.files.contents import EXCLUDED, look_into
from connectors.files.options import ENDINGS
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import (
    BudgetSpent,
    ConfigurationError,
    EmbedderRefused,
    SourceUnavailable,
)
from pipeline.ingest.sync import CONFIGURED_OTHERWISE, START_AGAIN
from pipeline.ledger import admission, audit, embedding_use, overview, runs, sources
from workers.app.health.source_words import left_out_in_words
from workers.app.ingestion import sync
from workers.app.ingestion.sync import (
    Configured,
    configured_source,
    configured_sources,
    open_source,
    start_run,
)
from workers.app.ingestion.temporary_workers import (
    UNSERVED_SECONDS,
    WORK_IS_KEPT,
    await_restarted,
    broker_lost,
    unserved,
)
from workers.monitoring.liveness import DEAF_SECONDS
from workers.queue import broker, dispatch
from workers.queue.celeryconfig import INDEXING
from workers.runtime import Runtime, current_user
from workers.settings import SOURCE_TYPES, Settings

POLL_SECONDS = 0.05
BROKER_SECONDS = 5.0
"""Seconds between two questions whether the broker is there."""
AWAY_SECONDS = 20.0
"""Seconds without a broker after which a command gives up waiting."""
START = "larder up --detach; where workers run in containers or were started by hand, `larder worker QUEUE` for each"
LONG_SECONDS = 900.0
"""Seconds of waiting for the embedder after which a command ends; the work goes on without it."""


@dataclass
class WatchedRun:
    """A run that a command waits for."""

    source: Configured
    run: runs.RunRow
    current: runs.RunRow
    """The oldest open run of the source, with the counts of this moment."""
    is_own: bool = True
    """False for a run that was under way and may have begun too early; an own one follows when its walk is over."""
    earlier: runs.RunRow | None = None
    """The run under way before its own, with its last counts."""
    later: runs.RunRow | None = None
    """The run that took documents over from its own before they were done, with its last counts."""
    through: bool = False
    """Whether it and every earlier run of the source are closed: all that this walk saw unchanged is searchable."""
    given_up: str = ""
    """Reason why it is no longer waited for: the workers that run cannot do it."""

    @property
    def failure(self) -> str:
        """Reason why the source could not be read; empty if it was."""
        return self.given_up or (str(self.run.error) if self.run.state == "failed" else "")


def configured_sources_named(settings: Settings, names: Sequence[str]) -> list[Configured]:
    """The configured sources of these names; all of them without names.

    Raises:
        ConfigurationError: a name is not configured; the message lists those that are.
    """
    every = list(configured_sources(settings).values())
    configured = {c.settings.name for c in every}
    unknown = [n for n in names if n not in configured]
    if unknown:
        raise ConfigurationError(
            f"no enabled source is called {', '.join(map(repr, unknown))}",
            fix=f"configured are {', '.join(sorted(configured)) or 'none'}",
        )
    return [c for c in every if not names or c.settings.name in names]


def sources_to_index(settings: Settings, names: Sequence[str]) -> list[Configured]:
    """The same, for commands that have nothing to do without a source; raises ConfigurationError if there is none."""
    if chosen := configured_sources_named(settings, names):
        return chosen
    raise ConfigurationError("no sources are configured", fix="`larder config init` writes an example file")


def undoable(runtime: Runtime, chosen: Sequence[Configured]) -> dict[UUID, SourceUnavailable]:
    """Errors for sources that the running workers do not have as configured here; none if no workers run.

    Whoever starts workers registers what they have. Another configuration must not be registered before they take it
    over: the source would be wrong for those that run, and for good if it was a slip.
    """
    if unserved(runtime):
        return {}
    with runtime.database.control() as connection:
        hashes = {row.id: row.config_hash for row in sources.listed(connection) if row.removed_at is None}
        tenants = set(sources.tenant_names(connection).values())
    lacking = [one for one in chosen if hashes.get(one.id) != sync.config_hash(runtime, one)]
    return {one.id: _why_undoable(runtime.settings, one, tenants, hashes) for one in lacking}


def _why_undoable(
    settings: Settings, one: Configured, tenants: Collection[str], known_ids: Collection[UUID]
) -> SourceUnavailable:
    name = one.settings.name
    if one.tenant not in tenants:
        difference = f"no tenant {one.tenant}, only {', '.join(sorted(tenants))}"
        return SourceUnavailable(
            f"{CONFIGURED_OTHERWISE}{difference}",
            fix="name one of these (LARDER_TENANT, or tenant in the file)",
        )
    difference = f"another configuration of source {name}" if one.id in known_ids else f"no source {name}"
    # Loaded by few commands, and not needed by them but here.
    from workers.local import supervisor

    restart = "larder reload" if "supervisor" in supervisor.running(settings.data) else START_AGAIN
    return SourceUnavailable(
        f"{CONFIGURED_OTHERWISE}{difference} yet", fix=f"{restart}; then larder index {name}"
    )


def doable(
    runtime: Runtime, chosen: Sequence[Configured], tell: Callable[[str], object], *, wait: bool
) -> tuple[list[Configured], list[Json]]:
    """The sources that the running workers have, registered, and entries of `errors` for the others.

    With `wait` workers that are perhaps being restarted are waited for.

    Raises:
        SourceUnavailable: they have none of them.
    """
    if wait:
        await_restarted(runtime, tell)
    lacking = undoable(runtime, chosen)
    able = [one for one in chosen if one.id not in lacking]
    if not able:
        raise next(iter(lacking.values()))
    sync.register(runtime, besides=lacking)
    return able, [
        {"source": one.settings.name, "item": "", "reason": str(lacking[one.id]), "outcome": "failed"}
        for one in chosen
        if one.id in lacking
    ]


def start(runtime: Runtime, chosen: Sequence[Configured], *, force: bool) -> list[WatchedRun]:
    """Open a run for each source, but where one reads the source already: `wait` opens another when it is through."""
    return [_opened(runtime, one, force=force) for one in chosen]


def _opened(runtime: Runtime, one: Configured, *, force: bool) -> WatchedRun:
    while True:
        run_id = start_run(runtime, one.tenant_id, one.id, trigger="manual", force=force)
        with runtime.database.tenant(one.tenant_id) as connection:
            run = runs.get(connection, run_id) if run_id else runs.newest_open(connection, one.id)
        if run is not None:  # else it ended in between
            return WatchedRun(source=one, run=run, current=run, is_own=run_id is not None)


def _looks(runtime: Runtime, fix: Callable[[], str]) -> Iterator[bool]:
    """Moments to look again, for ever; True once a second. `fix` says what a person can do who would wait in vain.

    Raises:
        StoreUnavailable: the broker, by which workers are told of work, has been away for `AWAY_SECONDS`.
    """
    begun = present_at = last = time.monotonic()
    asked_at = float("-inf")
    while True:
        now = time.monotonic()
        if now - asked_at >= BROKER_SECONDS:
            asked_at, why = now, broker.connect_problem(runtime.addresses.broker)
            present_at = present_at if why else time.monotonic()
            if time.monotonic() - present_at > AWAY_SECONDS:
                raise broker_lost(why, fix())
        if a_second_later := now - last >= 1.0:
            last = now
        yield a_second_later
        # Looking costs the workers their time: whoever waits long is told a twentieth later at most.
        time.sleep(min(1.0, max(POLL_SECONDS, (now - begun) / 20)))


def _early(watched: Sequence[WatchedRun]) -> str:
    """Advice when what is waited for cannot go on; some may have no run of their own yet."""
    names = ", ".join(one.source.settings.name for one in watched if not one.is_own)
    advice = f"an earlier sync of {names} is under way and may have begun too early; it goes on by itself "
    return advice + "when the broker is back: ask again then" if names else WORK_IS_KEPT


def _look_again(runtime: Runtime, one: WatchedRun, *, force: bool) -> None:
    with runtime.database.tenant(one.source.tenant_id) as connection:
        oldest = runs.open_of(connection, one.source.id)
        one.run = runs.get(connection, one.run.id) or one.run
        one.current = oldest if oldest and oldest.id < one.run.id else one.run
        (one.current,) = runs.with_live_counts(connection, [one.current])
        if one.is_own and one.current.id < one.run.id:
            one.earlier = one.earlier or oldest
        if one.earlier and one.earlier.finished_at is None:
            one.earlier = runs.get(connection, one.earlier.id)
        if one.is_own and one.run.finished_at and one.run.superseded:
            (newest,) = runs.of_source(connection, one.source.id, 1)
            later = runs.get(connection, one.later.id) if one.later else newest
            one.later = later if later and later.id > one.run.id else one.later
        being_read = not one.is_own and runs.is_walked(connection, one.source.id)
    if one.is_own:
        one.through = bool(one.run.finished_at) and (oldest is None or oldest.id > one.run.id)
        one.through &= one.later is None or one.later.finished_at is not None
    elif not being_read:
        own_run = _opened(runtime, one.source, force=force)
        if own_run.is_own:
            one.run, one.is_own, one.earlier = own_run.run, True, one.run


def wait(
    runtime: Runtime,
    watched: list[WatchedRun],
    show: Callable[[list[WatchedRun]], None],
    *,
    force: bool = False,
) -> None:
    """Wait until every run and those before it are closed; `show` is called at each look.

    Where the source was being read already, its own run is opened as `force` says as soon as it can be. One that the
    workers which run cannot do is given up, and the others are waited for.

    Raises:
        StoreUnavailable: database or broker are away for too long.
        SourceUnavailable: there are no workers any more.
        EmbedderRefused: nothing is embedded until somebody mends the configuration.
        BudgetSpent: the rest is embedded much later; it may be tomorrow.
    """
    begun = time.monotonic()
    for a_second_later in _looks(runtime, lambda: _early(watched)):
        for one in watched:
            if not (one.through or one.given_up):
                _look_again(runtime, one, force=force)
        show(watched)
        if all(one.through or one.given_up for one in watched):
            return
        if a_second_later:
            _give_up(runtime, watched, time.monotonic() - begun)
        if any(
            w.current.state == "processing" and count_settled(w.current) >= w.current.queued for w in watched
        ):
            # All its documents are through: the pump, which closes it, need not wait for its next tick.
            dispatch.wake_pump(seldom=True)
        if a_second_later and not all(w.is_own for w in watched):
            dispatch.wake_pump()
        if a_second_later and not any(w.run.state == "discovering" for w in watched):
            raise_if_stuck(runtime)


UNDOABLE_SECONDS = 8.0
"""Seconds in which restarting workers may take over the configuration that a run needs."""


def _give_up(runtime: Runtime, watched: Sequence[WatchedRun], seconds: float) -> None:
    """Give up a run, or raise for all, if something keeps workers from them after so many seconds."""
    goes_on = "it is kept and goes on by itself then: larder status"
    for one in watched if seconds > UNDOABLE_SECONDS else ():
        if one.current.state == "discovering" and (one.current.error or "").startswith(CONFIGURED_OTHERWISE):
            one.given_up = f"{one.current.error}; {goes_on}"
    if seconds > UNSERVED_SECONDS:
        with runtime.database.control() as connection:
            since_when = overview.unserved(connection, INDEXING, silent=DEAF_SECONDS)
        unserved_queues = [queue for queue, since in since_when.items() if (since or 0.0) > UNSERVED_SECONDS]
        if unserved_queues:
            message = f"no worker serves {', '.join(unserved_queues)} any more"
            raise SourceUnavailable(message, fix=f"{START}; {goes_on}")


def count_settled(run: runs.RunRow) -> int:
    """Number of documents of a run that are indexed, dead or superseded."""
    return run.indexed + run.dead + run.superseded


def raise_if_stuck(runtime: Runtime) -> None:
    """Raise if the documents that are left wait for a person, or for longer than a command waits."""
    fix = "the work is kept and goes on by itself: larder status"
    with runtime.database.control() as connection:
        terms = runtime.allowance.terms
        hold = embedding_use.hold_on(connection, terms.fingerprint, probe_seconds=terms.probe_seconds)
        waiting = overview.waiting(connection)
    if hold is not None:
        raise EmbedderRefused(f"nothing is embedded: {hold.error}", fix=fix)
    if waiting is not None and (waiting.until - datetime.now(UTC)).total_seconds() > LONG_SECONDS:
        waits = plural(waiting.documents, "document waits", "documents wait")
        message = f"{waits} until {waiting.until:%Y-%m-%d %H:%M} UTC: {waiting.reason}"
        raise BudgetSpent(message, fix=fix)


def finish(
    runtime: Runtime,
    watched: list[WatchedRun],
    not_begun: Sequence[Json],
    tell: Callable[[str, Any], None],
    *,
    force: bool,
) -> Json:
    """Wait as `wait` does, telling how far the `runs` are; the `report` with its `exit_code`."""
    begun = time.monotonic()
    wait(runtime, watched, lambda all_: tell("runs", [*map(_progress, all_)]), force=force)
    document = report(watched, time.monotonic() - begun, not_begun)
    return {**document, "exit_code": exit_code(document)}


def _progress(w: WatchedRun) -> Json:
    run = w.current
    return {
        **{name: getattr(run, name) for name in ("id", "state", "listed", "error", "texts_embedded")},
        "source": w.source.settings.name,
        "settled": count_settled(run),
        "total": None if run.state == "discovering" else run.queued,
        "earlier": run.id != w.run.id or not w.is_own,
    }


def queued(started: Sequence[WatchedRun], not_begun: Sequence[Json]) -> Json:
    """The document of `larder index --no-wait --json` with its `exit_code`."""
    rows: dict[bool, list[Json]] = {True: [], False: []}
    for one in started:
        rows[one.is_own].append({"source": one.source.settings.name, "run": one.run.id})
    return {
        "success": not not_begun,
        "queued": rows[True],
        "under_way": rows[False],
        "errors": [*not_begun],
        "exit_code": 3 if not_begun else 0,
    }


_UNREAD = ("failed", "discovering")
"""States in which a command leaves runs whose sources could not be read."""


def report(watched: Sequence[WatchedRun], seconds: float, not_begun: Sequence[Json] = ()) -> Json:
    """The document of `larder index --json`: one entry a source; listed = unchanged + queued + skipped + failed.

    `not_begun` are entries of `errors` for sources that have none, of `undoable` ones.
    """
    rows = [
        {"source": w.source.settings.name, "run": w.run.id, "earlier_run": w.earlier and w.earlier.id}
        | {name: getattr(counted, name) for name in ("state", *overview.RUN_COUNTS, "left_out", "error")}
        for w in watched
        for with_earlier in [_with_earlier(w.run, w.earlier)]
        for counted in [_with_earlier(w.later, with_earlier) if w.later else with_earlier]
    ]
    return {
        "success": not not_begun
        and all(r["state"] not in _UNREAD and not r["failed"] and not r["dead"] for r in rows),
        "stats": {
            "documents_processed": sum(r["indexed"] for r in rows),
            "chunks_created": sum(r["chunks"] for r in rows),
            "vectors_indexed": sum(r["chunks_written"] for r in rows),
            "time_elapsed": round(seconds, 3),
            "errors": [*_errors(watched), *not_begun],
        },
        "runs": rows,
    }


_ADDED = ("indexed", *runs.SUMS, "hidden", "deleted", "restored")
"""Counts of work: what an earlier run did for a command is in its sums."""


def _with_earlier(run: runs.RunRow, earlier: runs.RunRow | None) -> runs.RunRow:
    """A run with the work of the one that was under way before it; its walk found unchanged what that one indexed."""
    if earlier is None or earlier.state == "failed":
        return run
    repeated = min(run.unchanged, earlier.indexed)
    sums = {name: getattr(run, name) + getattr(earlier, name) for name in _ADDED}
    return replace(run, unchanged=run.unchanged - repeated, queued=run.queued + repeated, **sums)


def _errors(watched: Iterable[WatchedRun]) -> Iterator[Json]:
    for w in watched:
        name = w.source.settings.name
        for p in w.run.problems:
            yield {"source": name, **{key: p[key] for key in ("item", "reason", "outcome")}}
        named = sum(p["outcome"] == "skipped" for p in w.run.problems)
        if sum(w.run.left_out.values()) > named:
            reason = left_out_in_words(w.run.left_out)
            all_of_it = w.run.walk and 0 < w.run.listed == w.run.skipped
            nothing = "nothing of it is stored: " if all_of_it else ""
            yield {"source": name, "item": "", "reason": nothing + reason, "outcome": "skipped"}
        if failure := w.failure:
            yield {"source": name, "item": "", "reason": failure, "outcome": "failed"}


def exit_code(report_: Json) -> int:
    """Exit code: 0 all in, 3 partly, 1 if no source could be read at all."""
    if report_["success"]:
        return 0
    return 3 if any(r["state"] not in _UNREAD for r in report_["runs"]) else 1


# A folder that no source names --------------------------------------------------------------------


def sources_of_folder(runtime: Runtime, folder: Path) -> list[Configured]:
    """One source per type of file that is there, named after the folder; the same folder gives the same names."""
    contents = look_into(folder, runtime.settings.data.resolve())
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "folder"
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    configured = []
    for kind in sorted(kind for kind, files in contents.files.items() if files):
        section = SOURCE_TYPES[kind].model_validate(
            {
                "name": f"{short}-{mark}.{kind}",
                "type": kind,
                "root": str(folder),
                "paths": [f"**/*{ending}" for ending in ENDINGS[kind]],
                "exclude": list(dict.fromkeys((*EXCLUDED, *contents.exclude))),
                "autoIndex": False,
            },
        )
        configured.append(configured_source(runtime.settings, section))
    return configured


def register_folder(runtime: Runtime, ones: Sequence[Configured]) -> None:
    """Register sources that a command made up, all of one tenant."""
    now, first = datetime.now(UTC), ones[0]
    with runtime.database.tenant(first.tenant_id) as connection:
        sources.ensure_tenant(connection, first.tenant_id, first.tenant, first.project_id, first.project)
        sources.register(connection, [sync.registration(runtime, one, now, origin="command") for one in ones])
        names = {"sources": [one.settings.name for one in ones]}
        audit.append(connection, first.tenant_id, "ingest", first.project, names, by=current_user())


# Dry run ------------------------------------------------------------------------------------------


def preview(runtime: Runtime, one: Configured, *, force: bool) -> Json:
    """Counts and items of a sync, found without writing anything."""
    source = open_source(runtime, one.settings)
    destination = sync.admission_of(runtime, one, source, run=0, force=force)
    counts = dict.fromkeys(("listed", "unchanged", "queued", "skipped", "failed"), 0)
    note_count = 0
    items: list[str] = []
    problems: list[Json] = []
    left_out = Counter[str]()
    for page in source.pages(None):
        with runtime.database.tenant(one.tenant_id) as connection:
            verdicts = admission.verdicts(connection, destination, page)
        changed = [e for e, v in verdicts.items() if v in {"changed", "waiting"}]
        dead = sum(v == "dead" for v in verdicts.values())
        items += changed
        counts["queued"] += len(changed)
        counts["failed"] += len(page.failed) + dead
        counts["skipped"] += page.all_left_out.total()
        left_out += page.all_left_out
        counts["unchanged"] += len(verdicts) - len(changed) - dead
        problems += [{**p.to_json(), "outcome": "failed"} for p in page.failed]
        problems += [{**p.to_json(), "outcome": "skipped"} for p in page.skipped]
        problems += [{**p.to_json(), "outcome": "noted"} for p in page.reading_notes]
        note_count += len(page.reading_notes)
    counts["listed"] = sum(counts.values())
    return {
        "source": one.settings.name,
        **counts,
        "noted": note_count,
        "left_out": left_out,
        "would_index": items,
        "problems": problems,
    }
