"""Sources of the configuration and of the ledger: their ids, their connectors, when they are due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID
from zoneinfo import ZoneInfo

from croniter import croniter
from pydantic import ValidationError

import connectors
from pipeline.database.tenancy import project_id, tenant_id
from pipeline.documents import Source
from pipeline.errors import ConfigurationError
from pipeline.ingest.sync import Schedule
from pipeline.ledger import source_id, sources
from workers.settings import SOURCE_TYPES, Settings, SourceSettings

if TYPE_CHECKING:
    from workers.runtime import Runtime


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
        found = f"this release does not understand {keys} of source {row.name}"
        fix = "let all workers run the release that registered it, or register it again with this one"
        raise ConfigurationError(found, fix=fix) from None
    return Configured(
        settings=section,
        id=row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        tenant=settings.tenant,
        project=settings.project,
    )


def open_source(parts: Runtime, source: SourceSettings) -> Source:
    """The connector of a configured source; nothing is read yet.

    Raises:
        ConfigurationError: what it is told is wrong.
    """
    told = source.within(parts.settings.context_of(source, lambda: parts.request_limiter))
    return connectors.open_source(told)


def schedule_of(settings: Settings, source: SourceSettings) -> Schedule:
    """When a source that was just synced is due again."""
    now = datetime.now(UTC)
    return Schedule(
        next_sync_at=next_time(source.schedule, timezone_of(settings, source), now),
        next_walk_at=now + timedelta(hours=settings.rag.queue.reconcile_hours),
    )


def timezone_of(settings: Settings, source: SourceSettings) -> str:
    """The zone of a source's schedule."""
    return source.timezone or settings.rag.timezone


def next_time(schedule: str | None, timezone: str, after: datetime) -> datetime | None:
    """The first time after `after` that the cron text names; None without a schedule.

    The text was checked when the configuration was loaded.
    """
    if not schedule:
        return None
    local = after.astimezone(ZoneInfo(timezone))
    found: datetime = croniter(schedule, local).get_next(datetime)
    return found.astimezone(UTC)
