"""What stands on the operator's screen, and what to do next."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import itemgetter
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from pipeline.access import OPERATE, Caller
from pipeline.documents import Json, plural
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import LarderError, NotFound, StoreError, StoreRefused, StoreUnavailable
from pipeline.ledger import dead, embedding_use, overview, runs, sources, upkeep
from pipeline.ledger.sources import UPLOADED
from pipeline.search.cache import partial_of_all
from pipeline.search.chunk_store import active_index
from pipeline.search.retriever import indexed_since
from workers.admin import reindex
from workers.admin.sync_now import served_queues
from workers.control import steps, sync
from workers.limits.limiters import ProviderState
from workers.queue import broker
from workers.queue.celeryconfig import INDEXING, QUEUES
from workers.runtime import Runtime, acting_as

STORE_DOWN_LEVEL = 4
"""Without the database nothing can be looked up: answers are static."""
SLOW_LEVEL = 2
"""What workers answer at least at while the database is slow."""
LEAST_DISK_BYTES = 1_000_000_000
"""With less room PostgreSQL may stop at any moment."""
LATE_SECONDS = 600.0
"""Due work that waits longer needs a person."""
FOREIGN = "workers that were started with another configuration meet this; restart them with the mended one"


def status(parts: Runtime, slow: Callable[[float], None] = lambda _seconds: None) -> Json:
    """The document of `larder status --json`, over all tenants.

    `slow` is told at once if each way to the database takes so many seconds that the rest will take long.

    Raises:
        StoreError: the database does not answer; `without_database` then says what is left to say.
    """
    with parts.database.control() as connection:
        seconds = overview.round_trip(connection)
        is_slow = seconds > HealthOptions.slow_seconds
        if is_slow:
            slow(seconds)
        enrichment = overview.enrichment(connection)
        found: Json = {
            "database_seconds": round(seconds, 3),
            "sources": [_with_lateness(source) for source in overview.sources(connection)],
            "backlog": overview.backlog(connection, resend=steps.limits(parts.rag).resend),
            "workers": overview.workers(connection),
            "canaries": overview.canaries(connection),
            "index": overview.index(connection),
            "partial": vars(partial) if (partial := partial_of_all(connection)) else None,
            "embedding": embedding_state(parts, connection),
            "other_indexes": reindex.inactive_indexes(connection),
            "index_mismatch": reindex.mismatch(parts, active_index(connection)),
            "degradation_level": max(enrichment.pop("degradation_level"), SLOW_LEVEL if is_slow else 0),
            "enrichment": enrichment,
            "database": "ok",
            "alerts": upkeep.alerts(connection),
            "disk_free": disk_free(parts),
        }
    found["backlog"]["queues"] = queues = broker.lengths(parts.addresses.broker, QUEUES)
    # A silent broker takes its time for each question.
    found["backlog"]["set_aside"] = None if queues is None else broker.aside_total(parts.addresses.broker)
    found |= _broker_facts(parts, queues)
    found["next"] = advice(found)
    return found


def without_database(parts: Runtime, error: LarderError) -> Json:
    """The same document when the database does not answer: only the broker can be looked at."""
    queues = broker.lengths(parts.addresses.broker, QUEUES)
    free = disk_free(parts)
    return {
        "database_seconds": None,
        "sources": [],
        "backlog": {"queues": queues},
        "workers": [],
        "canaries": {},
        "index": None,
        "partial": None,
        "embedding": None,
        "other_indexes": [],
        "index_mismatch": "",
        "alerts": [],
        "degradation_level": STORE_DOWN_LEVEL,
        "database": "refused" if isinstance(error, StoreRefused) else "error",
        **_broker_facts(parts, queues),
        "disk_free": free,
        "error": error.to_json(),
        "next": next(_of_disk(free), f"{error.message}: larder doctor"),
    }


def disk_free(parts: Runtime) -> int:
    """Bytes where the data lie, or will."""
    folder = parts.settings.data
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


WATCH_SECONDS = 5.0
"""In which the database must give each answer to one who looks for others."""


def watcher(parts: Runtime) -> Runtime:
    """The same parts with connections of their own, on which a silent database is soon given up."""
    made = Runtime(parts.settings, parts.addresses)
    made.answer_timeout = WATCH_SECONDS
    return made


SEEN_SECONDS = 5.0
"""So old a status may be that programs ask for again and again."""
SILENT_SECONDS = 2.0
"""A database that has said nothing for so long to who looks is told as silent to all others who ask meanwhile."""
_seen: WeakKeyDictionary[Runtime, tuple[float, Json]] = WeakKeyDictionary()
_unheard: WeakKeyDictionary[Runtime, float] = WeakKeyDictionary()
"""When who looks at this moment began; never, once a slow database has answered."""
_looking = threading.Lock()


def recent(parts: Runtime) -> Json:
    """The same for programs: at most a few seconds old, made by one at a time, also while the database is away."""
    at, found = _seen.get(parts, (float("-inf"), {}))
    if time.monotonic() - at <= SEEN_SECONDS:
        return found
    if not _looking.acquire(blocking=not found):
        if time.monotonic() - _unheard.get(parts, float("inf")) < SILENT_SECONDS:
            return found
        return without_database(parts, StoreUnavailable("the database says nothing"))
    try:
        _unheard[parts] = time.monotonic()
        try:
            found = status(parts, slow=lambda _seconds: _unheard.update({parts: float("inf")}))
        except StoreError as error:
            found = without_database(parts, error)
        _seen[parts] = time.monotonic(), found
    finally:
        _unheard.pop(parts, None)
        _looking.release()
    return found


def _with_lateness(source: Json) -> Json:
    """With `late_seconds`: since when a sync was due by the schedule and none was completed."""
    schedule, zone, last = source.pop("schedule"), source.pop("timezone"), source.pop("last_sync_at")
    given, now = source["next_sync"], datetime.now(UTC)
    due = sync.next_time(schedule, zone, last) if last else given and datetime.fromisoformat(given)
    if due is None or source["paused"] or source["removed"]:
        due = now
    return source | {"late_seconds": max(0.0, (now - due).total_seconds())}


def _broker_facts(parts: Runtime, queues: dict[str, int] | None) -> Json:
    """`broker`: ok, error or refused; `broker_error`: why, as the end of a sentence; `broker_memory`: its share."""
    if queues is not None:
        told = broker.facts(parts.addresses.valkey)
        share = told.used / told.limit if told and told.limit else None
        return {"broker": "ok", "broker_error": "", "broker_memory": share}
    why = broker.connect_problem(parts.addresses.broker) or "does not answer"
    state = "refused" if why in broker.REFUSALS else "error"
    return {"broker": state, "broker_error": why, "broker_memory": None}


def embedding_state(parts: Runtime, connection: Connection) -> Json:
    """The entry `embedding` of `larder status --json`; `state` is ok, waiting or held."""
    allowance, terms = parts.allowance, parts.allowance.terms
    outlook = allowance.rate.state() if allowance.rate else ProviderState()
    today = embedding_use.usage_today(connection)
    found: Json = {
        "state": "ok",
        "until": None,
        "error": None,
        "since": None,
        "fingerprint": allowance.fingerprint,
        "documents": 0,
        "failures": outlook.failures,
        "today": today,
        "budget_left": allowance.budget_left(today),
        "cache_bytes": embedding_use.cache_bytes(connection),
        "last_load": overview.embedded_texts(connection),
    }
    hold = embedding_use.latest_hold(connection, terms.fingerprint, probe_seconds=terms.probe_seconds)
    if hold is not None:
        foreign = hold.fingerprint != terms.fingerprint
        return found | {
            "state": "held",
            "until": hold.probe_at.isoformat(),
            "error": f"{hold.error}; {FOREIGN}" if foreign else hold.error,
            "since": hold.since.isoformat(),
            "fingerprint": hold.fingerprint,
        }
    waiting = overview.waiting(connection)
    if waiting is not None:
        told = {"until": waiting.until.isoformat(), "error": waiting.reason, "documents": waiting.documents}
        return found | {"state": "waiting", **told}
    if outlook.closed_seconds > 0:
        until = datetime.now(UTC) + timedelta(seconds=outlook.closed_seconds)
        error = "the embedding provider is left alone until then"
        return found | {"state": "waiting", "until": until.isoformat(), "error": error}
    return found


def advice(found: Json) -> str:
    """What to do next: the most urgent thing, as a sentence with its command; empty if all is well."""
    return next(chain(*(part(found) for part in (_of_work, _of_content, _of_indexes, _of_syncs))), "")


def _of_disk(free: int) -> Iterator[str]:
    if free < LEAST_DISK_BYTES:
        yield f"{free / 1e6:,.0f} MB are free where the data lie, and nothing works without: make room"


def _of_work(found: Json) -> Iterator[str]:
    yield from _of_disk(found["disk_free"])
    if found["broker"] != "ok":
        yield f"the broker {found['broker_error']}; nothing is lost, work waits in the ledger: larder doctor"
    if (seconds := found["database_seconds"]) > HealthOptions.slow_seconds:
        yield f"the database takes {seconds:.1f} s for each answer: look at its load and its network"
    served = served_queues(found["workers"])
    if found["enrichment"]["waiting"] and "enrich" not in served:
        yield "Step 4 waits and no worker serves enrich: larder up --detach"
    waiting, late = found["backlog"]["pending"], found["backlog"]["oldest_due_seconds"] or 0
    lacking = sorted(set(INDEXING) - served)
    if waiting and lacking:
        waits = plural(waiting, "document waits", "documents wait")
        yield f"{waits} and no worker serves {', '.join(lacking)}: larder up --detach"
    if found["embedding"]["state"] == "held":
        yield f"nothing is embedded: {found['embedding']['error']}"
    # A large load is late as a whole, and well as long as each queue is heard of.
    unheard = [q for q in INDEXING if found["canaries"].get(q, late) > LATE_SECONDS]
    if late > LATE_SECONDS and unheard:
        yield f"work has been due for {late / 60:.0f} minutes: larder doctor"


def count_rejected(source: Json) -> int:
    """How many items of a source could not be taken in, as far as they are named."""
    return sum(problem["outcome"] == "failed" for problem in source["problems"])


def nothing_stored(source: Json) -> bool:
    """Whether a source has shown items, and none of them became a document."""
    return bool(source["left_out"]) and not (source["documents"] or source["pending"] or source["removed"])


def _of_content(found: Json) -> Iterator[str]:
    sources = found["sources"]
    there = [s for s in sources if not s["removed"]]
    for s in filter(itemgetter("last_error"), there):
        yield f"{s['name']} cannot be read: larder sources check {s['name']}"
    for s in filter(itemgetter("held"), sources):
        name = s["name"]
        held = plural(s["held"], "deletion waits", "deletions wait")
        yield f"{held} in {name}; if meant: larder sources release {name}"
    for s in filter(nothing_stored, sources):
        said = f"{s['name']} shows items and none is stored, {overview.left_out_in_words(s['left_out'])}"
        yield f"{said}; see larder sources check {s['name']}"
    for s in filter(count_rejected, (s for s in there if s["type"] != UPLOADED)):  # their senders were told
        name = s["name"]
        yield f"{count_rejected(s)} of {name} could not be taken in: mend what `larder runs {name}` names"
    if dead := sum(s["dead"] for s in sources):
        yield f"{plural(dead, 'dead letter')}: larder dead list"
    if failed := found["enrichment"]["failed"]:
        yield f"{plural(failed, 'job')} of user stories failed: larder dead list"
    for s in (s for s in sources if s.get("renamed_to")):
        name, twin, count = s["name"], s["renamed_to"], plural(s["documents"], "document")
        said = f"{name} is no longer configured, and its {count} come twice, as those of {twin}"
        yield f"{said}: larder sources rename {name} {twin}"


def _of_indexes(found: Json) -> Iterator[str]:
    building = [i for i in found["other_indexes"] if i["status"] == "building"]
    if any(not i["missing"] for i in building):
        yield "the new search index is full: larder reindex switch"
    elif found["index_mismatch"] and not building:
        yield f"{found['index_mismatch']}: run larder reindex"


def _of_syncs(found: Json) -> Iterator[str]:
    sources = found["sources"]
    if not sources:
        yield "no source is known yet: larder config init, then larder index"
    idle = not served_queues(found["workers"])
    for s in (s for s in sources if idle and not s["paused"] and not s["removed"]):
        if s["freshness_seconds"] is None:
            yield f"{s['name']} was never synced: larder index"
    if idle and any(s["next_sync"] and not s["paused"] and not s["removed"] for s in sources):
        yield "no worker is running, so no schedule is kept: larder up --detach"


# What a caller may know -----------------------------------------------------------------------------


def projects_of(parts: Runtime, caller: Caller) -> dict[UUID, str]:
    """The projects that the caller may look into, with their names."""
    with parts.database.tenant(caller.tenant) as connection:
        return {key: name for key, name in sources.every_project(connection).items() if caller.may_see(key)}


def sources_of(parts: Runtime, caller: Caller) -> list[Json]:
    """The sources of those projects; how many documents they hold is told to those who operate them."""
    with parts.database.tenant(caller.tenant) as connection:
        rows = [row for row in sources.listed(connection) if caller.may_see(row.project_id)]
        last = {row.id: run for row in rows for run in runs.of_source(connection, row.id, 1)}
        last = dict(zip(last, runs.with_live_counts(connection, list(last.values())), strict=True))
    return [
        {
            "name": row.name,
            "type": row.kind,
            "project_id": row.project_id,
            "state": _state_of(row),
            "last_sync": row.last_sync_at,
            "next_sync": row.next_sync_at,
            "last_error": row.last_error,
            "held": row.held if caller.may_change(row.project_id) else 0,
            "run": last.get(row.id) if caller.may(OPERATE) else None,
            "id": row.id,
        }
        for row in rows
    ]


NAMED_PROBLEMS = ("failed", "skipped", "noted")
COUNTED_PROBLEMS = (*NAMED_PROBLEMS, "left out")
"""Counts of a source that lead to a list of reasons."""


def problems_of(parts: Runtime, caller: Caller) -> dict[UUID, Json]:
    """Source -> `{"counts", "problems", "left_out"}`: what could not be taken in; of those the caller operates."""
    if not caller.may(OPERATE):
        return {}
    with parts.database.tenant(caller.tenant) as connection:
        rows = [row for row in sources.listed(connection) if caller.may_change(row.project_id)]
        problems = overview.newest_problems(connection)
        left_out = {row.id: run.left_out for row in rows for run in runs.of_source(connection, row.id, 1)}
    found: dict[UUID, Json] = {}
    for row in rows:
        named, reasons = problems.get(row.id, []), left_out.get(row.id, {})
        counts = {word: sum(one["outcome"] == word for one in named) for word in NAMED_PROBLEMS}
        counts["left out"] = sum(reasons.values())
        found[row.id] = {"counts": counts, "problems": named, "left_out": reasons}
    return found


def _state_of(row: sources.SourceRow) -> str:
    return "removed" if row.removed_at else "paused" if row.paused_at else "active"


def letters_of(parts: Runtime, caller: Caller) -> tuple[list[dead.DeadLetter], list[Json]]:
    """Dead letters of the caller's projects, and what their tenant embedded today."""
    with parts.database.tenant(caller.tenant) as connection:
        own = [row.id for row in sources.listed(connection) if caller.may_change(row.project_id)]
        return dead.listed(connection, source_ids=own), embedding_use.usage_today(connection)


def operate_source(parts: Runtime, caller: Caller, name: str, act: Callable[[str], object]) -> None:
    """Have `act` do something to the caller's source of this name, as the caller.

    Raises:
        NotFound: none of theirs is called so.
    """
    with parts.database.tenant(caller.tenant) as connection:
        theirs = {row.name for row in sources.listed(connection) if caller.may_change(row.project_id)}
        tenant = sources.tenant_names(connection).get(caller.tenant, caller.tenant_name)
    if name not in theirs:
        raise NotFound("there is no such source")
    with acting_as(caller.subject):
        act(f"{tenant}/{name}")


MOST_CHANGES = 100


def changes_of(parts: Runtime, caller: Caller) -> list[Json]:
    """What was indexed today and the caller may see, newest first."""
    wanted = replace(caller.search_filter, projects=caller.own_projects)
    since = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return indexed_since(parts.database, caller.tenant, wanted, since, MOST_CHANGES)


def runs_of(parts: Runtime, caller: Caller, name: str, most: int) -> list[runs.RunRow]:
    """The newest runs of a source; open ones have the counts of this moment.

    Raises:
        NotFound: none of the caller's is called so.
    """
    with parts.database.tenant(caller.tenant) as connection:
        for row in sources.listed(connection):
            if row.name == name and caller.may_see(row.project_id):
                return runs.with_live_counts(connection, runs.of_source(connection, row.id, most))
    raise NotFound("there is no such source")


def _told(caller: Caller, source: sources.SourceRow) -> bool:
    # Problems of a run name items that few may see.
    return caller.may(OPERATE) or source.origin == "upload"


def run_of(parts: Runtime, caller: Caller, run_id: int) -> runs.RunRow:
    """A run of a source of the caller's, of an upload if they do not operate it; an open one has counts of this moment.

    Raises:
        NotFound: there is none of this number.
    """
    with parts.database.tenant(caller.tenant) as connection:
        run = runs.get(connection, run_id)
        row = sources.get(connection, run.source_id) if run else None
        if run is None or row is None or not caller.may_see(row.project_id) or not _told(caller, row):
            raise NotFound("there is no such run")
        return runs.with_live_counts(connection, [run])[0]
