"""The actions of YAML engines on another machine than the model: asked through PostgreSQL and the queue."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any
from uuid import uuid4

from pipeline.actions import NAMES, Actions
from pipeline.actions.actions import answered
from pipeline.actions.collections import metadata_of
from pipeline.documents import Json
from pipeline.errors import SearchError, StoreRejected
from pipeline.ledger.jobs import BULK, INTERACTIVE
from workers.client import Client, EnrichmentExpired, NoAnswerYet

MOST_BYTES = 8_000_000
"""Of one call as JSON: it is one row of a table. Larger batches go in several calls."""


def _remote(method: str) -> Callable[..., Json]:
    """The method of `Actions` with its arguments, done by a worker; errors are values, as there."""
    local = getattr(Actions, method)
    signature = inspect.signature(local)

    @functools.wraps(local)
    def call(self: RemoteActions, *args: Any, **named: Any) -> Json:
        given = signature.bind(self, *args, **named).arguments
        asked = {name: given[name] for name in given if name not in ("self", "state", "_more")}
        return self._call(method, asked)

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

    def shown(self, message: str) -> str:
        """`message`, which is one of ours and holds no secret."""
        return message

    def _call(self, method: str, given: Mapping[str, object]) -> Json:
        arguments = {
            name: _plain(value) if name in ("metadata", "filter") else _listed(value)
            for name, value in given.items()
        }
        if method == "vector_store" and arguments.get("ids") is None:
            # Given here: the same call delivered twice must not store twice.
            texts = arguments["texts"]
            arguments["ids"] = [str(uuid4()) for _ in (texts if isinstance(texts, list) else [texts])]
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
    made = RemoteActions(client)
    for method, names in NAMES.items():
        registry.update(dict.fromkeys(names, getattr(made, method)))
    return made


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
