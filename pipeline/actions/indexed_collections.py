"""Collections with an index in a vector store beside them: texts and answers come from where they are kept."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import numpy as np

from pipeline.actions.collections import (
    Collection,
    CollectionEntry,
    CollectionHit,
    CollectionStore,
    from_json,
    ranked,
    shape_with,
)
from pipeline.actions.filters import Condition, matches
from pipeline.documents import Json
from pipeline.errors import StoreError, StoreRejected
from pipeline.search.stores import Point, Scope, VectorStore

logger = logging.getLogger(__name__)

FEWEST, FACTOR = 100, 4
"""Candidates that the index is asked for: at least so many, so many times the results, and so many times more again."""
MOST_CANDIDATES = 10_000


class KeptCollections(CollectionStore, Protocol):
    """Collections that can be read by ids."""

    def read(self, collection: str, ids: Sequence[str]) -> Collection | None:
        """A collection with those of these documents that it has, in order of insertion; None if it is unknown.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...


class IndexedCollections:
    """Collections of one tenant, whose candidates a vector store names.

    What is kept decides: it filters and scores the candidates, so an index that is stale, emptied or wrong can make
    an answer miss a document, never show a wrong one. An index that does not answer, or has fewer documents than a
    question needs, is passed by, and every document is compared.
    """

    def __init__(self, kept: KeptCollections, index: VectorStore, tenant: UUID) -> None:
        self._kept, self._index, self._tenant = kept, index, tenant

    def _name(self, collection: str) -> str:
        """Name of a collection in the index, where names are short and plain and belong to all tenants."""
        digest = hashlib.sha256(f"{self._tenant} {collection}".encode()).hexdigest()
        return f"actions-{digest[:32]}"

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> None:
        """See CollectionStore; raises StoreUnavailable too."""
        existing = self._kept.read(collection, [])
        shape_with(existing and existing.shape, [one.embedding for one in entries], model, collection)
        # First into the index: what only that has is not shown, and what only that lacks would not be found.
        try:
            self._put(collection, entries)
        except StoreRejected:
            if existing is not None:
                raise
            self._delete([collection])  # a rest of a collection of this name that was deleted
            self._put(collection, entries)
        self._kept.add(collection, entries, model=model)

    def query(
        self,
        collection: str,
        vector: Sequence[float],
        *,
        k: int,
        conditions: Sequence[Condition] = (),
        model: str = "",
    ) -> list[CollectionHit]:
        """See CollectionStore; raises StoreUnavailable too."""
        if (existing := self._kept.read(collection, [])) is None:
            return []
        shape_with(existing.shape, [vector], model, collection)
        n = max(FEWEST, FACTOR * k)
        while n <= MOST_CANDIDATES and any(vector):
            ids = self._near(collection, vector, n)
            if len(ids) < n:
                break  # these are all it has; comparing the rest as well is little work, or it was emptied
            candidates = self._kept.read(collection, ids)
            entries = candidates.entries.values() if candidates else ()
            chosen = [one for one in entries if matches(one.metadata, conditions)]
            if len(chosen) >= k:
                return ranked(chosen, vector, k)
            n *= FACTOR
        return self._kept.query(collection, vector, k=k, conditions=conditions, model=model)

    def get_state(self) -> Json:
        """See CollectionStore; raises StoreUnavailable too."""
        return self._kept.get_state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See CollectionStore; raises StoreUnavailable too."""
        before, restored = self._kept.get_state()["collections"], from_json(state)
        self._kept.restore_state(state)
        self._delete({*before, *restored})
        for name, contents in restored.items():
            self._put(name, list(contents.entries.values()))

    def _put(self, collection: str, entries: Sequence[CollectionEntry]) -> None:
        points = [
            Point(id=one.id, vector=np.array(one.embedding, dtype=np.float32), tenant=self._tenant)
            for one in entries
            if any(one.embedding)  # a vector without a direction is near nothing, and some stores refuse it
        ]
        self._index.put(self._name(collection), points)

    def _delete(self, collections: Iterable[str]) -> None:
        for name in collections:
            self._index.delete(Scope(collection=self._name(name)))

    def _near(self, collection: str, vector: Sequence[float], n: int) -> list[str]:
        """Ids of the nearest documents; none if the index does not answer."""
        scope = Scope(collection=self._name(collection), tenant=self._tenant)
        try:
            return [one.id for one in self._index.near(np.array(vector, dtype=np.float32), n, scope)]
        except StoreError as error:
            logger.warning("a collection is searched without its index: %s", error.message)
            return []
