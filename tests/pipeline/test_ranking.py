"""The order of candidates: words in common, a second look, and what no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.reranking import Reranker, RerankerUnavailable, RerankOptions
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, SearchResults
from pipeline.search.question import Synonyms
from pipeline.search.records import Explanation, Filter, StoredDocument
from pipeline.search.retriever import demote_outdated, reranked
from tests.pipeline.stores.corpus import Corpus


def ranked(name: int, score: float, *, outdated: bool = False) -> Hit:
    document = StoredDocument(
        id=UUID(int=name), version=1, title="t", source_type=SourceType.TEXT, kind=Kind.DECISION, source="s"
    )
    explanation = Explanation(
        similarity=score,
        bm25=0.0,
        centroid=None,
        overlap=0.0,
        title=0.0,
        covered=0.0,
        vector_part=score,
        keyword_part=0.0,
        title_part=0.0,
        covered_part=0.0,
        min_similarity=0.0,
    )
    why, chunk = "rejected" if outdated else "", Chunk(ord=0, content="c")
    return Hit(document=document, chunk=chunk, score=score, outdated=why, explanation=explanation)


def told(hit: Hit) -> Explanation:
    assert hit.explanation is not None
    return hit.explanation


def order(found: Sequence[Hit]) -> list[int]:
    return [hit.document.id.int for hit in found]


# --- words in common ---


def test_overlap_is_between_0_and_1_and_the_same_whatever_else_is_stored(shared_database: Database) -> None:
    corpus = Corpus(shared_database, exact_below=10_000)
    corpus.put("kiln fires clay")
    corpus.put("kiln")
    corpus.put("otters")
    corpus.count()
    found = {c.chunk.content: c.overlap for c in corpus.ask("kiln fires clay")}
    full, part = found["kiln fires clay"], found["kiln"]
    assert full is not None
    assert part is not None
    assert 0 < part < full < 1
    for n in range(30):
        corpus.put(f"filler{n}")
    again = {c.chunk.content: c.overlap for c in corpus.ask("kiln fires clay")}
    assert again["kiln fires clay"] == full, "until words are counted anew"


# --- a second look ---


def test_a_second_look_changes_the_order_and_keeps_the_range() -> None:
    found = reranked([ranked(1, 0.9), ranked(2, 0.5), ranked(3, 0.3)], [0.1, 0.2, 0.9])
    assert order(found) == [3, 2, 1]
    assert [r.score for r in found] == pytest.approx([0.9, 0.375, 0.3])
    for one in found:
        assert one.score == pytest.approx(told(one).vector_part + told(one).rerank_part)
    assert [told(r).rerank for r in found] == [0.9, 0.2, 0.1]


def test_equal_scores_of_a_second_look_keep_the_order() -> None:
    assert order(reranked([ranked(2, 0.9), ranked(1, 0.5)], [0.5, 0.5])) == [2, 1]


@pytest.mark.parametrize("scores", [[], [1.0], [1.0, float("nan")], [1.0, 2.0, 3.0]])
def test_scores_that_are_none_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="one number for each text"):
        reranked([ranked(1, 0.9), ranked(2, 0.5)], scores)


class ByLength:
    """A reranker that likes short texts."""

    name = "by-length"

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.asked: list[tuple[str, int]] = []

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((query, len(texts)))
        if self.faults:
            raise self.faults.pop(0)
        return [-float(len(text)) for text in texts]


@pytest.fixture
def corpus(shared_database: Database) -> Corpus:
    made = Corpus(shared_database, exact_below=10_000)
    for n in range(5):
        made.put("kestrel " * (5 - n) + "and more " * 4 * (5 - n), title=f"t{n}")
    made.count()
    return made


def search(
    corpus: Corpus, reranker: Reranker | None, words: str = "kestrel", *, level: int = 0, **changes: Any
) -> SearchResults:
    candidates = changes.pop("candidates", 30)
    watch: Callable[[Any], AbstractContextManager[None]] = changes.pop("watch", lambda _part: nullcontext())
    request = SearchRequest(text=words, explain=True, min_similarity=-1.0, **changes)
    made = Retriever(
        corpus.database,
        corpus.tenant,
        lambda _index: corpus.embedder,
        reranker=lambda: reranker,
        rerank=RerankOptions(enabled=True, candidates=candidates),
        watch=watch,
    )
    return made.search(request, level=level)


def titles(found: SearchResults) -> list[str]:
    return [hit.document.title for hit in found.hits]


@pytest.mark.req("001-024", "001-026", "001-074")
def test_a_reranker_decides_among_the_best(corpus: Corpus) -> None:
    reranker = ByLength()
    plain = search(corpus, None)
    found = search(corpus, reranker)
    assert titles(found) == ["t4", "t3", "t2", "t1", "t0"]
    assert titles(found) != titles(plain)
    assert found.degradation_level == 0
    assert reranker.asked == [("kestrel", 5)]
    scores = [hit.score for hit in found.hits]
    assert scores == sorted(scores, reverse=True)
    for hit in found.hits:
        e = hit.explanation
        assert e is not None
        parts = (e.vector_part, e.keyword_part, e.title_part, e.covered_part, e.rerank_part)
        assert hit.score == pytest.approx(sum(filter(None, parts)))
        assert e.to_json()["rerank_score"] == e.rerank is not None


def test_only_so_many_are_reranked(corpus: Corpus) -> None:
    reranker = ByLength()
    plain = search(corpus, None)
    found = search(corpus, reranker, candidates=2)
    assert reranker.asked == [("kestrel", 2)]
    assert titles(found)[2:] == titles(plain)[2:]
    assert set(titles(found)[:2]) == set(titles(plain)[:2])


@pytest.mark.parametrize("fault", [RerankerUnavailable("slow"), RuntimeError("odd"), MemoryError()])
def test_a_reranker_that_fails_costs_a_level_and_no_answer(corpus: Corpus, fault: Exception) -> None:
    plain = search(corpus, None)
    reranker = ByLength(fault)
    found = search(corpus, reranker)
    assert found.degradation_level == 1
    assert titles(found) == titles(plain)
    assert search(corpus, reranker).degradation_level == 0, "and is asked again"


def test_single_searches_and_lower_levels_are_not_reranked_again(corpus: Corpus) -> None:
    reranker = ByLength()
    assert search(corpus, reranker, level=1).degradation_level == 1
    search(corpus, reranker, level=3)
    search(corpus, reranker, mode="vector")
    search(corpus, reranker, mode="keyword")
    assert search(corpus, reranker, "   ").hits == ()
    assert reranker.asked == []


@pytest.mark.req("001-074")
def test_each_part_is_watched(corpus: Corpus) -> None:
    seen: list[str] = []

    @contextmanager
    def watch(part: str) -> Any:
        try:
            yield
        except Exception as error:
            seen.append(f"{part}: {type(error).__name__}")
            raise
        seen.append(part)

    search(corpus, ByLength(RerankerUnavailable("slow")), watch=watch)
    assert seen == ["store", "embedder", "store", "reranker: RerankerUnavailable"]


# --- what no longer holds ---


def test_what_no_longer_holds_ranks_lower_and_stays_in_the_answer() -> None:
    three = [ranked(1, 0.9, outdated=True), ranked(2, 0.8), ranked(3, 0.6)]
    found = demote_outdated(three, 0.75)
    assert order(found) == [2, 1, 3]
    assert [r.score for r in found] == pytest.approx([0.8, 0.675, 0.6])
    assert told(found[1]).outdated_part == pytest.approx(-0.225)
    assert told(found[0]).outdated_part == 0
    assert order(demote_outdated(three, 1.0)) == [1, 2, 3]
    assert order(demote_outdated([ranked(1, 0.9), *three[1:]], 0.75)) == [1, 2, 3]
    assert order(demote_outdated([ranked(1, -0.1, outdated=True), ranked(2, -0.2)], 0.5)) == [1, 2]


def test_a_replaced_decision_comes_after_the_one_that_holds(shared_database: Database) -> None:
    corpus = Corpus(shared_database, exact_below=10_000)
    old = {"decision_status": "superseded", "superseded_by": "ADR-7"}
    corpus.put("queues of the port run on kestrel brokers", title="ADR-3", kind=Kind.DECISION, metadata=old)
    corpus.put("kestrel brokers were replaced for queues by otters", title="ADR-7", kind=Kind.DECISION)
    corpus.put("a kestrel and nothing else of this " + "or that " * 20, title="other")
    corpus.count()
    for mode in ("hybrid", "keyword"):
        found = search(corpus, None, "queues kestrel brokers", mode=mode)
        assert titles(found)[:2] == ["ADR-7", "ADR-3"], mode
        hit = found.hits[1]
        assert hit.outdated == "superseded by ADR-7"
        assert not found.hits[0].outdated
        assert hit.explanation is not None
        assert hit.explanation.outdated_part == pytest.approx(-hit.score / 3)
    cosine = search(corpus, None, "queues kestrel brokers", mode="vector")
    assert cosine.hits[0].document.title == "ADR-3", "a likeness stays a likeness"
    assert cosine.hits[0].outdated
    assert cosine.hits[0].explanation is not None
    assert cosine.hits[0].score == cosine.hits[0].explanation.similarity


# --- options that reach the search ---


def ask(corpus: Corpus, options: RetrievalOptions, words: str, **changes: Any) -> list[str]:
    made = Retriever(corpus.database, corpus.tenant, lambda _index: corpus.embedder, options)
    return titles(made.search(SearchRequest(text=words, **changes)))


def test_synonyms_find_what_is_called_otherwise(shared_database: Database) -> None:
    corpus = Corpus(shared_database, exact_below=10_000)
    corpus.put("the kubernetes cluster", title="k")
    corpus.count()
    options = RetrievalOptions(synonyms=Synonyms.from_groups([["k8s", "kubernetes"]]))
    assert ask(corpus, RetrievalOptions(), "k8s", mode="keyword") == []
    assert ask(corpus, options, "k8s", mode="keyword") == ["k"]


@pytest.mark.req("001-032")
@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_security_levels_and_exclusions_hold_in_every_mode(shared_database: Database, mode: str) -> None:
    corpus = Corpus(shared_database, exact_below=10_000)
    open_, secret = corpus.put("kestrel", title="open"), corpus.put("kestrel", title="secret")
    corpus.documents.set({"title": "secret"}, security_level="secret")
    least = {"mode": mode, "min_similarity": -1.0}
    one = Filter(security_levels=("internal", "public"))
    assert ask(corpus, RetrievalOptions(), "kestrel", filter=one, **least) == ["open"]
    assert ask(corpus, RetrievalOptions(), "kestrel", filter=Filter(exclude=(open_,)), **least) == ["secret"]
    neither = Filter(security_levels=("internal",), exclude=(open_,))
    assert ask(corpus, RetrievalOptions(), "kestrel", filter=neither, **least) == []
    assert secret != open_
