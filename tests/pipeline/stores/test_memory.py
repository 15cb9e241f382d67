"""The store in memory: its own promises beside the contract: formula, ties, copies, threads."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import StoreRejected
from pipeline.search.chunks import Filter, Replacement, StoredDocument, StoreQuery, StoreStats
from pipeline.search.memory import InMemoryStore, matches

EMBEDDER = HashingEmbedder(16)


def document(number: int, **changes: Any) -> StoredDocument:
    given: dict[str, Any] = {"version": 1, "title": "T", "source_type": SourceType.TEXT, "kind": Kind.WORK}
    return StoredDocument(id=UUID(int=number), **{**given, **changes})


def replacement(of: StoredDocument, *contents: str) -> Replacement:
    chunks = [Chunk(ord=n, content=content, context=of.title) for n, content in enumerate(contents)]
    vectors = EMBEDDER.embed_documents([c.embedding_text for c in chunks])
    return Replacement(document=of, chunks=chunks, vectors=vectors)


def query(text: str, **changes: Any) -> StoreQuery:
    return StoreQuery(text=text, **{"vector": EMBEDDER.embed_query(text), **changes})


def seen(store: InMemoryStore) -> list[Any]:
    """Everything a search can show."""
    return store.candidates(query("kestrel otter", candidates=1000))


def cosine(left: Vectors, right: Vectors) -> float:
    """The formula in plain Python: dot / (|a| |b|), 0.0 when a norm is zero."""
    dot = sum(float(a) * float(b) for a, b in zip(left, right, strict=True))
    norms = math.sqrt(sum(float(a) ** 2 for a in left)) * math.sqrt(sum(float(b) ** 2 for b in right))
    return dot / norms if norms else 0.0


def test_similarity_is_the_cosine_of_vectors_of_any_length() -> None:
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(6, 16)).astype(np.float32) * np.float32(37)
    vectors[5] = 0.0
    chunks = [Chunk(ord=n, content=f"c{n}") for n in range(6)]
    store = InMemoryStore(16)
    store.replace([Replacement(document=document(1), chunks=chunks, vectors=vectors)])
    asked = rng.normal(size=16).astype(np.float32)
    for one in store.candidates(query("x", vector=asked)):
        assert one.similarity == pytest.approx(cosine(vectors[one.chunk.ord], asked), abs=1e-5)
    zero = np.zeros(16, dtype=np.float32)
    assert {c.similarity for c in store.candidates(query("x", vector=zero))} == {0.0}


def test_equal_scores_go_by_document_and_place() -> None:
    store = InMemoryStore(16)
    for number in (9, 3, 6):
        store.replace([replacement(document(number), "same", "same")])
    found = [(c.document.id.int, c.chunk.ord) for c in store.candidates(query("same", candidates=4))]
    assert found == [(3, 0), (3, 1), (6, 0), (6, 1)]
    words = store.candidates(query("same", vector=None, candidates=3))
    assert [(c.document.id.int, c.chunk.ord) for c in words] == [(3, 0), (3, 1), (6, 0)]


def test_without_vectors_the_best_words_come_first() -> None:
    store = InMemoryStore(16)
    store.replace([replacement(document(1), "otter badger", "otter otter", "badger")])
    assert [c.chunk.content for c in store.candidates(query("otter", vector=None))] == [
        "otter otter",
        "otter badger",
    ]


def test_the_parts_of_camel_case_are_found() -> None:
    store = InMemoryStore(16)
    store.replace([replacement(document(1), "The NameNodeResource fails")])
    assert len(store.candidates(query("resource", vector=None))) == 1


def test_a_search_after_a_change_sees_the_change() -> None:
    store = InMemoryStore(16)
    for n in range(5):
        store.replace([replacement(document(n), f"text{n}")])
        assert len(store.candidates(query("anything"))) == n + 1
    store.delete([UUID(int=0)])
    assert len(store.candidates(query("anything"))) == 4


def test_the_caller_may_change_what_it_gave() -> None:
    """Its arrays and mappings are copied: a database would not change either."""
    store, metadata = InMemoryStore(16), {"team": "red"}
    given = replacement(document(1, metadata=metadata), "otter")
    store.replace([given])
    given.vectors[:] = 7.0
    metadata["team"] = "blue"
    found = store.candidates(query("T otter", filter=Filter(metadata={"team": "red"})))
    assert found[0].similarity == pytest.approx(1.0, abs=1e-5)


def test_two_chunks_with_one_ordinal_are_refused() -> None:
    chunks = [Chunk(ord=0, content="a"), Chunk(ord=0, content="b")]
    vectors = EMBEDDER.embed_documents(["a", "b"])
    store = InMemoryStore(16)
    with pytest.raises(StoreRejected, match="same ordinal"):
        store.replace([Replacement(document=document(1), chunks=chunks, vectors=vectors)])
    assert store.stats().chunks == 0


def test_no_or_fewer_candidates() -> None:
    store = InMemoryStore(16)
    store.replace([replacement(document(1), "otter")])
    assert store.candidates(query("otter", candidates=0)) == []
    assert store.candidates(query("otter", candidates=-1)) == []


@pytest.mark.parametrize(
    ("stored", "asked", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (True, True, True),
        (0, False, False),
        ("1", 1, False),
        (None, None, True),
        (None, False, False),
        ([1, "x"], [1, "x"], True),
        ([1, "x"], ("x", 1), False),
        ([1], [True], False),
        ([1], [1, 2], False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, "a", False),
    ],
)
def test_metadata_is_compared_as_json(stored: Any, asked: Any, same: bool) -> None:
    assert matches(document(1, metadata={"key": stored}), Filter(metadata={"key": asked})) is same


def test_threads_may_write_and_search_at_once() -> None:
    store = InMemoryStore(16)

    def work(number: int) -> int:
        for version in range(20):
            of = document(number, version=version)
            store.replace([replacement(of, *[f"otter {n}" for n in range(version % 5 + 1)])])
            store.candidates(query("otter"))
        return store.stats().chunks

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert store.stats() == StoreStats(documents=8, chunks=40)
    assert len(seen(store)) == 40


def test_any_history_ends_like_the_last_state_alone() -> None:
    """Random replaces and deletes leave nothing behind: the end is that of a fresh store."""
    rng, store, last = random.Random(21), InMemoryStore(16), dict[int, tuple[str, ...]]()
    for version in range(300):
        number = rng.randrange(6)
        if rng.random() < 0.2:
            store.delete([UUID(int=number), uuid4()])
            last.pop(number, None)
            continue
        contents = tuple(
            rng.choice(["otter", "kestrel", "badger otter", "quartz"]) for _ in range(rng.randrange(5))
        )
        store.replace([replacement(document(number, version=version), *contents)])
        last[number] = contents
    fresh = InMemoryStore(16)
    fresh.replace([replacement(document(number), *contents) for number, contents in last.items()])

    def found(of: InMemoryStore) -> list[Any]:
        return [(c.document.id, c.chunk, c.similarity, c.bm25) for c in seen(of)]

    assert found(store) == found(fresh)
    assert store.stats() == fresh.stats()
