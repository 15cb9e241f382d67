"""Due work: the order in which documents are sent, those that the pump sends next, and those that it takes back.

The order is start-time fair queueing: each waiting document has a lane and a turn in it. The clock of a lane is the
newest turn that was sent to be embedded. Documents that are admitted get the turns after those that their source has
waiting already, counted from the clock. So a source that comes later is cut before the rest of a large load until it
has caught up, and then both take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, TextClause, text

from pipeline.ledger import Item, Limits, Stage, runs, search_indexes
from pipeline.ledger.leases import RESTARTED
from pipeline.ledger.work import ACTIVE, BESIDE, WorkRows, write_letters


class Lane(IntEnum):
    """Priority class of work items, and the priority of their messages: smaller numbers are sent first."""

    CHANGED = 0
    """Edits: documents that were indexed before and changed since, up to SHORT_OF of a source."""
    FEW = 3
    """Documents of a source with at most SHORT_OF to do, such as a small new one."""
    BULK = 6
    FILL = 9
    """Documents for a search index beside the one that is read."""


LANES = (Lane.CHANGED, Lane.FEW, Lane.BULK)
"""Lanes of documents on their way into the search index that is read."""
SHORT_OF = 64
"""The most waiting documents of a source that go before those of larger loads."""
BLOCK = 8
"""Documents of a source that have the same turn, so that they travel in one message."""
REQUEUED = f"{RESTARTED}, lane = {Lane.BULK}, turn = null"
"""Due at once, as part of a load; the pump gives the turn."""
AHEAD = 2
"""Messages of a lane that may wait to be embedded, beside as many as are under way; later work waits for them."""


# Turns -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Lane and turns of the next documents of a source."""

    lane: Lane
    first: int
    step: int
    """The number of sources of the tenant with waiting documents: they share its turns."""


_WAITING = text("""
    select cast(coalesce(sum(documents) filter (where source_id = :source), 0) as bigint) as documents,
           cast(coalesce(sum(documents) filter (where source_id = :source and indexed), 0) as bigint) as edited,
           (select count(*) from (select from document_count where state = 'pending' and source_id <> :source
                                  group by source_id having sum(documents) > 0) others) as other_sources,
           (select jsonb_object_agg(lane, turn) from lane_clock) as clocks
    from document_count where state = 'pending'""")


def next_turns(connection: Connection, source: UUID, *, edited: int, new: int) -> tuple[Turns, Turns]:
    """Turns for so many edited documents of a source, and for so many that were never searchable."""
    waiting = connection.execute(_WAITING, {"source": source}).one()

    def turns(lane: Lane, before: int) -> Turns:
        step = waiting.other_sources + 1
        return Turns(lane=lane, first=waiting.clocks[str(int(lane))] + before * step, step=step)

    bulk = turns(Lane.BULK, waiting.documents)
    few_edits = waiting.edited + edited <= SHORT_OF
    few = waiting.documents + edited + new <= SHORT_OF
    return (
        turns(Lane.CHANGED, waiting.edited) if few_edits else bulk,
        turns(Lane.FEW, waiting.documents) if few else bulk,
    )


def tag(
    connection: Connection, source: UUID, rows: Sequence[dict[str, Any]], *, edits: Collection[str]
) -> None:
    """Set `lane` and `turn` of documents that are admitted; `edits` are the external ids of searchable ones."""
    edited = [row for row in rows if row["external_id"] in edits]
    new = [row for row in rows if row["external_id"] not in edits]
    of_edited, of_new = next_turns(connection, source, edited=len(edited), new=len(new))
    for group, turns in ((edited, of_edited), (new, of_new)):
        for place, row in enumerate(group):
            row["lane"], row["turn"] = turns.lane, turns.first + place // BLOCK * BLOCK * turns.step


_GIVE = text(f"""
    with due as materialized (
        select id, source_id, lane, due_at from document
        where state = 'pending' and turn is null and due_at <= now() order by due_at limit :most
        for no key update skip locked
    ), placed as (
        select id, lane, row_number() over (partition by source_id, lane order by due_at, id) - 1 as place from due)
    update document d set turn = c.turn + p.place / {BLOCK} * {BLOCK}
    from placed p join lane_clock c on c.lane = p.lane where d.id = p.id""")


def _give_turns(connection: Connection, *, most: int) -> None:
    """Give turns to due documents that were postponed or requeued, or admitted by a worker of before.

    On the control role. The index of those that can be sent then has no document that waits for its time.
    """
    connection.execute(_GIVE, {"most": most})


# What is sent next ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of one tenant that wait for the same stage; one message."""

    tenant_id: UUID
    stage: Stage
    items: tuple[Item, ...]
    lane: Lane = Lane.FEW
    index: int | None = None
    """The search index to write, if it is not the one that is read."""


@dataclass(frozen=True, kw_only=True)
class PumpResult:
    """Messages to send after one tick of the pump, and the number of expired leases."""

    batches: tuple[Batch, ...] = ()
    syncs: tuple[tuple[UUID, UUID, int], ...] = ()
    """(tenant, source, run) of each sync that should go on."""
    crashed: int = 0


@dataclass(frozen=True, kw_only=True)
class EmbedRoom:
    """Limits of the documents that are sent to be embedded now."""

    documents: int | None = None
    """The most documents; None: as many as `Limits.in_flight` allows."""
    chunks: int = 64
    """The most chunks of one message; a document with more is sent alone."""
    waiting: Mapping[int, int] | None = None
    """Lane -> messages that no worker has taken; None: any number may wait."""


def pump_once(
    connection: Connection,
    limits: Limits,
    *,
    embed: EmbedRoom | None = None,
    resend_syncs: float | None = None,
) -> PumpResult | None:
    """Stamp and return due work; None if another pump is running.

    Messages about syncs are sent once more after `resend_syncs` seconds, by default after `limits.resend`.
    """
    if not connection.execute(text("select pg_try_advisory_xact_lock(hashtext('larder.pump'))")).scalar():
        return None
    runs.compact_counts(connection)
    connection.execute(text("select analyze_grown()"))  # plans of the statements below depend on it
    crashed = _take_back(connection, limits)
    syncs = runs.sync_due(connection, resend=resend_syncs or limits.resend)
    batches = [*_choose(connection, limits), *choose_embeds(connection, limits, embed or EmbedRoom())]
    return PumpResult(batches=tuple(batches), syncs=tuple(syncs), crashed=crashed)


def _expire(rows: WorkRows, condition: str, dead: str) -> TextClause:
    return rows.leased.expire(
        f"enqueued_at = null, due_at = now(), last_error = 'the worker died or hung while working on it', {dead}",
        condition=condition,
        returning=f"{rows.document}, crash_count >= :crashes as dead",
    )


# All of these read a few rows of partial indexes, however many documents wait.
_EXPIRE = _expire(
    ACTIVE,
    "state = 'pending' and enqueued_at is not null",
    "state = case when crash_count >= :crashes then 'dead' else state end",
)
_EXPIRE_BESIDE = _expire(
    BESIDE,
    "index_id = :index",
    """dead_version = case when crash_count < :crashes then dead_version
        else (select indexed_version from document d where d.id = document_id) end""",
)
_LOST = ACTIVE.leased.forget_messages("state = 'pending'")
_LOST_BESIDE = BESIDE.leased.forget_messages("index_id = :index")


def _take_back(connection: Connection, limits: Limits, index: int | None = None) -> int:
    """End leases that ran out, with a dead letter after too many crashes, and note lost messages.

    Returns how many leases ran out.
    """
    values = {"crashes": limits.crashes, "resend": limits.resend, "index": index}
    expired = connection.execute(_EXPIRE if index is None else _EXPIRE_BESIDE, values).all()
    if dead := [row[0] for row in expired if row.dead]:
        reason = f"its worker died {limits.crashes} times while working on it"
        write_letters(connection, dead, code="E003", reason=reason, index=index)
    connection.execute(_LOST if index is None else _LOST_BESIDE, values)
    return len(expired)


_FLYING = text("""
    select count(*) as documents, count(distinct lease_token) filter (where stage = 'chunked') as embedding
    from document where state = 'pending' and enqueued_at is not null""")
_NEXT = text("""
    select next.* from unnest(cast(:lanes as smallint[])) as l(lane) cross join lateral (
        select id, tenant_id, source_id, lane, turn, due_at, stage, desired_version as version, crash_count,
               case when stage = 'chunked' then (
                   select count(*) from chunk_stage c where c.document_id = document.id) end as size
        from document
        where cast(stage = 'chunked' as integer) = :embed and lane = l.lane  -- the columns of an index
          and state = 'pending' and enqueued_at is null and turn is not null and due_at <= now()
        order by turn, due_at, source_id limit :most for no key update skip locked) next
    order by lane, turn, due_at, source_id""")
"""The documents to send next, up to `:most` of each lane; with `:embed` 1 those to be embedded, with 0 all others."""
_SEND = text("""
    with sent as (
        update document set enqueued_at = now() where id = any(:ids) returning lane, turn, stage)
    update lane_clock c set turn = s.turn
    from (select lane, max(turn) as turn from sent where stage = 'chunked' group by lane) s
    where c.lane = s.lane and c.turn < s.turn""")


def _next_rows(
    connection: Connection, limits: Limits, lanes: Iterable[Lane], *, most: int, embed: bool
) -> Sequence[Row[Any]]:
    """The next documents to send, up to `most` of each lane, locked."""
    _give_turns(connection, most=limits.in_flight)
    return connection.execute(_NEXT, {"lanes": [*lanes], "most": most, "embed": int(embed)}).all()


def _send(connection: Connection, batches: Sequence[Batch]) -> None:
    """Stamp the documents of these messages as sent, and set the clocks."""
    ids = [item.document_id for batch in batches for item in batch.items]
    connection.execute(_SEND, {"ids": ids})


def _choose(connection: Connection, limits: Limits) -> list[Batch]:
    """Stamp and batch due documents, except those to embed, up to the free capacity."""
    capacity = limits.in_flight - connection.execute(_FLYING).one().documents
    room = min(limits.at_once, capacity)
    if room <= 0:
        return []
    rows = _next_rows(connection, limits, LANES, most=room, embed=False)[:room]
    for_loads = capacity - limits.in_flight // 10  # the rest is for edits that come later
    chosen = [row for n, row in enumerate(rows) if row.lane < Lane.BULK or n < for_loads]
    batches = _batched(chosen, most=limits.batch)
    _send(connection, batches)
    return batches


def choose_embeds(connection: Connection, limits: Limits, room: EmbedRoom) -> list[Batch]:
    """Stamp and return the next documents to embed, message by message.

    Only a few messages wait in the broker, and all others here, so that later work has its turn soon.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.embed'))"))
    flying = connection.execute(_FLYING).one()
    capacity = limits.in_flight - flying.documents
    capacity = capacity if room.documents is None else min(capacity, room.documents)
    ahead, waiting = flying.embedding + AHEAD, room.waiting
    messages = {lane: capacity if waiting is None else ahead - waiting.get(lane, 0) for lane in LANES}
    # A document has a chunk at least.
    most = min(capacity, max(messages.values()) * min(limits.batch, room.chunks))
    if most <= 0:
        return []
    lanes = [lane for lane, n in messages.items() if n > 0]
    rows = _next_rows(connection, limits, lanes, most=most, embed=True)[:capacity]
    batches = []
    for batch in _batched(rows, most=limits.batch, chunks=room.chunks):
        messages[batch.lane] -= 1
        if messages[batch.lane] >= 0:
            batches.append(batch)
    _send(connection, batches)
    return batches


def _batched(
    rows: Sequence[Row[Any]], *, most: int, chunks: int | None = None, index: int | None = None
) -> list[Batch]:
    """Messages of at most `most` documents and about `chunks` chunks, in the order of their first documents.

    A document that crashed before is alone in its message.
    """
    groups: dict[tuple[Lane, UUID, str, UUID | None], list[Item]] = defaultdict(list)
    for row in rows:
        alone = row.id if row.crash_count else None
        groups[row.lane, row.tenant_id, row.stage, alone].append(Item(row.id, row.version))
    sizes = {row.id: row.size for row in rows if row.size is not None}
    batches = [
        Batch(tenant_id=tenant, stage=Stage(stage), items=tuple(items), lane=Lane(lane), index=index)
        for (lane, tenant, stage, _), group in groups.items()
        for items in even_batches(group, sizes, weight=chunks or most, most=most)
    ]
    places = {row.id: place for place, row in enumerate(rows)}
    return sorted(batches, key=lambda batch: places[batch.items[0].document_id])


# Search indexes beside the one that is read ---------------------------------------------------------

FILLS_IN_FLIGHT = 1024
"""The most documents that are sent and not done, for each index that is filled."""
TENANT_SHARE = 32
"""The most documents of one tenant in a round with many tenants, the longest due first."""

_LACKING = """
    index_id = :index and tenant_id = t.id and wanted > version and dead_version is distinct from wanted"""
_SENDABLE = "enqueued_at is null and lease_token is null and due_at <= now()"
# The searchable version may be newer than the one in `wanted`, or deleted.
_SEND_FILLS = text(f"""
    with wanting as materialized (
        select id from tenant t where exists (select from index_document where {_LACKING})
    ), due as materialized (
        select w.* from wanting t cross join lateral (
            select x.tenant_id, d.id, d.indexed_version as version, greatest(1, d.chunk_count) as size,
                   x.due_at as since, row_number() over (order by x.due_at) as place
            from (select tenant_id, document_id, version, dead_version, due_at from index_document
                  where {_LACKING} and {_SENDABLE}) x
            join document d on d.id = x.document_id and not d.deleted and d.indexed_version > x.version
                and x.dead_version is distinct from d.indexed_version
            order by x.due_at limit greatest({TENANT_SHARE}, :room / (select count(*) from wanting))) w
        order by w.place, w.since limit :room
    ), free as materialized (
        -- Rows that another transaction has locked are skipped: waiting with locks held may be a deadlock. Rows that
        -- were written meanwhile are checked once more.
        select x.tenant_id, x.document_id from due join index_document x
            on x.tenant_id = due.tenant_id and x.index_id = :index and x.document_id = due.id
        where x.version < due.version and {_SENDABLE}
        for no key update of x skip locked
    ), sent as (
        update index_document x set enqueued_at = now() from free
        where x.tenant_id = free.tenant_id and x.index_id = :index and x.document_id = free.document_id
        returning x.document_id, x.crash_count)
    select due.*, sent.crash_count, 9 as lane, 'fetched' as stage
    from due join sent on sent.document_id = due.id order by due.place, due.since""")


def choose_fills(connection: Connection, index: int, limits: Limits, *, chunks: int = 64) -> list[Batch]:
    """Stamp and return documents that an index lacks, up to its free capacity: tenants take turns, message by message.

    Nothing while more than half of FILLS_IN_FLIGHT are under way. A message has about `chunks` chunks; a document that
    crashed before is sent alone, and not at all after too many crashes. On the control role.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.fill'), :i)"), {"i": index})
    _take_back(connection, limits, index)
    statement = text(
        "select count(*) from index_document where index_id = :index and enqueued_at is not null"
    )
    flying = int(connection.execute(statement, {"index": index}).scalar_one())
    if flying > FILLS_IN_FLIGHT // 2:
        return []
    room = FILLS_IN_FLIGHT - flying
    rows = list(connection.execute(_SEND_FILLS, {"index": index, "room": room}))
    if (remaining := room - len(rows)) and search_indexes.enqueue_existing(connection, index):
        rows += connection.execute(_SEND_FILLS, {"index": index, "room": remaining})
    return _batched(rows, most=limits.batch, chunks=chunks, index=index)


def even_batches(
    items: Iterable[Item], sizes: Mapping[UUID, int], *, weight: int, most: int
) -> list[list[Item]]:
    """Group documents into messages of at most `most` documents and about `weight` chunks."""
    messages: list[list[Item]] = []
    load = 0
    for item in items:
        size = sizes.get(item.document_id, 1)
        if not messages or len(messages[-1]) >= most or load + size > weight:
            messages.append([])
            load = 0
        messages[-1].append(item)
        load += size
    return messages
