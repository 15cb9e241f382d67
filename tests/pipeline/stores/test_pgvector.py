"""The store in PostgreSQL: which indexes answer, filters, tenants, what the row diff leaves alone."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

import numpy as np
import pytest
from sqlalchemy import text

from pipeline.database import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.errors import StoreRejected
from pipeline.stores import Filter, StoreQuery, StoreStats, statistics
from pipeline.stores.pgvector import PgVectorStore, active_index, indexes, open_index, place_of
from pipeline.stores.pgvector_bm25 import Statistics
from pipeline.stores.pgvector_query import LedgerFilter, scores
from pipeline.stores.pgvector_texts import nearest_texts
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


# --- which indexes answer ---


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
@pytest.mark.parametrize("condition", [Filter(kinds=(Kind.DECISION,)), Filter(project_id=RARE)])
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


def test_the_scores_take_their_rows_by_key(full: Depot, question: Vectors) -> None:
    """Right after a first load there are no statistics, and the planner must not be left to guess."""
    with full.statements() as seen:
        full.ask("word7", vector=question)
    ((statement, parameters),) = [one for one in seen if " union " in one[0]]
    with full.database.tenant(full.tenant) as connection:
        rows = connection.exec_driver_sql(f"explain {statement}", parameters)
        plan = "\n".join(str(row[0]) for row in rows)
    assert f"chunk_{full.index.id}_pkey" in plan
    assert plan.count("document_hidden") == 2, "what is hidden is looked up once for each arm"
    assert "document_pkey" not in plan


def test_a_rare_tag_is_looked_up_in_its_index(full: Depot, question: Vectors) -> None:
    """`@>` is not leakproof: under row-level security alone, every document of the tenant would be read."""
    plan = full.plan(
        vector=question, keywords=False, filter=Filter(tags=("rare",)), settings="enable_seqscan = off"
    )
    assert "document_tags" in plan
    assert "Seq Scan on document" not in plan


def test_a_search_that_was_meant_for_another_index_finds_nothing(database: Database, tenant: UUID) -> None:
    depot = Depot(database, tenant)
    depot.put("kestrel")
    place = place_of(depot.index, tenant, 0, if_active=True)
    query = StoreQuery(text="kestrel", vector=depot.embedder.embed_query("kestrel"), top=5)
    counted = Statistics(chunks=1, mean_length=1.0)
    ask = partial(database.ask, tenant)

    def found() -> tuple[int, int]:
        return len(scores(ask, place, query, counted)), len(
            nearest_texts(ask, place, query, counted, 5).chunks
        )

    assert found() == (1, 1)
    with database.tenant(tenant) as connection:
        new = open_index(connection, provider="x", model="newer", dimensions=8, chunker="c", pipeline="p")
    with database.control() as connection:
        connection.exec_driver_sql(f"select activate_search_index({new.id})")
    assert found() == (0, 0)


# --- filters only the ledger can answer ---


@pytest.fixture
def shelf(shared_database: Database) -> Depot:
    depot = Depot(shared_database)
    depot.put(
        "kestrel one", title="one", source="wiki", metadata={"team": "red", "n": 3, "labels": ["a", "b"]}
    )
    depot.put("kestrel two", title="two", source="tracker", metadata={"team": "blue", "n": "3", "ok": True})
    depot.put("kestrel three", title="three", source="tracker", metadata={"n": 4, "none": None})
    depot.count()
    return depot


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("condition", "titles"),
    [
        (LedgerFilter(), {"one", "two", "three"}),
        (LedgerFilter(sources=("wiki",)), {"one"}),
        (LedgerFilter(sources=("wiki", "tracker")), {"one", "two", "three"}),
        (LedgerFilter(sources=("nobody",)), set()),
        (LedgerFilter(texts=(("team", "red"),)), {"one"}),
        (LedgerFilter(texts=(("n", "3"),)), {"one", "two"}),
        (LedgerFilter(texts=(("n", "3"), ("team", "blue"))), {"two"}),
        (LedgerFilter(texts=(("ok", "true"),)), {"two"}),
        (LedgerFilter(texts=(("labels", "b"),)), {"one"}),
        (LedgerFilter(texts=(("labels", "c"),)), set()),
        (LedgerFilter(texts=(("none", "null"),)), set()),
        (LedgerFilter(texts=(("absent", ""),)), set()),
        (LedgerFilter(texts=(("team", "re"),)), set()),
        (LedgerFilter(texts=(("n", "3"),), metadata={"n": 3}), {"one"}),
        (LedgerFilter(metadata={"labels": ["a", "b"]}), {"one"}),
        (LedgerFilter(metadata={"labels": ["a"]}), set()),
        (LedgerFilter(metadata={"n": 3.0}), {"one"}),
    ],
)
def test_filters_of_the_ledger_hold_in_both_arms(
    shelf: Depot, condition: LedgerFilter, titles: set[str]
) -> None:
    vector = shelf.embedder.embed_query("kestrel")
    assert {c.document.title for c in shelf.ask("kestrel", filter=condition)} == titles
    found = shelf.ask("kestrel", vector=vector, keywords=False, filter=condition)
    assert {c.document.title for c in found} == titles


def test_a_search_may_be_about_certain_documents_only(shelf: Depot) -> None:
    one = next(c.document.id for c in shelf.ask("kestrel") if c.document.title == "one")
    assert [c.document.id for c in shelf.ask("kestrel", filter=LedgerFilter(only=(one,)))] == [one]
    assert shelf.ask("kestrel", filter=LedgerFilter(only=(uuid4(),))) == []


@pytest.mark.parametrize("column", ["hidden", "deleted"])
def test_what_is_hidden_or_deleted_is_not_found(shelf: Depot, column: str) -> None:
    shelf.sql(f"update document set {column} = true where title = 'one'")
    vector = shelf.embedder.embed_query("kestrel one")
    assert {c.document.title for c in shelf.ask("kestrel one", vector=vector)} == {"two", "three"}


def test_the_keyword_arm_fills_its_list_with_what_is_to_be_seen(shared_database: Database) -> None:
    """Chunks are scored before their documents are looked at."""
    depot = Depot(shared_database)
    for n in range(12):
        depot.put("kestrel " * (12 - n) + "falcon " * n, title=f"{n:02}")
    depot.count()
    depot.sql("update document set hidden = true where title < '05'")
    depot.sql("update document set deleted = true where title = '06'")
    found = depot.ask("kestrel", candidates=4)
    assert {c.document.title for c in found} == {"05", "07", "08", "09"}


def test_filters_of_chunks_alone_hold_in_the_keyword_arm(shared_database: Database) -> None:
    depot = Depot(shared_database)
    ids = [
        depot.put("kestrel " * (9 - n), title=str(n), project_id=RARE if n % 2 else depot.project)
        for n in range(8)
    ]
    depot.count()
    found = depot.ask(
        "kestrel",
        candidates=2,
        filter=LedgerFilter(project_id=RARE, exclude=(ids[1],), only=tuple(ids[1:])),
    )
    assert {c.document.title for c in found} == {"3", "5"}


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
    assert [one.place for one in few.chunks] == list(best.items())[:90]
    assert len({c.document_id for c in everything[:90]}) < 90, "some document has two chunks among them"
    assert [one.place for one in chunks.chunks] == [(c.document_id, c.ord) for c in everything[:7]]
    assert [one.score for one in chunks.chunks] == pytest.approx([c.similarity for c in everything[:7]])
    for found in (few, chunks):
        assert found.rows == 100
        assert all(
            (one.text.document.id, one.text.chunk.ord) == one.place for one in found.chunks if one.text
        )
        assert all(one.text and one.text.chunk.content.startswith("common") for one in found.chunks)


# --- scores that only this store has ---


def test_the_whole_document_counts_by_the_centroid_of_this_very_index(shelf: Depot) -> None:
    vector = shelf.embedder.embed_query("kestrel")
    assert {c.centroid for c in shelf.ask("kestrel", vector=vector)} == {None}
    halves = f"array_fill(1.0::real, array[{DIMENSIONS}])::vector::halfvec".replace("::", "\\:\\:")
    with shelf.database.tenant(shelf.tenant) as connection:
        other = open_index(
            connection, provider="x", model="other", dimensions=DIMENSIONS, chunker="structure", pipeline="p"
        )
    for title, index, of in (
        ("one", shelf.index.id, halves),
        ("two", other.id, halves),
        ("three", shelf.index.id, "null"),
    ):
        shelf.sql(
            f"""insert into index_document (tenant_id, index_id, document_id, version, centroid)
                select tenant_id, :index, id, 1, {of} from document where title = :t""",
            index=index,
            t=title,
        )
    found = {c.document.title: c.centroid for c in shelf.ask("kestrel", vector=vector)}
    ones = np.ones(DIMENSIONS) / np.sqrt(DIMENSIONS)
    assert found["one"] == pytest.approx(float(ones @ vector), abs=0.005)
    assert found["two"] is None
    assert found["three"] is None
    assert {c.centroid for c in shelf.ask("kestrel")} == {None}


def test_a_vector_of_zeros_is_far_from_everything(shelf: Depot) -> None:
    found = shelf.ask("kestrel", vector=np.zeros(DIMENSIONS, np.float32))
    assert {c.similarity for c in found} == {0.0}
    assert len(found) == 3


# --- tenants ---


def test_tenants_never_see_each_other(shared_database: Database) -> None:
    one, other = Depot(shared_database), Depot(shared_database)
    assert one.index.id == other.index.id, "one partition holds both"
    mine = one.put("kestrel secret")
    other.put("kestrel public")
    for depot in (one, other):
        depot.count()
    vector = one.embedder.embed_query("kestrel secret")
    assert [c.chunk.content for c in one.ask("kestrel secret", vector=vector)] == ["kestrel secret"]
    assert [c.chunk.content for c in other.ask("kestrel secret", vector=vector)] == ["kestrel public"]
    assert other.ask("secret", filter=LedgerFilter(only=(mine,))) == []
    with shared_database.app.begin() as connection:
        assert connection.execute(text("select count(*) from chunk")).scalar_one() == 0
    with shared_database.tenant(other.tenant) as connection:
        store = PgVectorStore(connection, other.index, other.tenant)
        assert store.delete([mine]) == 0
        assert store.stats() == StoreStats(documents=1, chunks=1)


# --- the row diff ---


def test_kept_rows_are_not_written_again(shared_database: Database) -> None:
    depot = Depot(shared_database)
    of = depot.document()
    chunks = [Chunk(ord=n, content=c) for n, c in enumerate(("alpha", "beta"))]
    depot.put_all([(of, chunks)])
    before = depot.sql("select xmin, ctid from chunk order by ord")
    depot.put_all([(of, chunks)])
    assert depot.sql("select xmin, ctid from chunk order by ord") == before


def test_a_new_version_touches_no_search_index_of_kept_rows(shared_database: Database) -> None:
    """PostgreSQL counts such an update as HOT: no index, neither GIN nor HNSW, gets a new entry."""
    depot = Depot(shared_database)
    of = depot.document()
    chunks = [Chunk(ord=n, content=c) for n, c in enumerate(("alpha", "beta"))]
    depot.put_all([(of, chunks)])
    table = f"chunk_{depot.index.id}"

    def updates() -> tuple[int, int]:
        with shared_database.tenant(depot.tenant) as connection:
            connection.execute(text("select pg_stat_force_next_flush()"))
        row = depot.sql(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = :t", t=table
        )[0]
        return row.n_tup_upd, row.n_tup_hot_upd

    before = updates()
    changed = depot.document(id=of.id, version=2)
    depot.put_all([(changed, chunks)])
    after = updates()
    assert after[0] - before[0] == 2
    assert after[1] - before[1] == 2
    assert {c.document.version for c in depot.ask("alpha beta")} == {2}


def test_vectors_are_kept_at_half_precision_and_lexemes_by_weight(shared_database: Database) -> None:
    depot = Depot(shared_database)
    depot.put("Running workers", context="Queue > Retries")
    (row,) = depot.sql("select lexemes\\:\\:text as lexemes, length, context from chunk")
    assert row.lexemes == "'queue':1A 'retri':2A 'run':3 'worker':4"
    assert row.length == 4
    assert row.context == "Queue > Retries"


@pytest.mark.parametrize("width", [DIMENSIONS - 1, DIMENSIONS + 1])
def test_the_partition_itself_refuses_other_lengths(shared_database: Database, width: int) -> None:
    depot = Depot(shared_database)
    depot.put("alpha")
    with pytest.raises(StoreRejected, match="check constraint"):
        depot.sql(f"update chunk set embedding = array_fill(1, array[{width}])\\:\\:vector\\:\\:halfvec")


# --- search indexes ---


def test_one_index_per_model_and_the_first_is_active(database: Database, tenant: UUID) -> None:
    common = {"provider": "hashing", "chunker": "structure", "pipeline": "p"}
    with database.tenant(tenant) as connection:
        assert active_index(connection) is None
        first = open_index(connection, model="a", dimensions=8, **common)
        assert open_index(connection, model="a", dimensions=8, **common) == first
        second = open_index(connection, model="a", dimensions=16, **common)
        assert (first.status, second.status) == ("active", "building")
        assert [i.id for i in indexes(connection)] == [first.id, second.id]
        assert active_index(connection) == first


def test_indexes_are_built_when_the_backlog_is_empty(database: Database, tenant: UUID) -> None:
    depot = Depot(database, tenant)

    def due(**limits: int) -> tuple[bool, bool]:
        with database.control() as connection:
            return statistics.build_due(
                connection, indexes(connection)[0], **{"exact_below": 5, "build_at": 100, **limits}
            )

    assert due() == (False, False), "nothing is there"
    depot.put("alpha")
    depot.sql("update document set chunk_count = 4")
    assert due() == (True, False), "few rows need no vector index"
    depot.sql("update document set chunk_count = 5")
    assert due() == (True, True)
    depot.sql("update document set state = 'pending'")
    assert due() == (False, False), "loading into an index is slower than building it afterwards"
    assert due(build_at=5) == (True, True), "unless so much is there that searches would suffer"
    depot.sql("update document set state = 'done'")
    depot.build()
    assert due() == (False, False)
    with database.control() as connection:
        (index,) = indexes(connection)
    assert index.keyword_built
    assert index.indexed_rows == 5


def test_times_filter_on_the_last_change_or_the_creation(shared_database: Database) -> None:
    depot = Depot(shared_database)
    june, july = datetime(2025, 6, 1, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=UTC)
    depot.put("kestrel", title="changed", created_at=june, updated_at=july)
    depot.put("kestrel", title="created", created_at=june, source_type=SourceType.PBI)
    depot.put("kestrel", title="timeless")
    depot.count()
    assert {c.document.title for c in depot.ask("kestrel", filter=Filter(since=july))} == {"changed"}
    assert {c.document.title for c in depot.ask("kestrel", filter=Filter(until=july))} == {"created"}
