"""Clients in Python: of the API for who has a token, and of an installation by its configuration."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import httpx2
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import (
    Forbidden,
    LarderError,
    NotFound,
    RateLimited,
    RequestRejected,
    SearchError,
    StoreUnavailable,
    TokenRefused,
    pause_after,
)
from pipeline.errors.http_rules import retry_after
from workers.app.enrichment.answers import job_uuid
from workers.app.enrichment.client_interface import KnowledgeClient
from workers.app.enrichment.story_jobs import AcceptedStories, summary
from workers.client import Client, EnrichmentExpired, EnrichmentFailed, NoAnswerYet, UnknownJob
from workers.runtime import Runtime
from workers.settings import from_mapping, load

TRIES = 4
LONGEST_PAUSE = 30.0
"""Seconds between two tries, whatever the API asks for."""
LONGEST_WAIT = 50.0
"""Seconds that one request waits for an answer of Step 4."""
_SEED = "/rag/seed"
ERRORS: Mapping[int, type[LarderError]] = {
    401: TokenRefused,
    403: Forbidden,
    404: NotFound,
    413: RequestRejected,
    422: RequestRejected,
    429: RateLimited,
    503: StoreUnavailable,
}


class HttpClient(KnowledgeClient):
    """Searches, enrichments and uploads over HTTP; one object serves all threads of a process.

    Everything is asked again a few times where that may help: nothing that is asked twice is done twice.
    """

    def __init__(self, url: str, *, token: str, timeout: float = 60.0) -> None:
        """`url` is the API's address with its prefix, `timeout` seconds of silence; nothing is connected yet."""
        self._http = httpx2.Client(
            base_url=url.rstrip("/"), headers={"Authorization": f"Bearer {token}"}, timeout=timeout
        )

    def _ask(self, method: str, path: str, **request: Any) -> Json:
        tries = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, RateLimited | StoreUnavailable)),
            stop=stop_after_attempt(TRIES),
            wait=_pause,
            reraise=True,
        )
        answer: Json = tries(self._once, method, path, **request)
        return answer

    def _once(self, method: str, path: str, body: object = None, **request: Any) -> Json:
        if body is not None:
            # As the standard library writes it: what the API takes and httpx2 cannot send goes, too.
            headers = {"Content-Type": "application/json", **request.pop("headers", {})}
            request |= {"content": json.dumps(body, default=_in_json), "headers": headers}
        try:
            answer = self._http.request(method, path, **request)
        except httpx2.TransportError as error:
            raise StoreUnavailable(f"the API does not answer ({type(error).__name__})") from None
        if answer.is_success:
            document: Json = answer.json() if answer.content else {}
            return document
        raise _problem(answer)

    def search(self, text: str, *, projects: Sequence[str] = (), **options: Any) -> Json:
        """The document of `larder search --json`; `options` are those of `workers.app.search.request_of`.

        Raises:
            RequestRejected: an option is wrong; the message names it.
            NotFound: there is no such project.
            Forbidden: it is not the token's.
            TokenRefused: the token proves nothing.
            StoreUnavailable: the API does not answer, or cannot.
        """
        from workers.app.search import request_of

        checked = request_of(text, **options)  # a misspelt condition would be passed over by the API
        body = {**options, "text": text, "projects": [*projects], "mode": checked.mode}
        return self._ask("POST", "/api/v1/search", body=body)

    def submit(
        self, request: Mapping[str, Any], *, project: str | None = None, projects: Sequence[str] = ()
    ) -> UUID:
        """Ask for the context of a PBI, or of `{"pbi", "scores"}`; the id to fetch the answer with."""
        return UUID(self._submit(request, project, projects)["id"])

    def _submit(
        self, request: Mapping[str, Any], project: str | None, projects: Sequence[str], wait: float = 0
    ) -> Json:
        request_json = request if "pbi" in request else {"pbi": request}
        body = {**request_json, **({"projects": [*projects]} if projects else {})}
        params = {"project": project} if project else {}
        prefer = {"Prefer": f"wait={int(wait)}"} if wait >= 1 else {}
        job: Json = self._ask("POST", "/api/v1/enrich", body=body, params=params, headers=prefer)["jobs"][0]
        return job

    def result(self, job_id: UUID | str, *, wait: float = 0.0) -> Json:
        """The answer of a job, waiting up to `wait` seconds for it.

        Raises:
            NoAnswerYet, EnrichmentFailed, EnrichmentExpired, UnknownJob: as `Client.result`.
        """
        end, path = time.monotonic() + wait, f"/api/v1/enrich/{job_uuid(job_id)}"
        while True:
            try:
                job = self._ask("GET", path)
            except NotFound:
                raise UnknownJob(f"there is no enrichment {job_id}") from None
            if job["state"] not in ("queued", "running") or time.monotonic() >= end:
                return _answer_of(job)
            time.sleep(min(0.5, max(0.05, end - time.monotonic())))

    def enrich(
        self,
        pbi: Mapping[str, Any],
        scores: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        projects: Sequence[str] = (),
        deadline: float = 120.0,
    ) -> Json:
        """Ask and wait: the context of one PBI.

        Raises:
            EnrichmentExpired: there was no answer before the deadline.
            EnrichmentFailed: it failed; the message says why.
        """
        end = time.monotonic() + deadline
        request_json = pbi if scores is None and "pbi" in pbi else {"pbi": pbi, "scores": scores or {}}
        job = self._submit(request_json, project, projects, wait=min(LONGEST_WAIT, deadline))
        try:
            if job["state"] in ("queued", "running"):
                return self.result(job["id"], wait=max(0.0, end - time.monotonic()))
            return _answer_of(job)
        except NoAnswerYet:
            raise EnrichmentExpired(f"no answer within {deadline:g} seconds") from None

    def upload(
        self,
        files: Sequence[tuple[str, bytes]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        *,
        project: str,
    ) -> Json:
        """Send files (name, content) or documents to a project, named by id or name.

        The answer is `{"run", "documents", "rejected"}` of `workers.app.ingestion.upload.upload`.

        Raises:
            RequestRejected: there is nothing, or too much, to take, or a document is none.
            NotFound: the token may see no such project.
            Forbidden: the token may not write, or not to this project.
        """
        if files and documents:
            raise RequestRejected("files and documents go in two uploads", fix="call it once for each")
        path, form = "/api/v1/knowledge", {"project_id": project}
        if documents:
            return self._ask("POST", f"{path}/documents", body={**form, "documents": [*documents]})
        sent = [("files", (name, content)) for name, content in files]
        return self._ask("POST", f"{path}/upload", data=form, files=sent)

    def feedback(
        self, item: str, ref: str, verdict: str, *, project: str | None = None, source: str | None = None
    ) -> Json:
        """Say that a document is `useful` or `noise` for an item of a project or a question, or `undo` that."""
        mark = {"item": item, "ref": ref, "verdict": verdict, "project": project, "source": source}
        return self._ask("POST", "/api/v1/feedback", body=mark)

    def store_stories(
        self,
        stories: Sequence[object],
        source_agent: str = "unknown",
        requirement_texts: Mapping[str, str] | None = None,
    ) -> AcceptedStories:
        """Have stories stored; as `Client.store_stories`, and what is no object at all is refused with all else."""
        details = {"source_agent": source_agent, "requirement_texts": requirement_texts}
        return _accepted(self._ask("POST", _SEED, body={"user_stories": [*stories], **details}))

    def embed_stories_anew(self) -> AcceptedStories:
        """Have some stories embedded that only a former model did; as `Client.embed_stories_anew`."""
        return _accepted(self._ask("POST", _SEED))

    def stored_stories(self, accepted: AcceptedStories, *, wait: float = 0.0) -> Json:
        """`{"stored", "skipped", "refused": [(number, reason)]}`, within `wait` seconds.

        Raises:
            NoAnswerYet, EnrichmentFailed, UnknownJob: as `Client.stored_stories`.
        """
        end = time.monotonic() + wait
        while accepted.jobs:
            try:
                state = self._ask("GET", _SEED, params={"jobs": [str(job) for job in accepted.jobs]})
            except NotFound:
                raise UnknownJob("there is none of these jobs, or no longer") from None
            if state["failed"]:
                raise EnrichmentFailed(f"the enrichment failed: {state['error']}")
            if not state["pending"]:
                refused = {*accepted.refused, *((one["number"], one["reason"]) for one in state["refused"])}
                return {**{key: state[key] for key in ("stored", "skipped")}, "refused": sorted(refused)}
            if time.monotonic() >= end:
                still = plural(state["pending"], "job")
                raise NoAnswerYet(f"{still} under way", fix="ask again with the same jobs")
            time.sleep(min(0.5, max(0.05, end - time.monotonic())))
        return summary(accepted, [])

    def search_stories(
        self,
        query: str,
        *,
        k: int | None = None,
        threshold: float | None = None,
        tags: Sequence[str] | None = None,
        examples: bool = False,
        wait: float = 30.0,
    ) -> list[Json]:
        """Similar stories, nearest first; as `Client.search_stories`, with `wait` seconds of silence at most."""
        query_fields = {
            "query": query,
            "k": k,
            "threshold": threshold,
            "tags": tags and [*tags],
            "examples": examples,
        }
        stories: list[Json] = self._ask("POST", "/rag/search", body=query_fields, timeout=wait)["stories"]
        return stories

    def story_stats(self) -> Json:
        """Numbers of stories, by agent and model, and their mean confidence."""
        return self._ask("GET", "/rag/stats")

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()


class RAGService(Client):
    """The client under the name that the specifications give it."""

    @classmethod
    def initialize(
        cls, config: Mapping[str, Any] | Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Self:
        """A ready service: of a configuration file, or of its section `rag`, or of the file that `larder` would read.

        Its servers are those of the configuration and of the variables `environ`, by default those of this process,
        else the embedded ones if they run. None is started.

        Raises:
            SettingsError: all that is wrong with the configuration.
            ConfigurationError: half of the servers are configured.
            StoreUnavailable: the database does not answer, or the embedded servers do not run.
        """
        from workers.local.embedded.locating import open_runtime

        settings = from_mapping(config, environ) if isinstance(config, Mapping) else load(config, environ)
        runtime = open_runtime(settings)
        service = cls.of(settings, runtime.addresses.database, runtime.addresses.broker)
        service._opened = Runtime(settings, runtime.addresses, database=service._database)  # noqa: SLF001 (its own)
        _ = service._opened.embedder  # noqa: SLF001 (ditto)
        with service._store():  # noqa: SLF001 (its own; is there a database?)
            return service


def _in_json(value: object) -> str:
    if isinstance(value, date | UUID):
        return value.isoformat() if isinstance(value, date) else str(value)
    raise RequestRejected(f"a {type(value).__name__} cannot be sent as JSON")


def _accepted(answer: Json) -> AcceptedStories:
    refused = [(one["number"], one["reason"]) for one in answer["refused"]]
    return AcceptedStories(
        jobs=[UUID(job) for job in answer["jobs"]], accepted=answer["accepted"], refused=refused
    )


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    requested_pause = getattr(error, "retry_after", None)
    if requested_pause is not None:
        return min(LONGEST_PAUSE, float(requested_pause))
    return pause_after(state.attempt_number, most=LONGEST_PAUSE)


def _problem(answer: httpx2.Response) -> LarderError:
    """The error of ours that the API's problem details stand for."""
    try:
        problem_json = answer.json()
        wrong = "; ".join(f"{e['field']}: {e['problem']}" for e in problem_json.get("errors", ()))
        message = f"{problem_json['detail']}{f' ({wrong})' if wrong else ''}"
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"the API answers with status {answer.status_code}"
    return ERRORS.get(answer.status_code, SearchError)(message, retry_after=retry_after(answer.headers))


def _answer_of(job: Json) -> Json:
    if job["state"] == "done":
        context: Json = job["context"]
        return context
    if job["state"] == "failed":
        raise EnrichmentFailed(f"the enrichment failed: {job['error']}")
    if job["state"] == "expired":
        raise EnrichmentExpired(f"the enrichment expired: {job['error']}")
    raise NoAnswerYet("no answer yet", fix="ask again with the same id")
