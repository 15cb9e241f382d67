"""A search is one statement; how often it is asked, and what comes back whatever was found first."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pgvector import HalfVector

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.embedding import Vectors
from pipeline.embedding.calls import normalised
from pipeline.ledger import ALL
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights, cache
from pipeline.search.records import Filter
from pipeline.search.retriever import SPARE
from tests.pipeline.stores.corpus import DIMENSIONS, Corpus, Counting, Pointed

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
def stock(shared_database: Database) -> Corpus:
    """Eighty documents of one to four chunks: one in five no longer holds, one in nine is hidden, some are alike."""
    corpus, chance = Corpus(shared_database, exact_below=10_000), random.Random(2)
    made = []
    for n in range(80):
        of = corpus.document(
            title=" ".join(chance.sample(WORDS, 2)),
            kind=Kind.DECISION if n % 2 else Kind.WORK,
            source=("notes", "wiki")[n % 2],
            tags=("x",) if n % 3 else (),
            metadata={"decision_status": "rejected", "resolution": "Won't fix"} if n % 5 == 0 else {},
        )
        contents = [" ".join(chance.choices(WORDS, k=6)) for _ in range(1 + n % 4)]
        if n % 10 == 0:
            contents = ["word3 word7 word1"]  # equal scores, told apart by their ids
        made.append((of, [Chunk(ord=o, content=c, context=of.title) for o, c in enumerate(contents)]))
    corpus.put_all(made)
    for key in sorted(corpus.documents.values("id"))[:9]:
        corpus.documents.set({"id": key}, hidden=True)
    for row in corpus.chunks(ord=0)[::2]:
        centroid = np.roll(np.asarray(row["embedding"].to_list()), 1)
        corpus.indexed.add(
            tenant_id=corpus.tenant,
            index_id=corpus.index.id,
            version=1,
            document_id=row["document_id"],
            centroid=HalfVector(centroid),
        )
    corpus.count()
    return corpus


@pytest.fixture
def counting(shared_database: Database) -> Counting:
    return Counting(shared_database)


def retriever(stock: Corpus, database: Database | None = None, **options: Any) -> Retriever:
    return Retriever(
        database or stock.database, stock.tenant, lambda _index: stock.embedder, RetrievalOptions(**options)
    )


def score_of(hit: Hit, w: Weights, mode: str) -> float:
    """The score that the raw scores of a hit make, before it is lowered."""
    e = hit.explanation
    assert e is not None
    if mode == "vector":
        return e.similarity or 0.0
    near = e.similarity or 0.0
    if e.centroid is not None:
        near += min(w.centroid, 1.0) * (e.centroid - near)
    vector = w.vector if mode == "hybrid" else 0.0
    whole = vector + w.keyword + w.title + w.covered or 1.0
    parts = (
        vector * near,
        w.keyword * (e.overlap or 0.0),
        w.title * (e.title or 0.0),
        w.covered * (e.covered or 0.0),
    )
    assert (e.vector_part, e.keyword_part, e.title_part, e.covered_part) == pytest.approx(
        [part / whole for part in parts]
    )
    return sum(parts) / whole


@pytest.mark.req("001-093")
@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize(
    "weights",
    [
        Weights(),
        Weights(vector=0.0, keyword=1.0, title=0.0, covered=0.0),
        Weights(vector=1.0, keyword=0.0, title=0.0, covered=0.0, centroid=1.0),
        Weights(vector=0.0, keyword=0.0, title=0.0, covered=0.0),
        Weights(vector=0.2, keyword=0.3, title=0.4, centroid=7.0, outdated=0.1),
    ],
    ids=["as shipped", "words", "whole documents", "nothing", "odd"],
)
def test_a_score_is_the_weighted_sum_of_its_parts(stock: Corpus, mode: str, weights: Weights) -> None:
    for question in QUESTIONS:
        request = SearchRequest(text=question, k=50, explain=True, min_similarity=0.1, mode=mode)  # type: ignore[arg-type]
        hits = retriever(stock, weights=weights).search(request).hits
        assert hits
        for hit in hits:
            plain = score_of(hit, weights, mode)
            lowered = weights.outdated if hit.outdated and mode != "vector" and plain > 0 else 1.0
            assert hit.score == pytest.approx(plain * lowered, abs=1e-9)
        order = [(-hit.score, bool(hit.outdated), hit.document.id, hit.chunk.ord) for hit in hits]
        assert [o[0] for o in order] == sorted(o[0] for o in order)
        holding = [(s, ident, at) for s, ended, ident, at in order if not ended]
        assert holding == sorted(holding), "equals come by document and ordinal"


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"k": 1},
        {"k": 40},
        {"dedupe": False},
        {"filter": Filter(kinds=(Kind.DECISION,), tags=("x",))},
        {"min_similarity": 0.4},
    ],
    ids=str,
)
def test_the_first_hits_are_those_of_all_candidates(
    stock: Corpus, mode: str, changed: dict[str, Any]
) -> None:
    """A traced search reads every candidate; a usual one no more than it shows."""
    for question in QUESTIONS:
        request = SearchRequest(
            text=question, explain=True, **{"k": 8, "min_similarity": 0.1, "mode": mode, **changed}
        )
        usual = retriever(stock).search(request)
        traced = retriever(stock).search(replace(request, trace=True))
        assert list(usual.hits) == list(traced.hits)
        assert traced.hits
        of = [hit.document.id for hit in (*traced.hits, *traced.beyond)]
        assert len(set(of)) == len(of) or not request.dedupe
        for hit in traced.below:
            assert hit.explanation
            assert not hit.explanation.bm25
            assert (hit.explanation.similarity or 0.0) < (request.min_similarity or 0.0)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize("words", ["word30 word31", "the of and", " ".join(WORDS) * 9])
@pytest.mark.parametrize("wanted", [Filter(), Filter(kinds=(Kind.DECISION,)), Filter(exclude=(NOBODY,))])
def test_it_is_one_statement(
    stock: Corpus, counting: Counting, mode: str, words: str, wanted: Filter
) -> None:
    request = SearchRequest(text=words, mode=mode, k=3, filter=wanted)  # type: ignore[arg-type]
    made = retriever(stock, counting)
    made.search(request)
    counting.asked.clear()
    found = made.search(request)
    # Nothing found would mean that another index may be the active one, which is looked up, and not asked so.
    assert len(counting.asked) == 1
    assert bool(found.hits) is (mode != "keyword" or "word" in words)


def test_who_wants_no_hits_asks_once(
    stock: Corpus, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = retriever(stock, counting)
    made.search(SearchRequest(text="word3"))
    counting.asked.clear()
    looked: list[str] = []
    monkeypatch.setattr(cache, "read_snapshot", lambda *_: looked.append("look"))
    assert made.search(SearchRequest(text="word3", k=0)).hits in ((), [])
    assert len(counting.asked) == 1
    assert not looked


@pytest.mark.parametrize("mode", ["hybrid", "keyword"])
def test_more_is_read_where_many_of_the_first_no_longer_hold(
    shared_database: Database, counting: Counting, mode: str
) -> None:
    """What holds comes before what does not, however many of those stand before it."""
    corpus = Corpus(shared_database, exact_below=10_000)
    old = {"decision_status": "rejected"}
    for n in range(SPARE + 5):
        corpus.put("kestrel " * 3, title=f"old {n}", kind=Kind.DECISION, metadata=old)
    corpus.put("penguin")  # the least alike of all has no score that could be brought down
    kept = [corpus.put("kestrel falcon owl", title=f"new {n}", kind=Kind.DECISION) for n in range(3)]
    corpus.count()
    made = retriever(corpus, counting, weights=Weights(outdated=0.01))
    found = made.search(SearchRequest(text="kestrel", k=3, min_similarity=-1.0, mode=mode))  # type: ignore[arg-type]
    assert {hit.document.id for hit in found.hits} == set(kept)
    assert len(counting.asked) == 2
    assert max(counting.read) < 20


def test_a_question_without_words_is_found_by_meaning(stock: Corpus) -> None:
    found = retriever(stock).search(SearchRequest(text="the of and", k=3, min_similarity=-1.0))
    assert len(found.hits) == 3
    assert found.degradation_level == 0
    assert retriever(stock).search(SearchRequest(text="the of and", mode="keyword")).hits == []


# --- following the vector index ---


def rows(count: int, seed: int) -> Vectors:
    return normalised(np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32))


def by_meaning(corpus: Corpus, database: Database, vector: Vectors, **request: Any) -> SearchResults:
    options = RetrievalOptions(exact_below=0, min_similarity=-1.0)
    made = Retriever(database, corpus.tenant, lambda _index: Pointed(vector), options)
    return made.search(SearchRequest(text="a", mode="vector", **request))


def test_it_goes_on_for_a_document_that_has_all_of_the_nearest(
    shared_database: Database, counting: Counting
) -> None:
    """Of 2 x 5 chunks looked at, 6 belong to one document; then of 100, 90."""
    (vector,) = rows(1, 4)
    for long, statements in ((6, 1), (90, 2)):
        corpus = Corpus(shared_database)
        near = normalised(vector + 0.01 * rows(long, 5))
        corpus.put(*[f"long {n}" for n in range(long)], title="long", vectors=near)
        far = normalised(vector + 0.1 * rows(6, 6))
        for n in range(6):
            corpus.put(f"short {n}", title=f"short {n}", vectors=far[n : n + 1])
        corpus.build()
        corpus.count()
        counting.read.clear()
        found = by_meaning(corpus, counting, vector, k=5)
        assert found.hits[0].document.title == "long"
        assert len({hit.document.id for hit in found.hits}) == 5
        assert len(counting.read) == statements


def test_no_hit_is_less_like_the_question_than_asked_for(
    shared_database: Database, counting: Counting
) -> None:
    corpus = Corpus(shared_database)
    (vector,) = rows(1, 3)
    for n, near in enumerate(rows(40, 2)):
        corpus.put(str(n), title=str(n), vectors=near[np.newaxis])
    corpus.build()
    corpus.count()
    scores = [hit.score for hit in by_meaning(corpus, counting, vector, k=10).hits]
    counting.read.clear()
    found = by_meaning(corpus, counting, vector, k=10, min_similarity=scores[5])
    assert [hit.score for hit in found.hits] == scores[:6]
    assert not by_meaning(corpus, counting, vector, k=10, min_similarity=1.0).hits
    assert len(counting.read) == 2, "the nearest are not near enough: no more are looked for"


@pytest.mark.parametrize("gone", ["hidden", "deleted"])
@pytest.mark.parametrize("exact_below", [0, 10_000])
def test_what_is_not_shown_takes_no_place(
    shared_database: Database, counting: Counting, gone: str, exact_below: int
) -> None:
    (vector,) = rows(1, 7)
    corpus = Corpus(shared_database, exact_below=exact_below)
    near, far = normalised(vector + 0.01 * rows(3, 8)), normalised(vector + 0.1 * rows(30, 9))
    secret = {corpus.put("secret", vectors=near[n : n + 1]) for n in range(3)}
    for n in range(30):
        corpus.put("open", vectors=far[n : n + 1])
    corpus.build()
    corpus.count()
    assert secret <= {hit.document.id for hit in by_meaning(corpus, counting, vector, k=5).hits}
    for key in secret:
        corpus.documents.set({"id": key}, **{gone: True})
    for request in ({}, {"filter": Filter(kinds=(Kind.REFERENCE,))}, {"dedupe": False}):
        found = by_meaning(corpus, counting, vector, k=5, **request)
        assert not secret & {hit.document.id for hit in found.hits}
        assert len(found.hits) == 5


# --- how much a filter lets through ---


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [
        (Filter(kinds=(Kind.DECISION, Kind.WORK)), 1),
        (Filter(kinds=(Kind.DECISION, Kind.WORK), exclude=(UUID(int=1),)), 1),
        (Filter(exclude=(UUID(int=1),)), 0),
        (Filter(projects=(NOBODY,)), 1),
        (Filter(only=(NOBODY,)), 1),
    ],
    ids=["documents", "but one", "all but one", "another project", "no document"],
)
def test_a_filter_on_documents_is_counted_once_a_minute(
    stock: Corpus, counting: Counting, monkeypatch: pytest.MonkeyPatch, wanted: Filter, counts: int
) -> None:
    def counted() -> int:
        found = sum("chunk_count" in one for one in counting.asked)
        counting.asked.clear()
        return found

    made = retriever(stock, counting, exact_below=0)
    question = SearchRequest(text="word30 word31", k=3, filter=wanted, min_similarity=-1.0)
    assert bool(made.search(question).hits) is (NOBODY not in (*wanted.projects, *wanted.only))
    assert counted() == counts
    made.search(replace(question, filter=replace(wanted, exclude=(UUID(int=9),))))
    assert counted() == 0, "whatever is left out besides"
    later = time.monotonic() + cache.SNAPSHOT_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    made.search(question)
    assert counted() == counts


def test_a_filter_is_never_overlooked(stock: Corpus, counting: Counting) -> None:
    for exact_below in (0, 10_000):
        made = retriever(stock, counting, exact_below=exact_below)
        for wanted in (Filter(tags=("x",)), Filter(sources=("wiki",)), Filter(projects=(NOBODY,))):
            request = SearchRequest(text="word3", k=20, filter=wanted, min_similarity=-1.0)
            hits = made.search(request).hits
            assert bool(hits) is (wanted.projects == ALL)
            for hit in hits:
                assert set(wanted.tags) <= set(hit.document.tags)
                assert hit.document.source in (wanted.sources or ("notes", "wiki"))
