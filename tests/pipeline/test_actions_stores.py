"""The actions with the stores that teams have: Chroma, FAISS, Qdrant, Pinecone and Weaviate."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from pipeline.actions import register_actions
from pipeline.actions.collections import MemoryCollections, entry
from pipeline.actions.file_collections import FileCollections
from pipeline.actions.filters import parse
from pipeline.actions.indexed_collections import IndexedCollections
from pipeline.database import vector_stores
from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected, StoreUnavailable
from pipeline.search import stores
from pipeline.search.stores import FloatVector, Neighbour, Point, Scope, open_store
from pipeline.search.stores.memory import MemoryStore
from tests.conftest import Addresses
from tests.fakes.vector_servers import server_of
from tests.pipeline.acting import refused

Make = Callable[..., dict[str, Any]]
TEXTS = ["the pilot waits for the tide", "two bollards hold the vessel", "the berth plan is printed"]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the registry of an engine in a folder of its own."""
    with ExitStack() as closing:

        def registry(secrets: dict[str, str] | None = None, **rag: Any) -> dict[str, Any]:
            settings = {
                "embedding_provider": "hashing",
                "embedding_dimensions": 64,
                "actions": ["embedding", "vector"],
                "chroma_path": str(tmp_path / "chroma"),
                "vector_path": str(tmp_path / "vectors"),
                **rag,
            }
            made: dict[str, Any] = {}
            engine = SimpleNamespace(settings={"rag": settings}, secrets=secrets or {})
            closing.callback(register_actions(made, engine).close)
            return made

        yield registry


def served_settings(kind: str, closing: ExitStack) -> tuple[dict[str, str], dict[str, Any]]:
    """Secrets and settings of a store whose server runs until `closing` ends."""
    served = closing.enter_context(server_of(kind))
    rag = {"vector_store": kind}
    if served:
        rag |= {"vector_url": served["url"], "vector_grpc_url": served.get("grpc_url", "")}
    return ({f"{kind.upper()}_API_KEY": served["api_key"]} if served else {}), rag


@pytest.mark.req("003-005", "003-015", "003-020")
@pytest.mark.parametrize("kind", ["chroma", "faiss", "qdrant", "pinecone", "weaviate"])
def test_what_one_engine_stores_another_finds_without_a_database(make: Make, kind: str) -> None:
    with ExitStack() as closing:
        secrets, rag = served_settings(kind, closing)
        stored = make(secrets, **rag)["vector.store"]({}, TEXTS, ids=["a", "b", "c"])
        assert stored == {"stored": 3, "collection": "default", "ids": ["a", "b", "c"]}
        with_metadata = make(secrets, **rag)["vector.store"]({}, TEXTS[0], ids="d", metadata={"since": 2024})
        assert with_metadata["stored"] == 1
        other = make(secrets, **rag)
        found = other["vector.query"]({}, "the pilot and the tide", k=2)["results"]
        assert [(one["id"], one["text"], one["metadata"]) for one in found] == [
            ("a", TEXTS[0], {}),
            ("d", TEXTS[0], {"since": 2024}),
        ]
        found = other["vector.query"]({}, "the pilot and the tide", filter={"since_gte": 2000})["results"]
        assert [one["id"] for one in found] == ["d"]
        theirs = make(secrets, tenant="somebody else", **rag)
        assert theirs["vector.query"]({}, "the pilot and the tide")["results"] == []


@pytest.mark.req("003-005", "003-020")
def test_texts_lie_in_postgresql_where_it_is_given(make: Make, addresses: Addresses, tmp_path: Path) -> None:
    secrets = {"LARDER_DATABASE_URL": addresses.app}
    assert make(secrets, vector_store="faiss")["vector.store"]({}, TEXTS, ids=["a", "b", "c"])["stored"] == 3
    for kind in ("faiss", "pgvector"):
        found = make(secrets, vector_store=kind)["vector.query"]({}, "two bollards", k=1)["results"]
        assert [one["text"] for one in found] == [TEXTS[1]], kind
    assert not list(tmp_path.glob("**/texts-*.db"))


@pytest.mark.parametrize(
    ("rag", "message"),
    [
        (
            {"vector_store": "milvus"},
            "use one of memory, pgvector, faiss, chroma, qdrant, pinecone, weaviate",
        ),
        ({"vector_store": "pinecone"}, "put PINECONE_API_KEY into the secrets of the engine"),
        ({"vector_store": "weaviate"}, "write settings.rag.vector_url"),
        (
            {"vector_store": "chroma", "vector_index": "has blanks"},
            "settings.rag.vector_index is 'has blanks'",
        ),
        ({"vector_store": "chroma", "database_url": "mysql://x"}, "chroma has no address of PostgreSQL"),
    ],
)
def test_wrong_settings_are_answers(make: Make, rag: dict[str, Any], message: str) -> None:
    assert message in refused(make(**rag)["vector.store"]({}, "x"))


@pytest.mark.req("003-020")
def test_a_client_that_is_missing_is_named_with_its_extra(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"chroma": vector_stores.IMPLEMENTATIONS["chroma"]._replace(module="not_there")}
    monkeypatch.setattr(stores, "IMPLEMENTATIONS", lacking)
    said = refused(make(vector_store="chroma")["vector.store"]({}, "x"))
    assert said == "the vector store chroma needs chromadb, which is not installed (install larder[chroma])"


class Watched(MemoryStore):
    """A store that says what it is asked, may be away, and may lie."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[int] = []
        self.is_away = False
        self.more: list[str] = []
        """Ids that are answered first, whatever is there."""

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        self.questions.append(n)
        if self.is_away:
            raise StoreUnavailable("away", fix="wait")
        lies = [Neighbour(one, 1.0) for one in self.more]
        return (lies + super().near(vector, n, scope))[:n]

    def put(self, collection: str, points: Sequence[Point]) -> None:
        if self.is_away:
            raise StoreUnavailable("away", fix="wait")
        super().put(collection, points)


class World:
    """The same 600 documents in an indexed store and in memory."""

    def __init__(self, folder: Path) -> None:
        self.index, self.memory = Watched(), MemoryCollections()
        self.kept = FileCollections(folder / "collections.db")
        self.indexed = IndexedCollections(self.kept, self.index, uuid4())
        chance = random.Random(2)
        entries = [
            entry(
                id=f"n{n}",
                text=f"text {n}",
                embedding=[chance.gauss(0, 1) for _ in range(8)],
                metadata={"n": n},
            )
            for n in range(600)
        ]
        for store in (self.indexed, self.memory):
            store.add("notes", entries)
        self.asked = [chance.gauss(0, 1) for _ in range(8)]

    def both(self, **wanted: Any) -> tuple[list[str], list[str]]:
        """What both find."""
        found = [
            store.query("notes", self.asked, k=5, conditions=parse(wanted))
            for store in (self.indexed, self.memory)
        ]
        return [one.id for one in found[0]], [one.id for one in found[1]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_candidates_come_from_the_index_and_more_of_them_if_a_filter_is_narrow(world: World) -> None:
    found, expected = world.both()
    assert found == expected
    assert world.index.questions == [100]
    world.index.questions.clear()
    found, expected = world.both(n_lt=20)
    assert found == expected
    assert world.index.questions == [100, 400]
    found, expected = world.both(n_lt=3)
    assert found == expected
    assert world.index.questions == [100, 400, 100, 400, 1600]


def test_an_index_that_lies_adds_nothing(world: World) -> None:
    _, (best, *rest) = world.both()
    world.indexed.add("notes", [entry(id=best, text="moved", embedding=[-x for x in world.asked])])
    theirs = IndexedCollections(world.kept, world.index, uuid4())
    theirs.add("secret", [entry(id="foreign", text="", embedding=world.asked)])
    world.index.more = ["foreign", "unknown", best, best]
    found, _ = world.both()
    assert found[:4] == rest
    assert best not in found
    assert "foreign" not in found


def test_an_index_that_is_away_or_emptied_is_done_without(world: World) -> None:
    world.index.is_away = True
    found, expected = world.both()
    assert found == expected
    with pytest.raises(StoreUnavailable):
        world.indexed.add("notes", [entry(id="new", text="", embedding=world.asked)])
    world.index.is_away = False
    assert "new" not in world.both()[0], "what failed is not stored"
    world.index.collections.clear()
    found, expected = world.both()
    assert found == expected


def test_a_rest_in_the_index_does_not_hinder_a_new_collection(tmp_path: Path) -> None:
    index = open_store(StoreOptions("faiss", path=tmp_path / "index", collection="test"))
    tenant = uuid4()
    IndexedCollections(FileCollections(tmp_path / "old.db"), index, tenant).add(
        "notes", [entry(id="a", text="", embedding=[1.0, 0.0])]
    )
    anew = IndexedCollections(FileCollections(tmp_path / "new.db"), index, tenant)
    anew.add("notes", [entry(id="b", text="", embedding=[1.0, 0.0, 0.0])])
    assert [one.id for one in anew.query("notes", [1.0, 0.0, 0.0], k=5)] == ["b"]
    with pytest.raises(StoreRejected, match="has 2 dimensions, the collection 'notes' has 3"):
        anew.add("notes", [entry(id="c", text="", embedding=[1.0, 0.0])])


def test_a_checkpoint_fills_the_index(world: World) -> None:
    state = world.indexed.get_state()
    world.indexed.add("more", [entry(id="x", text="", embedding=[1.0])])
    world.index.collections.clear()
    world.indexed.restore_state(state)
    assert sum(map(len, world.index.collections.values())) == 600
    found, expected = world.both()
    assert found == expected
    assert world.index.questions == [100]


def test_two_engines_write_into_one_file(tmp_path: Path) -> None:
    both = [FileCollections(tmp_path / "deep" / "collections.db") for _ in range(2)]
    for number in range(40):
        both[number % 2].add("notes", [entry(id=str(number), text="", embedding=[1.0, number])])
    assert [one.id for one in both[0].query("notes", [0.0, 1.0], k=2)] == ["39", "38"]
    (tmp_path / "deep" / "collections.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnavailable, match=r"the file collections.db of collections fails"):
        both[0].query("notes", [0.0, 1.0], k=2)
