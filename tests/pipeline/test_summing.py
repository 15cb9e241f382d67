"""A hybrid search that is ranked where it is found gives what the ranking of all candidates gives, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pgvector import HalfVector
from sqlalchemy import text

from pipeline.database import Database
from pipeline.documents import Chunk, Kind
from pipeline.retrieval import RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights
from pipeline.retrieval.looking import SPARE
from pipeline.stores import Filter
from tests.pipeline.stores.depot import Depot

WORDS = [f"word{n}" for n in range(40)]
QUESTIONS = (
    "word3 word7 word21",
    "word1",
    "word5 word5 word39 unknown",
    " ".join(WORDS[::2]),
    "word0 word1 word2",
)


@pytest.fixture(scope="module")
def stock(shared_database: Database) -> Depot:
    """Eighty documents of one to four chunks: one in five no longer holds, one in nine is hidden, some are alike."""
    depot, chance = Depot(shared_database, exact_below=10_000), random.Random(2)
    made = []
    for n in range(80):
        of = depot.document(
            title=" ".join(chance.sample(WORDS, 2)),
            kind=Kind.DECISION if n % 2 else Kind.WORK,
            tags=("x",) if n % 3 else (),
            metadata={"decision_status": "rejected", "resolution": "Won't fix"} if n % 5 == 0 else {},
        )
        contents = [" ".join(chance.choices(WORDS, k=6)) for _ in range(1 + n % 4)]
        if n % 10 == 0:
            contents = ["word3 word7 word1"]  # equal scores, told apart by their ids
        made.append((of, [Chunk(ord=o, content=c, context=of.title) for o, c in enumerate(contents)]))
    depot.put_all(made)
    depot.sql("update document set hidden = true where id in (select id from document order by id limit 9)")
    for row in depot.sql("select document_id, embedding from chunk where ord = 0 order by document_id")[::2]:
        centroid = np.roll(np.asarray(row.embedding.to_list()), 1)
        depot.sql(
            "insert into index_document (tenant_id, index_id, document_id, version, centroid) values (:t, :i, :d, 1, :c)",
            t=depot.tenant,
            i=depot.index.id,
            d=row.document_id,
            c=HalfVector(centroid),
        )
    depot.count()
    return depot


class Counting(Database):
    """Remembers the statements of the questions that are asked."""

    def __init__(self, of: Database) -> None:
        self.__dict__.update(vars(of))
        self.asked: list[str] = []

    def ask(
        self, tenant_id: UUID, statement: str, values: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        self.asked.append(statement)
        return super().ask(tenant_id, statement, values, **options)


def retriever(stock: Depot, database: Database | None = None, **options: Any) -> Retriever:
    return Retriever(
        database or stock.database, stock.tenant, lambda _index: stock.embedder, RetrievalOptions(**options)
    )


def both(made: Retriever, request: SearchRequest) -> tuple[SearchResults, SearchResults]:
    """The usual answer, and the one for which all candidates were ranked here."""
    return made.search(request), made.search(replace(request, trace=True))


@pytest.mark.req("001-093")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"k": 1},
        {"k": 40},
        {"dedupe": False},
        {"filter": Filter(kinds=(Kind.DECISION,), tags=("x",))},
        {"min_similarity": 0.9},
        {"min_similarity": -1.0},
    ],
    ids=str,
)
def test_both_ways_give_the_same(stock: Depot, question: str, changed: dict[str, Any]) -> None:
    request = SearchRequest(text=question, explain=True, **{"k": 8, "min_similarity": 0.1, **changed})
    summed, ranked = both(retriever(stock), request)
    assert summed.hits == ranked.hits != []


@pytest.mark.parametrize(
    "weights",
    [
        Weights(vector=0.0, keyword=1.0, title=0.0, rare=0.0),
        Weights(vector=1.0, keyword=0.0, title=0.0, rare=0.0, centroid=1.0),
        Weights(vector=0.0, keyword=0.0, title=0.0, rare=0.0),
        Weights(vector=0.2, keyword=0.3, title=0.4, rare=0.1, centroid=7.0, outdated=0.1),
    ],
)
def test_with_any_weights(stock: Depot, weights: Weights) -> None:
    for question in QUESTIONS:
        request = SearchRequest(text=question, k=10, explain=True, min_similarity=0.0)
        summed, ranked = both(retriever(stock, weights=weights), request)
        assert summed.hits == ranked.hits != []


def test_it_is_one_statement_after_the_question_is_weighed(stock: Depot) -> None:
    counting = Counting(stock.database)
    made = retriever(stock, counting)
    question = SearchRequest(text="word30 word31", k=3)  # what no longer holds is not among the first for it
    made.search(question)
    counting.asked.clear()
    assert made.search(question).hits
    assert len(counting.asked) == 2
    assert "lexeme_stat" in counting.asked[0]


def test_enough_is_read_where_many_of_the_first_no_longer_hold(shared_database: Database) -> None:
    """What holds comes before what does not, however many of those stand before it."""
    depot = Depot(shared_database, exact_below=10_000)
    for n in range(SPARE + 5):
        depot.put(
            "kestrel " * 3, title=f"old {n}", kind=Kind.DECISION, metadata={"decision_status": "rejected"}
        )
    depot.put("penguin")  # the least alike of all has no score that could be brought down
    kept = [depot.put("kestrel falcon owl", title=f"new {n}", kind=Kind.DECISION) for n in range(3)]
    depot.count()
    made = retriever(depot, weights=Weights(outdated=0.01))
    found = made.search(SearchRequest(text="kestrel", k=3, min_similarity=-1.0))
    assert {hit.document.id for hit in found.hits} == set(kept)


def test_a_question_without_words_is_found_by_meaning(stock: Depot) -> None:
    found = retriever(stock).search(SearchRequest(text="the of and", k=3, min_similarity=-1.0))
    assert len(found.hits) == 3
    assert found.degradation_level == 0
    with stock.database.tenant(stock.tenant) as connection:
        assert connection.execute(text("select count(*) from document where hidden")).scalar() == 9
