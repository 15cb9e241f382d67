"""What wears out in a long life: figures that drift, indexes that grow, tables that nobody cleans up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from pipeline.database.engine import driver_of, lift_statement_timeout
from pipeline.database.migrations import owner_engine

_KEY = "tenant_id, source_id, state, stage, hidden, indexed"
_DRIFT = f"""
    with there as (select {_KEY}, count(*) as documents, coalesce(sum(chunk_count), 0) as chunks
                   from (select tenant_id, source_id, state, stage, hidden, chunk_count,
                                indexed_version is not null as indexed from document where not deleted) d
                   group by {_KEY}),
    told as (select {_KEY}, sum(documents) as documents, sum(chunks) as chunks from document_count group by {_KEY}),
    drift as (
        select {_KEY}, coalesce(h.documents, 0) - coalesce(t.documents, 0) as documents,
               coalesce(h.chunks, 0) - coalesce(t.chunks, 0) as chunks
        from there h full join told t using ({_KEY})
        where coalesce(h.documents, 0) <> coalesce(t.documents, 0) or coalesce(h.chunks, 0) <> coalesce(t.chunks, 0))"""


def drift(connection: Connection) -> int:
    """By how many documents the figures of `status` and of scaling differ from what is there; on the control role."""
    lift_statement_timeout(connection)
    statement = text(f"{_DRIFT} select coalesce(sum(greatest(abs(documents), 1)), 0) from drift")
    return int(connection.execute(statement).scalar_one())


def correct_figures(connection: Connection) -> None:
    """Note the difference, as a statement that changed documents would have; on the control role."""
    lift_statement_timeout(connection)
    added = (
        f"insert into document_count ({_KEY}, documents, chunks) select {_KEY}, documents, chunks from drift"
    )
    connection.execute(text(f"{_DRIFT} {added}"))


LEAST_BYTES = 64_000_000
"""Smaller indexes are not worth a look."""
GROWN = 2.0
"""Times as large as a new one would be: half of it leads nowhere."""
_NODE = "(2 * i.dimensions + 8 + 16 * 2 * 6 + 96)"
"""Bytes of a vector in a new HNSW index: half floats, 2 x 16 neighbours of 6 bytes, headers."""


def grown(connection: Connection) -> Sequence[Row[Any]]:
    """Vector indexes (name, bytes, times) that are much larger than their chunks need: deleted ones leave holes."""
    statement = text(f"""
        select v.relname as name, pg_relation_size(v.oid) as bytes,
               pg_relation_size(v.oid) / greatest(i.chunks * {_NODE} * 1.2, 1.0) as times
        from (select i.id, i.dimensions,
                     greatest((select reltuples from pg_class where oid = to_regclass('chunk_' || i.id)), 1) as chunks
              from search_index i where i.indexed_rows is not null) i
        join pg_class v on v.oid = to_regclass('chunk_' || i.id || '_vector')
        where pg_relation_size(v.oid) > :least
          and pg_relation_size(v.oid) > :grown * i.chunks * {_NODE} * 1.2 order by 2 desc""")
    return connection.execute(statement, {"least": LEAST_BYTES, "grown": GROWN}).all()


LEAST_DEAD = 20_000
"""Rows that nobody can see any more; fewer hurt no table."""
_UNCLEAN = """
    select relname as name, n_dead_tup as dead, n_live_tup as live,
           cast(extract(epoch from now() - greatest(last_autovacuum, last_vacuum)) as double precision) as seconds
    from pg_stat_user_tables
    where schemaname = current_schema() and n_dead_tup > greatest(:least, 0.4 * n_live_tup)
    order by n_dead_tup desc"""


def unclean(connection: Connection) -> Sequence[Row[Any]]:
    """Tables (name, dead, live, seconds since vacuumed) twice over the share at which PostgreSQL cleans up."""
    return connection.execute(text(_UNCLEAN), {"least": LEAST_DEAD}).all()


def vacuums(connection: Connection) -> bool:
    """Whether PostgreSQL cleans up by itself."""
    statement = text(
        "select current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean"
    )
    return bool(connection.execute(statement).scalar_one())


def as_owner(url: str, statements: Sequence[str]) -> None:
    """Run what cannot be run within a transaction, as the owner: `vacuum`, `reindex concurrently`."""
    engine = owner_engine(url)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                with driver_of(connection) as driver:
                    driver.execute(statement)
    finally:
        engine.dispose()
