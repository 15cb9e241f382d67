"""What every vector store must do; a store joins by one entry in FACTORIES."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from sqlalchemy import Connection, text

from pipeline.database import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.embedding.hashing import HashingEmbedder
from pipeline.errors import StoreRejected
from pipeline.ledger import source_id
from pipeline.stores import (
    Candidate,
    Filter,
    Replaced,
    Replacement,
    StoredDocument,
    StoreQuery,
    StoreStats,
    VectorStore,
    statistics,
)
from pipeline.stores.memory import InMemoryStore
from pipeline.stores.pgvector import PgVectorStore, open_index

DIMENSIONS = 384
NOWHERE = UUID(int=0xD)
"""The project of documents that name none: the ledger knows no document without one."""


class InLedger:
    """PgVectorStore joins documents and sources, so they are put into the ledger before their chunks.

    Each call is a transaction of its own; the counts for BM25 are made anew after each write.
    """

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant
        with database.tenant(tenant) as connection:
            self.index = open_index(
                connection,
                provider="hashing",
                model="hashing-384",
                dimensions=DIMENSIONS,
                chunker="structure",
                pipeline="structure|hashing-384:384",
            )

    def replace(self, batch: Sequence[Replacement]) -> list[Replaced]:
        placed = [
            replace(r, document=replace(r.document, project_id=r.document.project_id or NOWHERE))
            for r in batch
        ]
        with self.database.tenant(self.tenant) as connection:
            for replacement in placed:
                self._enter(connection, replacement.document)
            done = PgVectorStore(connection, self.index, self.tenant).replace(placed)
            statistics.refresh(connection, self.tenant, self.index.id)
        return done

    def delete(self, document_ids: Sequence[UUID]) -> int:
        with self.database.tenant(self.tenant) as connection:
            return PgVectorStore(connection, self.index, self.tenant).delete(document_ids)

    def candidates(self, query: StoreQuery) -> list[Candidate]:
        with self.database.tenant(self.tenant) as connection:
            return PgVectorStore(connection, self.index, self.tenant).candidates(query)

    def stats(self) -> StoreStats:
        with self.database.tenant(self.tenant) as connection:
            return PgVectorStore(connection, self.index, self.tenant).stats()

    def _enter(self, connection: Connection, of: StoredDocument) -> None:
        values = {
            "tenant": self.tenant,
            "source": source_id(self.tenant, of.source),
            "tags": list(of.tags),
            "metadata": json.dumps(dict(of.metadata)),
            **{k: v for k, v in vars(of).items() if k not in {"source", "tags", "metadata"}},
            "name": of.source,
        }
        connection.execute(
            text("""
                insert into source (id, tenant_id, project_id, name, kind)
                values (:source, :tenant, :project_id, :name, 'text') on conflict do nothing"""),
            values,
        )
        connection.execute(
            text("""
                insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                      url, tags, metadata, desired_version, desired_hash, pipeline_version,
                                      created_at, updated_at)
                values (:id, :tenant, :source, cast(:id as text), :project_id, :source_type, :kind, :title, :url,
                        :tags, cast(:metadata as jsonb), :version, '', '', :created_at, :updated_at)
                on conflict (id) do update set title = excluded.title, project_id = excluded.project_id,
                    url = excluded.url, tags = excluded.tags, metadata = excluded.metadata,
                    desired_version = excluded.desired_version
                where document.desired_version <= excluded.desired_version"""),
            values,
        )


def _pgvector(request: pytest.FixtureRequest) -> VectorStore:
    return InLedger(request.getfixturevalue("database"), request.getfixturevalue("tenant"))


FACTORIES: Mapping[str, Callable[[pytest.FixtureRequest], VectorStore]] = {
    "memory": lambda _request: InMemoryStore(DIMENSIONS),
    "pgvector": _pgvector,
}
"""Name -> an empty store of 384 dimensions; the request gives access to fixtures such as a database."""

NEAR = 0.005
"""A store may keep vectors at half precision."""
EMBEDDER = HashingEmbedder(DIMENSIONS)
PROJECT_A, PROJECT_B = UUID(int=0xA), UUID(int=0xB)


@pytest.fixture(params=sorted(FACTORIES))
def store(request: pytest.FixtureRequest) -> VectorStore:
    return FACTORIES[str(request.param)](request)


def document(**changes: Any) -> StoredDocument:
    plain = StoredDocument(
        id=uuid4(), version=1, title="Title", source_type=SourceType.TEXT, kind=Kind.REFERENCE, source="notes"
    )
    return replace(plain, **changes)


def replacement(of: StoredDocument, *contents: str, context: str = "") -> Replacement:
    chunks = [Chunk(ord=n, content=content, context=context) for n, content in enumerate(contents)]
    return Replacement(
        document=of, chunks=chunks, vectors=EMBEDDER.embed_documents([c.embedding_text for c in chunks])
    )


def put(store: VectorStore, *contents: str, **changes: Any) -> StoredDocument:
    """Store one document with these chunks."""
    stored = document(**changes)
    store.replace([replacement(stored, *contents)])
    return stored


def ask(store: VectorStore, text: str, **changes: Any) -> list[Candidate]:
    """Both arms, unless `changes` to the query say otherwise."""
    return store.candidates(replace(StoreQuery(text=text, vector=EMBEDDER.embed_query(text)), **changes))


def by_words(store: VectorStore, text: str, **changes: Any) -> list[Candidate]:
    """The keyword arm alone."""
    return ask(store, text, vector=None, **changes)


def contents(candidates: Sequence[Candidate]) -> list[str]:
    return [c.chunk.content for c in candidates]


def all_of(store: VectorStore, of: StoredDocument) -> list[tuple[int, str]]:
    """A document's chunks as the store shows them, in order."""
    found = [c for c in ask(store, "anything", candidates=1000) if c.document.id == of.id]
    return sorted((c.chunk.ord, c.chunk.content) for c in found)


# --- replace and delete ---


def test_an_empty_store_answers(store: VectorStore) -> None:
    assert store.stats() == StoreStats(documents=0, chunks=0)
    assert ask(store, "anything") == []
    assert by_words(store, "anything") == []
    assert store.delete([uuid4()]) == 0
    assert store.replace([]) == []


@pytest.mark.req("003-002", "001-069", "001-014")
def test_what_is_stored_comes_back_whole(store: VectorStore) -> None:
    of = document(
        version=7,
        title="Ofen & Größe",
        source_type=SourceType.CONFLUENCE,
        kind=Kind.DECISION,
        source="wiki",
        url="https://wiki.example/x?a=1",
        tags=("adr", "ofen"),
        metadata={"status": "accepted", "n": 3, "deep": {"list": [1, None, True]}},
        project_id=PROJECT_A,
        created_at=datetime(2024, 5, 1, 8, tzinfo=UTC),
        updated_at=datetime(2025, 6, 2, 9, 30, tzinfo=UTC),
    )
    store.replace([replacement(of, "kiln firing", "quartz 日本 'quoted' \\ %s", context="Ofen > Brand")])
    found = sorted(ask(store, "kiln quartz"), key=lambda c: c.chunk.ord)
    assert [c.document for c in found] == [of, of]
    assert [(c.chunk.ord, c.chunk.content, c.chunk.context) for c in found] == [
        (0, "kiln firing", "Ofen > Brand"),
        (1, "quartz 日本 'quoted' \\ %s", "Ofen > Brand"),
    ]


def test_counts_are_per_document_and_in_order(store: VectorStore) -> None:
    batch = [replacement(document(), "alpha", "beta"), replacement(document(), "gamma")]
    assert store.replace(batch) == [
        Replaced(written=2, kept=0, removed=0),
        Replaced(written=1, kept=0, removed=0),
    ]
    assert store.stats() == StoreStats(documents=2, chunks=3)


def test_the_same_again_writes_nothing(store: VectorStore) -> None:
    of = put(store, "alpha", "beta")
    assert store.replace([replacement(of, "alpha", "beta")]) == [Replaced(written=0, kept=2, removed=0)]
    assert store.stats() == StoreStats(documents=1, chunks=2)


@pytest.mark.req("002-011")
def test_only_changed_chunks_are_written(store: VectorStore) -> None:
    of = put(store, "alpha", "beta", "gamma")
    done = store.replace([replacement(replace(of, version=2), "alpha", "kestrel", "gamma")])[0]
    assert (done.written, done.kept) == (1, 2)
    assert all_of(store, of) == [(0, "alpha"), (1, "kestrel"), (2, "gamma")]
    assert contents(by_words(store, "kestrel")) == ["kestrel"]
    assert by_words(store, "beta") == []


def test_kept_chunks_keep_their_vector(store: VectorStore) -> None:
    of = put(store, "alpha", "beta")
    again = replacement(replace(of, version=2), "alpha", "kestrel")
    store.replace([replace(again, vectors=EMBEDDER.embed_documents(["something else", "kestrel"]))])
    found = {c.chunk.content: c.similarity for c in ask(store, "alpha")}
    assert found["alpha"] == pytest.approx(1.0, abs=NEAR)


def test_a_kept_chunk_shows_the_documents_new_data(store: VectorStore) -> None:
    of = put(store, "alpha", tags=("old",), title="Before")
    new = replace(of, version=2, title="After", tags=("new",), metadata={"x": 1}, project_id=PROJECT_B)
    store.replace([replacement(new, "alpha")])
    assert [c.document for c in ask(store, "alpha")] == [new]
    assert ask(store, "alpha", filter=Filter(tags=("old",))) == []
    assert len(ask(store, "alpha", filter=Filter(tags=("new",), project_id=PROJECT_B))) == 1


def test_a_new_context_is_a_new_chunk(store: VectorStore) -> None:
    """Title and heading are embedded and searched with the text."""
    of = document()
    store.replace([replacement(of, "alpha", context="Ovens")])
    assert contents(by_words(store, "ovens")) == ["alpha"]
    assert store.replace([replacement(of, "alpha", context="Kilns")])[0].written == 1
    assert by_words(store, "ovens") == []
    assert contents(by_words(store, "kilns")) == ["alpha"]


def test_a_document_shrinks_and_grows(store: VectorStore) -> None:
    of = put(store, "alpha", "beta", "gamma")
    shrunk = store.replace([replacement(replace(of, version=2), "alpha")])
    assert shrunk == [Replaced(written=0, kept=1, removed=2)]
    assert all_of(store, of) == [(0, "alpha")]
    assert by_words(store, "gamma") == []
    grown = store.replace([replacement(replace(of, version=3), "alpha", "delta", "kestrel", "falcon")])
    assert grown == [Replaced(written=3, kept=1, removed=0)]
    assert len(all_of(store, of)) == 4


def test_chunks_change_places(store: VectorStore) -> None:
    of = put(store, "alpha", "beta", "gamma")
    store.replace([replacement(replace(of, version=2), "gamma", "beta", "alpha")])
    assert all_of(store, of) == [(0, "gamma"), (1, "beta"), (2, "alpha")]
    found = by_words(store, "gamma")
    assert [(c.chunk.ord, c.chunk.content) for c in found] == [(0, "gamma")]


def test_repeated_chunks_of_one_document_all_stay(store: VectorStore) -> None:
    of = put(store, "alpha", "alpha", "alpha")
    assert all_of(store, of) == [(0, "alpha"), (1, "alpha"), (2, "alpha")]
    store.replace([replacement(replace(of, version=2), "alpha", "alpha")])
    assert all_of(store, of) == [(0, "alpha"), (1, "alpha")]


def test_no_chunks_remove_the_document(store: VectorStore) -> None:
    of, other = put(store, "alpha", "beta"), put(store, "gamma")
    assert store.replace([replacement(replace(of, version=2))]) == [Replaced(written=0, kept=0, removed=2)]
    assert store.stats() == StoreStats(documents=1, chunks=1)
    assert all_of(store, of) == []
    assert all_of(store, other) == [(0, "gamma")]
    assert store.replace([replacement(document())]) == [Replaced(written=0, kept=0, removed=0)]


def test_delete_counts_chunks_and_is_repeatable(store: VectorStore) -> None:
    first, second, third = put(store, "alpha", "beta"), put(store, "gamma"), put(store, "delta")
    assert store.delete([first.id, second.id, uuid4()]) == 3
    assert store.delete([first.id]) == 0
    assert store.stats() == StoreStats(documents=1, chunks=1)
    assert contents(ask(store, "alpha gamma delta")) == ["delta"]
    assert by_words(store, "alpha") == []
    assert all_of(store, third) == [(0, "delta")]


def test_deleting_one_id_twice_counts_it_once(store: VectorStore) -> None:
    of = put(store, "alpha", "beta")
    assert store.delete([of.id, of.id]) == 2


def test_a_deleted_document_can_come_back(store: VectorStore) -> None:
    of = put(store, "alpha")
    store.delete([of.id])
    assert store.replace([replacement(of, "alpha")]) == [Replaced(written=1, kept=0, removed=0)]


def test_documents_with_the_same_text_do_not_touch_each_other(store: VectorStore) -> None:
    first, second = put(store, "alpha", "beta"), put(store, "alpha", "beta")
    store.replace([replacement(replace(first, version=2), "alpha")])
    assert all_of(store, first) == [(0, "alpha")]
    assert all_of(store, second) == [(0, "alpha"), (1, "beta")]
    store.delete([first.id])
    assert all_of(store, second) == [(0, "alpha"), (1, "beta")]


def test_an_older_version_that_comes_late_is_ignored(store: VectorStore) -> None:
    of = put(store, "newest", version=5, title="Newest")
    late = replacement(replace(of, version=4, title="Late"), "stale", "stale too")
    assert store.replace([late]) == [Replaced(written=0, kept=0, removed=0)]
    assert store.replace([replacement(replace(of, version=3))]) == [Replaced(written=0, kept=0, removed=0)]
    assert all_of(store, of) == [(0, "newest")]
    assert ask(store, "newest")[0].document.title == "Newest"
    assert by_words(store, "stale") == []


def test_the_same_version_again_is_taken(store: VectorStore) -> None:
    """A message that arrives twice, or a chunker that changed without the document."""
    of = put(store, "alpha", version=5)
    assert store.replace([replacement(of, "beta")])[0].written == 1
    assert all_of(store, of) == [(0, "beta")]


def test_in_one_batch_a_stale_document_does_not_stop_the_others(store: VectorStore) -> None:
    of = put(store, "newest", version=5)
    batch = [replacement(replace(of, version=1), "stale"), replacement(document(), "kestrel")]
    assert [done.written for done in store.replace(batch)] == [0, 1]
    assert contents(by_words(store, "kestrel")) == ["kestrel"]


def broken(of: Replacement, change: Callable[[Vectors], Vectors]) -> Replacement:
    return replace(of, vectors=change(of.vectors.copy()))


def set_to(value: float) -> Callable[[Vectors], Vectors]:
    def change(vectors: Vectors) -> Vectors:
        vectors[-1, 17] = value
        return vectors

    return change


@pytest.mark.req("003-026")
@pytest.mark.parametrize(
    "change",
    [
        lambda v: v[:, :-1],
        lambda v: np.concatenate([v, v[:, :1]], axis=1),
        lambda v: v[:-1],
        lambda v: np.concatenate([v, v[:1]]),
        lambda v: v[0],
        set_to(float("nan")),
        set_to(float("inf")),
        set_to(float("-inf")),
    ],
    ids=["narrow", "wide", "one-less", "one-more", "flat", "nan", "inf", "minus-inf"],
)
def test_bad_vectors_are_refused_and_nothing_is_written(
    store: VectorStore, change: Callable[[Vectors], Vectors]
) -> None:
    of = put(store, "alpha")
    bad = broken(replacement(replace(of, version=2), "beta", "gamma"), change)
    with pytest.raises(StoreRejected) as caught:
        store.replace([replacement(document(), "delta"), bad])
    assert not caught.value.transient
    assert "beta" not in str(caught.value)
    assert store.stats() == StoreStats(documents=1, chunks=1)
    assert all_of(store, of) == [(0, "alpha")]


@pytest.mark.parametrize(
    "vector", [np.ones(383, np.float32), np.ones((1, 384), np.float32), np.full(384, np.nan, np.float32)]
)
def test_a_bad_query_vector_is_refused(store: VectorStore, vector: Vectors) -> None:
    put(store, "alpha")
    with pytest.raises(StoreRejected):
        ask(store, "alpha", vector=vector)


# --- both arms ---


@pytest.mark.req("003-017", "003-023")
def test_similarity_is_the_cosine_and_comes_best_first(store: VectorStore) -> None:
    texts = ["kestrel falcon eagle", "kestrel falcon", "kestrel otter", "badger otter"]
    put(store, *texts)
    found = ask(store, "kestrel falcon", keywords=False)
    assert contents(found)[:3] == ["kestrel falcon", "kestrel falcon eagle", "kestrel otter"]
    query = EMBEDDER.embed_query("kestrel falcon")
    for candidate in found:
        cosine = float(EMBEDDER.embed_query(candidate.chunk.content) @ query)
        assert candidate.similarity == pytest.approx(cosine, abs=NEAR)
        assert candidate.bm25 is None
    similarities = [c.similarity for c in found if c.similarity is not None]
    assert similarities == sorted(similarities, reverse=True)


def test_the_keyword_arm_alone_has_no_similarity_and_finds_matches_only(store: VectorStore) -> None:
    put(store, "kestrel falcon", "otter", "kestrel badger badger badger badger badger badger")
    found = by_words(store, "kestrel")
    assert sorted(contents(found)) == ["kestrel badger badger badger badger badger badger", "kestrel falcon"]
    assert all(c.similarity is None and c.bm25 is not None and c.bm25 > 0 for c in found)
    scores = {c.chunk.content: c.bm25 or 0.0 for c in found}
    assert scores["kestrel falcon"] > scores["kestrel badger badger badger badger badger badger"]


def test_no_arm_finds_nothing(store: VectorStore) -> None:
    put(store, "alpha")
    assert ask(store, "alpha", vector=None, keywords=False) == []


def test_both_arms_are_joined_and_every_chunk_is_scored_in_both(store: VectorStore) -> None:
    """The vector says otter, the words say kestrel; with one candidate per arm both must come, fully scored."""
    put(store, "otter", "kestrel", "badger", "heron")
    found = ask(store, "kestrel", vector=EMBEDDER.embed_query("otter"), candidates=1)
    assert contents(found) == ["otter", "kestrel"]
    otter, kestrel = found
    assert otter.similarity == pytest.approx(1.0, abs=NEAR)
    assert otter.bm25 == 0.0
    cosine = float(EMBEDDER.embed_query("kestrel") @ EMBEDDER.embed_query("otter"))
    assert kestrel.similarity == pytest.approx(cosine, abs=NEAR)
    assert kestrel.bm25 is not None
    assert kestrel.bm25 > 0


def test_a_chunk_found_by_both_arms_comes_once(store: VectorStore) -> None:
    put(store, "kestrel falcon", "otter")
    places = [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel falcon")]
    assert len(places) == len(set(places)) == 2


def test_candidates_are_limited_per_arm(store: VectorStore) -> None:
    for n in range(12):
        put(store, f"kestrel number{n}", f"kestrel item{n}")
    assert len(ask(store, "kestrel", candidates=5, keywords=False)) == 5
    assert len(by_words(store, "kestrel", candidates=5)) == 5
    assert 5 <= len(ask(store, "kestrel", candidates=5)) <= 10
    assert len(ask(store, "kestrel", candidates=100)) == 24


def test_limits_keep_the_best(store: VectorStore) -> None:
    for n in range(20):
        put(store, f"kestrel filler{n} padding{n} something{n}")
    put(store, "kestrel falcon")
    assert contents(ask(store, "kestrel falcon", candidates=1)) == ["kestrel falcon"]
    assert contents(by_words(store, "kestrel falcon", candidates=1)) == ["kestrel falcon"]


@pytest.mark.req("001-093")
@pytest.mark.parametrize(
    "question",
    [
        "HADOOP-123",
        "hadoop-123",
        "HADOOP",
        "123",
        "why does HADOOP-123 fail?",
        "NameNodeResource",
        "a/fsimage.v2",
    ],
)
def test_keywords_find_identifiers_whole_and_in_parts(store: VectorStore, question: str) -> None:
    put(
        store, "Duplicate of HADOOP-123: NameNodeResource reads a/fsimage.v2", "otters and badgers", "kiln 77"
    )
    found = by_words(store, question)
    assert contents(found)[:1] == ["Duplicate of HADOOP-123: NameNodeResource reads a/fsimage.v2"]


def test_the_exact_identifier_beats_one_that_shares_a_part(store: VectorStore) -> None:
    put(
        store,
        "ticket HADOOP-999 about kilns",
        "ticket HADOOP-123 about kilns",
        "ticket SPARK-123 about kilns",
    )
    found = by_words(store, "HADOOP-123")
    best = max(found, key=lambda c: c.bm25 or 0.0)
    assert best.chunk.content == "ticket HADOOP-123 about kilns"


def test_one_matching_word_is_enough(store: VectorStore) -> None:
    put(store, "kestrel nests", "otter swims", "quartz glows")
    assert sorted(contents(by_words(store, "kestrel quartz unicorn"))) == ["kestrel nests", "quartz glows"]


def test_rare_words_weigh_more_than_common_ones(store: VectorStore) -> None:
    put(store, *[f"pipeline number{n} runs" for n in range(20)], "kestrel rests")
    found = by_words(store, "pipeline kestrel")
    assert max(found, key=lambda c: c.bm25 or 0.0).chunk.content == "kestrel rests"


def test_a_word_that_the_question_repeats_counts_more(store: VectorStore) -> None:
    put(store, "kestrel one", "otter two")
    once = {c.chunk.content: c.bm25 or 0.0 for c in by_words(store, "kestrel otter")}
    more = {c.chunk.content: c.bm25 or 0.0 for c in by_words(store, "kestrel otter otter otter")}
    assert once["kestrel one"] == pytest.approx(once["otter two"], rel=0.01)
    assert more["otter two"] > 2 * more["kestrel one"]


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"word{n} HADOOP-{n} src/main/File{n}.java" for n in range(300)),
        "kestrel " * 1250,
        "& | ! ( ) : * < > ' \" \\ -- ; % _ kestrel " * 250,
        "kestrel " + "k" * 9_992,
        "日本語の文書 ünïcödé kestrel " * 400,
    ],
    ids=["identifiers", "repeated", "operators", "one-word", "unicode"],
)
def test_questions_of_ten_thousand_characters_are_answered(store: VectorStore, text: str) -> None:
    put(store, "kestrel word17 falls", "otter")
    found = ask(store, text[:10_000])
    assert max(found, key=lambda c: c.bm25 or 0.0).chunk.content == "kestrel word17 falls"
    assert max(c.bm25 or 0.0 for c in found) > 0


@pytest.mark.parametrize("text", ["", "   ", "?!", "& | !", "\N{PARTY POPPER}"])
def test_questions_without_words_leave_the_vector_arm(store: VectorStore, text: str) -> None:
    put(store, "alpha", "beta")
    assert by_words(store, text) == []
    assert {c.bm25 for c in ask(store, text)} == {0.0}
    assert len(ask(store, text)) == 2


# --- filters ---

DAY = [datetime(2025, 1, day, tzinfo=UTC) for day in range(1, 10)]


@pytest.fixture
def library(store: VectorStore) -> VectorStore:
    """Four documents that differ in everything a filter can ask for."""
    put(store, "kestrel one", title="one", source_type=SourceType.PBI, kind=Kind.WORK, tags=("api", "urgent"),
        metadata={"team": "red", "points": 3, "done": True, "area": {"path": "x"}},
        project_id=PROJECT_A, created_at=DAY[0], updated_at=DAY[5])  # fmt: skip
    put(store, "kestrel two", title="two", source_type=SourceType.CONFLUENCE, kind=Kind.DECISION, tags=("api",),
        metadata={"team": "blue", "points": 1, "done": False}, project_id=PROJECT_A, created_at=DAY[2])  # fmt: skip
    put(store, "kestrel three", title="three", source_type=SourceType.TEXT, kind=Kind.REFERENCE,
        metadata={"team": None, "points": "3"}, project_id=PROJECT_B,
        created_at=DAY[7], updated_at=DAY[7])  # fmt: skip
    put(
        store, "kestrel four", title="four", source_type=SourceType.TEXT, kind=Kind.DECISION, tags=("urgent",)
    )
    return store


FILTERS: list[tuple[Filter, set[str]]] = [
    (Filter(), {"one", "two", "three", "four"}),
    (Filter(source_types=(SourceType.PBI,)), {"one"}),
    (Filter(source_types=(SourceType.TEXT, SourceType.CONFLUENCE)), {"two", "three", "four"}),
    (Filter(source_types=(SourceType.AZURE_DEVOPS,)), set()),
    (Filter(kinds=(Kind.DECISION,)), {"two", "four"}),
    (Filter(kinds=(Kind.WORK, Kind.REFERENCE)), {"one", "three"}),
    (Filter(tags=("api",)), {"one", "two"}),
    (Filter(tags=("api", "urgent")), {"one"}),
    (Filter(tags=("ap",)), set()),
    (Filter(since=DAY[5]), {"one", "three"}),
    (Filter(since=DAY[1]), {"one", "two", "three"}),
    (Filter(until=DAY[5]), {"two"}),
    (Filter(until=DAY[7]), {"one", "two"}),
    (Filter(since=DAY[2], until=DAY[6]), {"one", "two"}),
    (Filter(metadata={"team": "red"}), {"one"}),
    (Filter(metadata={"team": None}), {"three"}),
    (Filter(metadata={"points": 3}), {"one"}),
    (Filter(metadata={"points": "3"}), {"three"}),
    (Filter(metadata={"points": 1}), {"two"}),
    (Filter(metadata={"done": True}), {"one"}),
    (Filter(metadata={"done": 1}), set()),
    (Filter(metadata={"area": {"path": "x"}}), {"one"}),
    (Filter(metadata={"team": "red", "points": 1}), set()),
    (Filter(metadata={"absent": "x"}), set()),
    (Filter(project_id=PROJECT_A), {"one", "two"}),
    (Filter(project_id=UUID(int=0xC)), set()),
    (Filter(project_id=PROJECT_A, kinds=(Kind.DECISION,)), {"two"}),
    (
        Filter(tags=("urgent",), metadata={"team": "red"}, since=DAY[0], source_types=(SourceType.PBI,)),
        {"one"},
    ),
    (Filter(tags=("urgent",), project_id=PROJECT_B), set()),
]


@pytest.mark.req("003-017", "001-032")
@pytest.mark.parametrize(("condition", "titles"), FILTERS)
def test_filters_hold_in_both_arms(library: VectorStore, condition: Filter, titles: set[str]) -> None:
    vector = ask(library, "kestrel", keywords=False, filter=condition)
    assert {c.document.title for c in vector} == titles
    assert {c.document.title for c in by_words(library, "kestrel", filter=condition)} == titles
    assert {c.document.title for c in ask(library, "kestrel", filter=condition)} == titles


def test_excluded_documents_do_not_come(library: VectorStore) -> None:
    own = next(c.document for c in ask(library, "kestrel one") if c.document.title == "one")
    rest = ask(library, "kestrel one", filter=Filter(exclude=(own.id, uuid4())))
    assert {c.document.title for c in rest} == {"two", "three", "four"}
    assert own.id not in {
        c.document.id for c in by_words(library, "kestrel", filter=Filter(exclude=(own.id,)))
    }


def test_filters_are_applied_before_the_best_are_taken(store: VectorStore) -> None:
    """Filtering afterwards would leave nothing here: the thirty best all belong to somebody else."""
    for _ in range(30):
        put(store, "kestrel falcon", project_id=PROJECT_A)
    put(store, "kestrel otter badger", project_id=PROJECT_B)
    condition = Filter(project_id=PROJECT_B)
    for found in (
        ask(store, "kestrel falcon", keywords=False, candidates=5, filter=condition),
        by_words(store, "kestrel falcon", candidates=5, filter=condition),
    ):
        assert contents(found) == ["kestrel otter badger"]


def test_filtered_documents_stay_filtered_when_the_other_arm_finds_them(store: VectorStore) -> None:
    put(store, "kestrel", kind=Kind.WORK)
    put(store, "otter", kind=Kind.DECISION)
    found = ask(store, "kestrel", vector=EMBEDDER.embed_query("otter"), filter=Filter(kinds=(Kind.DECISION,)))
    assert contents(found) == ["otter"]


def test_the_same_question_gives_the_same_order(store: VectorStore) -> None:
    for _ in range(6):
        put(store, "kestrel falcon", "kestrel falcon")
    first = [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel", candidates=4)]
    assert [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel", candidates=4)] == first
