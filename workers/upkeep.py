"""Keeping the store in shape: statistics, deferred indexes, limits of caches and records."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import text

from pipeline import staging
from pipeline.ledger import jobs, usage, vectors
from pipeline.stores import statistics
from pipeline.stores.pgvector import active_index, indexes
from workers.runtime import Runtime

USAGE_DAYS = 400
"""A bill of a year ago can still be checked."""


def tenants(parts: Runtime) -> list[UUID]:
    """Every tenant there is."""
    with parts.database.control() as connection:
        return [row.id for row in connection.execute(text("select id from tenant order by id"))]


def refresh_statistics(parts: Runtime) -> None:
    """Count lexemes anew for every tenant whose documents have changed since the last count."""
    with parts.database.control() as connection:
        rows = connection.execute(
            text("""
                select d.tenant_id from document d
                left join (select tenant_id, min(refreshed_at) as at from index_stat group by 1) s using (tenant_id)
                group by d.tenant_id, s.at having max(d.last_indexed) > coalesce(s.at, '-infinity')"""),
        )
        stale = [row.tenant_id for row in rows]
    for tenant in stale:
        refresh_tenant(parts, tenant)


def refresh_tenant(parts: Runtime, tenant: UUID) -> None:
    """Count a tenant's lexemes anew, in every index it may be searched in."""
    with parts.database.tenant(tenant) as connection:
        for index in indexes(connection):
            if index.status != "retired":
                statistics.refresh(connection, tenant, index.id)


def build_indexes(parts: Runtime) -> None:
    """Build what is due for each search index, switch to a new one that is full, drop a retired one."""
    retrieval = parts.rag.retrieval
    with parts.database.control() as connection:
        found = indexes(connection)
    for index in found:
        if index.status == "retired":
            continue
        with parts.database.control() as connection:
            keyword, vector = statistics.build_due(
                connection, index, exact_below=retrieval.exact_below, build_at=retrieval.build_at
            )
            statistics.build(connection, index, keyword=keyword, vector=vector)
        if index.status == "building":
            switch_if_full(parts, index.id, index.model, index.dimensions)


def switch_if_full(parts: Runtime, index: int, model: str, dimensions: int) -> bool:
    """Let searches read a new index once every document is in it; the one before is dropped."""
    with parts.database.control() as connection:
        waiting = connection.execute(
            text("""
                select exists (select from document where not deleted and state <> 'dead' and
                    (state = 'pending' or indexed_pipeline is distinct from pipeline_version
                     or right(pipeline_version, length(:tail)) <> :tail))"""),
            {"tail": f"|{model}:{dimensions}"},
        ).scalar_one()
        if waiting:
            return False
        old = active_index(connection)
        connection.execute(text("select activate_search_index(:i)"), {"i": index})
        if old is not None:
            connection.execute(text("select drop_search_index(:i)"), {"i": old.id})
    for tenant in tenants(parts):
        refresh_tenant(parts, tenant)
    return True


def trim(parts: Runtime) -> None:
    """Caches to their size, old runs, answers, resolved dead letters and tombstones out."""
    queue = parts.rag.queue
    for tenant in tenants(parts):
        with parts.database.tenant(tenant) as connection:
            staging.trim_cache(connection, megabytes=parts.rag.embedding.cache.max_size)
            vectors.forget_old(connection)
    with parts.database.control() as connection:
        days = {"runs": queue.keep_runs_days, "dead": queue.keep_dead_days}
        connection.execute(
            text("delete from sync_run where finished_at < now() - make_interval(days => :runs)"),
            {"runs": int(days["runs"])},
        )
        connection.execute(
            text("delete from dead_letter where resolved_at < now() - make_interval(days => :dead)"),
            {"dead": int(days["dead"])},
        )
        connection.execute(
            text(
                "delete from document where deleted and last_indexed < now() - make_interval(days => :runs)"
            ),
            {"runs": int(days["runs"])},
        )
        usage.forget_old(connection, days=USAGE_DAYS)
        jobs.trim(connection, hours=parts.rag.enrichment.results_kept_hours)
        connection.execute(text("delete from worker where seen_at < now() - interval '1 day'"))


def sing(parts: Runtime, queue: str) -> None:
    """Note that a queue was served just now."""
    with parts.database.control() as connection:
        connection.execute(
            text("""
                insert into canary (queue) values (:queue)
                on conflict (queue) do update set sung_at = now()"""),
            {"queue": queue},
        )
