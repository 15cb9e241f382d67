"""The Celery tasks: each decodes ids, calls one function, and sends what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from pipeline.ingest.steps import Indexer, Step
from pipeline.ledger import Item
from pipeline.search.chunk_store import indexes
from workers import remote_actions, runtime
from workers.app import reindex, stores
from workers.app.enrichment import job as enriching
from workers.app.ingestion import maintenance, steps
from workers.app.ingestion import pump as pumping
from workers.app.ingestion import sync as syncing
from workers.monitoring import metrics, tracing
from workers.queue import dispatch
from workers.queue.app import app


@app.task(name="larder.sync")  # type: ignore[untyped-decorator]
def sync(tenant: str, source: str, run: int, **_later: object) -> None:
    """One slice of a source's walk; a further one is sent if it is not through, and a run without work ends here."""
    current = runtime.current()
    if not syncing.sync(current, UUID(tenant), UUID(source), run):
        dispatch.send_sync(current.database, UUID(tenant), UUID(source), run)
    elif run not in pumping.close_settled(current):
        dispatch.wake_pump()


_done_at: dict[str, float] = {}
"""Task of beat's schedule -> when this process did it last."""


def done_recently(name: str, every: float) -> bool:
    """True if this process did a task less than half a period ago: ticks that piled up are one tick.

    Whoever asks for the task besides beat names no period and is never refused.
    """
    now = time.monotonic()
    if now - _done_at.get(name, float("-inf")) < every / 2:
        return True
    _done_at[name] = now
    return False


@app.task(name="larder.pump")  # type: ignore[untyped-decorator]
def pump(every: float = 0.0, sent: float | None = None, **_later: object) -> None:
    """Send messages for all that is due: documents, syncs, upkeep."""
    if not done_recently("larder.pump", every):
        pumping.pump_once(runtime.current(), sent)


def decode(items: Sequence[Sequence[str | int]]) -> list[Item]:
    """`[[id, version], ...]` of a message as items."""
    return [Item(UUID(str(i)), int(v)) for i, v, *_ in items]


@app.task(name="larder.chunk")  # type: ignore[untyped-decorator]
def chunk(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Cut documents into chunks."""
    _step(Indexer.chunk, UUID(tenant), decode(items))


@app.task(name="larder.embed")  # type: ignore[untyped-decorator]
def embed(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Make the vectors that are missing."""
    _step(Indexer.embed, UUID(tenant), decode(items))


@app.task(name="larder.upsert")  # type: ignore[untyped-decorator]
def upsert(tenant: str, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Make documents searchable."""
    _step(Indexer.upsert, UUID(tenant), decode(items))


def _step(
    method: Callable[[Indexer, UUID, Sequence[Item]], Step], tenant: UUID, items: Sequence[Item]
) -> None:
    """Take documents one step further, and ask for what follows."""
    current, name = runtime.current(), method.__name__
    document = str(items[0].document_id) if len(items) == 1 else None
    about: dict[str, Any] = {"tenant": str(tenant), "documents": len(items), "document": document}
    with tracing.span(f"larder.{name}", within=steps.traces_of(current, tenant, items), **about):
        with metrics.timed(metrics.DURATIONS[name]):
            done = method(steps.indexer(current, tenant), tenant, items)
        metrics.PROCESSED.inc(done.indexed)
        tracing.set_attributes(indexed=done.indexed)
        dispatch.send_step(
            current.database, tenant, done, steps.weights(current.rag), steps.limits(current.rag).batch
        )
        if method is not Indexer.upsert:
            pumping.send_embeds(current)
        elif done.indexed:
            stores.ring(current)
        if method is Indexer.chunk and done.requeued:
            dispatch.wake_pump(seldom=True)


@app.task(name="larder.fill")  # type: ignore[untyped-decorator]
def fill(tenant: str, index: int, items: Sequence[Sequence[str | int]], **_later: object) -> None:
    """Bring documents into a search index that lacks them, and see to it that there is a next message."""
    process = runtime.current()
    with process.database.control() as connection:
        beside = next((one for one in indexes(connection) if one.id == index), None)
    if beside is not None:  # else it was dropped, and all that was noted about it with it
        steps.indexer(process, UUID(tenant), beside).fill(UUID(tenant), decode(items))
        pumping.send_fills(process)


@app.task(name="larder.mirror")  # type: ignore[untyped-decorator]
def mirror(store: str, **_later: object) -> None:
    """Carry over what a vector store lacks."""
    if stores.mirror(runtime.current(), store):
        dispatch.send("larder.mirror", store)


def answer(self: Any, tenant: object = None, job: object = None, /, *_more: object, **request: Any) -> None:
    """Do the job that a message names by its ids, or the one that it asks for."""
    ids = [one for one in (tenant, job, *_more) if one is not None]
    remote_actions.receive(runtime.current(), self.name, self.request.id, ids, request)


for _task in enriching.WORK:
    app.task(answer, name=_task, bind=True)


@app.task(name=remote_actions.ASK, bind=True)  # type: ignore[untyped-decorator]
def ask(self: Any, /, *what: object, **request: Any) -> None:
    """Do the job that a message of an app of the release before asks for."""
    remote_actions.receive(runtime.current(), self.name, self.request.id, what, request)


@app.task(name="larder.upkeep.statistics", soft_time_limit=780, time_limit=840)  # type: ignore[untyped-decorator]
def statistics(every: float = 0.0, **_later: object) -> None:
    """Count lexemes anew where they have changed; the pump then closes the runs that wait for it."""
    if not done_recently("larder.upkeep.statistics", every):
        maintenance.refresh_statistics(runtime.current())
        dispatch.wake_pump(seldom=True)


@app.task(name="larder.upkeep.build")  # type: ignore[untyped-decorator]
def build(**_later: object) -> None:
    """Have the indexes built that were put off until the first load is in."""
    maintenance.request_builds(runtime.current())


@app.task(name="larder.upkeep.trim")  # type: ignore[untyped-decorator]
def trim(every: float = 0.0, **_later: object) -> None:
    """Keep caches, runs, dead letters and tombstones within their limits, and have the indexes built."""
    if done_recently("larder.upkeep.trim", every):
        return
    maintenance.request_builds(runtime.current())
    maintenance.trim(runtime.current())
    reindex.drop_old(runtime.current())


@app.task(name="larder.upkeep.canary")  # type: ignore[untyped-decorator]
def canary(queue: str, **_later: object) -> None:
    """Show that this queue is served: the time of the last one done is on the status screen."""
    maintenance.record_canary(runtime.current(), queue)
