"""Asking for enrichments from any program: submit, wait, or both; no Celery is loaded for it."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from sqlalchemy import Connection

from pipeline.database.engine import Database
from pipeline.database.tenancy import project_id, tenant_id
from pipeline.documents import Json
from pipeline.enrichment.degradation import CACHED, FULL
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import clipped
from pipeline.errors import ConfigurationError, LarderError, SearchError, StoreUnavailable
from pipeline.ledger import jobs, sources
from pipeline.ledger.jobs import BULK, ENRICH, INTERACTIVE, JobRow
from workers.admin import feedback
from workers.enrichment.messaging import JobNotifications, JobPublisher
from workers.processes import metrics

if TYPE_CHECKING:
    from workers.settings import Settings
    from workers.settings.models import ResultCacheSettings


__all__ = [
    "BULK",
    "INTERACTIVE",
    "Client",
    "EnrichmentExpired",
    "EnrichmentFailed",
    "NoAnswerYet",
    "UnknownJob",
]

_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
AT_ONCE = 8
"""Connections that are kept open: as many as Step 4 has PBIs in flight."""
LOOK_SECONDS = 5.0
"""A waiter looks by itself that often, whatever has become of its alarm clock."""
REST_SECONDS = 5.0
"""A database that was waited for in vain is left alone for a while, so that many askers do not wait one by one."""
AWAY_SECONDS = 10.0
"""Whoever asks for an answer now, and not for a job by its id, waits that long for a database to come back."""


class EnrichmentFailed(SearchError):
    """The enrichment failed."""


class EnrichmentExpired(SearchError):
    """No worker took the enrichment before its deadline."""


class NoAnswerYet(SearchError):
    """The enrichment is still under way."""

    transient = True


class UnknownJob(SearchError):
    """There is no such enrichment, or no longer."""


class AnswerCache:
    """The last answers of one process, bounded and in its memory; texts of documents go nowhere else."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`entries` answers are kept for at most `seconds` each; those not used for the longest time go first."""
        self._entries = entries
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, cache: ResultCacheSettings) -> Self:
        """As large and as long as the searches' own cache; nothing is kept where that is switched off."""
        return cls(entries=cache.max_entries if cache.enabled else 0, seconds=cache.ttl)

    def keep(self, project: UUID, request: Json, answer: Json) -> None:
        """Remember an answer, unless its degradation level is 2 or worse."""
        level = answer.get("degradation_level", FULL)
        if isinstance(level, int) and level < CACHED:
            self._put(
                jobs.submission_key(project, request), self._clock() + self._seconds, json.dumps(answer)
            )

    def get(self, project: UUID, request: Json) -> Json | None:
        """The answer to the very same request, with level 2; None if it is not remembered."""
        key = jobs.submission_key(project, request)
        with self._lock:
            until, kept = self._kept.pop(key, (0.0, ""))
        if not kept or until <= self._clock():
            return None
        self._put(key, until, kept)
        return {**json.loads(kept), "degradation_level": int(CACHED)}

    def _put(self, key: bytes, until: float, answer: str) -> None:
        with self._lock:
            self._kept[key] = until, answer
            self._kept.move_to_end(key)
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)


class Client:
    """Enrichments of one tenant's project; one object serves all threads of a process.

    It needs PostgreSQL. With the broker's address it tells the workers itself; without, or while the broker is away,
    the pump does so the next time it looks.
    """

    def __init__(
        self,
        database_url: str,
        *,
        broker_url: str | None = None,
        tenant: str = "default",
        project: str = "default",
        deadline: float = 120.0,
        answer_timeout: float = 5.0,
        answers: AnswerCache | None = None,
    ) -> None:
        """`deadline` is how many seconds an enrichment may take that names none; nothing is connected yet.

        `answer_timeout` is how many seconds the database may say nothing at all until it counts as gone. `answers`
        holds what `enrich` gives again when there is no other answer.

        Raises:
            ConfigurationError: `database_url` is no address of a PostgreSQL.
        """
        if not database_url.startswith(_SCHEMES):
            # Not quoted: it may hold a password.
            raise ConfigurationError(
                "database_url is no address of a PostgreSQL",
                fix="write postgresql://USER:PASSWORD@HOST:5432/larder",
            )
        self.tenant = tenant_id(tenant)
        self.project = project_id(self.tenant, project)
        self.deadline = deadline
        self.answers = answers or AnswerCache()
        self._names = (tenant, project)
        self._known = self._closed = False
        self._database = Database(database_url, pool_size=AT_ONCE, answer_timeout=answer_timeout)
        self._answer_timeout = answer_timeout
        self._resting_until = 0.0
        self._notifications = JobNotifications(
            self._database, self.tenant, database_url, answer_timeout=answer_timeout
        )
        self._publisher = JobPublisher(broker_url) if broker_url else None

    @classmethod
    def of(cls, settings: Settings, database: str | None = None, broker: str | None = None) -> Self:
        """The client of an installation, of which the addresses of its servers may be known already.

        Its embedded servers are started if it uses them and they do not run.

        Raises:
            StoreUnavailable: an embedded server did not start.
        """
        database, broker = database or settings.database_url, broker or settings.broker_url
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
            answers=AnswerCache.of(settings.rag.retrieval.cache),
        )

    def submit(
        self,
        request: Mapping[str, Any],
        *,
        project: str | None = None,
        projects: Sequence[str] = (),
        priority: int = INTERACTIVE,
        deadline: float | None = None,
    ) -> UUID:
        """Ask; the id to fetch the answer with. The same question asked again costs nothing.

        `request` is a PBI, or `{"pbi": ..., "scores": ...}`. Once this returns, the job ends as done, failed or
        expired, whatever dies. `priority` is INTERACTIVE or BULK; `deadline` the seconds in which a worker must
        have begun.

        The answer comes from the documents of one project and from those that the tenant shares, which are the
        project `default`. It is `project`, else the one that the request names, else the client's own; `projects` are
        searched besides, and `*` is all of the tenant.

        Raises:
            RequestRejected: it is none; the message names the field, and nothing was asked.
            StoreUnavailable: the database does not answer; nothing was asked.
            StoreRejected: the database refuses.
        """
        return self._submit(self._request(request, project, projects), priority, deadline)

    def _submit(self, request: Json, priority: int, deadline: float | None) -> UUID:
        own = project_id(self.tenant, request["project"])
        return self.ask(ENRICH, request, project=own, priority=priority, deadline=deadline)

    def _request(self, request: Mapping[str, Any], project: str | None, projects: Sequence[str]) -> Json:
        """The request, checked and in one form, with the project that it is about."""
        asked = EnrichmentRequest.from_json(request)
        where = {
            "project": project or asked.project or self._names[1],
            "projects": projects or asked.projects,
        }
        named = EnrichmentRequest.from_json({"pbi": asked.pbi, **where})
        return replace(asked, project=named.project, projects=named.projects).to_json()

    def ask(
        self,
        task: str,
        request: Json,
        *,
        project: UUID | None = None,
        priority: int = INTERACTIVE,
        deadline: float | None = None,
    ) -> UUID:
        """Ask for the work of any task that answers jobs; the rest is as with `submit`."""
        seconds = self.deadline if deadline is None else deadline
        with self._store() as connection:
            if not self._known:
                tenant, name = self._names
                sources.ensure_tenant(connection, self.tenant, tenant, self.project, name)
            job = jobs.submit(
                connection,
                self.tenant,
                project or self.project,
                request,
                task=task,
                priority=priority,
                seconds=seconds,
                sends=self._publisher is not None,
            )
        self._known = True
        if self._publisher is not None and job.new:
            told = self._publisher.publish(self.tenant, job.id, priority=priority, expires=seconds, task=task)
            if not told:
                with self._store() as connection:
                    jobs.unsent(connection, job.id)
        return job.id

    @contextmanager
    def _store(self) -> Iterator[Connection]:
        """A transaction; at once refused for a while after one was waited for in vain."""
        begun = time.monotonic()
        if begun < self._resting_until:
            raise StoreUnavailable("the database did not answer a moment ago", fix="see `larder doctor`")
        try:
            with self._database.tenant(self.tenant) as connection:
                yield connection
        except StoreUnavailable:
            if time.monotonic() - begun >= self._answer_timeout:
                self._resting_until = time.monotonic() + REST_SECONDS
            raise

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
                f"{clipped(str(job_id))!r} is no id of an enrichment", fix="give the id that submit gave"
            ) from None
        with self._store() as connection:
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
        if wait <= 0:
            return _answer_of(self.job(job_id))
        return self._wait(job_id, time.monotonic() + wait, away=wait)

    def _wait(self, job_id: UUID | str, end: float, *, away: float) -> Json:
        """The answer, until `end`; a database may be away for `away` seconds of it."""
        found = self._look(job_id, end, away)
        if found.ended:
            return _answer_of(found)
        with self._notifications.watch(found.id) as ended:
            while True:
                found = self._look(job_id, end, away)
                left = end - time.monotonic()
                if found.ended or left <= 0:
                    return _answer_of(found)
                if self._closed:
                    raise CancelledError("the client was closed")
                ended.wait(min(left, LOOK_SECONDS))
                ended.clear()

    def _look(self, job_id: UUID | str, end: float, away: float) -> JobRow:
        end = min(end, time.monotonic() + away)
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
        project: str | None = None,
        projects: Sequence[str] = (),
        priority: int = INTERACTIVE,
        deadline: float | None = None,
    ) -> Json:
        """Ask and wait: the context of one PBI; its projects are those of `submit`.

        If there is no answer to be had, the one that this process got to the very same request a short while ago is
        given again, with level 2.

        Raises:
            RequestRejected: it is no request; the message names the field.
            EnrichmentFailed: it failed; the message says why.
            EnrichmentExpired: there was no answer before the deadline.
            CancelledError: another thread closed this client meanwhile; the job goes on.
            StoreUnavailable: the database does not answer.
        """
        seconds = self.deadline if deadline is None else deadline
        request = self._request(
            pbi if scores is None and "pbi" in pbi else {"pbi": pbi, "scores": scores or {}},
            project,
            projects,
        )
        try:
            found = self._asked(request, priority, seconds)
        except LarderError as error:
            metrics.fell_back(error)
            kept = self.answers.get(self.project, request)
            if kept is None:
                raise
            return kept
        self.answers.keep(self.project, request, found)
        return found

    def _asked(self, request: Json, priority: int, seconds: float) -> Json:
        end = time.monotonic() + seconds
        job_id = self._submit(request, priority, seconds)
        try:
            return self._wait(job_id, end, away=AWAY_SECONDS)
        except NoAnswerYet:
            raise EnrichmentExpired(
                f"no answer within {seconds:g} seconds",
                fix="see `larder status` for what the workers do, or allow more time",
            ) from None

    def feedback(
        self,
        item: str,
        ref: str,
        verdict: str,
        *,
        project: str | None = None,
        source: str | None = None,
        by: str = "client",
    ) -> Json:
        """Say that a document is `useful` or `noise` for an item, or `undo` that; what was said of it before ends.

        `item` is the id of a PBI that was asked about or of an indexed document, or a question's text; `ref` the `ref`
        or `document_id` of an answer; `project` is the item's and `source` the document's, if several have that id;
        `by` is whoever says so.

        Raises:
            RequestRejected: one of them is no text; the message names it.
            ConfigurationError: one of them is unknown or means several; the message says what there is.
            StoreUnavailable: the database does not answer; nothing was said.
        """
        with self._store() as connection:
            return feedback.mark(
                connection, self.tenant, item, ref, verdict, project=project, source=source, by=by
            )

    def close(self) -> None:
        """Give all connections back; whoever still waits in another thread is let go with a CancelledError."""
        self._closed = True
        self._notifications.close()
        if self._publisher is not None:
            self._publisher.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer_of(job: JobRow) -> Json:
    """The answer of a job that is done; of any other the error is raised."""
    if job.state == "done":
        return dict(job.result or {})
    if job.state == "failed":
        raise EnrichmentFailed(
            f"the enrichment failed: {job.error}",
            fix=f"it was tried {job.attempts} times; ask again" if job.attempts > 1 else "",
        )
    if job.state == "expired":
        raise EnrichmentExpired(
            f"the enrichment expired: {job.error}", fix="see `larder status`, or allow more time"
        )
    state = "waits for a worker" if job.state == "queued" else "is being worked on"
    raise NoAnswerYet(f"no answer yet: it {state}", fix="ask again with the same id")
