"""The three actions: texts into vectors, into a collection, and back by meaning."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

from pipeline.actions.collections import CollectionEntry, CollectionStore, entry, name_of, text_of, vector_of
from pipeline.actions.filters import parse
from pipeline.documents import Json
from pipeline.documents.plain_text import json_type_name
from pipeline.errors import LarderError, SearchError, StoreRejected

if TYPE_CHECKING:
    from pipeline.embedding import Embedder

logger = logging.getLogger(__name__)


def failure(error: Exception, redact: Callable[[str], str]) -> Json:
    """The answer of an action that failed; `redact` removes secrets from its message.

    A foreign error is answered by its class alone, and logged with its stack but without its message, which may
    quote a text.
    """
    if isinstance(error, LarderError):
        return {"error": redact(str(error)), "success": False}
    stack = "".join(traceback.format_tb(error.__traceback__)[-4:])
    logger.error("an action failed with %s\n%s", type(error).__name__, stack)
    return {
        "error": f"the action failed unexpectedly ({type(error).__name__}); the log says where",
        "success": False,
    }


def answered(action: Callable[..., Json]) -> Callable[..., Json]:
    """Decorate `action` to return errors as values, wrong arguments included."""
    signature = inspect.signature(action)

    @functools.wraps(action)
    def call(self: Any, *args: Any, **kwargs: Any) -> Json:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            return {"error": f"wrong arguments: {error}", "success": False}
        try:
            return action(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 (a workflow must go on, whatever it is)
            return failure(error, self.redacted)

    return call


SLICE = 256
"""Texts processed at once; bounds the memory of a batch of any length."""


class TextToStore(NamedTuple):
    """One text to store with its id, metadata and vector; only the text is checked."""

    number: int
    text: str
    id: Any
    metadata: Any
    vector: Any
    """Vector of the text; None if the text is to be embedded."""


def slices(
    texts: object, ids: object = None, metadata: object = None, vectors: object = None
) -> Iterator[list[TextToStore]]:
    """The texts with their ids, metadata and vectors, in lists of up to `SLICE`; any may be a generator.

    One text may stand alone, and so may its id and its vector; one mapping of metadata serves all texts.
    Missing ids are random.

    Raises:
        StoreRejected: an argument is no list, or their lengths differ; where lengths are known, before the first
            list is yielded.
    """
    shared, metadata = (metadata, None) if isinstance(metadata, Mapping) else (None, metadata)
    if isinstance(texts, str):
        texts, ids = [texts], [ids] if isinstance(ids, str) else ids
        if isinstance(vectors, Sequence) and vectors and isinstance(vectors[0], int | float):
            vectors = [vectors]
    if texts is None:
        raise StoreRejected("there are no texts", fix="give a text or a list of texts")
    columns = {"texts": texts, "ids": ids, "metadata": metadata, "embeddings": vectors}
    many: dict[str, Iterable[Any]] = {}
    for name, value in columns.items():
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable | None):
            raise StoreRejected(f"{name} is {json_type_name(value)}", fix="give a list, one entry per text")
        if value is not None:
            many[name] = value
    lengths = {name: len(value) for name, value in many.items() if isinstance(value, Sized)}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise StoreRejected(f"the numbers differ: {counted}", fix="give one entry per text")
    items = _items(many, shared)
    while piece := list(itertools.islice(items, SLICE)):
        yield piece


def _items(many: Mapping[str, Iterable[Any]], shared: object) -> Iterator[TextToStore]:
    absent = object()
    for number, values in enumerate(itertools.zip_longest(*many.values(), fillvalue=absent)):
        if any(value is absent for value in values):
            message = "the numbers of texts, ids, metadata and embeddings differ"
            raise StoreRejected(message, fix="give one id, metadata and embedding per text")
        row = dict(zip(many, values, strict=True))
        ident = str(uuid4()) if row.get("ids") is None else row["ids"]
        text, about = text_of(row["texts"], number), shared or row.get("metadata")
        yield TextToStore(number, text, ident, about, row.get("embeddings"))


def count_of(k: object) -> int:
    """Number of results to return; YAML templates may pass it as text.

    Raises:
        SearchError: `k` is no whole number of at least 1.
    """
    number = int(k) if isinstance(k, str) and k.strip().isdecimal() else k
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise SearchError(f"k is {k!r}", fix="give a whole number of at least 1")
    return number


class Resources(Protocol):
    """Embedders and the collection store behind the actions; each is opened on first use."""

    def require_enabled(self, group: str) -> None:
        """Raise unless the actions of this group, `embedding` or `vector`, are switched on.

        Raises:
            ConfigurationError: they are off.
        """
        ...

    def embedder(self, model: str | None, dimensions: int | None) -> Embedder:
        """The embedder for a model; None takes the configured one.

        Raises:
            ConfigurationError: it cannot be opened.
        """
        ...

    def store(self) -> CollectionStore:
        """The store of the collections.

        Raises:
            ConfigurationError: it cannot be opened.
        """
        ...

    def redacted(self, message: str) -> str:
        """The message without secrets, with the key names of the workflow's settings."""
        ...

    def close(self) -> None:
        """Close database connections."""
        ...


class Actions:
    """The three actions; each takes the workflow's state, which it does not change, and returns a mapping.

    An error is returned too: `{"error": sentence, "success": False}`. Unknown keyword arguments are ignored,
    since engines pass more than an action needs.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def redacted(self, message: str) -> str:
        """The message without secrets, with the key names of the workflow's settings."""
        return self._resources.redacted(message)

    def get_state(self) -> Json:
        """All collections as JSON, for a checkpoint."""
        return self._resources.store().get_state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Make the collections those of a checkpoint.

        Raises:
            StoreRejected: not a state of `get_state`; the collections are unchanged.
        """
        self._resources.store().restore_state(state)

    def close(self) -> None:
        """Close database connections; collections in memory stay."""
        self._resources.close()

    @answered
    def embedding_create(
        self,
        state: object,  # noqa: ARG002 (every action gets it)
        text: object,
        model: str | None = None,
        batch: bool = False,
        *,
        dimensions: int | None = None,
        **_more: object,
    ) -> Json:
        """Vectors of a text or a list of texts.

        `{"embedding", "model", "dimensions"}` for one text; `{"embeddings", "model", "count"}` for a list, or with
        `batch`. `model` left out is that of the settings; `dimensions` shortens vectors of models that can.
        """
        self._resources.require_enabled("embedding")
        embedder = self._resources.embedder(model, dimensions)
        vectors = [
            vector for piece in slices(text) for vector in _embedded(embedder, [item.text for item in piece])
        ]
        if batch or not isinstance(text, str):
            return {"embeddings": vectors, "model": embedder.model, "count": len(vectors)}
        return {"embedding": vectors[0], "model": embedder.model, "dimensions": len(vectors[0])}

    @answered
    def vector_store(
        self,
        state: object,  # noqa: ARG002
        texts: object,
        embeddings: object = None,
        ids: object = None,
        metadata: object = None,
        collection: str = "default",
        *,
        model: str | None = None,
        dimensions: int | None = None,
        **_more: object,
    ) -> Json:
        """Put texts into a collection: `{"stored", "collection", "ids"}`.

        Texts without `embeddings` are embedded, texts without `ids` get random ones, and an id that is there
        already is replaced. All may be generators: at most 256 texts are processed at once. If a later one fails,
        `stored` and `ids` of the error name what was stored.
        """
        self._resources.require_enabled("vector")
        name = name_of(collection, "the collection's name")
        store, stored = self._resources.store(), list[str]()
        try:
            for piece in slices(texts, ids, metadata, embeddings):
                entries, made_by = self._entries(piece, model, dimensions)
                store.add(name, entries, model=made_by)
                stored += [one.id for one in entries]
        except Exception as error:
            if not stored:
                raise
            return {**failure(error, self.redacted), **_stored(name, stored)}
        return _stored(name, stored)

    @answered
    def vector_query(
        self,
        state: object,  # noqa: ARG002
        query: object = "",
        k: object = 5,
        collection: str = "default",
        filter: object = None,  # noqa: A002 (the documents name it so)
        include_embeddings: bool = False,
        *,
        embedding: object = None,
        model: str | None = None,
        dimensions: int | None = None,
        **_more: object,
    ) -> Json:
        """The texts of a collection that are closest in meaning to `query`, or to the vector `embedding`.

        `{"results": [{"id", "text", "score", "metadata"}], "query", "collection", "k"}`, best first; with
        `include_embeddings` each result has its `embedding`. A collection that nobody filled has no results.
        """
        self._resources.require_enabled("vector")
        name, most, conditions = name_of(collection, "the collection's name"), count_of(k), parse(filter)
        if embedding is not None:
            vector, made_by = vector_of(embedding, "the vector"), model or ""
        else:
            query_text = text_of(query, 0)
            if not query_text.strip():
                raise SearchError("the query is empty", fix="give a text, or a vector as `embedding`")
            embedder = self._resources.embedder(model, dimensions)
            vector, made_by = (
                vector_of(embedder.embed_query(query_text), "the query's vector"),
                embedder.model,
            )
        hits = self._resources.store().query(name, vector, k=most, conditions=conditions, model=made_by)
        results = [one.to_json(embedding=include_embeddings) for one in hits]
        return {"results": results, "query": query, "collection": name, "k": most}

    def _entries(
        self, piece: Sequence[TextToStore], model: str | None, dimensions: int | None
    ) -> tuple[list[CollectionEntry], str]:
        """The entries of a piece and the model of their vectors; no model name if the caller gave the vectors."""
        new_vectors, made_by = iter(list[list[float]]()), model or ""
        if missing := [item.text for item in piece if item.vector is None]:
            embedder = self._resources.embedder(model, dimensions)
            new_vectors, made_by = iter(_embedded(embedder, missing)), embedder.model
        entries = [
            entry(
                id=ident,
                text=text,
                metadata=metadata,
                embedding=next(new_vectors) if v is None else v,
                number=n,
            )
            for n, text, ident, metadata, v in piece
        ]
        return entries, made_by


def _embedded(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    from pipeline.embedding.calls import embed_checked

    vectors: list[list[float]] = embed_checked(embedder, texts).tolist()
    return vectors


def _stored(collection: str, ids: Sequence[str]) -> Json:
    return {"stored": len(set(ids)), "collection": collection, "ids": list(ids)}
