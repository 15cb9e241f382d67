"""Making the ledger know the configured tenants and sources."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from uuid import UUID

from pipeline.ledger import holds, sources, waits
from workers.queue import schedule
from workers.runtime import Configured, Runtime


def register(parts: Runtime) -> None:
    """Make the ledger know the configured tenants and sources; repeatable, before every sync or start."""
    by_tenant: dict[UUID, list[Configured]] = {parts.tenant: []}
    for one in parts.configured.values():
        by_tenant.setdefault(one.tenant_id, []).append(one)
    now = datetime.now(UTC)
    with parts.database.control() as connection:
        # Whoever starts has perhaps mended what was refused, or raised what was used up.
        holds.release_others(connection, parts.allowance.fingerprint)
        waits.wake(connection)
    for tenant, ones in by_tenant.items():
        with parts.database.tenant(tenant) as connection:
            if tenant == parts.tenant:
                sources.ensure_tenant(
                    connection, tenant, parts.settings.tenant, parts.project, parts.settings.project
                )
            for one in ones:
                sources.ensure_tenant(connection, tenant, one.tenant, one.project_id, one.project)
            sources.register(connection, [registration(parts, one, now) for one in ones])
            sources.retire_others(connection, [one.id for one in ones])


def registration(
    parts: Runtime, one: Configured, now: datetime, *, origin: str = "file"
) -> sources.Registration:
    """What the ledger must know of a source; `now` is when one with autoIndex is due first."""
    source = one.settings
    zone = parts.timezone_of(source)
    ident = source.model_dump_json(exclude={"index_schedule", "update_schedule", "watch", "auto_index"})
    return sources.Registration(
        id=one.id,
        tenant_id=one.tenant_id,
        project_id=one.project_id,
        name=source.name,
        kind=source.type,
        config_hash=hashlib.sha256(ident.encode()).hexdigest()[:16],
        schedule=source.schedule or "",
        timezone=zone,
        watch=bool(getattr(source, "watch", False)),
        origin=origin,
        config=source.model_dump(mode="json", by_alias=True, exclude_unset=True),
        next_sync_at=now if source.auto_index else schedule.next_time(source.schedule, zone, now),
    )
