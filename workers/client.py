"""Asking for enrichments from any program: submit, wait, or both; no Celery is loaded for it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Connection
from tenacity import Retrying, retry_if_exception_type, wait_fixed

from pipeline.access import ADMIN, UNNAMED, WRITE, Caller, Operator
from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.enrichment.degradation import CACHED, FULL
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import truncated
from pipeline.errors import (
    ConfigurationError,
    LarderError,
    NotFound,
    RequestRejected,
    StoreUnavailable,
)
from pipeline.ledger import ALL, audit, jobs, project_id, sources, tenant_id
from pipeline.ledger.jobs import ENRICH, INTERACTIVE, JobRow
from pipeline.search.cache import MemoryCache
from workers.app import feedback
from workers.app.enrichment.answers import (
    EnrichmentExpired,
    EnrichmentFailed,
    NoAnswerYet,
    UnknownJob,
    answer_of,
    job_uuid,
    may_read,
)
from workers.app.enrichment.client_interface import KnowledgeClient
from workers.app.enrichment.messaging import JobNotifications, JobPublisher
from workers.app.enrichment.story_jobs import StoryMethods, audited
from workers.app.search import request_of, search, search_as, to_json
from workers.monitoring import metrics, tracing
from workers.queue.rest import Rest
from workers.runtime import Addresses, Runtime, current_user
from workers.settings import Configuration, Settings

__all__ = ["Client", "EnrichmentExpired", "EnrichmentFailed", "NoAnswerYet", "UnknownJob"]

_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
AT_ONCE = 8
"""Connections that are kept open: as many as Step 4 has PBIs in flight."""
LOOK_SECONDS = 5.0
"""A waiter looks by itself that often, whatever has become of its alarm clock."""
AWAY_SECONDS = 10.0
"""Seconds for which `enrich`, unlike a look at a job by its id, waits for a database to come back."""


class Client(StoryMethods, KnowledgeClient):
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
        answers: MemoryCache[str] | None = None,
        database: Database | None = None,
        publisher: JobPublisher | None = None,
        settings: Settings | None = None,
        caller: Caller | None = None,
    ) -> None:
        """`deadline` is how many seconds an enrichment may take that names none; nothing is connected yet.

        `answer_timeout` is how many seconds the database may say nothing at all until it counts as gone. `answers`
        holds what `enrich` gives again when there is no other answer. `database` and `publisher` are those of a process
        that serves many tenants; they are not closed with the client. `settings` say how to search and read, by default
        all as without a configuration. Answers hold what `caller` may see; without one, those of Step 4 what is for all
        of the tenant, since many are likely to read them, and those of a search everything.

        Raises:
            ConfigurationError: `database_url` is no address of a PostgreSQL, or `broker_url` none of a broker.
        """
        if not database_url.startswith(_SCHEMES):
            # Not quoted: it may hold a password.
            fix = "write postgresql://USER:PASSWORD@HOST:5432/larder"
            raise ConfigurationError("database_url is no address of a PostgreSQL", fix=fix)
        self.tenant = tenant_id(tenant)
        self.project = project_id(self.tenant, project)
        self.deadline = deadline
        self._caller = caller
        self._answers = answers or MemoryCache()
        self._names = (tenant, project)
        self._known = self._closed = False
        self._opened: Runtime | None = None
        """Runtime for searches and uploads; None until the first one."""
        self._settings, self._addresses = settings, (database_url, broker_url or "")
        self._shared = database is not None
        self._database = database or Database(database_url, pool_size=AT_ONCE, answer_timeout=answer_timeout)
        self._answer_timeout = answer_timeout
        self._rest = Rest()
        self._notifications = JobNotifications(self._database, database_url, answer_timeout=answer_timeout)
        self._publisher = publisher or (JobPublisher(broker_url) if broker_url else None)

    @classmethod
    def of(cls, settings: Settings, database: str | None = None, broker: str | None = None) -> Self:
        """The client of an installation, of which the addresses of its servers may be known already.

        Raises:
            ConfigurationError, StoreUnavailable: as `locating.addresses` does.
        """
        tracing.configure(settings.rag.monitoring.tracing)
        cache = settings.rag.retrieval.cache
        if not (database and broker):
            from workers.local.embedded.locating import addresses

            server_addresses = addresses(settings)
            database, broker = server_addresses.database, server_addresses.broker
        return cls(
            database,
            broker_url=broker,
            tenant=settings.tenant,
            project=settings.project,
            deadline=settings.rag.enrichment.deadline_seconds,
            answers=MemoryCache(entries=cache.max_entries if cache.enabled else 0, seconds=cache.ttl),
            settings=settings,
        )

    @classmethod
    def of_runtime(
        cls, runtime: Runtime, tenant: str, project: str, publisher: JobPublisher | None = None
    ) -> Self:
        """The client of a tenant in a process that has a runtime, which is not closed with the client."""
        return cls(
            runtime.addresses.database,
            tenant=tenant,
            project=project,
            deadline=runtime.rag.enrichment.deadline_seconds,
            database=runtime.database,
            publisher=publisher,
            settings=runtime.settings,
        )

    @property
    def _runtime(self) -> Runtime:
        """Runtime for searches and uploads; the model is loaded with the first query."""
        from workers.queue.app import configure

        if self._opened is not None:
            return self._opened
        settings = self._settings or Settings(rag=Configuration(), path=None, folder=Path.cwd())
        database, broker = self._addresses
        configure(settings.rag.queue, broker, send_only=True)
        server_addresses = Addresses(
            database=database, control=database, broker=broker, valkey_url=settings.valkey_url or ""
        )
        self._opened = Runtime(settings, server_addresses, database=self._database)
        return self._opened

    @property
    def _writer(self) -> Caller:
        """The caller that uploads and marks.

        Raises:
            Forbidden: the client's caller, who may not.
        """
        writer = self._caller or Operator(
            tenant=self.tenant,
            tenant_name=self._names[0],
            subject=current_user(),
            projects=(ALL,),
            permissions=frozenset({ADMIN}),
        )
        return writer.require(WRITE)

    def search(self, text: str, *, projects: Sequence[str] = (), **options: Any) -> Json:
        """The document of `larder search --json`, from these projects or all of the tenant.

        `options` are those of `workers.app.search.request_of`.

        Raises:
            RequestRejected: an option is wrong; the message names it.
            StoreUnavailable: the database does not answer.
        """
        request = request_of(text, **options)
        if self._caller:
            results = search_as(self._runtime, self._caller, request, projects)
            return to_json(self._runtime, self.tenant, results)
        project_ids = tuple(sorted({project_id(self.tenant, name) for name in projects})) if projects else ALL
        request = replace(request, filter=replace(request.filter, projects=project_ids))
        results = search(self._runtime, self.tenant, request, by=current_user())
        return to_json(self._runtime, self.tenant, results)

    def upload(
        self,
        files: Sequence[tuple[str, bytes]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        *,
        project: str | None = None,
    ) -> Json:
        """Send files (name, content) or documents to a project, by default the client's; as `control.upload.upload`.

        A project that is not there is made, unless the client has a caller.

        Raises:
            RequestRejected: there is nothing, or too much, to take.
            NotFound: there is no such project.
            Forbidden: it is not the caller's, or they may not write.
            StoreUnavailable: the database does not answer.
        """
        from workers.app.ingestion.upload import create_project, upload

        name, writer = project or self._names[1], self._writer
        if not self._caller:
            create_project(self._runtime, writer, name)
        return upload(self._runtime, writer, name, files, documents)

    def submit(
        self,
        request: Mapping[str, Any],
        *,
        project: str | None = None,
        projects: Sequence[str] = (),
        priority: int = INTERACTIVE,
        deadline: float | None = None,
        caller: Caller | None = None,
    ) -> UUID:
        """Ask; the id to fetch the answer with. The same question asked again costs nothing.

        `request` is a PBI, or `{"pbi": ..., "scores": ...}`. Once this returns, the job ends as done, failed or
        expired, whatever dies. `priority` is INTERACTIVE or BULK of `pipeline.ledger.jobs`; `deadline` the seconds in
        which a worker must have begun.

        The answer comes from the documents of one project and from those that the tenant shares, which are the
        project `default`. It is `project`, else the one that the request names, else the client's own; `projects` are
        searched besides, and `*` is all of the tenant. With a `caller`, else that of the client, it holds what they may
        see, and all projects are theirs.

        Raises:
            RequestRejected: it is none; the message names the field, and nothing was asked.
            NotFound: there is no such project.
            Forbidden: it is not the caller's.
            StoreUnavailable: the database does not answer; nothing was asked.
            StoreRejected: the database refuses.
        """
        checked = self.checked(request, project, projects, caller)
        home, by = checked["project"], caller.subject if caller else ""
        return self.ask(ENRICH, checked, project=home, priority=priority, deadline=deadline, by=by)

    def checked(
        self,
        request: Mapping[str, Any],
        project: str | None,
        projects: Sequence[str],
        caller: Caller | None = None,
    ) -> Json:
        """The request, checked and in one form, with the project that it is about and the rights of the caller."""
        parsed = EnrichmentRequest.from_json(request)
        home, more_projects = project or parsed.project or self._names[1], projects or parsed.projects
        named = EnrichmentRequest.from_json({"pbi": parsed.pbi, "project": home, "projects": more_projects})
        checked_request = replace(parsed, project=named.project, projects=named.projects)
        caller = caller or self._caller
        if caller is not None:
            with self._store() as connection:
                for name in {checked_request.project, *({*checked_request.projects} - {ALL})}:
                    caller.project(connection, name)
            if ALL in checked_request.projects:
                checked_request = replace(checked_request, projects=caller.projects)
        s = caller.search_filter if caller else UNNAMED
        limited = replace(checked_request.filter, security_levels=s.security_levels, readers=s.readers)
        return replace(checked_request, filter=limited).to_json()

    @tracing.traced("submit")
    def ask(
        self,
        task: str,
        request: Json,
        *,
        project: str | None = None,
        priority: int = INTERACTIVE,
        deadline: float | None = None,
        by: str = "",
    ) -> UUID:
        """Ask for the work of any task that answers jobs; `by` is for the audit, the rest is as with `submit`.

        An infinite `deadline` is none: the job then outlasts a model or a database that is away.
        """
        asked_project = project_id(self.tenant, project) if project else self.project
        seconds = self.deadline if deadline is None else None if math.isinf(deadline) else deadline
        queueing: dict[str, Any] = {"task": task, "priority": priority}
        fields: dict[str, Any] = {"seconds": seconds, "traceparent": tracing.traceparent()}
        sends = self._publisher is not None
        by = by or self._subject
        with self._store() as connection:
            if not self._known:
                tenant, name = self._names
                sources.ensure_tenant(connection, self.tenant, tenant, self.project, name)
            job = jobs.submit(
                connection, self.tenant, asked_project, request, sends=sends, **fields, **queueing
            )
            for action, details in audited(task, request):
                audit.append(connection, self.tenant, action, str(job.id), details, by=by)
        self._known = True
        if self._publisher and job.sends and not self._publisher.publish(self.tenant, job.id, **queueing):
            with self._store() as connection:
                jobs.mark_unsent(connection, job.id)
        return job.id

    @contextmanager
    def _store(self) -> Iterator[Connection]:
        """A transaction; at once refused for a while after one was waited for in vain."""
        begun = time.monotonic()
        if self._rest.holds():
            raise StoreUnavailable("the database did not answer a moment ago", fix="see `larder doctor`")
        try:
            with self._database.tenant(self.tenant) as connection:
                yield connection
        except StoreUnavailable:
            if time.monotonic() - begun >= self._answer_timeout:
                self._rest.begin()
            raise

    def job(self, job_id: UUID | str, *, caller: Caller | None = None) -> JobRow:
        """State of a job; with a `caller` (else the client's) of one that was asked with no more rights than theirs.

        Raises:
            UnknownJob: there is none of this id for this tenant, or its answer was kept long enough.
            StoreUnavailable: the database does not answer.
        """
        caller = caller or self._caller
        return self._job(job_id, lambda row: caller is None or may_read(caller, row))

    def _job(self, job_id: UUID | str, readable: Callable[[JobRow], bool] = lambda _: True) -> JobRow:
        job_key = job_uuid(job_id)
        with self._store() as connection:
            row = jobs.get(connection, job_key)
        if row is None or not readable(row):
            fix = "ids are those that submit gave; answers are kept for enrichment.resultsKeptHours"
            raise UnknownJob(f"there is no enrichment {job_key}", fix=fix)
        return row

    def result(self, job_id: UUID | str, *, wait: float = 0.0) -> Json:
        """The answer of a job, waiting up to `wait` seconds for it; a database that is away meanwhile is waited for.

        Raises:
            NoAnswerYet: it is queued or running; ask again.
            EnrichmentFailed: it failed; the message says why.
            EnrichmentExpired: no worker took it in time.
            UnknownJob: there is no such job.
            StoreUnavailable: the database does not answer.
        """
        return self._result(self.job, job_id, wait)

    def _story_result(self, job_id: UUID | str, wait: float) -> Json:
        return self._result(self._job, job_id, wait)

    def _result(self, look: Callable[[UUID | str], JobRow], job_id: UUID | str, wait: float) -> Json:
        if wait <= 0:
            return answer_of(look(job_id))
        return self._wait(look, job_id, time.monotonic() + wait, away=wait)

    def _wait(
        self, look: Callable[[UUID | str], JobRow], job_id: UUID | str, end: float, *, away: float
    ) -> Json:
        """The answer, until `end`; a database may be away for `away` seconds of it."""
        patient = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=lambda state: time.monotonic() >= min(end, state.start_time + away),
            wait=wait_fixed(0.5),
            reraise=True,
        )
        row = patient(look, job_id)
        if row.ended:
            return answer_of(row)
        moved = threading.Event()
        with self._notifications.watch(self.tenant, [row.id], moved.set):
            while True:
                row = patient(look, job_id)
                seconds_left = end - time.monotonic()
                if row.ended or seconds_left <= 0:
                    return answer_of(row)
                if self._closed:
                    raise CancelledError("the client was closed")
                moved.wait(min(seconds_left, LOOK_SECONDS))
                moved.clear()

    @tracing.traced("enrich")
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
        end = time.monotonic() + seconds
        request_json = pbi if scores is None and "pbi" in pbi else {"pbi": pbi, "scores": scores or {}}
        request = self.checked(request_json, project, projects)
        key = jobs.submission_key(self.project, request).hex()
        try:
            job = self.ask(ENRICH, request, project=request["project"], priority=priority, deadline=seconds)
            answer = self._wait(self.job, job, end, away=AWAY_SECONDS)
        except LarderError as error:
            if isinstance(error, NoAnswerYet):
                fix = "see `larder status` for what the workers do, or allow more time"
                error = EnrichmentExpired(f"no answer within {seconds:g} seconds", fix=fix)
            metrics.record_fallback(error)
            cached = self._answers.get("", key)
            if cached is None:
                raise error from None
            return {**json.loads(cached), "degradation_level": int(CACHED)}
        if answer.get("degradation_level", FULL) < CACHED:
            self._answers.put("", key, json.dumps(answer))
        return answer

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

        The caller of a client marks what they may see, in their own name.

        Raises:
            RequestRejected: one of them is no text, or no verdict; the message names it.
            NotFound: one of them is unknown or means several; the message says what there is.
            Forbidden: the caller's token does not name the project, or they may not write.
            StoreUnavailable: the database does not answer; nothing was said.
        """
        if isinstance(verdict, str) and verdict not in feedback.VERDICTS:
            raise RequestRejected(f"{truncated(verdict)!r} is no verdict", fix="say useful, noise or undo")
        for name, value in (("item", item), ("ref", ref)):
            if isinstance(value, str) and not value:
                raise RequestRejected(f"{name} is empty")
        places: dict[str, Any] = {"project": project, "source": source}
        if self._caller:
            mark = {"item": item, "ref": ref, "verdict": verdict, **places}
            return feedback.mark_as(self._runtime, self._writer, mark)
        with self._store() as connection:
            try:
                return feedback.mark(connection, self.tenant, item, ref, verdict, by=by, **places)
            except ConfigurationError as error:
                raise NotFound(error.message, fix=error.fix) from None

    def close(self) -> None:
        """Give all connections back; whoever still waits in another thread is let go with a CancelledError."""
        self._closed = True
        self._notifications.close()
        if self._opened is not None:
            self._opened.audit_log.flush()
        if self._shared:
            return
        if self._publisher is not None:
            self._publisher.close()
        self._database.close()
