"""What the control queue does: open due runs, walk sources, pump messages."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from pipeline.documents import Source
from pipeline.errors import ConfigurationError, LarderError, RateLimited
from pipeline.ledger import admission, jobs, runs, sources
from pipeline.ledger import pump as ledger_pump
from workers.control import backfill, maintenance
from workers.queue import dispatch
from workers.runtime import Configured, Runtime


def sync(parts: Runtime, tenant: UUID, source_id: UUID, run_id: int) -> bool:
    """Go on with a run for one slice; False if it must be sent again."""
    try:
        with parts.database.tenant(tenant) as connection:
            run = runs.get(connection, run_id)
            row = sources.get(connection, source_id)
        if run is None or row is None:
            return True
        configured = parts.known(row)
        if configured is None:
            raise ConfigurationError(
                "the source is not in this worker's configuration", fix="start the workers with the same file"
            )
        source = parts.open_source(configured.settings)
        where = _admission(parts, configured, source, run)
        complete = parts.syncer.slice(source, where, lambda: parts.schedule_of(configured.settings))
    except LarderError as error:
        _put_back(parts, tenant, source_id, run_id, error)
        return True
    if complete:
        dispatch.send("larder.pump", expires=10)
    return complete


def _admission(parts: Runtime, one: Configured, source: Source, run: runs.RunRow) -> admission.Admission:
    return admission.Admission(
        tenant_id=one.tenant_id,
        project_id=one.project_id,
        source_id=one.id,
        run_id=run.id,
        pipeline_version=parts.pipeline_version(one.settings, source.extractor),
        force=run.force,
    )


def _put_back(parts: Runtime, tenant: UUID, source_id: UUID, run_id: int, error: LarderError) -> None:
    """A failed walk goes on later from its last page, or ends its run."""
    with parts.database.tenant(tenant) as connection:
        run = runs.get(connection, run_id)
        if run is None or run.finished_at is not None:
            return
        # A wait that the source asks for is no failure, however often it asks.
        asked = isinstance(error, RateLimited)
        decision = parts.decide(error, 1 if asked else run.attempts + 1)
        if not decision.dead:
            runs.postpone(connection, run_id, delay=decision.delay, error=str(error), tried=not asked)
            return
        runs.fail(connection, run_id, str(error))
        configured = parts.configured.get(source_id)
        due = parts.schedule_of(configured.settings).next_sync_at if configured else None
        sources.failed(connection, source_id, str(error), due)


def pump(parts: Runtime) -> None:
    """One stroke: what is due becomes messages. Harmless beside itself, late, doubled or lost."""
    _send_jobs(parts)  # first: somebody waits for these
    _open_due(parts)
    _close_settled(parts)
    with parts.database.control() as connection:
        found = ledger_pump.stroke(connection, parts.limits, embed=parts.allowance.room(connection))
    if found is None:
        return
    backfill.send_due(parts)
    for tenant, source, run in found.syncs:
        dispatch.send_sync(parts.database, tenant, source, run)
    for batch in found.batches:
        dispatch.send_items(parts.database, batch.tenant_id, batch.stage, batch.items)


def _send_jobs(parts: Runtime) -> None:
    """End enrichments that are over, and send the messages of those that wait without one."""
    with parts.database.control() as connection:
        due = jobs.stroke(connection, parts.job_limits)
    for one in due:
        dispatch.send_job(parts.database, one)


def _open_due(parts: Runtime) -> None:
    """Open a run for every source whose time has come or whose files have changed."""
    with parts.database.control() as connection:
        due = sources.due(connection)
        watched = sources.watched(connection)
    wanted = {row.id: ("schedule", row) for row in due}
    for row in watched:
        if row.id not in wanted and _has_changed(parts, row):
            wanted[row.id] = ("watch", row)
    for trigger, row in wanted.values():
        walk = row.next_walk_at is not None and row.next_walk_at <= datetime.now(UTC)
        if parts.known(row):
            start_run(parts, row.tenant_id, row.id, trigger=trigger, walk=walk)


def _has_changed(parts: Runtime, row: sources.SourceRow) -> bool:
    configured = parts.known(row)
    if configured is None or row.last_sync_at is None:
        return False
    try:
        return parts.open_source(configured.settings).stamp() != row.stamp
    except LarderError:
        return False  # the next scheduled sync tells what is wrong


def start_run(
    parts: Runtime, tenant: UUID, source_id: UUID, *, trigger: str, force: bool = False, walk: bool = False
) -> int | None:
    """Open a run and send its first message; None if the source has an open run already."""
    with parts.database.tenant(tenant) as connection:
        run_id = runs.open_run(connection, tenant, source_id, trigger=trigger, force=force, walk=walk)
    if run_id is not None:
        dispatch.send_sync(parts.database, tenant, source_id, run_id)
    return run_id


def _close_settled(parts: Runtime) -> None:
    """Close runs whose documents are settled, after search knows their words."""
    with parts.database.control() as connection:
        settled = runs.settled(connection)
    if not settled:
        return
    for tenant in {s.tenant_id for s in settled if s.changed}:
        maintenance.refresh_tenant(parts, tenant)
    with parts.database.control() as connection:
        runs.close(connection, [s.id for s in settled])
    if any(s.changed for s in settled):
        dispatch.send("larder.upkeep.build", expires=300)
