"""Configured sources: registration, schedule, and the lease on their sync."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pipeline.documents import Cursor, Json
from pipeline.errors import LeaseLost
from pipeline.ledger import storable
from pipeline.ledger.leases import Leased

# With another configuration, all is read again from the start. A sync under way loses its lease, or its next page would
# store the cursor of the old configuration; its run begins anew as well.
_BEGIN_ANEW = text("""
    with other as (
        update source set cursor = null, stamp = null, sync_token = null, sync_lease_until = null
        where id = :id and config_hash <> :config_hash returning id),
    run as (
        update sync_run set cursor = null, stamp = null, walk_after = null
        where source_id in (select id from other) and state = 'discovering' returning id)
    delete from walk_piece where run_id in (select id from run)""")
_REGISTER = text("""
    insert into source (id, tenant_id, project_id, name, kind, schedule, timezone, watch, origin, config, config_hash,
                        next_sync_at)
    values (:id, :tenant_id, :project_id, :name, :kind, :schedule, :timezone, :watch, :origin,
            cast(:config as jsonb), :config_hash, :next_sync_at)
    on conflict (id) do update set
        project_id = excluded.project_id, kind = excluded.kind, schedule = excluded.schedule,
        timezone = excluded.timezone, watch = excluded.watch, origin = excluded.origin, config = excluded.config,
        config_hash = excluded.config_hash,
        removed_at = null,
        retry_at = null,  -- the cause of the failure may be mended; a new key changes no hash
        next_sync_at = case
            when source.failures > 0 and source.next_sync_at is not null then least(source.next_sync_at, now())
            when source.schedule = excluded.schedule and source.timezone = excluded.timezone
                 and source.removed_at is null then source.next_sync_at
            else excluded.next_sync_at end
""")


UPLOADED = "upload"
"""Origin and kind of a source that uploads to a project belong to."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A source as it is configured, with what the ledger stores of it."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    name: str
    kind: str
    config_hash: str
    schedule: str = ""
    timezone: str = "UTC"
    watch: bool = False
    origin: str = "file"
    config: Json = field(default_factory=dict)
    """Options of the connector, without secrets: enough for a worker to open the source."""
    next_sync_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SourceRow(Registration):
    """A source as the ledger has it."""

    pipeline_version: str
    cursor: Cursor | None
    stamp: str | None
    next_walk_at: datetime | None
    last_sync_at: datetime | None
    last_error: str | None
    failures: int
    paused_at: datetime | None
    removed_at: datetime | None
    held: int


def ensure_tenant(
    connection: Connection, tenant_id: UUID, tenant: str, project_id: UUID, project: str
) -> None:
    """Insert the rows of a tenant and a project if they are missing."""
    statement = text("insert into tenant (id, name) values (:i, :n) on conflict do nothing")
    connection.execute(statement, {"i": tenant_id, "n": tenant})
    statement = text("insert into project (id, tenant_id, name) values (:i, :t, :n) on conflict do nothing")
    connection.execute(statement, {"i": project_id, "t": tenant_id, "n": project})


# Locked first: waits for a page that is being stored, so that the next statement sees its documents.
_MOVES = text("select project_id <> :project from source where id = :id for no key update")
_MOVE = text("""
    update document set project_id = :project
    where id in (select id from document where source_id = :id order by id for no key update)""")


# Locks all sources, in the order in which `clear` does.
_ALL = text("select from source order by id for no key update")
_RETIRE = text("""
    update source set removed_at = now()
    where removed_at is null and origin = 'file' and not id = any(cast(:ids as uuid[]))""")


def register(connection: Connection, sources: Sequence[Registration], *, every: bool = False) -> None:
    """Store these sources of one tenant; one that changes its project takes its documents along.

    If these are `every` source of the configuration, others from it are marked as removed: their documents stay
    searchable.
    """
    if every:
        connection.execute(_ALL)
        connection.execute(_RETIRE, {"ids": [source.id for source in sources]})
    for source in sorted(sources, key=lambda one: one.id):  # in the order in which `clear` locks them
        place = {"id": source.id, "project": source.project_id}
        moves = connection.execute(_MOVES, place).scalar()
        connection.execute(_BEGIN_ANEW, {"id": source.id, "config_hash": source.config_hash})
        connection.execute(_REGISTER, {**vars(source), "config": json.dumps(source.config)})
        if moves:
            connection.execute(_MOVE, place)


def projects(connection: Connection) -> dict[UUID, str]:
    """Projects of the tenant that have documents: id -> name, ordered by name."""
    statement = text("""
        select p.id, p.name from project p
        where exists (select from source s join document d on d.source_id = s.id
                      where s.project_id = p.id and not d.deleted)
        order by p.name""")
    return {row.id: row.name for row in connection.execute(statement)}


def project_name(connection: Connection, project_id: UUID) -> str:
    """The name of an existing project."""
    return str(
        connection.execute(text("select name from project where id = :id"), {"id": project_id}).scalar_one()
    )


def every_project(connection: Connection) -> dict[UUID, str]:
    """All projects of the tenant: id -> name, ordered by name."""
    rows = connection.execute(text("select id, name from project order by name, id"))
    return {row.id: row.name for row in rows}


def uploaded_to(connection: Connection, document_id: UUID) -> UUID | None:
    """The project of a document that was uploaded; None if there is no such document."""
    statement = text("""
        select d.project_id from document d join source s on s.id = d.source_id
        where d.id = :id and s.origin = :origin and not d.deleted""")
    project_id: UUID | None = connection.execute(statement, {"id": document_id, "origin": UPLOADED}).scalar()
    return project_id


def has_project(connection: Connection, project_id: UUID) -> bool:
    """True if the tenant has this project."""
    statement = text("select exists (select from project where id = :id)")
    return bool(connection.execute(statement, {"id": project_id}).scalar())


def tenant_names(connection: Connection) -> dict[UUID, str]:
    """The name of every tenant there is, by its id."""
    return {row.id: row.name for row in connection.execute(text("select id, name from tenant order by id"))}


def _rows(connection: Connection, which: str, values: Json | None = None) -> list[SourceRow]:
    columns = ", ".join(SourceRow.__dataclass_fields__)
    rows = connection.execute(text(f"select {columns} from source {which}"), values)
    return [SourceRow(**row) for row in rows.mappings()]


def listed(connection: Connection) -> list[SourceRow]:
    """All sources this connection may see, by name."""
    return _rows(connection, "order by name, id")


def get(connection: Connection, source_id: UUID) -> SourceRow | None:
    """One source, or None."""
    return next(iter(_rows(connection, "where id = :id", {"id": source_id})), None)


_READY = """
    paused_at is null and removed_at is null and (retry_at is null or retry_at <= now())
    and not exists (select from sync_run r where r.source_id = source.id and r.state = 'discovering')"""
"""The condition for a source that may be synced: not paused, removed, waiting after a failure, or being read."""


def due(connection: Connection) -> list[SourceRow]:
    """Sources that are due, the longest due first."""
    come = "(next_sync_at <= now() or next_walk_at <= now())"
    return _rows(connection, f"where {come} and {_READY} order by least(next_sync_at, next_walk_at)")


def hinted(connection: Connection) -> list[SourceRow]:
    """Sources with items that a webhook named and that are due to be read."""
    named = "exists (select from source_hint h where h.source_id = source.id and h.due_at <= now())"
    return _rows(connection, f"where {named} and {_READY}")


def watched(connection: Connection) -> list[SourceRow]:
    """Sources whose changes are checked on every tick."""
    return _rows(connection, f"where watch and {_READY}")


def is_ready(connection: Connection, source_id: UUID) -> bool:
    """True if the source may be synced now."""
    return bool(_rows(connection, f"where id = :id and {_READY}", {"id": source_id}))


_LEASED = Leased(
    table="source",
    rows="id = :id",
    token="sync_token",  # noqa: S106 - the name of a column
    until="sync_lease_until",
    crashes=False,
)
_CLAIM = _LEASED.claim(wait=True)
_RENEW = _LEASED.renew(also="cursor = coalesce(cast(:cursor as jsonb), cursor)")
_RELEASE = _LEASED.give_back("")


def claim(connection: Connection, source_id: UUID, *, lease: float) -> UUID | None:
    """Claim the sync of this source; returns the token of the lease, or None if another worker has it."""
    token = uuid4()
    values = {"id": source_id, "token": token, "lease": lease}
    return None if connection.execute(_CLAIM, values).first() is None else token


def renew(
    connection: Connection, source_id: UUID, token: UUID, *, lease: float, cursor: Cursor | None = None
) -> None:
    """Prove the lease on the sync, extend it and store the cursor, in the transaction that writes.

    Raises:
        LeaseLost: another worker took the sync over; the caller's transaction must end without a commit.
    """
    moved = None if cursor is None else json.dumps(storable(cursor))
    values = {"id": source_id, "token": token, "lease": lease, "cursor": moved}
    if connection.execute(_RENEW, values).first() is None:
        raise LeaseLost(f"the sync of source {source_id} was taken over")


def is_held(connection: Connection, source_id: UUID) -> bool:
    """True while a worker syncs the source."""
    statement = text("select coalesce(sync_lease_until > now(), false) from source where id = :id")
    return bool(connection.execute(statement, {"id": source_id}).scalar())


def release(connection: Connection, source_id: UUID, token: UUID) -> None:
    """End the lease on the sync; nothing happens if it is lost."""
    connection.execute(_RELEASE, {"id": source_id, "token": token})


_NEXT = """least(:next, case when next_sync_at > (select max(started_at) from sync_run where source_id = :id)
                                        then next_sync_at end)"""
"""The next time by the schedule, or now if the source was made due while it was read: configured anew, resumed."""


def completed(
    connection: Connection,
    source_id: UUID,
    *,
    pipeline_version: str,
    stamp: str | None,
    next_sync_at: datetime | None,
    next_walk_at: datetime | None,
    walked: bool = True,
    left_out: Mapping[str, int] | None = None,
) -> None:
    """Note a complete sync; `walked` if it ended with an id walk, whose excluded items are `left_out`, by reason."""
    statement = text(f"""
        update source set last_sync_at = now(), last_error = null, failures = 0, retry_at = null, stamp = :stamp,
               pipeline_version = :pipeline, next_sync_at = {_NEXT},
               left_out = case when :walked then cast(:left_out as jsonb) else left_out end,
               next_walk_at = case when :walked or next_walk_at is null then :walk else next_walk_at end
        where id = :id""")
    named = {"id": source_id, "pipeline": pipeline_version, "stamp": stamp, "walked": walked}
    connection.execute(
        statement,
        {**named, "next": next_sync_at, "walk": next_walk_at, "left_out": json.dumps(left_out or {})},
    )


def plan(connection: Connection, source_id: UUID, due: datetime) -> None:
    """Make a source due at this time, if it is not due before; on the control role."""
    statement = text("update source set next_sync_at = least(next_sync_at, :due) where id = :id")
    connection.execute(statement, {"id": source_id, "due": due})


def failed(connection: Connection, source_id: UUID, error: str, next_sync_at: datetime | None) -> None:
    """Note a sync that ended with an error: the source rests, for a minute first and an hour at most."""
    statement = text(f"""
        update source set last_error = :error, failures = failures + 1, next_sync_at = {_NEXT},
               retry_at = now() + make_interval(secs => least(3600, 60 * power(2, least(failures, 6))))
        where id = :id""")
    connection.execute(statement, {"id": source_id, "error": error, "next": next_sync_at})


def pause(connection: Connection, source_id: UUID, *, paused: bool) -> None:
    """Pause or resume the schedule of a source; queued work goes on. A failing source is due at once when resumed."""
    statement = text("""
        update source set paused_at = case when :paused then coalesce(paused_at, now()) end,
               retry_at = case when :paused then retry_at end,
               next_sync_at = case when :paused or failures = 0 then next_sync_at else now() end
        where id = :id""")
    connection.execute(statement, {"id": source_id, "paused": paused})


def release_deletions(connection: Connection, source_id: UUID, *, hours: float = 24.0) -> int:
    """Approve the pending deletions: the next walk may remove as many, within `hours`. Returns how many."""
    statement = text("""
        update source set held = 0, released = before.held, released_until = now() + make_interval(secs => :seconds)
        from (select held from source where id = :id for no key update) before
        where id = :id returning before.held""")
    return int(connection.execute(statement, {"id": source_id, "seconds": hours * 3600}).scalar_one())


def forget(connection: Connection, source_id: UUID) -> None:
    """Remove a source that has no documents any more, with its runs and dead letters."""
    for statement in (
        "delete from dead_letter where source_id = :id",
        "delete from source where id = :id",
    ):
        connection.execute(text(statement), {"id": source_id})
