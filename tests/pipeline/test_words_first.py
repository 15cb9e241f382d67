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
from tests.pipeline.source_ledger import SourceLedger, document


@pytest.fixture
def notes(alone: SourceLedger) -> SourceLedger:
    """With one document that is indexed."""
    alone.admit(document("old", "A heron stands in the reeds."))
    alone.index()
    return alone


def cut(notes: SourceLedger, *names: str) -> None:
    notes.indexer().chunk(notes.tenant, notes.items(*names))


def embed(notes: SourceLedger) -> None:
    for step in (notes.indexer().embed, notes.indexer().upsert):
        step(notes.tenant, notes.items())


def search(notes: SourceLedger, text: str, mode: Any = "hybrid", **wanted: Any) -> SearchResults:
    # All by the vector index, if there is one: 0 chunks are few enough to compare them all.
    made = Retriever(
        notes.database, notes.tenant, lambda _index: notes.embedder, RetrievalOptions(exact_below=0)
    )
    return made.search(SearchRequest(text=text, mode=mode, filter=Filter(**wanted), explain=True))


def titles(found: SearchResults) -> list[str]:
    return [hit.document.title.removeprefix("Title of ") for hit in found.hits]


def test_words_are_found_before_the_vectors_are_there(notes: SourceLedger) -> None:
    notes.admit(document("new", "A kestrel hovers above the field."))
    assert titles(search(notes, "kestrel", "keyword")) == []
    cut(notes)
    for mode in ("hybrid", "keyword"):
        found = search(notes, "kestrel", mode)
        assert titles(found)[0] == "new"
        assert found.partial == Partial(without_vectors=1, documents=2)
        assert found.hits[0].explanation is not None
        assert found.hits[0].explanation.similarity is None
    assert titles(search(notes, "kestrel or heron", "vector")) == ["old"]
    assert str(found.partial) == "1 of 2 documents have no vectors yet"
    with notes.database.control() as connection:
        assert partial_of_all(connection) == found.partial
    # Whoever may not see all is not told how much there is.
    assert search(notes, "kestrel", readers=("unnamed",)).partial == Partial()

    embed(notes)
    found = search(notes, "kestrel")
    assert found.partial is None
    assert found.hits[0].explanation is not None
    assert found.hits[0].explanation.similarity is not None
    assert sorted(titles(search(notes, "kestrel or heron", "vector"))) == ["new", "old"]
    assert not len(notes.chunks(embedding=None))
    with notes.database.control() as connection:
        assert partial_of_all(connection) is None


def test_answers_kept_from_before_no_longer_hold_once_words_are_found(notes: SourceLedger) -> None:
    def state() -> str:
        snapshot = read_snapshot(notes.database, notes.tenant)
        assert snapshot is not None
        return snapshot.state

    notes.admit(document("new", "A kestrel hovers above the field."))
    before = state()
    cut(notes)
    assert state() != before


def test_nobody_is_told_that_something_is_loaded_that_they_may_not_see(notes: SourceLedger) -> None:
    notes.admit(document("hush", "A kestrel is nobody's business.", security_level="confidential"))
    cut(notes)
    low, high = ("public", "internal"), ("public", "internal", "confidential")
    elsewhere = (project_id(notes.tenant, "elsewhere"),)
    told = [
        search(notes, "kestrel", security_levels=levels, readers=("user:ann",), projects=projects).partial
        for levels, projects in ((low, ALL), (high, ALL), (high, elsewhere))
    ]
    assert told == [None, Partial(), None]


def test_the_vectors_come_to_the_very_rows(notes: SourceLedger) -> None:
    run = notes.open_run()
    notes.admit(document("new", "A kestrel hovers."), run=run)
    cut(notes)
    for one in notes.chunks(embedding=None):
        notes.chunks.set({"document_id": one["document_id"], "ord": one["ord"]}, length=77)
    embed(notes)
    assert notes.chunks.one(document_id=notes.id("new"))["length"] == 77
    notes.close_run(run)
    assert (notes.run(run).chunks_written, notes.run(run).chunks_kept) == (1, 0)


def test_what_is_indexed_is_found_whole_until_its_new_version_is(notes: SourceLedger) -> None:
    notes.admit(document("old", "A kestrel hovers."))
    cut(notes)
    assert notes.contents("old") == ["A heron stands in the reeds."]
    assert titles(search(notes, "kestrel", "keyword")) == []
    assert titles(search(notes, "heron", "keyword")) == ["old"]
    assert search(notes, "heron").partial is None
    embed(notes)
    assert titles(search(notes, "kestrel", "keyword")) == ["old"]
    assert titles(search(notes, "heron", "keyword")) == []


class TestRights:
    """They hold for what is found by words alone just as well."""

    @pytest.mark.parametrize(("before", "now"), [("public", "restricted"), ("restricted", "public")])
    def test_of_a_new_level_the_old_words_are_not_found(
        self, notes: SourceLedger, before: str, now: str
    ) -> None:
        notes.admit(document("new", "A kestrel hovers.", security_level=before))
        cut(notes)
        assert titles(search(notes, "kestrel", security_levels=(before,), mode="keyword")) == ["new"]
        notes.admit(document("new", "An owl calls.", security_level=now))
        for levels in ((before,), (now,), (before, now)):
            assert titles(search(notes, "kestrel", "keyword", security_levels=levels)) == []
        cut(notes)
        assert titles(search(notes, "owl", "keyword", security_levels=(before,))) == []
        assert titles(search(notes, "owl", "keyword", security_levels=(now,))) == ["new"]
        assert titles(search(notes, "kestrel", "keyword", security_levels=(before, now))) == []

    def test_readers_and_projects(self, notes: SourceLedger) -> None:
        notes.admit(document("new", "A kestrel hovers.", metadata={"acl": [["anna"]]}))
        cut(notes)
        assert titles(search(notes, "kestrel", "keyword", readers=("anna",))) == ["new"]
        assert titles(search(notes, "kestrel", "keyword", readers=("ben",))) == []
        assert titles(search(notes, "kestrel", "keyword", projects=(notes.source,))) == []

    def test_hidden_then_deleted(self, notes: SourceLedger) -> None:
        notes.admit(document("new", "A kestrel hovers."))
        cut(notes)
        guard = admission.DeletionGuard()
        for rows in (1, 0):
            with notes.database.tenant(notes.tenant) as connection:
                admission.prune(
                    connection, notes.source, Listing(ids=frozenset({"old"}), complete=True), guard
                )
            for mode in ("hybrid", "keyword"):
                assert "new" not in titles(search(notes, "kestrel", mode))
            assert len(notes.chunks(document_id=notes.id("new"))) == rows
        assert search(notes, "heron").partial is None

    def test_cleared(self, notes: SourceLedger) -> None:
        notes.admit(document("new", "A kestrel hovers."))
        cut(notes)
        with notes.database.tenant(notes.tenant) as connection:
            assert documents.clear(connection, None) == (2, 2)
        assert titles(search(notes, "kestrel", "keyword")) == []

    def test_a_late_cut_of_a_version_that_was_replaced(self, notes: SourceLedger) -> None:
        notes.admit(document("new", "A kestrel hovers.", security_level="public"))
        late = notes.indexer(chunker_of=lambda _name, _type: Late(notes))
        late.chunk(notes.tenant, notes.items("new"))
        assert titles(search(notes, "kestrel", "keyword")) == []
        cut(notes)
        assert titles(search(notes, "owl", "keyword", security_levels=("restricted",))) == ["new"]

    def test_another_tenant(self, notes: SourceLedger, another: Callable[[], SourceLedger]) -> None:
        other = another()
        other.admit(document("new", "A kestrel hovers."))
        cut(other)
        assert titles(search(other, "kestrel", "keyword")) == ["new"]
        assert titles(search(notes, "kestrel", "keyword")) == []
        assert search(notes, "heron").partial is None


class Late:
    """A chunker at whose work the document changes."""

    version = "late"

    def __init__(self, notes: SourceLedger) -> None:
        self.notes = notes

    def chunk(self, given: Any) -> Any:
        found = self.notes.chunker.chunk(given)
        self.notes.admit(document("new", "An owl calls.", security_level="restricted"))
        return found


@pytest.fixture
def another(notes: SourceLedger) -> Callable[[], SourceLedger]:
    return lambda: SourceLedger(notes.database, uuid4(), uuid4())


def test_while_an_index_is_built_nothing_waits_for_it(notes: SourceLedger) -> None:
    notes.admit(document("new", "A kestrel hovers."))
    with notes.database.control() as connection:
        search_indexes.request_builds(connection)
        index = notes.indexes.one()["id"]
        build = search_indexes.claim_build(connection, index, lease=60)
        assert build is not None
    cut(notes)
    assert (notes.row("new")["stage"], notes.row("new")["chunk_count"]) == ("chunked", 0)
    assert titles(search(notes, "kestrel", "keyword")) == []
    with notes.database.control() as connection:
        search_indexes.finish_build(connection, build)
    embed(notes)
    assert titles(search(notes, "kestrel", "keyword")) == ["new"]


def test_vectors_are_not_indexed_for_the_sake_of_words(notes: SourceLedger) -> None:
    notes.admit(*(document(f"d{n}", f"Word {n}.") for n in range(5)))
    cut(notes)
    with notes.database.control() as connection:
        index = active_index(connection)
        assert index is not None
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=6) == (True, False)
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=1) == (True, True)
    embed(notes)
    with notes.database.control() as connection:
        assert term_statistics.build_due(connection, index, exact_below=1, build_at=6) == (True, True)


def test_words_are_counted_when_there_are_many_more(notes: SourceLedger) -> None:
    def counted(word: str) -> Any:
        return next(iter(notes.lexemes.values("chunks", lexeme=word)), None)

    def outgrown() -> bool:
        with notes.database.control() as connection:
            return upkeep.have_outgrown_counts(connection)

    search(notes, "heron")
    assert counted("heron") == 1
    assert not outgrown()
    notes.admit(*(document(f"d{n}", "A kestrel hovers.") for n in range(upkeep.OUTGROWN - 1)))
    cut(notes)
    assert not outgrown()
    notes.admit(document("one more", "A kestrel hovers."))
    cut(notes)
    assert outgrown()
    with notes.database.control() as connection:
        assert upkeep.tenants_to_count(connection) == [notes.tenant]
    with notes.database.tenant(notes.tenant) as connection:
        index = active_index(connection)
        assert index is not None
        term_statistics.refresh(connection, notes.tenant, index.id)
    assert counted("kestrel") == upkeep.OUTGROWN
    assert not outgrown()


def test_a_document_that_can_never_be_embedded_stays_found_by_words(notes: SourceLedger) -> None:
    notes.admit(document("new", "A kestrel hovers."))
    cut(notes)
    notes.set("new", state="dead")
    found = search(notes, "kestrel", "keyword")
    assert titles(found) == ["new"]
    assert found.partial is None
