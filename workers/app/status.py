"""Status of the installation for the operator's screens, and what to do next."""

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
from pipeline.errors import LarderError, NotFound, StoreError, StoreHindered, StoreRefused, StoreUnavailable
from pipeline.ledger import dead, embedding_use, overview, runs, sources, upkeep
from pipeline.search.cache import partial_of_all
from pipeline.search.chunk_store import active_index
from pipeline.search.retriever import indexed_since
from workers.app import reindex, stores
from workers.app.health import supervised
from workers.app.health.judgement import next_steps
from workers.app.ingestion import steps, sync
from workers.app.ingestion.sync import configured_sources
from workers.limits.limiters import ProviderState
from workers.monitoring.liveness import DEAF_SECONDS
from workers.queue import broker
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime, acting_as

STORE_DOWN_LEVEL = 4
"""Degradation level without the database: nothing can be looked up, and answers are static."""
SLOW_LEVEL = 2
"""Lowest degradation level of answers while the database is slow."""
FOREIGN = (
    "workers that were started with another configuration meet this; restart them with the corrected one"
)


def status(runtime: Runtime, slow: Callable[[float], None] = lambda _seconds: None) -> Json:
    """The document of `larder status --json`, over all tenants.

    `slow` is told at once if each way to the database takes so many seconds that the rest will take long.

    Raises:
        StoreError: the database does not answer, or refuses a login; `without_database` then says what is left to say.
    """
    with runtime.database.control() as connection:
        seconds = overview.round_trip(connection)
    is_slow = seconds > HealthOptions.slow_seconds
    if is_slow:
        slow(seconds)
    runtime.database.close()  # a login that is refused from now on goes on with the connections that it has
    with runtime.database.control() as connection:
        with runtime.database.tenant(runtime.settings.tenant_id) as tenant_connection:
            overview.server_version(tenant_connection)
        enrichment = overview.enrichment(connection)
        document: Json = {
            "database_seconds": round(seconds, 3),
            "sources": [_with_lateness(source) for source in overview.sources(connection)],
            "backlog": overview.backlog(connection, resend=steps.limits(runtime.rag).resend),
            "workers": overview.workers(connection),
            "unserved": overview.unserved(connection, QUEUES, silent=DEAF_SECONDS),
            "canaries": overview.canaries(connection),
            "index": overview.index(connection),
            "partial": vars(partial) if (partial := partial_of_all(connection)) else None,
            "embedding": embedding_state(runtime, connection),
            "other_indexes": reindex.inactive_indexes(connection),
            "index_mismatch": reindex.mismatch(runtime, active_index(connection)),
            "vector_stores": stores.status(runtime, connection),
            "degradation_level": max(enrichment.pop("degradation_level"), SLOW_LEVEL if is_slow else 0),
            "enrichment": enrichment,
            "database": "ok",
            "alerts": upkeep.alerts(connection),
            "disk_free": disk_free(runtime),
        }
        database = database_id(connection)
        document["unconfigured"] = unconfigured(runtime, connection)
    document["backlog"]["queues"] = queues = broker.lengths(runtime.addresses.broker, QUEUES)
    # A silent broker takes its time for each question.
    document["backlog"]["set_aside"] = (
        None if queues is None else broker.quarantined_total(runtime.addresses.broker)
    )
    owner = broker.owner(runtime.addresses.broker) if queues is not None else ""
    document |= {"broker_shared_with": owner if owner != database else ""}
    document |= local_facts(runtime)
    document |= broker_facts(runtime, queues)
    return document | {"next": next_steps(document)}


def without_database(runtime: Runtime, error: LarderError) -> Json:
    """The status document when the database does not answer: only the broker can be looked at."""
    queues = broker.lengths(runtime.addresses.broker, QUEUES)
    document: Json = {
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
        "vector_stores": {"provider": runtime.rag.provider, "answers": None, "stores": []},
        "alerts": [],
        "degradation_level": STORE_DOWN_LEVEL,
        "broker_shared_with": "",
        **local_facts(runtime),
        "unconfigured": [],
        "database": "refused" if isinstance(error, StoreRefused | StoreHindered) else "error",
        **broker_facts(runtime, queues),
        "disk_free": disk_free(runtime),
        "error": error.to_json(),
    }
    return document | {"next": next_steps(document)}


def local_facts(runtime: Runtime) -> Json:
    """Facts about the `larder up` of this machine."""
    return {
        "configuration_changes": supervised.changed_since_start(runtime.settings),
        "unwatched": supervised.unwatched_processes(runtime.settings),
        "missing_folders": supervised.missing_folders(runtime.settings),
    }


def unconfigured(runtime: Runtime, connection: Connection) -> list[str]:
    """Sources of tenants that `larder up` no longer has, as after a slip in the name of one: nothing reads them."""
    if not supervised.runs_tenant(runtime.settings):
        return []
    configured = configured_sources(runtime.settings)
    tenants = {one.tenant_id for one in configured.values()} | {runtime.settings.tenant_id}
    names = sources.tenant_names(connection)
    return [
        f"{names[row.tenant_id]}/{row.name}"
        for row in sources.listed(connection)
        if row.origin == "file" and row.removed_at is None and row.tenant_id not in tenants
    ]


def disk_free(runtime: Runtime) -> int:
    """Bytes free where the data lie, or will."""
    for folder in (runtime.settings.data, *runtime.settings.data.parents):
        with suppress(OSError):  # it is not there yet, or another user's
            return shutil.disk_usage(folder).free
    return 0


WATCH_SECONDS = 5.0
"""Seconds in which the database must give each answer to a watching process."""


def watcher(runtime: Runtime) -> Runtime:
    """A runtime with connections of its own, on which a silent database is soon given up."""
    watching_runtime = Runtime(runtime.settings, runtime.addresses)
    watching_runtime.answer_timeout = WATCH_SECONDS
    return watching_runtime


RECENT_SECONDS = 5.0
"""Age in seconds up to which programs that ask repeatedly get an earlier status."""
SILENT_SECONDS = 2.0
"""Seconds without an answer of the database after which all who ask meanwhile are told that it is silent."""
_recent: WeakKeyDictionary[Runtime, tuple[float, Json]] = WeakKeyDictionary()
_look_began: WeakKeyDictionary[Runtime, float] = WeakKeyDictionary()
"""Start of the look under way; never, once a slow database has answered."""
_look_lock = threading.Lock()


def recent(runtime: Runtime) -> Json:
    """The status for programs: at most a few seconds old, made by one at a time, also while the database is away."""
    at, document = _recent.get(runtime, (float("-inf"), {}))
    if time.monotonic() - at <= RECENT_SECONDS:
        return document
    if not _look_lock.acquire(blocking=not document):
        if time.monotonic() - _look_began.get(runtime, float("inf")) < SILENT_SECONDS:
            return document
        return without_database(runtime, StoreUnavailable("the database says nothing"))
    try:
        _look_began[runtime] = time.monotonic()
        try:
            document = status(runtime, slow=lambda _seconds: _look_began.update({runtime: float("inf")}))
        except StoreError as error:
            document = without_database(runtime, error)
        _recent[runtime] = time.monotonic(), document
    finally:
        _look_began.pop(runtime, None)
        _look_lock.release()
    return document


def _with_lateness(source: Json) -> Json:
    """Add `late_seconds`: the time since a sync was due by the schedule and none was completed."""
    schedule, zone, last = source.pop("schedule"), source.pop("timezone"), source.pop("last_sync_at")
    planned, now = source["next_sync"], datetime.now(UTC)
    due = sync.next_time(schedule, zone, last) if last else planned and datetime.fromisoformat(planned)
    if due is None or source["paused"] or source["removed"]:
        due = now
    return source | {"late_seconds": max(0.0, (now - due).total_seconds())}


def broker_facts(runtime: Runtime, queues: dict[str, int] | None) -> Json:
    """`broker`: ok, error or refused; `broker_error`: why, as the end of a sentence; `broker_memory`: its share."""
    addresses = runtime.addresses
    if queues is not None:
        facts = broker.facts(addresses.valkey)
        no_facts = facts is None and addresses.valkey != addresses.broker
        problem = broker.connect_problem(addresses.valkey) if no_facts else ""
        if (
            problem
        ):  # that of the Valkey beside a RabbitMQ, without which limits and answers to callers stand still
            return {
                "broker": "error",
                "broker_error": f"has a Valkey beside it that {problem}",
                "broker_memory": None,
            }
        share = facts.used / facts.limit if facts and facts.limit else None
        return {"broker": "ok", "broker_error": "", "broker_memory": share}
    why = broker.connect_problem(addresses.broker) or "does not answer"
    state = "refused" if why in broker.REFUSALS else "error"
    return {"broker": state, "broker_error": why, "broker_memory": None}


def embedding_state(runtime: Runtime, connection: Connection) -> Json:
    """The entry `embedding` of `larder status --json`; `state` is ok, waiting or held."""
    allowance, terms = runtime.allowance, runtime.allowance.terms
    outlook = allowance.rate.state() if allowance.rate else ProviderState()
    today = embedding_use.usage_today(connection)
    state: Json = {
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
        return state | {
            "state": "held",
            "until": hold.probe_at.isoformat(),
            "error": f"{hold.error}; {FOREIGN}" if foreign else hold.error,
            "since": hold.since.isoformat(),
            "fingerprint": hold.fingerprint,
        }
    waiting = overview.waiting(connection)
    if waiting is not None:
        details = {
            "until": waiting.until.isoformat(),
            "error": waiting.reason,
            "documents": waiting.documents,
        }
        return state | {"state": "waiting", **details}
    if outlook.closed_seconds > 0:
        until = datetime.now(UTC) + timedelta(seconds=outlook.closed_seconds)
        error = "the embedding provider is left alone until then"
        return state | {"state": "waiting", "until": until.isoformat(), "error": error}
    return state


# Views of a caller ----------------------------------------------------------------------------------


def projects_of(runtime: Runtime, caller: Caller) -> dict[UUID, str]:
    """The projects that the caller may look into, with their names."""
    with runtime.database.tenant(caller.tenant) as connection:
        return {key: name for key, name in sources.every_project(connection).items() if caller.may_see(key)}


def sources_of(runtime: Runtime, caller: Caller) -> list[Json]:
    """The sources of those projects; how many documents they hold is told to those who operate them."""
    with runtime.database.tenant(caller.tenant) as connection:
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


def problems_of(runtime: Runtime, caller: Caller) -> dict[UUID, Json]:
    """Source -> `{"counts", "problems", "left_out"}` of items that were not taken in; of sources they operate."""
    if not caller.may(OPERATE):
        return {}
    with runtime.database.tenant(caller.tenant) as connection:
        rows = [row for row in sources.listed(connection) if caller.may_change(row.project_id)]
        problems = overview.newest_problems(connection)
        left_out = {row.id: run.left_out for row in rows for run in runs.of_source(connection, row.id, 1)}
    by_source: dict[UUID, Json] = {}
    for row in rows:
        named, reasons = problems.get(row.id, []), left_out.get(row.id, {})
        counts = {word: sum(one["outcome"] == word for one in named) for word in NAMED_PROBLEMS}
        counts["excluded"] = sum(reasons.values())
        by_source[row.id] = {"counts": counts, "problems": named, "left_out": reasons}
    return by_source


def _state_of(row: sources.SourceRow) -> str:
    return "removed" if row.removed_at else "paused" if row.paused_at else "active"


def letters_of(runtime: Runtime, caller: Caller) -> tuple[list[dead.DeadLetter], list[Json]]:
    """Dead letters of the caller's projects, and what their tenant embedded today."""
    with runtime.database.tenant(caller.tenant) as connection:
        source_ids = [row.id for row in sources.listed(connection) if caller.may_change(row.project_id)]
        return dead.listed(connection, source_ids=source_ids), embedding_use.usage_today(connection)


def operate_source(runtime: Runtime, caller: Caller, name: str, act: Callable[[str], object]) -> None:
    """Have `act` do something to the caller's source of this name, as the caller.

    Raises:
        NotFound: none of theirs is called so.
    """
    with runtime.database.tenant(caller.tenant) as connection:
        names = {row.name for row in sources.listed(connection) if caller.may_change(row.project_id)}
        tenant = sources.tenant_names(connection).get(caller.tenant, caller.tenant_name)
    if name not in names:
        raise NotFound("there is no such source")
    with acting_as(caller.subject):
        act(f"{tenant}/{name}")


MOST_CHANGES = 100


def changes_of(runtime: Runtime, caller: Caller) -> list[Json]:
    """Documents that were indexed today and the caller may see, newest first."""
    search_filter = replace(caller.search_filter, projects=caller.own_projects)
    since = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return indexed_since(runtime.database, caller.tenant, search_filter, since, MOST_CHANGES)


def runs_of(runtime: Runtime, caller: Caller, name: str, most: int) -> list[runs.RunRow]:
    """The newest runs of a source; open ones have the counts of this moment.

    Raises:
        NotFound: none of the caller's is called so.
    """
    with runtime.database.tenant(caller.tenant) as connection:
        for row in sources.listed(connection):
            if row.name == name and caller.may_see(row.project_id):
                return runs.with_live_counts(connection, runs.of_source(connection, row.id, most))
    raise NotFound("there is no such source")


def _may_see_runs(caller: Caller, source: sources.SourceRow) -> bool:
    # Problems of a run name items that few may see.
    return caller.may(OPERATE) or source.origin == "upload"


def run_of(runtime: Runtime, caller: Caller, run_id: int) -> runs.RunRow:
    """A run of a source of the caller's, of an upload if they do not operate it; an open one has counts of this moment.

    Raises:
        NotFound: there is none of this number.
    """
    with runtime.database.tenant(caller.tenant) as connection:
        run = runs.get(connection, run_id)
        row = sources.get(connection, run.source_id) if run else None
        if run is None or row is None or not caller.may_see(row.project_id) or not _may_see_runs(caller, row):
            raise NotFound("there is no such run")
        return runs.with_live_counts(connection, [run])[0]
