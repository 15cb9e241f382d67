"""The store in PostgreSQL: tenants, what the row diff leaves alone, and its search indexes."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk
from pipeline.errors import StoreRejected
from pipeline.search import statement, term_statistics
from pipeline.search.chunk_store import active_index, indexes, open_index
from pipeline.search.records import Filter, Quantization
from tests.pipeline.stores.corpus import DIMENSIONS, Corpus, Counting, candidates


def test_tenants_never_see_each_other(shared_database: Database) -> None:
    one, other = Corpus(shared_database), Corpus(shared_database)
    assert one.index.id == other.index.id, "one partition holds both"
    mine = one.put("kestrel secret")
    other.put("kestrel public")
    for corpus in (one, other):
        corpus.count()
    vector = one.embedder.embed_query("kestrel secret")
    assert [c.chunk.content for c in one.ask("kestrel secret", vector=vector)] == ["kestrel secret"]
    assert [c.chunk.content for c in other.ask("kestrel secret", vector=vector)] == ["kestrel public"]
    assert other.ask("secret", filter=Filter(only=(mine,))) == []
    with shared_database.app.begin() as connection:
        assert connection.execute(text("select count(*) from chunk")).scalar_one() == 0
    with shared_database.tenant(other.tenant) as connection:
        assert connection.execute(text("select count(*) from chunk")).scalar_one() == 1


def test_kept_rows_are_not_written_again(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    of = corpus.document()
    chunks = [Chunk(ord=n, content=c) for n, c in enumerate(("alpha", "beta"))]
    corpus.put_all([(of, chunks)])
    before = corpus.sql("select xmin, ctid from chunk order by ord")
    corpus.put_all([(of, chunks)])
    assert corpus.sql("select xmin, ctid from chunk order by ord") == before


def test_a_new_version_touches_no_search_index_of_kept_rows(shared_database: Database) -> None:
    """PostgreSQL counts such an update as HOT: no index, neither GIN nor HNSW, gets a new entry."""
    corpus = Corpus(shared_database)
    of = corpus.document()
    chunks = [Chunk(ord=n, content=c) for n, c in enumerate(("alpha", "beta"))]
    corpus.put_all([(of, chunks)])
    table = f"chunk_{corpus.index.id}"

    def updates() -> tuple[int, int]:
        with shared_database.tenant(corpus.tenant) as connection:
            connection.execute(text("select pg_stat_force_next_flush()"))
        row = corpus.sql(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = :t", t=table
        )[0]
        return row.n_tup_upd, row.n_tup_hot_upd

    before = updates()
    changed = corpus.document(id=of.id, version=2)
    corpus.put_all([(changed, chunks)])
    after = updates()
    assert after[0] - before[0] == 2
    assert after[1] - before[1] == 2
    assert {c.document.version for c in corpus.ask("alpha beta")} == {2}


def test_vectors_are_kept_at_half_precision_and_lexemes_by_weight(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    corpus.put("Running workers", context="Queue > Retries")
    row = corpus.chunks.one()
    assert row["lexemes"] == "'queue':1A 'retri':2A 'run':3 'worker':4"
    assert row["length"] == 4
    assert row["context"] == "Queue > Retries"


@pytest.mark.parametrize("width", [DIMENSIONS - 1, DIMENSIONS + 1])
def test_the_partition_itself_refuses_other_lengths(shared_database: Database, width: int) -> None:
    corpus = Corpus(shared_database)
    corpus.put("alpha")
    with pytest.raises(StoreRejected, match="check constraint"):
        corpus.chunks.set(embedding=str([1] * width))


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
    corpus = Corpus(database, tenant)

    def due(quantization: Quantization = "halfvec", **limits: int) -> tuple[bool, bool]:
        with database.control() as connection:
            return term_statistics.build_due(
                connection,
                indexes(connection)[0],
                **{"exact_below": 5, "build_at": 100, **limits},
                quantization=quantization,
            )

    assert due() == (False, False), "nothing is there"
    corpus.put("alpha")
    corpus.documents.set(chunk_count=4)
    assert due() == (True, False), "few rows need no vector index"
    corpus.documents.set(chunk_count=5)
    assert due() == (True, True)
    corpus.documents.set(state="pending")
    assert due() == (False, False), "loading into an index is slower than building it afterwards"
    assert due(build_at=5) == (True, True), "unless so much is there that searches would suffer"
    corpus.documents.set(state="done")
    corpus.build()
    assert due() == (False, False)
    with database.control() as connection:
        (index,) = indexes(connection)
    assert index.keyword_built
    assert index.indexed_rows == 5
    assert due("bit") == (False, True), "an index of bits is another one"


def test_a_search_that_was_meant_for_another_index_finds_nothing(database: Database, tenant: UUID) -> None:
    corpus = Corpus(database, tenant)
    corpus.put("kestrel")
    counting = Counting(database)
    assert len(candidates(counting, tenant, "kestrel", vector=corpus.embedder.embed_query("kestrel"))) == 1
    sent, values = counting.sent[-1]
    assert f"= {corpus.index.id}" in sent.rpartition(statement.ACTIVE)[2]
    with database.tenant(tenant) as connection:
        new = open_index(connection, provider="x", model="newer", dimensions=8, chunker="c", pipeline="p")
    with database.control() as connection:
        connection.exec_driver_sql(f"select activate_search_index({new.id})")
    assert database.fetch(tenant, sent, values) == []
