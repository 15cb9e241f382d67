"""Sends messages after the commit, with ids only, in batches of similar weight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.ingest.steps import Step
from pipeline.ledger import ACTIVE, Lane, Stage, jobs, runs, work
from pipeline.ledger.due_work import Batch, even_batches
from workers.monitoring import metrics
from workers.queue import broker
from workers.queue.celeryconfig import ROUTES
from workers.queue.rest import Rest

TASK_OF = {Stage.FETCHED: "larder.chunk", Stage.CHUNKED: "larder.embed", Stage.EMBEDDED: "larder.upsert"}
_FILLS = broker.PRIORITIES.index(Lane.FILL)
LISTS = {
    **{task: broker.lists_of(ROUTES[task])[:_FILLS] for task in (*TASK_OF.values(), "larder.sync")},
    "larder.fill": broker.lists_of(ROUTES["larder.fill"])[_FILLS:],
}
"""Task whose lost messages are sent again -> its lists in the broker."""


RING_SECONDS = 1.0
"""Minimum seconds between wake-ups of the pump by frequent events."""
_rest = Rest()
"""Pause after a broker, by its address, did not answer: one run of the pump sends hundreds of messages."""
_rung_at: dict[str, float] = {}
"""Address of a broker -> monotonic time of the last wake-up of its pump."""


def send(
    name: str,
    *args: object,
    priority: int | None = None,
    queue: str | None = None,
    named: Mapping[str, object] | None = None,
) -> bool:
    """Publish one message, by default to the queue of its task; False if the broker does not accept it.

    The ledger has the work. Messages do not expire: that would compare this machine's clock with a worker's.
    """
    from kombu.exceptions import OperationalError  # Celery is large, and many commands send nothing

    from workers.queue.app import app

    address = str(app.conf.broker_url)
    if not _rest.holds(address):
        try:
            app.send_task(
                name,
                args=list(args),
                kwargs=named,
                priority=priority,
                queue=broker.queue_for(queue or ROUTES[name], address, priority),
                headers=broker.request_header(),
                # Celery would truncate it, and Flower could not find a document by its id.
                argsrepr=repr(list(args)),
            )
        except (OperationalError, OSError):
            _rest.begin(address)
        else:
            return True
    metrics.UNSENT.inc()
    return False


def wake_pump(*, seldom: bool = False) -> None:
    """Wake the pump for due work; with `seldom` at most once in RING_SECONDS, and the tick finds the rest."""
    from workers.queue.app import app

    address, now = str(app.conf.broker_url), time.monotonic()
    if not seldom or now - _rung_at.get(address, float("-inf")) >= RING_SECONDS:
        _rung_at[address] = now
        send("larder.pump")


def send_batch(database: Database, batch: Batch) -> None:
    """Ask for the next step of these documents; what the broker does not take is sent by the pump later."""
    items = [item.to_json() for item in batch.items]
    if batch.index == ACTIVE:
        sent = send(TASK_OF[batch.stage], str(batch.tenant_id), items, priority=batch.lane)
    else:
        sent = send("larder.fill", str(batch.tenant_id), batch.index, items, priority=batch.lane)
    if not sent:
        with database.tenant(batch.tenant_id) as connection:
            work.mark_unsent(connection, batch.items, index=batch.index)


def send_sync(database: Database, tenant: UUID, source: UUID, run: int, *, first: bool = False) -> None:
    """Send the next slice of a walk; if the broker does not accept it, the pump sends it later.

    The `first` slice has priority, since small walks have no other.
    """
    lane = Lane.CHANGED if first else Lane.BULK
    if not send("larder.sync", str(tenant), str(source), run, priority=lane):
        with database.tenant(tenant) as connection:
            runs.mark_unsent(connection, run)


def send_job(database: Database, due: jobs.DueJob) -> None:
    """Send a job; if the broker does not accept it, the pump sends it later."""
    if not send(due.task, str(due.tenant_id), str(due.id), priority=due.priority):
        with database.tenant(due.tenant_id) as connection:
            jobs.mark_unsent(connection, due.id)


def send_step(database: Database, tenant: UUID, step: Step, weights: Mapping[Stage, int], most: int) -> None:
    """Send the work that follows a step; documents to embed are chosen from the ledger instead."""
    if step.stage is not Stage.CHUNKED:
        for items in even_batches(step.ready, step.sizes, weight=weights.get(step.stage, most), most=most):
            batch = Batch(tenant_id=tenant, stage=step.stage, items=tuple(items), lane=Lane.CHANGED)
            send_batch(database, batch)
