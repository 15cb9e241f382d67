"""Sending messages, after the commit: ids only, in batches of even weight."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.ingest.steps import Step
from pipeline.ledger import Item, Stage, fills, jobs, runs, work
from workers.limits.rest import Rest
from workers.processes import metrics
from workers.queue import broker
from workers.queue.celeryconfig import ROUTES

FILL_PRIORITY = 9
"""Behind everything else: 0 is the first."""

TASK_OF = {Stage.FETCHED: "larder.chunk", Stage.CHUNKED: "larder.embed", Stage.EMBEDDED: "larder.upsert"}
_FILLS = broker.PRIORITIES.index(FILL_PRIORITY)
LISTS = {
    **{task: broker.lists_of(ROUTES[task])[:_FILLS] for task in (*TASK_OF.values(), "larder.sync")},
    "larder.fill": broker.lists_of(ROUTES["larder.fill"])[_FILLS:],
}
"""Tasks whose messages are sent again when they are lost, and where in the broker they wait."""


RING_SECONDS = 1.0
"""The pump is rung no more often by what happens all the time."""
_rest = Rest()
"""Of brokers by address: one run of the pump sends hundreds of messages."""
_rung_at: dict[str, float] = {}
"""Address of a broker -> when the pump was rung there last."""


def send(
    name: str,
    *args: object,
    priority: int | None = None,
    queue: str | None = None,
    named: Mapping[str, object] | None = None,
) -> bool:
    """Publish one message, to its usual queue if none is named; False if the broker does not take it.

    The ledger remembers what it was about. It never expires: that would compare this machine's clock with a worker's.
    """
    from kombu.exceptions import OperationalError  # Celery is large, and who only looks sends nothing

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
                # Celery would cut it short, and a document could not be found by its id in Flower.
                argsrepr=repr(list(args)),
            )
        except (OperationalError, OSError):
            _rest.begin(address)
        else:
            return True
    metrics.UNSENT.inc()
    return False


def wake_pump(*, seldom: bool = False) -> None:
    """Tell the pump that work is due; `seldom` not if this process told it a moment ago: its tick finds the rest."""
    from workers.queue.app import app

    address, now = str(app.conf.broker_url), time.monotonic()
    if not seldom or now - _rung_at.get(address, float("-inf")) >= RING_SECONDS:
        _rung_at[address] = now
        send("larder.pump")


def send_items(
    database: Database, tenant: UUID, stage: Stage, items: Sequence[Item], lane: work.Lane = work.Lane.CHANGED
) -> None:
    """Ask for the next step of these documents; what the broker does not take is sent by the pump later."""
    message = (str(tenant), [item.to_json() for item in items])
    if items and not send(TASK_OF[stage], *message, priority=lane):
        with database.tenant(tenant) as connection:
            work.mark_unsent(connection, list(items))


def send_sync(database: Database, tenant: UUID, source: UUID, run: int, *, first: bool = False) -> None:
    """Ask for the next slice of a walk; what the broker does not take is sent when the pump runs next.

    The `first` one goes before others: it is all of a small walk.
    """
    lane = work.Lane.CHANGED if first else work.Lane.BULK
    if not send("larder.sync", str(tenant), str(source), run, priority=lane):
        with database.tenant(tenant) as connection:
            runs.mark_unsent(connection, run)


def send_fill(database: Database, tenant: UUID, index: int, items: Sequence[Item]) -> None:
    """Ask for documents to be filled into a search index; new and changed documents are embedded before them."""
    message = (str(tenant), index, [item.to_json() for item in items])
    if items and not send("larder.fill", *message, priority=FILL_PRIORITY):
        with database.tenant(tenant) as connection:
            fills.mark_unsent(connection, index, items)


def send_job(database: Database, due: jobs.DueJob) -> None:
    """Ask for a job's work; what the broker does not take is sent by the pump later."""
    if not send(due.task, str(due.tenant_id), str(due.id), priority=due.priority):
        with database.tenant(due.tenant_id) as connection:
            jobs.mark_unsent(connection, due.id)


def send_step(database: Database, tenant: UUID, step: Step, weights: Mapping[Stage, int], most: int) -> None:
    """Ask for what follows a step before anything is begun; what is to be embedded is chosen from the ledger."""
    if step.stage is not Stage.CHUNKED:
        for part in batches(step.ready, step.sizes, weight=weights.get(step.stage, most), most=most):
            send_items(database, tenant, step.stage, part)


def batches(items: Iterable[Item], sizes: Mapping[UUID, int], *, weight: int, most: int) -> list[list[Item]]:
    """Cut documents into messages of at most `most` documents and about `weight` chunks."""
    parts: list[list[Item]] = []
    load = 0
    for item in items:
        size = sizes.get(item.document_id, 1)
        if not parts or len(parts[-1]) >= most or load + size > weight:
            parts.append([])
            load = 0
        parts[-1].append(item)
        load += size
    return parts
