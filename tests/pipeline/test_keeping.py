"""What keeping answers costs a search: which statements are asked, what is looked up, and what is not kept at all."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.database.engine import Database
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults
from pipeline.search.cache import Caches, MemoryCache, Value, made
from tests.pipeline.stores.depot import Counting, Depot


class Watched:
    """A cache that notes what is done with it."""

    def __init__(self) -> None:
        self.kept = MemoryCache()
        self.gets: list[str] = []
        self.puts: list[bytes] = []

    def get(self, space: str, key: str) -> bytes | None:
        self.gets.append(key)
        return self.kept.get(space, key)

    def put(self, space: str, key: str, value: Value) -> None:
        self.puts.append(made(value))
        self.kept.put(space, key, self.puts[-1])


@pytest.fixture(scope="module")
def depot(shared_database: Database) -> Depot:
    made = Depot(shared_database)
    for n in range(30):
        made.put(f"the kestrel hovers {n}", title=f"Kestrel {n}")
    made.build()
    made.count()
    return made


@pytest.fixture
def counting(depot: Depot) -> Counting:
    return Counting(depot.database)


@pytest.fixture
def results() -> Watched:
    return Watched()


def keeping(counting: Counting, depot: Depot, results: Watched | None, **options: Any) -> Retriever:
    found = Retriever(
        counting,
        depot.tenant,
        lambda _index: depot.embedder,
        RetrievalOptions(exact_below=0, **options),
        caches=Caches(results=results),
    )
    found.search(SearchRequest(text="warm up"))  # what is counted once a minute is counted
    counting.asked.clear()
    return found


def search(retriever: Retriever, words: str = "kestrel", **changes: Any) -> SearchResults:
    return retriever.search(SearchRequest(text=words, min_similarity=-1.0, k=5, **changes))


def test_a_new_question_takes_one_statement_and_its_answer_given_again_one(
    counting: Counting, depot: Depot, results: Watched
) -> None:
    retriever = keeping(counting, depot, results)
    first = search(retriever)
    assert len(counting.asked) == 1
    again = search(retriever)
    assert len(counting.asked) == 2
    assert (first.remembered, again.remembered) == (False, True)
    assert [hit.id for hit in again.hits] == [hit.id for hit in first.hits]


def test_ranking_and_scores_are_those_of_a_search_that_keeps_nothing(
    counting: Counting, depot: Depot, results: Watched
) -> None:
    plain, kept = keeping(counting, depot, None), keeping(counting, depot, results)
    for explain in (False, True):
        wanted = search(plain, explain=explain)
        assert search(kept, "kestrel", explain=explain).hits == wanted.hits


def test_by_meaning_alone_nothing_is_kept_and_the_shortest_statement_taken(
    counting: Counting, depot: Depot, results: Watched
) -> None:
    retriever = keeping(counting, depot, results)
    gets, puts = len(results.gets), len(results.puts)
    found = search(retriever, mode="vector")
    assert len(found.hits) == 5
    assert (len(results.gets), len(results.puts)) == (gets, puts)
    plain = keeping(counting, depot, None)
    search(plain, mode="vector")
    assert counting.asked == [counting.asked[0]], "the very statement of a search that keeps nothing"
    assert not search(retriever, mode="vector").remembered


@pytest.mark.parametrize("words", ["", "   "])
def test_a_question_without_words_is_looked_up_nowhere(
    counting: Counting, depot: Depot, results: Watched, words: str
) -> None:
    retriever = keeping(counting, depot, results)
    gets = len(results.gets)
    assert search(retriever, words).hits == ()
    assert len(results.gets) == gets


def test_who_wants_no_hits_asks_once(counting: Counting, depot: Depot) -> None:
    """Nothing found would mean that another index may be the active one by now, and that is looked up."""
    looked: list[str] = []
    retriever = keeping(counting, depot, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.search.retriever.look", lambda *_: looked.append("look"))
        assert retriever.search(SearchRequest(text="kestrel", k=0)).hits in ((), [])
    assert len(counting.asked) == 1
    assert not looked


def test_an_empty_answer_is_not_kept(counting: Counting, depot: Depot, results: Watched) -> None:
    retriever = keeping(counting, depot, results)
    before = len(results.puts)
    nothing = SearchRequest(text="unheard-of", min_similarity=2.0)
    assert not retriever.search(nothing).hits
    assert not retriever.search(nothing).remembered
    assert len(results.puts) == before


def test_what_is_kept_is_made_by_whoever_writes_it(counting: Counting, depot: Depot) -> None:
    """So that the answer is given before."""

    class Lazy(Watched):
        def put(self, space: str, key: str, value: Value) -> None:
            assert callable(value)
            super().put(space, key, value)

    lazy = Lazy()
    search(keeping(counting, depot, lazy))
    assert len(lazy.puts) == 2
