"""Document frequencies for BM25, per tenant and search index, and the deferred indexes."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.database.engine import lift_statement_timeout
from pipeline.ledger import search_indexes
from pipeline.search.chunk_store import SearchIndex
from pipeline.search.records import Quantization

_COUNT = text("""
    with fresh as materialized (select word, ndoc from ts_stat(:query)),
    gone as (delete from lexeme_stat s where s.tenant_id = :t and s.index_id = :i
             and not exists (select from fresh f where f.word = s.lexeme))
    insert into lexeme_stat (tenant_id, index_id, lexeme, chunks)
    select :t, :i, word, ndoc from fresh order by word
    on conflict (tenant_id, index_id, lexeme) do update set chunks = excluded.chunks
    where lexeme_stat.chunks <> excluded.chunks""")

_LOCK = text("select pg_advisory_xact_lock(hashtext('larder.statistics'), hashtext(:t))")
_TRY_LOCK = text("select pg_try_advisory_xact_lock(hashtext('larder.statistics'), hashtext(:t))")

# The beginning of the oldest running transaction that writes counts: rows of that transaction are not counted yet.
# Transactions of more than 30 seconds only remove documents.
_SINCE = text("""
    select least(now(), min(a.xact_start)) from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.relation = cast('document_count' as regclass) and l.mode = 'RowExclusiveLock'
      and l.database = (select oid from pg_database where datname = current_database())
      and a.xact_start > now() - interval '30 seconds'""")

_MEASURE = text("""
    insert into index_stat (tenant_id, index_id, chunks, mean_length, refreshed_at)
    select :t, :i, count(*), coalesce(avg(length), 1), :since from chunk where index_id = :i and tenant_id = :t
    on conflict (tenant_id, index_id) do update set chunks = excluded.chunks,
        mean_length = excluded.mean_length, refreshed_at = excluded.refreshed_at""")


def refresh(connection: Connection, tenant_id: UUID, index: int, *, wait: bool = True) -> None:
    """Count again how many chunks hold each lexeme: about 1 s for 94,000 chunks, and only changed rows are written.

    Lexemes of a single chunk are listed, too: a query's word that is not listed is then in no chunk, and does not
    displace one that is. With `wait=False` nothing is done while another process counts for the tenant.
    """
    lift_statement_timeout(connection)
    if wait:
        connection.execute(_LOCK, {"t": str(tenant_id)})
    elif not connection.execute(_TRY_LOCK, {"t": str(tenant_id)}).scalar_one():
        return
    since = connection.execute(_SINCE).scalar_one()
    query = f"select lexemes from chunk where index_id = {int(index)} and tenant_id = '{tenant_id}'"
    connection.execute(_COUNT, {"t": tenant_id, "i": index, "query": query})
    connection.execute(_MEASURE, {"t": tenant_id, "i": index, "since": since})


def ensure(connection: Connection, tenant_id: UUID, index: int) -> None:
    """Count lexemes if they never were, so that the first search after the first documents ranks like later ones."""
    connection.execute(_LOCK, {"t": str(tenant_id)})
    uncounted = text("""
        select not exists (select from index_stat where tenant_id = :t and index_id = :i and chunks > 0)
               and exists (select from chunk where tenant_id = :t and index_id = :i)""")
    if connection.execute(uncounted, {"t": tenant_id, "i": index}).scalar_one():
        refresh(connection, tenant_id, index)


def build_due(
    connection: Connection,
    index: SearchIndex,
    *,
    exact_below: int,
    build_at: int,
    quantization: Quantization = "halfvec",
) -> tuple[bool, bool]:
    """Decide which deferred indexes (keyword, vector) should be built now; on the control role.

    The keyword index is for all chunks, the vector index for those with a vector.

    Loading into HNSW is 4 times slower than building it afterwards, so both wait until the backlog is empty or
    there are `build_at` rows. Under `exact_below` rows an exact scan is as fast and more accurate.
    A vector index with another `quantization` is built anew.
    """
    row = connection.execute(
        text("""
            select (select coalesce(sum(chunks), 0) from document_count) as words,
                   (select coalesce(sum(chunks), 0) from document_count where indexed) as vectors,
                   exists (select from document_count where state = 'pending'
                           group by source_id having sum(documents) > 0) as busy"""),
    ).one()
    # An index that is filled beside the active one is built once it is full, since no search uses it before.
    beside = index.status != "active"
    full = not beside or not search_indexes.is_behind(connection, index.id)
    by_words, by_vectors = (
        n > 0 and full and (beside or not row.busy or n >= build_at) for n in (row.words, row.vectors)
    )
    is_built = index.indexed_rows is not None and index.quantization == quantization
    vector = by_vectors and not is_built and row.vectors >= exact_below
    return by_words and not index.keyword_built, vector


def build(
    connection: Connection,
    index: SearchIndex,
    *,
    keyword: bool,
    vector: bool,
    quantization: Quantization = "halfvec",
) -> None:
    """Build deferred indexes; reads continue, writes to the partition wait. On the control role."""
    lift_statement_timeout(connection)
    if keyword:
        connection.execute(text("select build_keyword_index(:i)"), {"i": index.id})
    if vector:
        rows = connection.execute(text("select coalesce(sum(chunks), 0) from document_count where indexed"))
        values = {"i": index.id, "n": int(rows.scalar_one()), "q": quantization}
        connection.execute(text("select build_vector_index(:i, :n, :q)"), values)
