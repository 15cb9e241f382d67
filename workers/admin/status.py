"""What stands on the operator's screen, and what to do next."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from pipeline.access import OPERATE, Caller
from pipeline.database.engine import database_id
from pipeline.documents import Json
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import LarderError, NotFound, StoreError, StoreRefused, StoreUnavailable
from pipeline.ledger import dead, embedding_use, overview, runs, sources, upkeep
from pipeline.search.cache import partial_of_all
from pipeline.search.chunk_store import active_index
from pipeline.search.retriever import indexed_since
from workers.admin import reindex, supervised
from workers.admin.judgement import next_steps
from workers.control import steps, sync
from workers.control.sync import configured_sources
from workers.limits.limiters import ProviderState
from workers.processes.liveness import DEAF_SECONDS
from workers.queue import broker
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime, acting_as

STORE_DOWN_LEVEL = 4
"""Without the database nothing can be looked up: answers are static."""
SLOW_LEVEL = 2
"""What workers answer at least at while the database is slow."""
FOREIGN = "workers that were started with another configuration meet this; restart them with the mended one"


def status(parts: Runtime, slow: Callable[[float], None] = lambda _seconds: None) -> Json:
    """The document of `larder status --json`, over all tenants.

    `slow` is told at once if each way to the database takes so many seconds that the rest will take long.

    Raises:
        StoreError: the database does not answer, or refuses a login; `without_database` then says what is left to say.
    """
    with parts.database.control() as connection:
        seconds = overview.round_trip(connection)
    is_slow = seconds > HealthOptions.slow_seconds
    if is_slow:
        slow(seconds)
    parts.database.close()  # a login that is refused from now on goes on with the connections that it has
    with parts.database.control() as connection:
        with parts.database.tenant(parts.settings.tenant_id) as own:
            overview.server_version(own)
        enrichment = overview.enrichment(connection)
        found: Json = {
            "database_seconds": round(seconds, 3),
            "sources": [_with_lateness(source) for source in overview.sources(connection)],
            "backlog": overview.backlog(connection, resend=steps.limits(parts.rag).resend),
            "workers": overview.workers(connection),
            "unserved": overview.unserved(connection, QUEUES, silent=DEAF_SECONDS),
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
        database = database_id(connection)
        found["unconfigured"] = unconfigured(parts, connection)
    found["backlog"]["queues"] = queues = broker.lengths(parts.addresses.broker, QUEUES)
    # A silent broker takes its time for each question.
    found["backlog"]["set_aside"] = (
        None if queues is None else broker.quarantined_total(parts.addresses.broker)
    )
    owner = broker.owner(parts.addresses.broker) if queues is not None else ""
    found |= {"broker_shared_with": owner if owner != database else ""}
    found |= local_facts(parts)
    found |= broker_facts(parts, queues)
    return found | {"next": next_steps(found)}


def without_database(parts: Runtime, error: LarderError) -> Json:
    """The same document when the database does not answer: only the broker can be looked at."""
    queues = broker.lengths(parts.addresses.broker, QUEUES)
    found: Json = {
        "database_seconds": None,
        "sources": [],
        "backlog": {"queues": queues},
        "workers": [],
        "unserved": {},
        "canaries": {},
        "index": None,
        "partial": None,
        "embedding": None,
        "other_indexes": [],
        "index_mismatch": "",
        "alerts": [],
        "degradation_level": STORE_DOWN_LEVEL,
        "broker_shared_with": "",
        **local_facts(parts),
        "unconfigured": [],
        "database": "refused" if isinstance(error, StoreRefused) else "error",
        **broker_facts(parts, queues),
        "disk_free": disk_free(parts),
        "error": error.to_json(),
    }
    return found | {"next": next_steps(found)}


def local_facts(parts: Runtime) -> Json:
    """What is to be said of the `larder up` of this machine."""
    return {
        "configuration_changes": supervised.changed_since_start(parts.settings),
        "unwatched": supervised.unwatched_processes(parts.settings),
        "missing_folders": supervised.missing_folders(parts.settings),
    }


def unconfigured(parts: Runtime, connection: Connection) -> list[str]:
    """Sources of tenants that `larder up` no longer has, as after a slip in the name of one: nothing reads them."""
    if not supervised.runs_tenant(parts.settings):
        return []
    configured = configured_sources(parts.settings)
    tenants = {one.tenant_id for one in configured.values()} | {parts.settings.tenant_id}
    names = sources.tenant_names(connection)
    return [
        f"{names[row.tenant_id]}/{row.name}"
        for row in sources.listed(connection)
        if row.origin == "file" and row.removed_at is None and row.tenant_id not in tenants
    ]


def disk_free(parts: Runtime) -> int:
    """Bytes where the data lie, or will."""
    for folder in (parts.settings.data, *parts.settings.data.parents):
        with suppress(OSError):  # it is not there yet, or another user's
            return shutil.disk_usage(folder).free
    return 0


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


def broker_facts(parts: Runtime, queues: dict[str, int] | None) -> Json:
    """`broker`: ok, error or refused; `broker_error`: why, as the end of a sentence; `broker_memory`: its share."""
    where = parts.addresses
    if queues is not None:
        told = broker.facts(where.valkey)
        beside = broker.connect_problem(where.valkey) if told is None and where.valkey != where.broker else ""
        if beside:  # that of a RabbitMQ, without which limits and answers to callers stand still
            return {
                "broker": "error",
                "broker_error": f"has a Valkey beside it that {beside}",
                "broker_memory": None,
            }
        share = told.used / told.limit if told and told.limit else None
        return {"broker": "ok", "broker_error": "", "broker_memory": share}
    why = broker.connect_problem(where.broker) or "does not answer"
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
COUNTED_PROBLEMS = (*NAMED_PROBLEMS, "excluded")
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
        counts["excluded"] = sum(reasons.values())
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
