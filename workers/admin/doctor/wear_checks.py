"""The doctor's look at what wears out: schedules, figures, versions, indexes and tables that nobody cleans up."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement

from pipeline.database import wear
from pipeline.database.driver_errors import translated
from pipeline.ledger import overview, sources
from workers import PACKAGE
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.control.sync import next_time
from workers.queue import broker
from workers.runtime import Runtime

REPAIR = "larder doctor --repair"
LEAST_SERVERS = {"PostgreSQL": (15,), "Valkey": (7, 2), "Redis": (6, 2)}
"""Older ones lack what is asked of them."""


def _put_off(parts: Runtime) -> list[tuple[sources.SourceRow, datetime]]:
    """Sources that are due later than their cron text says, with the time it says."""
    with parts.database.control() as connection:
        now = overview.server_time(connection)
        rows = [row for row in sources.listed(connection) if not (row.paused_at or row.removed_at)]
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
            f"{len(late)} sources are due sooner than planned: {said}", f"{REPAIR}; see the clocks of workers"
        )
    return fine("every source is planned for the next time its schedule names")


def plan_anew(parts: Runtime) -> None:
    """Plan them for the times that their cron texts say."""
    late = _put_off(parts)
    with parts.database.control() as connection:
        for row, due in late:
            sources.plan(connection, row.id, due)


def figures(parts: Runtime) -> Diagnosis:
    """What `status` and scaling are told is what the ledger holds."""
    with parts.database.control() as connection:
        wrong = wear.drift(connection)
    if wrong:
        return error(f"the figures of status differ from the ledger by {wrong} documents", REPAIR)
    return fine("the figures of status are those of the ledger")


def count_anew(parts: Runtime) -> None:
    """Bring the figures in line."""
    with parts.database.control() as connection:
        wear.correct_figures(connection)


def versions(parts: Runtime) -> Diagnosis:
    """Libraries and servers are those that this release works with; others have faults it knows of."""
    try:
        wanted = [Requirement(one) for one in requires(PACKAGE) or []]
    except (PackageNotFoundError, InvalidRequirement):
        wanted = []
    found = []
    for one in wanted:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            try:
                have = version(one.name)
            except PackageNotFoundError:
                have = "none"
            if have == "none" or not one.specifier.contains(have, prereleases=True):
                found.append(f"{one.name} {have} instead of {one.specifier}")
    if found:
        fix = "pip install --require-hashes -r deploy/requirements.lock, or the image of this release"
        return error(f"versions that do not work, or have faults: {'; '.join(found)}", fix)
    with parts.database.control() as connection:
        servers = [f"PostgreSQL {overview.server_version(connection)}"]
    if told := broker.facts(parts.addresses.broker):
        servers.append(told.server)
    if old := [one for one in servers if too_old(one)]:
        return error(f"too old: {', '.join(old)}", "PostgreSQL 15, Valkey 7.2 or Redis 6.2, or newer")
    return fine(f"{len(wanted)} libraries as tested; {', '.join(servers)}")


def too_old(server: str) -> bool:
    """Does a server, as in `Redis 5.0.7`, lack what is asked of it?"""
    kind, _, number = server.partition(" ")
    parts = tuple(int(part) for part in number.split()[0].split(".") if part.isdigit()) if number else ()
    return bool(parts) and parts < LEAST_SERVERS.get(kind, ())


def index_size(parts: Runtime) -> Diagnosis:
    """Vector indexes hold little beside what is searched."""
    with parts.database.control() as connection:
        found = wear.grown(connection)
    if found:
        said = ", ".join(
            f"{row.name} has {row.bytes / 1e6:.0f} MB, {row.times:.1f} times what it needs" for row in found
        )
        return warning(
            said,
            f"{REPAIR} builds them anew beside the searches, or as the owner: reindex index concurrently",
        )
    return fine("no vector index is much larger than its chunks need")


def build_indexes_anew(parts: Runtime) -> None:
    """Without keeping searches or writers waiting."""
    with parts.database.control() as connection:
        names = [row.name for row in wear.grown(connection)]
    with translated():
        wear.as_owner(parts.addresses.admin, [f'reindex index concurrently "{name}"' for name in names])


def vacuum(parts: Runtime) -> Diagnosis:
    """PostgreSQL cleans up behind updates, or searches and the pump get slower by the day."""
    with parts.database.control() as connection:
        runs, found = wear.vacuums(connection), wear.unclean(connection)
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


def vacuum_now(parts: Runtime) -> None:
    """Do what it did not come to."""
    with parts.database.control() as connection:
        names = [row.name for row in wear.unclean(connection)]
    with translated():
        wear.as_owner(parts.addresses.admin, [f'vacuum (analyze) "{name}"' for name in names])
