"""Remote actions: asked for by engines through PostgreSQL, and by any app through the broker."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

from pipeline.actions import NAMES, Actions
from pipeline.actions.actions import answered, failure
from pipeline.actions.collections import metadata_of
from pipeline.documents import Json
from pipeline.enrichment.text import truncated
from pipeline.errors import RequestRejected, SearchError, StoreRejected
from pipeline.ledger.jobs import BULK, INTERACTIVE
from workers.app.search import unknown_projects
from workers.client import Client, EnrichmentExpired, NoAnswerYet
from workers.runtime import Runtime

MOST_BYTES = 8_000_000
"""Most bytes of one call as JSON: it is one row of a table. Larger batches go in several calls."""


def _remote(method: str) -> Callable[..., Json]:
    """The method of `Actions` with its arguments, done by a worker; errors are values, as there."""
    local = getattr(Actions, method)
    signature = inspect.signature(local)

    @functools.wraps(local)
    def call(self: RemoteActions, *args: Any, **named: Any) -> Json:
        bound = signature.bind(self, *args, **named).arguments
        sent = {name: bound[name] for name in bound if name not in ("self", "state", "_more")}
        return self._call(method, sent)

    return answered(call)


class RemoteActions:
    """The three actions with the same arguments and answers, done by Larder's workers for a client's tenant.

    The message holds two ids; the texts and the answer lie in the tenant's rows and are removed with other answers
    after `enrichment.resultsKeptHours`. The collections stay. A call that the queue delivers twice is one call.
    """

    embedding_create = _remote("embedding_create")
    vector_store = _remote("vector_store")
    vector_query = _remote("vector_query")

    def __init__(self, client: Client, *, seconds: float | None = None) -> None:
        """`seconds` is how long a call waits for its answer; None is the client's own deadline."""
        self._client = client
        self._seconds = client.deadline if seconds is None else seconds

    def redacted(self, message: str) -> str:
        """`message`, which is one of ours and holds no secret."""
        return message

    def _call(self, method: str, values: Mapping[str, object]) -> Json:
        arguments = {
            name: _plain(value) if name in ("metadata", "filter") else _listed(value)
            for name, value in values.items()
        }
        _sendable(method, arguments, str(uuid4()))
        # A question is waited for; a load of texts steps aside for Step 4, which shares the queue.
        priority = {"vector_query": INTERACTIVE}.get(method, BULK)
        task = f"larder.{NAMES[method][0]}"
        job = self._client.ask(task, arguments, priority=priority, deadline=self._seconds)
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


def _sendable(method: str, arguments: dict[str, Any], call: str) -> None:
    """Name the texts to be stored after the call: one that is delivered twice must not store twice.

    Raises:
        StoreRejected: it is no JSON, or too large.
    """
    if method == "vector_store" and arguments.get("ids") is None:
        texts = arguments.get("texts")
        count = len(texts) if isinstance(texts, list) else 1
        arguments["ids"] = [str(uuid5(NAMESPACE_OID, f"{call} {number}")) for number in range(count)]
    try:
        size = len(json.dumps(arguments, allow_nan=False))
    except (TypeError, ValueError):
        raise StoreRejected(
            "an argument cannot be sent as JSON", fix="give texts, finite numbers, lists and mappings"
        ) from None
    if size > MOST_BYTES:
        raise StoreRejected(
            f"the call has {size} bytes, a remote one may have {MOST_BYTES}",
            fix="send fewer texts in one call",
        )


KEPT_SECONDS = 3600
"""Seconds that an answer to an app without this package lies in the broker."""
APP_TASKS = {"enrich": "", **{names[0]: method for method, names in NAMES.items()}}
"""Task that such an app may ask for -> method of `Actions`; empty for Step 4."""


ENRICH_KEYS = ("pbi", "scores", "filters", "project", "projects")


def store_answer(runtime: Runtime, message: str, args: Sequence[object], kwargs: Json) -> None:
    """Answer a message of a Celery app that lacks this package, as the result that its `AsyncResult` reads.

    It asks as the tenant that the workers are configured for, and sees what everybody of it may. An error is an answer.
    """
    try:
        result = _answer(runtime, message, args, kwargs)
    except Exception as error:  # noqa: BLE001 (whatever it is, whoever waits must be told)
        result = failure(error, str)
    _results(runtime.addresses.valkey).store_result(message, result, "SUCCESS")


def _checked(runtime: Runtime, args: Sequence[object], kwargs: Json) -> tuple[str, Json]:
    """Name of the task, a key of `APP_TASKS`, and its arguments.

    Raises:
        RequestRejected: it is not answered here, or its arguments are wrong.
    """
    if not runtime.rag.queue.answer_apps:
        raise RequestRejected("larder.ask is switched off here", fix="its operator sets rag.queue.answerApps")
    name = args[0] if args else None
    if not isinstance(name, str) or name not in APP_TASKS:
        raise RequestRejected(
            f"larder.ask does not know {truncated(str(name))!r}", fix=f"ask for one of {', '.join(APP_TASKS)}"
        )
    if len(args) > 1:
        raise RequestRejected(
            f"args has {len(args)} members and not one, {name!r}", fix="name all else in kwargs"
        )
    if "tenant" in kwargs:
        raise RequestRejected(
            "a message cannot name a tenant: it asks as that of the workers", fix="leave tenant out"
        )
    arguments = {name: value for name, value in kwargs.items() if name not in ("self", "state")}
    method, accepted = APP_TASKS[name], [*ENRICH_KEYS]
    if method:
        parameters = inspect.signature(getattr(Actions, method)).parameters
        accepted = [one for one in parameters if one not in ("self", "state", "_more")]
    if surplus := sorted(arguments.keys() - {*accepted} if method or "pbi" in arguments else ()):
        unknown = truncated(", ".join(surplus))
        raise RequestRejected(f"{name} does not take {unknown}", fix=f"it takes {', '.join(accepted)}")
    listed = arguments.get("projects")
    named = [arguments.get("project"), *(listed if isinstance(listed, list) else ())]
    projects = [str(one) for one in named if isinstance(one, str | int)]
    for sentence in unknown_projects(runtime, runtime.settings.tenant_id, projects):
        raise RequestRejected(sentence, fix="name one of them, or leave it out")
    return name, arguments


def _answer(runtime: Runtime, message: str, args: Sequence[object], kwargs: Json) -> Json:
    """Submit a job like any other, and do it here unless another worker takes it."""
    from workers.app.enrichment.job import run, run_action

    name, arguments = _checked(runtime, args, kwargs)
    method = APP_TASKS[name]
    _sendable(method, arguments, message)
    end = time.monotonic() + runtime.rag.enrichment.deadline_seconds
    with Client.of_runtime(runtime, runtime.settings.tenant, runtime.settings.project) as client:
        job = client.ask(f"larder.{name}", arguments) if method else client.submit(arguments)
        while True:
            if method:
                run_action(runtime, client.tenant, job, method)
            else:
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
