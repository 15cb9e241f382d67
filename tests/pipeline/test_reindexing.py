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
from pipeline.ledger import Stage, search_indexes
from pipeline.ledger.search_indexes import drop_index
from pipeline.search.chunk_store import active_index
from tests.ledger import ago
from tests.pipeline.picky import Interrupted
from tests.pipeline.second_index import OTHER, SecondIndex, first
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs


def dims(vectors: list[Any]) -> list[int]:
    """How many numbers each has."""
    return [len(vector.to_list()) for vector in vectors]


def test_it_is_filled_with_what_the_active_index_has(second_index: SecondIndex) -> None:
    assert second_index.progress().missing == 2
    second_index.fill()
    p = second_index.progress()
    assert (p.total, p.missing, p.stale, p.dead, p.chunks, p.lag_seconds) == (2, 0, 0, 0, 5, None)
    assert second_index.contents() == second_index.contents(first(second_index))
    assert dims(second_index.notes.chunks.values("embedding")) == [32] * 5 + [OTHER] * 5
    assert second_index.due() == []


def test_each_index_has_its_own_centroids(second_index: SecondIndex) -> None:
    second_index.fill()
    assert dims(second_index.notes.indexed.values("centroid")) == [32] * 2 + [OTHER] * 2


def test_another_way_of_cutting_takes_the_stored_text(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    chunker = open_chunker(ChunkingOptions(strategy="fixed", min_size=0, max_size=60, overlap=0))
    second_index.fill(chunker_of=lambda _name, _type: chunker)
    contents = second_index.contents()["a"]
    assert len(contents) > 3
    assert max(map(len, contents)) <= 60
    assert alone.indexed.one(index_id=second_index.index.id)["chunk_count"] == len(contents)


def test_another_way_of_cutting_leaves_out_what_is_no_prose(alone: SourceLedger) -> None:
    alone.admit(document("a", "Words.\n\n<!-- not these -->\n"))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    second_index.fill(
        chunker_of=lambda _name, _type: open_chunker(ChunkingOptions(strategy="fixed", overlap=0))
    )
    assert second_index.contents()["a"] == ["Words."]


def test_a_document_without_text_is_full_too(alone: SourceLedger) -> None:
    alone.admit(document("empty", " \n"))
    alone.index()
    second_index = SecondIndex(alone)
    second_index.fill()
    assert (second_index.progress().missing, second_index.progress().chunks) == (0, 0)


def test_changes_go_to_every_index_before_and_after_a_switch(second_index: SecondIndex) -> None:
    notes, old = second_index.notes, first(second_index)
    second_index.fill()
    notes.admit(document("a", "Changed while it is filled."))
    notes.index()
    assert (second_index.progress().missing, second_index.progress().stale) == (1, 1)
    second_index.fill()
    assert second_index.contents()["a"] == ["Changed while it is filled."]
    second_index.switch()
    notes.admit(document("a", "Changed after the switch."), document("c", "New after the switch."))
    index_active(second_index)
    assert second_index.contents()["a"] == ["Changed after the switch."]
    assert second_index.contents(old)["a"] == ["Changed while it is filled."], (
        "the old one follows in a moment"
    )
    second_index.fill(old)
    assert second_index.contents(old) == second_index.contents()
    assert second_index.progress(old).missing == 0


def index_active(second_index: SecondIndex) -> None:
    """The ordinary way, into the index that is active now."""
    index = first(second_index)
    second_index.notes.index(
        model=index.model,
        embedder=lambda: HashingEmbedder(index.dimensions),
        index=active_index,
    )


def test_a_switch_in_the_middle_of_the_ordinary_way_mixes_nothing(second_index: SecondIndex) -> None:
    notes = second_index.notes
    second_index.fill()
    notes.admit(document("a", "On its way during the switch."))
    indexer = notes.indexer(index=active_index)
    indexer.chunk(notes.tenant, notes.items())
    indexer.embed(notes.tenant, notes.items())
    items = notes.items()
    second_index.switch()
    step = indexer.upsert(notes.tenant, items)  # a worker that learned of the old index before the switch
    assert [i.document_id for i in step.requeued] == [notes.id("a")]
    assert notes.row("a")["stage"] == "chunked"
    index_active(second_index)
    assert second_index.contents()["a"] == ["On its way during the switch."]


def test_another_way_of_cutting_begins_waiting_work_anew(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    alone.admit(document("a", paragraphs(3)))
    alone.indexer().chunk(alone.tenant, alone.items())
    claimed = alone.row("a")["stage"]
    second_index.switch()
    assert (claimed, alone.row("a")["stage"]) == ("chunked", "fetched")


def test_what_is_being_cut_during_a_switch_to_another_way_of_cutting_is_cut_anew(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    alone.admit(document("a", paragraphs(3)))
    plain = alone.chunker
    alone.chunker = Interrupted(plain, meanwhile=second_index.switch)
    step = alone.indexer(index=active_index).chunk(alone.tenant, alone.items())
    row = alone.row("a")
    assert (step.ready, row["stage"], row["crash_count"]) == ([], "fetched", 0)
    assert alone.staged_chunks() == []
    alone.chunker = plain
    assert alone.indexer(index=active_index, strategy="fixed").chunk(alone.tenant, alone.items()).ready


def test_what_changes_no_row_ends_no_answer_that_was_kept(second_index: SecondIndex) -> None:
    """As upkeep and walks do that find nothing, each hour and for every tenant."""
    before = second_index.notes.change_stamps()
    for statement in ("update document set hidden = true where false", "delete from document where false"):
        second_index.notes.sql(statement)
        with second_index.notes.database.control() as connection:
            connection.execute(text(statement))
    assert second_index.notes.change_stamps() == before
    second_index.notes.documents.set(hidden=True)
    assert second_index.notes.change_stamps() != before


def test_an_index_made_active_too_early_is_filled_all_the_same(second_index: SecondIndex) -> None:
    before = second_index.notes.change_stamps()
    second_index.switch()
    second_index.fill()
    assert second_index.progress().missing == 0
    assert second_index.notes.change_stamps() != before, "answers that were kept from before no longer hold"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_deleted_document_is_gone_from_every_index(second_index: SecondIndex, moment: str) -> None:
    notes = second_index.notes

    def delete() -> None:
        notes.admit_page(Page(cursor={}, documents=(), deleted=("a",)))

    class Deleting(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            delete()
            return super().embed_documents(texts)

    due = second_index.due()
    if moment == "before":
        delete()
    maker = Deleting if moment == "during" else HashingEmbedder
    for one in due:
        second_index.filler(embedder=lambda: maker(OTHER)).fill(one.tenant_id, one.items)
    if moment == "after":
        delete()
    assert set(second_index.contents()) == {"b"}
    assert len(notes.chunks(document_id=notes.id("a"))) == 0
    assert len(notes.indexed(document_id=notes.id("a"))) == 0
    assert second_index.progress().missing == 0


def test_a_hidden_document_needs_no_work_in_any_index(second_index: SecondIndex) -> None:
    second_index.fill()
    second_index.notes.set("a", hidden=True)
    assert (second_index.progress().missing, second_index.due()) == (0, [])


def test_a_slice_of_time_that_is_over_leaves_the_rest_for_the_next_message(second_index: SecondIndex) -> None:
    again = second_index.fill(embedder=lambda: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert again
    for _ in range(8):
        again = second_index.fill(embedder=lambda: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert (again, second_index.progress().missing) == ([], 0)
    assert set(second_index.notes.indexed.values("crash_count")) == {0}


def test_a_dead_document_is_copied_in_the_version_that_is_searchable(alone: SourceLedger) -> None:
    """Its newer text is there and poison; the older one is only in the chunks."""
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    alone.admit(document("a", "Poison."))
    alone.set("a", state="dead")
    second_index = SecondIndex(alone, strategy="fixed")
    second_index.fill()
    assert second_index.contents()["a"] == second_index.contents(first(second_index))["a"]
    assert second_index.progress().missing == 0


def test_chunks_of_a_newer_version_are_not_taken_for_those_of_the_claimed_one(
    second_index: SecondIndex,
) -> None:
    notes = second_index.notes
    assert second_index.due()
    claim = second_index.claim([notes.id("a"), notes.id("b")])
    notes.admit(document("a", paragraphs(3, "new")))
    notes.index()
    with notes.database.tenant(notes.tenant) as connection:
        copied = work_in_progress.copied_chunks(connection, claim, "")
    assert copied.keys() == {notes.id("b")}


def test_an_older_version_that_comes_late_is_not_noted(second_index: SecondIndex) -> None:
    notes, one = second_index.notes, second_index.notes.id("a")
    second_index.fill()
    with notes.database.tenant(notes.tenant) as connection:
        for version in (3, 2):
            there = search_indexes.IndexedDocument(document_id=one, version=version, chunks=version)
            search_indexes.record_indexed(connection, notes.tenant, second_index.index.id, [there])
    noted = notes.indexed.values("version", "chunk_count", index_id=second_index.index.id, document_id=one)
    assert noted == [(3, 3)]


def test_a_copy_that_is_not_whole_is_cut_anew(second_index: SecondIndex) -> None:
    notes, old = second_index.notes, first(second_index)
    before = second_index.contents(old)
    notes.chunks.clear({"index_id": old.id, "document_id": notes.id("a"), "ord": 1})
    second_index.fill()
    assert second_index.contents() == before


def test_an_index_that_is_being_built_is_written_later(second_index: SecondIndex) -> None:
    """Else the worker would wait for it, and all behind it."""
    with second_index.notes.database.control() as connection:
        search_indexes.request_builds(connection)
        build = search_indexes.claim_build(connection, second_index.index.id, lease=60)
    second_index.fill()
    assert (second_index.contents(), second_index.due()) == ({}, [])
    assert build is not None
    with second_index.notes.database.control() as connection:
        search_indexes.finish_build(connection, build)
    second_index.notes.work_items.set(due_at=ago())
    second_index.fill()
    assert second_index.progress().missing == 0


def test_two_fillers_and_a_doubled_message_write_each_chunk_once(second_index: SecondIndex) -> None:
    due = second_index.due()
    for one in [*due, *due]:
        assert second_index.filler().fill(one.tenant_id, one.items).requeued == []
    assert second_index.progress().chunks == 5
    assert len(second_index.notes.chunks(index_id=second_index.index.id)) == 5


def test_two_tenants_are_filled_each_from_its_own(second_index: SecondIndex) -> None:
    theirs = SourceLedger(second_index.notes.database, uuid4(), uuid4())
    theirs.admit(document("a", "A text of somebody else."))
    theirs.index()
    assert {one.tenant_id for one in second_index.due()} == {second_index.notes.tenant, theirs.tenant}
    second_index.fill()
    assert second_index.progress().missing == 0
    assert len(second_index.contents()["a"]) == 3
    assert theirs.chunks.values("content", index_id=second_index.index.id) == ["A text of somebody else."]


def test_an_index_that_is_dropped_meanwhile_takes_all_that_was_noted_with_it(
    second_index: SecondIndex,
) -> None:
    due = second_index.due()
    with second_index.notes.database.control() as connection:
        drop_index(connection, second_index.index)
    for one in due:
        assert second_index.filler().fill(one.tenant_id, one.items).requeued == []
    assert len(second_index.notes.indexed(index_id=second_index.index.id)) == 0
    assert second_index.notes.dead_letters() == []


def test_what_a_switch_takes_from_a_worker_counts_as_no_crash(alone: SourceLedger) -> None:
    alone.admit(document("a"))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    second_index.fill()
    alone.admit(document("a", "Other words."))
    alone.indexer().chunk(alone.tenant, alone.items())
    alone.set("a", crash_count=2)
    assert alone.claim("a", stage=Stage.CHUNKED).ids
    second_index.switch()
    assert alone.claim("a").ids, "or nobody would ever claim it, nor give it up"
