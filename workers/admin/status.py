"""What stands on the operator's screen, and what to do next."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.documents import Json
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import LarderError, StoreRefused
from pipeline.ledger import overview
from pipeline.search.chunk_store import active_index
from workers.admin import embedding_state, reindex_status
from workers.control import steps
from workers.processes.liveness import DEAF_SECONDS
from workers.queue import broker
from workers.queue.celeryconfig import INDEXING, QUEUES
from workers.runtime import Runtime

STORE_DOWN_LEVEL = 4
"""Without the database nothing can be looked up: answers are static."""
SLOW_LEVEL = 2
"""What workers answer at least at while the database is slow."""
LATE_SECONDS = 600.0
"""Due work that waits longer needs a person."""


def status(parts: Runtime, slow: Callable[[float], None] = lambda _seconds: None) -> Json:
    """The document of `larder status --json`, over all tenants.

    `slow` is told at once if each way to the database takes so many seconds that the rest will take long.

    Raises:
        StoreError: the database does not answer; `without_database` then says what is left to say.
    """
    with parts.database.control() as connection:
        seconds = overview.way(connection)
        if seconds > HealthOptions.slow_seconds:
            slow(seconds)
        sources = overview.sources(connection)
        backlog = overview.backlog(connection, resend=steps.limits(parts.rag).resend)
        found: Json = {
            "database_seconds": round(seconds, 3),
            "sources": [source.to_json() for source in sources],
            "backlog": backlog.to_json(),
            "workers": overview.workers(connection),
            "canaries": overview.canaries(connection),
            "index": overview.index(connection),
            "embedding": embedding_state.state(parts, connection),
            "database": "ok",
        }
        active = active_index(connection)
        found["other_indexes"] = reindex_status.beside(connection)
        enrichment = overview.enrichment(connection)
    found["index_mismatch"] = reindex_status.mismatch(parts, active)
    answered = enrichment.pop("degradation_level")
    found["degradation_level"] = max(answered, SLOW_LEVEL) if _is_slow(found) else answered
    found["enrichment"] = enrichment
    queues = broker.lengths(parts.addresses.broker, QUEUES)
    found["backlog"]["queues"] = queues
    found |= _broker_facts(parts, queues)
    found["next"] = advice(found)
    return found


def without_database(parts: Runtime, error: LarderError) -> Json:
    """The same document when the database does not answer: only the broker can be looked at."""
    queues = broker.lengths(parts.addresses.broker, QUEUES)
    return {
        "database_seconds": None,
        "sources": [],
        "backlog": {"queues": queues},
        "workers": [],
        "canaries": {},
        "index": None,
        "embedding": None,
        "other_indexes": [],
        "index_mismatch": "",
        "degradation_level": STORE_DOWN_LEVEL,
        "database": "refused" if isinstance(error, StoreRefused) else "error",
        **_broker_facts(parts, queues),
        "error": {"code": error.code, "name": error.name, "message": error.message, "fix": error.fix},
        "next": f"{error.message}: larder doctor",
    }


def _broker_facts(parts: Runtime, queues: dict[str, int] | None) -> Json:
    """`broker`: ok, error or refused; `broker_error`: why, as the end of a sentence."""
    if queues is not None:
        return {"broker": "ok", "broker_error": ""}
    why = broker.trouble(parts.addresses.broker) or "does not answer"
    return {"broker": "refused" if why in broker.REFUSALS else "error", "broker_error": why}


def _is_slow(status_: Json) -> bool:
    return float(status_.get("database_seconds") or 0) > HealthOptions.slow_seconds


def served(status_: Json) -> set[str]:
    """Queues that a living worker serves."""
    alive = [w for w in status_["workers"] if w["age_seconds"] <= DEAF_SECONDS]
    return {queue for worker in alive for queue in worker["queues"]}


def advice(status_: Json) -> str:
    """What to do next: the most urgent thing, as a sentence with its command; empty if all is well."""
    for rule in _RULES:
        said = rule(status_)
        if said:
            return said
    return ""


def _broker(status_: Json) -> str:
    if status_["broker"] == "ok":
        return ""
    why = status_.get("broker_error") or "does not answer"
    return f"the broker {why}; nothing is lost, work waits in the ledger: larder doctor"


def _slow(status_: Json) -> str:
    if not _is_slow(status_):
        return ""
    return f"the database takes {status_['database_seconds']:.1f} s for each answer: look at its load and its network"


def _workers(status_: Json) -> str:
    waiting = status_["backlog"]["pending"]
    lacking = sorted(set(INDEXING) - served(status_))
    if not waiting or not lacking:
        return ""
    return f"{waiting} documents wait and no worker serves {', '.join(lacking)}: larder up --detach"


def _embedding(status_: Json) -> str:
    embedding = status_.get("embedding") or {}
    return f"nothing is embedded: {embedding['error']}" if embedding.get("state") == "held" else ""


def _dead(status_: Json) -> str:
    counted = [(s["dead"], s["name"]) for s in status_["sources"] if s["dead"]]
    total = sum(n for n, _ in counted)
    return f"{total} dead letter{'' if total == 1 else 's'}: larder dead list" if total else ""


def _held(status_: Json) -> str:
    held = next((s for s in status_["sources"] if s["held"]), None)
    if held is None:
        return ""
    return (
        f"{held['held']} deletions of {held['name']} wait for you; "
        f"if they are meant: larder sources release {held['name']}"
    )


def _failing(status_: Json) -> str:
    bad = next((s for s in status_["sources"] if s["last_error"] and not s["removed"]), None)
    return f"{bad['name']} cannot be read: larder sources check {bad['name']}" if bad else ""


def _late(status_: Json) -> str:
    oldest = status_["backlog"]["oldest_due_seconds"] or 0
    return f"work has been due for {oldest / 60:.0f} minutes: larder doctor" if oldest > LATE_SECONDS else ""


def _other_index(status_: Json) -> str:
    """Another model is configured, or another index is ready to be read."""
    building = [i for i in status_.get("other_indexes") or [] if i["status"] == "building"]
    if any(not i["missing"] for i in building):
        return "the new search index is full: larder reindex switch"
    said: str = status_.get("index_mismatch") or ""
    return f"{said}: run larder reindex" if said and not building else ""


def _empty(status_: Json) -> str:
    if not status_["sources"]:
        return "no source is known yet: larder config init, then larder index"
    never = next((s for s in status_["sources"] if s["freshness_seconds"] is None), None)
    idle = never is not None and not never["paused"] and not never["removed"] and not served(status_)
    return f"{never['name']} was never synced: larder index" if never and idle else ""


_RULES: tuple[Callable[[Json], str], ...] = (
    _broker,
    _slow,
    _workers,
    _embedding,
    _late,
    _failing,
    _held,
    _dead,
    _other_index,
    _empty,
)
"""Most urgent first."""
