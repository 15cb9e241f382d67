"""Documents that wait: chosen by the pump, claimed for a stage, finished, put back or given up on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, text

from pipeline.errors import LarderError
from pipeline.ledger import Item, Lease, Limits, Stage, runs, search_indexes
from pipeline.ledger.leases import UNCOUNTED, Leased
from pipeline.search.records import StoredDocument

MOST_CRASHES = 3
"""Of one document, unless the configuration says otherwise."""

STORED = """document.id, document.title, document.source_type, document.kind, document.url, document.tags,
    document.metadata, document.project_id, document.created_at, document.updated_at,
    (select s.name from source s where s.id = document.source_id) as source"""
"""Of a row of `document`, what a store must know of it beside the `version`."""


@dataclass(frozen=True, kw_only=True)
class WaitingDocument(StoredDocument):
    """A document on its way, in the version that is wanted."""

    attempts: int
    waits: int


@dataclass(frozen=True, kw_only=True)
class Claim(Lease):
    """Documents that are ours for one stage."""

    documents: Mapping[UUID, WaitingDocument]

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.documents)


_WAITING = TypeAdapter(WaitingDocument)
_LEASED = Leased(table="document")
_CLAIM = _LEASED.claim(
    """(id, desired_version) in (select * from unnest(cast(:ids as uuid[]), cast(:versions as integer[])))
       and stage = :stage and state = 'pending'
       and due_at <= now()  -- a doubled message must not cut a wait short
       and crash_count < :crashes  -- nor may a late one go round the pump, which buries it
    """,
    also="enqueued_at = coalesce(enqueued_at, now())",  # whoever holds a lease is among those that are sent
    returning=f"{STORED}, desired_version as version, attempts, waits",
)
_RENEW, _HELD, _UNSENT = _LEASED.renew(), _LEASED.held(), _LEASED.mark_unsent()


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
    ids, versions, token = [i.document_id for i in items], [i.version for i in items], uuid4()
    values = {"ids": ids, "versions": versions, "stage": stage, "lease": lease, "crashes": crashes}
    rows = connection.execute(_CLAIM, {**values, "token": token}).mappings().all()
    documents = {row["id"]: _WAITING.validate_python(dict(row)) for row in rows}
    return Claim(tenant_id=tenant_id, token=token, documents=documents)


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(_RENEW, claimed.mine(claimed.ids, lease=lease))


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents and tell which are still ours; only these may be written in this transaction.

    A document whose lease ran out and was taken by another, or that changed meanwhile, has another token.
    """
    return list(connection.execute(_HELD, claimed.mine(claimed.ids)).scalars())


_ITEM = "id as document_id, desired_version as version"
_SENT = "enqueued_at = case when coalesce(cast(:stage as text), stage) <> 'chunked' then now() end"
"""What is to be embedded waits here until it is chosen."""
# What waited for its turn to be embedded is due anew: that it was late would be told of a load that goes well.
_ADVANCE = _LEASED.give_back(
    f"""stage = :stage, crash_count = 0, {_SENT}, last_error = null, waits = 0,
        due_at = case when :stage = 'embedded' then now() else due_at end""",
    returning=_ITEM,
)
_CUT = _LEASED.give_back(
    f"""stage = :stage, crash_count = 0, {_SENT}, last_error = null, waits = 0,
        indexed_version = indexed_version,  -- answers that were kept from before no longer hold
        chunk_count = coalesce(cast(cast(:chunks as jsonb) ->> cast(id as text) as integer), chunk_count)""",
    returning=_ITEM,
)
_PUT_BACK = _LEASED.give_back(
    f"stage = coalesce(cast(:stage as text), stage), {UNCOUNTED}, {_SENT}", returning=_ITEM
)
_WAIT = _LEASED.give_back(
    f"""waits = waits + 1, {UNCOUNTED}, due_at = now() + make_interval(secs => :delay), enqueued_at = null,
        last_error = :reason"""
)
_FAIL = _LEASED.give_back(
    f"""attempts = attempts + 1, {UNCOUNTED}, due_at = now() + make_interval(secs => :delay), enqueued_at = null,
        last_error = :reason, state = case when :dead then 'dead' else state end"""
)
_FINISH = _LEASED.give_back(
    """indexed_version = desired_version, indexed_hash = desired_hash, indexed_pipeline = pipeline_version,
       generation = generation + 1, stage = 'done', state = 'done', last_indexed = now(), crash_count = 0,
       attempts = 0, enqueued_at = null, last_error = null, served_level = null, served_acl = null,
       chunk_count = (select chunks from jsonb_to_recordset(cast(:rows as jsonb)) as r(document_id uuid, chunks integer)
                      where r.document_id = document.id)""",
    where="(indexed_version is null or indexed_version < desired_version)",
)


def advance(
    connection: Connection,
    claimed: Claim,
    ids: Sequence[UUID],
    stage: Stage,
    chunks: Mapping[UUID, int] | None = None,
) -> list[Item]:
    """Move documents to the next stage and give the claim back; returns what to send a message about, or to choose.

    Those of `chunks` have so many that are found by their words from now on.
    """
    values = claimed.mine(ids, stage=stage)
    if chunks:
        values["chunks"] = json.dumps({str(i): n for i, n in chunks.items()})
    return [Item(**row) for row in connection.execute(_CUT if chunks else _ADVANCE, values).mappings()]


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """Give documents back without a fault of theirs, to the same stage or an earlier one."""
    values = claimed.mine(ids, stage=stage)  # the triggers of the table take their time for nothing, too
    return [Item(**row) for row in connection.execute(_PUT_BACK, values).mappings()] if ids else []


def postpone(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """Give documents back for `delay` seconds since the embedder may not be asked; they keep their tries."""
    if ids:
        connection.execute(_WAIT, claimed.mine(ids, delay=delay, reason=reason))


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What became of one document, written with its last stage."""

    document_id: UUID
    chunks: int
    written: int
    kept: int


def finish(connection: Connection, claimed: Claim, results: Sequence[Indexed]) -> int:
    """Mark documents as searchable in their wanted version, and settle them in their runs; returns how many.

    Those that are no longer ours, or searchable in this version already, are left as they are.
    """
    rows = {
        r.document_id: {**asdict(r), "version": claimed.documents[r.document_id].version} for r in results
    }
    values = claimed.mine(list(rows), rows=json.dumps(list(rows.values()), default=str))
    done = list(connection.execute(_FINISH, values).scalars())
    statement = text("""
        update run_item i set outcome = 'done', chunks = r.chunks, chunks_written = r.written, chunks_kept = r.kept
        from jsonb_to_recordset(cast(:rows as jsonb)) as r(
            document_id uuid, version integer, chunks integer, written integer, kept integer)
        where i.document_id = r.document_id and i.version = r.version and i.outcome is null""")
    connection.execute(statement, {"rows": json.dumps([rows[i] for i in done], default=str)})
    connection.execute(text("delete from chunk_stage where document_id = any(:ids)"), {"ids": done})
    search_indexes.enqueue_lacking(connection, done)  # before the letters, as whoever fills an index
    resolve_letters(connection, done, "indexed")
    return len(done)


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
    values = claimed.mine(ids, delay=delay, reason=str(error), dead=dead)
    found = list(connection.execute(_FAIL, values).scalars())
    if dead and found:
        write_letters(connection, found, code=error.code, reason=str(error))


def write_letters(connection: Connection, ids: Sequence[UUID], *, code: str, reason: str) -> None:
    """Write dead letters for documents in state dead; settle them in their runs, and what was said before."""
    statement = text("""
        update dead_letter l set resolved_at = now(), resolution = 'replaced' from document d
        where d.id = l.document_id and d.id = any(:ids) and l.resolved_at is null and l.version < d.desired_version
          and l.index_id is null""")
    connection.execute(statement, {"ids": list(ids)})
    statement = text("""
        insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts,
                                 crash_count)
        select tenant_id, source_id, id, desired_version, stage, :code, :reason, attempts, crash_count
        from document d where id = any(:ids)
          and not exists (select from dead_letter l where l.document_id = d.id and l.resolved_at is null
                          and l.version = d.desired_version)""")
    connection.execute(statement, {"ids": list(ids), "code": code, "reason": reason})
    runs.settle_items(connection, ids, "dead")


def resolve_letters(
    connection: Connection, document_ids: Sequence[UUID], how: str, *, index: int | None = None
) -> int:
    """Nobody need look at what these documents' letters say any more, or at those of one search index."""
    statement = text("""
        update dead_letter set resolved_at = now(), resolution = :how
        where document_id = any(:ids) and resolved_at is null
          and index_id is not distinct from coalesce(:index, index_id)""")
    return connection.execute(statement, {"ids": list(document_ids), "how": how, "index": index}).rowcount


class Lane(IntEnum):
    """In which order what is due goes out; the priority of its message."""

    CHANGED = 0
    """Indexed already and changed since, few of a source: what somebody just edited."""
    FEW = 3
    """Of a source with little to do, as a small new one."""
    BULK = 6


SHORT_OF = 64
"""At most so many documents of a source go before those of larger loads."""
AHEAD = 2
"""Messages of a lane that wait to be embedded beyond as many as are under way: whoever comes later waits for these."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of one tenant that wait for the same stage; one message."""

    tenant_id: UUID
    stage: Stage
    items: tuple[Item, ...]
    lane: Lane = Lane.FEW


@dataclass(frozen=True, kw_only=True)
class PumpResult:
    """What the pump found."""

    batches: tuple[Batch, ...] = ()
    syncs: tuple[tuple[UUID, UUID, int], ...] = ()
    """(tenant, source, run) whose walk should go on."""
    crashed: int = 0


@dataclass(frozen=True, kw_only=True)
class EmbedRoom:
    """How much may be sent to be embedded now."""

    documents: int | None = None
    """None: as many as there is room for."""
    chunks: int = 64
    """In one message; a document with more travels alone."""
    waiting: Mapping[int, int] | None = None
    """Messages of each lane that no worker has taken; None: any number may wait."""


def pump_once(
    connection: Connection,
    limits: Limits,
    *,
    embed: EmbedRoom | None = None,
    resend_syncs: float | None = None,
) -> PumpResult | None:
    """Stamp and return what is due; None if another pump is at it right now.

    Walks are sent once more after `resend_syncs` seconds, if not after those of the limits.
    """
    if not connection.execute(text("select pg_try_advisory_xact_lock(hashtext('larder.pump'))")).scalar():
        return None
    runs.compact_counts(connection)
    connection.execute(text("select analyze_grown()"))  # what follows a first page is planned by it
    crashed = _expire(connection, limits)
    syncs = runs.sync_due(connection, resend=resend_syncs or limits.resend)
    connection.execute(_LOST, {"resend": limits.resend})
    batches = [*_choose(connection, limits), *choose_embeds(connection, limits, embed or EmbedRoom())]
    return PumpResult(batches=tuple(batches), syncs=tuple(syncs), crashed=crashed)


_EXPIRE = _LEASED.expire(
    """enqueued_at = null, due_at = now(), last_error = 'the worker died or hung while working on it',
       state = case when crash_count >= :crashes then 'dead' else state end""",
    where="state = 'pending' and enqueued_at is not null",
    returning="id, state",
)


def _expire(connection: Connection, limits: Limits) -> int:
    """Leases that ran out: back to the queue, or dead after too many crashes."""
    rows = connection.execute(_EXPIRE, {"crashes": limits.crashes}).all()
    dead = [row.id for row in rows if row.state == "dead"]
    if dead:
        reason = f"its worker died {limits.crashes} times while working on it"
        write_letters(connection, dead, code="E003", reason=reason)
    return len(rows)


# All of these read a few rows of partial indexes, however many documents wait.
_LOST = text("""
    update document set enqueued_at = null
    where id in (select id from document
                 where state = 'pending' and enqueued_at < now() - make_interval(secs => :resend)
                 and (lease_until is null or lease_until < now()) order by id for update skip locked)""")
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
"""What waits in a lane, of a source `s` that has `p.documents` to do; the lanes before it were emptied."""
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
"""First whose last message is the oldest: tenants, then their sources; then the longest due, or, where not all have
their turn now, anyone: what is over is not remembered."""
_ONLY = {Lane.CHANGED: " and indexed_version is not null", Lane.FEW: "", Lane.BULK: ""}
_SEND = {
    lane: text(f"""
        with chosen as materialized (  -- once: what is locked and changed is passed over where it is looked for again
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
        ), chosen as materialized (  -- looked at once more: one that is changed just now waits for another stage
            select id from document where stage = 'chunked' and {_WAITS} and id in (
                select id from fitting where place = 1 or chunks <= :chunks and crashes = 0)
            for no key update skip locked)
        update document d set enqueued_at = now() from chosen where d.id = chosen.id
        returning d.id, d.desired_version""")
    for lane, only in _ONLY.items()
}
"""One message: documents up to so many chunks, the first in any case; one that crashed before travels alone."""


def _choose(connection: Connection, limits: Limits) -> list[Batch]:
    """Due documents but those to embed, up to the room that is left, in batches; those that crashed before alone.

    In each lane tenants take turns, then the sources of each, then the stages of a source, the longest due first.
    """
    flying = connection.execute(_FLYING).one()
    left, queues = limits.in_flight - flying.documents, limits.queues - flying.queues
    room = limits.at_once
    groups: dict[tuple[Lane, UUID, str, UUID | None], list[Item]] = defaultdict(list)
    for lane in Lane:
        kept = limits.in_flight // 10 if lane is Lane.BULK else 0  # for what comes later and overtakes
        rows = _stamp(connection, limits, lane, min(room, left - kept), queues)
        left, room = left - len(rows), room - len(rows)
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
    """Stamp and return what is to be embedded next, message by message: tenants take turns, then their sources.

    Only a few messages wait in the broker, and all else here, so that whoever comes later has its turn soon.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.embed'))"))
    flying = connection.execute(_FLYING).one()
    left = limits.in_flight - flying.documents
    left = left if room.documents is None else min(left, room.documents)
    batches: list[Batch] = []
    for lane in Lane:
        more = left if room.waiting is None else flying.embedding + AHEAD - room.waiting.get(lane, 0)
        values = {"stages": [Stage.CHUNKED], "embed": True, "most": 0}
        queues = deque(connection.execute(_QUEUES[lane], values) if min(more, left) > 0 else ())
        while queues and more > 0 and left > 0:
            queue = queues.popleft()
            values = {"source": queue.source_id, "most": min(limits.batch, left), "chunks": room.chunks}
            items = tuple(Item(*row) for row in connection.execute(_SEND_EMBED[lane], values))
            if items:
                batch = Batch(tenant_id=queue.tenant_id, stage=Stage.CHUNKED, items=items, lane=lane)
                batches.append(batch)
                queues.append(queue)
                more, left = more - 1, left - len(items)
    return batches


def _stamp(connection: Connection, limits: Limits, lane: Lane, room: int, most: int) -> list[Row[Any]]:
    """Note of at most `room` documents of a lane, of `most` queues, that a message about them is under way."""
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
        taken = Counter((row.source_id, row.stage) for row in rows)
        # A queue that gave less than its share is empty: the others have its room.
        queues = [
            queue
            for queue, share in zip(queues, shares, strict=True)
            if taken[queue.source_id, queue.stage] >= share
        ]
    return chosen


def _shares(queues: Sequence[Row[Any]], room: int, least: int) -> list[int]:
    """How many documents each queue may send, `least` or nothing; the sum is at most `room`."""
    sources = {(queue.tenant_id, queue.source_id) for queue in queues}
    of_tenant = Counter(tenant for tenant, _ in sources)
    of_source = Counter(queue.source_id for queue in queues)
    shares, left = [], room
    for queue in queues:
        fair = room // (len(of_tenant) * of_tenant[queue.tenant_id] * of_source[queue.source_id])
        shares.append(min(max(least, fair), left))
        left -= shares[-1]
    return shares


def mark_unsent(connection: Connection, items: list[Item]) -> None:
    """Note that messages of these could not be published; the pump sends them the next time it looks."""
    connection.execute(_UNSENT, {"ids": [i.document_id for i in items]})
