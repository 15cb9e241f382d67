"""The doctor: checks of what is stored, of work under way and of what wears out; all in a table; and the repairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as read_version
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from sqlalchemy import Connection

from pipeline.database.engine import translated
from pipeline.documents import Json
from pipeline.documents.plain_text import first_names, plural
from pipeline.errors import LarderError, StoreUnavailable
from pipeline.ledger import audit, overview, upkeep
from pipeline.ledger import sources as ledger
from workers import PACKAGE, installed_version
from workers.app import status, stores
from workers.app.doctor import server_checks as server
from workers.app.health import judgement
from workers.app.health.judgement import Diagnosis, error, fine, warning
from workers.app.ingestion import steps
from workers.app.ingestion.maintenance import each_tenant
from workers.app.ingestion.pump import pump_once
from workers.app.ingestion.sync import next_time
from workers.queue import broker, dispatch
from workers.runtime import Runtime, current_user

version = cache(read_version)
"""Cached, since reading a library's metadata takes 3 ms; another version would not be that of this process."""
REPAIR = "larder doctor --repair"
NAMED = 3
"""Most documents that a finding names."""
LONG_SECONDS = 600
"""Seconds after which due work without a message is a finding."""
LEASE_SECONDS = 60
"""Seconds within which the pump should have found a lease that ended."""


def for_each_tenant(
    repair: Callable[[Connection], None], *, pump: bool = False
) -> Callable[[Runtime], object]:
    """A repair that is made for every tenant; with `pump` workers are told of what has to be done again."""

    def run(runtime: Runtime) -> None:
        each_tenant(runtime, repair)
        if pump:
            dispatch.wake_pump()

    return run


def expect_none(
    query: str,
    description: str,
    judge: Callable[[str, str], Diagnosis],
    otherwise: str = "none",
) -> Callable[[Runtime], Diagnosis]:
    """A check that finds nothing to count, over all tenants."""

    def look(runtime: Runtime) -> Diagnosis:
        total = sum(each_tenant(runtime, lambda connection: upkeep.count(connection, query)))
        return judge(f"{total} {description}", REPAIR) if total else fine(otherwise)

    return look


def leftovers(
    query: str, description: str, judge: Callable[[str, str], Diagnosis]
) -> tuple[Callable[[Runtime], Diagnosis], Callable[[Runtime], object]]:
    """The check of `expect_none`, and the repair that deletes the rows it counts."""
    return expect_none(query, description, judge), for_each_tenant(lambda one: upkeep.delete(one, query))


def damaged(runtime: Runtime) -> Diagnosis:
    """Every finished document has exactly its own chunks, all of one version and with a vector."""
    rows = [row for tenant_rows in each_tenant(runtime, upkeep.damaged) for row in tenant_rows]
    if not rows:
        return fine("every finished document has exactly its chunks")
    lost_text = not all(row.has_body for row in rows)
    fix = "larder index --force, since the text of some is not in the ledger" if lost_text else REPAIR
    named = first_names([row.external_id for row in rows], NAMED)
    have = plural(len(rows), "document has", "documents have")
    return error(f"{have} lost, doubled or old chunks: {named}", fix)


def audit_chains(runtime: Runtime) -> Diagnosis:
    """No entry of the audit chains was changed, taken out or put in."""
    chains = each_tenant(runtime, audit.verify)
    broken = [one.problem for chain in chains for one in chain.problems]
    if broken:
        fix = "somebody with the owner's rights changed the table audit; compare it with a backup"
        return error("; ".join(broken[:NAMED]), f"{fix}: larder audit verify")
    return fine(plural(sum(chain.entries for chain in chains), "entry fits", "entries fit"))


def _longest_lease(runtime: Runtime) -> float:
    """Seconds that a lease can last at most, with room for clocks that differ."""
    return 3 * max(runtime.rag.queue.lease_seconds, runtime.rag.enrichment.lease_seconds)


def leases(runtime: Runtime) -> Diagnosis:
    """No lease lasts longer than workers take one for: it would block its work."""
    most = _longest_lease(runtime)
    stuck = sum(each_tenant(runtime, lambda one: upkeep.count_stuck_leases(one, most=most)))
    if stuck:
        return error(f"{plural(stuck, 'lease ends', 'leases end')} later than workers take one for", REPAIR)
    return fine("none ends later than workers take one for")


def end_leases(runtime: Runtime) -> None:
    """End stuck leases, and have the pump send the work that they blocked."""
    most = _longest_lease(runtime)
    each_tenant(runtime, lambda one: upkeep.end_stuck_leases(one, most=most))
    pump_once(runtime)


def judged(otherwise: str) -> Callable[[Runtime], Diagnosis]:
    """A check that the judgement of `larder status` makes; `otherwise` is the detail if it finds nothing."""
    return lambda _runtime: fine(otherwise)


# Work under way -----------------------------------------------------------------------------------


def waiting(runtime: Runtime) -> Diagnosis:
    """Due documents have a message under way, and no lease is forgotten."""
    with runtime.database.control() as connection:
        unsent, expired = upkeep.count_forgotten(
            connection,
            due=LONG_SECONDS,
            lease=LEASE_SECONDS,
            resend=steps.limits(runtime.rag).resend + LEASE_SECONDS,
            embedding=runtime.allowance.embed_room(connection) is None,  # what must not be sent is not late
        )
    due = plural(unsent, "document has", "documents have")
    problems = [f"{due} been due for long without a message"] * bool(unsent)
    problems += [f"{plural(expired, 'lease has', 'leases have')} run out"] * bool(expired)
    if not problems:
        return fine("all due documents are under way")
    return warning(" and ".join(problems), f"{REPAIR}; if it comes back, see the control worker's log")


LEAST_SERVERS = {"PostgreSQL": (15,), "Valkey": (7, 2), "Redis": (6, 2), "RabbitMQ": (3, 10)}
"""Oldest versions of servers that have all that Larder uses."""


def _put_off(runtime: Runtime) -> list[tuple[ledger.SourceRow, datetime]]:
    """Sources that are planned for later than their cron expression says, with the time it names."""
    with runtime.database.control() as connection:
        now = overview.server_time(connection)
        rows = [row for row in ledger.listed(connection) if not (row.paused_at or row.removed_at)]
    by_text = [(row, next_time(row.schedule, row.timezone, now)) for row in rows]
    return [
        (row, due) for row, due in by_text if due and (row.next_sync_at is None or row.next_sync_at > due)
    ]


def schedules(runtime: Runtime) -> Diagnosis:
    """No source waits longer than its cron expression says, as after a worker whose clock was ahead."""
    if late := _put_off(runtime):
        row, due = late[0]
        planned = row.next_sync_at.isoformat(timespec="minutes") if row.next_sync_at else "never"
        example = f"{row.name} by {row.schedule!r} at {due.isoformat(timespec='minutes')}, and is planned for {planned}"
        return warning(
            f"{plural(len(late), 'source is', 'sources are')} due sooner than planned: {example}",
            f"{REPAIR}; see the clocks of workers",
        )
    return fine("every source is planned for the next time its schedule names")


def plan_anew(runtime: Runtime) -> None:
    """Plan late sources for the times that their cron expressions name."""
    late = _put_off(runtime)
    with runtime.database.control() as connection:
        for row, due in late:
            ledger.plan(connection, row.id, due)


def figures(runtime: Runtime) -> Diagnosis:
    """The figures of `status` and of scaling are those of the ledger."""
    with runtime.database.control() as connection:
        wrong = upkeep.count_drift(connection)
    if wrong:
        return error(f"the figures of status differ from the ledger by {plural(wrong, 'document')}", REPAIR)
    return fine("the figures of status are those of the ledger")


def count_anew(runtime: Runtime) -> None:
    """Correct the figures by the ledger."""
    with runtime.database.control() as connection:
        upkeep.correct_figures(connection)


def versions(runtime: Runtime) -> Diagnosis:
    """Libraries and servers are those that this release works with; others have faults it knows of."""
    try:
        every = [Requirement(one) for one in requires(PACKAGE) or []]
    except (PackageNotFoundError, InvalidRequirement):
        every = []
    requirements = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    if unfit := [*filter(None, map(_unfit, requirements))]:
        fix = "pip install --require-hashes -r deploy/requirements.lock, or the image of this release"
        return error(f"versions that do not work, or have faults: {'; '.join(unfit)}", fix)
    with runtime.database.control() as connection:
        servers = [f"PostgreSQL {overview.server_version(connection)}"]
    urls = dict.fromkeys((runtime.addresses.broker, runtime.addresses.valkey))
    servers += [facts.server for url in urls if (facts := broker.facts(url))]
    if old := [one for one in servers if too_old(one)]:
        return error(
            f"too old: {', '.join(old)}", "PostgreSQL 15, Valkey 7.2, Redis 6.2 or RabbitMQ 3.10, or newer"
        )
    return fine(f"{len(requirements)} libraries as tested; {', '.join(servers)}")


def _unfit(requirement: Requirement) -> str:
    """The installed version instead of the required one; empty if it fits."""
    try:
        have = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} none instead of {requirement.specifier}"
    fits = requirement.specifier.contains(have, prereleases=True)
    return "" if fits else f"{requirement.name} {have} instead of {requirement.specifier}"


def too_old(server: str) -> bool:
    """Whether a server, as in `Redis 5.0.7`, is older than Larder needs."""
    kind, _, number = server.partition(" ")
    numbers = tuple(int(part) for part in number.split()[0].split(".") if part.isdigit()) if number else ()
    return bool(numbers) and numbers < LEAST_SERVERS.get(kind, ())


def vector_stores(runtime: Runtime, *, every: bool = False) -> Diagnosis:
    """Vector stores beside PostgreSQL have its chunks, and no others: by a sample, or every one."""
    looked = stores.check_all(runtime, every=every)
    if found := [f"{name}: {problem}" for name, problems in looked.items() for problem in problems]:
        return error("; ".join(found[:NAMED]), f"{REPAIR} fills it anew; searches ask another one meanwhile")
    return fine(
        f"{', '.join(looked)} as PostgreSQL has it" if looked else "none beside PostgreSQL to compare"
    )


def index_size(runtime: Runtime) -> Diagnosis:
    """Vector indexes hold little beside what is searched."""
    with runtime.database.control() as connection:
        bloated = upkeep.bloated_indexes(connection)
    if bloated:
        sizes = ", ".join(
            f"{row.name} has {row.bytes / 1e6:.0f} MB, {row.times:.1f} times what it needs" for row in bloated
        )
        return warning(
            sizes,
            f"{REPAIR} builds them anew beside the searches, or as the owner: reindex index concurrently",
        )
    return fine("no vector index is much larger than its chunks need")


def by_owner(statement: str, rows: Callable[[Connection], Sequence[Any]]) -> Callable[[Runtime], object]:
    """A repair that only the owner can make: the statement, for what each of the `rows` names."""

    def run(runtime: Runtime) -> None:
        with runtime.database.control() as connection:
            names = [row.name for row in rows(connection)]
        with translated():
            upkeep.as_owner(runtime.addresses.admin, [f'{statement} "{name}"' for name in names])

    return run


def vacuum(runtime: Runtime) -> Diagnosis:
    """PostgreSQL cleans up behind updates, or searches and the pump get slower by the day."""
    with runtime.database.control() as connection:
        runs, tables = upkeep.autovacuum_is_on(connection), upkeep.unvacuumed_tables(connection)
    if not runs:
        return error(
            "autovacuum is off", "set autovacuum and track_counts to on in postgresql.conf, and reload"
        )
    if tables:
        row_counts = ", ".join(
            f"{row.name} has {row.dead} dead rows beside {row.live}, "
            + ("never vacuumed" if row.seconds is None else f"vacuumed {row.seconds / 3600:.1f} h ago")
            for row in tables[:3]
        )
        fix = (
            f"{REPAIR}; if it comes back: autovacuum_vacuum_cost_limit up, and no transaction open for hours"
        )
        return warning(row_counts, fix)
    return fine("no table has more dead rows than autovacuum lets be")


class Check(NamedTuple):
    """A check of the doctor."""

    name: str
    look: Callable[[Runtime], Diagnosis]
    """Errors that it raises, ours or this machine's, become findings."""
    repair: Callable[[Runtime], object] | None = None
    """Repair that may be repeated, and does no harm where nothing is wrong."""
    thorough: Callable[[Runtime], Diagnosis] | None = None
    """Takes the place of `look` where a repair is to follow, if that is a sample."""
    needs_database: bool = True
    closed_by: Collection[str] = ()
    """After a finding of such a status no other check asks the database."""


CHECKS: tuple[Check, ...] = (
    Check("database", server.database, closed_by=("warning", "error")),
    Check("schema", server.schema, closed_by=("error",)),
    Check("pgvector", server.pgvector),
    Check("roles", server.roles),
    Check("row security", server.row_security),
    Check("search index", server.search_index),
    Check(
        "orphaned chunks",
        *leftovers(upkeep.ORPHANS, "chunks belong to no living document", error),
    ),
    Check("document chunks", damaged, for_each_tenant(upkeep.requeue_damaged, pump=True)),
    Check(
        "other indexes",
        expect_none(
            upkeep.DAMAGED_BESIDE,
            "documents have lost, doubled or old chunks in an index beside the active one",
            error,
            "every index beside the active one has exactly its chunks",
        ),
        for_each_tenant(upkeep.refill_damaged_beside, pump=True),
    ),
    Check(
        "staged chunks",
        *leftovers(upkeep.SETTLED_STAGE, "staged chunks of settled documents", warning),
    ),
    Check(
        "old texts",
        *leftovers(upkeep.OLD_BODIES, "texts of versions that nobody wants any more", warning),
    ),
    Check("leases", leases, end_leases),
    Check("waiting documents", waiting, pump_once),
    Check("embedding", judged("no document waits for the embedder or the database")),
    Check("workers", judged("no queue waits for a worker")),
    Check("configuration", judged("the running processes use the file as it is"), needs_database=False),
    Check("dead letters", judged("none")),
    Check("deletions to approve", judged("none")),
    Check("audit chain", audit_chains),
    Check("clock", server.clock),
    Check("schedules", schedules, plan_anew),
    Check("figures", figures, count_anew),
    Check("versions", versions),
    Check("index size", index_size, by_owner("reindex index concurrently", upkeep.bloated_indexes)),
    Check("vector stores", vector_stores, stores.repair, partial(vector_stores, every=True)),
    Check("vacuum", vacuum, by_owner("vacuum (analyze)", upkeep.unvacuumed_tables)),
    Check("broker", server.message_broker, needs_database=False),
    Check("heartbeats", server.heartbeats, needs_database=False),
    Check("flower", server.flower, needs_database=False),
    Check("model", server.model, needs_database=False),
    Check("reranker", server.reranker, needs_database=False),
    Check("sources", server.sources, needs_database=False),
    Check("disk", server.disk, needs_database=False),
)


def examine(runtime: Runtime, *, repair: bool = False) -> list[Diagnosis]:
    """Look at everything; with `repair` mend what can be mended without loss, and look again."""
    diagnoses: list[Diagnosis] = []
    database_closed = False
    for check in CHECKS:
        if database_closed and check.needs_database:
            continue
        one = _run_check(runtime, check.thorough if repair and check.thorough else check.look)
        if not diagnoses:
            judgements = _judgement(runtime, one)
        elif one.status == "ok":
            one = judgements.get(check.name, one)
        database_closed |= one.status in check.closed_by
        if repair and check.repair is not None and one.status != "ok":
            try:
                check.repair(runtime)
                tenant_id = runtime.settings.tenant_id
                with runtime.database.tenant(tenant_id) as connection:
                    audit.append(connection, tenant_id, "doctor.repair", check.name, by=current_user())
            except LarderError as failed:
                one = error(f"{one.detail}; the repair failed: {failed.message}", failed.fix or one.fix)
            else:
                after = _run_check(runtime, check.look)
                mended = replace(fine(f"repaired: {one.detail}"), repaired=True)
                one = mended if after.status == "ok" else after
        diagnoses.append(replace(one, check=check.name))
    return diagnoses


def _judgement(runtime: Runtime, database: Diagnosis) -> dict[str, Diagnosis]:
    """Findings of the judgement that `larder status` shows, by check; `database` is the result of its own check."""
    try:
        if database.status != "ok":
            raise StoreUnavailable(database.detail)
        status_document = status.status(runtime)
    except LarderError as failed:
        status_document = status.without_database(runtime, failed)
    findings: dict[str, Diagnosis] = {}
    for one in judgement.judge(status_document):
        first = findings.get(one.check)
        findings[one.check] = replace(first, detail=f"{first.detail}; {one.detail}") if first else one
    return findings


def _run_check(runtime: Runtime, look: Callable[[Runtime], Diagnosis]) -> Diagnosis:
    try:
        return look(runtime)
    except LarderError as failed:
        return error(failed.message, failed.fix or "see the log of the database server")
    except OSError as failed:
        detail = f"this cannot be looked at: {failed.filename or ''} {failed.strerror or failed}"
        return error(detail, "run it as the user of the workers, or see what this user may do there")


def report(diagnoses: Sequence[Diagnosis]) -> Json:
    """The document of `larder doctor --json`; `ok` unless an error remains."""
    return {
        "version": installed_version(),
        "ok": all(one.status != "error" for one in diagnoses),
        "findings": [dict(vars(one)) for one in diagnoses],
    }
