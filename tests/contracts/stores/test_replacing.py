"""What a store must do with documents that come, change and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline.documents import Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.errors import StoreRejected
from pipeline.search.records import Filter, Replaced, Replacement
from tests.contracts.stores.stock import (
    EMBEDDER,
    NEAR,
    PROJECT_A,
    PROJECT_B,
    InLedger,
    all_of,
    ask,
    by_words,
    contents,
    document,
    put,
    replacement,
)


def test_an_empty_store_answers(store: InLedger) -> None:
    assert store.counts() == (0, 0)
    assert ask(store, "anything") == []
    assert by_words(store, "anything") == []
    assert store.replace([]) == []


@pytest.mark.req("003-002", "001-069", "001-014")
def test_what_is_stored_comes_back_whole(store: InLedger) -> None:
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


def test_counts_are_per_document_and_in_order(store: InLedger) -> None:
    batch = [replacement(document(), "alpha", "beta"), replacement(document(), "gamma")]
    assert store.replace(batch) == [
        Replaced(written=2, unchanged=0, removed=0),
        Replaced(written=1, unchanged=0, removed=0),
    ]
    assert store.counts() == (2, 3)


def test_the_same_again_writes_nothing(store: InLedger) -> None:
    of = put(store, "alpha", "beta")
    assert store.replace([replacement(of, "alpha", "beta")]) == [Replaced(written=0, unchanged=2, removed=0)]
    assert store.counts() == (1, 2)


@pytest.mark.req("002-011")
def test_only_changed_chunks_are_written(store: InLedger) -> None:
    of = put(store, "alpha", "beta", "gamma")
    done = store.replace([replacement(replace(of, version=2), "alpha", "kestrel", "gamma")])[0]
    assert (done.written, done.unchanged) == (1, 2)
    assert all_of(store, of) == [(0, "alpha"), (1, "kestrel"), (2, "gamma")]
    assert contents(by_words(store, "kestrel")) == ["kestrel"]
    assert by_words(store, "beta") == []


def test_kept_chunks_keep_their_vector(store: InLedger) -> None:
    of = put(store, "alpha", "beta")
    again = replacement(replace(of, version=2), "alpha", "kestrel")
    store.replace([replace(again, vectors=EMBEDDER.embed_documents(["something else", "kestrel"]))])
    found = {c.chunk.content: c.similarity for c in ask(store, "alpha")}
    assert found["alpha"] == pytest.approx(1.0, abs=NEAR)


def test_a_kept_chunk_shows_the_documents_new_data(store: InLedger) -> None:
    of = put(store, "alpha", tags=("old",), title="Before")
    new = replace(of, version=2, title="After", tags=("new",), metadata={"x": 1}, project_id=PROJECT_B)
    store.replace([replacement(new, "alpha")])
    assert [c.document for c in ask(store, "alpha")] == [new]
    assert ask(store, "alpha", filter=Filter(tags=("old",))) == []
    assert len(ask(store, "alpha", filter=Filter(tags=("new",), projects=(PROJECT_B,)))) == 1


def test_a_new_context_is_a_new_chunk(store: InLedger) -> None:
    """Title and heading are embedded and searched with the text."""
    of = document()
    store.replace([replacement(of, "alpha", context="Ovens")])
    assert contents(by_words(store, "ovens")) == ["alpha"]
    assert store.replace([replacement(of, "alpha", context="Kilns")])[0].written == 1
    assert by_words(store, "ovens") == []
    assert contents(by_words(store, "kilns")) == ["alpha"]


def test_a_document_shrinks_and_grows(store: InLedger) -> None:
    of = put(store, "alpha", "beta", "gamma")
    shrunk = store.replace([replacement(replace(of, version=2), "alpha")])
    assert shrunk == [Replaced(written=0, unchanged=1, removed=2)]
    assert all_of(store, of) == [(0, "alpha")]
    assert by_words(store, "gamma") == []
    grown = store.replace([replacement(replace(of, version=3), "alpha", "delta", "kestrel", "falcon")])
    assert grown == [Replaced(written=3, unchanged=1, removed=0)]
    assert len(all_of(store, of)) == 4


def test_chunks_change_places(store: InLedger) -> None:
    of = put(store, "alpha", "beta", "gamma")
    store.replace([replacement(replace(of, version=2), "gamma", "beta", "alpha")])
    assert all_of(store, of) == [(0, "gamma"), (1, "beta"), (2, "alpha")]
    found = by_words(store, "gamma")
    assert [(c.chunk.ord, c.chunk.content) for c in found] == [(0, "gamma")]


def test_repeated_chunks_of_one_document_all_stay(store: InLedger) -> None:
    of = put(store, "alpha", "alpha", "alpha")
    assert all_of(store, of) == [(0, "alpha"), (1, "alpha"), (2, "alpha")]
    store.replace([replacement(replace(of, version=2), "alpha", "alpha")])
    assert all_of(store, of) == [(0, "alpha"), (1, "alpha")]


def test_no_chunks_remove_the_document(store: InLedger) -> None:
    of, other = put(store, "alpha", "beta"), put(store, "gamma")
    assert store.replace([replacement(replace(of, version=2))]) == [
        Replaced(written=0, unchanged=0, removed=2)
    ]
    assert store.counts() == (1, 1)
    assert all_of(store, of) == []
    assert all_of(store, other) == [(0, "gamma")]
    assert store.replace([replacement(document())]) == [Replaced(written=0, unchanged=0, removed=0)]


def test_documents_with_the_same_text_do_not_touch_each_other(store: InLedger) -> None:
    first, second = put(store, "alpha", "beta"), put(store, "alpha", "beta")
    store.replace([replacement(replace(first, version=2), "alpha")])
    assert all_of(store, first) == [(0, "alpha")]
    assert all_of(store, second) == [(0, "alpha"), (1, "beta")]
    store.replace([replacement(replace(first, version=3))])
    assert all_of(store, second) == [(0, "alpha"), (1, "beta")]


def test_an_older_version_that_comes_late_is_ignored(store: InLedger) -> None:
    of = put(store, "newest", version=5, title="Newest")
    late = replacement(replace(of, version=4, title="Late"), "stale", "stale too")
    assert store.replace([late]) == [Replaced(written=0, unchanged=0, removed=0)]
    assert store.replace([replacement(replace(of, version=3))]) == [
        Replaced(written=0, unchanged=0, removed=0)
    ]
    assert all_of(store, of) == [(0, "newest")]
    assert ask(store, "newest")[0].document.title == "Newest"
    assert by_words(store, "stale") == []


def test_the_same_version_again_is_taken(store: InLedger) -> None:
    """A message that arrives twice, or a chunker that changed without the document."""
    of = put(store, "alpha", version=5)
    assert store.replace([replacement(of, "beta")])[0].written == 1
    assert all_of(store, of) == [(0, "beta")]


def test_in_one_batch_a_stale_document_does_not_stop_the_others(store: InLedger) -> None:
    of = put(store, "newest", version=5)
    batch = [replacement(replace(of, version=1), "stale"), replacement(document(), "kestrel")]
    assert [done.written for done in store.replace(batch)] == [0, 1]
    assert contents(by_words(store, "kestrel")) == ["kestrel"]


def broken(of: Replacement, change: Callable[[Vectors], Vectors]) -> Replacement:
    return replace(of, vectors=change(np.array(of.vectors)))


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
    store: InLedger, change: Callable[[Vectors], Vectors]
) -> None:
    of = put(store, "alpha")
    bad = broken(replacement(replace(of, version=2), "beta", "gamma"), change)
    with pytest.raises(StoreRejected) as caught:
        store.replace([replacement(document(), "delta"), bad])
    assert not caught.value.transient
    assert "beta" not in str(caught.value)
    assert store.counts() == (1, 1)
