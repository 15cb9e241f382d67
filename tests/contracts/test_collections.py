"""What every store of collections must do; a store joins by one entry in FACTORIES."""

from __future__ import annotations

import json
import math
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest

from pipeline.actions.collections import (
    CollectionHit,
    CollectionStore,
    MemoryCollections,
    entry,
    numpy_scores,
    python_scores,
)
from pipeline.actions.file_collections import FileCollections
from pipeline.actions.filters import parse
from pipeline.actions.indexed_collections import IndexedCollections, KeptCollections
from pipeline.actions.pgvector_collections import PgCollections
from pipeline.database.engine import Database
from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected
from pipeline.ledger import sources
from pipeline.search.stores import open_store
from tests.fakes.vector_servers import server_of


def of_new_tenant(database: Database) -> PgCollections:
    tenant = uuid4()
    with database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, str(tenant), uuid4(), "app")
    return PgCollections(database, tenant)


def in_files(request: pytest.FixtureRequest) -> FileCollections:
    return FileCollections(request.getfixturevalue("tmp_path") / "texts" / "collections.db")


def indexed(request: pytest.FixtureRequest, kind: str, kept: KeptCollections) -> IndexedCollections:
    serving = server_of(kind)
    options = StoreOptions(
        kind, path=request.getfixturevalue("tmp_path") / "index", collection="test", **serving.__enter__()
    )
    request.addfinalizer(lambda: serving.__exit__(None, None, None))
    return IndexedCollections(kept, open_store(options), uuid4())


FACTORIES: Mapping[str, Callable[[pytest.FixtureRequest], CollectionStore]] = {
    "memory": lambda _request: MemoryCollections(numpy_scores),
    "memory without numpy": lambda _request: MemoryCollections(python_scores),
    "pgvector": lambda request: of_new_tenant(request.getfixturevalue("shared_database")),
    "files": in_files,
    "chroma": lambda request: indexed(request, "chroma", in_files(request)),
    "faiss": lambda request: indexed(request, "faiss", in_files(request)),
    "weaviate": lambda request: indexed(request, "weaviate", in_files(request)),
    "pinecone with pgvector": lambda request: indexed(
        request, "pinecone", of_new_tenant(request.getfixturevalue("shared_database"))
    ),
}
"""Name -> an empty store; the request gives access to fixtures such as a database."""

NEAR = 1e-6
"""Stores keep vectors as 32-bit numbers."""


@pytest.fixture(params=sorted(FACTORIES))
def store(request: pytest.FixtureRequest) -> CollectionStore:
    return FACTORIES[str(request.param)](request)


def put(store: CollectionStore, ident: str, *embedding: float, to: str = "notes", **metadata: Any) -> None:
    store.add(to, [entry(id=ident, text=f"text {ident}", embedding=embedding, metadata=metadata)])


def ids(found: Sequence[CollectionHit]) -> list[str]:
    return [one.id for one in found]


def ask(store: CollectionStore, *vector: float, k: int = 10, of: str = "notes", **wanted: Any) -> list[str]:
    return ids(store.query(of, vector, k=k, conditions=parse(wanted)))


@pytest.mark.req("003-005", "003-016", "003-020", "003-031")
def test_it_is_a_store_of_collections(store: CollectionStore) -> None:
    """All four methods, with the answers their types promise."""
    assert store.query("notes", [1.0], k=1) == []
    assert json.loads(json.dumps(store.get_state())) == {"format": 1, "collections": {}}
    store.restore_state(store.get_state())
    assert store.query("notes", [1.0, 2.0], k=1) == []


@pytest.mark.req("003-002", "003-017")
def test_what_is_stored_comes_back_whole(store: CollectionStore) -> None:
    metadata = {
        "type": "article",
        "n": 1,
        "x": 0.5,
        "yes": True,
        "none": None,
        "tags": ["a", "b"],
        "by": {"k": "v"},
    }
    store.add("notes", [entry(id="a", text="Ähre, 麦 \n", embedding=[0.25, -0.5], metadata=metadata)])
    (found,) = store.query("notes", [0.25, -0.5], k=5)
    assert (found.id, found.text, found.metadata) == ("a", "Ähre, 麦 \n", metadata)
    assert found.embedding == [0.25, -0.5]
    assert found.score == pytest.approx(1.0, abs=NEAR)


@pytest.mark.req("003-020")
def test_metadata_may_be_empty(store: CollectionStore) -> None:
    put(store, "a", 1.0)
    (found,) = store.query("notes", [1.0], k=1)
    assert found.metadata == {}
    assert ask(store, 1.0, type="article") == []


@pytest.mark.req("003-003", "003-018")
def test_scores_are_cosines_best_first(store: CollectionStore) -> None:
    put(store, "across", 0.0, 3.0)
    put(store, "against", -2.0, 0.0)
    put(store, "along", 5.0, 0.0)
    put(store, "between", 1.0, 1.0)
    put(store, "nothing", 0.0, 0.0)
    found = store.query("notes", [2.0, 0.0], k=5)
    assert ids(found) == ["along", "between", "across", "nothing", "against"]
    expected = [1.0, math.sqrt(0.5), 0.0, 0.0, -1.0]
    assert [one.score for one in found] == pytest.approx(expected, abs=NEAR)


def test_a_question_without_direction_finds_all_alike(store: CollectionStore) -> None:
    put(store, "a", 1.0, 0.0)
    put(store, "b", 0.0, 1.0)
    found = store.query("notes", [0.0, 0.0], k=5)
    assert [(one.id, one.score) for one in found] == [("a", 0.0), ("b", 0.0)]


def test_equal_scores_come_in_the_order_of_arrival(store: CollectionStore) -> None:
    for ident in ("c", "a", "b"):
        put(store, ident, 1.0, 2.0)
    put(store, "c", 1.0, 2.0)  # replaced, and still the first
    assert ask(store, 1.0, 2.0) == ["c", "a", "b"]
    assert ask(store, 1.0, 2.0, k=2) == ["c", "a"]


@pytest.mark.req("003-029")
def test_no_more_than_k(store: CollectionStore) -> None:
    for n in range(7):
        put(store, str(n), 1.0, n / 10)
    assert ask(store, 1.0, 0.0, k=3) == ["0", "1", "2"]
    assert len(ask(store, 1.0, 0.0, k=100)) == 7


def test_filters_come_before_the_best_are_taken(store: CollectionStore) -> None:
    for n in range(9):
        put(store, str(n), 1.0, n / 10, odd=n % 2 == 1)
    assert ask(store, 1.0, 0.0, k=2, odd=True) == ["1", "3"]


@pytest.mark.req("003-029")
def test_collections_do_not_see_each_other(store: CollectionStore) -> None:
    put(store, "a", 1.0, 0.0, to="left")
    put(store, "a", 0.0, 1.0, 0.0, to="right")
    assert store.query("left", [1.0, 0.0], k=5)[0].embedding == [1.0, 0.0]
    assert store.query("right", [1.0, 0.0, 0.0], k=5)[0].embedding == [0.0, 1.0, 0.0]
    assert ask(store, 1.0, of="nowhere") == []


@pytest.mark.req("003-033")
def test_an_id_that_is_there_is_replaced(store: CollectionStore) -> None:
    put(store, "a", 1.0, 0.0, type="old", left=1)
    put(store, "b", 1.0, 1.0)
    put(store, "a", 0.0, 1.0, type="new")
    first, second = store.query("notes", [0.0, 1.0], k=5)
    assert (first.id, first.metadata, first.embedding) == ("a", {"type": "new"}, [0.0, 1.0])
    assert second.id == "b"


@pytest.mark.req("003-033")
def test_of_the_same_id_twice_in_a_batch_the_last_wins(store: CollectionStore) -> None:
    batch = [entry(id="a", text=text, embedding=[n, 1.0]) for n, text in enumerate(("first", "last"))]
    store.add("notes", batch)
    (found,) = store.query("notes", [0.0, 1.0], k=5)
    assert (found.text, found.embedding) == ("last", [1.0, 1.0])


@pytest.mark.req("003-026", "003-030")
def test_vectors_of_another_length_are_refused(store: CollectionStore) -> None:
    put(store, "a", 1.0, 0.0)
    good, bad = (
        entry(id="b", text="", embedding=[1.0, 1.0]),
        entry(id="c", text="", embedding=[1.0, 1.0, 1.0]),
    )
    with pytest.raises(StoreRejected, match="has 3 dimensions, the collection 'notes' has 2"):
        store.add("notes", [good, bad])
    with pytest.raises(StoreRejected, match="has 3 dimensions, the collection 'notes' has 2"):
        store.add("notes", [bad])
    with pytest.raises(StoreRejected, match="has 3 dimensions"):
        store.query("notes", [1.0, 1.0, 1.0], k=1)
    with pytest.raises(StoreRejected, match="has 2 dimensions"):
        store.add("mixed", [bad, good])
    assert ask(store, 1.0, 0.0) == ["a"]
    assert ask(store, 1.0, of="mixed") == []


@pytest.mark.req("003-026")
def test_vectors_of_two_models_do_not_meet(store: CollectionStore) -> None:
    one = [entry(id="a", text="", embedding=[1.0, 0.0])]
    store.add("notes", one)  # of a model that nobody named
    store.add("notes", one, model="small")
    with pytest.raises(StoreRejected, match="holds vectors of small, these are of ada"):
        store.add("notes", one, model="ada")
    with pytest.raises(StoreRejected, match="holds vectors of small"):
        store.query("notes", [1.0, 0.0], k=1, model="ada")
    assert ids(store.query("notes", [1.0, 0.0], k=1, model="small")) == ["a"]
    assert ids(store.query("notes", [1.0, 0.0], k=1)) == ["a"]
    assert store.get_state()["collections"]["notes"]["model"] == "small"


ROWS: Mapping[str, Mapping[str, Any]] = {
    "a": {"type": "article", "date": "2024-01-01", "n": 1, "tags": ["red", "blue"], "logged_in": True},
    "b": {"type": "blog", "date": "2024-06-30", "n": 2.5, "tags": ["red"], "logged_in": False},
    "c": {
        "type": "article",
        "date": "2023-12-31",
        "n": -3,
        "tags": [1, True],
        "title": "Über 100 % 'quoted'",
    },
    "d": {"type": 7, "n": "2", "date": None, "tags": "reddish", "title": ""},
    "e": {},
}
FILTERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "nothing": ({}, "abcde"),
    "equal text": ({"type": "article"}, "ac"),
    "equal number": ({"type": 7}, "d"),
    "equal as JSON": ({"n": 1.0}, "a"),
    "a number is no text": ({"n": 2}, ""),
    "true is not 1": ({"n": True}, ""),
    "truth": ({"logged_in_eq": True}, "a"),
    "both": ({"type": "article", "date_gte": "2024-01-01"}, "a"),
    "from": ({"date_gte": "2024-01-01"}, "ab"),
    "after": ({"date_gt": "2024-01-01"}, "b"),
    "until": ({"date_lte": "2024-01-01"}, "ac"),
    "before": ({"date_lt": "2024-01-01"}, "c"),
    "range": ({"n_gt": -3, "n_lt": 2.5}, "a"),
    "numbers among texts": ({"n_gte": 1}, "ab"),
    "texts among numbers": ({"n_gte": "1"}, "d"),
    "not": ({"type_ne": "article"}, "bde"),
    "not a number": ({"type_ne": 7}, "abce"),
    "one of": ({"type_in": ["blog", 7]}, "bd"),
    "one of none": ({"type_in": []}, ""),
    "truth in": ({"n_in": [True, 2.5]}, "b"),
    "list contains": ({"tags_contains": "red"}, "abd"),
    "list contains all": ({"tags_contains": "blue"}, "a"),
    "list contains 1": ({"tags_contains": 1}, "c"),
    "text contains": ({"title_contains": "100 % 'q"}, "c"),
    "text contains nothing": ({"title_contains": ""}, "cd"),
    "text contains no number": ({"title_contains": 100}, ""),
    "no such key": ({"author": "x"}, ""),
    "no such key, not": ({"author_ne": "x"}, "abcde"),
    "a key with quotes": ({"x' or true --": "x"}, ""),
    "a value with quotes": ({"type": "' or true --"}, ""),
}


@pytest.mark.req("003-003", "003-024", "003-029", "003-038")
def test_every_filter_finds_what_it_says(store: CollectionStore) -> None:
    for ident, metadata in ROWS.items():
        store.add("notes", [entry(id=ident, text="", embedding=[1.0, 0.5], metadata=metadata)])
    found = {name: "".join(ask(store, 1.0, 0.5, **wanted)) for name, (wanted, _) in FILTERS.items()}
    assert found == {name: expected for name, (_, expected) in FILTERS.items()}


@pytest.mark.req("003-019", "003-029")
def test_state_passes_through_json_to_any_other_store(store: CollectionStore) -> None:
    put(store, "a", 0.1, 0.2, type="article")
    put(store, "b", -0.3, 0.4, tags=["x"])
    store.add("other", [entry(id="a", text="", embedding=[1.0])], model="small")
    state = json.loads(json.dumps(store.get_state()))
    for scorer in (python_scores, numpy_scores):
        copy = MemoryCollections(scorer)
        copy.restore_state(state)
        assert copy.get_state() == state
        assert copy.query("notes", [0.1, 0.2], k=2)[0].metadata == {"type": "article"}
    put(store, "c", 0.5, 0.5)
    put(store, "d", 0.5, to="new")
    store.restore_state(state)
    assert store.get_state() == state
    assert ask(store, 0.5, of="new") == []


def test_an_empty_collection_of_a_state_is_none(store: CollectionStore) -> None:
    empty = {"dimensions": 0, "model": "", "documents": [], "vectors": ""}
    store.restore_state({"format": 1, "collections": {"notes": empty}})
    put(store, "a", 1.0, 2.0)
    assert ask(store, 1.0, 2.0) == ["a"]


def test_what_callers_do_to_their_metadata_later_changes_nothing(store: CollectionStore) -> None:
    mine: dict[str, Any] = {"type": "article"}
    store.add("notes", [entry(id="a", text="", embedding=[1.0], metadata=mine)])
    mine["type"] = "changed"
    (found,) = store.query("notes", [1.0], k=1)
    found.metadata["type"] = "changed too"
    assert ask(store, 1.0, type="article") == ["a"]


def damaged(state: dict[str, Any]) -> dict[str, Any]:
    notes = state["collections"]["notes"]
    document = notes["documents"][0]
    nan = "AADAfwAAwH8="  # two NaN
    return {
        "nothing": {},
        "no mapping": [1],
        "another format": {**state, "format": 2},
        "collections missing": {"format": 1},
        "collections listed": {"format": 1, "collections": []},
        "no base64": {**state, "collections": {"notes": {**notes, "vectors": "?"}}},
        "strange characters": {**state, "collections": {"notes": {**notes, "vectors": "?" + notes["vectors"]}}},
        "a vector cut off": {**state, "collections": {"notes": {**notes, "vectors": notes["vectors"][:-4]}}},
        "NaN": {**state, "collections": {"notes": {**notes, "vectors": nan}}},
        "other dimensions": {**state, "collections": {"notes": {**notes, "dimensions": 3}}},
        "no dimensions": {**state, "collections": {"notes": {**notes, "dimensions": 0, "vectors": ""}}},
        "id twice": {**state, "collections": {"notes": {**notes, "documents": [document, document], "vectors": "AAAAAAAAAAAAAAAAAAAAAA=="}}},
        "no text": {**state, "collections": {"notes": {**notes, "documents": [{**document, "text": None}]}}},
        "metadata listed": {**state, "collections": {"notes": {**notes, "documents": [{**document, "metadata": [1]}]}}},
    }  # fmt: skip


@pytest.mark.req("003-019")
def test_damaged_state_is_refused_and_changes_nothing(store: CollectionStore) -> None:
    put(store, "a", 0.1, 0.2)
    state = store.get_state()
    for name, bad in damaged(state).items():
        with pytest.raises(StoreRejected, match="this is no saved state of collections"):
            store.restore_state(bad)
        assert store.get_state() == state, name


@pytest.mark.req("003-017", "003-018", "003-035")
def test_all_stores_rank_alike(store: CollectionStore) -> None:
    """Against the plain formula, with copies and near copies among the vectors."""
    chance = random.Random(3)
    vectors = [[chance.choice((-1.0, 0.0, 0.5, 2.0)) for _ in range(5)] for _ in range(300)]
    store.add("notes", [entry(id=str(n), text="", embedding=v) for n, v in enumerate(vectors)])
    asked = [0.3, -0.7, 0.11, 0.5, 0.9]

    def cosine(vector: Sequence[float]) -> float:
        norms = math.sqrt(sum(x * x for x in vector)) * math.sqrt(sum(x * x for x in array("f", asked)))
        return sum(x * y for x, y in zip(vector, array("f", asked), strict=True)) / norms if norms else 0.0

    ranked = sorted(range(300), key=lambda n: (-round(cosine(vectors[n]), 6), n))
    found = store.query("notes", array("f", asked), k=40)
    assert [one.score for one in found] == pytest.approx([cosine(vectors[n]) for n in ranked[:40]], abs=NEAR)
    assert ids(found) == [str(n) for n in ranked[:40]]
