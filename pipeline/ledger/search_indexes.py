"""Search indexes beside each other: begin, switch, drop; the documents that each has, and those that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pipeline.database.engine import Transfer, lift_statement_timeout, transfer
from pipeline.errors import StoreRejected
from pipeline.ledger import ACTIVE
from pipeline.ledger.leases import Leased
from pipeline.search.chunk_store import SearchIndex, indexes


@dataclass(frozen=True, kw_only=True)
class WantedIndex:
    """Model and way of cutting of a search index to be begun."""

    provider: str
    model: str
    dimensions: int
    strategy: str = ""
    """Chunker for the documents of every source; empty: as each source is configured."""

    def __str__(self) -> str:
        cut = f", cut by {self.strategy}" if self.strategy else ""
        return f"{self.provider} {self.model}, {self.dimensions} dimensions{cut}"


def made_with(index: SearchIndex) -> WantedIndex:
    """Model and way of cutting of an index."""
    return WantedIndex(
        provider=index.provider, model=index.model, dimensions=index.dimensions, strategy=index.strategy
    )


def begin_index(connection: Connection, wanted_index: WantedIndex, *, chunker: str) -> SearchIndex:
    """Begin an empty index beside the active one, or return the one that is being filled already; on the control role.

    The caller checks whether the returned one is as wanted. Writes to the active index that are under way are waited
    for: later ones see this index, and queue documents for it.
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
    """Wait for writes and builds of indexes, and keep others from beginning until this transaction ends."""
    # In this order: a build takes minutes, and no write must queue behind a transaction that waits for one.
    for name in ("larder.search_index", "larder.switch"):
        connection.execute(text("select pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


def lock_active(connection: Connection) -> None:
    """Keep the active index the active one, and others from beginning, until this transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock_shared(hashtext('larder.switch'))"))


def activate(connection: Connection, new: SearchIndex, old: SearchIndex) -> None:
    """Let searches read `new` from the commit on; `old` is kept and filled like any other. On the control role.

    Pending work was cut for the old index; if the new one is cut in another way, it begins anew.
    """
    _lock_indexes(connection)
    connection.execute(text("select activate_search_index(:i)"), {"i": new.id})
    if new.strategy != old.strategy:
        statement = text(f"""
            update index_work set stage = 'fetched', crash_count = 0, lease_token = null, lease_until = null,
                   enqueued_at = null
            where (document_id, index_id) in (
                select document_id, index_id from index_work
                where index_id = {ACTIVE} and stage <> 'fetched' and not dead order by document_id for update)""")
        connection.execute(statement)


def drop_index(connection: Connection, index: SearchIndex) -> None:
    """Remove an index that is not read, with its chunks; on the control role.

    Raises:
        StoreRejected: it is the active one.
        StoreUnavailable: searches hold its tables for too long; try again.
    """
    if index.status == "active":
        raise StoreRejected(f"search index {index.id} is the active one", fix="switch to another one first")
    # Before the row of the index, which whoever fills it refers to while it holds its work items.
    statement = text("""
        delete from index_work where (document_id, index_id) in (
            select document_id, index_id from index_work where beside = :i order by document_id for update)""")
    connection.execute(statement, {"i": index.id})
    connection.execute(text("select drop_search_index(:i)"), {"i": index.id})


def retired_before(connection: Connection, *, days: float) -> list[SearchIndex]:
    """Indexes that have been kept for a rollback for more than `days`."""
    statement = text("""
        select id from search_index
        where status = 'retired' and retired_at < now() - make_interval(secs => :seconds)""")
    old = {row.id for row in connection.execute(statement, {"seconds": days * 86_400})}
    return [index for index in indexes(connection) if index.id in old]


def delete_statistics(connection: Connection, index: int) -> None:
    """Delete the lexeme counts of a dropped index, for this tenant."""
    for table in ("lexeme_stat", "index_stat"):
        connection.execute(text(f"delete from {table} where index_id = :i"), {"i": index})


# The one condition for a document that an index lacks; work items are a quick way to find such documents.
_BEHIND = """
    from document d left join index_document x
        on x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
    where not d.deleted and d.indexed_version is not null and coalesce(x.version, 0) < d.indexed_version"""


def never_indexed(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Documents among `ids` of which no version was ever embedded and searchable."""
    statement = text("select id from document where id = any(:ids) and indexed_version is null order by id")
    return list(connection.execute(statement, {"ids": list(ids)}).scalars())


@dataclass(frozen=True, kw_only=True)
class IndexedDocument:
    """A document as it was just written into an index."""

    document_id: UUID
    version: int
    chunks: int
    written: int = 0
    """Number of chunks that are new or changed."""
    unchanged: int = 0
    centroid: Any = None


_NOTE = Transfer(
    columns="tenant_id uuid, index_id int4, document_id uuid, version int4, chunk_count int4, centroid halfvec",
    insert="""
    insert into index_document as x (tenant_id, index_id, document_id, version, chunk_count, centroid)
    select * from {incoming} order by document_id
    on conflict (tenant_id, index_id, document_id) do update set
        version = excluded.version, chunk_count = excluded.chunk_count, centroid = excluded.centroid
    where x.version <= excluded.version""",
)


def record_indexed(
    connection: Connection, tenant_id: UUID, index: int, documents: Sequence[IndexedDocument]
) -> None:
    """Record documents that were just written into an index; an older version never replaces a newer one."""
    rows = ((tenant_id, index, h.document_id, h.version, h.chunks, h.centroid) for h in documents)
    transfer(connection, _NOTE, rows)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of filling an index, over all tenants."""

    total: int
    """Documents that are searchable in some index."""
    missing: int
    """Documents of `total` whose newest version this index lacks, dead ones included."""
    stale: int
    """Documents of `missing` of which it has an older version."""
    dead: int
    """Documents of `missing` that were given up."""
    chunks: int
    lag_seconds: float | None
    """Seconds since the first missing document became searchable elsewhere; None if none is missing."""
    last_error: str | None


def progress(connection: Connection, index: int) -> Progress:
    """The figures of one index; on the control role."""
    statement = text("""
        select count(*) as total,
               count(*) filter (where coalesce(x.version, 0) < d.indexed_version) as missing,
               count(*) filter (where x.version between 1 and d.indexed_version - 1) as stale,
               count(*) filter (where coalesce(x.version, 0) < d.indexed_version
                                  and w.dead and w.version = d.indexed_version) as dead,
               cast(coalesce(sum(x.chunk_count), 0) as bigint) as chunks,
               cast(extract(epoch from now() - min(d.last_indexed)
                    filter (where coalesce(x.version, 0) < d.indexed_version)) as double precision) as lag_seconds,
               max(w.last_error) as last_error
        from document d left join index_document x
            on x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
        left join index_work w on w.document_id = d.id and w.index_id = :index
        where not d.deleted and d.indexed_version is not null""")
    return Progress(**connection.execute(statement, {"index": index}).mappings().one())


def is_behind(connection: Connection, index: int) -> bool:
    """True if the index lacks a document; on the control role."""
    return bool(connection.execute(text(f"select exists (select {_BEHIND})"), {"index": index}).scalar_one())


def restart_check(connection: Connection, index: int) -> None:
    """Have all documents checked once more; on the control role."""
    statement = text("""
        update search_index set walk_tenant = null, walk_document = null, walked_at = null
        where id = :index and walked_at is not null""")
    connection.execute(statement, {"index": index})


def adopt_counts(connection: Connection, index: int) -> None:
    """Set the number of chunks of this tenant's documents to that in this index, once it is the active one."""
    statement = text("""
        with other as materialized (
            select d.id, x.chunk_count from index_document x join document d on d.id = x.document_id
            where x.index_id = :index and x.version = d.indexed_version and d.chunk_count <> x.chunk_count
            order by d.id for no key update of d)
        update document d set chunk_count = other.chunk_count from other where d.id = other.id""")
    lift_statement_timeout(connection)
    connection.execute(statement, {"index": index})


def of_document(connection: Connection, document_id: UUID) -> list[dict[str, Any]]:
    """Version and number of chunks of one document in each index, the active one first."""
    statement = text("""
        select i.id as index, i.model, i.status, coalesce(x.version, 0) as version,
               coalesce(x.chunk_count, 0) as chunk_count, w.last_error
        from search_index i left join index_document x on x.index_id = i.id and x.document_id = :id
        left join index_work w on w.index_id = i.id and w.document_id = :id
        order by i.status = 'active' desc, i.id desc""")
    return [dict(row) for row in connection.execute(statement, {"id": document_id}).mappings()]


# Builds of vector and keyword indexes --------------------------------------------------------------

_BUILDS = Leased(table="search_index", rows="id = :index", crashes=False)
_CLAIM_BUILD = _BUILDS.claim("build_asked_at is not null", returning="build_asked_at")
_RENEW_BUILD = _BUILDS.renew()
_BUILT = _BUILDS.give_back("build_asked_at = nullif(build_asked_at, :requested_at)")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A search index under a lease of this worker, to be built."""

    index: int
    token: UUID
    requested_at: datetime


def request_builds(connection: Connection) -> None:
    """Have a worker check which builds are due for each index; on the control role, as the functions below."""
    connection.execute(text("update search_index set build_asked_at = clock_timestamp()"))


def claim_build(connection: Connection, index: int, *, lease: float) -> Build | None:
    """Claim an index with a requested check; None if there is no request, or another worker has it."""
    token = uuid4()
    requested_at = connection.execute(_CLAIM_BUILD, {"index": index, "token": token, "lease": lease}).scalar()
    return None if requested_at is None else Build(index=index, token=token, requested_at=requested_at)


def renew_build(connection: Connection, build: Build, *, lease: float) -> bool:
    """Extend the lease; False if it is lost."""
    values = {"index": build.index, "token": build.token, "lease": lease}
    return connection.execute(_RENEW_BUILD, values).first() is not None


def finish_build(connection: Connection, build: Build) -> None:
    """End the lease on a checked index; a request that came meanwhile stays."""
    connection.execute(_BUILT, vars(build))


def is_being_built(connection: Connection, index: int) -> bool:
    """True while a build would make writes to the index wait."""
    statement = text("select coalesce(lease_until > now(), false) from search_index where id = :index")
    return bool(connection.execute(statement, {"index": index}).scalar())
