"""Keeping the store in shape: statistics, deferred indexes, limits of caches and records."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import text

from pipeline.ingest import work_in_progress
from pipeline.ledger import embedding_use, jobs
from pipeline.search import term_statistics
from pipeline.search.chunk_store import active_index, indexes
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
                left join (select s.tenant_id, s.refreshed_at as at from index_stat s
                           join search_index i on i.id = s.index_id and i.status = 'active') s using (tenant_id)
                group by d.tenant_id, s.at having max(d.last_indexed) > coalesce(s.at, '-infinity')"""),
        )
        stale = [row.tenant_id for row in rows]
    for tenant in stale:
        refresh_tenant(parts, tenant)


def refresh_tenant(parts: Runtime, tenant: UUID) -> None:
    """Count a tenant's lexemes anew in the index that is searched; another one is counted before it is switched to."""
    with parts.database.tenant(tenant) as connection:
        index = active_index(connection)
        if index is not None:
            term_statistics.refresh(connection, tenant, index.id)


def build_indexes(parts: Runtime) -> None:
    """Build what is due for each search index."""
    retrieval = parts.rag.retrieval
    with parts.database.control() as connection:
        found = indexes(connection)
    for index in found:
        with parts.database.control() as connection:
            keyword, vector = term_statistics.build_due(
                connection, index, exact_below=retrieval.exact_below, build_at=retrieval.build_at
            )
            term_statistics.build(connection, index, keyword=keyword, vector=vector)


def trim(parts: Runtime) -> None:
    """Caches to their size, old runs, answers, resolved dead letters and tombstones out."""
    queue = parts.rag.queue
    for tenant in tenants(parts):
        with parts.database.tenant(tenant) as connection:
            work_in_progress.trim_cache(connection, megabytes=parts.rag.embedding.cache.max_size)
            embedding_use.forget_old_claims(connection)
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
        embedding_use.forget_old_usage(connection, days=USAGE_DAYS)
        jobs.trim(connection, hours=parts.rag.enrichment.results_kept_hours)
        connection.execute(text("delete from worker where seen_at < now() - interval '1 day'"))


def record_canary(parts: Runtime, queue: str) -> None:
    """Note that a queue was served just now."""
    with parts.database.control() as connection:
        connection.execute(
            text("""
                insert into canary (queue) values (:queue)
                on conflict (queue) do update set sung_at = now()"""),
            {"queue": queue},
        )
