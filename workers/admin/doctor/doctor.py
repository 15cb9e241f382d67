"""The doctor: checks of what is stored, of work under way and of what wears out; all in a table; and the repairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
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
from workers.admin import judgement, status
from workers.admin.doctor import server_checks as server
from workers.admin.judgement import Diagnosis, error, fine, warning
from workers.control import steps
from workers.control.maintenance import each_tenant
from workers.control.pump import pump_once
from workers.control.sync import next_time
from workers.queue import broker, dispatch
from workers.runtime import Runtime, current_user

version = cache(read_version)
"""It reads all that a library tells of itself, 3 ms; another version would not be that of this process."""
REPAIR = "larder doctor --repair"
NAMED = 3
"""How many documents a finding names."""
LONG_SECONDS = 600
"""Due work that nobody was told of for so long."""
LEASE_SECONDS = 60
"""A lease that ended so long ago should have been found by the pump."""


def for_each_tenant(
    repair: Callable[[Connection], None], *, pump: bool = False
) -> Callable[[Runtime], object]:
    """A repair that is made for every tenant; with `pump` workers are told of what has to be done again."""

    def run(parts: Runtime) -> None:
        each_tenant(parts, repair)
        if pump:
            dispatch.wake_pump()

    return run


def none_of(
    found: str,
    what: str,
    judge: Callable[[str, str], Diagnosis],
    otherwise: str = "none",
) -> Callable[[Runtime], Diagnosis]:
    """A check that finds nothing to count, over all tenants."""

    def look(parts: Runtime) -> Diagnosis:
        many = sum(each_tenant(parts, lambda connection: upkeep.count(connection, found)))
        return judge(f"{many} {what}", REPAIR) if many else fine(otherwise)

    return look


def leftovers(
    found: str, what: str, judge: Callable[[str, str], Diagnosis]
) -> tuple[Callable[[Runtime], Diagnosis], Callable[[Runtime], object]]:
    """The same, and the repair that removes them."""
    return none_of(found, what, judge), for_each_tenant(lambda one: upkeep.delete(one, found))


def damaged(parts: Runtime) -> Diagnosis:
    """Every finished document has exactly its own chunks, all of one version and with a vector."""
    rows = [row for found in each_tenant(parts, upkeep.damaged) for row in found]
    if not rows:
        return fine("every finished document has exactly its chunks")
    lost_text = not all(row.has_body for row in rows)
    fix = "larder index --force, since the text of some is not in the ledger" if lost_text else REPAIR
    named = first_names([row.external_id for row in rows], NAMED)
    have = plural(len(rows), "document has", "documents have")
    return error(f"{have} lost, doubled or old chunks: {named}", fix)


def audit_chains(parts: Runtime) -> Diagnosis:
    """No entry of the audit chains was changed, taken out or put in."""
    chains = each_tenant(parts, audit.verify)
    broken = [one.problem for chain in chains for one in chain.problems]
    if broken:
        fix = "somebody with the owner's rights changed the table audit; compare it with a backup"
        return error("; ".join(broken[:NAMED]), f"{fix}: larder audit verify")
    return fine(plural(sum(chain.entries for chain in chains), "entry fits", "entries fit"))


def _longest_lease(parts: Runtime) -> float:
    """Seconds after which even a lease that was renewed a moment ago has ended, by whatever clock."""
    return 3 * max(parts.rag.queue.lease_seconds, parts.rag.enrichment.lease_seconds)


def leases(parts: Runtime) -> Diagnosis:
    """No work is kept from all workers by a lease that nobody of them has taken."""
    most = _longest_lease(parts)
    stuck = sum(each_tenant(parts, lambda one: upkeep.count_stuck_leases(one, most=most)))
    if stuck:
        return error(f"{plural(stuck, 'lease ends', 'leases end')} later than workers take one for", REPAIR)
    return fine("none ends later than workers take one for")


def end_leases(parts: Runtime) -> None:
    """End them, and have the pump hand out what they kept."""
    most = _longest_lease(parts)
    each_tenant(parts, lambda one: upkeep.end_stuck_leases(one, most=most))
    pump_once(parts)


def judged(otherwise: str) -> Callable[[Runtime], Diagnosis]:
    """A check of which the judgement that `larder status` shows knows all."""
    return lambda _parts: fine(otherwise)


# Work under way -----------------------------------------------------------------------------------


def waiting(parts: Runtime) -> Diagnosis:
    """Due documents have a message under way, and no lease is forgotten."""
    with parts.database.control() as connection:
        unsent, expired = upkeep.count_forgotten(
            connection,
            due=LONG_SECONDS,
            lease=LEASE_SECONDS,
            resend=steps.limits(parts.rag).resend + LEASE_SECONDS,
            embedding=parts.allowance.embed_room(connection) is None,  # what must not be sent is not late
        )
    due = plural(unsent, "document has", "documents have")
    said = [f"{due} been due for long without a message"] * bool(unsent)
    said += [f"{plural(expired, 'lease has', 'leases have')} run out"] * bool(expired)
    if not said:
        return fine("all due documents are under way")
    return warning(" and ".join(said), f"{REPAIR}; if it comes back, see the control worker's log")


LEAST_SERVERS = {"PostgreSQL": (15,), "Valkey": (7, 2), "Redis": (6, 2), "RabbitMQ": (3, 10)}
"""Older ones lack what is asked of them."""


def _put_off(parts: Runtime) -> list[tuple[ledger.SourceRow, datetime]]:
    """Sources that are due later than their cron text says, with the time it says."""
    with parts.database.control() as connection:
        now = overview.server_time(connection)
        rows = [row for row in ledger.listed(connection) if not (row.paused_at or row.removed_at)]
    by_text = [(row, next_time(row.schedule, row.timezone, now)) for row in rows]
    return [
        (row, due) for row, due in by_text if due and (row.next_sync_at is None or row.next_sync_at > due)
    ]


def schedules(parts: Runtime) -> Diagnosis:
    """No source waits longer than its cron text says, as after a worker whose clock was ahead."""
    if late := _put_off(parts):
        row, due = late[0]
        planned = row.next_sync_at.isoformat(timespec="minutes") if row.next_sync_at else "never"
        said = f"{row.name} by {row.schedule!r} at {due.isoformat(timespec='minutes')}, and is planned for {planned}"
        return warning(
            f"{plural(len(late), 'source is', 'sources are')} due sooner than planned: {said}",
            f"{REPAIR}; see the clocks of workers",
        )
    return fine("every source is planned for the next time its schedule names")


def plan_anew(parts: Runtime) -> None:
    """Plan them for the times that their cron texts say."""
    late = _put_off(parts)
    with parts.database.control() as connection:
        for row, due in late:
            ledger.plan(connection, row.id, due)


def figures(parts: Runtime) -> Diagnosis:
    """What `status` and scaling are told is what the ledger holds."""
    with parts.database.control() as connection:
        wrong = upkeep.count_drift(connection)
    if wrong:
        return error(f"the figures of status differ from the ledger by {plural(wrong, 'document')}", REPAIR)
    return fine("the figures of status are those of the ledger")


def count_anew(parts: Runtime) -> None:
    """Bring the figures in line."""
    with parts.database.control() as connection:
        upkeep.correct_figures(connection)


def versions(parts: Runtime) -> Diagnosis:
    """Libraries and servers are those that this release works with; others have faults it knows of."""
    try:
        every = [Requirement(one) for one in requires(PACKAGE) or []]
    except (PackageNotFoundError, InvalidRequirement):
        every = []
    wanted = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    if found := [*filter(None, map(_unfit, wanted))]:
        fix = "pip install --require-hashes -r deploy/requirements.lock, or the image of this release"
        return error(f"versions that do not work, or have faults: {'; '.join(found)}", fix)
    with parts.database.control() as connection:
        servers = [f"PostgreSQL {overview.server_version(connection)}"]
    where = dict.fromkeys((parts.addresses.broker, parts.addresses.valkey))
    servers += [told.server for url in where if (told := broker.facts(url))]
    if old := [one for one in servers if too_old(one)]:
        return error(
            f"too old: {', '.join(old)}", "PostgreSQL 15, Valkey 7.2, Redis 6.2 or RabbitMQ 3.10, or newer"
        )
    return fine(f"{len(wanted)} libraries as tested; {', '.join(servers)}")


def _unfit(wanted: Requirement) -> str:
    """What is installed instead of what is wanted; empty if it is that."""
    try:
        have = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} none instead of {wanted.specifier}"
    fits = wanted.specifier.contains(have, prereleases=True)
    return "" if fits else f"{wanted.name} {have} instead of {wanted.specifier}"


def too_old(server: str) -> bool:
    """Does a server, as in `Redis 5.0.7`, lack what is asked of it?"""
    kind, _, number = server.partition(" ")
    parts = tuple(int(part) for part in number.split()[0].split(".") if part.isdigit()) if number else ()
    return bool(parts) and parts < LEAST_SERVERS.get(kind, ())


def index_size(parts: Runtime) -> Diagnosis:
    """Vector indexes hold little beside what is searched."""
    with parts.database.control() as connection:
        found = upkeep.bloated_indexes(connection)
    if found:
        said = ", ".join(
            f"{row.name} has {row.bytes / 1e6:.0f} MB, {row.times:.1f} times what it needs" for row in found
        )
        return warning(
            said,
            f"{REPAIR} builds them anew beside the searches, or as the owner: reindex index concurrently",
        )
    return fine("no vector index is much larger than its chunks need")


def by_owner(statement: str, rows: Callable[[Connection], Sequence[Any]]) -> Callable[[Runtime], object]:
    """A repair that only the owner can make: the statement, for what each of the `rows` names."""

    def run(parts: Runtime) -> None:
        with parts.database.control() as connection:
            names = [row.name for row in rows(connection)]
        with translated():
            upkeep.as_owner(parts.addresses.admin, [f'{statement} "{name}"' for name in names])

    return run


def vacuum(parts: Runtime) -> Diagnosis:
    """PostgreSQL cleans up behind updates, or searches and the pump get slower by the day."""
    with parts.database.control() as connection:
        runs, found = upkeep.autovacuum_is_on(connection), upkeep.unvacuumed_tables(connection)
    if not runs:
        return error(
            "autovacuum is off", "set autovacuum and track_counts to on in postgresql.conf, and reload"
        )
    if found:
        said = ", ".join(
            f"{row.name} has {row.dead} dead rows beside {row.live}, "
            + ("never vacuumed" if row.seconds is None else f"vacuumed {row.seconds / 3600:.1f} h ago")
            for row in found[:3]
        )
        fix = (
            f"{REPAIR}; if it comes back: autovacuum_vacuum_cost_limit up, and no transaction open for hours"
        )
        return warning(said, fix)
    return fine("no table has more dead rows than autovacuum lets be")


class Check(NamedTuple):
    """One thing the doctor looks at."""

    name: str
    look: Callable[[Runtime], Diagnosis]
    """What it raises, an error of ours or of this machine, becomes a finding."""
    repair: Callable[[Runtime], object] | None = None
    """Repeatable, and harmless where nothing is wrong."""
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
        none_of(
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
    Check("configuration", judged("what runs has that of the file"), needs_database=False),
    Check("dead letters", judged("none")),
    Check("deletions to approve", judged("none")),
    Check("audit chain", audit_chains),
    Check("clock", server.clock),
    Check("schedules", schedules, plan_anew),
    Check("figures", figures, count_anew),
    Check("versions", versions),
    Check("index size", index_size, by_owner("reindex index concurrently", upkeep.bloated_indexes)),
    Check("vacuum", vacuum, by_owner("vacuum (analyze)", upkeep.unvacuumed_tables)),
    Check("broker", server.message_broker, needs_database=False),
    Check("heartbeats", server.heartbeats, needs_database=False),
    Check("flower", server.flower, needs_database=False),
    Check("model", server.model, needs_database=False),
    Check("reranker", server.reranker, needs_database=False),
    Check("sources", server.sources, needs_database=False),
    Check("disk", server.disk, needs_database=False),
)


def examine(parts: Runtime, *, repair: bool = False) -> list[Diagnosis]:
    """Look at everything; with `repair` mend what can be mended without loss, and look again."""
    found: list[Diagnosis] = []
    closed = False
    for check in CHECKS:
        if closed and check.needs_database:
            continue
        one = _looked(parts, check)
        if not found:
            wrong = _judgement(parts, one)
        elif one.status == "ok":
            one = wrong.get(check.name, one)
        closed |= one.status in check.closed_by
        if repair and check.repair is not None and one.status != "ok":
            try:
                check.repair(parts)
                own = parts.settings.tenant_id
                with parts.database.tenant(own) as connection:
                    audit.append(connection, own, "doctor.repair", check.name, by=current_user())
            except LarderError as failed:
                one = error(f"{one.detail}; the repair failed: {failed.message}", failed.fix or one.fix)
            else:
                after = _looked(parts, check)
                mended = replace(fine(f"repaired: {one.detail}"), repaired=True)
                one = mended if after.status == "ok" else after
        found.append(replace(one, check=check.name))
    return found


def _judgement(parts: Runtime, database: Diagnosis) -> dict[str, Diagnosis]:
    """What is wrong by the judgement that `larder status` shows, by check; `database` is how that was found to be."""
    try:
        if database.status != "ok":
            raise StoreUnavailable(database.detail)
        shown = status.status(parts)
    except LarderError as failed:
        shown = status.without_database(parts, failed)
    wrong: dict[str, Diagnosis] = {}
    for one in judgement.judge(shown):
        first = wrong.get(one.check)
        wrong[one.check] = replace(first, detail=f"{first.detail}; {one.detail}") if first else one
    return wrong


def _looked(parts: Runtime, check: Check) -> Diagnosis:
    try:
        return check.look(parts)
    except LarderError as failed:
        return error(failed.message, failed.fix or "see the log of the database server")
    except OSError as failed:
        detail = f"this cannot be looked at: {failed.filename or ''} {failed.strerror or failed}"
        return error(detail, "run it as the user of the workers, or see what this user may do there")


def report(found: Sequence[Diagnosis]) -> Json:
    """The document of `larder doctor --json`; `ok` unless an error remains."""
    return {
        "version": installed_version(),
        "ok": all(one.status != "error" for one in found),
        "findings": [dict(vars(one)) for one in found],
    }
