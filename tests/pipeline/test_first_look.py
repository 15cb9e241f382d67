"""A search by meaning alone that asks for nothing more: the shortest statement finds what the thorough one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import Chunk
from pipeline.embedding import Vectors, unit
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults
from pipeline.search.chunks import Filter
from tests.pipeline.stores.depot import DIMENSIONS, Counting, Depot

DOCUMENTS = 200


@pytest.fixture
def counting(shared_database: Database) -> Counting:
    return Counting(shared_database)


def rows(count: int, seed: int) -> Vectors:
    return unit(np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32))


@pytest.fixture(scope="module")
def stock(shared_database: Database) -> Depot:
    """Documents of one to four chunks from two sources; their vectors lie where chance has put them."""
    made = Depot(shared_database)
    documents = [
        made.document(f"{n:03}", source=("notes", "wiki")[n % 2], metadata={"n": n}, tags=(f"tag{n % 3}",))
        for n in range(DOCUMENTS)
    ]
    chunks = [[Chunk(ord=o, content=f"{n} part {o}") for o in range(n % 4 + 1)] for n in range(DOCUMENTS)]
    made.put_all(list(zip(documents, chunks, strict=True)), rows(sum(map(len, chunks)), 1))
    made.build()
    made.count()
    return made


class Pointed:
    """An embedder that takes every question for the same one."""

    def __init__(self, depot: Depot, vector: Vectors) -> None:
        self.model, self.dimensions, self.limits = depot.embedder.model, DIMENSIONS, depot.embedder.limits
        self.vector = vector

    def embed_query(self, _text: str) -> Vectors:
        return self.vector

    def count_tokens(self, text: str) -> int:
        return len(text)

    def embed_documents(self, texts: Any) -> Vectors:
        return np.tile(self.vector, (len(texts), 1))


def search(depot: Depot, database: Database, vector: Vectors, **request: Any) -> SearchResults:
    made = Retriever(
        database,
        depot.tenant,
        lambda _index: Pointed(depot, vector),
        RetrievalOptions(exact_below=0, min_similarity=-1.0),
    )
    return made.search(SearchRequest(text="a", mode="vector", **request))


@pytest.mark.parametrize("dedupe", [True, False])
@pytest.mark.parametrize("k", [1, 7, 50])
def test_it_finds_what_a_thorough_search_finds(
    stock: Depot, counting: Counting, k: int, dedupe: bool
) -> None:
    for vector in rows(20, 2):
        thorough = search(stock, counting, vector, k=k, dedupe=dedupe, explain=True)
        counting.read.clear()
        found = search(stock, counting, vector, k=k, dedupe=dedupe)
        assert list(found.hits) == [replace(hit, explanation=None) for hit in thorough.hits]
        assert len(found.hits) == k
        assert {hit.document.source for hit in found.hits} <= {"notes", "wiki"}
    assert len(counting.read) == 1


def test_no_hit_is_less_like_the_question_than_asked_for(stock: Depot, counting: Counting) -> None:
    (vector,) = rows(1, 3)
    scores = [hit.score for hit in search(stock, counting, vector, k=20).hits]
    found = search(stock, counting, vector, k=20, min_similarity=scores[5])
    assert [hit.score for hit in found.hits] == scores[:6]
    assert not search(stock, counting, vector, k=20, min_similarity=1.0).hits


def test_it_goes_on_for_a_document_that_has_all_of_the_nearest(
    shared_database: Database, counting: Counting
) -> None:
    """Of 4 x 5 chunks looked at, 16 belong to one document; then of 100, 90."""
    (vector,) = rows(1, 4)
    for long, statements in ((16, 1), (90, 3)):
        depot = Depot(shared_database)
        near = unit(vector + 0.01 * rows(long, 5))
        depot.put(*[f"long {n}" for n in range(long)], title="long", vectors=near)
        far = unit(vector + 0.1 * rows(6, 6))
        for n in range(6):
            depot.put(f"short {n}", title=f"short {n}", vectors=far[n : n + 1])
        depot.build()
        depot.count()
        counting.read.clear()
        found = search(depot, counting, vector, k=5)
        assert found.hits[0].document.title == "long"
        assert len({hit.document.id for hit in found.hits}) == 5
        assert len(counting.read) == statements


@pytest.mark.parametrize("gone", ["hidden", "deleted"])
def test_what_is_not_shown_takes_no_place(shared_database: Database, counting: Counting, gone: str) -> None:
    (vector,) = rows(1, 7)
    depot = Depot(shared_database)
    near, far = unit(vector + 0.01 * rows(3, 8)), unit(vector + 0.1 * rows(30, 9))
    secret = {depot.put("secret", vectors=near[n : n + 1]) for n in range(3)}
    for n in range(30):
        depot.put("open", vectors=far[n : n + 1])
    depot.build()
    depot.count()
    assert secret <= {hit.document.id for hit in search(depot, counting, vector, k=5).hits}
    depot.sql(f"update document set {gone} = true where id = any(:ids)", ids=list(secret))
    found = search(depot, counting, vector, k=5)
    assert not secret & {hit.document.id for hit in found.hits}
    assert len(found.hits) == 5


def test_names_of_sources_are_looked_up_once(stock: Depot, counting: Counting) -> None:
    (vector,) = rows(1, 10)
    first = search(stock, counting, vector, k=20)
    asked = [statement for statement in counting.asked if "from source" in statement]
    assert 1 <= len(asked) <= 2
    again = search(stock, counting, vector, k=20)
    assert again == first
    assert [statement for statement in counting.asked if "from source" in statement] == asked


def test_a_filter_is_never_overlooked(stock: Depot, counting: Counting) -> None:
    (vector,) = rows(1, 11)
    for wanted in (Filter(tags=("tag1",)), Filter(metadata={"n": 3}), Filter(projects=(UUID(int=1),))):
        for hit in search(stock, counting, vector, k=5, filter=wanted).hits:
            assert set(wanted.tags) <= set(hit.document.tags)
            assert wanted.metadata.items() <= hit.document.metadata.items()
            assert not wanted.projects or hit.document.project_id in wanted.projects
