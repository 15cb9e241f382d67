"""Which indexes of PostgreSQL answer a search among some thousand chunks, and that they miss nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.embedding import Vectors
from pipeline.search.arms import ChunkScores, LedgerFilter, passing, scores
from pipeline.search.bm25 import Statistics
from pipeline.search.chunk_store import place_of
from pipeline.search.chunks import Filter, StoreQuery
from pipeline.search.fusion import in_order
from pipeline.search.statements import Passing
from tests.pipeline.stores.depot import DIMENSIONS, Depot

ROWS = 4000


@pytest.fixture(scope="module")
def full(shared_database: Database) -> Depot:
    """4,000 chunks with both indexes built; one in a hundred is of kind decision and of a project of its own."""
    depot = Depot(shared_database)
    chance = np.random.default_rng(3)
    vectors = unit(chance.normal(size=(ROWS, DIMENSIONS)).astype(np.float32))
    names = random.Random(3)
    stock = []
    for n in range(ROWS // 4):
        rare = n % 100 == 0
        of = depot.document(
            kind=Kind.DECISION if rare else Kind.WORK,
            project_id=RARE if rare else depot.project,
            tags=("rare",) if rare else (),
        )
        words = [f"common{names.randint(0, 9)} word{names.randint(0, 800)} item{n} part{m}" for m in range(4)]
        stock.append((of, [Chunk(ord=m, content=content) for m, content in enumerate(words)]))
    depot.put_all(stock, vectors)
    depot.count()
    depot.build()
    return depot


RARE = UUID(int=0xDEC)


def unit(vectors: Vectors) -> Vectors:
    lengths: list[float] = np.linalg.norm(vectors, axis=1).tolist()
    return np.array([row / length for row, length in zip(vectors, lengths, strict=True)], dtype=np.float32)


@pytest.fixture
def question() -> Vectors:
    """Any direction."""
    made: Vectors = unit(np.random.default_rng(11).normal(size=(1, DIMENSIONS)).astype(np.float32))[0]
    return made


def test_the_keyword_arm_reads_the_gin_index(full: Depot) -> None:
    plan = full.plan("word7 item3", settings="enable_seqscan = off")
    assert f"chunk_{full.index.id}_lexemes" in plan
    assert "Seq Scan on chunk" not in plan


def test_the_vector_arm_reads_the_hnsw_index(full: Depot, question: Vectors) -> None:
    plan = full.plan(vector=question, keywords=False, settings="enable_seqscan = off;enable_sort = off")
    assert f"chunk_{full.index.id}_vector" in plan


def test_few_chunks_are_compared_one_by_one(full: Depot, question: Vectors) -> None:
    """Exact search finds all; under some thousand rows it is as fast."""
    full.exact_below = ROWS + 1
    try:
        plan = full.plan(vector=question, keywords=False, settings="enable_seqscan = off;enable_sort = off")
        found = full.ask(vector=question, keywords=False, candidates=20)
    finally:
        full.exact_below = 0
    assert f"chunk_{full.index.id}_vector" not in plan
    rows = full.sql("select embedding from chunk")
    book = sorted((float(np.asarray(r.embedding.to_list()) @ question) for r in rows), reverse=True)
    assert [c.similarity for c in found] == pytest.approx(book[:20], abs=0.002)


@pytest.mark.req("001-032")
def test_filters_stand_in_the_sql_of_both_arms(full: Depot, question: Vectors) -> None:
    condition = LedgerFilter(kinds=(Kind.DECISION,), tags=("x",), metadata={"a": 1}, sources=("notes",))
    with full.statements() as seen:
        full.ask("word7", vector=question, filter=condition)
    (both,) = [statement for statement, _ in seen if " @@ " in statement]
    arms = both.partition(" union all ")[0].split("other as")
    assert len(arms) == 2
    for statement in arms:
        for part in (
            "d.kind = any",
            "d.tags @>",
            "jsonb_each",
            "d.source_id in",
            "not d.hidden",
            "not d.deleted",
        ):
            assert part in statement, part


@pytest.mark.req("001-032")
@pytest.mark.parametrize("condition", [Filter(kinds=(Kind.DECISION,)), Filter(projects=(RARE,))])
def test_a_filter_of_one_percent_still_fills_the_list(
    full: Depot, question: Vectors, condition: Filter
) -> None:
    """HNSW stops after ef_search rows unless it goes on until the filter has let enough through."""
    for settings in ("", "set local enable_sort = off"):
        found = full.ask(vector=question, keywords=False, candidates=30, filter=condition, settings=settings)
        assert len(found) == 30
        assert all(c.document.kind is Kind.DECISION for c in found)


def test_more_candidates_than_ef_search_by_default_come_whole(full: Depot, question: Vectors) -> None:
    assert len(full.ask(vector=question, keywords=False, candidates=300)) == 300


def test_the_index_finds_what_an_exact_search_finds(full: Depot) -> None:
    rows = full.sql("select document_id, ord, embedding from chunk order by document_id, ord limit 40")
    for row in rows:
        vector = np.asarray(row.embedding.to_list(), dtype=np.float32)
        (best,) = full.ask(vector=vector, keywords=False, candidates=1)
        assert (best.document.id, best.chunk.ord) == (row.document_id, row.ord)


@pytest.mark.parametrize("vector", [True, False])
def test_the_scores_take_their_rows_at_the_place_they_were_found(
    full: Depot, question: Vectors, vector: bool
) -> None:
    """Right after a first load there are no statistics, and the planner must not be left to guess."""
    with full.statements() as seen:
        full.ask("word7", vector=question if vector else None)
    ((statement, parameters),) = [one for one in seen if "c.ctid" in one[0]]
    with full.database.tenant(full.tenant) as connection:
        rows = connection.exec_driver_sql(f"explain {statement}", parameters)
        plan = "\n".join(str(row[0]) for row in rows)
    assert plan.count(f"Tid Scan on chunk_{full.index.id}") == 1
    assert "Seq Scan on chunk" not in plan
    assert plan.count("document_hidden") == 1 + vector, "what is hidden is looked up once for each arm"
    assert "document_pkey" not in plan


@pytest.mark.parametrize("vector", [True, False])
def test_the_lexemes_of_a_chunk_are_unpacked_once_and_not_for_each_term(
    full: Depot, question: Vectors, vector: bool
) -> None:
    """A long question took twice its time when they were."""
    with full.statements() as seen:
        full.ask(" ".join(f"word{n}" for n in range(30)), vector=question if vector else None)
    ((statement, parameters),) = [one for one in seen if "c.ctid" in one[0]]
    with full.database.tenant(full.tenant) as connection:
        rows = connection.exec_driver_sql(f"explain verbose {statement}", parameters)
        plan = [str(row[0]) for row in rows]
    for line in plan:
        assert line.count("lexemes ||") <= 1, line


def test_a_rare_tag_is_looked_up_in_its_index(full: Depot, question: Vectors) -> None:
    """`@>` is not leakproof: under row-level security alone, every document of the tenant would be read."""
    plan = full.plan(
        vector=question, keywords=False, filter=Filter(tags=("rare",)), settings="enable_seqscan = off"
    )
    assert "document_tags" in plan
    assert "Seq Scan on document" not in plan


@pytest.mark.parametrize("exact_below", [0, ROWS + 1])
def test_if_few_documents_are_wanted_they_are_the_first_of_all_with_their_best_chunks(
    full: Depot, question: Vectors, exact_below: int
) -> None:
    full.exact_below = exact_below
    try:
        everything = full.ask(vector=question, keywords=False)
        few = full.nearest(question, 90, first=100)
        chunks = full.nearest(question, 7, first=100, dedupe=False)
    finally:
        full.exact_below = 0
    best: dict[UUID, int] = {}
    for candidate in everything:
        best.setdefault(candidate.document.id, candidate.chunk.ord)
    assert [one.place for one in in_order(few.chunks)] == list(best.items())[:90]
    assert len({c.document_id for c in everything[:90]}) < 90, "some document has two chunks among them"
    first = in_order(chunks.chunks)
    assert [one.place for one in first] == [(c.document_id, c.ord) for c in everything[:7]]
    assert [one.score for one in first] == pytest.approx([c.similarity for c in everything[:7]])
    for found in (few, chunks):
        assert found.rows == 100
        assert all(
            (one.text.document.id, one.text.chunk.ord) == one.place for one in found.chunks if one.text
        )
        assert all(one.text and one.text.chunk.content.startswith("common") for one in found.chunks)


# --- how much a filter lets through decides how to search ---


def wide(full: Depot, passing: Passing, wanted: Filter, **query: Any) -> list[ChunkScores]:
    """Scores by a way that is settled beforehand, planned once for all values."""
    place = place_of(full.index, full.tenant, 0, passing=passing)
    asked = StoreQuery(**{"text": "", "keywords": False, "candidates": 30, "filter": wanted, **query})
    counted = Statistics(chunks=ROWS, mean_length=4.0)
    return scores(partial(full.database.ask, full.tenant), place, asked, counted)


@pytest.mark.req("001-032")
@pytest.mark.parametrize("passing", ["few", "some", "many"])
def test_each_way_finds_what_a_filter_lets_through(full: Depot, passing: Passing) -> None:
    """Asked so often that the server plans no more, with filters of 1 and of 99 percent in turn."""
    directions = unit(np.random.default_rng(5).normal(size=(8, DIMENSIONS)).astype(np.float32))
    rows = full.sql(
        "select c.document_id, c.ord, c.embedding, d.kind from chunk c join document d on d.id = c.document_id"
    )
    vectors = np.array([row.embedding.to_list() for row in rows], dtype=np.float32)
    shares = []
    for direction in directions:
        nearest = np.argsort(-(vectors @ direction))
        for kind in (Kind.DECISION, Kind.WORK):
            book = [(rows[n].document_id, rows[n].ord) for n in nearest if rows[n].kind == kind][:30]
            found = wide(full, passing, Filter(kinds=(kind,)), vector=direction)
            assert len(found) == 30
            shares.append(len({(c.document_id, c.ord) for c in found} & set(book)) / 30)
            if passing != "many":
                assert shares[-1] == 1.0
    assert np.mean(shares) > 0.95


@pytest.mark.parametrize("passing", ["", "few", "some", "many"])
def test_words_and_meaning_are_scored_alike_in_each_way(
    full: Depot, question: Vectors, passing: Passing
) -> None:
    """Of ten documents, so that every one of their chunks is a candidate."""
    one = full.sql("select document_id from chunk order by document_id limit 1")[0].document_id
    wanted = Filter(tags=("rare",), exclude=(one,))
    found = wide(
        full, passing, wanted, text="common3 word7 item0", keywords=True, vector=question, candidates=60
    )
    usual = wide(full, "", wanted, text="common3 word7 item0", keywords=True, vector=question, candidates=60)
    assert sorted(found) == sorted(usual)
    assert 36 <= len(found) <= 40
    assert any(c.bm25 for c in found)
    words = wide(full, passing, wanted, text="common3 item0", keywords=True)
    assert {c[:2] for c in words} == {
        c[:2] for c in wide(full, "", wanted, text="common3 item0", keywords=True)
    }
    assert words


@pytest.mark.parametrize(("passing", "index"), [("few", False), ("some", False), ("many", True)])
def test_the_way_is_the_one_that_was_settled(
    full: Depot, question: Vectors, passing: Passing, index: bool
) -> None:
    seen: list[tuple[str, Mapping[str, Any]]] = []

    def ask(statement: str, values: Mapping[str, Any], *, one_plan: bool = False) -> list[Any]:
        assert one_plan
        seen.append((statement, values))
        return []

    place = place_of(full.index, full.tenant, 0, passing=passing)
    query = StoreQuery(text="", keywords=False, vector=question, filter=Filter(kinds=(Kind.DECISION,)))
    scores(ask, place, query, Statistics(chunks=ROWS, mean_length=4.0))
    ((statement, values),) = seen
    with full.database.tenant(full.tenant) as connection:
        plan = "\n".join(
            str(row[0]) for row in connection.exec_driver_sql(f"explain {statement}", dict(values))
        )
    assert (f"chunk_{full.index.id}_vector" in plan) is index


@pytest.mark.parametrize(
    ("found", "wanted", "chunks", "way"),
    [
        (0, 100, 100_000, "few"),
        (1_000, 100, 100_000, "few"),
        (1_001, 100, 100_000, "some"),
        (8_944, 100, 100_000, "some"),
        (8_945, 100, 100_000, "many"),
        (4_001, 20, 100_000, "many"),
        (20_000, 100, 1_000_000, "some"),
        (900_000, 100, 100_000_000, "some"),
        (1_000_001, 100, 100_000_000, "many"),
    ],
)
def test_which_way_a_filter_takes(found: int, wanted: int, chunks: int, way: str) -> None:
    assert passing(found, wanted, chunks) == way
