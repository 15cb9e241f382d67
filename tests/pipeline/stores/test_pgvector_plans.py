"""Which indexes of PostgreSQL answer a search among some thousand chunks, and that they miss nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.embedding import Vectors
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, cache
from pipeline.search.records import Filter
from tests.pipeline.stores.corpus import DIMENSIONS, Candidate, Corpus, Counting, Pointed, candidates

ROWS = 4000


@pytest.fixture(scope="module")
def full(shared_database: Database) -> Corpus:
    """4,000 chunks with both indexes built; one in a hundred is of kind decision and of a project of its own."""
    corpus = filled(shared_database)
    corpus.build()
    return corpus


def filled(database: Database) -> Corpus:
    corpus = Corpus(database)
    chance = np.random.default_rng(3)
    vectors = unit(chance.normal(size=(ROWS, DIMENSIONS)).astype(np.float32))
    names = random.Random(3)
    stock = []
    for n in range(ROWS // 4):
        rare = n % 100 == 0
        of = corpus.document(
            kind=Kind.DECISION if rare else Kind.WORK,
            project_id=RARE if rare else corpus.project,
            tags=("rare",) if rare else (),
        )
        words = [f"common{names.randint(0, 9)} word{names.randint(0, 800)} item{n} part{m}" for m in range(4)]
        stock.append((of, [Chunk(ord=m, content=content) for m, content in enumerate(words)]))
    corpus.put_all(stock, vectors)
    corpus.documents.set(chunk_count=4)
    corpus.count()
    return corpus


RARE = UUID(int=0xDEC)


def unit(vectors: Vectors) -> Vectors:
    lengths: list[float] = np.linalg.norm(vectors, axis=1).tolist()
    return np.array([row / length for row, length in zip(vectors, lengths, strict=True)], dtype=np.float32)


@pytest.fixture
def question() -> Vectors:
    """Any direction."""
    made: Vectors = unit(np.random.default_rng(11).normal(size=(1, DIMENSIONS)).astype(np.float32))[0]
    return made


def test_the_keyword_arm_reads_the_gin_index(full: Corpus) -> None:
    plan = full.plan("word7 item3", settings="enable_seqscan = off")
    assert f"chunk_{full.index.id}_lexemes" in plan
    assert "Seq Scan on chunk" not in plan


def test_the_vector_arm_reads_the_hnsw_index(full: Corpus, question: Vectors) -> None:
    plan = full.plan(vector=question, keywords=False, settings="enable_seqscan = off;enable_sort = off")
    assert f"chunk_{full.index.id}_vector" in plan


def test_few_chunks_are_compared_one_by_one(full: Corpus, question: Vectors) -> None:
    """Exact search finds all; under some thousand rows it is as fast."""
    full.exact_below = ROWS + 1
    try:
        plan = full.plan(vector=question, keywords=False, settings="enable_seqscan = off;enable_sort = off")
        found = full.ask(vector=question, keywords=False, candidates=20)
    finally:
        full.exact_below = 0
    assert f"chunk_{full.index.id}_vector" not in plan
    vectors = full.chunks.values("embedding")
    book = sorted((float(np.asarray(v.to_list()) @ question) for v in vectors), reverse=True)
    assert [c.similarity for c in found] == pytest.approx(book[:20], abs=0.002)


@pytest.mark.req("001-032")
def test_filters_stand_in_the_sql_of_both_arms(full: Corpus, question: Vectors) -> None:
    condition = Filter(kinds=(Kind.DECISION,), tags=("x",), metadata=(("a", 1),), sources=("notes",))
    counting = Counting(full.database)
    candidates(counting, full.tenant, "word7", vector=question, filter=condition, exact_below=0)
    sent, _ = counting.sent[-1]
    near, matching = sent.index("near as"), sent.index("matching as")
    for statement in (
        sent[near:matching],
        sent[matching : sent.index("candidate as")],
        sent[sent.index("best as") :],
    ):
        for part in (
            "d.kind = any",
            "d.tags @>",
            "d.metadata -> m.key",
            "d.source_id in",
            "not d.hidden",
            "not d.deleted",
        ):
            assert part in statement, part


@pytest.mark.req("001-032")
@pytest.mark.parametrize("condition", [Filter(kinds=(Kind.DECISION,)), Filter(projects=(RARE,))])
def test_a_filter_of_one_percent_still_fills_the_list(
    full: Corpus, question: Vectors, condition: Filter
) -> None:
    """HNSW stops after ef_search rows unless it goes on until the filter has let enough through."""
    found = full.ask(vector=question, keywords=False, candidates=30, filter=condition)
    assert len(found) == 30
    assert all(c.document.kind is Kind.DECISION for c in found)


def test_more_candidates_than_ef_search_by_default_come_whole(full: Corpus, question: Vectors) -> None:
    assert len(full.ask(vector=question, keywords=False, candidates=300)) == 300


def test_the_index_finds_what_an_exact_search_finds(full: Corpus) -> None:
    for row in full.chunks()[:40]:
        vector = np.asarray(row["embedding"].to_list(), dtype=np.float32)
        (best,) = full.ask(vector=vector, keywords=False, candidates=1)
        assert (best.document.id, best.chunk.ord) == (row["document_id"], row["ord"])


@pytest.mark.req("001-075")
def test_an_index_of_bits_names_chunks_that_are_compared_by_their_vectors(
    database: Database, question: Vectors
) -> None:
    corpus = filled(database)
    near: dict[str, Any] = {"vector": question, "keywords": False, "candidates": 100}
    exact = corpus.ask(**near, exact_below=ROWS + 1)
    corpus.build()
    corpus.build(keyword=False, quantization="bit")
    definition = f"select indexdef from pg_indexes where indexname = 'chunk_{corpus.index.id}_vector'"
    assert "bit_hamming_ops" in corpus.sql(definition)[0].indexdef
    plan = corpus.plan(vector=question, keywords=False, settings="enable_seqscan = off;enable_sort = off")
    assert f"chunk_{corpus.index.id}_vector" in plan
    by_place = {
        c.place: c.similarity for c in corpus.ask(**{**near, "candidates": ROWS}, exact_below=ROWS + 1)
    }
    by_bits = corpus.ask(**near)
    assert len(by_bits) == 100
    assert {c.place: c.similarity for c in by_bits} == {c.place: by_place[c.place] for c in by_bits}
    assert len({c.place for c in exact[:5]} & {c.place for c in by_bits}) >= 4
    rare = corpus.ask(**near, filter=Filter(kinds=(Kind.DECISION,)))
    assert len(rare) == 40
    assert all(c.document.kind is Kind.DECISION for c in rare)
    corpus.build(keyword=False)
    assert "halfvec_cosine_ops" in corpus.sql(definition)[0].indexdef
    assert corpus.ask(**near)[0].place == exact[0].place


@pytest.mark.parametrize("vector", [True, False])
def test_the_scores_take_their_rows_at_the_place_they_were_found(
    full: Corpus, question: Vectors, vector: bool
) -> None:
    """Right after a first load there are no statistics, and the planner must not be left to guess."""
    plan = full.plan("word7", vector=question if vector else None)
    assert plan.count(f"Tid Scan on chunk_{full.index.id}") == 1
    assert "Seq Scan on chunk" not in plan
    assert plan.count("document_hidden") == 1 + vector, "what is hidden is looked up once for each arm"


def test_a_rare_tag_is_looked_up_in_its_index(full: Corpus, question: Vectors) -> None:
    """`@>` is not leakproof: under row-level security alone, every document of the tenant would be read."""
    plan = full.plan(
        vector=question, keywords=False, filter=Filter(tags=("rare",)), settings="enable_seqscan = off"
    )
    assert "document_tags" in plan
    assert "Seq Scan on document" not in plan


@pytest.mark.parametrize("exact_below", [0, ROWS + 1])
def test_by_meaning_alone_the_first_documents_come_with_their_best_chunks(
    full: Corpus, question: Vectors, exact_below: int
) -> None:
    everything = full.ask(vector=question, keywords=False, exact_below=exact_below)
    few = nearest(full, question, exact_below=exact_below, k=20)
    chunks = nearest(full, question, exact_below=exact_below, k=7, dedupe=False)
    best: dict[UUID, int] = {}
    for candidate in everything:
        best.setdefault(candidate.document.id, candidate.chunk.ord)
    assert [(hit.document.id, hit.chunk.ord) for hit in few] == list(best.items())[:20]
    assert [(hit.document.id, hit.chunk.ord) for hit in chunks] == [c.place for c in everything[:7]]
    assert [hit.score for hit in chunks] == pytest.approx([c.similarity for c in everything[:7]])
    assert all(hit.chunk.content.startswith("common") for hit in few)


def nearest(full: Corpus, question: Vectors, *, exact_below: int, **request: Any) -> list[Hit]:
    """The first by meaning alone."""
    options = RetrievalOptions(exact_below=exact_below, min_similarity=-1.0)
    made = Retriever(full.database, full.tenant, lambda _index: Pointed(question), options)
    return list(made.search(SearchRequest(text="any", mode="vector", **request)).hits)


# --- how much a filter lets through decides how to search ---


def wide(
    full: Corpus, monkeypatch: pytest.MonkeyPatch, narrow: bool, words: str = "", **query: Any
) -> list[Candidate]:
    """Candidates by a way that is settled beforehand."""
    monkeypatch.setattr(cache, "is_narrow", lambda *_: narrow)
    return candidates(full.database, full.tenant, words, exact_below=0, **query)


@pytest.mark.req("001-032")
@pytest.mark.parametrize("narrow", [True, False])
def test_each_way_finds_what_a_filter_lets_through(
    full: Corpus, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    """Asked so often that the server plans no more, with filters of 1 and of 99 percent in turn."""
    directions = unit(np.random.default_rng(5).normal(size=(8, DIMENSIONS)).astype(np.float32))
    rows, kinds = full.chunks(), dict(full.documents.values("id", "kind"))
    vectors = np.array([row["embedding"].to_list() for row in rows], dtype=np.float32)
    shares = []
    for direction in directions:
        order = np.argsort(-(vectors @ direction))
        for kind in (Kind.DECISION, Kind.WORK):
            ranked = ((rows[n]["document_id"], rows[n]["ord"]) for n in order)
            book = [place for place in ranked if kinds[place[0]] == kind][:30]
            given: dict[str, Any] = {"keywords": False, "candidates": 30, "filter": Filter(kinds=(kind,))}
            found = wide(full, monkeypatch, narrow, vector=direction, **given)
            assert len(found) == 30
            shares.append(len({c.place for c in found} & set(book)) / 30)
            if narrow:
                assert shares[-1] == 1.0
    assert np.mean(shares) > 0.95


def test_words_and_meaning_are_scored_alike_in_each_way(
    full: Corpus, question: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten documents, so that every one of their chunks is a candidate."""
    one = min(full.chunks.values("document_id"))
    wanted = Filter(tags=("rare",), exclude=(one,))
    both = [
        wide(full, monkeypatch, narrow, "common3 word7 item0", vector=question, candidates=60, filter=wanted)
        for narrow in (True, False)
    ]
    assert both[0] == both[1]
    assert 36 <= len(both[0]) <= 40
    assert any(c.bm25 for c in both[0])


@pytest.mark.parametrize("narrow", [True, False])
def test_the_way_is_the_one_that_was_settled(
    full: Corpus, question: Vectors, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    monkeypatch.setattr(cache, "is_narrow", lambda *_: narrow)
    plan = full.plan(vector=question, keywords=False, filter=Filter(kinds=(Kind.DECISION,)))
    assert (f"chunk_{full.index.id}_vector" not in plan) is narrow


@pytest.mark.parametrize(
    ("passing", "wanted", "chunks", "of_all", "narrow"),
    [
        (0, 100, 100_000, 100_000, True),
        (8_944, 100, 100_000, 100_000, True),
        (8_945, 100, 100_000, 90_000, False),
        (4_001, 20, 100_000, 100_000, False),
        (20_000, 100, 1_000_000, 1_000_000, True),
        (20_000, 100, 100_000, 1_000_000, True),
        (900_000, 100, 100_000_000, 100_000_000, True),
        (1_000_001, 100, 100_000_000, None, False),
    ],
)
def test_which_way_a_filter_takes(
    shared_database: Database, passing: int, wanted: int, chunks: int, of_all: int | None, narrow: bool
) -> None:
    corpus = Corpus(shared_database)
    corpus.put("kestrel")
    corpus.count()
    corpus.documents.set(chunk_count=passing)
    snapshot = cache.read_snapshot(shared_database, corpus.tenant)
    assert snapshot
    snapshot = replace(snapshot, chunks=chunks, index=replace(snapshot.index, indexed_rows=of_all))
    asked = ("kinds",), {"kinds": [Kind.REFERENCE.value]}
    assert cache.is_narrow(shared_database, corpus.tenant, snapshot, *asked, wanted) is narrow


def test_a_tenant_with_few_of_all_chunks_has_them_compared(full: Corpus, question: Vectors) -> None:
    """The index holds those of all tenants, and gives up before it has found so many of a small one."""
    small = Corpus(full.database)
    for n in range(30):
        small.put(f"kestrel {n}", f"falcon {n}")
    small.count()
    settings = "enable_seqscan = off;enable_sort = off"
    plans = [
        corpus.plan(vector=question, keywords=False, candidates=20, settings=settings)
        for corpus in (small, full)
    ]
    assert [f"chunk_{full.index.id}_vector" in plan for plan in plans] == [False, True]
    assert len(small.ask(vector=question, keywords=False, candidates=20)) == 20
