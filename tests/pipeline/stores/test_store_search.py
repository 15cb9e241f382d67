"""A search asks the active store for candidates, and shows nothing that PostgreSQL does not let through."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.database.engine import Database
from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreUnavailable
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults
from pipeline.search.records import Filter
from pipeline.search.stores import FloatVector, Neighbour, Scope, VectorStore, outbox, registry
from pipeline.search.stores.memory import MemoryStore
from pipeline.search.stores.registry import VectorStores
from tests.ledger import of_connection
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs
from tests.pipeline.stores.mirrored import Mirrored, set_up


def stores_of(notes: SourceLedger, **opened: VectorStore) -> VectorStores:
    options = {name: StoreOptions(name) for name in opened}
    return VectorStores(notes.database, options, opener=lambda one: opened[one.type])


def retriever(notes: SourceLedger, stores: VectorStores | None, **options: Any) -> Retriever:
    plain: dict[str, Any] = {"exact_below": 0, "min_similarity": -1.0, "candidates": 20}
    return Retriever(
        notes.database,
        notes.tenant,
        lambda _index: notes.embedder,
        RetrievalOptions(**{**plain, **options}),
        stores=stores,
    )


def ask(retriever: Retriever, question: str = "kestrel filler 3", **request: Any) -> SearchResults:
    return retriever.search(SearchRequest(text=question, **{"mode": "vector", **request}))


@pytest.fixture
def filled(alone: SourceLedger) -> Mirrored:
    """Forty documents, carried over."""
    for n in range(40):
        alone.admit(document(f"d{n}", paragraphs(2, f"kestrel{n} bird{n % 7}"), tags=(f"t{n % 10}",)))
    alone.index()
    beside = Mirrored(alone)
    beside.carry()
    return beside


@pytest.mark.req("001-007")
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
@pytest.mark.parametrize("dedupe", [True, False])
def test_the_active_store_finds_what_pgvector_finds(filled: Mirrored, mode: str, dedupe: bool) -> None:
    with_store = retriever(filled.notes, stores_of(filled.notes, memory=filled.store))
    for question in ("kestrel3 bird3 word 1", "kestrel filler 17", "bird5"):
        found = ask(with_store, question, mode=mode, dedupe=dedupe, k=10)
        exact = ask(
            retriever(filled.notes, None, exact_below=10_000), question, mode=mode, dedupe=dedupe, k=10
        )
        assert [hit.score for hit in found.hits] == pytest.approx([hit.score for hit in exact.hits])
        assert (found.store, exact.store, found.degradation_level) == ("memory", "pgvector", 0)


def test_what_is_not_carried_over_yet_is_not_found_by_meaning(filled: Mirrored) -> None:
    filled.notes.admit(document("new", "heron heron heron"))
    filled.notes.index()
    with_store = retriever(filled.notes, stores_of(filled.notes, memory=filled.store))
    assert "Title of new" not in {hit.document.title for hit in ask(with_store, "heron", k=20).hits}
    assert ask(with_store, "heron", mode="hybrid").hits[0].document.title == "Title of new", "it has the word"
    filled.carry()
    assert ask(with_store, "heron").hits[0].document.title == "Title of new"


def test_deleted_documents_are_shown_by_no_store(filled: Mirrored) -> None:
    with_store = retriever(filled.notes, stores_of(filled.notes, memory=filled.store))
    first = ask(with_store).hits[0].document
    with filled.notes.database.control() as connection:
        of_connection(connection).documents.set({"id": first.id}, hidden=True)
    found = ask(with_store, k=5)
    assert first.id not in {hit.document.id for hit in found.hits}
    assert (len(found.hits), found.store) == (5, "memory")


def test_more_is_fetched_until_enough_is_left(filled: Mirrored) -> None:
    """Four of forty documents may be read, and the store cannot tell which."""
    for one in filled.notes.documents():
        who = "bob" if one["external_id"] in {"d1", "d11", "d21", "d31"} else "ann"
        filled.notes.documents.set({"id": one["id"]}, metadata={**one["metadata"], "acl": [[who]]})
    asked: list[int] = []

    class Counting(MemoryStore):
        def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
            asked.append(n)
            found: list[Neighbour] = filled.store.near(vector, n, scope)
            return found

    with_store = retriever(filled.notes, stores_of(filled.notes, memory=Counting()), candidates=8)
    found = ask(with_store, k=4, filter=Filter(readers=("bob",)))
    assert len(found.hits) == 4
    assert found.store == "memory"
    assert asked == [8, 32, 128]


def test_a_narrow_condition_that_no_store_has_is_compared_here(filled: Mirrored) -> None:
    with_store = retriever(filled.notes, stores_of(filled.notes, memory=filled.store))
    found = ask(with_store, k=10, filter=Filter(tags=("t3",)))
    assert {hit.document.tags for hit in found.hits} == {("t3",)}
    assert (len(found.hits), found.store) == (4, "pgvector")


class Gone(MemoryStore):
    """A store that is away."""

    def near(self, *_: object) -> list[Neighbour]:
        raise StoreUnavailable("it is away")


@pytest.mark.req("001-013")
def test_the_next_store_answers_for_one_that_is_away_then_pgvector_then_words(
    filled: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(filled.notes, "other", preferred=False)
    second = Mirrored.__new__(Mirrored)
    second.notes, second.store = filled.notes, MemoryStore()
    second.mirror = type(filled.mirror)(filled.notes.database, "other", second.store)
    second.carry()
    both = stores_of(filled.notes, memory=Gone(), other=second.store)
    found = ask(retriever(filled.notes, both))
    assert (found.store, found.degradation_level, len(found.hits)) == ("other", 0, 5)
    assert both.avoided == ["memory"]
    neither = stores_of(filled.notes, memory=Gone(), other=Gone())
    found = ask(retriever(filled.notes, neither))
    assert (found.store, len(found.hits)) == ("pgvector", 5)
    monkeypatch.setattr(registry, "EXACT_FITS", 10)
    found = ask(retriever(filled.notes, neither), "kestrel3", mode="hybrid")
    assert (found.store, found.degradation_level) == ("words", 3)
    assert found.hits[0].document.title == "Title of d3"


def test_a_store_that_was_emptied_is_not_believed(filled: Mirrored) -> None:
    filled.store.collections.clear()
    found = ask(retriever(filled.notes, stores_of(filled.notes, memory=filled.store)))
    assert (found.store, len(found.hits)) == ("pgvector", 5)
    nothing = ask(
        retriever(filled.notes, stores_of(filled.notes, memory=filled.store)),
        filter=Filter(projects=(uuid4(),)),
    )
    assert nothing.hits == []


def test_a_store_that_is_slow_is_left_alone_for_a_while(filled: Mirrored) -> None:
    now = [0.0]

    class Slow(MemoryStore):
        def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
            now[0] += 3.0
            found: list[Neighbour] = filled.store.near(vector, n, scope)
            return found

    stores = VectorStores(
        filled.notes.database,
        {"memory": StoreOptions("memory")},
        opener=lambda _: Slow(),
        clock=lambda: now[0],
    )
    names = [ask(retriever(filled.notes, stores)).store for _ in range(2)]
    now[0] += 20
    assert [*names, ask(retriever(filled.notes, stores)).store] == ["memory", "pgvector", "memory"]


@pytest.mark.req("001-007")
def test_a_switch_is_one_update_that_running_searches_notice(filled: Mirrored) -> None:
    now = [0.0]
    stores = VectorStores(
        filled.notes.database,
        {"memory": StoreOptions("memory")},
        opener=lambda _: filled.store,
        clock=lambda: now[0],
    )
    found = []
    for name in ("pgvector", "memory"):
        found.append(ask(retriever(filled.notes, stores)).store)
        with filled.notes.database.control() as connection:
            outbox.switch(connection, name)
        now[0] += 3
    assert [*found, ask(retriever(filled.notes, stores)).store] == ["memory", "pgvector", "memory"]


# --- a store that lies ---

EXAMPLES = int(os.environ.get("LARDER_CASES", "250"))
"""Searches of a store that lies."""


class Liar(MemoryStore):
    """Answers with whatever it was told, whoever asks."""

    answer: Callable[[int], list[Neighbour]] = staticmethod(lambda _n: [])

    def near(self, _vector: FloatVector, n: int, _scope: Scope) -> list[Neighbour]:
        return self.answer(n)


class World:
    """Two tenants with documents of every kind that must not be shown."""

    def __init__(self, database: Database) -> None:
        self.notes = SourceLedger(database, uuid4(), uuid4())
        self.other = SourceLedger(database, uuid4(), uuid4())
        for n in range(24):
            self.notes.admit(document(f"d{n}", paragraphs(2, f"kestrel{n}")))
        self.other.admit(document("theirs", paragraphs(2, "kestrel theirs")))
        for notes in (self.notes, self.other):
            notes.index()
        self.notes.admit(document("d0", paragraphs(1, "shorter")))  # the second chunk is stale
        self.notes.index()
        self.notes.set("d1", hidden=True)
        self.notes.set("d2", hidden=True, deleted=True)
        self.notes.set("d3", security_level="secret")
        self.notes.set("d4", served_level="secret")
        self.notes.set("d5", metadata={**self.notes.row("d5")["metadata"], "acl": [["ann"]]})
        self.notes.set("d6", project_id=uuid4())
        self.forbidden = {self.notes.id(f"d{n}") for n in range(1, 7)} | {self.other.id("theirs")}
        ids = [self.notes.id(f"d{n}") for n in range(24)] + [self.other.id("theirs"), uuid4()]
        self.ids = [f"{id_}:{n}" for id_ in ids for n in range(3)]
        self.ids += [
            "",
            ":",
            "x:1",
            f"{ids[0]}:-1",
            f"{ids[0]}:99",
            f"{ids[0]}",
            f"{ids[7]}:2147483648",
            "💥:0",
        ]
        self.liar = Liar()
        set_up(self.notes)
        Mirrored.carry(mirrored(self.notes))
        self.retriever = retriever(self.notes, stores_of(self.notes, memory=self.liar))
        self.filter = Filter(projects=(self.notes.project,), security_levels=("internal",), readers=("bob",))


def mirrored(notes: SourceLedger) -> Mirrored:
    made = Mirrored.__new__(Mirrored)
    made.notes, made.store = notes, MemoryStore()
    from pipeline.search.stores.mirror import Mirror

    made.mirror = Mirror(notes.database, "memory", made.store)
    return made


@pytest.fixture(scope="module")
def world(shared_database: Database) -> World:
    return World(shared_database)


@settings(max_examples=EXAMPLES)
@given(data=st.data(), mode=st.sampled_from(["vector", "hybrid"]), dedupe=st.booleans())
def test_a_store_that_lies_shows_nothing_stale_foreign_or_restricted(
    world: World, data: st.DataObject, mode: str, dedupe: bool
) -> None:
    told = data.draw(st.lists(st.sampled_from(world.ids), max_size=60))
    similarity = data.draw(st.sampled_from([1.0, 0.0, -1.0, float("nan"), 1e9]))
    world.liar.answer = lambda n: [Neighbour(one, similarity) for one in told][: n if len(told) % 2 else None]
    found = ask(world.retriever, "kestrel7 word", mode=mode, dedupe=dedupe, k=30, filter=world.filter)
    assert {hit.document.id for hit in found.hits}.isdisjoint(world.forbidden)
    assert len({hit.id for hit in found.hits}) == len(found.hits)
    stale = world.notes.id("d0")
    assert [hit.chunk.ord for hit in found.hits if hit.document.id == stale] in ([], [0])
    true = {
        hit.id: hit.score for hit in ask(EXACT(world), "kestrel7 word", mode=mode, dedupe=False, k=50).hits
    }
    assert all(hit.score == pytest.approx(true[hit.id]) for hit in found.hits), (
        "similarities are PostgreSQL's"
    )


def EXACT(world: World) -> Retriever:  # noqa: N802
    return retriever(world.notes, None, exact_below=10_000, candidates=100)
