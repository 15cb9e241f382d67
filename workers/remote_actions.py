"""Jobs asked for from elsewhere: by engines through PostgreSQL, and by any app through the broker."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from pipeline.actions import NAMES, TASKS, Actions
from pipeline.actions.actions import answered, failure
from pipeline.actions.collections import metadata_of
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.enrichment.text import truncated
from pipeline.errors import RequestRejected, SearchError, StoreRejected
from pipeline.ledger.jobs import BULK, ENRICH, INTERACTIVE
from workers.app.search import unknown_projects
from workers.client import Client, EnrichmentExpired, NoAnswerYet
from workers.runtime import Runtime

MOST_BYTES = 8_000_000
"""Most bytes of one request as JSON: it is one row of a table. Larger batches go in several."""
KEPT_SECONDS = 3600
"""Seconds that an answer to an app without this package lies in the broker."""
ASK = "larder.ask"
"""Task whose `args` name the task of the request, for apps of the release before: it is read for one more."""


def _arguments(method: str) -> tuple[str, ...]:
    """Arguments of a method of `Actions` that travel: the workflow's state and what it ignores do not."""
    parameters = inspect.signature(getattr(Actions, method)).parameters
    return tuple(name for name in parameters if name not in ("self", "state", "_more"))


ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    ENRICH: ("pbi", "scores", "filters", "project", "projects"),
    **{task: _arguments(method) for task, method in TASKS.items()},
}
"""Task of a job that may be asked for from elsewhere -> the arguments of its request."""


def submit(
    client: Client, task: str, arguments: Mapping[str, object], call: str, deadline: float | None = None
) -> UUID:
    """Store a request as a job of `client`; `call` is the same if the request comes twice.

    Texts to be stored get their ids from the call: one that is delivered twice must not store twice.

    Raises:
        StoreRejected: it is no JSON, or too large.
        RequestRejected, NotFound, StoreUnavailable: as `Client.submit`.
    """
    request: dict[str, Any] = {
        name: _plain(value) if name in ("metadata", "filter") else _listed(value)
        for name, value in arguments.items()
    }
    if TASKS.get(task) == "vector_store" and request.get("ids") is None:
        texts = request.get("texts")
        count = len(texts) if isinstance(texts, list) else 1
        request["ids"] = [str(uuid5(NAMESPACE_OID, f"{call} {number}")) for number in range(count)]
    try:
        size = len(json.dumps(request, allow_nan=False))
    except (TypeError, ValueError):
        raise StoreRejected(
            "an argument cannot be sent as JSON", fix="give texts, finite numbers, lists and mappings"
        ) from None
    if size > MOST_BYTES:
        raise StoreRejected(
            f"the call has {size} bytes, a remote one may have {MOST_BYTES}",
            fix="send fewer texts in one call",
        )
    if task == ENRICH:
        return client.submit(request, deadline=deadline)
    # A question is waited for; a load of texts steps aside for Step 4, which shares the queue.
    priority = INTERACTIVE if TASKS[task] == "vector_query" else BULK
    return client.ask(task, request, priority=priority, deadline=deadline)


def _listed(value: object) -> object:
    """A generator or array as a list; anything else as it is."""
    if value is None or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return value
    return [_listed(one) for one in value]


def _plain(value: object) -> object:
    """Metadata or a filter as JSON, dates as text; what is neither mapping nor list as it is."""
    if isinstance(value, Mapping):
        return metadata_of(value, 0)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


# An engine with this package ------------------------------------------------------------------------


def _remote(task: str) -> Callable[..., Json]:
    """The method of `Actions` with its arguments, done by a worker; errors are values, as there."""
    local = getattr(Actions, TASKS[task])
    signature = inspect.signature(local)

    @functools.wraps(local)
    def call(self: RemoteActions, *args: Any, **named: Any) -> Json:
        bound = signature.bind(self, *args, **named).arguments
        return self._call(task, {name: bound[name] for name in ARGUMENTS[task] if name in bound})

    return answered(call)


class RemoteActions:
    """The three actions with the same arguments and answers, done by Larder's workers for a client's tenant.

    The message holds two ids; the texts and the answer lie in the tenant's rows and are removed with other answers
    after `enrichment.resultsKeptHours`. The collections stay. A call that the queue delivers twice is one call.
    """

    embedding_create = _remote("larder.embedding.create")
    vector_store = _remote("larder.vector.store")
    vector_query = _remote("larder.vector.query")

    def __init__(self, client: Client, *, seconds: float | None = None) -> None:
        """`seconds` is how long a call waits for its answer; None is the client's own deadline."""
        self._client = client
        self._seconds = client.deadline if seconds is None else seconds

    def redacted(self, message: str) -> str:
        """`message`, which is one of ours and holds no secret."""
        return message

    def _call(self, task: str, arguments: Mapping[str, object]) -> Json:
        job = submit(self._client, task, arguments, str(uuid4()), self._seconds)
        try:
            return self._client.result(job, wait=self._seconds)
        except (NoAnswerYet, EnrichmentExpired):
            raise SearchError(
                f"no worker answered within {self._seconds:g} seconds",
                fix="see `larder status` for what the workers do, or allow more time",
            ) from None


def register_remote_actions(
    registry: MutableMapping[str, Callable[..., Any]], client: Client
) -> RemoteActions:
    """Put the remote actions into an engine's registry, under the names of the local ones."""
    actions = RemoteActions(client)
    for method, names in NAMES.items():
        registry.update(dict.fromkeys(names, getattr(actions, method)))
    return actions


# A worker -------------------------------------------------------------------------------------------


def receive(runtime: Runtime, task: str, message: str, args: Sequence[object], kwargs: Json) -> None:
    """Do the job that a message names by tenant and id, or else the one that it carries the request of.

    The second is a message of an app that lacks this package, and its answer is the result that the app's
    `AsyncResult` reads. It asks as the tenant that the workers are configured for, and sees what everybody of it may.
    An error is an answer.
    """
    from workers.app.enrichment.job import run

    if task != ASK and (job := stored_job(args)):
        run(runtime, *job)
        return
    try:
        result = _answer(runtime, message, *_request(runtime, task, args, kwargs))
    except Exception as error:  # noqa: BLE001 (whatever it is, whoever waits must be told)
        result = failure(error, str)
    _results(runtime.addresses.valkey).store_result(message, result, "SUCCESS")


def stored_job(args: Sequence[object]) -> tuple[UUID, UUID] | None:
    """Tenant and id of the job that a message names in `args`; None if it names none."""
    try:
        tenant, job = (UUID(str(one)) for one in args)
    except ValueError:
        return None
    return tenant, job


def _request(runtime: Runtime, task: str, args: Sequence[object], kwargs: Json) -> tuple[str, Json]:
    """The task and the arguments of a message that carries its request.

    Raises:
        RequestRejected: it is not answered here, or its arguments are wrong.
    """
    if not runtime.rag.queue.answer_apps:
        raise RequestRejected(f"{task} is switched off here", fix="its operator sets rag.queue.answerApps")
    task = _requested_task(task, args)
    if "tenant" in kwargs:
        raise RequestRejected(
            "a message cannot name a tenant: it asks as that of the workers", fix="leave tenant out"
        )
    arguments = {key: value for key, value in kwargs.items() if key not in ("self", "state")}
    # A backlog item may stand for itself, with whatever fields it has.
    surplus = set(arguments) - {*ARGUMENTS[task]} if task != ENRICH or "pbi" in arguments else ()
    if surplus:
        unknown = truncated(", ".join(sorted(surplus)))
        raise RequestRejected(
            f"{task.removeprefix('larder.')} does not take {unknown}",
            fix=f"it takes {', '.join(ARGUMENTS[task])}",
        )
    listed = arguments.get("projects")
    named = [arguments.get("project"), *(listed if isinstance(listed, list) else ())]
    projects = [str(one) for one in named if isinstance(one, str | int)]
    for sentence in unknown_projects(runtime, runtime.settings.tenant_id, projects):
        raise RequestRejected(sentence, fix="name one of them, or leave it out")
    return task, arguments


def _requested_task(task: str, args: Sequence[object]) -> str:
    """The task that a message with its request in `kwargs` asks for, a key of `ARGUMENTS`.

    Raises:
        RequestRejected: it cannot be asked for so, or `args` has more than it should.
    """
    if task == ASK:
        name, args = (args[0], args[1:]) if args else (None, args)
        task = f"larder.{name}" if isinstance(name, str) else ""
        if task not in ARGUMENTS:
            known = ", ".join(one.removeprefix("larder.") for one in ARGUMENTS)
            raise RequestRejected(
                f"larder.ask does not know {truncated(str(name))!r}", fix=f"ask for one of {known}"
            )
    if task not in ARGUMENTS:
        raise RequestRejected(f"{task} takes the ids of a stored job", fix="use the HTTP API")
    if args:
        raise RequestRejected(
            f"args has {plural(len(args), 'member')} too many", fix="name all else in kwargs"
        )
    return task


def _answer(runtime: Runtime, message: str, task: str, arguments: Json) -> Json:
    """Submit a job like any other, and do it here unless another worker takes it."""
    from workers.app.enrichment.job import run

    end = time.monotonic() + runtime.rag.enrichment.deadline_seconds
    with Client.of_runtime(runtime, runtime.settings.tenant, runtime.settings.project) as client:
        job = submit(client, task, arguments, message)
        while True:
            run(runtime, client.tenant, job)
            try:
                return client.result(job)
            except NoAnswerYet:  # it is put off, or with another worker
                if time.monotonic() > end:
                    raise
            time.sleep(1)


@functools.cache
def _results(valkey_url: str) -> Any:
    """Celery's backend of results. The app's own setting is none: every message of ours would ask for its result."""
    from celery.app.backends import by_url

    from workers.queue import broker
    from workers.queue.app import app

    kind, url = by_url(broker.results_url(valkey_url), app.loader)
    return kind(app=app, url=url, expires=KEPT_SECONDS)
