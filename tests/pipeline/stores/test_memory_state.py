"""The saved state of the store in memory: there and back, and every kind of damage."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.documents import Chunk, Json, Kind, SourceType
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import StoreRejected
from pipeline.search.chunks import Replacement, StoredDocument, StoreQuery, StoreStats
from pipeline.search.memory import InMemoryStore

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


@pytest.fixture
def filled() -> InMemoryStore:
    store = InMemoryStore(16)
    rich = document(
        1,
        version=3,
        title="Größe",
        source_type=SourceType.PBI,
        source="pbis",
        url="https://x.example/1",
        tags=("a", "b"),
        metadata={"n": 1, "deep": [None, {"x": True}]},
        project_id=UUID(int=99),
        created_at=datetime(2024, 1, 1, tzinfo=UTC),
        updated_at=datetime(2024, 2, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    )
    store.replace(
        [replacement(rich, "kestrel", "falcon \ud800 half"), replacement(document(2), "otter 日本")]
    )
    return store


def seen(store: InMemoryStore) -> list[Any]:
    """Everything a search can show."""
    return store.candidates(query("kestrel otter", candidates=1000))


@pytest.mark.req("003-016", "003-019")
def test_state_goes_through_json_and_back(filled: InMemoryStore) -> None:
    state = json.loads(json.dumps(filled.get_state()))
    copy = InMemoryStore(16)
    copy.restore_state(state)
    assert seen(copy) == seen(filled)
    assert len(seen(copy)) == 3
    assert copy.get_state() == filled.get_state()


def test_restoring_forgets_what_was_there(filled: InMemoryStore) -> None:
    store = InMemoryStore(16)
    store.replace([replacement(document(7), "badger")])
    seen(store)  # builds the matrix that must not survive
    store.restore_state(filled.get_state())
    assert seen(store) == seen(filled)
    assert store.candidates(query("badger", vector=None)) == []


def test_a_restored_store_knows_versions_and_unchanged_chunks(filled: InMemoryStore) -> None:
    copy = InMemoryStore(16)
    copy.restore_state(filled.get_state())
    assert copy.replace([replacement(document(1, version=2), "stale")])[0].written == 0
    assert copy.replace([replacement(document(2, version=2), "otter 日本")])[0].kept == 1


def test_the_state_does_not_change_with_the_store(filled: InMemoryStore) -> None:
    state = filled.get_state()
    before = json.dumps(state)
    filled.delete([UUID(int=1)])
    assert json.dumps(state) == before


@pytest.mark.req("003-019")
def test_a_file_brings_the_store_back(filled: InMemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "stock.state"
    filled.save(path)
    loaded = InMemoryStore.load(path)
    assert loaded.dimensions == 16
    assert seen(loaded) == seen(filled)
    assert [p.name for p in tmp_path.iterdir()] == ["stock.state"]


def test_an_empty_store_survives_too(tmp_path: Path) -> None:
    InMemoryStore(16).save(tmp_path / "empty.npz")
    loaded = InMemoryStore.load(tmp_path / "empty.npz")
    assert (loaded.dimensions, loaded.stats()) == (16, StoreStats(documents=0, chunks=0))
    loaded.restore_state(InMemoryStore(16).get_state())
    assert loaded.replace([replacement(document(1), "otter")])[0].written == 1


def test_saving_again_replaces_the_file(filled: InMemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    filled.save(path)
    filled.delete([UUID(int=1)])
    filled.save(path)
    assert InMemoryStore.load(path).stats() == StoreStats(documents=1, chunks=1)


def test_the_file_holds_no_pickle(filled: InMemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    filled.save(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert {name: str(arrays[name].dtype) for name in arrays} == {"head": "uint8", "vectors": "float32"}


def drop(key: str) -> Callable[[Json], object]:
    return lambda state: state.pop(key)


def put(key: str, value: Any) -> Callable[[Json], object]:
    return lambda state: state.update({key: value})


def change_document(key: str, value: Any) -> Callable[[Json], object]:
    return lambda state: state["documents"][0].update({key: value})


NAN = base64.b64encode(np.full(48, np.nan, dtype="<f4").tobytes()).decode()
DAMAGE: dict[str, Callable[[Json], object]] = {
    "no-vectors": drop("vectors"),
    "no-documents": drop("documents"),
    "no-format": drop("format"),
    "newer-format": put("format", 2),
    "no-base64": put("vectors", "%%%"),
    "cut-vectors": lambda state: state.update(vectors=state["vectors"][:-8]),
    "fewer-vectors": lambda state: state.update(vectors=state["vectors"][: 16 * 4 * 4 // 3 // 4 * 4]),
    "more-vectors": put("vectors", base64.b64encode(bytes(16 * 4 * 4)).decode()),
    "nan": put("vectors", NAN),
    "no-dimensions": put("dimensions", 0),
    "odd-dimensions": put("dimensions", "many"),
    "documents-no-list": put("documents", 5),
    "document-no-object": put("documents", ["x"]),
    "bad-id": change_document("id", "17"),
    "bad-kind": change_document("kind", "other"),
    "bad-time": change_document("created_at", "yesterday"),
    "bad-metadata": change_document("metadata", 3),
    "bad-chunks": change_document("chunks", [{"ord": 0}]),
    "same-ordinals": lambda state: state["documents"][0]["chunks"][1].update(ord=0),
    "infinite-version": change_document("version", float("inf")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_state_is_refused_and_changes_nothing(
    filled: InMemoryStore, damage: Callable[[Json], object]
) -> None:
    state = filled.get_state()
    damage(state)
    before = seen(filled)
    with pytest.raises(StoreRejected) as caught:
        filled.restore_state(state)
    assert caught.value.fix
    assert "kestrel" not in str(caught.value)
    assert seen(filled) == before


@pytest.mark.req("003-026")
@pytest.mark.parametrize("contents", [(), ("otter",)], ids=["empty", "filled"])
def test_state_of_other_dimensions_is_refused(filled: InMemoryStore, contents: tuple[str, ...]) -> None:
    other = InMemoryStore(8)
    for content in contents:
        chunk = Chunk(ord=0, content=content)
        vectors = HashingEmbedder(8).embed_documents([content])
        other.replace([Replacement(document=document(5), chunks=[chunk], vectors=vectors)])
    with pytest.raises(StoreRejected, match="8 dimensions, this store has 16"):
        filled.restore_state(other.get_state())
    assert filled.stats().documents == 2


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


HEAD = np.frombuffer(b'{"format": 1, "dimensions": 16, "documents": []}', dtype=np.uint8)
FILES = {
    "empty": b"",
    "text": b"hello",
    "json": b"{}",
    "array": npy(np.zeros(3)),
    "pickle": npy(np.array([{"a": 1}], dtype=object)),
    "pickle-inside": npz(head=np.array([{"a": 1}], dtype=object), vectors=np.zeros((0, 16))),
    "no-head": npz(vectors=np.zeros((0, 16))),
    "head-no-json": npz(head=np.zeros(3, np.uint8), vectors=np.zeros((0, 16))),
    "head-a-list": npz(head=np.frombuffer(b"[]", dtype=np.uint8), vectors=np.zeros((0, 16))),
    "flat-vectors": npz(head=HEAD, vectors=np.zeros(16)),
    "other-width": npz(head=HEAD, vectors=np.zeros((0, 15))),
    "text-vectors": npz(head=HEAD, vectors=np.array([["a"] * 16])),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.npz"
    path.write_bytes(content)
    with pytest.raises(StoreRejected, match=r"s\.npz is no saved in-memory store"):
        InMemoryStore.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRejected, match="FileNotFoundError"):
        InMemoryStore.load(tmp_path / "absent.npz")


def test_random_damage_to_a_file_never_raises_anything_else(filled: InMemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    filled.save(path)
    good, rng = path.read_bytes(), random.Random(13)
    refused = 0
    for _ in range(300):
        bad = bytearray(good[: rng.choice([len(good), rng.randrange(len(good))])])
        for _ in range(rng.randrange(1, 6)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad)
        try:
            InMemoryStore.load(path)
        except StoreRejected:
            refused += 1
    assert refused > 250
