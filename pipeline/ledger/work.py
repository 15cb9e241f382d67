"""Documents that wait: chosen by the pump, claimed for a stage, finished, put back or given up on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, RowMapping, text

from pipeline.documents import Kind, SourceType
from pipeline.errors import LarderError
from pipeline.ledger import Item, Limits, Stage, runs
from pipeline.search.chunks import StoredDocument


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Documents that are ours for one stage, under one token."""

    tenant_id: UUID
    token: UUID
    stage: Stage
    documents: Mapping[UUID, StoredDocument]
    pipelines: Mapping[UUID, str] = field(default_factory=dict)
    attempts: Mapping[UUID, int] = field(default_factory=dict)
    waits: Mapping[UUID, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.documents)


MOST_CRASHES = 3
"""Of one document, unless the configuration says otherwise."""

_CLAIM = text("""
    with wanted as (
        select * from unnest(cast(:ids as uuid[]), cast(:versions as integer[])) as w(id, version)
    ), free as (
        select d.id from document d join wanted w on w.id = d.id and w.version = d.desired_version
        where d.stage = :stage and d.state = 'pending' and (d.lease_until is null or d.lease_until < now())
          and d.due_at <= now()  -- a doubled message must not cut a wait short
          and d.crash_count < :crashes  -- nor may a late one go round the pump, which buries it
        order by d.id for update of d skip locked
    )
    -- The crash is counted before the work: a killed process leaves this behind.
    update document d set lease_token = :token, lease_until = now() + make_interval(secs => :lease),
           crash_count = crash_count + 1
    from free, source s where d.id = free.id and s.id = d.source_id
    returning d.id, d.desired_version as version, d.title, d.source_type, d.kind, s.name as source, d.url, d.tags,
              d.metadata, d.project_id, d.created_at, d.updated_at, d.pipeline_version, d.attempts, d.waits""")


def claim(
    connection: Connection,
    tenant_id: UUID,
    stage: Stage,
    items: Sequence[Item],
    *,
    lease: float,
    crashes: int = MOST_CRASHES,
) -> Claim:
    """Take those of `items` that still wait for this stage in this version; the others are somebody else's or old.

    What has crashed `crashes` times is left to the pump.
    """
    token = uuid4()
    rows = connection.execute(
        _CLAIM,
        {
            "ids": [i.document_id for i in items],
            "versions": [i.version for i in items],
            "stage": stage,
            "token": token,
            "lease": lease,
            "crashes": crashes,
        },
    )
    documents, pipelines, attempts, waits = {}, {}, {}, {}
    for row in rows.mappings():
        documents[row["id"]] = stored(row)
        pipelines[row["id"]] = row["pipeline_version"]
        attempts[row["id"]] = row["attempts"]
        waits[row["id"]] = row["waits"]
    return Claim(
        tenant_id=tenant_id,
        token=token,
        stage=stage,
        documents=documents,
        pipelines=pipelines,
        attempts=attempts,
        waits=waits,
    )


def stored(row: RowMapping) -> StoredDocument:
    """What a store must know of a document, from a row of it with its source's name as `source`."""
    return StoredDocument(
        id=row["id"],
        version=row["version"],
        title=row["title"],
        source_type=SourceType(row["source_type"]),
        kind=Kind(row["kind"]),
        source=row["source"],
        url=row["url"],
        tags=tuple(row["tags"]),
        metadata=row["metadata"],
        project_id=row["project_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(
        text("""
            update document set lease_until = now() + make_interval(secs => :lease)
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)"""),
        {"ids": claimed.ids, "token": claimed.token, "lease": lease},
    )


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents and tell which are still ours; only these may be written in this transaction.

    A document whose lease ran out and was taken by another, or that changed meanwhile, has another token.
    """
    rows = connection.execute(
        text("select id from document where id = any(:ids) and lease_token = :token order by id for update"),
        {"ids": claimed.ids, "token": claimed.token},
    )
    return [row.id for row in rows]


def advance(connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage) -> list[Item]:
    """Move documents to the next stage and give the claim back; returns what to send a message about."""
    rows = connection.execute(
        text("""
            update document set stage = :stage, crash_count = 0, lease_token = null, lease_until = null,
                   enqueued_at = now(), last_error = null, waits = 0
            where id = any(:ids) and lease_token = :token returning id, desired_version"""),
        {"ids": list(ids), "token": claimed.token, "stage": stage},
    )
    return [Item(row.id, row.desired_version) for row in rows]


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """Give documents back without a fault of theirs, to the same stage or an earlier one."""
    rows = connection.execute(
        text("""
            update document set stage = coalesce(:stage, stage), crash_count = greatest(crash_count - 1, 0),
                   lease_token = null, lease_until = null, enqueued_at = now()
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)
            returning id, desired_version"""),
        {"ids": list(ids), "token": claimed.token, "stage": stage},
    )
    return [Item(row.id, row.desired_version) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What became of one document, written with its last stage."""

    document_id: UUID
    chunks: int
    written: int
    kept: int


def finish(connection: Connection, claimed: Claim, results: Sequence[Indexed]) -> int:
    """Mark documents as searchable in their wanted version, and settle them in their runs; returns how many."""
    finished = _finish_rows(connection, claimed, results)
    done = [r for r in results if r.document_id in finished]
    connection.execute(
        text("""
            update run_item i set outcome = 'done', chunks = r.chunks, chunks_written = r.written, chunks_kept = r.kept
            from jsonb_to_recordset(cast(:rows as jsonb)) as r(id uuid, version integer, chunks integer,
                 written integer, kept integer)
            where i.document_id = r.id and i.version = r.version and i.outcome is null"""),
        {
            "rows": json.dumps(
                [
                    {
                        "id": str(r.document_id),
                        "version": claimed.documents[r.document_id].version,
                        "chunks": r.chunks,
                        "written": r.written,
                        "kept": r.kept,
                    }
                    for r in done
                ],
            ),
        },
    )
    connection.execute(
        text("delete from chunk_stage where document_id = any(:ids)"),
        {"ids": [r.document_id for r in done]},
    )
    connection.execute(
        text("""
            update dead_letter set resolved_at = now(), resolution = 'indexed'
            where document_id = any(:ids) and resolved_at is null"""),
        {"ids": [r.document_id for r in done]},
    )
    return len(done)


def _finish_rows(connection: Connection, claimed: Claim, results: Sequence[Indexed]) -> set[UUID]:
    """Those of the documents that are still ours and were not searchable in this version already."""
    rows = connection.execute(
        text("""
            update document d set indexed_version = desired_version, indexed_hash = desired_hash,
                   indexed_pipeline = pipeline_version, generation = generation + 1, stage = 'done',
                   state = 'done', last_indexed = now(), chunk_count = r.chunks,
                   crash_count = 0, attempts = 0, lease_token = null, lease_until = null, enqueued_at = null,
                   last_error = null
            from unnest(cast(:ids as uuid[]), cast(:chunks as integer[])) as r(id, chunks)
            where d.id = r.id and d.lease_token = :token
              and (d.indexed_version is null or d.indexed_version < d.desired_version)
            returning d.id"""),
        {
            "ids": [r.document_id for r in results],
            "chunks": [r.chunks for r in results],
            "token": claimed.token,
        },
    )
    return {row.id for row in rows}


def count_texts(
    connection: Connection,
    claimed: Claim,
    embedded: Mapping[UUID, int],
    reused: Mapping[UUID, int],
    cut: Mapping[UUID, int] | None = None,
) -> None:
    """Add to the run what embedding cost and what the cache saved, per document.

    `cut` are those of the embedded that were longer than the model reads.
    """
    rows = [
        {
            "id": str(i),
            "version": claimed.documents[i].version,
            "e": embedded.get(i, 0),
            "r": reused.get(i, 0),
            "c": (cut or {}).get(i, 0),
        }
        for i in claimed.documents
    ]
    connection.execute(
        text("""
            update run_item i set texts_embedded = texts_embedded + r.e, texts_cut = texts_cut + r.c,
                   -- what this run itself embedded, in an earlier slice or try, comes from the cache now
                   texts_reused = texts_reused + greatest(r.r - i.texts_embedded, 0)
            from jsonb_to_recordset(cast(:rows as jsonb))
                as r(id uuid, version integer, e integer, r integer, c integer)
            where i.document_id = r.id and i.version = r.version and i.outcome is null"""),
        {"rows": json.dumps(rows)},
    )


def fail(
    connection: Connection,
    claimed: Claim,
    ids: Sequence[UUID],
    error: LarderError,
    *,
    delay: float,
    dead: bool,
) -> None:
    """Note an error of these documents: try again after `delay` seconds, or lay them aside as dead letters."""
    rows = connection.execute(
        text("""
            update document set attempts = attempts + 1, crash_count = greatest(crash_count - 1, 0),
                   due_at = now() + make_interval(secs => :delay), enqueued_at = null, last_error = :error,
                   lease_token = null, lease_until = null,
                   state = case when :dead then 'dead' else state end
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)
            returning id"""),
        {"ids": list(ids), "token": claimed.token, "delay": delay, "error": str(error), "dead": dead},
    )
    found = [row.id for row in rows]
    if dead and found:
        bury(connection, found, code=error.code, reason=str(error))


def bury(connection: Connection, ids: Sequence[UUID], *, code: str, reason: str) -> None:
    """Write dead letters for documents in state dead, and settle them in their runs."""
    connection.execute(
        text("""
            insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts,
                                     crash_count)
            select tenant_id, source_id, id, desired_version, stage, :code, :reason, attempts, crash_count
            from document d where id = any(:ids)
              and not exists (select from dead_letter l where l.document_id = d.id and l.resolved_at is null
                              and l.version = d.desired_version)"""),
        {"ids": list(ids), "code": code, "reason": reason},
    )
    connection.execute(
        text("update run_item set outcome = 'dead' where document_id = any(:ids) and outcome is null"),
        {"ids": list(ids)},
    )


SHOWN_SECONDS = 2.0
"""A shorter wait is part of ordinary work."""


def wait(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """Give documents back for `delay` seconds; their tries stay what they were."""
    connection.execute(
        text("""
            update document set waits = waits + 1, crash_count = greatest(crash_count - 1, 0),
                   due_at = now() + make_interval(secs => :delay), enqueued_at = null, last_error = :reason,
                   lease_token = null, lease_until = null
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)"""),
        {"ids": list(ids), "token": claimed.token, "delay": delay, "reason": reason},
    )


def wake_waiting(connection: Connection) -> None:
    """Let all that waits try again now: what it waited for may be another one."""
    connection.execute(
        text("""
            update document set due_at = now()
            where id in (select id from document where state = 'pending' and stage = :stage and waits > 0
                         and due_at > now() and lease_token is null order by id for update)"""),
        {"stage": Stage.CHUNKED},
    )


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits for the embedder, over all tenants."""

    documents: int
    waits: int
    """How often the one that waits for the longest was put back."""
    until: datetime
    """When the first of them goes on."""
    reason: str


def waiting(connection: Connection) -> Waiting | None:
    """What was put back with a reason and is not due yet; None if nothing was."""
    row = connection.execute(
        text("""
            select count(*) as documents, max(waits) as waits, min(due_at) as until,
                   (array_agg(last_error order by due_at))[1] as reason
            from document
            where state = 'pending' and stage = :stage and waits > 0 and last_error is not null and not deleted
              and due_at > now() + make_interval(secs => :shown)"""),
        {"stage": Stage.CHUNKED, "shown": SHOWN_SECONDS},
    ).one()
    if not row.documents:
        return None
    return Waiting(documents=row.documents, waits=row.waits, until=row.until, reason=row.reason)


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


def pump_once(connection: Connection, limits: Limits, *, embed: int | None = None) -> Pumped | None:
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
        bury(connection, dead, code="E003", reason=reason)
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
