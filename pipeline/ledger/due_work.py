"""Due work: the order in which documents are sent, those that the pump sends next, and those that it takes back.

The order is start-time fair queueing: each waiting document has a lane and a turn in it. The clock of a lane is the
newest turn that was sent to be embedded or, for an index beside the one that is read, to be filled in. Documents that
are admitted get the turns after those that their source has waiting already, counted from the clock. So a source that
comes later is cut before the rest of a large load until it has caught up, and then both take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pipeline.ledger import ACTIVE, Item, Lane, Limits, Stage, runs
from pipeline.ledger.work import LEASED, enqueue_existing, write_letters

LANES = (Lane.CHANGED, Lane.FEW, Lane.BULK)
"""Lanes of documents on their way into the search index that is read."""
SHORT_OF = 64
"""The most waiting documents of a source that go before those of larger loads."""
BLOCK = 8
"""Documents of a source that have the same turn, so that they travel in one message."""
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

    def at(self, place: int) -> int:
        """The turn of the document at a place, from 0, among the next ones."""
        return self.first + place // BLOCK * BLOCK * self.step


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


def tags(
    connection: Connection, source: UUID, external_ids: Sequence[str], *, edits: Collection[str]
) -> dict[str, tuple[Lane, int]]:
    """External id -> lane and turn of documents that are admitted; `edits` are those that are searchable."""
    edited = [i for i in external_ids if i in edits]
    new = [i for i in external_ids if i not in edits]
    of_edited, of_new = next_turns(connection, source, edited=len(edited), new=len(new))
    return {
        i: (turns.lane, turns.at(place))
        for group, turns in ((edited, of_edited), (new, of_new))
        for place, i in enumerate(group)
    }


# Sources take turns, and where another index is filled, tenants.
_GIVE = text(f"""
    with due as materialized (
        select document_id, index_id, tenant_id, source_id, lane, due_at from index_work
        where turn is null and not dead and due_at <= now() order by due_at limit :most
        for no key update skip locked
    ), placed as (
        select document_id, index_id, lane, row_number() over (
                   partition by lane, case when lane = {Lane.FILL} then tenant_id else source_id end
                   order by due_at, document_id) - 1 as place
        from due)
    update index_work w set turn = c.turn + p.place / {BLOCK} * {BLOCK}
    from placed p join lane_clock c on c.lane = p.lane
    where w.document_id = p.document_id and w.index_id = p.index_id""")


def _give_turns(connection: Connection, *, most: int) -> None:
    """Give turns to due work that was postponed or requeued, and to that on indexes beside the one that is read.

    On the control role. The database index of work that can be sent then has none that waits for its time.
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
    index: int = ACTIVE
    """The search index to write."""


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
    """Stamp and return due work for the index that is read; None if another pump is running.

    Messages about syncs are sent once more after `resend_syncs` seconds, by default after `limits.resend`.
    """
    if not connection.execute(text("select pg_try_advisory_xact_lock(hashtext('larder.pump'))")).scalar():
        return None
    runs.compact_counts(connection)
    connection.execute(text("select analyze_grown()"))  # plans of the statements below depend on it
    connection.execute(text("select adopt_documents(:most)"), {"most": limits.in_flight})
    crashed = _take_back(connection, limits)
    syncs = runs.sync_due(connection, resend=resend_syncs or limits.resend)
    batches = [*_choose(connection, limits), *choose_embeds(connection, limits, embed or EmbedRoom())]
    return PumpResult(batches=tuple(batches), syncs=tuple(syncs), crashed=crashed)


# All of these read a few rows of partial indexes, however much waits. Documents are locked before their work items, and
# those that somebody is writing are left to the next tick: the pump waits for nobody.
_TO_GIVE_UP = text("""
    select d.id from document d where d.id in (
        select document_id from index_work
        where lease_until < now() and enqueued_at is not null and crash_count >= :crashes)
    order by d.id for no key update skip locked""")
_EXPIRE = LEASED.expire(
    """enqueued_at = null, due_at = now(), last_error = 'the worker died or hung while working on it',
       dead = crash_count >= :crashes""",
    condition="enqueued_at is not null and (crash_count < :crashes or document_id = any(:locked))",
    returning="document_id, index_id, dead",
)
_LOST = LEASED.forget_messages(f"(index_id = {ACTIVE}) = :active")


def _take_back(connection: Connection, limits: Limits) -> int:
    """End leases that ran out, with a dead letter after too many crashes, and note lost messages.

    Returns how many leases ran out.
    """
    values: dict[str, Any] = {"crashes": limits.crashes}
    locked = list(connection.execute(_TO_GIVE_UP, values).scalars())
    expired = connection.execute(_EXPIRE, {**values, "locked": locked}).all()
    reason = f"its worker died {limits.crashes} times while working on it"
    for index in sorted({row.index_id for row in expired if row.dead}):
        dead = [row.document_id for row in expired if row.dead and row.index_id == index]
        write_letters(connection, dead, code="E003", reason=reason, index=index)
    for active, resend in ((True, limits.resend), (False, limits.resend_fills)):
        connection.execute(_LOST, {"active": active, "resend": resend})
    return len(expired)


_FLYING = text(f"""
    select count(*) filter (where index_id = {ACTIVE}) as documents,
           count(*) filter (where index_id <> {ACTIVE}) as fills,
           count(distinct lease_token) filter (where stage = 'chunked') as embedding
    from index_work where enqueued_at is not null""")
_NEXT = text(f"""
    select next.* from unnest(cast(:lanes as smallint[])) as l(lane) cross join lateral (
        select document_id as id, tenant_id, source_id, index_id, lane, turn, due_at, stage, version, crash_count,
               case when stage = 'chunked' then (
                        select count(*) from chunk_stage c where c.document_id = w.document_id)
                    when index_id <> {ACTIVE} then (
                        select greatest(1, chunk_count) from document d where d.id = w.document_id) end as size
        from index_work w
        where cast(stage = 'chunked' as integer) = :embed and lane = l.lane  -- the columns of an index
          and enqueued_at is null and turn is not null and not dead and due_at <= now()
        order by turn, due_at, source_id limit :most for no key update skip locked) next
    order by lane, turn, due_at, source_id""")
"""The documents to send next, up to `:most` of each lane; with `:embed` 1 those to be embedded, with 0 all others."""
_SEND = text(f"""
    with sent as (
        update index_work set enqueued_at = now()
        where (document_id, index_id) in (
            select * from unnest(cast(:ids as uuid[]), cast(:indexes as integer[])))
        returning lane, turn, stage)
    update lane_clock c set turn = s.turn
    from (select lane, max(turn) as turn from sent where stage = 'chunked' or lane = {Lane.FILL} group by lane) s
    where c.lane = s.lane and c.turn < s.turn""")


def _next_rows(
    connection: Connection, limits: Limits, lanes: Iterable[Lane], *, most: int, embed: bool
) -> Sequence[Row[Any]]:
    """The next work to send, up to `most` documents of each lane, locked."""
    _give_turns(connection, most=limits.in_flight)
    return connection.execute(_NEXT, {"lanes": [*lanes], "most": most, "embed": int(embed)}).all()


def _send(connection: Connection, batches: Sequence[Batch]) -> None:
    """Stamp the work of these messages as sent, and set the clocks."""
    sent = [(item.document_id, batch.index) for batch in batches for item in batch.items]
    connection.execute(_SEND, {"ids": [i for i, _ in sent], "indexes": [index for _, index in sent]})


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


FILLS_IN_FLIGHT = 1024
"""The most documents that are sent and not done, for all indexes beside the one that is read."""


# Those that were put off do not count: a provider that refuses all of one index must not hold up another.
_FILLS_WAITING = text("""
    select count(*) from (select from index_work
                          where beside is not null and enqueued_at is null and not dead and due_at <= now()
                          limit :room) w""")


def choose_fills(connection: Connection, limits: Limits, *, chunks: int = 64) -> list[Batch]:
    """Stamp and return the next documents for indexes that lack them, in messages of about `chunks` chunks.

    Nothing while more than half of FILLS_IN_FLIGHT are under way. In a transaction of its own, so that trouble with an
    index keeps no document waiting; on the control role.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.fill'))"))
    flying = connection.execute(_FLYING).one().fills
    if flying > FILLS_IN_FLIGHT // 2:
        return []
    room = FILLS_IN_FLIGHT - flying
    # Before any row is locked: this waits for whoever writes such rows, and they must not wait for us.
    if connection.execute(_FILLS_WAITING, {"room": room}).scalar_one() < room:
        enqueue_existing(connection)
    rows = _next_rows(connection, limits, (Lane.FILL,), most=room, embed=False)
    batches = _batched(rows, most=limits.batch, chunks=chunks)
    _send(connection, batches)
    return batches


def _batched(rows: Sequence[Row[Any]], *, most: int, chunks: int | None = None) -> list[Batch]:
    """Messages of at most `most` documents and about `chunks` chunks, in the order of their first documents.

    A document that crashed before is alone in its message.
    """
    groups: dict[tuple[Lane, UUID, str, int, UUID | None], list[Item]] = defaultdict(list)
    for row in rows:
        alone = row.id if row.crash_count else None
        groups[row.lane, row.tenant_id, row.stage, row.index_id, alone].append(Item(row.id, row.version))
    sizes = {row.id: row.size for row in rows if row.size is not None}
    batches = [
        Batch(tenant_id=tenant, stage=Stage(stage), items=tuple(items), lane=Lane(lane), index=index)
        for (lane, tenant, stage, index, _), group in groups.items()
        for items in even_batches(group, sizes, weight=chunks or most, most=most)
    ]
    places = {(row.id, row.index_id): place for place, row in enumerate(rows)}
    return sorted(batches, key=lambda batch: places[batch.items[0].document_id, batch.index])


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
