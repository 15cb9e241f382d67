"""The doctor's look at what is stored, and at work under way: chunks, texts, statistics, queues, workers, audit."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from pipeline.ledger import audit, dead, jobs, overview, upkeep
from pipeline.ledger import sources as ledger
from workers.admin import status
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.admin.sync_now import served_queues
from workers.control import steps
from workers.control.maintenance import each_tenant
from workers.queue import dispatch
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime

REPAIR = "larder doctor --repair"
NAMED = 3
"""How many documents a finding names."""
LONG_SECONDS = 600
"""Due work that nobody was told of for so long."""
LEASE_SECONDS = 60
"""A lease that ended so long ago should have been found by the pump."""
CANARY_SECONDS = 300
"""Every queue does a task a minute; five missed ones mean that it does none."""
START = "larder up --detach, or `larder worker QUEUE` for one queue"


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
    """Every finished document has exactly its own chunks, all of one version."""
    rows = [row for found in each_tenant(parts, upkeep.damaged) for row in found]
    if not rows:
        return fine("every finished document has exactly its chunks")
    lost_text = not all(row.has_body for row in rows)
    fix = "larder index --force, since the text of some is not in the ledger" if lost_text else REPAIR
    named = ", ".join(row.external_id for row in rows[:NAMED])
    named += f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return error(f"{len(rows)} documents have lost, doubled or old chunks: {named}", fix)


def audit_chains(parts: Runtime) -> Diagnosis:
    """No entry of the audit chains was changed, taken out or put in."""
    chains = each_tenant(parts, audit.verify)
    broken = [one.problem for chain in chains for one in chain.problems]
    if broken:
        fix = "somebody with the owner's rights changed the table audit; compare it with a backup"
        return error("; ".join(broken[:NAMED]), f"{fix}: larder audit verify")
    return fine(f"{sum(chain.entries for chain in chains)} entries fit")


# Work under way -----------------------------------------------------------------------------------


def embedding(parts: Runtime) -> Diagnosis:
    """The embedder takes our key, model and plan, and neither it nor the database is waited for."""
    with parts.database.control() as connection:
        found = status.embedding_state(parts, connection)
    if found["state"] == "held":
        fix = "mend it and restart; it is tried again by itself"
        return error(f"nothing is embedded: {found['error']}", fix)
    if found["state"] == "waiting":
        said = f"{found['documents']} documents wait until {found['until']}: {found['error']}"
        return warning(said, "nothing to do: they go on by themselves")
    return fine("no document waits for the embedder or the database")


def waiting(parts: Runtime) -> Diagnosis:
    """Due documents have a message under way, and no lease is forgotten."""
    with parts.database.control() as connection:
        unsent, expired = upkeep.count_forgotten(
            connection,
            due=LONG_SECONDS,
            lease=LEASE_SECONDS,
            resend=steps.limits(parts.rag).resend + LEASE_SECONDS,
            embedding=parts.allowance.room(connection) is None,  # what must not be sent is not late
        )
    said = [f"{unsent} documents have been due for long without a message"] if unsent else []
    said += [f"{expired} leases have run out"] if expired else []
    if not said:
        return fine("all due documents are under way")
    return warning(" and ".join(said), f"{REPAIR}; if it comes back, see the control worker's log")


def workers(parts: Runtime) -> Diagnosis:
    """Every queue is served; if none is and nothing is being synced, nothing was started on purpose."""
    with parts.database.control() as connection:
        live = served_queues(overview.workers(connection))
        stuck = upkeep.silent_queues(connection, seconds=CANARY_SECONDS)
        syncing = upkeep.sources_being_synced(connection)
    lacking = ", ".join(queue for queue in QUEUES if queue not in live)
    if lacking and syncing:
        return error(f"syncs of {', '.join(syncing)} wait, and no worker serves {lacking}", START)
    if lacking and live:
        return error(f"no worker serves {lacking}", START)
    if lacking:
        return warning("no worker is running; schedules do not run", START)
    if stuck:
        fix = "see that beat runs, and that queue's log"
        return warning(f"{', '.join(stuck)} did no task for minutes", fix)
    return fine(f"{', '.join(QUEUES)} are served; {len(syncing)} syncs under way")


def dead_letters(parts: Runtime) -> Diagnosis:
    """No document and no job of stories was given up on."""
    with parts.database.control() as connection:
        documents, failed = dead.count(connection), len(jobs.failed(connection))
    told = [f"{documents} documents were given up on"] * bool(documents)
    told += [f"{failed} jobs of user stories failed"] * bool(failed)
    return warning(" and ".join(told), "larder dead list") if told else fine("none")


def held(parts: Runtime) -> Diagnosis:
    """No deletions wait for a person."""
    with parts.database.control() as connection:
        rows = [row for row in ledger.listed(connection) if row.held]
    if not rows:
        return fine("none")
    said = ", ".join(f"{row.held} of {row.name}" for row in rows)
    return warning(f"deletions wait: {said}", f"if they are meant: larder sources release {rows[0].name}")
