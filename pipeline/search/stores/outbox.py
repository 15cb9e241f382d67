"""Which vector stores there are, and the outbox of what each has yet to learn.

The outbox has one row per chunk and store, written by triggers in the transaction that changes the chunk. Whoever
carries a row over reads the chunk as it is then, so that rows may be carried twice, late and in any order of their
changes. A row's `turn` is new with each change, and a row is only removed with the turn that was carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.errors import NotFound
from pipeline.ledger.leases import UNCOUNTED, Leased

PGVECTOR = "pgvector"
"""Name of the vector arm inside PostgreSQL, which needs no row."""


@dataclass(frozen=True, kw_only=True)
class StoreRow:
    """A row of `vector_store`."""

    name: str
    status: str
    """emptying, filling or ready."""
    active: bool
    preferred: bool
    mark: UUID
    position: int
    before: int
    marked_at: datetime | None
    collections: list[int]
    """Search indexes that have a collection in the store."""
    walked_at: datetime | None
    due_at: datetime
    failures: int
    last_error: str | None

    @property
    def is_ready(self) -> bool:
        """Whether it holds all that it should, but for what is in the outbox."""
        return self.status == "ready"


_COLUMNS = ", ".join(StoreRow.__dataclass_fields__)


def listed(connection: Connection) -> list[StoreRow]:
    """All registered stores: the active one first, then by name."""
    rows = connection.execute(text(f"select {_COLUMNS} from vector_store order by active desc, name"))
    return [StoreRow(**row) for row in rows.mappings()]


def is_foreign(connection: Connection) -> bool:
    """Whether another store than pgvector is the active one, or becomes it once it is filled."""
    return any(row.active or row.preferred for row in listed(connection))


def register(connection: Connection, name: str, *, preferred: bool) -> bool:
    """Register a store, to be emptied and filled; False if it is registered. On the control role, as all below.

    The triggers must be there before: `note_changes`.
    """
    statement = text("""
        insert into vector_store (name, preferred) values (:name, :preferred) on conflict (name) do nothing
        returning name""")
    return connection.execute(statement, {"name": name, "preferred": preferred}).first() is not None


def note_changes(database: Database, *, on: bool) -> None:
    """Have changes of chunks and documents noted in the outbox, or no longer. Waits for writers that are under way.

    Each table is a transaction of its own, since writers lock documents before chunks.

    Raises:
        StoreUnavailable: they take too long.
    """
    statement = text("select note_vectors_from(:table, :on)")
    for table in ("chunk", "document") if on else ("document", "chunk"):
        with database.control() as connection:
            connection.execute(statement, {"table": table, "on": on})


def switch(connection: Connection, name: str) -> str:
    """Make a store the one that searches ask, by one update; `pgvector` is none. Returns the one before.

    Raises:
        NotFound: it is not registered.
    """
    if name != PGVECTOR:
        require(connection, name)
    before = next((store.name for store in listed(connection) if store.active), PGVECTOR)
    statement = text(
        "update vector_store set active = (name = :name), preferred = false where active or name = :name"
    )
    connection.execute(statement, {"name": name})
    return before


def require(connection: Connection, name: str) -> StoreRow:
    """The row of a store.

    Raises:
        NotFound: it is not registered.
    """
    for row in listed(connection):
        if row.name == name:
            return row
    raise NotFound(f"there is no vector store {name!r}", fix="larder stores list")


def drop(connection: Connection, name: str) -> bool:
    """Forget a store and its outbox; True if it was the last one."""
    connection.execute(text("delete from vector_store where name = :name"), {"name": name})
    return not listed(connection)


def rebuild(connection: Connection, name: str) -> None:
    """Have a store emptied and filled anew; searches ask it again once it is full."""
    statement = text("""
        update vector_store set status = 'emptying', mark = gen_random_uuid(), marked_at = null, walk_tenant = null,
               walk_index = null, walk_document = null, walked_at = null, due_at = now(), failures = 0
        where name = :name""")
    connection.execute(statement, {"name": name})


# -- filling -----------------------------------------------------------------------------------------

SLICE = 500
"""Documents whose chunks are put into the outbox at once for a store that is filled."""
MOST_FILLING = 10_000
"""Rows of a store that is filled from which no more are added."""

_WALK = text(f"""
    with slice as materialized (
        select x.tenant_id, x.index_id, x.document_id, x.chunk_count from index_document x, vector_store s
        where s.name = :store and x.version > 0 and x.chunk_count > 0
          and (x.tenant_id, x.index_id, x.document_id)
              > (coalesce(s.walk_tenant, :first), coalesce(s.walk_index, 0), coalesce(s.walk_document, :first))
        order by x.tenant_id, x.index_id, x.document_id limit {SLICE}
    ), noted as (
        insert into vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
        select x.tenant_id, :store, x.index_id, x.document_id, n.ord, 2
        from slice x cross join lateral generate_series(0, x.chunk_count - 1) as n(ord)
        order by 1, 2, 3, 4, 5
        -- A new turn: what is under way may have been carried over before the store was emptied.
        on conflict (tenant_id, store, index_id, document_id, ord) do update set turn = excluded.turn
        returning 1)
    update vector_store set walk_tenant = last.tenant_id, walk_index = last.index_id, walk_document = last.document_id,
           walked_at = case when last.tenant_id is null then now() end
    from (select 1) as always left join lateral (
        select tenant_id, index_id, document_id from slice where (select count(*) from slice) = {SLICE}
        order by tenant_id desc, index_id desc, document_id desc limit 1) last on true
    where vector_store.name = :store
    returning (select count(*) from noted)""")


def fill(connection: Connection, store: StoreRow) -> None:
    """Put the next documents into the outbox of a store that is filled; it is ready once all of them are carried."""
    values = {"store": store.name, "first": UUID(int=0), "most": MOST_FILLING}
    waiting = text("""
        select count(*) from (select from vector_outbox where store = :store and lane = 2 and dead_at is null
                              limit :most) x""")
    count = connection.execute(waiting, values).scalar_one()
    if store.walked_at is None and count < MOST_FILLING:
        connection.execute(_WALK, values)
    elif store.walked_at is not None and not count:
        ready = text("update vector_store set status = 'ready' where name = :store and status = 'filling'")
        connection.execute(ready, values)
        if store.preferred:
            switch(connection, store.name)


# -- carrying ----------------------------------------------------------------------------------------

_FREE = "dead_at is null and due_at <= now() and (lease_until is null or lease_until < now())"


def due_tenants(connection: Connection, store: str, *, most: int = 100) -> list[UUID]:
    """Tenants with rows that are due for a store, the most urgent first; none while the store is paused."""
    statement = text(f"""
        select tenant_id from (select tenant_id, lane, turn from vector_outbox where store = :store and {_FREE}
                               and exists (select from vector_store s where s.name = :store and s.due_at <= now())
                               order by lane, turn limit 5000) x
        group by tenant_id order by min(lane), min(turn) limit :most""")
    return list(connection.execute(statement, {"store": store, "most": most}).scalars())


class ChunkKey(NamedTuple):
    """Search index, document and ordinal of a chunk."""

    index_id: int
    document: UUID
    ord: int

    @property
    def id(self) -> str:
        """Id of its point."""
        return point_id(self.document, self.ord)


def point_id(document: UUID, ord_: int) -> str:
    """Id of a chunk's point."""
    return f"{document}:{ord_}"


def chunk_of(id_: str) -> tuple[UUID, int] | None:
    """Document and ordinal of a point's id; None of any other text."""
    document, _, ord_ = id_.rpartition(":")
    try:
        return UUID(document), int(ord_)
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Rows of the outbox under a lease."""

    tenant: UUID
    store: str
    token: UUID
    turns: dict[ChunkKey, int]
    crashed: int = 0
    """Most crashes of one of them."""


_KEY = "tenant_id, store, index_id, document_id, ord"
_KEYS = """(index_id, document_id, ord) in (
    select * from unnest(cast(:indexes as integer[]), cast(:documents as uuid[]), cast(:ords as integer[])))
    and tenant_id = :tenant and store = :store"""
_NEXT = f"""({_KEY}) in (select {_KEY} from vector_outbox
    where tenant_id = :tenant and store = :store and {_FREE} order by lane, turn limit :most)"""
_CLAIM = Leased(table="vector_outbox", rows=_NEXT, key=_KEY).claim(
    "dead_at is null", returning="index_id, document_id, ord, turn, crash_count"
)
_ROWS = Leased(table="vector_outbox", rows=_KEYS, key=_KEY)
_RENEW = _ROWS.renew()


FEW = 25
"""Rows of a batch that were with a worker that crashed: each by itself would take minutes after a batch was killed."""


def claim(connection: Connection, tenant: UUID, store: str, *, most: int, lease: float) -> Claimed:
    """Claim the next rows of a tenant, the most urgent first; on the application role, as all below.

    Rows that were with a worker that crashed are claimed FEW at a time, and after a second crash alone.
    """
    token = uuid4()
    values = {"tenant": tenant, "store": store, "token": token, "lease": lease, "most": most}
    rows = list(connection.execute(_CLAIM, values))
    if suspects := [row for row in rows if row.crash_count > 1]:
        kept = [row for row in rows if row.crash_count <= 1]
        if not kept:
            few = 1 if suspects[0].crash_count > 2 else FEW  # noqa: PLR2004
            kept = [row for row in suspects if row.crash_count == suspects[0].crash_count][:few]
        back = [ChunkKey(*row[:3]) for row in rows if row not in kept]
        _give_back(connection, tenant, store, token, back, UNCOUNTED)
        rows = kept
    turns = {ChunkKey(row.index_id, row.document_id, row.ord): row.turn for row in rows}
    crashes = max((row.crash_count - 1 for row in rows), default=0)
    return Claimed(tenant=tenant, store=store, token=token, turns=turns, crashed=crashes)


def renew(connection: Connection, claimed: Claimed, *, lease: float) -> bool:
    """Extend the lease; False if it is lost for any row."""
    values = {**_values(claimed, list(claimed.turns)), "lease": lease}
    return len(connection.execute(_RENEW, values).all()) == len(claimed.turns)


def finish(connection: Connection, claimed: Claimed, keys: Sequence[ChunkKey]) -> None:
    """Remove carried rows; one that changed meanwhile stays, and is due.

    If the lease was lost, another worker may have carried a newer state before this one: the rows are noted anew.
    """
    statement = text("""
        with carried as (select * from unnest(cast(:indexes as integer[]), cast(:documents as uuid[]),
                                              cast(:ords as integer[]), cast(:turns as bigint[]))
                         as k(index_id, document_id, ord, turn)),
        removed as (
            delete from vector_outbox o using carried k
            where o.tenant_id = :tenant and o.store = :store and o.index_id = k.index_id
              and o.document_id = k.document_id and o.ord = k.ord and o.turn = k.turn and o.lease_token = :token
            returning o.index_id, o.document_id, o.ord)
        select * from removed""")
    values = {**_values(claimed, keys), "turns": [claimed.turns[key] for key in keys]}
    removed = set(starmap(ChunkKey, connection.execute(statement, values)))
    if changed := [key for key in keys if key not in removed]:
        _give_back(connection, claimed.tenant, claimed.store, claimed.token, changed, UNCOUNTED)
        note(connection, claimed.tenant, claimed.store, changed)


def note(connection: Connection, tenant: UUID, store: str, keys: Sequence[ChunkKey]) -> None:
    """Note chunks to be carried over, though they did not change."""
    statement = text("""
        insert into vector_outbox as o (tenant_id, store, index_id, document_id, ord, lane)
        select :tenant, :store, k.index_id, k.document_id, k.ord, 1
        from unnest(cast(:indexes as integer[]), cast(:documents as uuid[]), cast(:ords as integer[]))
             as k(index_id, document_id, ord)
        where exists (select from search_index i where i.id = k.index_id)
        order by 3, 4, 5
        on conflict (tenant_id, store, index_id, document_id, ord) do update set turn = excluded.turn""")
    connection.execute(statement, {**_columns(keys), "tenant": tenant, "store": store})


def put_back(
    connection: Connection, claimed: Claimed, keys: Sequence[ChunkKey], *, seconds: float, error: str
) -> None:
    """Put rows back for a later attempt, since the store cannot be reached; that is no failed attempt.

    Rows whose lease was lost are noted anew, as in `finish`: the store may have taken what it gave no answer to.
    """
    also = f"{UNCOUNTED}, last_error = :error, due_at = now() + make_interval(secs => :seconds)"
    values = {"error": error, "seconds": seconds}
    released = _give_back(connection, claimed.tenant, claimed.store, claimed.token, keys, also, values)
    if lost := [key for key in keys if key not in released]:
        note(connection, claimed.tenant, claimed.store, lost)


def give_up(connection: Connection, claimed: Claimed, keys: Sequence[ChunkKey], *, error: str) -> None:
    """Leave rows to a person: the store refuses their points, or workers crashed with them."""
    also = "attempts = attempts + 1, last_error = :error, dead_at = now()"
    _give_back(connection, claimed.tenant, claimed.store, claimed.token, keys, also, {"error": error})


def retry_dead(connection: Connection, store: str) -> int:
    """Have rows that were given up carried once more; returns how many. On the control role."""
    statement = text("""
        update vector_outbox set dead_at = null, attempts = 0, crash_count = 0, due_at = now(), last_error = null
        where store = :store and dead_at is not null""")
    return connection.execute(statement, {"store": store}).rowcount


def _give_back(
    connection: Connection,
    tenant: UUID,
    store: str,
    token: UUID,
    keys: Sequence[ChunkKey],
    assignments: str,
    values: Json | None = None,
) -> set[ChunkKey]:
    """End the lease of rows; returns those that had it still."""
    if not keys:
        return set()
    parameters = {**_columns(keys), "tenant": tenant, "store": store, "token": token, **(values or {})}
    rows = connection.execute(_ROWS.give_back(assignments), parameters)
    return {ChunkKey(row.index_id, row.document_id, row.ord) for row in rows}


def _values(claimed: Claimed, keys: Sequence[ChunkKey]) -> Json:
    return {**_columns(keys), "tenant": claimed.tenant, "store": claimed.store, "token": claimed.token}


def _columns(keys: Sequence[ChunkKey]) -> Json:
    indexes, documents, ords = map(list, zip(*keys, strict=True)) if keys else ([], [], [])
    return {"indexes": indexes, "documents": documents, "ords": ords}


_CURRENT = text("""
    select k.index_id, k.document_id, k.ord, c.embedding, d.project_id, d.kind, d.source_type, d.security_level,
           cast(extract(epoch from coalesce(d.updated_at, d.created_at)) as double precision) as changed
    from unnest(cast(:indexes as integer[]), cast(:documents as uuid[]), cast(:ords as integer[]))
         as k(index_id, document_id, ord)
    join chunk c on c.index_id = k.index_id and c.document_id = k.document_id and c.ord = k.ord
                    and c.embedding is not null
    join document d on d.id = k.document_id and not d.hidden and not d.deleted""")


def current_chunks(connection: Connection, keys: Sequence[ChunkKey]) -> dict[ChunkKey, Any]:
    """Vectors and attributes of those chunks that searches may find now."""
    rows = connection.execute(_CURRENT, _columns(keys))
    return {ChunkKey(row.index_id, row.document_id, row.ord): row for row in rows}


def waiting_points(connection: Connection, store: str) -> set[str]:
    """Ids of this tenant's points that are in the outbox of a store."""
    statement = text("select document_id, ord from vector_outbox where store = :store")
    return {point_id(*row) for row in connection.execute(statement, {"store": store})}


# -- the store's own row -----------------------------------------------------------------------------

_STORE = Leased(table="vector_store", rows="name = :store", key="name", crashes=False)
_CLAIM_STORE = _STORE.claim("due_at <= now()", returning=_COLUMNS)
_RENEW_STORE = _STORE.renew()
_RELEASE_STORE = _STORE.give_back("")


def claim_store(connection: Connection, store: str, *, lease: float) -> tuple[StoreRow, UUID] | None:
    """Claim a store for what one worker alone does: emptying and marking. On the control role, as all below."""
    token = uuid4()
    row = (
        connection.execute(_CLAIM_STORE, {"store": store, "token": token, "lease": lease}).mappings().first()
    )
    return (StoreRow(**row), token) if row else None


def renew_store(connection: Connection, store: str, token: UUID, *, lease: float) -> bool:
    """Extend the lease on a store; False if it is lost."""
    values = {"store": store, "token": token, "lease": lease}
    return connection.execute(_RENEW_STORE, values).first() is not None


def release_store(connection: Connection, store: str, token: UUID) -> bool:
    """End the lease on a store; False if it was lost."""
    return connection.execute(_RELEASE_STORE, {"store": store, "token": token}).first() is not None


def record_emptied(connection: Connection, store: StoreRow) -> None:
    """Record that a store is empty, unless another rebuild was asked for meanwhile."""
    statement = text("""
        update vector_store set status = 'filling' where name = :store and mark = :mark and status = 'emptying'""")
    connection.execute(statement, {"store": store.name, "mark": store.mark})


def next_position(connection: Connection) -> int:
    """A position for the next mark, greater than all before."""
    return int(connection.execute(text("select nextval('vector_turn')")).scalar_one())


def last_position(connection: Connection) -> int:
    """The greatest position or turn that was ever given."""
    return int(connection.execute(text("select last_value from vector_turn")).scalar_one())


def record_mark(connection: Connection, store: StoreRow, position: int, collections: Sequence[int]) -> None:
    """Record the position that lies in these collections of the store now."""
    statement = text("""
        update vector_store set before = case when marked_at is null then 0 else position end, position = :position,
               marked_at = now(), collections = :collections
        where name = :store and mark = :mark""")
    values = {"store": store.name, "mark": store.mark, "position": position, "collections": list(collections)}
    connection.execute(statement, values)


def seconds_since_mark(connection: Connection, store: str) -> float:
    """Age of the last mark of a store that has one."""
    statement = text("select extract(epoch from now() - marked_at) from vector_store where name = :store")
    return float(connection.execute(statement, {"store": store}).scalar() or 0)


def record_success(connection: Connection, store: str) -> None:
    """Forget the failures of a store."""
    statement = text("""
        update vector_store set failures = 0, last_error = null
        where name = :store and (failures > 0 or last_error is not null)""")
    connection.execute(statement, {"store": store})


def record_failure(connection: Connection, store: str, error: str, *, seconds: float) -> None:
    """Pause a store."""
    statement = text("""
        update vector_store set failures = failures + 1, last_error = :error,
               due_at = greatest(due_at, now() + make_interval(secs => :seconds)) where name = :store""")
    connection.execute(statement, {"store": store, "error": error, "seconds": seconds})
