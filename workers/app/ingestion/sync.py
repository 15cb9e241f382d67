"""The configured sources: making the ledger know them, opening their runs, and walking them slice by slice."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from croniter import croniter
from pydantic import ValidationError
from sqlalchemy import Connection

import connectors
from connectors.documents.options import HookOptions
from connectors.documents.values import describe_error
from pipeline.documents import Source
from pipeline.errors import ConfigurationError, IndexingError, LarderError, RateLimited, SourceUnavailable
from pipeline.ingest import hints
from pipeline.ingest.sync import Schedule, not_configured
from pipeline.ledger import admission, embedding_use, project_id, runs, source_id, sources, tenant_id
from workers.app.ingestion import steps
from workers.monitoring import tracing
from workers.queue import dispatch
from workers.runtime import Runtime
from workers.settings import SOURCE_TYPES, Settings, SourceSettings


@dataclass(frozen=True, kw_only=True)
class Configured:
    """A source of the configuration with the ids the ledger knows it by."""

    settings: SourceSettings
    id: UUID
    tenant_id: UUID
    project_id: UUID
    tenant: str
    project: str


def configured_source(settings: Settings, source: SourceSettings) -> Configured:
    """A section with its ids; tenant and project are the installation's own where it names none."""
    tenant, project = source.tenant or settings.tenant, source.project or settings.project
    owner = tenant_id(tenant)
    return Configured(
        settings=source,
        id=source_id(owner, source.name),
        tenant_id=owner,
        project_id=project_id(owner, project),
        tenant=tenant,
        project=project,
    )


def configured_sources(settings: Settings) -> dict[UUID, Configured]:
    """The enabled sources of the configuration, by their id in the ledger."""
    enabled = (configured_source(settings, source) for source in settings.rag.sources if source.enabled)
    return {one.id: one for one in enabled}


def source_of_row(settings: Settings, row: sources.SourceRow) -> Configured | None:
    """The source of a ledger row: from the configuration, or as a command registered it.

    Raises:
        ConfigurationError: it was registered by a release that knows more than this one.
    """
    if row.origin == "file" or not row.config:
        return configured_sources(settings).get(row.id)
    try:
        section = SOURCE_TYPES[row.kind].model_validate(row.config)
    except (KeyError, ValidationError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else [{"loc": ("type",)}]
        keys = ", ".join(sorted({".".join(map(str, fault["loc"])) for fault in faults}))
        message = f"this release does not understand {keys} of source {row.name}"
        fix = "let all workers run the release that registered it, or register it again with this one"
        raise ConfigurationError(message, fix=fix) from None
    return Configured(
        settings=section,
        id=row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        tenant=settings.tenant,
        project=settings.project,
    )


def open_source(runtime: Runtime, source: SourceSettings) -> Source:
    """The connector of a configured source; nothing is read yet.

    Raises:
        ConfigurationError: what it is told is wrong.
    """
    options = source.with_context(runtime.settings.context_of(source, lambda: runtime.request_limiter))
    return connectors.open_source(options)


def schedule_of(settings: Settings, source: SourceSettings) -> Schedule:
    """When a source that was just synced is due again."""
    now = datetime.now(UTC)
    poll: float | None = getattr(source, "poll", None)
    times = [
        next_time(source.schedule, timezone_of(settings, source), now),
        now + timedelta(seconds=poll) if poll else None,
    ]
    return Schedule(
        next_sync_at=min((one for one in times if one), default=None),
        next_walk_at=now + timedelta(hours=settings.rag.queue.reconcile_hours),
    )


def timezone_of(settings: Settings, source: SourceSettings) -> str:
    """The zone of a source's schedule."""
    return source.timezone or settings.rag.timezone


def next_time(schedule: str | None, timezone: str, after: datetime) -> datetime | None:
    """The first time after `after` that the cron text names; None without a schedule.

    The text was checked when the configuration was loaded. In a night in which the clock is put back, an hour that
    comes twice counts once, but for what runs in every hour. A time that is left out where the clock is put forward
    counts as if it had not been: 02:30 is 03:30.
    """
    if not schedule:
        return None
    zone = ZoneInfo(timezone)
    offsets = [(after + timedelta(days=n)).astimezone(zone).utcoffset() or timedelta() for n in (-1, 0, 1)]
    shift = max(offsets) - min(offsets)
    clock = after.astimezone(zone).replace(tzinfo=None)
    # As a clock on the wall shows it, which may have been shifted since, and may be soon.
    named = croniter(schedule, clock - shift)
    candidates = islice(named.all_next(datetime), 1 + 2 * shift // timedelta(minutes=1))
    folds = (0, 1) if named.expanded[1] == ["*"] else (0,)
    times: list[datetime] = [
        wall_time.replace(tzinfo=zone, fold=fold) for wall_time in candidates for fold in folds
    ]
    # A time that is left out has no second one.
    moments = [t.astimezone(UTC) for t in times if not t.fold or t == t.astimezone(UTC).astimezone(zone)]
    return min(moment for moment in moments if moment > after)


logger = logging.getLogger(__name__)


def sync(runtime: Runtime, tenant: UUID, source_id: UUID, run_id: int) -> bool:
    """Go on with a run for one slice; False if it must be sent again."""
    try:
        with runtime.database.tenant(tenant) as connection:
            run = runs.get(connection, run_id)
            row = sources.get(connection, source_id)
        if run is None or row is None:
            return True
        configured = source_of_row(runtime.settings, row)
        if configured is None:
            raise _unknown(runtime, row)  # noqa: TRY301 (put back like what is raised further down)
        source = open_source(runtime, configured.settings)
        target = admission_of(runtime, configured, source, run=run.id, force=run.force)
        about: dict[str, Any] = {"tenant": str(tenant), "source": row.name, "run": run_id}
        with tracing.span("larder.sync", within=[run.traceparent], **about):
            complete = steps.syncer(runtime).slice(
                source,
                target,
                lambda: schedule_of(runtime.settings, configured.settings),
                config_hash=row.config_hash if row.origin == "command" else config_hash(runtime, configured),
                hinted=partial(open_source, runtime, configured.settings) if hook_of(configured) else None,
            )
    except LarderError as error:
        _put_back(runtime, tenant, source_id, run_id, error)
        return True
    except Exception as error:  # noqa: BLE001 - else the run would stay open for ever, and nobody be told
        _put_back(runtime, tenant, source_id, run_id, as_indexing_error(error))
        return True
    if complete and hook_of(configured):
        start_hinted(runtime, tenant, source_id)  # what was named while the run ended
    return complete


def hook_of(configured: Configured) -> HookOptions | None:
    """Options of the source's webhooks, if it takes any."""
    hook: HookOptions | None = getattr(configured.settings, "hook", None)
    return hook


def start_hinted(runtime: Runtime, tenant: UUID, source_id: UUID) -> None:
    """Open a run for what webhooks named, if something is due and no run reads the source already."""
    with runtime.database.tenant(tenant) as connection:
        is_due = hints.are_due(connection, source_id) and sources.is_ready(connection, source_id)
    if is_due:
        start_run(runtime, tenant, source_id, trigger=hints.HOOK)


def _unknown(runtime: Runtime, row: sources.SourceRow) -> SourceUnavailable:
    with runtime.database.tenant(row.tenant_id) as connection:
        names = sources.tenant_names(connection)
    return not_configured(row.name, names.get(row.tenant_id, ""), runtime.settings.tenant)


def as_indexing_error(error: Exception) -> IndexingError:
    """A fault of ours in the work on one source: named without its text, tried again a few times, then final."""
    message = f"a sync failed unexpectedly: {describe_error(error)}"
    logger.error("%s", message)
    return SourceUnavailable(message, fix="report it; the next sync tries again")


def admission_of(
    runtime: Runtime, one: Configured, source: Source, *, run: int, force: bool
) -> admission.Admission:
    """Tenant, source and run of a source's pages, and how they will be indexed."""
    return admission.Admission(
        tenant_id=one.tenant_id,
        source_id=one.id,
        run_id=run,
        pipeline_version=steps.pipeline_version(runtime, source.extractor, one.settings.name),
        force=force,
        keyring=runtime.keyring,
    )


def _put_back(runtime: Runtime, tenant: UUID, source_id: UUID, run_id: int, error: LarderError) -> None:
    """A failed walk goes on later from its last page, or ends its run, unless another worker is at it by now."""
    with runtime.database.tenant(tenant) as connection:
        run = runs.get(connection, run_id)
        if run is None or run.state != "discovering" or sources.is_held(connection, source_id):
            return
        # A wait that the source asks for is no failure, however often it asks.
        is_rate_limit = isinstance(error, RateLimited)
        decision = steps.decide(runtime.rag.queue, error, 1 if is_rate_limit else run.attempts + 1)
        if not decision.dead:
            runs.postpone(connection, run_id, delay=decision.delay, error=str(error), tried=not is_rate_limit)
            return
        runs.fail(connection, run_id, str(error))
        runs.delete_id_lists(connection, run_id)
        configured = configured_sources(runtime.settings).get(source_id)
        due = schedule_of(runtime.settings, configured.settings).next_sync_at if configured else None
        sources.failed(connection, source_id, str(error), due)


def start_run(
    runtime: Runtime,
    tenant: UUID,
    source_id: UUID,
    *,
    trigger: str,
    force: bool = False,
    walk: bool = False,
    note: Callable[[Connection], None] | None = None,
    since: float | None = None,
) -> int | None:
    """Open a run and send its first message; None if the source has an open run already.

    `note` writes into the audit who asked for it; `since` is when the tick was sent that does, in seconds.
    """
    about: dict[str, Any] = {"tenant": str(tenant), "trigger": trigger}
    with runtime.database.tenant(tenant) as connection:
        run_id = runs.open_run(connection, tenant, source_id, trigger=trigger, force=force, walk=walk)
        if run_id is None:
            return None
        with tracing.span("open run", since=since, run=run_id, **about):
            runs.keep_trace(connection, run_id, tracing.traceparent())
        if note:
            note(connection)
    dispatch.send_sync(runtime.database, tenant, source_id, run_id, first=True)
    return run_id


def register(runtime: Runtime, *, besides: Collection[UUID] = ()) -> None:
    """Make the ledger know the configured tenants and sources; repeatable, before every sync or start.

    `besides` are sources that are left as they are, since whoever works has another configuration.
    """
    settings = runtime.settings
    own_tenant = settings.tenant_id
    by_tenant: dict[UUID, list[Configured]] = {} if besides else {own_tenant: []}
    for one in configured_sources(runtime.settings).values():
        if one.id not in besides:
            by_tenant.setdefault(one.tenant_id, []).append(one)
    now = datetime.now(UTC)
    with runtime.database.control() as connection:
        # Whoever starts has perhaps mended what was refused, or raised what was used up.
        embedding_use.release_other_holds(connection, runtime.allowance.fingerprint)
        embedding_use.resume_waiting(connection)
    for tenant, ones in by_tenant.items():
        with runtime.database.tenant(tenant) as connection:
            if tenant == own_tenant:
                sources.ensure_tenant(
                    connection, own_tenant, settings.tenant, settings.project_id, settings.project
                )
            for one in ones:
                sources.ensure_tenant(connection, tenant, one.tenant, one.project_id, one.project)
            registrations = [registration(runtime, one, now) for one in ones]
            sources.register(connection, registrations, every=not besides)


def config_hash(runtime: Runtime, one: Configured) -> str:
    """Differs if another configuration of a source would read other documents, or read them otherwise."""
    ident = one.settings.model_dump_json(
        exclude={"index_schedule", "update_schedule", "watch", "auto_index", "hook", "poll"}
    )
    ident += "".join(rule.model_dump_json() for rule in runtime.rag.security.levels)
    return hashlib.sha256(ident.encode()).hexdigest()[:16]


def registration(
    runtime: Runtime, one: Configured, now: datetime, *, origin: str = "file"
) -> sources.Registration:
    """Facts about a source for the ledger; `now` is when one with autoIndex is due first."""
    source = one.settings
    zone = timezone_of(runtime.settings, source)
    return sources.Registration(
        id=one.id,
        tenant_id=one.tenant_id,
        project_id=one.project_id,
        name=source.name,
        kind=source.type,
        config_hash=config_hash(runtime, one),
        schedule=source.schedule or "",
        timezone=zone,
        watch=bool(getattr(source, "watch", False)),
        origin=origin,
        config=source.model_dump(mode="json", by_alias=True, exclude_unset=True),
        next_sync_at=now if source.auto_index else schedule_of(runtime.settings, source).next_sync_at,
    )
