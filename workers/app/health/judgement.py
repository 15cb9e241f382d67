"""The judgement of an installation, which status, health page, metrics, alerts, console and doctor all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Literal

from pipeline.documents import Json
from pipeline.documents.plain_text import first_names, plural
from pipeline.enrichment.degradation import HealthOptions
from pipeline.ingest.sync import CONFIGURED_OTHERWISE
from pipeline.ledger.sources import UPLOADED
from workers.app.health.source_words import count_rejected, left_out_in_words, nothing_stored
from workers.app.health.supervised import FIXED
from workers.app.ingestion.sync_now import START
from workers.app.ingestion.temporary_workers import UNSERVED_SECONDS, served_queues
from workers.monitoring.liveness import DEAF_SECONDS
from workers.queue import broker
from workers.queue.celeryconfig import INDEXING, MIRROR, QUEUES

LEAST_DISK_BYTES = 1_000_000_000
"""Free bytes below which PostgreSQL may stop at any moment."""
LATE_SECONDS = 600.0
"""Seconds after which waiting due work needs a person."""
MOST_CHANGES = 3
"""Most changes of the configuration that a finding names."""
CANARY_SECONDS = 300.0
"""Age in seconds of a canary that shows a stuck queue: every queue does one a minute."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A finding; its fields are those of the document of `larder doctor --json`."""

    check: str = ""
    status: Literal["ok", "warning", "error"]
    """Only an error makes the doctor fail."""
    detail: str
    fix: str = ""
    """Advice; empty if nothing is wrong."""
    repaired: bool = False


def fine(detail: str) -> Diagnosis:
    """Finding that all is well."""
    return Diagnosis(status="ok", detail=detail)


def warning(detail: str, fix: str, check: str = "") -> Diagnosis:
    """Finding of something that works but needs attention."""
    return Diagnosis(status="warning", detail=detail, fix=fix, check=check)


def error(detail: str, fix: str, check: str = "") -> Diagnosis:
    """Finding of something that does not work, or of wrong data."""
    return Diagnosis(status="error", detail=detail, fix=fix, check=check)


def judge(status: Json) -> list[Diagnosis]:
    """Findings by the document of `larder status --json`: errors first, the most urgent of each first."""
    looks = (
        (_servers, _supervised)
        if status["database"] != "ok"
        else (_workers, _servers, _supervised, _work, _content, _attention, _indexes, _stores)
    )
    return sorted(chain(*(look(status) for look in looks)), key=lambda one: one.status != "error")


def next_steps(status: Json) -> list[Json]:
    """The entry `next` of that document: check, status, detail and fix of each thing to do, as `judge` orders them."""
    keys = ("check", "status", "detail", "fix")
    return [{key: getattr(one, key) for key in keys} for one in judge(status)]


INSTALLATION = frozenset({"workers", "disk", "database", "broker", "embedding"})
"""Checks whose findings name no source: whoever operates a tenant may read them."""


def _workers(status: Json) -> Iterator[Diagnosis]:
    """Findings about workers; if none runs and nothing waits, there may be none on purpose."""
    served, sources = served_queues(status["workers"]), status["sources"]
    lacking = [queue for queue in QUEUES if queue not in served]
    pending, waits = status["backlog"]["pending"], []
    if status["enrichment"]["waiting"] and "enrich" in lacking:
        waits.append(("Step 4 waits", ["enrich"]))
    being_synced = [s["name"] for s in sources if s.get("running")]
    if (pending or being_synced) and (indexing := sorted(set(INDEXING) & set(lacking))):
        documents = plural(pending, "document waits", "documents wait")
        waits.append((documents if pending else f"syncs of {', '.join(being_synced)} wait", indexing))
    for waiting, queues in waits:
        yield error(f"{waiting} and no worker serves {', '.join(queues)}", START, "workers")
    named = set(chain(*(queues for _, queues in waits)))
    unserved = {q: s for q in lacking if (s := status["unserved"].get(q) or 0.0) > UNSERVED_SECONDS}
    if unserved.keys() - named:
        finding = error if served or waits else warning
        since = plural(round(min(unserved.values()) / 60), "minute")
        yield finding(f"no worker has served {', '.join(unserved)} for {since}", START, "workers")
    elif not (served or waits) and any(s["next_sync"] for s in _scheduled(status)):
        yield warning("no worker is running, so no schedule is kept", START, "workers")
    for w in status["workers"]:
        if w["age_seconds"] > DEAF_SECONDS and not lacking:
            detail = f"{w['name']} gave no sign of life for {w['age_seconds']:.0f} s"
            yield warning(detail, "it is started again; if not, restart it", "workers")
    at_work = {q for w in status["workers"] if w.get("up_seconds", 0.0) > CANARY_SECONDS for q in w["queues"]}
    if stuck := [
        q for q, age in status["canaries"].items() if age > CANARY_SECONDS and q in at_work & served
    ]:
        fix = "see that beat runs, and that queue's log"
        yield warning(f"{', '.join(stuck)} did no task for minutes", fix, "workers")


def _servers(status: Json) -> Iterator[Diagnosis]:
    if (free := status["disk_free"]) < LEAST_DISK_BYTES:
        detail = (
            f"{free / 1e6:,.0f} MB are free on the disk of the data, and PostgreSQL stops when it is full"
        )
        yield error(detail, "make room", "disk")
    if status["database"] != "ok":
        failure = status["error"]
        yield error(
            failure["message"],
            failure["fix"] if status["database"] == "refused" else "larder doctor",
            "database",
        )
    elif (seconds := status["database_seconds"]) > HealthOptions.slow_seconds:
        fix = "look at its load and its network"
        yield warning(f"the database takes {seconds:.1f} s for each answer", fix, "database")
    if status["broker"] != "ok":
        detail = f"the broker {status['broker_error']}; nothing is lost, work waits in the ledger"
        yield error(detail, "larder doctor", "broker")
    if other := status["broker_shared_with"]:
        yield error(*broker.shared_with(other), "broker")


def _supervised(status: Json) -> Iterator[Diagnosis]:
    if alone := status["unwatched"]:
        detail = f"`larder up` was killed, and nobody looks after {', '.join(alone)}"
        yield error(detail, "larder up --detach, which starts them anew", "workers")
    for name, folder in status["missing_folders"].items():
        detail = f"a folder of {name} is not there: {folder}"
        yield warning(detail, "mount it, or take it out of the source's paths", "sources")
    if changes := status["configuration_changes"]:
        fixed = any(line.startswith(FIXED) for line in changes)
        fix = "larder down, then larder up --detach" if fixed else "larder reload"
        named = first_names([line.partition(" (running with")[0] for line in changes], MOST_CHANGES)
        yield warning(
            f"the running processes do not use the configuration file as it is now: {named}",
            fix,
            "configuration",
        )


def _work(status: Json) -> Iterator[Diagnosis]:
    embedding, late = status["embedding"], status["backlog"]["oldest_due_seconds"] or 0
    if embedding["state"] == "held":
        fix = "correct it and restart the workers; it is tried again by itself, too"
        yield error(f"nothing is embedded: {embedding['error']}", fix, "embedding")
    elif embedding["state"] == "waiting":
        waits = plural(embedding["documents"], "document waits", "documents wait")
        detail = f"{waits} until {embedding['until']}: {embedding['error']}"
        yield warning(detail, "nothing to do: they go on by themselves", "embedding")
    # A large load is late as a whole, and well as long as each queue is heard of.
    unheard = [q for q in INDEXING if status["canaries"].get(q, late) > LATE_SECONDS]
    if late > LATE_SECONDS and unheard:
        yield error(f"work has been due for {late / 60:.0f} minutes", "larder doctor", "waiting documents")


def _content(status: Json) -> Iterator[Diagnosis]:
    counts = Counter(map(itemgetter("name"), status["sources"]))
    sources = [  # by names that commands take
        s if counts[s["name"]] == 1 else {**s, "name": f"{s['tenant']}/{s['name']}"}
        for s in status["sources"]
    ]
    present = [s for s in sources if not s["removed"]]
    for s in filter(itemgetter("last_error"), present):
        if s["last_error"].startswith(CONFIGURED_OTHERWISE):
            message, _, fix = s["last_error"].rstrip(")").partition(" (")
            yield error(f"{s['name']} waits: {message}", fix, "sources")
            continue
        yield warning(f"{s['name']} cannot be read", f"larder sources check {s['name']}", "sources")
    if with_pending := [s for s in sources if s["held"]]:
        waits = ", ".join(f"{s['held']} of {s['name']}" for s in with_pending)
        fix = f"if they are meant: larder sources release {with_pending[0]['name']}"
        yield warning(f"deletions wait for approval: {waits}", fix, "deletions to approve")
    # The sender of an upload was told what could not be taken.
    for s in (s for s in sources if s["type"] != UPLOADED and nothing_stored(s)):
        detail = f"{s['name']} has no documents though it shows items, {left_out_in_words(s['left_out'])}"
        yield warning(detail, f"larder sources check {s['name']}", "sources")
    for s in (s for s in present if s["type"] != UPLOADED and count_rejected(s)):
        detail = f"{count_rejected(s)} of {s['name']} could not be taken in"
        yield warning(detail, f"correct what `larder runs {s['name']}` names", "sources")
    if alone := status["unconfigured"]:
        detail = f"{first_names(alone, MOST_CHANGES)} belong to a tenant that the configuration does not have"
        yield warning(detail, f"larder sources forget {alone[0]}, or name the tenant", "sources")
    for s in (s for s in sources if s.get("renamed_to")):
        name, twin, count = s["name"], s["renamed_to"], plural(s["documents"], "document")
        detail = f"{name} is no longer configured, and its {count} are indexed twice, as those of {twin}"
        yield warning(detail, f"larder sources rename {name} {twin}", "sources")


def _attention(status: Json) -> Iterator[Diagnosis]:
    sources = status["sources"]
    letters, failed = sum(s["dead"] for s in sources), status["enrichment"]["failed"]
    problems = [plural(letters, "dead letter")] * bool(letters)
    problems += [f"{plural(failed, 'job')} of user stories failed"] * bool(failed)
    if problems:
        yield warning(" and ".join(problems), "larder dead list", "dead letters")
    if not sources:
        yield warning(
            "no source has been synced yet",
            "larder index, or first larder config init",
            "sources",
        )
    for s in _scheduled(status):
        if s["freshness_seconds"] is None and not served_queues(status["workers"]):
            yield warning(f"{s['name']} was never synced", "larder index", "sources")


def _scheduled(status: Json) -> list[Json]:
    """Sources that have a schedule, or may have one."""
    return [s for s in status["sources"] if not (s["paused"] or s["removed"] or s["type"] == UPLOADED)]


def _indexes(status: Json) -> Iterator[Diagnosis]:
    building = [i for i in status["other_indexes"] if i["status"] == "building"]
    if any(not i["missing"] for i in building):
        yield warning("the new search index is full", "larder reindex switch", "search index")
    elif status["index_mismatch"] and not building:
        yield warning(status["index_mismatch"], "run larder reindex", "search index")


def _stores(status: Json) -> Iterator[Diagnosis]:
    """Findings about vector stores beside PostgreSQL; searches go on without them."""
    document = status["vector_stores"]
    is_served = MIRROR in served_queues(status["workers"])
    for store in document["stores"]:
        if finding := _store_finding(store, is_served=is_served):
            yield warning(*finding, "vector stores")
    active = next((s["name"] for s in document["stores"] if s["active"]), "pgvector")
    provider = next((s for s in document["stores"] if s["name"] == document["provider"]), None)
    has_added = any(s["status"] != "not added" for s in document["stores"])
    steps = {"ready": "switch", "not added": "add"}
    if provider and provider["name"] != active and has_added and provider["status"] in steps:
        detail = f"searches ask {active}, and the configuration names {provider['name']}"
        yield warning(
            detail, f"larder stores {steps[provider['status']]} {provider['name']}", "vector stores"
        )


def _store_finding(store: Json, *, is_served: bool) -> tuple[str, str] | None:
    """What is wrong with a store, and what to do; None if it is well."""
    name = store["name"]
    if not store["configured"]:
        fix = f"larder stores drop {name}"
        detail = f"the vector store {name} is configured no more, and its changes are still noted"
        return detail, f"larder stores switch pgvector, {fix}" if store["active"] else fix
    if store["outbox"] and not is_served:
        waits = plural(store["outbox"], "change waits", "changes wait")
        return f"{waits} for {name} and no worker serves {MIRROR}", START
    if store["failures"]:
        return f"the vector store {name} fails: {store['last_error']}", f"larder stores check {name}"
    if store["refused"]:
        detail = f"the vector store {name} refused {plural(store['refused'], 'chunk')}: {store['last_error']}"
        return detail, f"larder stores rebuild {name}"
    return None
