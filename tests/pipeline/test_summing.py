"""A hybrid search that is ranked where it is found gives what the ranking of all candidates gives, to the last bit."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pgvector import HalfVector
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.search import (
    RetrievalOptions,
    Retriever,
    SearchRequest,
    SearchResults,
    Weights,
    bm25,
    index_snapshot,
)
from pipeline.search.arms import LedgerFilter
from pipeline.search.chunks import Filter
from pipeline.search.looking import SPARE
from tests.pipeline.stores.depot import Counting, Depot

NOBODY = UUID(int=2)
"""Id of no document and no project."""
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
        Weights(vector=0.0, keyword=1.0, title=0.0, covered=0.0),
        Weights(vector=1.0, keyword=0.0, title=0.0, covered=0.0, centroid=1.0),
        Weights(vector=0.0, keyword=0.0, title=0.0, covered=0.0),
        Weights(vector=0.2, keyword=0.3, title=0.4, centroid=7.0, outdated=0.1),
    ],
)
def test_with_any_weights(stock: Depot, weights: Weights) -> None:
    for question in QUESTIONS:
        request = SearchRequest(text=question, k=10, explain=True, min_similarity=0.0)
        summed, ranked = both(retriever(stock, weights=weights), request)
        assert summed.hits == ranked.hits != []


@pytest.mark.parametrize(
    ("changed", "statements"),
    [
        ({}, 1),
        ({"text": "word30 word31 " + "the of and " * 20}, 1),
        ({"text": "word30 word31 " + "Word30 wORD31 " * 20}, 1),
        ({"text": f"word30 word31 {' '.join(f'unheard{n}' for n in range(bm25.MOST_HERE - 2))}"}, 1),
        ({"text": f"word30 word31 {' '.join(f'unheard{n}' for n in range(bm25.MOST_HERE - 1))}"}, 2),
        ({"filter": Filter(kinds=(Kind.DECISION, Kind.WORK))}, 2),
    ],
    ids=["short", "little words", "repeated", "longest", "too long", "filtered"],
)
def test_it_is_one_statement_if_the_question_is_short(
    stock: Depot, changed: dict[str, Any], statements: int
) -> None:
    counting = Counting(stock.database)
    made = retriever(stock, counting)
    # What no longer holds is not among the first for it.
    question = SearchRequest(**{"text": "word30 word31", "k": 3, "explain": True, **changed})
    summed, ranked = both(made, question)
    assert summed.hits == ranked.hits != []
    counting.asked.clear()
    assert made.search(question).hits
    assert len(counting.asked) == statements
    assert "lexeme_stat" in counting.asked[0]


def test_more_lexemes_than_words_are_weighed_beforehand(
    stock: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is known of which the server makes more lexemes; a later version may, and nothing must get lost."""
    monkeypatch.setattr(bm25, "LITTLE", {"word3", "word7"})
    counting = Counting(stock.database)
    summed, ranked = both(retriever(stock, counting), SearchRequest(text="word3 word7 word21", explain=True))
    assert summed.hits == ranked.hits != []
    first, second = counting.asked[:2]
    assert "question.q0" in first
    assert "question.q0" not in second


def as_tsquery(stock: Depot, query: str) -> bytes:
    ((made,),) = stock.database.ask(stock.tenant, "select cast(%(query)s as tsquery)", {"query": query})
    return bytes(made)


@pytest.mark.parametrize(
    "question", [*QUESTIONS, "your very because", "word3 it's worded Word3 nowhere wordings"]
)
def test_a_question_is_weighed_alike_in_both_ways(stock: Depot, question: str) -> None:
    counted = bm25.Statistics(chunks=200, mean_length=7.0)
    ask = partial(stock.database.ask, stock.tenant)
    terms = bm25.weigh(ask, stock.index.id, stock.tenant, question, counted)
    short = bm25.given_here(stock.index.id, stock.tenant, question, counted, ["english"])
    assert short
    named, language, given = short
    assert len(terms) <= named.most
    ((count, any_of, total, *each),) = ask(bm25.weighed_here(named, language), given)
    wanted = bm25.values(terms, counted)
    assert (count, total) == (len(terms), wanted["total"])
    assert any_of == (as_tsquery(stock, wanted["any_of"]) if terms else None)
    assert each[1::3] == [t.weight for t in terms] + [0.0] * (named.most - len(terms))
    assert each[2::3] == [t.sharp for t in terms] + [0.0] * (named.most - len(terms))
    lexemes = [wanted[f"q{n}"] for n in range(len(terms))] + [""] * (named.most - len(terms))
    assert each[::3] == [as_tsquery(stock, one) for one in lexemes]


def test_lexemes_are_quoted_where_they_are_weighed(stock: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text makes such a lexeme today; the parser of a later PostgreSQL might."""
    monkeypatch.setattr(bm25, "_ONE_LANGUAGE", r"unnest(cast($x$'a''b\\c' 'd & e'$x$ as tsvector))")
    given = bm25.given_here(stock.index.id, stock.tenant, "one two", bm25.Statistics(), ["english"])
    assert given
    ((_, any_of, *_rest),) = stock.database.ask(stock.tenant, bm25.weighed_here(*given[:2]), given[2])
    assert any_of == as_tsquery(stock, r"'a''b\\c' | 'd & e'")


def test_the_little_words_are_stop_words(stock: Depot) -> None:
    words = " ".join(bm25.LITTLE)
    assert stock.sql("select to_tsvector('english', :words) = cast('' as tsvector) as nothing", words=words)[
        0
    ].nothing


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


@pytest.mark.parametrize(
    ("wanted", "statements"),
    [
        (Filter(kinds=(Kind.DECISION, Kind.WORK)), 1),
        (Filter(kinds=(Kind.DECISION, Kind.WORK), exclude=(UUID(int=1),)), 1),
        (Filter(exclude=(UUID(int=1),)), 1),
        (Filter(kinds=(Kind.DECISION, Kind.WORK), projects=(NOBODY,)), 1),
        (LedgerFilter(kinds=(Kind.DECISION, Kind.WORK), only=(NOBODY,)), 2),
    ],
    ids=["documents", "but one", "all but one", "another project", "chunks"],
)
def test_a_filter_on_documents_is_counted_once_a_minute(
    stock: Depot, monkeypatch: pytest.MonkeyPatch, wanted: Filter, statements: int
) -> None:
    counting = Counting(stock.database)
    made = retriever(stock, counting, exact_below=0)
    question = SearchRequest(text="word30 word31", k=3, explain=True, filter=wanted, min_similarity=-1.0)
    summed, ranked = both(made, question)
    assert summed.hits == ranked.hits
    none = NOBODY in (*wanted.projects, *getattr(wanted, "only", ()))
    assert bool(summed.hits) is not none
    of_documents = bool(wanted.kinds and not isinstance(wanted, LedgerFilter))
    assert sum("chunk_count" in one for one in counting.asked) == of_documents
    counting.asked.clear()
    made.search(replace(question, filter=replace(wanted, exclude=(UUID(int=9),))))
    assert [one for one in counting.asked if "chunk_count" in one] == [], "whatever is left out besides"
    if not none:
        assert len(counting.asked) == statements
    later = time.monotonic() + index_snapshot.KEPT_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    counting.asked.clear()
    made.search(question)
    assert sum("chunk_count" in one for one in counting.asked) == of_documents


def test_how_much_a_filter_lets_through_is_the_sum_of_its_documents(shared_database: Database) -> None:
    depot = Depot(shared_database, exact_below=0)
    for n in range(12):
        depot.put("kestrel", title=str(n), kind=Kind.WORK if n < 8 else Kind.DECISION)
    depot.count()
    depot.sql("update document set chunk_count = 300")
    on = index_snapshot.look(shared_database, depot.tenant)
    assert on
    on = replace(on, counted=replace(on.counted, chunks=3600))

    def width(**wanted: Any) -> str:
        return index_snapshot.width(
            shared_database, depot.tenant, on, LedgerFilter(**wanted), candidates=100, first=100
        )

    assert width() == width(exclude=(UUID(int=1),)) == width(only=(UUID(int=1),)) == ""
    assert width(kinds=(Kind.DECISION,)) == "some"
    assert width(kinds=(Kind.WORK,)) == "many"
    assert width(kinds=(Kind.WORK,), only=(UUID(int=1),)) == ""
    assert width(projects=(depot.project,)) == "many"
    assert width(kinds=(Kind.DECISION,), projects=(depot.project, NOBODY)) == "some"
    assert width(projects=(NOBODY,)) == "few"
    assert width(kinds=(Kind.REFERENCE,)) == "few"
