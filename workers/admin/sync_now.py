"""Syncing now, for commands: open the runs, wait for them, tell what they did."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import TimeoutExpired
from uuid import UUID

from connectors.files.contents import EXCLUDED, look_into
from connectors.files.options import ENDINGS
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import (
    BudgetSpent,
    ConfigurationError,
    EmbedderRefused,
    LarderError,
    SourceUnavailable,
    StoreUnavailable,
)
from pipeline.ingest.sync import CONFIGURED_OTHERWISE, START_AGAIN
from pipeline.ledger import admission, audit, embedding_use, overview, runs, sources
from workers.admin.source_words import left_out_in_words
from workers.control import sync
from workers.control.sync import Configured, configured_source, configured_sources, open_source, start_run
from workers.processes.liveness import DEAF_SECONDS
from workers.queue import broker, dispatch
from workers.queue.celeryconfig import ENRICHING, INDEXING
from workers.runtime import Runtime, current_user
from workers.settings import SOURCE_TYPES, Settings

POLL_SECONDS = 0.05
BROKER_SECONDS = 5.0
"""How often it is asked whether the broker is there."""
AWAY_SECONDS = 20.0
"""A command does not sit out a longer absence of the broker, either."""
UNSERVED_SECONDS = 60.0
"""In which a worker that is being restarted is back."""
RESTART_POLL_SECONDS = 0.5
START = "larder up --detach; where workers run in containers or were started by hand, `larder worker QUEUE` for each"
KEPT = "it is kept and goes on by itself when the broker is back: larder doctor, larder status"
LONG_SECONDS = 900.0
"""A command does not sit out a longer wait of embedding; the work goes on without it."""


@dataclass
class WatchedRun:
    """A run that a command waits for."""

    source: Configured
    run: runs.RunRow
    shown: runs.RunRow
    """What is worked on at this moment: the oldest open one, with the counts of this moment."""
    own: bool = True
    """False: it was under way and may have begun too early; another is opened as soon as its walk is over."""
    earlier: runs.RunRow | None = None
    """What was under way before its own, with its last counts."""
    later: runs.RunRow | None = None
    """What took documents over from its own before they were done, with its last counts."""
    through: bool = False
    """It is closed, and so is every earlier one of the source: all that this walk saw unchanged is searchable."""
    given_up: str = ""
    """Why nobody waits for it any longer: the workers that run cannot do it."""

    @property
    def failure(self) -> str:
        """Why the source could not be read; empty if it was."""
        return self.given_up or (str(self.run.error) if self.run.state == "failed" else "")


def configured_sources_named(settings: Settings, names: Sequence[str]) -> list[Configured]:
    """The configured sources of these names; all of them without names.

    Raises:
        ConfigurationError: a name is not configured; the message lists those that are.
    """
    every = list(configured_sources(settings).values())
    known = {c.settings.name for c in every}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ConfigurationError(
            f"no enabled source is called {', '.join(map(repr, unknown))}",
            fix=f"configured are {', '.join(sorted(known)) or 'none'}",
        )
    return [c for c in every if not names or c.settings.name in names]


def undoable(parts: Runtime, wanted: Sequence[Configured]) -> dict[UUID, SourceUnavailable]:
    """Which of these the workers that run do not have as configured here, and why; none if none run.

    Whoever starts workers registers what they have. Another configuration must not be registered before they take it
    over: the source would be wrong for those that run, and for good if it was a slip.
    """
    with parts.database.control() as connection:
        if not set(INDEXING) <= served_queues(overview.workers(connection)):
            return {}
        known = {row.id: row.config_hash for row in sources.listed(connection) if row.removed_at is None}
        tenants = set(sources.tenant_names(connection).values())
    lacking = [one for one in wanted if known.get(one.id) != sync.config_hash(parts, one)]
    return {one.id: _why_undoable(parts.settings, one, tenants, known) for one in lacking}


def _why_undoable(
    settings: Settings, one: Configured, tenants: Collection[str], known: Collection[UUID]
) -> SourceUnavailable:
    name = one.settings.name
    if one.tenant not in tenants:
        said = f"no tenant {one.tenant}, only {', '.join(sorted(tenants))}"
        return SourceUnavailable(
            f"{CONFIGURED_OTHERWISE}{said}", fix="name one of these (LARDER_TENANT, or tenant in the file)"
        )
    said = f"another configuration of source {name}" if one.id in known else f"no source {name}"
    # Loaded by few commands, and not needed by them but here.
    from workers.processes import supervisor

    again = "larder reload" if "supervisor" in supervisor.running(settings.data) else START_AGAIN
    return SourceUnavailable(f"{CONFIGURED_OTHERWISE}{said} yet", fix=f"{again}; then larder index {name}")


def start(parts: Runtime, wanted: Sequence[Configured], *, force: bool) -> list[WatchedRun]:
    """Open a run for each source, but where one reads the source already: `wait` opens another when it is through."""
    return [_opened(parts, one, force=force) for one in wanted]


def _opened(parts: Runtime, one: Configured, *, force: bool) -> WatchedRun:
    while True:
        run_id = start_run(parts, one.tenant_id, one.id, trigger="manual", force=force)
        with parts.database.tenant(one.tenant_id) as connection:
            run = runs.get(connection, run_id) if run_id else runs.newest_open(connection, one.id)
        if run is not None:  # else it ended in between
            return WatchedRun(source=one, run=run, shown=run, own=run_id is not None)


def broker_lost(why: str, fix: str = KEPT) -> StoreUnavailable:
    """What to tell a person who would wait in vain."""
    return StoreUnavailable(f"the broker {why}, so no worker hears of this work", fix=fix)


def _looks(parts: Runtime, fix: Callable[[], str]) -> Iterator[bool]:
    """When to look again, for ever; True once a second. `fix` says what a person can do who would wait in vain.

    Raises:
        StoreUnavailable: the broker, by which workers are told of work, has been away for `AWAY_SECONDS`.
    """
    begun = here = last = time.monotonic()
    asked = float("-inf")
    while True:
        now = time.monotonic()
        if now - asked >= BROKER_SECONDS:
            asked, why = now, broker.connect_problem(parts.addresses.broker)
            here = here if why else time.monotonic()
            if time.monotonic() - here > AWAY_SECONDS:
                raise broker_lost(why, fix())
        if a_second_later := now - last >= 1.0:
            last = now
        yield a_second_later
        # Looking costs the workers their time: whoever waits long is told a twentieth later at most.
        time.sleep(min(1.0, max(POLL_SECONDS, (now - begun) / 20)))


def _early(watched: Sequence[WatchedRun]) -> str:
    """What to do when what is waited for cannot go on; some may have no run of their own yet."""
    names = ", ".join(one.source.settings.name for one in watched if not one.own)
    said = f"an earlier sync of {names} is under way and may have begun too early; it goes on by itself "
    return said + "when the broker is back: ask again then" if names else KEPT


def _look_again(parts: Runtime, one: WatchedRun, *, force: bool) -> None:
    with parts.database.tenant(one.source.tenant_id) as connection:
        oldest = runs.open_of(connection, one.source.id)
        one.run = runs.get(connection, one.run.id) or one.run
        one.shown = oldest if oldest and oldest.id < one.run.id else one.run
        (one.shown,) = runs.with_live_counts(connection, [one.shown])
        if one.own and one.shown.id < one.run.id:
            one.earlier = one.earlier or oldest
        if one.earlier and one.earlier.finished_at is None:
            one.earlier = runs.get(connection, one.earlier.id)
        if one.own and one.run.finished_at and one.run.superseded:
            (newest,) = runs.of_source(connection, one.source.id, 1)
            later = runs.get(connection, one.later.id) if one.later else newest
            one.later = later if later and later.id > one.run.id else one.later
        being_read = not one.own and runs.is_walked(connection, one.source.id)
    if one.own:
        one.through = bool(one.run.finished_at) and (oldest is None or oldest.id > one.run.id)
        one.through &= one.later is None or one.later.finished_at is not None
    elif not being_read:
        mine = _opened(parts, one.source, force=force)
        if mine.own:
            one.run, one.own, one.earlier = mine.run, True, one.run


def wait(
    parts: Runtime,
    watched: list[WatchedRun],
    show: Callable[[list[WatchedRun]], None],
    *,
    force: bool = False,
) -> None:
    """Until every run and those before it are closed; `show` is called at each look.

    Where the source was being read already, its own run is opened as `force` says as soon as it can be. One that the
    workers which run cannot do is given up, and the others are waited for.

    Raises:
        StoreUnavailable: database or broker are away for too long.
        SourceUnavailable: there are no workers any more.
        EmbedderRefused: nothing is embedded until somebody mends the configuration.
        BudgetSpent: the rest is embedded much later; it may be tomorrow.
    """
    begun = time.monotonic()
    for a_second_later in _looks(parts, lambda: _early(watched)):
        for one in watched:
            if not (one.through or one.given_up):
                _look_again(parts, one, force=force)
        show(watched)
        if all(one.through or one.given_up for one in watched):
            return
        if a_second_later:
            _give_up(parts, watched, time.monotonic() - begun)
        if any(w.shown.state == "processing" and count_settled(w.shown) >= w.shown.queued for w in watched):
            # All its documents are through: the pump, which closes it, need not wait for its next tick.
            dispatch.wake_pump(seldom=True)
        if a_second_later and not all(w.own for w in watched):
            dispatch.wake_pump()
        if a_second_later and not any(w.run.state == "discovering" for w in watched):
            raise_if_stuck(parts)


UNDOABLE_SECONDS = 8.0
"""In which workers that are being restarted may take over the configuration that a run needs."""


def _give_up(parts: Runtime, watched: Sequence[WatchedRun], seconds: float) -> None:
    """What keeps workers, after so many seconds, from what is waited for: one run is given up, or all by an error."""
    goes_on = "it is kept and goes on by itself then: larder status"
    for one in watched if seconds > UNDOABLE_SECONDS else ():
        if one.shown.state == "discovering" and (one.shown.error or "").startswith(CONFIGURED_OTHERWISE):
            one.given_up = f"{one.shown.error}; {goes_on}"
    if seconds > UNSERVED_SECONDS:
        with parts.database.control() as connection:
            unserved = overview.unserved(connection, INDEXING, silent=DEAF_SECONDS)
        gone = [queue for queue, since in unserved.items() if (since or 0.0) > UNSERVED_SECONDS]
        if gone:
            message = f"no worker serves {', '.join(gone)} any more"
            raise SourceUnavailable(message, fix=f"{START}; {goes_on}")


def count_settled(run: runs.RunRow) -> int:
    """Documents of a run that are through, one way or the other."""
    return run.indexed + run.dead + run.superseded


def raise_if_stuck(parts: Runtime) -> None:
    """When the walks are through, what is left to wait for may take a person, or a day."""
    kept = "the work is kept and goes on by itself: larder status"
    with parts.database.control() as connection:
        terms = parts.allowance.terms
        held = embedding_use.hold_on(connection, terms.fingerprint, probe_seconds=terms.probe_seconds)
        waiting = overview.waiting(connection)
    if held is not None:
        raise EmbedderRefused(f"nothing is embedded: {held.error}", fix=kept)
    if waiting is not None and (waiting.until - datetime.now(UTC)).total_seconds() > LONG_SECONDS:
        waits = plural(waiting.documents, "document waits", "documents wait")
        said = f"{waits} until {waiting.until:%Y-%m-%d %H:%M} UTC: {waiting.reason}"
        raise BudgetSpent(said, fix=kept)


_UNREAD = ("failed", "discovering")
"""What runs are at the end of a command, if their sources could not be read."""


def report(watched: Sequence[WatchedRun], seconds: float, not_begun: Sequence[Json] = ()) -> Json:
    """The document of `larder index --json`: one entry a source; listed = unchanged + queued + skipped + failed.

    `not_begun` are entries of `errors` for sources that have none, of `undoable` ones.
    """
    rows = [
        {"source": w.source.settings.name, "run": w.run.id, "earlier_run": w.earlier and w.earlier.id}
        | {name: getattr(counted, name) for name in ("state", *overview.RUN_COUNTS, "left_out", "error")}
        for w in watched
        for own in [_with_earlier(w.run, w.earlier)]
        for counted in [_with_earlier(w.later, own) if w.later else own]
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
    again = min(run.unchanged, earlier.indexed)
    sums = {name: getattr(run, name) + getattr(earlier, name) for name in _ADDED}
    return replace(run, unchanged=run.unchanged - again, queued=run.queued + again, **sums)


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
    """0 all in, 3 partly, 1 if no source could be read at all."""
    if report_["success"]:
        return 0
    return 3 if any(r["state"] not in _UNREAD for r in report_["runs"]) else 1


# A folder that no source names --------------------------------------------------------------------


def sources_of_folder(parts: Runtime, folder: Path) -> list[Configured]:
    """One source per type of file that is there, named after the folder; the same folder gives the same names."""
    contents = look_into(folder, parts.settings.data.resolve())
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "folder"
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    found = []
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
        found.append(configured_source(parts.settings, section))
    return found


def register_folder(parts: Runtime, ones: Sequence[Configured]) -> None:
    """Make the ledger know sources that a command made up, all of one tenant."""
    now, first = datetime.now(UTC), ones[0]
    with parts.database.tenant(first.tenant_id) as connection:
        sources.ensure_tenant(connection, first.tenant_id, first.tenant, first.project_id, first.project)
        sources.register(connection, [sync.registration(parts, one, now, origin="command") for one in ones])
        names = {"sources": [one.settings.name for one in ones]}
        audit.append(connection, first.tenant_id, "ingest", first.project, names, by=current_user())


# Dry run ------------------------------------------------------------------------------------------


def preview(parts: Runtime, one: Configured, *, force: bool) -> Json:
    """What a sync would do, found without writing anything."""
    source = open_source(parts, one.settings)
    where = sync.admission_of(parts, one, source, run=0, force=force)
    counts = dict.fromkeys(("listed", "unchanged", "queued", "skipped", "failed"), 0)
    noted = 0
    items: list[str] = []
    problems: list[Json] = []
    left_out = Counter[str]()
    for page in source.pages(None):
        with parts.database.tenant(one.tenant_id) as connection:
            verdicts = admission.verdicts(connection, where, page)
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
        noted += len(page.reading_notes)
    counts["listed"] = sum(counts.values())
    return {
        "source": one.settings.name,
        **counts,
        "noted": noted,
        "left_out": left_out,
        "would_index": items,
        "problems": problems,
    }


# Workers for one command --------------------------------------------------------------------------


def served_queues(workers: Sequence[Json]) -> set[str]:
    """Queues that a living one of the `workers` of the status serves."""
    return {queue for w in workers if w["age_seconds"] <= DEAF_SECONDS for queue in w["queues"]}


def await_restarted(parts: Runtime, tell: Callable[[str], object]) -> None:
    """Wait for workers that ended a moment ago, on servers of one's own: they are perhaps being restarted."""
    from workers.embedded.locating import uses_embedded

    told = False
    while not uses_embedded(parts.settings):
        with parts.database.control() as connection:
            unserved = overview.unserved(connection, INDEXING, silent=DEAF_SECONDS)
        if not unserved or any((s or math.inf) > UNSERVED_SECONDS for s in unserved.values()):
            return
        if not told:
            tell(
                f"no worker serves {', '.join(sorted(unserved))} at this moment: waiting for one to come back"
            )
            told = True
        time.sleep(RESTART_POLL_SECONDS)


class QueuesUnserved(LarderError):
    """No worker serves what a command needs, and workers of its own would need servers of its own."""


@contextmanager
def temporary_workers(parts: Runtime, queues: Sequence[str] = INDEXING) -> Iterator[bool]:
    """Workers for the length of one command, if none run on this machine's embedded servers."""
    with parts.database.control() as connection:
        lacking = sorted(set(queues) - served_queues(overview.workers(connection)))
    if not lacking:
        yield False
        return
    from workers.embedded.locating import uses_embedded
    from workers.processes import detached, supervisor

    ours = uses_embedded(parts.settings)
    # Workers for Step 4 look into the ledger, those for indexing do not.
    needed = not ours or set(lacking) - set(ENRICHING)
    if needed and (why := broker.connect_problem(parts.addresses.broker)):
        raise broker_lost(why, broker.advice_on(why))
    if not ours:
        started = ", ".join(f"`larder worker {queue}`" for queue in lacking)
        raise QueuesUnserved(f"no worker serves {', '.join(lacking)}", fix=f"start {started}")
    lender = detached.start_temporary_workers(parts.settings, queues)
    try:
        yield True
    finally:
        lender.terminate()
        try:
            with suppress(TimeoutExpired):
                lender.communicate(timeout=supervisor.STOP_SECONDS + 10)
        finally:  # also at a second Ctrl-C: they must not outlive this process
            if lender.poll() is None:
                supervisor.kill_tree(lender.pid)
