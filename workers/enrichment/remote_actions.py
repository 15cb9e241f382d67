"""The actions of YAML engines on another machine than the model: asked through PostgreSQL and the queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any
from uuid import uuid4

from pipeline.actions import NAMES
from pipeline.actions.actions import answered
from pipeline.actions.collections import metadata_of
from pipeline.documents import Json
from pipeline.errors import SearchError, StoreRejected
from pipeline.ledger.jobs import BULK, INTERACTIVE
from workers.client import Client, EnrichmentExpired, NoAnswerYet

QUERY = "larder.vector.query"
MOST_BYTES = 8_000_000
"""Of one call as JSON: it is one row of a table. Larger batches go in several calls."""


class RemoteActions:
    """The three actions with the same arguments and answers, done by Larder's workers for a client's tenant.

    The message holds two ids; the texts and the answer lie in the tenant's rows and are removed with other answers
    after `enrichment.resultsKeptHours`. The collections stay. A call that the queue delivers twice is one call.
    """

    def __init__(self, client: Client, *, seconds: float | None = None) -> None:
        """`seconds` is how long a call waits for its answer; None is the client's own deadline."""
        self._client = client
        self._seconds = client.deadline if seconds is None else seconds

    def shown(self, message: str) -> str:
        """`message`, which is one of ours and holds no secret."""
        return message

    @answered
    def embedding_create(
        self,
        state: object,  # noqa: ARG002 (every action gets it)
        text: object,
        model: str | None = None,
        batch: bool = False,
        **more: object,
    ) -> Json:
        """Vectors of a text or a list of texts, by the workers' model."""
        asked = {"text": _listed(text), "model": model, "batch": batch, **_kept(more, "dimensions")}
        return self._call("larder.embedding.create", asked)

    @answered
    def vector_store(
        self,
        state: object,  # noqa: ARG002
        texts: object,
        embeddings: object = None,
        ids: object = None,
        metadata: object = None,
        collection: str = "default",
        **more: object,
    ) -> Json:
        """Put texts into a collection of the tenant."""
        many = _listed(texts)
        asked = {
            "texts": many,
            "embeddings": _listed(embeddings),
            # Given here: the same call delivered twice must not store twice.
            "ids": _listed(ids) if ids is not None else [str(uuid4()) for _ in _several(many)],
            "metadata": _plain(metadata),
            "collection": collection,
            **_kept(more, "model", "dimensions"),
        }
        return self._call("larder.vector.store", asked)

    @answered
    def vector_query(
        self,
        state: object,  # noqa: ARG002
        query: object = "",
        k: object = 5,
        collection: str = "default",
        filter: object = None,  # noqa: A002 (the documents name it so)
        include_embeddings: bool = False,
        **more: object,
    ) -> Json:
        """The closest texts of a collection of the tenant."""
        asked = {
            "query": query,
            "k": k,
            "collection": collection,
            "filter": _plain(filter),
            "include_embeddings": include_embeddings,
            **_kept(more, "embedding", "model", "dimensions"),
        }
        return self._call(QUERY, asked)

    def _call(self, task: str, arguments: Json) -> Json:
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
        priority = INTERACTIVE if task == QUERY else BULK
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


def _several(texts: object) -> list[object]:
    return texts if isinstance(texts, list) else [texts]


def _plain(value: object) -> object:
    """Metadata or a filter as JSON, dates as text; what is neither mapping nor list as it is."""
    if isinstance(value, Mapping):
        return metadata_of(value, 0)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _kept(more: Mapping[str, object], *names: str) -> Json:
    return {name: _listed(more[name]) for name in names if name in more}
