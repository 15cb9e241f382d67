"""The doctor's look at work under way: waiting documents, open runs, workers, what waits for a person."""

from __future__ import annotations

from sqlalchemy import text

from pipeline.ledger import dead
from workers.admin import embedding_state
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.admin.sync_now import live_workers
from workers.control import steps
from workers.control.pump import pump_once
from workers.processes import liveness
from workers.queue.celeryconfig import INDEXING, QUEUES
from workers.runtime import Runtime

LONG_SECONDS = 600
"""Due work that nobody was told of for so long."""
LEASE_SECONDS = 60
"""A lease that ended so long ago should have been found by the pump."""
CANARY_SECONDS = 300
"""Every queue does a task a minute; five missed ones mean that it does none."""
START = "larder up --detach, or `larder worker QUEUE` for one queue"


def embedding(parts: Runtime) -> Diagnosis:
    """The embedder takes our key, model and plan, and is not waited for."""
    with parts.database.control() as connection:
        found = embedding_state.state(parts, connection)
    if found["state"] == "held":
        return error(
            f"nothing is embedded: {found['error']}", "mend it and restart; it is tried again by itself"
        )
    if found["state"] == "waiting":
        return warning(
            f"{found['documents']} documents wait until {found['until']}: {found['error']}",
            "nothing to do: they go on by themselves",
        )
    return fine("nothing waits for the embedder")


def waiting(parts: Runtime) -> Diagnosis:
    """Due documents have a message under way, and no lease is forgotten."""
    with parts.database.control() as connection:
        held = parts.allowance.room(connection) is not None  # what must not be sent is not late
        row = connection.execute(
            text("""
                select count(*) filter (where due_at < now() - make_interval(secs => :long)
                           and lease_token is null and (stage <> 'chunked' or not :held)
                           and (enqueued_at is null or enqueued_at < now() - make_interval(secs => :resend))) as unsent,
                       count(*) filter (where lease_until < now() - make_interval(secs => :lease)) as expired
                from document where state = 'pending' and not deleted"""),
            {
                "long": LONG_SECONDS,
                "lease": LEASE_SECONDS,
                "resend": steps.limits(parts.rag).resend + LEASE_SECONDS,
                "held": held,
            },
        ).one()
    if not row.unsent and not row.expired:
        return fine("all due documents are under way")
    found = [f"{row.unsent} documents have been due for long without a message"] if row.unsent else []
    found += [f"{row.expired} leases have run out"] if row.expired else []
    return warning(
        " and ".join(found), "larder doctor --repair; if it comes back, see the control worker's log"
    )


def pump(parts: Runtime) -> None:
    """One stroke of the pump, from here."""
    pump_once(parts)


def open_runs(parts: Runtime) -> Diagnosis:
    """Syncs that were begun have workers that can end them."""
    with parts.database.control() as connection:
        names = [
            row.name
            for row in connection.execute(
                text("""
                    select s.name from sync_run r join source s on s.id = r.source_id
                    where r.finished_at is null order by s.name"""),
            )
        ]
    lacking = sorted(set(INDEXING) - live_workers(parts))
    if names and lacking:
        return error(f"syncs of {', '.join(names)} wait for workers of {', '.join(lacking)}", START)
    return fine(f"{len(names)} syncs under way")


def workers(parts: Runtime) -> Diagnosis:
    """Every queue is served, or none: then nothing was started on purpose."""
    live = live_workers(parts)
    lacking = sorted(set(QUEUES) - live)
    if live and lacking:
        return error(f"no worker serves {', '.join(lacking)}", START)
    if lacking:
        return warning("no worker is running; schedules do not run", START)
    with parts.database.control() as connection:
        silent = connection.execute(
            text("""
                select queue from canary where sung_at < now() - make_interval(secs => :late)
                and exists (select from worker where queue = any(string_to_array(queues, ','))
                            and started_at < now() - make_interval(secs => :late)) order by queue"""),
            {"late": CANARY_SECONDS},
        )
        stuck = [row.queue for row in silent]
    if stuck:
        return warning(
            f"{', '.join(stuck)} did no task for minutes", "see that beat runs, and that queue's log"
        )
    return fine(f"{', '.join(QUEUES)} are served")


def heartbeats(parts: Runtime) -> Diagnosis:
    """Processes on this machine that live also listen."""
    from workers.processes import supervisor

    ages = liveness.ages(parts.heartbeat_folder)
    alive = set(supervisor.running(parts.settings.data))
    deaf = {name: age for name, age in ages.items() if name in alive and age > liveness.DEAF_SECONDS}
    if deaf:
        said = ", ".join(f"{name} for {age:.0f} s" for name, age in deaf.items())
        return error(f"alive and silent: {said}", "the supervisor restarts it; else larder down, larder up")
    return fine(f"{len(alive & set(ages))} processes of this machine beat")


def dead_letters(parts: Runtime) -> Diagnosis:
    """No document was given up on."""
    with parts.database.control() as connection:
        found = dead.count(connection)
    return warning(f"{found} documents were given up on", "larder dead list") if found else fine("none")


def held(parts: Runtime) -> Diagnosis:
    """No deletions wait for a person."""
    with parts.database.control() as connection:
        rows = connection.execute(text("select name, held from source where held > 0 order by name")).all()
    if not rows:
        return fine("none")
    said = ", ".join(f"{row.held} of {row.name}" for row in rows)
    return warning(f"deletions wait: {said}", f"if they are meant: larder sources release {rows[0].name}")
