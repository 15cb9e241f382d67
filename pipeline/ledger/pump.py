"""Choosing what to send a message about: due documents, lost messages, expired leases.

Runs on the control role: it sees counts, names and times of every tenant, and no text.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pipeline.ledger import Item, Limits, Stage, runs, work


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of one tenant that wait for the same stage; one message."""

    tenant_id: UUID
    stage: Stage
    items: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True)
class Pumped:
    """What one stroke of the pump found."""

    batches: tuple[Batch, ...] = ()
    syncs: tuple[tuple[UUID, UUID, int], ...] = ()
    """(tenant, source, run) whose walk should go on."""
    crashed: int = 0
    more: bool = False
    """True if due documents may be left for the next stroke."""


def stroke(connection: Connection, limits: Limits, *, embed: int | None = None) -> Pumped | None:
    """One stroke; None if another pump is at it right now.

    At most `embed` documents are sent for embedding; None: as many as there is room for.
    """
    if not connection.execute(text("select pg_try_advisory_xact_lock(hashtext('larder.pump'))")).scalar():
        return None
    crashed = _expire(connection, limits)
    syncs = [
        (r["tenant_id"], r["source_id"], r["id"]) for r in runs.sync_due(connection, resend=limits.resend)
    ]
    batches, more = _choose(connection, limits, embed)
    return Pumped(batches=tuple(batches), syncs=tuple(syncs), crashed=crashed, more=more)


def _expire(connection: Connection, limits: Limits) -> int:
    """Leases that ran out: back to the queue, or dead after too many crashes."""
    rows = connection.execute(
        text("""
            update document set lease_token = null, lease_until = null, enqueued_at = null, due_at = now(),
                   last_error = 'the worker died or hung while working on it',
                   state = case when crash_count >= :crashes then 'dead' else state end
            where id in (select id from document where state = 'pending' and lease_until < now()
                         order by id for update skip locked)
            returning id, state"""),
        {"crashes": limits.crashes},
    ).all()
    dead = [row.id for row in rows if row.state == "dead"]
    if dead:
        reason = f"its worker died {limits.crashes} times while working on it"
        work.bury(connection, dead, code="E003", reason=reason)
    return len(rows)


_DUE = text("""
    update document d set enqueued_at = now()
    from (select id from document
          where state = 'pending' and stage = any(:stages) and due_at <= now()
            and (lease_until is null or lease_until < now())
            and (enqueued_at is null or enqueued_at < now() - make_interval(secs => :resend))
          order by due_at, id limit :room for update skip locked) w
    where d.id = w.id
    returning d.id, d.tenant_id, d.stage, d.desired_version, d.crash_count, d.source_id""")


def _choose(connection: Connection, limits: Limits, embed: int | None) -> tuple[list[Batch], bool]:
    """Due documents up to the room that is left, in batches; those that crashed before travel alone."""
    flying = connection.execute(
        text("""
            select count(*) from document where state = 'pending'
            and enqueued_at >= now() - make_interval(secs => :resend)"""),
        {"resend": limits.resend},
    ).scalar_one()
    room = limits.in_flight - int(flying)
    if room <= 0:
        return [], True
    groups: dict[tuple[UUID, str], list[Item]] = defaultdict(list)
    batches: list[Batch] = []
    rows = _due(connection, limits, room, embed)
    for row in rows:
        item = Item(row.id, row.desired_version)
        if row.crash_count > 0:
            batches.append(Batch(tenant_id=row.tenant_id, stage=Stage(row.stage), items=(item,)))
        else:
            groups[row.tenant_id, row.stage].append(item)
    for (tenant, stage), items in groups.items():
        for start in range(0, len(items), limits.batch):
            part = tuple(items[start : start + limits.batch])
            batches.append(Batch(tenant_id=tenant, stage=Stage(stage), items=part))
    return batches, len(rows) == room


def _due(connection: Connection, limits: Limits, room: int, embed: int | None) -> list[Row[Any]]:
    """Stamp and return due documents: of all stages together, or few of those that wait to be embedded."""
    stages = [stage for stage in Stage if embed is None or stage is not Stage.CHUNKED]
    values = {"resend": limits.resend, "room": room, "stages": stages}
    rows = list(connection.execute(_DUE, values))
    few = min(embed or 0, room - len(rows))
    if few > 0:
        rows += connection.execute(_DUE, {**values, "room": few, "stages": [Stage.CHUNKED]})
    return rows


def unsent(connection: Connection, items: list[Item]) -> None:
    """Messages that could not be published: the next stroke sends them again."""
    connection.execute(
        text("update document set enqueued_at = null where id = any(:ids) and lease_token is null"),
        {"ids": [i.document_id for i in items]},
    )
