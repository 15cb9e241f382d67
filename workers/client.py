"""Asking for enrichments from any program: submit, wait, or both; no Celery is loaded for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pipeline.database import Database
from pipeline.documents import Json
from pipeline.errors import LarderError, SearchError, StoreUnavailable
from pipeline.ledger import jobs, sources
from pipeline.ledger.jobs import BULK, INTERACTIVE, JobRow
from pipeline.tenancy import project_id, tenant_id
from workers.bell import Bell
from workers.waking import Waking

if TYPE_CHECKING:
    from workers.settings import Settings

__all__ = [
    "BULK",
    "INTERACTIVE",
    "Client",
    "EnrichmentExpired",
    "EnrichmentFailed",
    "NoAnswerYet",
    "UnknownJob",
]

LOOK_SECONDS = 5.0
"""A waiter looks by itself that often, whatever has become of its alarm clock."""


class EnrichmentFailed(SearchError):
    """The enrichment failed."""


class EnrichmentExpired(SearchError):
    """No worker took the enrichment before its deadline."""


class NoAnswerYet(SearchError):
    """The enrichment is still under way."""

    transient = True


class UnknownJob(SearchError):
    """There is no such enrichment, or no longer."""


class Client:
    """Enrichments of one tenant's project; one object serves all threads of a process.

    It needs PostgreSQL. With the broker's address it rings the workers itself; without, or while the broker is away,
    the pump does so at its next stroke.
    """

    def __init__(
        self,
        database_url: str,
        *,
        broker_url: str | None = None,
        tenant: str = "default",
        project: str = "default",
        deadline: float = 120.0,
    ) -> None:
        """`deadline` is how many seconds an enrichment may take that names none; nothing is connected yet."""
        self.tenant = tenant_id(tenant)
        self.project = project_id(self.tenant, project)
        self.deadline = deadline
        self._names = (tenant, project)
        self._known = False
        self._database = Database(database_url, pool_size=4)
        self._waking = Waking(self._database, self.tenant, database_url)
        self._bell = Bell(broker_url) if broker_url else None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The client of an installation; its embedded servers are started if it uses them and they do not run.

        Raises:
            StoreUnavailable: an embedded server did not start.
        """
        database, broker = settings.database_url, settings.broker_url
        if not (database and broker):
            from workers import embedded

            servers = embedded.ensure(settings.data)
            database, broker = database or servers.database_url, broker or servers.broker_url
        return cls(
            database,
            broker_url=broker,
            tenant=settings.tenant,
            project=settings.project,
            deadline=settings.rag.enrichment.deadline_seconds,
        )

    def submit(
        self, request: Mapping[str, Any], *, priority: int = INTERACTIVE, deadline: float | None = None
    ) -> UUID:
        """Ask; the id to fetch the answer with. The same question asked again costs nothing.

        `request` is a PBI, or `{"pbi": ..., "scores": ...}`. Once this returns, the job ends as done, failed or
        expired, whatever dies. `priority` is INTERACTIVE or BULK; `deadline` the seconds in which a worker must
        have begun.

        Raises:
            StoreUnavailable: the database does not answer; nothing was asked.
            StoreRejected: the database refuses.
        """
        asked = dict(request) if "pbi" in request else {"pbi": dict(request), "scores": {}}
        seconds = self.deadline if deadline is None else deadline
        with self._database.tenant(self.tenant) as connection:
            if not self._known:
                tenant, project = self._names
                sources.ensure_tenant(connection, self.tenant, tenant, self.project, project)
            job = jobs.submit(
                connection,
                self.tenant,
                self.project,
                asked,
                priority=priority,
                seconds=seconds,
                sends=self._bell is not None,
            )
        self._known = True
        if self._bell is not None and job.new:
            self._ring(self._bell, job.id, priority, seconds)
        return job.id

    def _ring(self, bell: Bell, job_id: UUID, priority: int, seconds: float) -> None:
        if not bell.ring(self.tenant, job_id, priority=priority, expires=seconds):
            with self._database.tenant(self.tenant) as connection:
                jobs.unsent(connection, job_id)

    def job(self, job_id: UUID | str) -> JobRow:
        """How a job stands.

        Raises:
            UnknownJob: there is none of this id for this tenant, or its answer was kept long enough.
            StoreUnavailable: the database does not answer.
        """
        try:
            wanted = UUID(str(job_id))
        except ValueError:
            raise UnknownJob(
                f"{job_id!r} is no id of an enrichment", fix="give the id that submit gave"
            ) from None
        with self._database.tenant(self.tenant) as connection:
            found = jobs.get(connection, wanted)
        if found is None:
            raise UnknownJob(
                f"there is no enrichment {wanted}",
                fix="ids are those that submit gave; answers are kept for enrichment.resultsKeptHours",
            )
        return found

    def result(self, job_id: UUID | str, *, wait: float = 0.0) -> Json:
        """The answer of a job, waiting up to `wait` seconds for it; a database that is away meanwhile is waited for.

        Raises:
            NoAnswerYet: it is queued or running; ask again.
            EnrichmentFailed: it failed; the message says why.
            EnrichmentExpired: no worker took it in time.
            UnknownJob: there is no such job.
            StoreUnavailable: the database does not answer.
        """
        end = time.monotonic() + wait
        if wait <= 0:
            return _answer(self.job(job_id))
        found = self._look(job_id, end)
        if found.ended:
            return _answer(found)
        with self._waking.watch(found.id) as rung:
            while True:
                found = self._look(job_id, end)
                left = end - time.monotonic()
                if found.ended or left <= 0:
                    return _answer(found)
                rung.wait(min(left, LOOK_SECONDS))
                rung.clear()

    def _look(self, job_id: UUID | str, end: float) -> JobRow:
        while True:
            try:
                return self.job(job_id)
            except StoreUnavailable:
                left = end - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(left, 0.5))

    def enrich(
        self,
        pbi: Mapping[str, Any],
        scores: Mapping[str, Any] | None = None,
        *,
        priority: int = INTERACTIVE,
        deadline: float | None = None,
    ) -> Json:
        """Ask and wait: the context of one PBI.

        Raises:
            EnrichmentFailed: it failed; the message says why.
            EnrichmentExpired: there was no answer before the deadline.
            StoreUnavailable: the database does not answer.
        """
        seconds = self.deadline if deadline is None else deadline
        request = (
            dict(pbi) if scores is None and "pbi" in pbi else {"pbi": dict(pbi), "scores": dict(scores or {})}
        )
        job_id = self.submit(request, priority=priority, deadline=seconds)
        try:
            return self.result(job_id, wait=seconds)
        except NoAnswerYet:
            raise EnrichmentExpired(
                f"no answer within {seconds:g} seconds",
                fix="see `larder status` for what the workers do, or allow more time",
            ) from None

    def close(self) -> None:
        """Give all connections back."""
        self._waking.close()
        if self._bell is not None:
            self._bell.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(job: JobRow) -> Json:
    if job.state == "done":
        return dict(job.result or {})
    raise _why(job)


def _why(job: JobRow) -> LarderError:
    if job.state == "failed":
        return EnrichmentFailed(
            f"the enrichment failed: {job.error}", fix=f"it was tried {max(1, job.attempts)} times; ask again"
        )
    if job.state == "expired":
        return EnrichmentExpired(
            f"the enrichment expired: {job.error}", fix="see `larder status`, or allow more time"
        )
    state = "waits for a worker" if job.state == "queued" else "is being worked on"
    return NoAnswerYet(f"no answer yet: it {state}", fix="ask again with the same id")
