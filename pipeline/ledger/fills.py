"""Filling a search index with documents that it lacks: chosen by the pump, claimed, and how that ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, text

from pipeline.documents import Chunk
from pipeline.ledger import Item, Lease, Limits
from pipeline.ledger.leases import SENDABLE, UNCOUNTED, Leased
from pipeline.ledger.search_indexes import IndexedDocument, compare, lock_active, record_indexed
from pipeline.ledger.work import STORED, resolve_letters
from pipeline.search.records import StoredDocument

IN_FLIGHT = 1024
"""Most documents of an index that are sent to be filled and not done."""
SHARE = 32
"""So many of them each tenant may have in any case, the longest due first."""

_LEASED = Leased(
    table="index_document",
    rows="index_id = :index and document_id = any(:ids)",
    key="tenant_id, index_id, document_id",
)
_UNSENT = _LEASED.mark_unsent()
_LETTERS = text("""
    insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts, crash_count,
                             index_id)
    select d.tenant_id, d.source_id, d.id, d.indexed_version, 'fill', :code, :reason, x.attempts, x.crash_count, :index
    from document d join index_document x on x.document_id = d.id and x.index_id = :index
    where d.id = any(:ids)""")


@dataclass(frozen=True, kw_only=True)
class DueFill:
    """Documents of one tenant that an index lacks."""

    tenant_id: UUID
    items: tuple[Item, ...]
    sizes: Mapping[UUID, int]
    """Chunks per document, as far as they are known."""


_WANTING = """
    index_id = :index and tenant_id = t.id and wanted > version and dead_version is distinct from wanted"""
# The version that is searchable may be newer than the one that was noted, or gone.
_NEXT = text(f"""
    with wanting as materialized (
        select id from tenant t where exists (select from index_document where {_WANTING})
    ), due as materialized (
        select w.* from wanting t cross join lateral (
            select x.tenant_id, d.id, d.indexed_version, d.chunk_count, x.due_at as since,
                   row_number() over (order by x.due_at) as place
            from (select tenant_id, document_id, version, dead_version, due_at from index_document
                  where {_WANTING} and {SENDABLE}) x
            join document d on d.id = x.document_id and not d.deleted and d.indexed_version > x.version
                and x.dead_version is distinct from d.indexed_version
            order by x.due_at limit greatest({SHARE}, :room / (select count(*) from wanting))) w
        order by w.place, w.since limit :room
    ), free as materialized (
        -- Not those that somebody writes just now: to wait for one while others are held here may be a deadlock. Those
        -- that were written meanwhile are looked at once more.
        select x.tenant_id, x.document_id from due join index_document x
            on x.tenant_id = due.tenant_id and x.index_id = :index and x.document_id = due.id
        where x.version < due.indexed_version and {SENDABLE}
        for no key update of x skip locked
    ), sent as (
        update index_document x set enqueued_at = now() from free
        where x.tenant_id = free.tenant_id and x.index_id = :index and x.document_id = free.document_id
        returning x.document_id, x.crash_count)
    select due.*, sent.crash_count from due join sent on sent.document_id = due.id""")


def choose(connection: Connection, index: int, limits: Limits) -> list[DueFill]:
    """Documents to send a message about, up to the room that is left, by tenant; on the control role.

    Nothing as long as more than half of the last ones are under way. Documents that have crashed before come alone,
    those that crashed once too often not at all.
    """
    connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.fill'), :i)"), {"i": index})
    reason = f"its worker died {limits.crashes} times while filling this search index"
    values = {"index": index, "crashes": limits.crashes, "reason": reason, "resend": limits.resend}
    if found := list(connection.execute(_CRASHED, values).scalars()):
        connection.execute(_LETTERS, {**values, "ids": found, "code": "E003"})
    statement = text("""
        select count(*) from index_document
        where index_id = :index and enqueued_at >= now() - make_interval(secs => :resend)""")
    flying = int(connection.execute(statement, values).scalar_one())
    if flying > IN_FLIGHT // 2:
        return []
    room = IN_FLIGHT - flying
    rows = list(connection.execute(_NEXT, {**values, "room": room}))
    if (left := room - len(rows)) and compare(connection, index, most=left):
        rows += connection.execute(_NEXT, {**values, "room": left})
    groups: dict[tuple[UUID, UUID | None], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        groups[row.tenant_id, row.id if row.crash_count else None].append(row)
    return [
        DueFill(
            tenant_id=tenant,
            items=tuple(Item(row.id, row.indexed_version) for row in group),
            sizes={row.id: max(1, row.chunk_count) for row in group},
        )
        for (tenant, _), group in groups.items()
    ]


def mark_unsent(connection: Connection, index: int, items: Sequence[Item]) -> None:
    """Note that messages of these could not be published; the pump sends them the next time it looks."""
    connection.execute(_UNSENT, {"index": index, "ids": [i.document_id for i in items]})


_CRASHED = _LEASED.expire(
    """enqueued_at = null, last_error = :reason,
       dead_version = (select indexed_version from document d where d.id = document_id)""",
    where="index_id = :index and crash_count >= :crashes",
    returning="document_id",
)


# Claims -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LackedDocument(StoredDocument):
    """A document to bring into an index, in the version that is searchable elsewhere."""

    attempts: int
    copy_from: int | None
    """An index that holds this very version, cut in the same way or, if the text is gone, in any way."""
    copy_chunks: int
    """How many chunks it has there."""
    body: str | None
    """The text to cut, where nothing can be copied."""


_LACKED = TypeAdapter(LackedDocument)


@dataclass(frozen=True, kw_only=True)
class FillClaim(Lease):
    """Documents that are ours to fill into an index."""

    index: int
    wanted: Mapping[UUID, LackedDocument]

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.wanted)

    def mine(self, ids: Sequence[UUID], **more: Any) -> dict[str, Any]:
        """As of every lease, and which index."""
        return super().mine(ids, index=self.index, **more)


_CLAIM = _LEASED.claim(
    """due_at <= now() and exists (
        select from document d where d.id = document_id and index_document.version < d.indexed_version
          and not d.deleted and dead_version is distinct from d.indexed_version)""",
    returning="document_id",
)

# The text of a document whose newer version is not searchable yet is gone: then another index has to give its chunks.
_WANTED = text(f"""
    select {STORED}, indexed_version as version, x.attempts, other.index_id as copy_from,
           coalesce(other.chunk_count, 0) as copy_chunks,
           case when other.index_id is null and :bodies then b.body end as body
    from document
    join index_document x on x.index_id = :index and x.document_id = document.id
    left join document_body b on b.document_id = document.id and b.version = indexed_version
    left join lateral (
        select o.index_id, o.chunk_count from index_document o join search_index i on i.id = o.index_id
        where o.document_id = document.id and o.version = indexed_version and o.index_id <> :index
          and (i.strategy = :strategy or b.body is null)
        order by i.strategy = :strategy desc, i.status = 'active' desc limit 1) other on true
    where document.id = any(:ids) and indexed_version is not null and not deleted""")


def claim(
    connection: Connection,
    tenant_id: UUID,
    index: int,
    strategy: str,
    ids: Sequence[UUID],
    *,
    lease: float,
    bodies: bool = True,
) -> FillClaim:
    """Take those of the documents that this index still lacks and nobody fills.

    `strategy` is the index's way of cutting: one that cuts in the same way can be copied from. `bodies` False reads no
    text: for whoever gives them back at once.
    """
    token = uuid4()
    values = {"index": index, "ids": list(ids), "token": token, "lease": lease}
    ours = list(connection.execute(_CLAIM, values).scalars())
    rows = connection.execute(
        _WANTED, {"index": index, "ids": ours, "strategy": strategy, "bodies": bodies}
    ).mappings()
    wanted = {row["id"]: _LACKED.validate_python(dict(row)) for row in rows}
    return FillClaim(tenant_id=tenant_id, index=index, token=token, wanted=wanted)


_RENEW = _LEASED.renew()
_HELD = _LEASED.held()
_PUT_BACK = _LEASED.give_back(f"{UNCOUNTED}, enqueued_at = now(), due_at = now()", returning="document_id")
_POSTPONE = _LEASED.give_back(
    f"""{UNCOUNTED}, enqueued_at = null, last_error = :error, attempts = attempts + cast(:tried as integer),
        due_at = now() + make_interval(secs => :delay)"""
)
_GIVE_UP = _LEASED.give_back(
    f"""{UNCOUNTED}, enqueued_at = null, last_error = :reason, attempts = attempts + 1, dead_version = :version""",
    returning="document_id",
)


def renew(connection: Connection, claimed: FillClaim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(_RENEW, claimed.mine(claimed.ids, lease=lease))


def lock_documents(connection: Connection, ids: Sequence[UUID]) -> None:
    """Lock documents before their rows here, as everybody does who writes both."""
    statement = text("select from document where id = any(:ids) order by id for no key update")
    connection.execute(statement, {"ids": list(ids)})


def still_ours(connection: Connection, claimed: FillClaim) -> list[UUID]:
    """Lock the claimed rows and tell which are still ours: only these may be written in this transaction.

    Whoever deletes a document deletes its row here before its chunks: so nothing is filled behind its back.
    """
    lock_active(connection)
    active = text("select exists (select from search_index where id = :index and status = 'active')")
    if connection.execute(active, {"index": claimed.index}).scalar():
        lock_documents(connection, claimed.ids)  # `finish` writes to them, and the ordinary way writes here
    return [row.document_id for row in connection.execute(_HELD, claimed.mine(claimed.ids))]


def finish(connection: Connection, claimed: FillClaim, held: Sequence[IndexedDocument]) -> None:
    """Note that these documents are in the index now; the caller holds their rows."""
    record_indexed(connection, claimed.tenant_id, claimed.index, held)
    ids = [h.document_id for h in held]
    resolve_letters(connection, ids, "indexed", index=claimed.index)
    # If it is the one that is read, answers that were kept from before no longer hold, nor does the number of chunks.
    statement = text("""
        update document d set indexed_version = d.indexed_version,
               chunk_count = case when x.version = d.indexed_version then x.chunk_count else d.chunk_count end
        from index_document x where x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
          and d.id in (select id from document where id = any(:ids)
                       and exists (select from search_index where id = :index and status = 'active')
                       order by id for no key update)""")
    connection.execute(statement, {"ids": ids, "index": claimed.index})


def put_back(connection: Connection, claimed: FillClaim, ids: Sequence[UUID]) -> list[Item]:
    """Give documents back without a fault of theirs; returns what to send a message about at once."""
    rows = connection.execute(_PUT_BACK, claimed.mine(ids)).scalars()
    return [Item(i, claimed.wanted[i].version) for i in rows]


def postpone(
    connection: Connection,
    claimed: FillClaim,
    ids: Sequence[UUID],
    *,
    error: str,
    delay: float,
    tried: bool = True,
) -> None:
    """Try these again after `delay` seconds; `tried` False is a wait that is no failure of theirs."""
    connection.execute(_POSTPONE, claimed.mine(ids, error=error, delay=delay, tried=int(tried)))


def give_up(connection: Connection, claimed: FillClaim, document: UUID, *, code: str, reason: str) -> None:
    """Lay a document aside for this index as a dead letter; every other index keeps what it has of it."""
    version = claimed.wanted[document].version
    rows = connection.execute(_GIVE_UP, claimed.mine([document], reason=reason, version=version))
    values = {"index": claimed.index, "ids": list(rows.scalars()), "code": code, "reason": reason}
    connection.execute(_LETTERS, values)


def copied(connection: Connection, claimed: FillClaim) -> dict[UUID, list[Chunk]]:
    """The chunks that other indexes have of the documents in the very version that is wanted."""
    wanted = [w for w in claimed.wanted.values() if w.copy_from is not None]
    statement = text("""
        select c.document_id, c.ord, c.content, c.context
        from unnest(cast(:ids as uuid[]), cast(:indexes as integer[]), cast(:versions as integer[]))
             as k(id, index, version)
        join chunk c on c.index_id = k.index and c.document_id = k.id and c.version = k.version
        order by c.document_id, c.ord""")
    values = {"indexes": [w.copy_from for w in wanted], "versions": [w.version for w in wanted]}
    found: dict[UUID, list[Chunk]] = defaultdict(list)
    for row in connection.execute(statement, {"ids": [w.id for w in wanted], **values}):
        found[row.document_id].append(Chunk(ord=row.ord, content=row.content, context=row.context))
    return found
