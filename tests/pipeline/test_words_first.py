"""Documents are found by their words as soon as they are cut, and by meaning when their vectors are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pipeline.documents import Listing
from pipeline.ledger import ALL, admission, documents, project_id, search_indexes, upkeep
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults, term_statistics
from pipeline.search.cache import partial_of_all, read_snapshot
from pipeline.search.chunk_store import active_index
from pipeline.search.records import Filter, Partial
from tests.pipeline.workshop import Workshop, document


@pytest.fixture
def shop(alone: Workshop) -> Workshop:
    """With one document that is indexed."""
    alone.admit(document("old", "A heron stands in the reeds."))
    alone.index()
    return alone


def cut(shop: Workshop, *names: str) -> None:
    shop.indexer().chunk(shop.tenant, shop.items(*names))


def embed(shop: Workshop) -> None:
    for step in (shop.indexer().embed, shop.indexer().upsert):
        step(shop.tenant, shop.items())


def search(shop: Workshop, text: str, mode: Any = "hybrid", **wanted: Any) -> SearchResults:
    # All by the vector index, if there is one: 0 chunks are few enough to compare them all.
    made = Retriever(
        shop.database, shop.tenant, lambda _index: shop.embedder, RetrievalOptions(exact_below=0)
    )
    return made.search(SearchRequest(text=text, mode=mode, filter=Filter(**wanted), explain=True))


def titles(found: SearchResults) -> list[str]:
    return [hit.document.title.removeprefix("Title of ") for hit in found.hits]


def test_words_are_found_before_the_vectors_are_there(shop: Workshop) -> None:
    shop.admit(document("new", "A kestrel hovers above the field."))
    assert titles(search(shop, "kestrel", "keyword")) == []
    cut(shop)
    for mode in ("hybrid", "keyword"):
        found = search(shop, "kestrel", mode)
        assert titles(found)[0] == "new"
        assert found.partial == Partial(without_vectors=1, documents=2)
        assert found.hits[0].explanation is not None
        assert found.hits[0].explanation.similarity is None
    assert titles(search(shop, "kestrel or heron", "vector")) == ["old"]
    assert str(found.partial) == "1 of 2 documents have no vectors yet"
    with shop.database.control() as connection:
        assert partial_of_all(connection) == found.partial
    # Whoever may not see all is not told how much there is.
    assert search(shop, "kestrel", readers=("unnamed",)).partial == Partial()

    embed(shop)
    found = search(shop, "kestrel")
    assert found.partial is None
    assert found.hits[0].explanation is not None
    assert found.hits[0].explanation.similarity is not None
    assert sorted(titles(search(shop, "kestrel or heron", "vector"))) == ["new", "old"]
    assert not len(shop.chunks(embedding=None))
    with shop.database.control() as connection:
        assert partial_of_all(connection) is None


def test_answers_kept_from_before_no_longer_hold_once_words_are_found(shop: Workshop) -> None:
    def state() -> str:
        snapshot = read_snapshot(shop.database, shop.tenant)
        assert snapshot is not None
        return snapshot.state

    shop.admit(document("new", "A kestrel hovers above the field."))
    before = state()
    cut(shop)
    assert state() != before


def test_nobody_is_told_that_something_is_loaded_that_they_may_not_see(shop: Workshop) -> None:
    shop.admit(document("hush", "A kestrel is nobody's business.", security_level="confidential"))
    cut(shop)
    low, high = ("public", "internal"), ("public", "internal", "confidential")
    elsewhere = (project_id(shop.tenant, "elsewhere"),)
    told = [
        search(shop, "kestrel", security_levels=levels, readers=("user:ann",), projects=projects).partial
        for levels, projects in ((low, ALL), (high, ALL), (high, elsewhere))
    ]
    assert told == [None, Partial(), None]


def test_the_vectors_come_to_the_very_rows(shop: Workshop) -> None:
    run = shop.open_run()
    shop.admit(document("new", "A kestrel hovers."), run=run)
    cut(shop)
    for one in shop.chunks(embedding=None):
        shop.chunks.set({"document_id": one["document_id"], "ord": one["ord"]}, length=77)
    embed(shop)
    assert shop.chunks.one(document_id=shop.id("new"))["length"] == 77
    shop.close_run(run)
    assert (shop.run(run).chunks_written, shop.run(run).chunks_kept) == (1, 0)


def test_what_is_indexed_is_found_whole_until_its_new_version_is(shop: Workshop) -> None:
    shop.admit(document("old", "A kestrel hovers."))
    cut(shop)
    assert shop.contents("old") == ["A heron stands in the reeds."]
    assert titles(search(shop, "kestrel", "keyword")) == []
    assert titles(search(shop, "heron", "keyword")) == ["old"]
    assert search(shop, "heron").partial is None
    embed(shop)
    assert titles(search(shop, "kestrel", "keyword")) == ["old"]
    assert titles(search(shop, "heron", "keyword")) == []


class TestRights:
    """They hold for what is found by words alone just as well."""

    @pytest.mark.parametrize(("before", "now"), [("public", "restricted"), ("restricted", "public")])
    def test_of_a_new_level_the_old_words_are_not_found(self, shop: Workshop, before: str, now: str) -> None:
        shop.admit(document("new", "A kestrel hovers.", security_level=before))
        cut(shop)
        assert titles(search(shop, "kestrel", security_levels=(before,), mode="keyword")) == ["new"]
        shop.admit(document("new", "An owl calls.", security_level=now))
        for levels in ((before,), (now,), (before, now)):
            assert titles(search(shop, "kestrel", "keyword", security_levels=levels)) == []
        cut(shop)
        assert titles(search(shop, "owl", "keyword", security_levels=(before,))) == []
        assert titles(search(shop, "owl", "keyword", security_levels=(now,))) == ["new"]
        assert titles(search(shop, "kestrel", "keyword", security_levels=(before, now))) == []

    def test_readers_and_projects(self, shop: Workshop) -> None:
        shop.admit(document("new", "A kestrel hovers.", metadata={"acl": [["anna"]]}))
        cut(shop)
        assert titles(search(shop, "kestrel", "keyword", readers=("anna",))) == ["new"]
        assert titles(search(shop, "kestrel", "keyword", readers=("ben",))) == []
        assert titles(search(shop, "kestrel", "keyword", projects=(shop.source,))) == []

    def test_hidden_then_deleted(self, shop: Workshop) -> None:
        shop.admit(document("new", "A kestrel hovers."))
        cut(shop)
        guard = admission.DeletionGuard()
        for rows in (1, 0):
            with shop.database.tenant(shop.tenant) as connection:
                admission.prune(
                    connection, shop.source, Listing(ids=frozenset({"old"}), complete=True), guard
                )
            for mode in ("hybrid", "keyword"):
                assert "new" not in titles(search(shop, "kestrel", mode))
            assert len(shop.chunks(document_id=shop.id("new"))) == rows
        assert search(shop, "heron").partial is None

    def test_cleared(self, shop: Workshop) -> None:
        shop.admit(document("new", "A kestrel hovers."))
        cut(shop)
        with shop.database.tenant(shop.tenant) as connection:
            assert documents.clear(connection, None) == (2, 2)
        assert titles(search(shop, "kestrel", "keyword")) == []

    def test_a_late_cut_of_a_version_that_was_replaced(self, shop: Workshop) -> None:
        shop.admit(document("new", "A kestrel hovers.", security_level="public"))
        late = shop.indexer(chunker_of=lambda _name, _type: Late(shop))
        late.chunk(shop.tenant, shop.items("new"))
        assert titles(search(shop, "kestrel", "keyword")) == []
        cut(shop)
        assert titles(search(shop, "owl", "keyword", security_levels=("restricted",))) == ["new"]

    def test_another_tenant(self, shop: Workshop, another: Callable[[], Workshop]) -> None:
        other = another()
        other.admit(document("new", "A kestrel hovers."))
        cut(other)
        assert titles(search(other, "kestrel", "keyword")) == ["new"]
        assert titles(search(shop, "kestrel", "keyword")) == []
        assert search(shop, "heron").partial is None


class Late:
    """A chunker at whose work the document changes."""

    version = "late"

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop

    def chunk(self, given: Any) -> Any:
        found = self.shop.chunker.chunk(given)
        self.shop.admit(document("new", "An owl calls.", security_level="restricted"))
        return found


@pytest.fixture
def another(shop: Workshop) -> Callable[[], Workshop]:
    return lambda: Workshop(shop.database, uuid4(), uuid4())


def test_while_an_index_is_built_nothing_waits_for_it(shop: Workshop) -> None:
    shop.admit(document("new", "A kestrel hovers."))
    with shop.database.control() as connection:
        search_indexes.request_builds(connection)
        index = shop.indexes.one()["id"]
        build = search_indexes.claim_build(connection, index, lease=60)
        assert build is not None
    cut(shop)
    assert (shop.row("new")["stage"], shop.row("new")["chunk_count"]) == ("chunked", 0)
    assert titles(search(shop, "kestrel", "keyword")) == []
    with shop.database.control() as connection:
        search_indexes.finish_build(connection, build)
    embed(shop)
    assert titles(search(shop, "kestrel", "keyword")) == ["new"]


def test_vectors_are_not_indexed_for_the_sake_of_words(shop: Workshop) -> None:
    shop.admit(*(document(f"d{n}", f"Word {n}.") for n in range(5)))
    cut(shop)
    with shop.database.control() as connection:
        index = active_index(connection)
        assert index is not None
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=6) == (True, False)
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=1) == (True, True)
    embed(shop)
    with shop.database.control() as connection:
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=6) == (True, True)


def test_words_are_counted_when_there_are_many_more(shop: Workshop) -> None:
    def counted(word: str) -> Any:
        return next(iter(shop.lexemes.values("chunks", lexeme=word)), None)

    def outgrown() -> bool:
        with shop.database.control() as connection:
            return upkeep.have_outgrown_counts(connection)

    search(shop, "heron")
    assert counted("heron") == 1
    assert not outgrown()
    shop.admit(*(document(f"d{n}", "A kestrel hovers.") for n in range(upkeep.OUTGROWN - 1)))
    cut(shop)
    assert not outgrown()
    shop.admit(document("one more", "A kestrel hovers."))
    cut(shop)
    assert outgrown()
    with shop.database.control() as connection:
        assert upkeep.tenants_to_count(connection) == [shop.tenant]
    with shop.database.tenant(shop.tenant) as connection:
        index = active_index(connection)
        assert index is not None
        term_statistics.refresh(connection, shop.tenant, index.id)
    assert counted("kestrel") == upkeep.OUTGROWN
    assert not outgrown()


def test_a_document_that_can_never_be_embedded_stays_found_by_words(shop: Workshop) -> None:
    shop.admit(document("new", "A kestrel hovers."))
    cut(shop)
    shop.set("new", state="dead")
    found = search(shop, "kestrel", "keyword")
    assert titles(found) == ["new"]
    assert found.partial is None
