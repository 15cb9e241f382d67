"""The doctor's look at servers and at this machine.

Database, indexes, broker, processes, models, sources, disk.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit
from urllib.request import getproxies

from pipeline.database import migrations
from pipeline.database.engine import APP_ROLE, CONTROL_ROLE, translated
from pipeline.documents.plain_text import plural
from pipeline.embedding.calls import open_embedder
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import LarderError, StoreHindered, StoreRefused, StoreSilent, StoreUnavailable
from pipeline.ledger import overview, upkeep
from pipeline.reranking import open_reranker
from pipeline.search.chunk_store import indexes
from workers.app import operations
from workers.app.health.judgement import LEAST_DISK_BYTES, Diagnosis, error, fine, warning
from workers.app.reindex import mismatch
from workers.app.status import disk_free
from workers.local.embedded.locating import ping
from workers.monitoring import liveness
from workers.queue import broker, rabbit
from workers.runtime import Runtime

LEAST_PGVECTOR = (0, 8)
GIGABYTE = 1_000_000_000
LITTLE_BYTES = 5 * GIGABYTE
QUESTION, TEXT = "What warns of shallow water at the bar?", "The bar is shallow at low water. " * 30
"""A text as long as a usual chunk."""
CLOCK_SECONDS = 5.0
SLOW_SECONDS = HealthOptions.slow_seconds
FULL_SHARE = 0.7
FLOWER_SECONDS = 3.0


def database(runtime: Runtime) -> Diagnosis:
    """Both roles can connect, and are answered in time."""
    addresses, variable = runtime.addresses, ""
    logins = {addresses.database: "LARDER_DATABASE_URL: "}
    try:
        for url in dict.fromkeys((addresses.database, addresses.control)):
            variable = logins.get(url, "LARDER_CONTROL_DATABASE_URL: ")
            ping(url)
        variable = ""
        with runtime.database.tenant(runtime.settings.tenant_id) as connection:
            overview.server_version(connection)
        with runtime.database.control() as connection:
            seconds = overview.round_trip(connection)
            version = overview.server_version(connection)
    except StoreUnavailable as failed:
        server = urlsplit(runtime.addresses.database)
        address = f"{server.hostname}:{server.port or 5432}"
        fix = f"look whether PostgreSQL runs and listens at {address}, or correct LARDER_DATABASE_URL"
        if isinstance(failed, StoreRefused):
            fix = failed.fix
        elif isinstance(failed, StoreSilent):
            fix = (
                f"is PostgreSQL at {address} stopped (T in `ps`: kill -CONT PID), out of memory, or cut off?"
            )
        return error(variable + failed.message, fix)
    if seconds > SLOW_SECONDS:
        return warning(
            f"PostgreSQL {version} takes {seconds:.1f} s for each answer, so other checks are left out;"
            " Step 4 gets prepared answers meanwhile",
            "look at its load, its disk and the network in between; then larder doctor again",
        )
    return fine(f"PostgreSQL {version} answers both roles")


def schema(runtime: Runtime) -> Diagnosis:
    """The tables are those of this version."""
    engine = migrations.owner_engine(runtime.addresses.admin)
    try:
        with translated():
            revision = migrations.current(engine)
    except StoreHindered as refused:
        return warning(
            f"the revision of the schema cannot be read: {refused.message}",
            "give the owner's address in LARDER_ADMIN_DATABASE_URL",
        )
    finally:
        engine.dispose()
    if revision == migrations.NEWEST:
        return fine(f"revision {revision}")
    return error(f"revision {revision or 'none'}, this version needs {migrations.NEWEST}", "larder migrate")


def pgvector(runtime: Runtime) -> Diagnosis:
    """The extension can do filtered searches over its index."""
    with runtime.database.control() as connection:
        return judge_pgvector(overview.vector_version(connection))


def judge_pgvector(version: str | None) -> Diagnosis:
    """Diagnosis of a version of pgvector; None is none."""
    if version is None:
        return error("the extension vector is not in this database", "larder migrate")
    if tuple(int(part) for part in version.split(".")[:2]) >= LEAST_PGVECTOR:
        return fine(f"pgvector {version}")
    least = ".".join(map(str, LEAST_PGVECTOR))
    fix = "install a newer package, then run `alter extension vector update` as the owner"
    return error(f"pgvector {version}; {least} or newer is needed", fix)


def roles(runtime: Runtime) -> Diagnosis:
    """The roles of workers are bound by row-level security, so that no tenant sees another's rows."""
    with runtime.database.tenant(runtime.settings.tenant_id) as app, runtime.database.control() as control:
        role_rows = {APP_ROLE: overview.role(app), CONTROL_ROLE: overview.role(control)}
    for role_name, row in role_rows.items():
        if row.acts != role_name:
            return error(
                f"{row.login} acts as {row.acts}", f"connect with a login that may act as {role_name}"
            )
        if row.super or row.bypass:
            fix = f"as a superuser: alter role {role_name} nosuperuser nobypassrls"
            return error(f"{role_name} is not bound by row-level security", fix)
    for row in role_rows.values():
        if row.strong_login:
            fix = f"let processes log in as {APP_ROLE} and {CONTROL_ROLE}"
            return warning(f"the login {row.login} could put row-level security aside", fix)
    return fine(f"{APP_ROLE} and {CONTROL_ROLE} are bound by row-level security")


def row_security(runtime: Runtime) -> Diagnosis:
    """Every table of a tenant's rows shows them to that tenant only."""
    with runtime.database.control() as connection:
        tables = overview.tables_of_tenants(connection)
    unforced = [name for name, forced in tables.items() if not forced]
    if unforced:
        fix = "as the owner: " + "; ".join(
            f"alter table {t} enable row level security, force row level security" for t in unforced
        )
        return error(f"row-level security is not forced on {', '.join(unforced)}", fix)
    return fine(f"forced on {len(tables)} tables")


def search_index(runtime: Runtime) -> Diagnosis:
    """Searches have one index to read."""
    with runtime.database.control() as connection:
        all_indexes, indexed = indexes(connection), upkeep.holds_chunks(connection)
    active = next((index for index in all_indexes if index.status == "active"), None)
    if active is not None:
        if other := mismatch(runtime, active):
            return warning(other, "larder reindex, or change the configuration back")
        return fine(f"{active.model}, {active.dimensions} dimensions")
    if all_indexes:
        fix = f"as the owner: update search_index set status = 'active' where id = {all_indexes[-1].id}"
        return error(f"none of {len(all_indexes)} search indexes is active", fix)
    if indexed:
        return error("there are documents and no search index", "larder index --force")
    return fine("none yet, it is made with the first document")


def message_broker(runtime: Runtime) -> Diagnosis:
    """The broker answers and drops nothing; the Valkey beside a RabbitMQ, too."""
    addresses = runtime.addresses
    diagnoses = [_broker("the broker", addresses.broker)]
    if rabbit.is_rabbit(addresses.broker):
        diagnoses.append(_broker("the Valkey beside the broker", addresses.valkey))
    problems = (one for one in diagnoses if one.status != "ok")
    return next(problems, fine("; ".join(one.detail for one in diagnoses)))


def _broker(name: str, url: str) -> Diagnosis:
    facts, is_rabbit = broker.facts(url), rabbit.is_rabbit(url)
    why = broker.connect_problem(url) if facts is None or is_rabbit else ""
    if facts is None or why:
        advice = broker.advice_on(why)
        if name != "the broker":
            advice = advice.replace("LARDER_BROKER_URL", "LARDER_VALKEY_URL")
        return error(
            f"{name} {why or 'does not report its settings'}",
            f"{advice}; work waits in the database meanwhile",
        )
    if is_rabbit:
        return fine(f"{facts.server}; its memory and disk are not checked")
    if facts.policy != "noeviction":
        fix = "set maxmemory-policy noeviction on it"
        return error(f"{facts.server} drops entries when it is full ({facts.policy})", fix)
    if facts.limit and facts.used > FULL_SHARE * facts.limit:
        fix = "raise maxmemory, or add workers so that queues get shorter"
        return warning(f"{facts.server} uses {facts.used / facts.limit:.0%} of its memory", fix)
    return fine(f"{facts.server}, {facts.used / 1e6:.0f} MB used, noeviction")


def clock(runtime: Runtime, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Diagnosis:
    """This machine and the database agree on the time: leases and schedules are the database's."""
    with runtime.database.control() as connection:
        before = now()
        server_time = overview.server_time(connection)
        after = now()
    apart = abs((server_time - (before + (after - before) / 2)).total_seconds())
    if apart > CLOCK_SECONDS:
        return warning(f"this machine and the database are {apart:.0f} s apart", "synchronise both with NTP")
    return fine(f"{apart:.1f} s apart")


# This machine -------------------------------------------------------------------------------------


def heartbeats(runtime: Runtime) -> Diagnosis:
    """Processes on this machine that live also listen."""
    from workers.local import supervisor

    try:
        ages = liveness.ages(runtime.heartbeat_folder)
    except OSError as failed:
        detail = f"the signs of life in {runtime.heartbeat_folder} cannot be read: {failed.strerror}"
        return warning(detail, f"run it as the user of the workers, or {liveness.FIX}")
    alive = set(supervisor.running(runtime.settings.data))
    deaf = {name: age for name, age in ages.items() if name in alive and age > liveness.DEAF_SECONDS}
    if deaf:
        silences = ", ".join(f"{name} for {age:.0f} s" for name, age in deaf.items())
        return error(
            f"alive and silent: {silences}", "the supervisor restarts it; else larder down, larder up"
        )
    return fine(f"{plural(len(alive & set(ages)), 'process beats', 'processes beat')} on this machine")


def flower(runtime: Runtime) -> Diagnosis:
    """The Flower of this machine, if one runs, shows nothing without a login."""
    import httpx2

    from workers.local import supervisor

    options = runtime.rag.flower
    running = supervisor.read_state(runtime.settings.data) or {}
    address = str(running.get("flower_url") or f"http://127.0.0.1:{options.port}{options.url_prefix}")
    if not urlsplit(address).port:
        return fine("none runs on this machine")
    try:
        response = httpx2.get(f"{address}/api/workers", timeout=FLOWER_SECONDS)
    except httpx2.HTTPError:
        return fine("none answers on this machine")
    if response.is_success:
        return error(
            f"Flower at {address} shows everything without a login",
            "start it as `larder flower`, which asks for the password of LARDER_FLOWER_AUTH or a provider's login",
        )
    return fine(f"Flower at {address} requires a login")


def model(runtime: Runtime) -> Diagnosis:
    """The model's files are there and have the expected content, or its service has an address."""
    options = runtime.embedding_options
    embedder = open_embedder(options)
    provider = PROVIDER_FACTS.get(options.provider)
    host = urlsplit(options.base_url or (provider.base_url if provider else "")).hostname
    try:
        # A proxy knows hosts that this machine need not know.
        if host and not getproxies():
            socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return warning(
            f"the host {host} of {embedder.model} is not known here: nothing new is embedded, and searches find by"
            " words alone (level 3)",
            "look at the network and its name servers, or correct embedding.baseUrl",
        )
    return fine(f"{embedder.model}, {embedder.dimensions} dimensions")


def reranker(runtime: Runtime) -> Diagnosis:
    """The reranker, if one is switched on, answers within its time."""
    options = runtime.rerank_options
    if not options.enabled:
        return fine("none is switched on")
    try:
        scorer = open_reranker(options)
        begun = time.monotonic()
        if scorer is not None:
            scorer.scores(QUESTION, [TEXT] * options.candidates)
        took = time.monotonic() - begun
    except LarderError as failed:
        # Searches answer without it, at level 1.
        fix = failed.fix or "correct retrieval.rerank, or switch it off"
        return warning(f"searches go without it: {failed.message}", fix)
    return fine(f"{options.model} reads {options.candidates} texts in {took:.2f} of {options.seconds:g} s")


def sources(runtime: Runtime) -> Diagnosis:
    """Every configured source can be read."""
    checked = operations.check(runtime, [])
    bad = [one["source"] for one in checked if not one["ok"]]
    if bad:
        return warning(f"something is wrong with {', '.join(bad)}", f"larder sources check {bad[0]}")
    return fine(f"{plural(len(checked), 'configured source')} can be read")


def disk(runtime: Runtime) -> Diagnosis:
    """There is room where the data lie."""
    return judge_disk(disk_free(runtime), str(runtime.settings.data))


def judge_disk(free: int, folder: str) -> Diagnosis:
    """Diagnosis of the free bytes at a folder."""
    detail = f"{free / GIGABYTE:.1f} GB free at {folder}"
    if free < LEAST_DISK_BYTES:
        return error(detail, "make room: PostgreSQL stops when its disk is full")
    if free < LITTLE_BYTES:
        return warning(detail, "make room soon; `larder clear` and the logs folder are places to begin")
    return fine(detail)
