"""Keeping the store in shape: statistics, deferred indexes, limits of caches and records."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection

from pipeline.errors import LarderError
from pipeline.ingest import hints, work_in_progress
from pipeline.ledger import audit, embedding_use, renewed, search_indexes, sources, upkeep
from pipeline.search import term_statistics
from pipeline.search.chunk_store import SearchIndex, active_index, indexes
from pipeline.search.stores import outbox
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_REQUESTS, _REQUEST_END = os.pipe()
"""Pipe from the processes of a worker, which ask for builds, to the one that forked them and builds."""
os.set_blocking(_REQUESTS, False)
os.set_blocking(_REQUEST_END, False)


def tenants(runtime: Runtime) -> list[UUID]:
    """Every tenant there is."""
    with runtime.database.control() as connection:
        return list(sources.tenant_names(connection))


def each_tenant(runtime: Runtime, do: Callable[[Connection], _Result]) -> list[_Result]:
    """Results of `do` for each tenant, in a transaction of its own: rows of two tenants are never seen together."""
    return [_as_tenant(runtime, tenant, do) for tenant in tenants(runtime)]


def _as_tenant(runtime: Runtime, tenant: UUID, do: Callable[[Connection], _Result]) -> _Result:
    with runtime.database.tenant(tenant) as connection:
        return do(connection)


def refresh_statistics(runtime: Runtime) -> None:
    """Count lexemes anew for every tenant whose documents have changed since the last count."""
    with runtime.database.control() as connection:
        stale = upkeep.tenants_to_count(connection)
    for tenant in stale:
        _apart(partial(refresh_tenant, runtime, tenant, wait=False))


def _apart(do: Callable[[], object]) -> None:
    """Log the error of a part of the upkeep and go on with the others; the failed part is done again next time."""
    try:
        do()
    except LarderError as error:
        logger.warning("a part of the upkeep was left out: %s", error)


def refresh_tenant(runtime: Runtime, tenant: UUID, *, wait: bool = True) -> None:
    """Count a tenant's lexemes anew in the index that is searched; another one is counted before it is switched to."""
    with runtime.database.tenant(tenant) as connection:
        index = active_index(connection)
        if index is not None:
            term_statistics.refresh(connection, tenant, index.id, wait=wait)


def request_builds(runtime: Runtime) -> None:
    """Ask for a look at which indexes must be built, and return; a build may take hours."""
    with runtime.database.control() as connection:
        search_indexes.request_builds(connection)
    with suppress(BlockingIOError):  # it is full of what nobody reads
        os.write(_REQUEST_END, b"?")


def wait_for_request(seconds: float) -> None:
    """Wait until a process of this worker asks for builds, at most `seconds`: other workers may have asked by then."""
    poller = select.poll()
    poller.register(_REQUESTS, select.POLLIN)
    if poller.poll(seconds * 1000):
        with suppress(BlockingIOError):  # a worker beside this one was quicker
            os.read(_REQUESTS, 4096)


def build_requested(runtime: Runtime) -> None:
    """Build what is due for each search index that was asked for, unless somebody else is at it."""
    lease = runtime.rag.queue.lease_seconds
    _apart(partial(_build_stories, runtime))
    with runtime.database.control() as connection:
        all_indexes = indexes(connection)
    for index in all_indexes:
        with runtime.database.control() as connection:
            claimed = search_indexes.claim_build(connection, index.id, lease=lease)
            if claimed is None:
                continue
            due = _due_builds(runtime, connection, index)
            if not any(due):  # in one transaction, so that no document meets the lease and waits for a build
                search_indexes.finish_build(connection, claimed)
                continue
        try:
            with renewed(partial(_renew_build, runtime, claimed, lease), lease=lease):
                _build(runtime, index, keyword=due[0], vector=due[1])
        except LarderError as error:
            logger.warning("what was put off of search index %d could not be built: %s", index.id, error)
        finally:  # one that fails is tried when somebody asks again: until then writes go on
            with runtime.database.control() as connection:
                search_indexes.finish_build(connection, claimed)


def _build_stories(runtime: Runtime) -> None:
    from pipeline.stories.store import build_index  # with all of user stories, which status asks nothing of

    with runtime.database.control() as connection:
        build_index(connection, runtime.rag.story_embedding.dimensions)


def _renew_build(runtime: Runtime, claimed: search_indexes.Build, lease: float) -> bool:
    with runtime.database.control() as connection:
        return search_indexes.renew_build(connection, claimed, lease=lease)


def build_indexes(runtime: Runtime) -> None:
    """Build what is due for each search index, here and now."""
    with runtime.database.control() as connection:
        due_builds = [(one, _due_builds(runtime, connection, one)) for one in indexes(connection)]
    for index, due in due_builds:
        _build(runtime, index, keyword=due[0], vector=due[1])


def _due_builds(runtime: Runtime, connection: Connection, index: SearchIndex) -> tuple[bool, bool]:
    retrieval = runtime.rag.retrieval
    keyword, vector = term_statistics.build_due(
        connection,
        index,
        exact_below=retrieval.exact_below,
        build_at=retrieval.build_at,
        quantization=retrieval.quantization,
    )
    # A foreign store saves the memory of a vector index.
    return keyword, vector and not outbox.is_foreign(connection)


def _build(runtime: Runtime, index: SearchIndex, *, keyword: bool, vector: bool) -> None:
    def build(kind: Mapping[str, bool]) -> None:
        with runtime.database.control() as connection:
            term_statistics.build(connection, index, **kind, quantization=runtime.rag.retrieval.quantization)

    # Beside each other, since each is made by one process of the server.
    with ThreadPoolExecutor() as pool:
        list(pool.map(build, ({"keyword": keyword, "vector": False}, {"keyword": False, "vector": vector})))


def trim(runtime: Runtime) -> None:
    """Caches to their size; old runs, answers, letters, tombstones, audit entries and ownerless chunks out.

    In many small transactions: what is done stays done, and one that fails keeps the others from nothing.
    """
    queue = runtime.rag.queue
    megabytes = runtime.rag.embedding.cache.max_size
    of_tenants: tuple[Callable[[Connection], object], ...] = (
        partial(work_in_progress.trim_cache, megabytes=megabytes),
        embedding_use.forget_old_claims,
        partial(upkeep.delete, from_clause=upkeep.ORPHANS),
    )
    for tenant in tenants(runtime):
        for do in of_tenants:
            _apart(partial(_as_tenant, runtime, tenant, do))
        _apart(partial(_prune_audit, runtime, tenant))
    with runtime.database.control() as connection:
        upkeep.trim_usage_and_workers(connection)
        hints.trim(connection)
    hours = runtime.rag.enrichment.results_kept_hours
    runs, dead = int(queue.keep_runs_days), int(queue.keep_dead_days)
    for table in upkeep.AGED:
        more = True
        while more:
            with runtime.database.control() as connection:
                more = upkeep.trim(connection, table, runs_days=runs, dead_days=dead, answers_hours=hours)


def _prune_audit(runtime: Runtime, tenant: UUID) -> None:
    while _as_tenant(runtime, tenant, partial(audit.prune, days=runtime.rag.security.audit_days)):
        pass


def record_canary(runtime: Runtime, queue: str) -> None:
    """Note that a queue was served just now."""
    with runtime.database.control() as connection:
        upkeep.record_canary(connection, queue)
