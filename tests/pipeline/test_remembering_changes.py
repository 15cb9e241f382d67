"""Changes through the product's own steps, after which no answer is given again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Listing
from pipeline.embedding import Vectors
from pipeline.ledger import admission
from pipeline.search import Retriever, SearchRequest
from pipeline.search.cache import Caches, MemoryCache
from pipeline.search.chunks import Mode
from pipeline.search.result_cache import state
from tests.pipeline.remembering import Asker
from tests.pipeline.shelf import OTHER, Shelf
from tests.pipeline.workshop import Workshop, document


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
        admission.prune(connection, shop.source, listing, admission.DeletionGuard())


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
    asker = Asker(shop.database, shop.tenant, shop.embedder)
    asker.search()
    assert asker.search().remembered
    step(shop)
    found = asker.search()
    assert not found.remembered
    assert {hit.chunk.content for hit in found.hits} == contents
    assert asker.search().remembered or not contents


@pytest.mark.req("001-098")
def test_an_answer_of_the_time_between_reading_and_indexing_ends_with_the_indexing(shop: Workshop) -> None:
    asker = Asker(shop.database, shop.tenant, shop.embedder)
    shop.admit(document("one", "the kestrel rests"), document("two", "an otter swims"))
    between = asker.search()
    assert "the kestrel hovers" in {hit.chunk.content for hit in between.hits}
    assert asker.search().remembered
    shop.index()
    found = asker.search()
    assert not found.remembered
    assert {hit.chunk.content for hit in found.hits} == {"the kestrel rests", "an otter swims"}


def test_a_change_that_is_not_committed_changes_nothing(shop: Workshop) -> None:
    asker = Asker(shop.database, shop.tenant, shop.embedder)
    asker.search()

    def undone() -> None:
        with shop.database.tenant(shop.tenant) as connection:
            admission.remove(connection, [shop.id("one")])
            assert asker.search().remembered, "not visible yet"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    assert asker.search().remembered


class Moving(Database):
    """The same database; something happens right after a statement that has `what` in it, once."""

    def __init__(self, of: Database, what: str, happens: Callable[[], None]) -> None:
        self.__dict__.update(vars(of))
        self.what, self.happens, self.done = what, happens, False

    def ask(
        self, tenant_id: UUID, statement: str, values: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        rows = super().ask(tenant_id, statement, values, **options)
        if self.what in statement and not self.done:
            self.done = True
            self.happens()
        return rows


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("hybrid", "as score"),  # one statement finds, ranks and reads
        ("keyword", "select v.document_id"),
        ("keyword", "unnest"),  # the texts
    ],
)
def test_an_answer_made_while_a_change_becomes_visible_is_not_kept_as_new(
    shop: Workshop, mode: Mode, what: str
) -> None:
    """Searched before the commit, kept after it: the state is that of the search, so nobody is given it."""
    moving = Moving(shop.database, what, lambda: change(shop))
    asker = Asker(moving, shop.tenant, shop.embedder)
    asker.search(mode=mode)
    assert moving.done
    found = asker.search(mode=mode)
    assert not found.remembered
    assert "the kestrel rests" in {hit.chunk.content for hit in found.hits}
    assert asker.search(mode=mode).remembered


def test_a_change_while_the_question_is_embedded_is_in_the_answer_that_is_kept(shop: Workshop) -> None:
    asker = Asker(shop.database, shop.tenant, shop.embedder)
    plain = asker.embedder

    class Slow:
        model, dimensions, limits = plain.model, plain.dimensions, plain.limits
        count_tokens = plain.count_tokens

        def embed_query(self, text: str) -> Vectors:
            found: Vectors = plain.embed_query(text)
            change(shop)
            return found

    asker.embedder = Slow()
    first, again = asker.search(), asker.search()
    assert again == replace(first, remembered=True)
    assert "the kestrel rests" in {hit.chunk.content for hit in again.hits}


def test_an_answer_out_of_an_index_that_was_replaced_is_not_given(shelf: Shelf) -> None:
    """A switch changes no document, so no state."""
    shop, embedders = shelf.shop, {32: shelf.shop.embedder, OTHER: shelf.embedder}
    results = MemoryCache()
    retriever = Retriever(
        shop.database,
        shop.tenant,
        lambda index: embedders[index.dimensions],
        caches=Caches(results=results),
    )
    request = SearchRequest(text="paragraph", min_similarity=-1.0)
    shelf.fill()
    first = retriever.search(request)
    assert first.hits
    assert retriever.search(request).remembered
    before = state(partial(shop.database.ask, shop.tenant))
    shelf.switch()
    assert state(partial(shop.database.ask, shop.tenant)) == before
    found = retriever.search(request)
    assert (first.model, found.model) == ("hashing-32", f"hashing-{OTHER}")
    assert not found.remembered
    assert retriever.search(request).model == found.model
    assert retriever.search(request).remembered
    shelf.switch()
    assert retriever.search(request).model == first.model


def test_the_ledgers_own_steps_change_no_state(shop: Workshop) -> None:
    def now() -> str:
        return state(partial(shop.database.ask, shop.tenant))

    before = now()
    shop.set("one", "attempts = attempts + 1, due_at = now(), state = 'pending', lease_until = now()")
    assert now() == before != ""
    shop.set("one", "hidden = true")
    assert now() != before


def test_changes_of_one_tenant_leave_the_others_alone(shared_database: Database, shop: Workshop) -> None:
    other = Workshop(shared_database, uuid4(), uuid4())
    other.admit(document("x", "a kestrel elsewhere"))
    other.index()
    asker = Asker(shop.database, shop.tenant, shop.embedder)
    asker.search()
    other.sql("update document set hidden = true")
    assert asker.search().remembered
