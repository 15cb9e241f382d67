"""The pump: what is due becomes messages; runs open and close, and indexes that lack documents are filled."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection

from pipeline.documents import Json
from pipeline.errors import LarderError, StoreError
from pipeline.ingest.hints import HOOK
from pipeline.ledger import Stage, due_work, jobs, runs, sources, upkeep
from pipeline.search.chunk_store import indexes
from workers.app import stores
from workers.app.ingestion import steps
from workers.app.ingestion.sync import Configured, as_indexing_error, open_source, source_of_row, start_run
from workers.queue import broker, dispatch
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

LOST_SECONDS = 5.0
"""Age in seconds at which a message that waits nowhere and is with no worker was lost with its broker."""


def pump_once(runtime: Runtime, sent: float | None = None) -> None:
    """Send messages for the work that is due. Harmless beside itself, late, doubled or lost.

    `sent` is the time at which the tick was sent that asks for it, if it was one.
    """
    runtime.database.end_stalled()
    # First what somebody waits for: enrichments that are over end, and those without a message get one.
    with runtime.database.control() as connection:
        due = jobs.pump_once(connection, steps.job_limits(runtime.rag))
    for one in due:
        dispatch.send_job(runtime.database, one)
    unheard = broker.without_message(runtime.addresses.broker, dispatch.LISTS)
    limits = replace(
        steps.limits(runtime.rag),
        resend=_resend(runtime, unheard, *dispatch.TASK_OF.values()),
        resend_fills=_resend(runtime, unheard, "larder.fill"),
    )
    with runtime.database.control() as connection:
        chosen = due_work.pump_once(
            connection,
            limits,
            embed=_embed_room(runtime, connection),
            resend_syncs=_resend(runtime, unheard, "larder.sync"),
        )
    # Sent at once: whatever goes wrong further down, they are noted as under way.
    for tenant, source, run in chosen.syncs if chosen else ():
        dispatch.send_sync(runtime.database, tenant, source, run)
    if _send(runtime, chosen.batches if chosen else ()) >= limits.at_once:
        dispatch.wake_pump()  # more may wait
    _open_due(runtime, sent)
    close_settled(runtime)
    stores.send_mirrors(runtime)
    with runtime.database.control() as connection:
        several = len(indexes(connection)) > 1
    if chosen and several:
        send_fills(runtime)


def send_embeds(runtime: Runtime) -> None:
    """Send what is to be embedded next; called whenever a step ends, so that a few messages are always there."""
    with runtime.database.control() as connection:
        room = _embed_room(runtime, connection)
        batches = due_work.choose_embeds(connection, steps.limits(runtime.rag), room)
    _send(runtime, batches)


def _embed_room(runtime: Runtime, connection: Connection) -> due_work.EmbedRoom:
    return due_work.EmbedRoom(
        documents=runtime.allowance.embed_room(connection),
        chunks=steps.weights(runtime.rag)[Stage.CHUNKED],
        waiting=broker.waiting(runtime.addresses.broker, "embed"),
    )


def _send(runtime: Runtime, batches: Sequence[due_work.Batch]) -> int:
    """Send the batches; returns the number of their documents."""
    for batch in batches:
        dispatch.send_batch(runtime.database, batch)
    return sum(len(batch.items) for batch in batches)


def _resend(runtime: Runtime, unheard: set[str], *tasks: str) -> float:
    """After how many seconds messages of these tasks count as lost: a broker that was wiped has none of any."""
    usual = runtime.rag.queue.resend_after
    return min(LOST_SECONDS, usual) if unheard.issuperset(tasks) else usual


def _open_due(runtime: Runtime, sent: float | None) -> None:
    """Open a run for every source whose time has come, that a webhook told of, or whose files have changed."""
    with runtime.database.control() as connection:
        due = sources.due(connection)
        hinted = sources.hinted(connection)
        watched = sources.watched(connection)
    due_rows = {row.id: ("schedule", row) for row in due}
    for trigger, rows in ((HOOK, hinted), ("watch", watched)):
        for row in rows:
            due_rows.setdefault(row.id, (trigger, row))
    for trigger, row in due_rows.values():
        try:
            _open(runtime, row, trigger, sent)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one source must not keep the others from their turn
            described = error if isinstance(error, LarderError) else as_indexing_error(error)
            with runtime.database.tenant(row.tenant_id) as connection:
                sources.failed(connection, row.id, str(described), row.next_sync_at)


def _open(runtime: Runtime, row: sources.SourceRow, trigger: str, sent: float | None) -> None:
    configured = source_of_row(runtime.settings, row)
    if configured is None or (trigger == "watch" and not _has_changed(runtime, configured, row)):
        return
    walk = row.next_walk_at is not None and row.next_walk_at <= datetime.now(UTC)
    start_run(runtime, row.tenant_id, row.id, trigger=trigger, walk=walk, since=sent)


def _has_changed(runtime: Runtime, configured: Configured, row: sources.SourceRow) -> bool:
    if row.last_sync_at is None:
        return False
    try:
        return open_source(runtime, configured.settings).stamp() != row.stamp
    except LarderError:
        return False  # the next scheduled sync tells what is wrong


def _log_closed(closed: Sequence[Json]) -> None:
    for one in closed:
        if one["documents"] or one["errors"]:
            logger.info("indexing_complete", extra=one)


def close_settled(runtime: Runtime) -> set[int]:
    """Close runs whose documents are settled, once their words are counted, and build what was put off meanwhile.

    Both take minutes for millions. Returns the runs that are closed.
    """
    with runtime.database.control() as connection:
        settled = runs.list_settled(connection)
        counted = [s for s in settled if not s.uncounted]
        closed = runs.close(connection, [s.id for s in counted]) if counted else []
        outgrown = upkeep.have_outgrown_counts(connection)
    _log_closed(closed)
    if outgrown or len(counted) < len(settled):
        dispatch.send("larder.upkeep.statistics")
    if any(s.changed for s in settled):
        dispatch.send("larder.upkeep.build")
    return {int(one["run"]) for one in closed}


def send_fills(runtime: Runtime) -> None:
    """Send messages for what search indexes lack."""
    limits, chunks = steps.limits(runtime.rag), steps.weights(runtime.rag)[Stage.CHUNKED]
    with runtime.database.control() as connection:
        batches = due_work.choose_fills(connection, limits, chunks=chunks)
    _send(runtime, batches)
