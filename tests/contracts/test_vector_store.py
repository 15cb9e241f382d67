"""Every vector store keeps these promises; each is the real engine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.vector_stores import IMPLEMENTATIONS, StoreOptions
from pipeline.errors import ConfigurationError, StoreRejected
from pipeline.search import stores
from pipeline.search.stores import Point, Scope, VectorStore, deadline, open_store
from tests.fakes.vector_servers import server_of

ACME, ZENITH = UUID(int=1), UUID(int=2)
PROJECTS = (UUID(int=11), UUID(int=12))
DIMENSIONS = 16
TYPES = (
    "memory",
    "faiss",
    "faiss-flat",
    "chroma",
    "chroma-server",
    "qdrant",
    "qdrant-server",
    "pinecone",
    "weaviate",
)
FEWER = dict.fromkeys(("qdrant", "qdrant-server", "weaviate", "chroma-server"), 2_600)
"""Points, some batches of them, for those that compare with each in Python, and for Chroma's engine once more."""

Open = Callable[[], VectorStore]


def options_of(name: str, folder: Path) -> StoreOptions:
    kind, _, algorithm = name.partition("-")
    return StoreOptions(
        kind, path=folder / name, collection="test", algorithm=algorithm or "hnsw", timeout=60
    )


@pytest.fixture(params=TYPES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same store once more, as another process does; in memory there is one alone."""
    with server_of(request.param) as served:
        options = replace(options_of(request.param, tmp_path), **served)
        first = open_store(options)
        yield lambda: first if options.type == "memory" else open_store(options)


@pytest.fixture
def store(opened: Open) -> VectorStore:
    return opened()


def unit(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    vector[: len(values)] = values
    return vector


def point(id_: str, *values: float, tenant: UUID = ACME, **attributes: object) -> Point:
    return Point(id=id_, vector=unit(*values), tenant=tenant, **attributes)  # type: ignore[arg-type]


def scope(collection: str = "one", tenant: UUID | None = ACME, **conditions: object) -> Scope:
    return Scope(collection=collection, tenant=tenant, **conditions)  # type: ignore[arg-type]


def ids(store: VectorStore, n: int = 10, within: Scope | None = None, *near: float) -> list[str]:
    return [one.id for one in store.near(unit(*(near or (1.0,))), n, within or scope())]


def test_nothing_is_near_in_an_unknown_collection(store: VectorStore) -> None:
    assert store.near(unit(1.0), 5, scope("never")) == []
    assert store.stats(scope("never"), ["a"]).points == 0
    store.delete(scope("never"))
    store.delete(scope("never"), ["a"])
    store.put("never", [])
    assert store.stats(scope("never")).points == 0


@pytest.mark.req("003-020")
def test_the_nearest_come_first_with_their_cosine(store: VectorStore) -> None:
    store.put("one", [point("far", 0, 3), point("near", 2, 0), point("between", 1, 1)])
    neighbours = store.near(unit(5.0), 3, scope())
    assert [one.id for one in neighbours] == ["near", "between", "far"]
    assert [one.similarity for one in neighbours] == pytest.approx([1, 0.7071, 0], abs=1e-3)
    assert ids(store, 1) == ["near"]
    assert ids(store, 0) == []


@pytest.mark.req("001-008")
def test_thousands_of_points_are_found_as_numpy_finds_them(
    opened: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, points = opened(), FEWER.get(request.node.callspec.params["opened"], 10_000)
    # Servers of ours compare so many in Python; that searches end in time is tested with servers that do not answer.
    monkeypatch.setattr(deadline, "SEARCH_SECONDS", 60.0)
    rng = np.random.default_rng(4)
    # Around centres, as texts lie around topics: nothing is near anything among vectors without order.
    centres = rng.standard_normal((200, DIMENSIONS))
    matrix = (centres[rng.integers(0, 200, points)] + 0.3 * rng.standard_normal((points, DIMENSIONS))).astype(
        "f4"
    )
    store.put("one", [Point(id=str(n), vector=row, tenant=ACME) for n, row in enumerate(matrix)])
    assert store.stats(scope()).points == points
    normal = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    shared = 0
    questions = points // 500
    for question in (centres[:questions] + 0.3 * rng.standard_normal((questions, DIMENSIONS))).astype("f4"):
        exact = np.argsort(-(normal @ question))[:10]
        shared += len({str(n) for n in exact} & {one.id for one in store.near(question, 10, scope())})
    assert shared >= 0.95 * 10 * questions


CONDITIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"a", "b", "c"}),
    ({"projects": (str(PROJECTS[0]),)}, {"a"}),
    ({"projects": tuple(map(str, PROJECTS))}, {"a", "b"}),
    ({"kinds": ("decision",)}, {"b"}),
    ({"source_types": ("text", "confluence")}, {"a", "b"}),
    ({"security_levels": ("internal",)}, {"a", "b"}),
    ({"security_levels": ()}, set()),
    ({"since": 200.0}, {"b", "c"}),
    ({"until": 200.0}, {"a"}),
    ({"since": 150.0, "until": 250.0, "kinds": ("decision", "work")}, {"b"}),
]
"""Of a scope, and what it lets through."""


def test_a_scope_lets_through_what_meets_all_its_conditions(store: VectorStore) -> None:
    store.put(
        "one",
        [
            point("a", 1, project=PROJECTS[0], kind="work", source_type="text", security_level="internal", changed=100),
            point("b", 1, 1, project=PROJECTS[1], kind="decision", source_type="confluence", security_level="internal", changed=200),
            point("c", 0, 1, kind="reference", source_type="pbi", security_level="secret", changed=300),
            point("z", 1, tenant=ZENITH, kind="work"),
        ],
    )  # fmt: skip
    for conditions, expected in CONDITIONS:
        assert set(ids(store, 10, scope(**conditions))) == expected, conditions


def test_tenants_and_collections_have_nothing_in_common(store: VectorStore) -> None:
    store.put("one", [point("same", 1), point("same", 1, 1, tenant=ZENITH)])
    store.put("two", [point("same", 0, 1)])
    store.delete(scope(), ["same"])
    assert ids(store) == []
    assert ids(store, 10, scope(tenant=ZENITH)) == ["same"]
    assert ids(store, 10, scope("two")) == ["same"]
    assert store.stats(scope(tenant=None)).points == 1
    store.put("one", [point("other", 1)])
    store.delete(scope(tenant=ZENITH))
    assert store.stats(scope(tenant=None)).points == 1
    store.delete(scope(tenant=None))
    assert (store.stats(scope()).points, store.stats(scope("two")).points) == (0, 1)


def test_a_point_that_is_put_again_has_its_last_vector_and_attributes(store: VectorStore) -> None:
    store.put("one", [point("a", 1, kind="work"), point("b", 1, 1)])
    store.put("one", [point("a", 1), point("a", 0, 1, kind="decision")])
    assert ids(store, 10, scope(), 0.0, 1.0) == ["a", "b"]
    assert ids(store, 10, scope(kinds=("work",))) == []
    assert ids(store, 10, scope(kinds=("decision",))) == ["a"]
    assert store.stats(scope(), ["a", "b", "c"]) == stores.StoreStats(points=2, present=frozenset("ab"))


def test_deletes_are_idempotent_and_a_point_may_come_back(store: VectorStore) -> None:
    store.put("one", [point("a", 1), point("b", 1, 1)])
    for _ in range(2):
        store.delete(scope(), ["a", "unknown"])
        assert ids(store) == ["b"]
    store.put("one", [point("a", 1)])
    assert ids(store) == ["a", "b"]
    store.delete(scope())
    assert ids(store) == []
    store.put("one", [point("a", 1)])
    assert ids(store) == ["a"]


def test_ids_are_any_text(store: VectorStore) -> None:
    texts = ["Ärger/Straße 1:0", "日本 語", "a b 'c' \"d\" %", "🦆", "x" * 200, "..", "-"]
    store.put("one", [point(text, 1, number) for number, text in enumerate(texts)])
    assert ids(store, 20) == texts
    store.delete(scope(), texts[:3])
    assert ids(store, 20) == texts[3:]
    assert store.stats(scope(), texts).present == frozenset(texts[3:])


def test_vectors_of_another_length_are_refused_and_change_nothing(store: VectorStore) -> None:
    store.put("one", [point("a", 1)])
    longer = np.ones(DIMENSIONS + 1, dtype=np.float32)
    with pytest.raises(StoreRejected):
        store.put("one", [Point(id="b", vector=longer, tenant=ACME)])
    with pytest.raises(StoreRejected):
        store.near(longer, 5, scope())
    with pytest.raises(StoreRejected):
        store.put("one", [point("c", 1), Point(id="d", vector=longer, tenant=ACME)])
    with pytest.raises(StoreRejected):
        store.put("one", [point("e", float("nan"))])
    assert ids(store) == ["a"]


def test_points_outlive_a_restart_and_each_opener_sees_the_changes_of_the_others(opened: Open) -> None:
    first, second = opened(), opened()
    first.put("one", [point("a", 1), point("b", 1, 1)])
    assert ids(second) == ["a", "b"]
    second.put("one", [point("c", 1, 2)])
    second.delete(scope(), ["b"])
    assert ids(first) == ["a", "c"]
    first.put("one", [point("a", 0, 0, 1)])
    assert ids(second) == ids(opened()) == ["c", "a"]


_both: Barrier


def _write(options: StoreOptions, writer: int) -> None:
    store = open_store(options)
    _both.wait()
    for batch in range(5):
        store.put("one", [point(f"{writer}-{batch}-{n}", 1, writer, n) for n in range(20)])
        store.delete(scope(), [f"{writer}-{batch}-0"])


def _wait_with(both: Barrier) -> None:
    global _both  # noqa: PLW0603 (a barrier goes to a process as it starts, and with no task)
    _both = both


@pytest.fixture(scope="module")
def writers() -> Iterator[ProcessPoolExecutor]:
    """Two processes, each of which does one of two tasks: they are begun once, for the clients take seconds to load."""
    start = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, start, _wait_with, (start.Barrier(2, timeout=120),)) as pool:
        yield pool


@pytest.mark.parametrize("name", [name for name in TYPES if name != "memory"])
def test_two_processes_write_at_once(name: str, tmp_path: Path, writers: ProcessPoolExecutor) -> None:
    with server_of(name) as served:
        options = replace(options_of(name, tmp_path), **served)
        for written in [writers.submit(_write, options, writer) for writer in range(2)]:
            written.result(120)
        store = open_store(options)
        expected = {
            f"{writer}-{batch}-{n}" for writer in range(2) for batch in range(5) for n in range(1, 20)
        }
        assert store.stats(scope(), sorted(expected)) == stores.StoreStats(
            points=190, present=frozenset(expected)
        )
        assert set(ids(store, 300)) == expected


@pytest.mark.req("001-075")
def test_a_store_whose_client_is_not_installed_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacking = IMPLEMENTATIONS["chroma"]._replace(module="not_there")
    monkeypatch.setattr(stores, "IMPLEMENTATIONS", {"chroma": lacking})
    with pytest.raises(ConfigurationError, match=r"needs chromadb.*install larder\[chroma\]"):
        open_store(options_of("chroma", tmp_path))
    with pytest.raises(ConfigurationError, match="no vector store 'milvus'"):
        open_store(options_of("milvus", tmp_path))
