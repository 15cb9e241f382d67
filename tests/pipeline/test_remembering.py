"""Answers that are given again, and the changes after which they are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from pipeline.caching import Caches, MemoryCache
from pipeline.database import Database
from pipeline.documents import Kind, Listing
from pipeline.embedding import Vectors
from pipeline.ledger import absence, admission
from pipeline.retrieval import Retriever, SearchRequest, SearchResults, Weights
from pipeline.retrieval.remembering import state
from pipeline.stores import Filter
from pipeline.stores.pgvector_query import LedgerFilter
from tests.pipeline.stores.depot import Depot
from tests.pipeline.workshop import Workshop, document


class Counting:
    """A retriever with caches, and how often its embedder was asked."""

    def __init__(self, database: Database, tenant: UUID, embedder: Any, **options: Any) -> None:
        self.asked = 0
        self.embedder = embedder
        self.model, self.dimensions, self.limits = embedder.model, embedder.dimensions, embedder.limits
        self.results, self.vectors = MemoryCache(), MemoryCache()
        self.retriever = Retriever(
            database,
            tenant,
            lambda _index: self,
            caches=Caches(vectors=self.vectors, results=self.results),
            **options,
        )

    def embed_query(self, text: str) -> Vectors:
        self.asked += 1
        found: Vectors = self.embedder.embed_query(text)
        return found

    def embed_documents(self, texts: Any) -> Vectors:
        found: Vectors = self.embedder.embed_documents(texts)
        return found

    def count_tokens(self, text: str) -> int:
        return int(self.embedder.count_tokens(text))

    def search(self, words: str = "kestrel", *, level: int = 0, **changes: Any) -> SearchResults:
        return self.retriever.search(SearchRequest(text=words, min_similarity=-1.0, **changes), level=level)


@pytest.fixture
def depot(shared_database: Database) -> Depot:
    made = Depot(shared_database, exact_below=10_000)
    made.put("the kestrel hovers", title="Kestrels", kind=Kind.DECISION)
    made.put("an otter swims", title="Otters")
    made.count()
    return made


@pytest.fixture
def asker(depot: Depot) -> Counting:
    return Counting(depot.database, depot.tenant, depot.embedder)


@pytest.mark.req("001-096", "001-098")
def test_the_same_question_is_answered_from_memory_alike(asker: Counting) -> None:
    first, again = asker.search(explain=True), asker.search(explain=True)
    assert (first.remembered, again.remembered) == (False, True)
    assert asker.asked == 1
    assert again == replace(first, remembered=True)
    assert again.hits[0].explanation is not None
    plain = asker.search()
    assert plain.remembered
    assert plain.hits[0].explanation is None


@pytest.mark.parametrize(
    "other",
    [
        {"words": "kestrels"},
        {"k": 1},
        {"mode": "keyword"},
        {"dedupe": False},
        {"filter": Filter(kinds=(Kind.DECISION,))},
        {"filter": LedgerFilter(security_levels=("public",))},
        {"filter": LedgerFilter(security_levels=("internal",))},
        {"trace": True},
    ],
)
def test_another_question_filter_or_right_is_another_answer(asker: Counting, other: dict[str, Any]) -> None:
    asker.search()
    assert not asker.search(**other).remembered


def test_other_options_are_another_answer(depot: Depot, asker: Counting) -> None:
    asker.search()
    options = replace(asker.retriever.options, weights=Weights(title=9.0))
    other = Counting(depot.database, depot.tenant, depot.embedder, options=options)
    other.retriever._results = asker.retriever._results
    assert not other.search().remembered


def test_another_tenant_is_never_answered_from_it(shared_database: Database, depot: Depot) -> None:
    one = Counting(depot.database, depot.tenant, depot.embedder)
    stranger = Depot(shared_database, exact_below=10_000)
    stranger.put("a kestrel of the stranger", title="Strange")
    two = Counting(shared_database, stranger.tenant, depot.embedder)
    two.results = one.results
    two.retriever = Retriever(
        shared_database, stranger.tenant, lambda _i: two, caches=Caches(results=one.results)
    )
    one.search()
    found = two.search()
    assert not found.remembered
    assert [hit.document.title for hit in found.hits] == ["Strange"]


def test_no_text_lies_in_the_caches(asker: Counting) -> None:
    asker.search("kestrel secretword")
    kept = [
        value
        for cache in (asker.results, asker.vectors)
        for space, entries in cache._spaces.items()
        for key, (_, value) in entries.items()
        for value in (space.encode(), key.encode(), value)
    ]
    assert len(kept) == 6
    for word in (b"kestrel", b"Kestrel", b"hovers", b"secretword"):
        assert not any(word in value for value in kept)


@pytest.mark.req("001-010", "001-012")
def test_the_vector_of_a_question_is_made_once(asker: Counting) -> None:
    asker.search(k=1)
    asker.search(k=2)
    assert asker.asked == 1
    asker.search("otter")
    assert asker.asked == 2


@pytest.mark.parametrize("rubbish", [b"", b"{}", b"[1]", b'[{"document": "x"}]', b"\xff"])
def test_an_entry_that_cannot_be_read_is_none(asker: Counting, rubbish: bytes) -> None:
    found = asker.search()
    for entries in (*asker.results._spaces.values(), *asker.vectors._spaces.values()):
        for key, (until, _) in list(entries.items()):
            entries[key] = (until, rubbish)
    again = asker.search()
    assert not again.remembered or rubbish == b"{}"
    assert [hit.id for hit in again.hits] == [hit.id for hit in found.hits] or rubbish == b"{}"


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_kept_vector_that_is_none_is_made_anew(asker: Counting, number: float) -> None:
    found = asker.search(k=1)
    for entries in asker.vectors._spaces.values():
        for key, (until, value) in list(entries.items()):
            damaged = np.frombuffer(value, dtype="<f4").copy()
            damaged[3] = number
            entries[key] = (until, damaged.tobytes())
    again = asker.search(k=2)  # the answer to the same search is kept
    assert asker.asked == 2
    assert (again.hits[0].id, again.hits[0].score) == (found.hits[0].id, found.hits[0].score)


def test_a_hit_that_is_gone_without_a_trace_makes_the_answer_new(depot: Depot, asker: Counting) -> None:
    asker.search()
    depot.sql("delete from chunk where content like 'an otter%'")
    found = asker.search()
    assert not found.remembered
    assert [hit.document.title for hit in found.hits] == ["Kestrels"]


def test_what_a_reader_may_not_see_any_more_is_not_read_again(depot: Depot, asker: Counting) -> None:
    """Rights are part of the key, and checked once more when the text is read."""
    only = LedgerFilter(security_levels=("internal",))
    asker.search(filter=only)
    ((space, entries),) = asker.results._spaces.items()
    ((key, (_, kept)),) = entries.items()
    depot.sql("update document set security_level = 'secret' where title = 'Kestrels'")
    found = asker.search(filter=only)
    assert [hit.document.title for hit in found.hits] == ["Otters"]
    for key in list(entries):
        asker.results.put(space, key, kept)
    assert [hit.document.title for hit in asker.search(filter=only).hits] == ["Otters"]


# --- changes through the product's own steps ---


@pytest.fixture
def shop(shop: Workshop) -> Workshop:
    shop.admit(document("one", "the kestrel hovers"), document("two", "an otter swims"))
    shop.index()
    return shop


def change(shop: Workshop) -> None:
    shop.admit(document("one", "the kestrel rests"), document("two", "an otter swims"))
    shop.index()


def add(shop: Workshop) -> None:
    shop.admit(document("three", "another kestrel"))
    shop.index()


def remove(shop: Workshop) -> None:
    with shop.database.tenant(shop.tenant) as connection:
        admission.remove(connection, [shop.id("one")])


def hide(shop: Workshop) -> None:
    with shop.database.tenant(shop.tenant) as connection:
        listing = Listing(ids=frozenset({"two"}), complete=True)
        absence.prune(connection, shop.source, listing, absence.DeletionGuard())


def hide_by_hand(shop: Workshop) -> None:
    with shop.database.control() as connection:
        connection.exec_driver_sql("update document set hidden = true")


CHANGES: list[tuple[Callable[[Workshop], None], set[str]]] = [
    (change, {"the kestrel rests", "an otter swims"}),
    (add, {"the kestrel hovers", "an otter swims", "another kestrel"}),
    (remove, {"an otter swims"}),
    (hide, {"an otter swims"}),
    (hide_by_hand, set()),
]


@pytest.mark.req("001-098")
@pytest.mark.parametrize(("step", "contents"), CHANGES)
def test_after_a_change_nothing_old_is_answered(
    shop: Workshop, step: Callable[[Workshop], None], contents: set[str]
) -> None:
    asker = Counting(shop.database, shop.tenant, shop.embedder)
    asker.search()
    assert asker.search().remembered
    step(shop)
    found = asker.search()
    assert not found.remembered
    assert {hit.chunk.content for hit in found.hits} == contents
    assert asker.search().remembered or not contents


@pytest.mark.req("001-098")
def test_an_answer_of_the_time_between_reading_and_indexing_ends_with_the_indexing(shop: Workshop) -> None:
    asker = Counting(shop.database, shop.tenant, shop.embedder)
    shop.admit(document("one", "the kestrel rests"), document("two", "an otter swims"))
    between = asker.search()
    assert "the kestrel hovers" in {hit.chunk.content for hit in between.hits}
    assert asker.search().remembered
    shop.index()
    found = asker.search()
    assert not found.remembered
    assert {hit.chunk.content for hit in found.hits} == {"the kestrel rests", "an otter swims"}


def test_a_change_that_is_not_committed_changes_nothing(shop: Workshop) -> None:
    asker = Counting(shop.database, shop.tenant, shop.embedder)
    asker.search()

    def undone() -> None:
        with shop.database.tenant(shop.tenant) as connection:
            admission.remove(connection, [shop.id("one")])
            assert asker.search().remembered, "not visible yet"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    assert asker.search().remembered


def test_an_answer_made_while_a_change_becomes_visible_is_not_kept_as_new(shop: Workshop) -> None:
    """Searched before the commit, kept after it: the state was read first, so nobody is given it."""
    asker = Counting(shop.database, shop.tenant, shop.embedder)
    plain = asker.embedder

    class Slow:
        model, dimensions, limits = plain.model, plain.dimensions, plain.limits
        count_tokens = plain.count_tokens

        def embed_query(self, text: str) -> Vectors:
            found: Vectors = plain.embed_query(text)
            remove(shop)
            return found

    asker.embedder = Slow()
    asker.search()
    asker.embedder = plain
    assert not asker.search().remembered


def test_the_ledgers_own_steps_change_no_state(shop: Workshop) -> None:
    def now() -> str:
        return state(partial(shop.database.ask, shop.tenant))[0]

    before = now()
    shop.set("one", "attempts = attempts + 1, due_at = now(), state = 'pending', lease_until = now()")
    assert now() == before != ""
    shop.set("one", "hidden = true")
    assert now() != before


def test_changes_of_one_tenant_leave_the_others_alone(shared_database: Database, shop: Workshop) -> None:
    other = Workshop(shared_database, uuid4(), uuid4())
    other.admit(document("x", "a kestrel elsewhere"))
    other.index()
    asker = Counting(shop.database, shop.tenant, shop.embedder)
    asker.search()
    other.sql("update document set hidden = true")
    assert asker.search().remembered


# --- levels ---


@pytest.mark.req("001-098")
def test_level_two_answers_what_is_remembered_and_nothing_else(asker: Counting) -> None:
    assert asker.search(level=2).hits == ()
    assert asker.search(level=2).degradation_level == 2
    asker.search()
    found = asker.search(level=2)
    assert found.remembered
    assert found.hits[0].document.title == "Kestrels"
    assert found.degradation_level == 2


def test_level_three_goes_by_words_alone_and_is_not_kept(asker: Counting) -> None:
    for mode in ("hybrid", "vector"):
        found = asker.search(level=3, mode=mode)
        assert [hit.document.title for hit in found.hits] == ["Kestrels"]
        assert found.degradation_level == 3
    assert asker.asked == 0
    assert not asker.search().remembered


@pytest.mark.parametrize("level", [4, 5])
def test_level_four_looks_nothing_up(tenant: UUID, level: int) -> None:
    gone = Database("postgresql://nobody:x@127.0.0.1:1/none")
    found = Retriever(gone, tenant, lambda _i: None).search(SearchRequest(text="kestrel"), level=level)  # type: ignore[arg-type, return-value]
    assert found == SearchResults(degradation_level=level)
    gone.close()
