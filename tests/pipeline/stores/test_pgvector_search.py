"""What a search in PostgreSQL finds: filters only the ledger can answer, and scores only this store has."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import SourceType
from pipeline.search.chunk_store import open_index
from pipeline.search.records import Filter
from tests.pipeline.stores.corpus import DIMENSIONS, Corpus


@pytest.fixture
def three_documents(shared_database: Database) -> Corpus:
    corpus = Corpus(shared_database)
    corpus.put(
        "kestrel one", title="one", source="wiki", metadata={"team": "red", "n": 3, "labels": ["a", "b"]}
    )
    corpus.put("kestrel two", title="two", source="tracker", metadata={"team": "blue", "n": "3", "ok": True})
    corpus.put("kestrel three", title="three", source="tracker", metadata={"n": 4, "none": None})
    corpus.count()
    return corpus


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("condition", "titles"),
    [
        (Filter(), {"one", "two", "three"}),
        (Filter(sources=("wiki",)), {"one"}),
        (Filter(sources=("wiki", "tracker")), {"one", "two", "three"}),
        (Filter(sources=("nobody",)), set()),
        (Filter(metadata=(("team", "red"),)), {"one"}),
        (Filter(metadata=(("n", "3"),)), {"one", "two"}),
        (Filter(metadata=(("n", "3"), ("team", "blue"))), {"two"}),
        (Filter(metadata=(("ok", "true"),)), {"two"}),
        (Filter(metadata=(("labels", "b"),)), {"one"}),
        (Filter(metadata=(("labels", "c"),)), set()),
        (Filter(metadata=(("none", "null"),)), set()),
        (Filter(metadata=(("absent", ""),)), set()),
        (Filter(metadata=(("team", "re"),)), set()),
        (Filter(metadata=(("n", "3"), ("n", 3))), {"one", "two"}),
        (Filter(metadata=(("n", 3), ("n", 4))), set()),
        (Filter(metadata=(("labels", "a"), ("labels", "b"))), {"one"}),
        (Filter(metadata=(("labels", ["a", "b"]),)), {"one"}),
        (Filter(metadata=(("labels", ["a"]),)), set()),
        (Filter(metadata=(("n", 3.0),)), {"one"}),
    ],
)
def test_filters_of_the_ledger_hold_in_both_arms(
    three_documents: Corpus, condition: Filter, titles: set[str]
) -> None:
    vector = three_documents.embedder.embed_query("kestrel")
    assert {c.document.title for c in three_documents.ask("kestrel", filter=condition)} == titles
    found = three_documents.ask("kestrel", vector=vector, keywords=False, filter=condition)
    assert {c.document.title for c in found} == titles


def test_a_search_may_be_about_certain_documents_only(three_documents: Corpus) -> None:
    one = next(c.document.id for c in three_documents.ask("kestrel") if c.document.title == "one")
    assert [c.document.id for c in three_documents.ask("kestrel", filter=Filter(only=(one,)))] == [one]
    assert three_documents.ask("kestrel", filter=Filter(only=(uuid4(),))) == []


@pytest.mark.parametrize("column", ["hidden", "deleted"])
def test_what_is_hidden_or_deleted_is_not_found(three_documents: Corpus, column: str) -> None:
    three_documents.documents.set({"title": "one"}, **{column: True})
    vector = three_documents.embedder.embed_query("kestrel one")
    assert {c.document.title for c in three_documents.ask("kestrel one", vector=vector)} == {"two", "three"}


def test_the_keyword_arm_fills_its_list_with_what_is_to_be_seen(shared_database: Database) -> None:
    """Chunks are scored before their documents are looked at."""
    corpus = Corpus(shared_database)
    for n in range(12):
        corpus.put("kestrel " * (12 - n) + "falcon " * n, title=f"{n:02}")
    corpus.count()
    for n in range(5):
        corpus.documents.set({"title": f"{n:02}"}, hidden=True)
    corpus.documents.set({"title": "06"}, deleted=True)
    found = corpus.ask("kestrel", candidates=4)
    assert {c.document.title for c in found} == {"05", "07", "08", "09"}


def test_filters_of_chunks_alone_hold_in_the_keyword_arm(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    ids = [corpus.put("kestrel " * (9 - n), title=str(n)) for n in range(8)]
    corpus.count()
    found = corpus.ask(
        "kestrel",
        candidates=2,
        filter=Filter(exclude=(ids[1],), only=tuple(ids[1:6:2])),
    )
    assert {c.document.title for c in found} == {"3", "5"}


def test_times_filter_on_the_last_change_or_the_creation(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    june, july = datetime(2025, 6, 1, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=UTC)
    corpus.put("kestrel", title="changed", created_at=june, updated_at=july)
    corpus.put("kestrel", title="created", created_at=june, source_type=SourceType.PBI)
    corpus.put("kestrel", title="timeless")
    corpus.count()
    assert {c.document.title for c in corpus.ask("kestrel", filter=Filter(since=july))} == {"changed"}
    assert {c.document.title for c in corpus.ask("kestrel", filter=Filter(until=july))} == {"created"}


def test_the_whole_document_counts_by_the_centroid_of_this_very_index(three_documents: Corpus) -> None:
    vector = three_documents.embedder.embed_query("kestrel")
    assert {c.centroid for c in three_documents.ask("kestrel", vector=vector)} == {None}
    halves = str([1.0] * DIMENSIONS)
    with three_documents.database.tenant(three_documents.tenant) as connection:
        other = open_index(
            connection, provider="x", model="other", dimensions=DIMENSIONS, chunker="structure", pipeline="p"
        )
    for title, index, of in (
        ("one", three_documents.index.id, halves),
        ("two", other.id, halves),
        ("three", three_documents.index.id, None),
    ):
        key = {"index_id": index, "document_id": three_documents.documents.one(title=title)["id"]}
        three_documents.indexed.add(tenant_id=three_documents.tenant, version=1, centroid=of, **key)
    found = {c.document.title: c.centroid for c in three_documents.ask("kestrel", vector=vector)}
    ones = np.ones(DIMENSIONS) / np.sqrt(DIMENSIONS)
    assert found["one"] == pytest.approx(float(ones @ vector), abs=0.005)
    assert found["two"] is None
    assert found["three"] is None
    assert {c.centroid for c in three_documents.ask("kestrel")} == {None}


def test_a_vector_of_zeros_is_far_from_everything(three_documents: Corpus) -> None:
    three_documents.put("kestrel of nothing", title="zeros", vectors=np.zeros((1, DIMENSIONS), np.float32))
    found = three_documents.ask("kestrel", vector=three_documents.embedder.embed_query("kestrel"))
    assert {c.document.title: c.similarity for c in found}["zeros"] == 0.0
    assert len(found) == 4
