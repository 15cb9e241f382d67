"""The three actions: texts into vectors, into a collection, and back by meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.actions.answers import answered, failure
from pipeline.actions.arguments import Item, count_of, slices
from pipeline.actions.collections import CollectionStore, Entry
from pipeline.actions.collections.entries import entry, name_of, text_of, vector_of
from pipeline.actions.collections.filters import parse
from pipeline.documents import Json
from pipeline.errors import SearchError

if TYPE_CHECKING:
    from pipeline.embedding import Embedder


class Parts(Protocol):
    """What the actions are made of; everything is opened when it is first asked for."""

    def check(self, group: str) -> None:
        """Nothing, if the actions of this group, `embedding` or `vector`, are switched on.

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
        """Where collections are kept.

        Raises:
            ConfigurationError: it cannot be opened.
        """
        ...

    def shown(self, message: str) -> str:
        """A message as a workflow may see it: without secrets, in the words of its settings."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...


class Actions:
    """Each action takes the workflow's state, which it leaves alone, and answers with a mapping.

    An error is an answer too: `{"error": sentence, "success": False}`. Unknown keyword arguments are left alone,
    since engines hand over more than an action asks for.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def shown(self, message: str) -> str:
        """A message as the workflow may see it."""
        return self._parts.shown(message)

    def get_state(self) -> Json:
        """All collections as JSON, for a checkpoint."""
        return self._parts.store().get_state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Make the collections those of a checkpoint.

        Raises:
            StoreRejected: this is no such state; the collections are as they were.
        """
        self._parts.store().restore_state(state)

    def close(self) -> None:
        """Give connections to a database back; collections in memory stay."""
        self._parts.close()

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
        self._parts.check("embedding")
        embedder = self._parts.embedder(model, dimensions)
        made = [
            vector
            for piece in slices(text, None, None, None)
            for vector in _embedded(embedder, [item.text for item in piece])
        ]
        if batch or not isinstance(text, str):
            return {"embeddings": made, "model": embedder.model, "count": len(made)}
        return {"embedding": made[0], "model": embedder.model, "dimensions": len(made[0])}

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
        already is replaced. All may be generators: no more than 256 texts are worked on at once. Should a later
        one fail, `stored` and `ids` of the error tell what is in.
        """
        self._parts.check("vector")
        name = name_of(collection, "the collection's name")
        store, stored = self._parts.store(), list[str]()
        try:
            for piece in slices(texts, ids, metadata, embeddings):
                entries, made_by = self._entries(piece, model, dimensions)
                store.add(name, entries, model=made_by)
                stored += [one.id for one in entries]
        except Exception as error:
            if not stored:
                raise
            return {**failure(error, self.shown), **_stored(name, stored)}
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
        self._parts.check("vector")
        name, most, conditions = name_of(collection, "the collection's name"), count_of(k), parse(filter)
        if embedding is not None:
            vector, made_by = vector_of(embedding, "the vector"), model or ""
        else:
            asked = text_of(query, 0)
            if not asked.strip():
                raise SearchError("the query is empty", fix="give a text, or a vector as `embedding`")
            embedder = self._parts.embedder(model, dimensions)
            vector, made_by = vector_of(embedder.embed_query(asked), "the query's vector"), embedder.model
        found = self._parts.store().query(name, vector, k=most, conditions=conditions, model=made_by)
        results = [one.to_json(embedding=include_embeddings) for one in found]
        return {"results": results, "query": query, "collection": name, "k": most}

    def _entries(
        self, piece: Sequence[Item], model: str | None, dimensions: int | None
    ) -> tuple[list[Entry], str]:
        """The documents of a piece, and the model that made their vectors; empty if the caller did."""
        missing = [item for item in piece if item.vector is None]
        vectors: dict[int, object] = {item.number: item.vector for item in piece}
        made_by = model or ""
        if missing:
            embedder = self._parts.embedder(model, dimensions)
            made_by = embedder.model
            made = _embedded(embedder, [item.text for item in missing])
            vectors.update({item.number: vector for item, vector in zip(missing, made, strict=True)})
        entries = [
            entry(
                id=item.id,
                text=item.text,
                metadata=item.metadata,
                embedding=vectors[item.number],
                number=item.number,
            )
            for item in piece
        ]
        return entries, made_by


def _embedded(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    from pipeline.embedding.calls import embed_checked

    vectors: list[list[float]] = embed_checked(embedder, texts).tolist()
    return vectors


def _stored(collection: str, ids: Sequence[str]) -> Json:
    return {"stored": len(set(ids)), "collection": collection, "ids": list(ids)}
