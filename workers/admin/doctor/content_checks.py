"""The doctor's look at what tenants have stored: chunks, documents, work in progress, words, audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from pipeline.ingest import work_in_progress
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.control import maintenance
from workers.queue import dispatch
from workers.runtime import Runtime

REPAIR = "larder doctor --repair"
NAMED = 3
"""How many documents a finding names."""


def _each(parts: Runtime) -> Iterator[tuple[UUID, Connection]]:
    """One transaction per tenant: rows of two tenants are never seen together."""
    for tenant in maintenance.tenants(parts):
        with parts.database.tenant(tenant) as connection:
            yield tenant, connection


def _count(parts: Runtime, statement: TextClause) -> int:
    return sum(int(connection.execute(statement).scalar_one()) for _, connection in _each(parts))


def _run(parts: Runtime, statement: TextClause) -> None:
    for _, connection in _each(parts):
        connection.execute(statement)


# Chunks without a document ------------------------------------------------------------------------

_ORPHANS = (
    "from chunk c where not exists (select from document d where d.id = c.document_id and not d.deleted)"
)


def orphans(parts: Runtime) -> Diagnosis:
    """No chunk outlives its document."""
    found = _count(parts, text(f"select count(*) {_ORPHANS}"))
    return error(f"{found} chunks belong to no living document", REPAIR) if found else fine("none")


def delete_orphans(parts: Runtime) -> None:
    """Remove them."""
    _run(parts, text(f"delete {_ORPHANS}"))


# Documents whose chunks are not theirs ------------------------------------------------------------

# Against the index that is read, unless that one was made active a moment ago and is still filled from another.
_DAMAGED = text("""
    select d.id, d.external_id,
           exists (select from document_body b
                   where b.document_id = d.id and b.version = d.desired_version) as has_body
    from document d
    left join search_index i on i.status = 'active'
    left join index_document x on x.index_id = i.id and x.document_id = d.id
    left join chunk c on c.index_id = i.id and c.document_id = d.id
    where d.state = 'done' and not d.deleted
      and (d.indexed_version is distinct from d.desired_version or coalesce(x.version, 0) >= d.indexed_version
           or not exists (select from search_index where status <> 'active'))
    group by d.id
    having count(c.ord) <> d.chunk_count or coalesce(max(c.ord) + 1, 0) <> d.chunk_count
        or count(*) filter (where c.version <> d.indexed_version) > 0
        or d.indexed_version is distinct from d.desired_version
    order by d.external_id""")


def damaged(parts: Runtime) -> Diagnosis:
    """Every finished document has exactly its own chunks, all of one version."""
    rows = [row for _, connection in _each(parts) for row in connection.execute(_DAMAGED).all()]
    if not rows:
        return fine("every finished document has exactly its chunks")
    without = [row for row in rows if not row.has_body]
    fix = "larder index --force, since the text of some is not in the ledger" if without else REPAIR
    return error(f"{len(rows)} documents have lost, doubled or old chunks: {_names(rows)}", fix)


def _names(rows: list[Any]) -> str:
    named = ", ".join(row.external_id for row in rows[:NAMED])
    return named + (f" and {len(rows) - NAMED} more" if len(rows) > NAMED else "")


def requeue_damaged(parts: Runtime) -> None:
    """Index them again from their text, as a new version that replaces whatever is there."""
    for _, connection in _each(parts):
        ids = [row.id for row in connection.execute(_DAMAGED) if row.has_body]
        if ids:
            _requeue(connection, ids)
    dispatch.send("larder.pump", expires=10)


def _requeue(connection: Connection, ids: list[UUID]) -> None:
    # Above every version that is stored, or the store would take the new chunks for old ones.
    connection.execute(
        text("""
            update document d set state = 'pending', stage = 'fetched', attempts = 0, crash_count = 0,
                   due_at = now(), enqueued_at = null, lease_token = null, lease_until = null,
                   desired_version = 1 + greatest(d.desired_version, d.indexed_version, coalesce(
                       (select max(c.version) from chunk c where c.document_id = d.id), 0))
            where d.id in (select id from document where id = any(:ids) and state = 'done' and not deleted
                           order by id for update)"""),
        {"ids": ids},
    )
    connection.execute(
        text("""
            update document_body b set version = d.desired_version from document d
            where d.id = b.document_id and d.id = any(:ids) and d.state = 'pending'
              and b.version = (select max(o.version) from document_body o where o.document_id = d.id)"""),
        {"ids": ids},
    )


# Indexes beside the one that is read --------------------------------------------------------------

_DAMAGED_BESIDE = """
    from search_index i join index_document x on x.index_id = i.id
    cross join lateral (
        select count(*) as chunks, count(*) filter (where c.version <> x.version) as others
        from chunk c where c.index_id = x.index_id and c.document_id = x.document_id) c
    where i.status <> 'active' and x.version > 0 and (c.chunks <> x.chunk_count or c.others > 0)"""


def beside(parts: Runtime) -> Diagnosis:
    """An index that is kept or being filled has exactly the chunks that are noted for it."""
    found = _count(parts, text(f"select count(*) {_DAMAGED_BESIDE}"))
    if not found:
        return fine("every index beside the active one has exactly its chunks")
    return error(
        f"{found} documents have lost, doubled or old chunks in an index beside the active one", REPAIR
    )


def refill_beside(parts: Runtime) -> None:
    """Fill them in again, from nothing: chunks of a version that nobody noted would keep the right ones out."""
    for _, connection in _each(parts):
        rows = connection.execute(
            text(f"select x.index_id, x.document_id {_DAMAGED_BESIDE} order by 1, 2 for update of x")
        ).all()
        values = {"indexes": [row.index_id for row in rows], "ids": [row.document_id for row in rows]}
        pairs = "unnest(cast(:indexes as integer[]), cast(:ids as uuid[])) as k(index, id)"
        connection.execute(
            text(
                f"""delete from chunk c using {pairs} where c.index_id = k.index and c.document_id = k.id"""
            ),
            values,
        )
        connection.execute(
            text(f"""
                update index_document x set version = 0, chunk_count = 0, centroid = null, enqueued_at = null,
                       due_at = now(), lease_token = null, lease_until = null
                from {pairs} where x.index_id = k.index and x.document_id = k.id"""),
            values,
        )
    dispatch.send("larder.pump", expires=10)


# Work in progress that nobody waits for -----------------------------------------------------------

_STAGED = """
    from chunk_stage s where not exists (
        select from document d where d.id = s.document_id and d.state = 'pending'
        and d.desired_version = s.version)"""
_OLD_BODIES = """
    from document_body b where not exists (
        select from document d where d.id = b.document_id and d.desired_version = b.version and not d.deleted)"""


def leftovers(parts: Runtime) -> Diagnosis:
    """No staged chunk waits for a document that is settled."""
    found = _count(parts, text(f"select count(*) {_STAGED}"))
    return warning(f"{found} staged chunks of settled documents", REPAIR) if found else fine("none")


def delete_leftovers(parts: Runtime) -> None:
    """Remove them."""
    _run(parts, text(f"delete {_STAGED}"))


def old_bodies(parts: Runtime) -> Diagnosis:
    """Only the wanted text of a document is kept."""
    found = _count(parts, text(f"select count(*) {_OLD_BODIES}"))
    return warning(f"{found} texts of versions that nobody wants any more", REPAIR) if found else fine("none")


def delete_old_bodies(parts: Runtime) -> None:
    """Remove them."""
    _run(parts, text(f"delete {_OLD_BODIES}"))


def cache(parts: Runtime) -> Diagnosis:
    """The vectors kept for reuse stay within their limit."""
    size = text("select coalesce(sum(pg_column_size(e.*)), 0) from embedding_cache e")
    most = parts.rag.embedding.cache.max_size
    sizes = [int(connection.execute(size).scalar_one()) / 1e6 for _, connection in _each(parts)]
    over = [n for n in sizes if n > most]
    if over:
        return warning(f"the embedding cache of a tenant has {max(over):.0f} MB, allowed are {most}", REPAIR)
    return fine(f"{sum(sizes):.0f} MB, allowed are {most} per tenant")


def trim_cache(parts: Runtime) -> None:
    """Drop the longest unused vectors."""
    for _, connection in _each(parts):
        work_in_progress.trim_cache(connection, megabytes=parts.rag.embedding.cache.max_size)


# Words --------------------------------------------------------------------------------------------

# As long as something is pending or a run is open, counting again is still to come.
_OLD_WORDS = text("""
    select count(*) from (
        select max(d.last_indexed) as newest, sum(d.chunk_count) as chunks from document d
        where not d.deleted
          and not exists (select from document p where p.state = 'pending' and not p.deleted)
          and not exists (select from sync_run r where r.finished_at is null)
    ) d, search_index i left join index_stat s on s.index_id = i.id
    where i.status = 'active' and d.chunks > 0
      and (s.refreshed_at is null or s.refreshed_at < d.newest or s.chunks <> d.chunks)""")


def words(parts: Runtime) -> Diagnosis:
    """Keyword search knows how common the words of the newest chunks are."""
    old = _count(parts, _OLD_WORDS)
    if old:
        return warning(f"keyword statistics of {old} tenants are older than their chunks", REPAIR)
    return fine("as new as the chunks")


def refresh_words(parts: Runtime) -> None:
    """Count anew."""
    maintenance.refresh_statistics(parts)


# Audit --------------------------------------------------------------------------------------------

# The same text that audit_append hashes; each entry also names the hash of the one before it.
_BROKEN = text("""
    select count(*) filter (where prev_hash <> before or hash <> again) as broken, count(*) as entries,
           min(id) filter (where prev_hash <> before or hash <> again) as first
    from (select id, prev_hash, hash, lag(hash, 1, '') over (order by id) as before,
                 encode(sha256(convert_to(concat_ws('|', prev_hash, extract(epoch from at)::text, actor, action,
                                                    subject, detail::text), 'UTF8')), 'hex') as again
          from audit) a""")


def audit(parts: Runtime) -> Diagnosis:
    """No entry of the audit chains was changed or taken out of the middle."""
    rows = [connection.execute(_BROKEN).one() for _, connection in _each(parts)]
    broken = [row for row in rows if row.broken]
    if broken:
        return error(
            f"{sum(row.broken for row in broken)} entries do not fit their chain, the first is {broken[0].first}",
            "somebody with the owner's rights changed the table audit; compare it with a backup",
        )
    return fine(f"{sum(row.entries for row in rows)} entries fit")
