"""Documents that wait: chosen by the pump, claimed for a stage, finished, put back or given up on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, RowMapping, text

from pipeline.errors import LarderError
from pipeline.ledger import Item, Limits, Stage, overview, runs, search_indexes
from pipeline.ledger.dead import bury, resolve
from pipeline.ledger.leases import UNCOUNTED, Lease, Leased
from pipeline.search.records import StoredDocument

MOST_CRASHES = 3
"""Of one document, unless the configuration says otherwise."""
SHOWN_SECONDS = 2.0
"""A shorter wait is part of ordinary work."""
WAITING_COUNTED = 1000
"""Documents of a source and stage; how many more wait is in its own figures."""

STORED = """document.id, document.title, document.source_type, document.kind, document.url, document.tags,
    document.metadata, document.project_id, document.created_at, document.updated_at,
    (select s.name from source s where s.id = document.source_id) as source"""
"""What `stored` needs, beside the `version`."""


@dataclass(frozen=True, kw_only=True)
class Claim(Lease):
    """Documents that are ours for one stage."""

    documents: Mapping[UUID, StoredDocument]
    attempts: Mapping[UUID, int] = field(default_factory=dict)
    waits: Mapping[UUID, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.documents)


_STORED = TypeAdapter(StoredDocument)
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
_RENEW, _HELD, _UNSENT = _LEASED.renew(), _LEASED.held(), _LEASED.unsent()


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
    return Claim(
        tenant_id=tenant_id,
        token=token,
        documents={row["id"]: stored(row) for row in rows},
        attempts={row["id"]: row["attempts"] for row in rows},
        waits={row["id"]: row["waits"] for row in rows},
    )


def stored(row: RowMapping) -> StoredDocument:
    """What a store must know of a document, from a row of it with its source's name as `source`."""
    return _STORED.validate_python(dict(row))


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(_RENEW, claimed.mine(claimed.ids, lease=lease))


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents and tell which are still ours; only these may be written in this transaction.

    A document whose lease ran out and was taken by another, or that changed meanwhile, has another token.
    """
    return list(connection.execute(_HELD, claimed.mine(claimed.ids)).scalars())


_ITEM = "id as document_id, desired_version as version"
_ADVANCE = _LEASED.give_back(
    "stage = :stage, crash_count = 0, enqueued_at = now(), last_error = null, waits = 0", returning=_ITEM
)
_PUT_BACK = _LEASED.give_back(
    f"stage = coalesce(:stage, stage), {UNCOUNTED}, enqueued_at = now()", returning=_ITEM
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


def advance(connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage) -> list[Item]:
    """Move documents to the next stage and give the claim back; returns what to send a message about."""
    rows = connection.execute(_ADVANCE, claimed.mine(ids, stage=stage))
    return [Item(**row) for row in rows.mappings()]


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """Give documents back without a fault of theirs, to the same stage or an earlier one."""
    rows = connection.execute(_PUT_BACK, claimed.mine(ids, stage=stage))
    return [Item(**row) for row in rows.mappings()]


def wait(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """Give documents back for `delay` seconds since the embedder may not be asked; they keep their tries."""
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
    resolve(connection, done, "indexed")
    search_indexes.want(connection, done)
    return len(done)


def count_texts(
    connection: Connection,
    claimed: Claim,
    embedded: Mapping[UUID, int],
    reused: Mapping[UUID, int],
    cut: Mapping[UUID, int],
) -> None:
    """Add to the run what embedding cost and what the cache saved, per document.

    `cut` are those of the embedded that were longer than the model reads.
    """
    # What this run itself embedded, in an earlier slice or try, comes from the cache now.
    statement = text("""
        update run_item i set texts_embedded = texts_embedded + r.embedded, texts_cut = texts_cut + r.cut,
               texts_reused = texts_reused + greatest(r.reused - texts_embedded, 0)
        from jsonb_to_recordset(cast(:rows as jsonb)) as r(
            id uuid, version integer, embedded integer, reused integer, cut integer)
        where i.document_id = r.id and i.version = r.version and i.outcome is null""")
    counts = {"embedded": embedded, "reused": reused, "cut": cut}
    rows = [
        {"id": i, "version": document.version, **{name: count.get(i, 0) for name, count in counts.items()}}
        for i, document in claimed.documents.items()
    ]
    connection.execute(statement, {"rows": json.dumps(rows, default=str)})


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
        bury(connection, found, code=error.code, reason=str(error))


def wake_waiting(connection: Connection) -> None:
    """Let all that waits try again now: what it waited for may be another one."""
    statement = text("""
        update document set due_at = now()
        where id in (select id from document where state = 'pending' and waits > 0
                     and due_at > now() and lease_token is null order by id for update)""")
    connection.execute(statement)


def waiting(connection: Connection) -> Row[Any] | None:
    """What waits for the embedder or the database over all tenants, put back with a reason and not due yet, if any.

    documents: how many, of a source and stage WAITING_COUNTED at most; until: when the first of them goes on; reason:
    its own.
    """
    statement = text("""
        select count(*) as documents, min(due_at) as until,
               (array_agg(d.last_error order by due_at))[1] as reason
        from source s cross join unnest(cast(:stages as text[])) as q(stage) cross join lateral (
            select due_at, last_error from document
            where source_id = s.id and stage = q.stage and state = 'pending' and enqueued_at is null and waits > 0
              and last_error is not null and due_at > now() + make_interval(secs => :shown)
            order by due_at limit :most) d having count(*) > 0""")
    values = {"stages": list(Stage), "shown": SHOWN_SECONDS, "most": WAITING_COUNTED}
    return connection.execute(statement, values).one_or_none()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of one tenant that wait for the same stage; one message."""

    tenant_id: UUID
    stage: Stage
    items: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True)
class Pumped:
    """What the pump found."""

    batches: tuple[Batch, ...] = ()
    syncs: tuple[tuple[UUID, UUID, int], ...] = ()
    """(tenant, source, run) whose walk should go on."""
    crashed: int = 0


def pump_once(
    connection: Connection, limits: Limits, *, embed: int | None = None, resend_syncs: float | None = None
) -> Pumped | None:
    """Stamp and return what is due; None if another pump is at it right now.

    At most `embed` documents are sent for embedding; None: as many as there is room for. Walks are sent once more
    after `resend_syncs` seconds, if not after those of the limits.
    """
    if not connection.execute(text("select pg_try_advisory_xact_lock(hashtext('larder.pump'))")).scalar():
        return None
    overview.add_up(connection)
    crashed = _expire(connection, limits)
    syncs = runs.sync_due(connection, resend=resend_syncs or limits.resend)
    return Pumped(batches=tuple(_choose(connection, limits, embed)), syncs=tuple(syncs), crashed=crashed)


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
        bury(connection, dead, code="E003", reason=reason)
    return len(rows)


# All of these read a few rows of partial indexes, however many documents wait.
_LOST = text("""
    update document set enqueued_at = null
    where id in (select id from document
                 where state = 'pending' and enqueued_at < now() - make_interval(secs => :resend)
                 and (lease_until is null or lease_until < now()) order by id for update skip locked)""")
_WAITS = "state = 'pending' and enqueued_at is null and due_at <= now()"
_QUEUES = text(f"""
    select s.tenant_id, s.id as source_id, q.stage
    from source s cross join unnest(cast(:stages as text[])) as q(stage)
    cross join lateral (select due_at from document where source_id = s.id and stage = q.stage and {_WAITS}
                        order by due_at limit 1) w
    order by w.due_at""")
_SEND = text(f"""
    update document d set enqueued_at = now()
    from unnest(cast(:sources as uuid[]), cast(:stages as text[]), cast(:shares as integer[]))
        as q(source, stage, share)
    cross join lateral (select id from document where source_id = q.source and stage = q.stage and {_WAITS}
                        order by due_at, id limit q.share for update skip locked) w
    where d.id = w.id
    returning d.id, d.tenant_id, d.source_id, d.stage, d.desired_version, d.crash_count""")


def _choose(connection: Connection, limits: Limits, embed: int | None) -> list[Batch]:
    """Due documents up to the room that is left, in batches; those that crashed before travel alone.

    Tenants take turns, then the sources of each, then the stages of a source; in each of these the longest due first.
    """
    connection.execute(_LOST, {"resend": limits.resend})
    statement = text("select count(*) from document where state = 'pending' and enqueued_at is not null")
    room = limits.in_flight - int(connection.execute(statement).scalar_one())
    # Of all stages together; those that wait to be embedded apart if only a few of them may be sent.
    stages = [stage for stage in Stage if embed is None or stage is not Stage.CHUNKED]
    rows = _stamp(connection, stages, room)
    rows += _stamp(connection, [Stage.CHUNKED], min(embed or 0, room - len(rows)))
    groups: dict[tuple[UUID, str, UUID | None], list[Item]] = defaultdict(list)
    for row in rows:
        alone = row.id if row.crash_count else None
        groups[row.tenant_id, row.stage, alone].append(Item(row.id, row.desired_version))
    sent: Counter[UUID] = Counter()
    turns: list[tuple[int, Batch]] = []
    for (tenant, stage, _), items in groups.items():
        for start in range(0, len(items), limits.batch):
            part = tuple(items[start : start + limits.batch])
            turns.append((sent[tenant], Batch(tenant_id=tenant, stage=Stage(stage), items=part)))
            sent[tenant] += 1
    return [batch for _, batch in sorted(turns, key=lambda turn: turn[0])]


def _stamp(connection: Connection, stages: Sequence[Stage], room: int) -> list[Row[Any]]:
    """Note of at most `room` documents that a message about them is under way."""
    chosen: list[Row[Any]] = []
    queues = connection.execute(_QUEUES, {"stages": list(stages)}).all() if room > 0 else []
    while queues and len(chosen) < room:
        shares = _shares(queues, room - len(chosen))
        values = {
            "sources": [queue.source_id for queue in queues],
            "stages": [queue.stage for queue in queues],
            "shares": shares,
        }
        rows = connection.execute(_SEND, values).all()
        chosen += rows
        taken = Counter((row.source_id, row.stage) for row in rows)
        # A queue that gave less than its share is empty: the others have its room.
        queues = [
            queue
            for queue, share in zip(queues, shares, strict=True)
            if taken[queue.source_id, queue.stage] >= share
        ]
    return chosen


def _shares(queues: Sequence[Row[Any]], room: int) -> list[int]:
    """How many documents each queue may send; the sum is at most `room`, and the first ones get something."""
    sources = {(queue.tenant_id, queue.source_id) for queue in queues}
    of_tenant = Counter(tenant for tenant, _ in sources)
    of_source = Counter(queue.source_id for queue in queues)
    shares, left = [], room
    for queue in queues:
        fair = room // (len(of_tenant) * of_tenant[queue.tenant_id] * of_source[queue.source_id])
        shares.append(min(max(1, fair), left))
        left -= shares[-1]
    return shares


def unsent(connection: Connection, items: list[Item]) -> None:
    """Messages that could not be published: the pump sends them the next time it looks."""
    connection.execute(_UNSENT, {"ids": [i.document_id for i in items]})
