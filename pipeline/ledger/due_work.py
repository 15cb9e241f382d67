"""Due work: items that the pump sends next, by lane, tenant and source, and those it takes back from dead workers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, TextClause, text

from pipeline.ledger import Item, Limits, Stage, runs, search_indexes
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


SHORT_OF = 64
"""The most documents of a source that go before those of larger loads."""
AHEAD = 2
"""Messages of a lane that may wait to be embedded, beside as many as are under way; later work waits for them."""


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
    select count(*) as documents, count(distinct lease_token) filter (where stage = 'chunked') as embedding,
           count(distinct (source_id, stage)) filter (where stage <> 'chunked') as queues
    from document where state = 'pending' and enqueued_at is not null""")
_WAITS = "state = 'pending' and enqueued_at is null and due_at <= now()"
_OF_LANE = {
    Lane.CHANGED: f"""{_WAITS} and indexed_version is not null
        and (select count(*) from (select from document
             where source_id = s.id and state = 'pending' and indexed_version is not null
             limit {SHORT_OF + 1}) n) <= {SHORT_OF}""",
    Lane.FEW: f"{_WAITS} and p.documents <= {SHORT_OF}",
    Lane.BULK: _WAITS,
}
"""Lane -> condition for a waiting document of source `s` with `p.documents` to do; earlier lanes are empty by then."""
_QUEUES = {
    lane: text(f"""
        select s.tenant_id, s.id as source_id, q.stage
        from source s cross join unnest(cast(:stages as text[])) as q(stage)
        join (select source_id, sum(documents) as documents from document_count where state = 'pending'
              group by source_id) p on p.source_id = s.id
        cross join lateral (select due_at from document where source_id = s.id and stage = q.stage and {waits}
                            order by due_at limit 1) w
        left join (select source_id, max(enqueued_at) as at from document
                   where state = 'pending' and enqueued_at is not null and (stage = 'chunked') = :embed
                   group by source_id) t on t.source_id = s.id
        order by max(t.at) over (partition by s.tenant_id) nulls first, t.at nulls first,
                 case when count(*) over () > :most then random() end, w.due_at""")
    for lane, waits in _OF_LANE.items()
}
"""Lane -> statement for the queues (source and stage) with due documents, in the order of their turns: the tenant, then
the source, whose newest message is the oldest; then the longest due. If more than `:most` queues wait, the last order
is random instead, since messages that are done leave no trace of whose turn was last."""
_ONLY = {Lane.CHANGED: " and indexed_version is not null", Lane.FEW: "", Lane.BULK: ""}
_SEND = {
    lane: text(f"""
        with chosen as materialized (  -- evaluated once: a second look would pass over rows that are locked and changed
            select w.id from unnest(cast(:sources as uuid[]), cast(:stages as text[]), cast(:shares as integer[]))
                as q(source, stage, share)
            cross join lateral (select id from document where source_id = q.source and stage = q.stage
                                and {_WAITS}{only} order by due_at, id limit q.share for update skip locked) w)
        update document d set enqueued_at = now() from chosen where d.id = chosen.id
        returning d.id, d.tenant_id, d.source_id, d.stage, d.desired_version, d.crash_count""")
    for lane, only in _ONLY.items()
}
_SEND_EMBED = {
    lane: text(f"""
        with due as materialized (
            select id, due_at, crash_count,
                   (select count(*) from chunk_stage c where c.document_id = document.id) as chunks
            from document where source_id = :source and stage = 'chunked' and {_WAITS}{only}
            order by due_at, id limit :most
        ), fitting as (
            select id, row_number() over o as place, sum(chunks) over o as chunks, max(crash_count) over o as crashes
            from due window o as (order by due_at, id)
        ), chosen as materialized (  -- checked once more: a document that changed just now waits for another stage
            select id from document where stage = 'chunked' and {_WAITS} and id in (
                select id from fitting where place = 1 or chunks <= :chunks and crashes = 0)
            for no key update skip locked)
        update document d set enqueued_at = now() from chosen where d.id = chosen.id
        returning d.id, d.desired_version""")
    for lane, only in _ONLY.items()
}
"""Lane -> statement for one message of documents up to `:chunks` chunks, one document at least; a document that crashed
before is sent alone."""


def _choose(connection: Connection, limits: Limits) -> list[Batch]:
    """Stamp and batch due documents, except those to embed, up to the free capacity; crashed ones go alone.

    In each lane tenants take turns, then the sources of each, then the stages of a source, the longest due first.
    """
    flying = connection.execute(_FLYING).one()
    capacity, queues = limits.in_flight - flying.documents, limits.queues - flying.queues
    room = limits.at_once
    groups: dict[tuple[Lane, UUID, str, UUID | None], list[Item]] = defaultdict(list)
    for lane in _OF_LANE:
        reserve = limits.in_flight // 10 if lane is Lane.BULK else 0  # for edits that come later
        rows = _stamp(connection, limits, lane, min(room, capacity - reserve), queues)
        capacity, room = capacity - len(rows), room - len(rows)
        queues -= len({(row.source_id, row.stage) for row in rows})
        for row in rows:
            alone = row.id if row.crash_count else None
            groups[lane, row.tenant_id, row.stage, alone].append(Item(row.id, row.desired_version))
    sent: Counter[tuple[Lane, UUID]] = Counter()
    turns: list[tuple[Lane, int, Batch]] = []
    for (lane, tenant, stage, _), items in groups.items():
        for start in range(0, len(items), limits.batch):
            part = tuple(items[start : start + limits.batch])
            batch = Batch(tenant_id=tenant, stage=Stage(stage), items=part, lane=lane)
            turns.append((lane, sent[lane, tenant], batch))
            sent[lane, tenant] += 1
    return [batch for _, _, batch in sorted(turns, key=lambda turn: turn[:2])]


def choose_embeds(connection: Connection, limits: Limits, room: EmbedRoom) -> list[Batch]:
    """Stamp and return the next documents to embed, message by message: tenants take turns, then their sources.

    Only a few messages wait in the broker, and all others here, so that later work has its turn soon.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.embed'))"))
    flying = connection.execute(_FLYING).one()
    capacity = limits.in_flight - flying.documents
    capacity = capacity if room.documents is None else min(capacity, room.documents)
    batches: list[Batch] = []
    for lane in _OF_LANE:
        more = capacity if room.waiting is None else flying.embedding + AHEAD - room.waiting.get(lane, 0)
        values = {"stages": [Stage.CHUNKED], "embed": True, "most": 0}
        queues = deque(connection.execute(_QUEUES[lane], values) if min(more, capacity) > 0 else ())
        while queues and more > 0 and capacity > 0:
            queue = queues.popleft()
            values = {"source": queue.source_id, "most": min(limits.batch, capacity), "chunks": room.chunks}
            items = tuple(Item(*row) for row in connection.execute(_SEND_EMBED[lane], values))
            if items:
                batch = Batch(tenant_id=queue.tenant_id, stage=Stage.CHUNKED, items=items, lane=lane)
                batches.append(batch)
                queues.append(queue)
                more, capacity = more - 1, capacity - len(items)
    return batches


def _stamp(connection: Connection, limits: Limits, lane: Lane, room: int, most: int) -> list[Row[Any]]:
    """Stamp at most `room` documents of a lane, from at most `most` queues, as sent; returns their rows."""
    chosen: list[Row[Any]] = []
    least = max(1, limits.in_flight // limits.queues)
    if room <= 0 or most <= 0:
        return chosen
    most = min(most, -(-limits.at_once // least))
    stages = [s for s in Stage if s is not Stage.CHUNKED]
    values: dict[str, Any] = {"stages": stages, "embed": False, "most": most}
    queues = connection.execute(_QUEUES[lane], values).fetchmany(most)
    while queues and len(chosen) < room:
        shares = _shares(queues, room - len(chosen), least)
        values = {
            "sources": [queue.source_id for queue in queues],
            "stages": [queue.stage for queue in queues],
            "shares": shares,
        }
        rows = connection.execute(_SEND[lane], values).all()
        chosen += rows
        sent_by_queue = Counter((row.source_id, row.stage) for row in rows)
        # A queue with fewer documents than its share is empty: the others get its room.
        queues = [
            queue
            for queue, share in zip(queues, shares, strict=True)
            if sent_by_queue[queue.source_id, queue.stage] >= share
        ]
    return chosen


def _shares(queues: Sequence[Row[Any]], room: int, least: int) -> list[int]:
    """The number of documents that each queue may send, at least `least` or none; the sum is at most `room`."""
    sources = {(queue.tenant_id, queue.source_id) for queue in queues}
    of_tenant = Counter(tenant for tenant, _ in sources)
    of_source = Counter(queue.source_id for queue in queues)
    shares, remaining = [], room
    for queue in queues:
        fair = room // (len(of_tenant) * of_tenant[queue.tenant_id] * of_source[queue.source_id])
        shares.append(min(max(least, fair), remaining))
        remaining -= shares[-1]
    return shares


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
            select x.tenant_id, d.id, d.indexed_version, d.chunk_count, x.due_at as since,
                   row_number() over (order by x.due_at) as place
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
        where x.version < due.indexed_version and {_SENDABLE}
        for no key update of x skip locked
    ), sent as (
        update index_document x set enqueued_at = now() from free
        where x.tenant_id = free.tenant_id and x.index_id = :index and x.document_id = free.document_id
        returning x.document_id, x.crash_count)
    select due.*, sent.crash_count from due join sent on sent.document_id = due.id""")


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
    sizes = {row.id: max(1, row.chunk_count) for row in rows}
    messages = [
        [
            Batch(tenant_id=tenant, stage=Stage.FETCHED, items=tuple(items), lane=Lane.FILL, index=index)
            for items in even_batches(group, sizes, weight=chunks, most=limits.batch)
        ]
        for tenant, group in _by_tenant(rows)
    ]
    return [batch for turn in zip_longest(*messages) for batch in turn if batch]


def _by_tenant(rows: Iterable[Any]) -> Iterator[tuple[UUID, list[Item]]]:
    """Documents to fill by tenant; those that crashed before are groups of their own."""
    groups: dict[tuple[UUID, UUID | None], list[Item]] = defaultdict(list)
    for row in rows:
        groups[row.tenant_id, row.id if row.crash_count else None].append(Item(row.id, row.indexed_version))
    return ((tenant, items) for (tenant, _), items in groups.items())


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
