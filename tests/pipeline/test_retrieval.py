"""From a question to hits: modes, fusion, threshold, degradation, an index that changes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import Kind, SourceType
from pipeline.embedding import Embedder, EmbedderLimits, Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import EmbedderUnavailable, EmbeddingError, StoreRejected, StoreUnavailable
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights
from pipeline.search.chunk_store import SearchIndex, open_index
from pipeline.search.records import Filter, Mode
from pipeline.search.retriever import ef_search_for, least_similarity
from tests.pipeline.stores.corpus import DIMENSIONS, MODEL, Corpus


@pytest.fixture
def corpus(shared_database: Database) -> Corpus:
    """Three documents about birds and one about ovens."""
    made = Corpus(shared_database, exact_below=10_000)
    made.put("kestrel falcon hovers", "the kestrel nests in towers", title="Kestrels", context="Kestrels")
    made.put("falcon dives fast", title="Falcons", context="Falcons")
    made.put("otter swims", title="Otters", kind=Kind.WORK, source_type=SourceType.PBI, context="Otters")
    made.put("kiln fires clay", title="Ovens", context="Ovens")
    made.count()
    return made


def retriever(corpus: Corpus, options: RetrievalOptions | None = None) -> Retriever:
    return Retriever(
        corpus.database, corpus.tenant, lambda _index: corpus.embedder, options or RetrievalOptions()
    )


def search(
    corpus: Corpus, words: str, options: RetrievalOptions | None = None, **request: object
) -> SearchResults:
    return retriever(corpus, options).search(SearchRequest(text=words, **request))  # type: ignore[arg-type]


def titles(found: SearchResults) -> list[str]:
    return [hit.document.title for hit in found.hits]


class Broken:
    """An embedder whose provider is down."""

    model = MODEL
    dimensions = DIMENSIONS
    limits = EmbedderLimits()

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise EmbedderUnavailable(f"no answer for {len(texts)} texts")

    def embed_query(self, text: str) -> Vectors:
        raise EmbedderUnavailable(f"no answer for {len(text)} characters")

    def count_tokens(self, text: str) -> int:
        return len(text)


def forbidden(_index: SearchIndex) -> Embedder:
    raise AssertionError("an embedder was loaded")


# --- the answer ---


@pytest.mark.req("001-093", "001-033")
@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_the_best_document_comes_first_in_every_mode(corpus: Corpus, mode: str) -> None:
    found = search(corpus, "kestrel falcon", mode=mode)
    assert found.hits[0].document.title == "Kestrels"
    assert found.hits[0].chunk.content == "kestrel falcon hovers"
    assert found.degradation_level == 0
    assert found.model == MODEL
    scores = [hit.score for hit in found.hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize(("chunks", "looked"), [(250_000, 100), (500_000, 200), (10**9, 400)])
def test_in_a_large_store_the_vector_index_is_followed_further(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, chunks: int, looked: int
) -> None:
    seen: list[int] = []
    ask = Database.fetch

    def spy(database: Database, *args: Any, **named: Any) -> Any:
        seen.append(named.get("ef_search", 0))
        return ask(database, *args, **named)

    corpus.statistics.set(chunks=chunks)
    monkeypatch.setattr(Database, "fetch", spy)
    search(corpus, "kestrel falcon", RetrievalOptions(candidates=100))
    assert max(seen) == looked


def test_no_more_is_asked_of_the_vector_index_than_it_allows() -> None:
    assert ef_search_for(400, 10**9) == 1000
    assert ef_search_for(10, 100) == 100


def test_hits_are_named_after_document_and_chunk(corpus: Corpus) -> None:
    hit = search(corpus, "towers", mode="keyword").hits[0]
    assert hit.id == f"{hit.document.id}:1"
    assert hit.explanation is None


def test_a_document_comes_once_unless_chunks_are_asked_for(corpus: Corpus) -> None:
    assert titles(search(corpus, "kestrel", mode="keyword")) == ["Kestrels"]
    both = search(corpus, "kestrel", mode="keyword", dedupe=False)
    assert titles(both) == ["Kestrels", "Kestrels"]
    assert len({hit.id for hit in both.hits}) == 2


@pytest.mark.req("002-006", "001-032", "004-011")
def test_the_number_of_hits_is_configured_asked_for_and_capped(corpus: Corpus) -> None:
    options = RetrievalOptions(top_k=2, max_top_k=3, min_similarity=-1.0)
    assert len(search(corpus, "falcon", options).hits) == 2
    assert len(search(corpus, "falcon", options, k=1).hits) == 1
    assert len(search(corpus, "falcon", options, k=100).hits) == 3
    assert len(search(corpus, "falcon", replace(options, max_top_k=1)).hits) == 1
    assert RetrievalOptions().top_k == 5


@pytest.mark.req("001-032")
def test_filters_reach_the_store(corpus: Corpus) -> None:
    found = search(corpus, "falcon otter", filter=Filter(kinds=(Kind.WORK,)))
    assert titles(found) == ["Otters"]
    own = search(corpus, "kestrel").hits[0].document.id
    assert "Kestrels" not in titles(search(corpus, "kestrel", filter=Filter(exclude=(own,))))


@pytest.mark.parametrize("words", ["", "  \n", "\x00"])
def test_a_blank_question_has_no_answer(corpus: Corpus, words: str) -> None:
    assert search(corpus, words) == SearchResults(model=MODEL)


def test_a_question_of_stop_words_is_answered_by_meaning_alone(corpus: Corpus) -> None:
    assert search(corpus, "the and of", mode="keyword").hits == []
    assert len(search(corpus, "the and of", min_similarity=-1.0).hits) == 4


@pytest.mark.parametrize(
    "words", ["kestrel\x00falcon", "kestrel \ud800 falcon", "kestrel 'x' \\ & | ! : * <->" * 200]
)
def test_odd_characters_do_no_harm(corpus: Corpus, words: str) -> None:
    assert titles(search(corpus, words))[0] in {"Kestrels", "Falcons"}


def test_nothing_is_found_before_the_first_document(database: Database, tenant: UUID) -> None:
    empty = Retriever(database, tenant, forbidden)
    assert empty.search(SearchRequest(text="anything")) == SearchResults()


def test_a_tenant_without_documents_finds_nothing(corpus: Corpus) -> None:
    corpus.tenant = uuid4()
    assert search(corpus, "kestrel").hits == []


def test_the_first_search_counts_words_if_nobody_has(shared_database: Database) -> None:
    fresh = Corpus(shared_database, exact_below=10_000)
    for n in range(20):
        fresh.put(f"pipeline number{n} runs", title=f"common {n}")
    fresh.put("kestrel rests", title="rare")
    assert titles(search(fresh, "pipeline kestrel", mode="keyword"))[0] == "rare"


# --- the parts of a score ---


@pytest.mark.req("001-033", "001-093")
def test_explained_parts_add_up_to_the_score(corpus: Corpus) -> None:
    found = search(corpus, "kestrel falcon", explain=True, min_similarity=-1.0)
    assert len(found.hits) == 4
    for hit in found.hits:
        e = hit.explanation
        assert e is not None
        parts = (e.vector_part, e.keyword_part, e.title_part, e.covered_part)
        assert hit.score == pytest.approx(sum(filter(None, parts)))
        assert e.similarity is not None
        assert e.bm25 is not None
    best = found.hits[0].explanation
    assert best is not None
    assert best.similarity is not None
    assert best.centroid is None, "nothing was noted of whole documents here"
    assert best.vector_part == pytest.approx(best.similarity * 0.6 / 1.2)
    assert best.overlap is not None
    assert best.keyword_part == pytest.approx(best.overlap * 0.3 / 1.2)
    assert {"semantic_score", "keyword_score", "overlap_score", "title_score"} <= set(best.to_json())


def test_a_rare_word_of_the_question_outweighs_what_merely_sounds_alike(corpus: Corpus) -> None:
    for n in range(40):
        corpus.put(f"kestrel falcon number{n}", title=f"Birds {n}")
    corpus.put("an everyday text that names XK-4711", title="Other")
    corpus.count()
    found = {c.document.title: c.overlap or 0.0 for c in corpus.ask("kestrel falcon XK-4711")}
    assert found["Other"] > 0.4
    assert all(share < 0.05 for title, share in found.items() if title.startswith("Birds"))
    assert titles(search(corpus, "kestrel falcon XK-4711", mode="keyword"))[0] == "Other"


def test_each_weight_lifts_what_it_is_about(corpus: Corpus) -> None:
    """By words alone, by the title alone, by all words of the question."""
    corpus.put("heron", title="Wader", context="Grebe")
    corpus.put("grebe heron grebe heron", title="Both", context="Both")
    corpus.count()

    def first(**weights: float) -> str:
        only = {"vector": 0.0, "keyword": 0.0, "title": 0.0, "covered": 0.0, **weights}
        options = RetrievalOptions(weights=Weights(**only), min_similarity=-1.0)
        return titles(search(corpus, "grebe heron", options))[0]

    assert first(title=1.0) == "Wader"
    assert first(keyword=1.0) == "Both"
    covered = {c.document.title: c.covered for c in corpus.ask("grebe heron nests")}
    assert covered["Both"] == covered["Wader"]
    assert 0.01 < (covered["Both"] or 0.0) < 0.15, "a third of the words is missing"
    assert {c.document.title: c.covered for c in corpus.ask("grebe heron")}["Wader"] == pytest.approx(1.0)


# --- the threshold ---


@pytest.mark.req("002-007")
def test_what_is_less_similar_is_left_out_unless_a_word_matches(corpus: Corpus) -> None:
    strict = search(corpus, "kestrel", min_similarity=0.999, trace=True)
    assert titles(strict) == ["Kestrels"], "it holds the word"
    assert {hit.document.title for hit in strict.below} == {"Falcons", "Otters", "Ovens"}
    assert titles(search(corpus, "kestrel", mode="vector", min_similarity=0.999)) == []
    assert len(search(corpus, "kestrel", mode="vector", min_similarity=-1.0).hits) == 4


@pytest.mark.parametrize(
    ("options", "model", "wanted", "threshold"),
    [
        (RetrievalOptions(), "gemini-embedding-001", None, 0.70),
        (RetrievalOptions(), "all-MiniLM-L6-v2", None, 0.37),
        (RetrievalOptions(), "hashing-384", None, 0.0),
        (RetrievalOptions(min_similarity=0.5), "gemini-embedding-001", None, 0.5),
        (RetrievalOptions(min_similarity=0.5), "gemini-embedding-001", 0.2, 0.2),
        (RetrievalOptions(max_distance=0.2), "gemini-embedding-001", None, 0.8),
        (RetrievalOptions(max_distance=0.6), "gemini-embedding-001", None, 0.70),
        (RetrievalOptions(min_similarity=0.5, max_distance=0.4), "hashing-384", 0.1, 0.6),
    ],
)
def test_the_stricter_of_both_thresholds_holds(
    options: RetrievalOptions, model: str, wanted: float | None, threshold: float
) -> None:
    assert least_similarity(options, model, wanted) == pytest.approx(threshold)


def test_what_lies_beyond_the_last_hit_is_told_on_request(corpus: Corpus) -> None:
    found = search(corpus, "falcon", k=1, trace=True, min_similarity=-1.0)
    assert len(found.hits) == 1
    assert len(found.beyond) == 3
    assert search(corpus, "falcon", k=1).beyond == ()


# --- when parts fail ---


def test_keyword_mode_needs_no_embedder(corpus: Corpus) -> None:
    found = Retriever(corpus.database, corpus.tenant, forbidden).search(
        SearchRequest(text="kestrel", mode="keyword")
    )
    assert titles(found) == ["Kestrels"]


@pytest.mark.req("001-093")
def test_without_an_embedder_words_alone_answer(corpus: Corpus) -> None:
    broken = Retriever(corpus.database, corpus.tenant, lambda _index: Broken())
    found = broken.search(SearchRequest(text="kestrel falcon"))
    assert found.degradation_level == 3
    assert titles(found) == ["Kestrels", "Falcons"]
    with pytest.raises(EmbeddingError):
        broken.search(SearchRequest(text="kestrel", mode="vector"))


def test_a_store_that_is_down_is_said_to_be(corpus: Corpus) -> None:
    gone = Database("postgresql://nobody:x@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable) as caught:
        Retriever(gone, corpus.tenant, forbidden).search(SearchRequest(text="kestrel"))
    assert caught.value.code == "E001"
    gone.close()


@pytest.mark.parametrize("exact_below", [0, 10_000])
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_a_vector_of_another_length_than_the_indexs_is_refused(
    corpus: Corpus, mode: Mode, exact_below: int
) -> None:
    other = HashingEmbedder(DIMENSIONS + 1)
    made = Retriever(
        corpus.database, corpus.tenant, lambda _index: other, RetrievalOptions(exact_below=exact_below)
    )
    with pytest.raises(StoreRejected, match=r"shape \(33,\).* the index has 32"):
        made.search(SearchRequest(text="kestrel", mode=mode))


def test_no_transaction_is_open_while_the_question_is_embedded(corpus: Corpus) -> None:
    pools: list[Any] = [corpus.database.app.pool, corpus.database.query_engine.pool]
    open_then: list[int] = []

    class Watching(Broken):
        def embed_query(self, text: str) -> Vectors:
            open_then.append(sum(pool.checkedout() for pool in pools))
            return corpus.embedder.embed_query(text)

    Retriever(corpus.database, corpus.tenant, lambda _index: Watching()).search(SearchRequest(text="kestrel"))
    assert open_then == [0]


def test_a_switch_of_the_index_meanwhile_is_noticed(database: Database, tenant: UUID) -> None:
    """The old partition is dropped at the switch; its vectors must not be asked of the new one."""
    corpus = Corpus(database, tenant, exact_below=10_000)
    corpus.put("kestrel")
    asked: list[str] = []

    class Switching(Broken):
        def __init__(self, index: SearchIndex) -> None:
            self.index = index
            self.dimensions = index.dimensions

        def embed_query(self, text: str) -> Vectors:
            asked.append(f"{self.index.model}: {text}")
            if len(asked) == 1:
                switch()
            return np.full(self.index.dimensions, 0.5, dtype=np.float32)

    def switch() -> None:
        with database.tenant(tenant) as connection:
            new = open_index(
                connection, provider="x", model="newer", dimensions=8, chunker="structure", pipeline="p"
            )
        with database.control() as connection:
            for statement in (f"activate_search_index({new.id})", f"drop_search_index({corpus.index.id})"):
                connection.exec_driver_sql(f"select {statement}")
        corpus.index = new

    found = Retriever(database, tenant, Switching).search(SearchRequest(text="kestrel"))
    assert asked == [f"{MODEL}: kestrel", "newer: kestrel"]
    assert found.model == "newer"


@pytest.mark.parametrize("exact_below", [0, 10_000])
def test_a_switch_by_another_process_is_noticed_by_the_next_search(
    database: Database, tenant: UUID, exact_below: int
) -> None:
    """What this process remembers of the active index saves a way to the server, and decides nothing."""
    corpus = Corpus(database, tenant, exact_below=10_000)
    corpus.put("kestrel")
    corpus.count()
    embedders: list[str] = []

    class Listening(Broken):
        def __init__(self, index: SearchIndex) -> None:
            self.index, self.model, self.dimensions = index, index.model, index.dimensions

        def embed_query(self, text: str) -> Vectors:
            embedders.append(f"{self.index.model}: {text}")
            return np.full(self.index.dimensions, 0.5, dtype=np.float32)

    def ask(mode: Mode, words: str = "kestrel") -> SearchResults:
        made = Retriever(database, tenant, Listening, RetrievalOptions(exact_below=exact_below))
        return made.search(SearchRequest(text=words, mode=mode, k=1, min_similarity=-1.0))

    def activate(index: SearchIndex) -> None:
        with database.control() as connection:
            connection.exec_driver_sql(f"select activate_search_index({index.id})")

    assert ask("hybrid").model == MODEL
    with database.tenant(tenant) as connection:
        newer = open_index(
            connection, provider="x", model="newer", dimensions=8, chunker="structure", pipeline="p"
        )
    modes: tuple[Mode, ...] = ("vector", "hybrid", "keyword")
    for mode in modes:
        activate(newer)
        found = ask(mode)
        assert (found.model, found.hits) == ("newer", []), mode
        activate(corpus.index)
        found = ask(mode)
        assert (found.model, len(found.hits)) == (MODEL, 1), mode
    assert ask("hybrid", "nothing of this").model == MODEL
    assert {noted.partition(":")[0] for noted in embedders} == {MODEL, "newer"}
