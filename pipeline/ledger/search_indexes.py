"""Search indexes beside each other: begin, switch, drop; what each holds of each document, and which it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pipeline.database.engine import Transfer, lift_statement_timeout, transfer
from pipeline.errors import StoreRejected
from pipeline.ledger.leases import Leased
from pipeline.search.chunk_store import SearchIndex, indexes


@dataclass(frozen=True, kw_only=True)
class WantedIndex:
    """What an index is to be made with."""

    provider: str
    model: str
    dimensions: int
    strategy: str = ""
    """Cuts the documents of every source; empty: as each source is configured."""

    def __str__(self) -> str:
        cut = f", cut by {self.strategy}" if self.strategy else ""
        return f"{self.provider} {self.model}, {self.dimensions} dimensions{cut}"


def made_with(index: SearchIndex) -> WantedIndex:
    """What an index was made with."""
    return WantedIndex(
        provider=index.provider, model=index.model, dimensions=index.dimensions, strategy=index.strategy
    )


def begin_index(connection: Connection, wanted_index: WantedIndex, *, chunker: str) -> SearchIndex:
    """An empty index beside the active one, or the one that is being filled already; on the control role.

    The caller looks whether it is the one that was wanted. What is being written to the active one at this moment is
    waited for: who writes later sees this one, and notes what it lacks.
    """
    _lock_indexes(connection)
    cut = wanted_index.strategy or chunker
    pipeline = f"{cut}|{wanted_index.model}:{wanted_index.dimensions}"
    statement = text(
        "select begin_search_index(:provider, :model, :dimensions, :chunker, :pipeline, :strategy)"
    )
    values = {**vars(wanted_index), "chunker": cut, "pipeline": pipeline}
    index_id = connection.execute(statement, values).scalar_one()
    return next(index for index in indexes(connection) if index.id == index_id)


def _lock_indexes(connection: Connection) -> None:
    """Until this transaction ends nothing is built or written, and what was being written is committed."""
    # In this order: a build takes minutes, and no write must wait behind whoever waits for it.
    for name in ("larder.search_index", "larder.switch"):
        connection.execute(text("select pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


def lock_active(connection: Connection) -> None:
    """Until this transaction ends no index begins, and no other one becomes the one that is read."""
    connection.execute(text("select pg_advisory_xact_lock_shared(hashtext('larder.switch'))"))


def activate(connection: Connection, new: SearchIndex, old: SearchIndex) -> None:
    """Let searches read `new` from the commit on; `old` is kept and followed. On the control role.

    Work that waits was cut for the old index; if the new one is cut in another way, it begins anew.
    """
    _lock_indexes(connection)
    connection.execute(text("select activate_search_index(:i)"), {"i": new.id})
    if new.strategy != old.strategy:
        statement = text("""
            update document set stage = 'fetched', lease_token = null, lease_until = null, enqueued_at = null
            where id in (select id from document where state = 'pending' and stage <> 'fetched'
                         order by id for update)""")
        connection.execute(statement)


def drop_index(connection: Connection, index: SearchIndex) -> None:
    """Remove an index that is not read, with its chunks; on the control role.

    Raises:
        StoreRejected: it is the active one.
        StoreUnavailable: searches hold its tables for too long; try again.
    """
    if index.status == "active":
        raise StoreRejected(f"search index {index.id} is the active one", fix="switch to another one first")
    connection.execute(text("select drop_search_index(:i)"), {"i": index.id})


def retired_before(connection: Connection, *, days: float) -> list[SearchIndex]:
    """Indexes that are kept for a rollback and have been for longer than so many days."""
    statement = text("""
        select id from search_index
        where status = 'retired' and retired_at < now() - make_interval(secs => :seconds)""")
    old = {row.id for row in connection.execute(statement, {"seconds": days * 86_400})}
    return [index for index in indexes(connection) if index.id in old]


def delete_statistics(connection: Connection, index: int) -> None:
    """Remove what was counted for an index that is gone, for this tenant."""
    for table in ("lexeme_stat", "index_stat"):
        connection.execute(text(f"delete from {table} where index_id = :i"), {"i": index})


# The one condition that makes an index behind; what is noted as wanted is the quick way to find such documents.
_BEHIND = """
    from document d left join index_document x
        on x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
    where not d.deleted and d.indexed_version is not null and coalesce(x.version, 0) < d.indexed_version"""


def never_indexed(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Those of the documents of which no version was ever searchable by meaning."""
    statement = text("select id from document where id = any(:ids) and indexed_version is null order by id")
    return list(connection.execute(statement, {"ids": list(ids)}).scalars())


@dataclass(frozen=True, kw_only=True)
class IndexedDocument:
    """What an index holds of one document now."""

    document_id: UUID
    version: int
    chunks: int
    written: int = 0
    """Of the chunks, those that are new or changed."""
    unchanged: int = 0
    centroid: Any = None


_NOTE = Transfer(
    columns="tenant_id uuid, index_id int4, document_id uuid, version int4, chunk_count int4, centroid halfvec",
    insert="""
    insert into index_document as x (tenant_id, index_id, document_id, version, chunk_count, centroid)
    select * from {incoming} order by document_id
    on conflict (tenant_id, index_id, document_id) do update set
        version = excluded.version, chunk_count = excluded.chunk_count, centroid = excluded.centroid,
        dead_version = null, last_error = null, attempts = 0, waits = 0, crash_count = 0, enqueued_at = null,
        lease_token = null, lease_until = null
    where x.version <= excluded.version""",
)


def record_indexed(
    connection: Connection, tenant_id: UUID, index: int, documents: Sequence[IndexedDocument]
) -> None:
    """Write down what was just made searchable; an older version never replaces a newer one."""
    rows = ((tenant_id, index, h.document_id, h.version, h.chunks, h.centroid) for h in documents)
    transfer(connection, _NOTE, rows)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an index is, over all tenants."""

    total: int
    """Documents that are searchable in some index."""
    missing: int
    """Those of them that this one lacks in their newest version, dead ones included."""
    stale: int
    """Those of the missing of which it has an older version."""
    dead: int
    """Those of the missing that were given up on."""
    chunks: int
    lag_seconds: float | None
    """How long ago the oldest of what is missing became searchable elsewhere; None if nothing is missing."""
    last_error: str | None


def progress(connection: Connection, index: int) -> Progress:
    """The figures of one index; on the control role."""
    statement = text("""
        select count(*) as total,
               count(*) filter (where coalesce(x.version, 0) < d.indexed_version) as missing,
               count(*) filter (where x.version between 1 and d.indexed_version - 1) as stale,
               count(*) filter (where coalesce(x.version, 0) < d.indexed_version
                                  and x.dead_version = d.indexed_version) as dead,
               cast(coalesce(sum(x.chunk_count), 0) as bigint) as chunks,
               cast(extract(epoch from now() - min(d.last_indexed)
                    filter (where coalesce(x.version, 0) < d.indexed_version)) as double precision) as lag_seconds,
               max(x.last_error) filter (where coalesce(x.version, 0) < d.indexed_version) as last_error
        from document d left join index_document x
            on x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
        where not d.deleted and d.indexed_version is not null""")
    return Progress(**connection.execute(statement, {"index": index}).mappings().one())


def is_behind(connection: Connection, index: int) -> bool:
    """True if the index lacks something; on the control role."""
    return bool(connection.execute(text(f"select exists (select {_BEHIND})"), {"index": index}).scalar_one())


_WANT = """
    on conflict (tenant_id, index_id, document_id) do update set wanted = excluded.wanted
    where x.wanted < excluded.wanted"""
_WANT_OF = text(f"""
    insert into index_document as x (tenant_id, index_id, document_id, wanted)
    select d.tenant_id, i.id, d.id, d.indexed_version from document d cross join search_index i
    left join index_document h on h.tenant_id = d.tenant_id and h.index_id = i.id and h.document_id = d.id
    where d.id = any(:ids) and coalesce(h.version, 0) < d.indexed_version
    order by 1, 2, 3 {_WANT}""")


def forget(connection: Connection, ids: Sequence[UUID]) -> None:
    """Remove what is noted of documents for any index; before their chunks, which a filler writes while it holds these.

    Locked in the order of their keys, as a filler does.
    """
    statement = text("""
        delete from index_document where (tenant_id, index_id, document_id) in (
            select tenant_id, index_id, document_id from index_document where document_id = any(:ids)
            order by tenant_id, index_id, document_id for update)""")
    connection.execute(statement, {"ids": list(ids)})


def enqueue_lacking(connection: Connection, ids: Sequence[UUID]) -> None:
    """Note these documents, which became searchable, for each index that lacks them."""
    connection.execute(_WANT_OF, {"ids": list(ids)})


SLICE = 5_000
"""Documents that are noted for an index in one transaction, which takes about 20 ms where it lacks few of them."""
CHECKED_HOURS = 1.0
"""After so long all documents are looked at once more, for what workers of another release did not note."""

_ENQUEUE = text(f"""
    with slice as materialized (
        select tenant_id, id, indexed_version from document
        where not deleted and indexed_version is not null and (tenant_id, id) > (:tenant, :document)
        order by tenant_id, id limit {SLICE}
    ), lacking as (
        insert into index_document as x (tenant_id, index_id, document_id, wanted)
        select tenant_id, :index, id, indexed_version from slice d
        -- Looked up one by one: a join would read what the index holds of all.
        where coalesce((select greatest(h.version, h.wanted) from index_document h where h.tenant_id = d.tenant_id
                        and h.index_id = :index and h.document_id = d.id), 0) < d.indexed_version
        order by tenant_id, id {_WANT} returning 1)
    update search_index set walk_tenant = last.tenant_id, walk_document = last.id,
           walked_at = case when last.id is null then now() end
    from (select 1) as always left join lateral (
        select tenant_id, id from slice where (select count(*) from slice) = {SLICE}
        order by tenant_id desc, id desc limit 1) last on true
    where search_index.id = :index
    returning (select count(*) from lacking)""")


def enqueue_existing(connection: Connection, index: int) -> int:
    """Write the work of an index for the next documents that are searchable elsewhere; returns for how many.

    Nothing if that was done for all of them a while ago: whatever becomes searchable since is noted with it. On the
    control role.
    """
    statement = text("""
        select coalesce(walk_tenant, :first) as tenant, coalesce(walk_document, :first) as document from search_index
        where id = :index and (walked_at is null or walked_at < now() - make_interval(secs => :seconds))""")
    values = {"index": index, "first": UUID(int=0), "seconds": CHECKED_HOURS * 3600}
    place = connection.execute(statement, values).mappings().one_or_none()
    return int(connection.execute(_ENQUEUE, {**place, "index": index}).scalar_one()) if place else 0


def restart_check(connection: Connection, index: int) -> None:
    """Have all documents looked at once more; on the control role."""
    statement = text("""
        update search_index set walk_tenant = null, walk_document = null, walked_at = null
        where id = :index and walked_at is not null""")
    connection.execute(statement, {"index": index})


def adopt_counts(connection: Connection, index: int) -> None:
    """Let the documents of this tenant tell how many chunks they have in this index, once it is the active one."""
    statement = text("""
        with other as materialized (
            select d.id, x.chunk_count from index_document x join document d on d.id = x.document_id
            where x.index_id = :index and x.version = d.indexed_version and d.chunk_count <> x.chunk_count
            order by d.id for no key update of d)
        update document d set chunk_count = other.chunk_count from other where d.id = other.id""")
    lift_statement_timeout(connection)
    connection.execute(statement, {"index": index})


def of_document(connection: Connection, document_id: UUID) -> list[dict[str, Any]]:
    """What each index holds of one document, the active one first."""
    statement = text("""
        select i.id as index, i.model, i.status, coalesce(x.version, 0) as version,
               coalesce(x.chunk_count, 0) as chunk_count, x.last_error
        from search_index i left join index_document x on x.index_id = i.id and x.document_id = :id
        order by i.status = 'active' desc, i.id desc""")
    return [dict(row) for row in connection.execute(statement, {"id": document_id}).mappings()]


# Building what was put off ------------------------------------------------------------------------

_BUILDS = Leased(table="search_index", rows="id = :index", crashes=False)
_CLAIM_BUILD = _BUILDS.claim("build_asked_at is not null", returning="build_asked_at")
_RENEW_BUILD = _BUILDS.renew()
_BUILT = _BUILDS.give_back("build_asked_at = nullif(build_asked_at, :requested_at)")


@dataclass(frozen=True, kw_only=True)
class Build:
    """An index that is ours to build."""

    index: int
    token: UUID
    requested_at: datetime


def request_builds(connection: Connection) -> None:
    """Have somebody look what is due for each index; on the control role, as the rest."""
    connection.execute(text("update search_index set build_asked_at = clock_timestamp()"))


def claim_build(connection: Connection, index: int, *, lease: float) -> Build | None:
    """Take an index that somebody is asked to look at; None if nobody is, or somebody does."""
    token = uuid4()
    requested_at = connection.execute(_CLAIM_BUILD, {"index": index, "token": token, "lease": lease}).scalar()
    return None if requested_at is None else Build(index=index, token=token, requested_at=requested_at)


def renew_build(connection: Connection, build: Build, *, lease: float) -> bool:
    """Keep it for another lease; False if it is no longer ours."""
    values = {"index": build.index, "token": build.token, "lease": lease}
    return connection.execute(_RENEW_BUILD, values).first() is not None


def finish_build(connection: Connection, build: Build) -> None:
    """It was looked at, and nobody is at it any more; what was asked for meanwhile is looked at next."""
    connection.execute(_BUILT, vars(build))


def is_being_built(connection: Connection, index: int) -> bool:
    """True while writes to it would have to wait."""
    statement = text("select coalesce(lease_until > now(), false) from search_index where id = :index")
    return bool(connection.execute(statement, {"index": index}).scalar())
