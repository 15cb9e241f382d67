"""One job of any task, from claim to answer, and what a process needs before its first."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery.exceptions import SoftTimeLimitExceeded

from pipeline.actions import TASKS, Actions
from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.embedding import Embedder
from pipeline.enrichment.degradation import (
    CACHED,
    DISABLED,
    FULL,
    KEYWORDS,
    UNRANKED,
    DegradationLevel,
    answer,
)
from pipeline.errors import ConfigurationError, LarderError, LeaseLost, SearchError, pause_after
from pipeline.ledger import SHARED, jobs, project_id, renewed, visible_projects
from pipeline.search import SearchRequest
from workers.app.enrichment import stories
from workers.app.enrichment.story_jobs import SEARCH, STORE
from workers.app.ingestion import steps
from workers.monitoring import metrics, tracing
from workers.queue import dispatch
from workers.runtime import Runtime

if TYPE_CHECKING:
    from pipeline.actions.collections import CollectionStore
    from pipeline.enrichment.context import EnrichedContext


logger = logging.getLogger(__name__)

Enrich = Callable[[Json], Json]


def run(runtime: Runtime, tenant: UUID, job_id: UUID, enrich: Enrich | None = None) -> None:
    """Do a job by the entry of its task in `WORK`, if it still waits; never raises for the job's own sake.

    A database that is away in the middle leaves the claim to run out: the pump then sends the job again.
    """
    limits, begun = steps.job_limits(runtime.rag), time.monotonic()
    with suppress(LarderError):
        with runtime.database.tenant(tenant, durable=False) as connection:
            jobs.record_answer_version(connection, answer_version(runtime))
            claimed = jobs.claim(connection, job_id, lease=limits.lease)
        if claimed is None:
            return
        metrics.QUEUE_WAIT.observe(claimed.waited)
        about: dict[str, Any] = {"tenant": str(tenant), "job": str(job_id), "waited": claimed.waited}
        with tracing.span(claimed.task, within=[claimed.traceparent], **about):
            _answer(runtime, tenant, claimed, enrich, begun)


def _answer(
    runtime: Runtime, tenant: UUID, claimed: jobs.ClaimedJob, enrich: Enrich | None, begun: float
) -> None:
    lease = steps.job_limits(runtime.rag).lease
    try:
        renew = partial(_renew, runtime.database, tenant, claimed, lease)
        with renewed(renew, lease=lease, since=begun):
            work = partial(WORK[claimed.task], runtime, tenant, claimed)
            result = enrich(claimed.request) if enrich else work()
        level = result.get("degradation_level")
        with runtime.database.tenant(tenant) as connection:
            jobs.finish(connection, claimed, result, level)
            more = jobs.has_unsent(connection)
        if more:
            dispatch.wake_pump(seldom=True)
        metrics.record_job("done", level)
        tracing.set_attributes(**({} if level is None else {"degradation_level": level}))
        took = time.monotonic() - begun
        logger.info("enrichment job %s waited %.3f s and took %.3f s", claimed.id, claimed.waited, took)
    except LeaseLost:
        logger.info("enrichment job %s was taken over by another worker", claimed.id)
    except LarderError as error:
        _settle(runtime, tenant, claimed, error)
    except Exception as error:  # noqa: BLE001 (whatever it is, whoever waits must be told)
        # The place of the error, without its words: they may hold a text.
        stack = "".join(traceback.format_tb(error.__traceback__)[-4:])
        logger.error(  # noqa: TRY400 (the traceback of `exception` would tell the words)
            "enrichment failed with %s\n%s", type(error).__name__, stack
        )
        unforeseen = SearchError(
            f"the enrichment failed unexpectedly ({type(error).__name__})",
            fix="the log of worker-enrich says where; please report it",
        )
        _settle(runtime, tenant, claimed, unforeseen)


LONGEST_PAUSE = 256.0
"""Seconds until a job that failed is tried once more."""


def _settle(runtime: Runtime, tenant: UUID, claimed: jobs.ClaimedJob, error: LarderError) -> None:
    """Put a job back if its error may pass, and fail it otherwise.

    One without a deadline is tried for ever while a service is away, which is not its fault.
    """
    tracing.mark_failed(error)
    tried = claimed.attempts + 1
    endless = error.waits and claimed.deadline is None
    with runtime.database.tenant(tenant) as connection:
        if endless or (error.transient and tried < steps.job_limits(runtime.rag).attempts):
            delay = (
                error.retry_after if error.retry_after is not None else pause_after(tried, most=LONGEST_PAUSE)
            )
            jobs.put_back(connection, claimed, error, delay=delay)
            return
        with suppress(LeaseLost):
            jobs.fail(connection, claimed, error)
            metrics.record_job("failed", None)


def enricher(runtime: Runtime, tenant: UUID, project: UUID | None = None) -> Enrich:
    """Function that answers requests of a tenant as well as the servers allow; switched off, with level 5.

    It looks into `project` (None: the one that the request names, or ours), into what the tenant shares, and into those
    that the request names in `projects`.

    Raises (the function that comes back):
        SearchError: the request itself is wrong.
        ConfigurationError: the configuration is.
    """
    from pipeline.enrichment.context import static_context
    from pipeline.enrichment.enricher import Enricher
    from pipeline.enrichment.references import DocumentTexts
    from pipeline.enrichment.request import EnrichmentRequest
    from workers.app.search import retriever

    fallback = str(project or runtime.settings.project)
    if not (runtime.rag.enabled and runtime.rag.feature_flags.rag_enrichment):
        off = static_context(DISABLED)
        return lambda request: replace(off, project=str(request.get("project") or fallback)).to_json()
    search, texts = retriever(runtime, tenant), DocumentTexts(runtime.database, tenant)
    enrichers = {
        level: Enricher(partial(search.search, level=level), texts, items=runtime.rag.retrieval.rerank.top_k)
        for level in (FULL, UNRANKED, CACHED, KEYWORDS)
    }

    def enrich(request: Json) -> Json:
        parsed = EnrichmentRequest.from_json(request)
        name = parsed.project or fallback
        main_project = project or project_id(tenant, name)
        projects = visible_projects(tenant, main_project, parsed.projects)
        # Documents without a project are in the one that all share, where the item itself may be.
        item_projects = {main_project, project_id(tenant, SHARED)}

        def at(level: DegradationLevel) -> EnrichedContext | None:
            context = enrichers[level].enrich(
                parsed, projects=projects, project=main_project, item_projects=item_projects
            )
            return None if level is CACHED and context.is_empty else context

        answered, level = answer(
            {level: partial(at, level) for level in enrichers},
            health=runtime.health,
            static=static_context,
            reached=lambda context: context.degradation_level,
            passes=(ConfigurationError, LeaseLost, SoftTimeLimitExceeded),
        )
        return replace(answered, project=name, degradation_level=int(level)).to_json()

    return enrich


def _renew(database: Database, tenant: UUID, claimed: jobs.ClaimedJob, lease: float) -> bool:
    with database.tenant(tenant, durable=False) as connection:
        return jobs.renew(connection, claimed, lease=lease)


@lru_cache(maxsize=4)
def answer_version(runtime: Runtime) -> str:
    """Text that is equal where the same request finds the same: options of search and reranking, and shape."""
    from pipeline.enrichment.context import SHAPE
    from workers.app.search import options_of

    try:
        return f"{SHAPE} {options_of(runtime)!r} {runtime.rerank_options!r}"
    except LarderError:  # whoever answers a request will say so
        return str(SHAPE)


def record_answer_version(runtime: Runtime) -> bool:
    """Tell the ledger how this process makes answers, so that those made otherwise are made anew; True if told."""
    with suppress(LarderError):
        with runtime.database.control() as connection:
            jobs.record_answer_version(connection, answer_version(runtime))
        return True
    return False


def warm(runtime: Runtime) -> None:
    """Load the model and connect, so that the first job need not wait; a failure shows at the first job.

    A model whose calls are counted is not asked for it: a search by words connects as well.
    """
    from workers.app.search import retriever

    record_answer_version(runtime)
    counted = metrics.WARMING.set(True)
    with suppress(LarderError):
        embedder = runtime.embedder
        if not runtime.allowance.metered:
            embedder.embed_query("warm")
    with suppress(LarderError):
        tenant = runtime.settings.tenant_id
        enrich = enricher(runtime, tenant)
        if runtime.allowance.metered:
            retriever(runtime, tenant).search(SearchRequest(text="warm", mode="keyword"))
        else:
            enrich({"pbi": {"title": "warm"}, "scores": {}})
    metrics.WARMING.reset(counted)


class WorkerParts:
    """Embedder and collections of one tenant, for `Actions`; the collections lie in PostgreSQL."""

    def __init__(self, runtime: Runtime, tenant: UUID) -> None:
        self._runtime = runtime
        self._tenant = tenant

    def require_enabled(self, group: str) -> None:
        """Raise if this installation is switched off; which groups a workflow may use is decided by its engine.

        Raises:
            ConfigurationError: it is switched off.
        """
        if not self._runtime.rag.enabled:
            raise ConfigurationError(
                f"the workers do not serve {group}.*: Larder is switched off", fix="set rag.enabled to true"
            )

    def embedder(self, model: str | None, dimensions: int | None) -> Embedder:
        """The workers' model, loaded already; another one cannot be asked for from outside.

        Raises:
            ConfigurationError: another model or length was asked for.
        """
        loaded = self._runtime.embedder
        if (model or loaded.model, dimensions or loaded.dimensions) != (loaded.model, loaded.dimensions):
            raise ConfigurationError(
                f"the workers embed with {loaded.model} of {loaded.dimensions} dimensions and nothing else",
                fix="leave model and dimensions out",
            )
        return loaded

    def store(self) -> CollectionStore:
        """The tenant's collections."""
        from pipeline.actions.pgvector_collections import PgCollections

        return PgCollections(self._runtime.database, self._tenant)

    def redacted(self, message: str) -> str:
        """`message` unchanged: messages of Larder hold no secrets."""
        return message

    def close(self) -> None:
        """The connections are the worker's and stay open."""


def _enrich(runtime: Runtime, tenant: UUID, claimed: jobs.ClaimedJob) -> Json:
    return enricher(runtime, tenant, claimed.project_id)(claimed.request)


def _act(runtime: Runtime, tenant: UUID, claimed: jobs.ClaimedJob) -> Json:
    action = getattr(Actions(WorkerParts(runtime, tenant)), TASKS[claimed.task])
    answer: Json = action({}, **claimed.request)
    return answer


WORK: Mapping[str, Callable[[Runtime, UUID, jobs.ClaimedJob], Json]] = {
    jobs.ENRICH: _enrich,
    **dict.fromkeys(TASKS, _act),
    STORE: stories.store_job,
    SEARCH: stories.search_job,
}
"""Task of a job -> the function that does it."""
