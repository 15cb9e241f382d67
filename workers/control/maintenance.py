"""Keeping the store in shape: statistics, deferred indexes, limits of caches and records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection

from pipeline.ingest import work_in_progress
from pipeline.ledger import embedding_use, upkeep
from pipeline.search import term_statistics
from pipeline.search.chunk_store import active_index, indexes
from workers.runtime import Runtime

_Found = TypeVar("_Found")


def tenants(parts: Runtime) -> list[UUID]:
    """Every tenant there is."""
    with parts.database.control() as connection:
        return upkeep.tenants(connection)


def each_tenant(parts: Runtime, do: Callable[[Connection], _Found]) -> list[_Found]:
    """What is found for each tenant, in a transaction of its own: rows of two tenants are never seen together."""
    found = []
    for tenant in tenants(parts):
        with parts.database.tenant(tenant) as connection:
            found.append(do(connection))
    return found


def refresh_statistics(parts: Runtime) -> None:
    """Count lexemes anew for every tenant whose documents have changed since the last count."""
    with parts.database.control() as connection:
        stale = upkeep.tenants_to_count(connection)
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
    megabytes = parts.rag.embedding.cache.max_size
    each_tenant(parts, lambda connection: work_in_progress.trim_cache(connection, megabytes=megabytes))
    each_tenant(parts, embedding_use.forget_old_claims)
    with parts.database.control() as connection:
        hours = parts.rag.enrichment.results_kept_hours
        runs, dead = int(queue.keep_runs_days), int(queue.keep_dead_days)
        upkeep.trim(connection, runs_days=runs, dead_days=dead, answers_hours=hours)


def record_canary(parts: Runtime, queue: str) -> None:
    """Note that a queue was served just now."""
    with parts.database.control() as connection:
        upkeep.record_canary(connection, queue)
