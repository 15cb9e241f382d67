"""A vector store compared with an exact search in PostgreSQL."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection, text

from pipeline.database.engine import Database, lift_statement_timeout
from pipeline.search.chunk_store import active_index
from pipeline.search.stores import Scope, VectorStore
from pipeline.search.stores.mirror import collection_of
from pipeline.search.stores.outbox import point_id

NEAREST = 10
MOST_TIED = 100
TIE = 1e-3
"""Difference of similarities that the precision of the stored vectors does not tell apart."""


_CHUNKS = """select c.document_id, c.ord from chunk c join document d on d.id = c.document_id
    where c.index_id = :index and c.embedding is not null and not d.hidden and not d.deleted"""


def points_in_postgres(connection: Connection, index: int, sample: int) -> tuple[int, list[str]]:
    """Number of this tenant's chunks that a store should have, and some of their ids, drawn at random."""
    lift_statement_timeout(connection)
    rows = connection.execute(text(_CHUNKS), {"index": index}).all()
    chosen = np.random.default_rng().permutation(len(rows))[:sample]
    return len(rows), [point_id(*rows[place]) for place in chosen]


def page_of_points(connection: Connection, index: int, after: tuple[UUID, int], most: int) -> list[str]:
    """Ids of this tenant's chunks that a store should have, in their order behind a document and ordinal."""
    page = text(f"{_CHUNKS} and (c.document_id, c.ord) > (:document, :ord) order by 1, 2 limit :most")
    values = {"index": index, "document": after[0], "ord": after[1], "most": most}
    return [point_id(*row) for row in connection.execute(page, values)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison; None without questions."""

    questions: int
    recall: float | None = None
    """Mean share of the exact nearest chunks, or such as are as near, that the store finds."""
    milliseconds: float | None = None
    """Median time of its answers."""


# Documents as a whole are questions: near to some chunks and equal to none.
_QUESTIONS = text("""
    select x.centroid from index_document x where x.index_id = :index and x.centroid is not null
    order by hashtext(cast(x.document_id as text)) limit :questions""")
_EXACT = text("""
    select c.document_id, c.ord, c.embedding <=> :vector as distance
    from chunk c join document d on d.id = c.document_id
    where c.index_id = :index and c.embedding is not null and not d.hidden and not d.deleted
    order by (c.embedding <=> :vector) + 0, c.document_id, c.ord limit :nearest""")


def recall(database: Database, tenant: UUID, store: VectorStore, *, questions: int) -> Comparison:
    """Compare a store's nearest chunks of a tenant with the exact ones, for questions from its own documents.

    Raises:
        StoreError: the store, or the database, does not answer.
    """
    with database.tenant(tenant) as connection:
        lift_statement_timeout(connection)
        index = active_index(connection)
        if index is None:
            return Comparison(questions=0)
        values = {"index": index.id, "questions": questions}
        vectors = list(connection.execute(_QUESTIONS, values).scalars())
        exact = []
        for vector in vectors:
            nearest = {"index": index.id, "vector": HalfVector(vector.to_list()), "nearest": MOST_TIED}
            rows = connection.execute(_EXACT, nearest).all()
            farthest = max((row.distance for row in rows[:NEAREST]), default=0.0) + TIE
            exact.append({point_id(*row[:2]) for row in rows if row.distance <= farthest})
    scope, shares, seconds = Scope(collection=collection_of(index.id), tenant=tenant), [], []
    for vector, expected in zip(vectors, exact, strict=True):
        begun = time.monotonic()
        neighbours = store.near(np.asarray(vector.to_numpy(), dtype=np.float32), NEAREST, scope)
        seconds.append(time.monotonic() - begun)
        shares.append(len(expected & {one.id for one in neighbours}) / max(1, min(NEAREST, len(expected))))
    if not shares:
        return Comparison(questions=0)
    return Comparison(
        questions=len(shares),
        recall=round(statistics.mean(shares), 4),
        milliseconds=round(1000 * statistics.median(seconds), 1),
    )
