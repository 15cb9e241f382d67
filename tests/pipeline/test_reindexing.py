"""Filling a second search index in a real database: nothing missing, nothing stale, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Page
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ingest import work_in_progress
from pipeline.ledger import search_indexes
from pipeline.ledger.search_indexes import drop_index
from pipeline.search.chunk_store import active_index
from tests.ledger import ago
from tests.pipeline.picky import Interrupted
from tests.pipeline.shelf import OTHER, Shelf, first
from tests.pipeline.workshop import Workshop, document, paragraphs


def dims(vectors: list[Any]) -> list[int]:
    """How many numbers each has."""
    return [len(vector.to_list()) for vector in vectors]


def test_it_is_filled_with_what_the_active_index_has(shelf: Shelf) -> None:
    assert shelf.progress().missing == 2
    shelf.fill()
    p = shelf.progress()
    assert (p.total, p.missing, p.stale, p.dead, p.chunks, p.lag_seconds) == (2, 0, 0, 0, 5, None)
    assert shelf.contents() == shelf.contents(first(shelf))
    assert dims(shelf.shop.chunks.values("embedding")) == [32] * 5 + [OTHER] * 5
    assert shelf.due() == []


def test_each_index_has_its_own_centroids(shelf: Shelf) -> None:
    shelf.fill()
    assert dims(shelf.shop.indexed.values("centroid")) == [32] * 2 + [OTHER] * 2


def test_another_way_of_cutting_takes_the_stored_text(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    chunker = open_chunker(ChunkingOptions(strategy="fixed", min_size=0, max_size=60, overlap=0))
    shelf.fill(chunker_of=lambda _name, _type: chunker)
    contents = shelf.contents()["a"]
    assert len(contents) > 3
    assert max(map(len, contents)) <= 60
    assert alone.indexed.one(index_id=shelf.index.id)["chunk_count"] == len(contents)


def test_another_way_of_cutting_leaves_out_what_is_no_prose(alone: Workshop) -> None:
    alone.admit(document("a", "Words.\n\n<!-- not these -->\n"))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    shelf.fill(chunker_of=lambda _name, _type: open_chunker(ChunkingOptions(strategy="fixed", overlap=0)))
    assert shelf.contents()["a"] == ["Words."]


def test_a_document_without_text_is_full_too(alone: Workshop) -> None:
    alone.admit(document("empty", " \n"))
    alone.index()
    shelf = Shelf(alone)
    shelf.fill()
    assert (shelf.progress().missing, shelf.progress().chunks) == (0, 0)


def test_changes_go_to_every_index_before_and_after_a_switch(shelf: Shelf) -> None:
    shop, old = shelf.shop, first(shelf)
    shelf.fill()
    shop.admit(document("a", "Changed while it is filled."))
    shop.index()
    assert (shelf.progress().missing, shelf.progress().stale) == (1, 1)
    shelf.fill()
    assert shelf.contents()["a"] == ["Changed while it is filled."]
    shelf.switch()
    shop.admit(document("a", "Changed after the switch."), document("c", "New after the switch."))
    index_active(shelf)
    assert shelf.contents()["a"] == ["Changed after the switch."]
    assert shelf.contents(old)["a"] == ["Changed while it is filled."], "the old one follows in a moment"
    shelf.fill(old)
    assert shelf.contents(old) == shelf.contents()
    assert shelf.progress(old).missing == 0


def index_active(shelf: Shelf) -> None:
    """The ordinary way, into the index that is active now."""
    index = first(shelf)
    shelf.shop.index(
        model=index.model,
        embedder=lambda: HashingEmbedder(index.dimensions),
        index=active_index,
    )


def test_a_switch_in_the_middle_of_the_ordinary_way_mixes_nothing(shelf: Shelf) -> None:
    shop = shelf.shop
    shelf.fill()
    shop.admit(document("a", "On its way during the switch."))
    indexer = shop.indexer(index=active_index)
    indexer.chunk(shop.tenant, shop.items())
    indexer.embed(shop.tenant, shop.items())
    items = shop.items()
    shelf.switch()
    step = indexer.upsert(shop.tenant, items)  # a worker that learned of the old index before the switch
    assert [i.document_id for i in step.requeued] == [shop.id("a")]
    assert shop.row("a")["stage"] == "chunked"
    index_active(shelf)
    assert shelf.contents()["a"] == ["On its way during the switch."]


def test_another_way_of_cutting_begins_waiting_work_anew(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    alone.admit(document("a", paragraphs(3)))
    alone.indexer().chunk(alone.tenant, alone.items())
    claimed = alone.row("a")["stage"]
    shelf.switch()
    assert (claimed, alone.row("a")["stage"]) == ("chunked", "fetched")


def test_what_is_being_cut_during_a_switch_to_another_way_of_cutting_is_cut_anew(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    alone.admit(document("a", paragraphs(3)))
    plain = alone.chunker
    alone.chunker = Interrupted(plain, meanwhile=shelf.switch)
    step = alone.indexer(index=active_index).chunk(alone.tenant, alone.items())
    row = alone.row("a")
    assert (step.ready, row["stage"], row["crash_count"]) == ([], "fetched", 0)
    assert alone.staged_chunks() == []
    alone.chunker = plain
    assert alone.indexer(index=active_index, strategy="fixed").chunk(alone.tenant, alone.items()).ready


def test_what_changes_no_row_ends_no_answer_that_was_kept(shelf: Shelf) -> None:
    """As upkeep and walks do that find nothing, each hour and for every tenant."""
    before = shelf.shop.change_stamps()
    for statement in ("update document set hidden = true where false", "delete from document where false"):
        shelf.shop.sql(statement)
        with shelf.shop.database.control() as connection:
            connection.execute(text(statement))
    assert shelf.shop.change_stamps() == before
    shelf.shop.documents.set(hidden=True)
    assert shelf.shop.change_stamps() != before


def test_an_index_made_active_too_early_is_filled_all_the_same(shelf: Shelf) -> None:
    before = shelf.shop.change_stamps()
    shelf.switch()
    shelf.fill()
    assert shelf.progress().missing == 0
    assert shelf.shop.change_stamps() != before, "answers that were kept from before no longer hold"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_deleted_document_is_gone_from_every_index(shelf: Shelf, moment: str) -> None:
    shop = shelf.shop

    def delete() -> None:
        shop.admit_page(Page(cursor={}, documents=(), deleted=("a",)))

    class Deleting(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            delete()
            return super().embed_documents(texts)

    due = shelf.due()
    if moment == "before":
        delete()
    maker = Deleting if moment == "during" else HashingEmbedder
    for one in due:
        shelf.filler(embedder=lambda: maker(OTHER)).fill(one.tenant_id, one.items)
    if moment == "after":
        delete()
    assert set(shelf.contents()) == {"b"}
    assert len(shop.chunks(document_id=shop.id("a"))) == 0
    assert len(shop.indexed(document_id=shop.id("a"))) == 0
    assert shelf.progress().missing == 0


def test_a_hidden_document_needs_no_work_in_any_index(shelf: Shelf) -> None:
    shelf.fill()
    shelf.shop.set("a", hidden=True)
    assert (shelf.progress().missing, shelf.due()) == (0, [])


def test_a_slice_of_time_that_is_over_leaves_the_rest_for_the_next_message(shelf: Shelf) -> None:
    again = shelf.fill(embedder=lambda: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert again
    for _ in range(8):
        again = shelf.fill(embedder=lambda: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert (again, shelf.progress().missing) == ([], 0)
    assert set(shelf.shop.indexed.values("crash_count")) == {0}


def test_a_dead_document_is_copied_in_the_version_that_is_searchable(alone: Workshop) -> None:
    """Its newer text is there and poison; the older one is only in the chunks."""
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    alone.admit(document("a", "Poison."))
    alone.set("a", state="dead")
    shelf = Shelf(alone, strategy="fixed")
    shelf.fill()
    assert shelf.contents()["a"] == shelf.contents(first(shelf))["a"]
    assert shelf.progress().missing == 0


def test_chunks_of_a_newer_version_are_not_taken_for_those_of_the_claimed_one(shelf: Shelf) -> None:
    shop = shelf.shop
    assert shelf.due()
    claim = shelf.claim([shop.id("a"), shop.id("b")])
    shop.admit(document("a", paragraphs(3, "new")))
    shop.index()
    with shop.database.tenant(shop.tenant) as connection:
        copied = work_in_progress.copied_chunks(connection, claim, "")
    assert copied.keys() == {shop.id("b")}


def test_an_older_version_that_comes_late_is_not_noted(shelf: Shelf) -> None:
    shop, one = shelf.shop, shelf.shop.id("a")
    shelf.fill()
    with shop.database.tenant(shop.tenant) as connection:
        for version in (3, 2):
            there = search_indexes.IndexedDocument(document_id=one, version=version, chunks=version)
            search_indexes.record_indexed(connection, shop.tenant, shelf.index.id, [there])
    noted = shop.indexed.values("version", "chunk_count", index_id=shelf.index.id, document_id=one)
    assert noted == [(3, 3)]


def test_a_copy_that_is_not_whole_is_cut_anew(shelf: Shelf) -> None:
    shop, old = shelf.shop, first(shelf)
    before = shelf.contents(old)
    shop.chunks.clear({"index_id": old.id, "document_id": shop.id("a"), "ord": 1})
    shelf.fill()
    assert shelf.contents() == before


def test_an_index_that_is_being_built_is_written_later(shelf: Shelf) -> None:
    """Else the worker would wait for it, and all behind it."""
    with shelf.shop.database.control() as connection:
        search_indexes.request_builds(connection)
        build = search_indexes.claim_build(connection, shelf.index.id, lease=60)
    shelf.fill()
    assert (shelf.contents(), shelf.due()) == ({}, [])
    assert build is not None
    with shelf.shop.database.control() as connection:
        search_indexes.finish_build(connection, build)
    shelf.shop.indexed.set(due_at=ago())
    shelf.fill()
    assert shelf.progress().missing == 0


def test_two_fillers_and_a_doubled_message_write_each_chunk_once(shelf: Shelf) -> None:
    due = shelf.due()
    for one in [*due, *due]:
        assert shelf.filler().fill(one.tenant_id, one.items).requeued == []
    assert shelf.progress().chunks == 5
    assert len(shelf.shop.chunks(index_id=shelf.index.id)) == 5


def test_two_tenants_are_filled_each_from_its_own(shelf: Shelf) -> None:
    theirs = Workshop(shelf.shop.database, uuid4(), uuid4())
    theirs.admit(document("a", "A text of somebody else."))
    theirs.index()
    assert {one.tenant_id for one in shelf.due()} == {shelf.shop.tenant, theirs.tenant}
    shelf.fill()
    assert shelf.progress().missing == 0
    assert len(shelf.contents()["a"]) == 3
    assert theirs.chunks.values("content", index_id=shelf.index.id) == ["A text of somebody else."]


def test_an_index_that_is_dropped_meanwhile_takes_all_that_was_noted_with_it(shelf: Shelf) -> None:
    due = shelf.due()
    with shelf.shop.database.control() as connection:
        drop_index(connection, shelf.index)
    for one in due:
        assert shelf.filler().fill(one.tenant_id, one.items).requeued == []
    assert len(shelf.shop.indexed(index_id=shelf.index.id)) == 0
    assert shelf.shop.dead_letters() == []
