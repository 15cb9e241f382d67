"""Two that write the same documents at once: neither undoes the other, and neither ends as a deadlock."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest

from pipeline.chunking.strategies import Chunker
from pipeline.documents import Listing, Page
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import DocumentRejected, LeaseLost, SearchError, SourceUnavailable
from pipeline.ledger import (
    Item,
    Limits,
    Stage,
    admission,
    documents,
    due_work,
    jobs,
    runs,
    search_indexes,
    sources,
    upkeep,
    work,
)
from pipeline.ledger.search_indexes import IndexedDocument
from pipeline.search import term_statistics
from pipeline.search.chunk_store import active_index
from tests.ledger import ago
from tests.pipeline.ledger.conftest import Others
from tests.pipeline.picky import through
from tests.pipeline.second_index import SecondIndex, due_fills, first
from tests.pipeline.source_ledger import LEASE, SourceLedger, document, paragraphs
from tests.pipeline.walked import fake_source, go_on


def clear(notes: SourceLedger) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        documents.clear(connection, notes.source)


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        ("chunk", "before update on index_work for each row when (new.stage = 'chunked')"),
        ("upsert", "before insert on index_document for each row"),
    ],
)
def test_clearing_beside_a_step_that_writes_chunks_leaves_none(
    alone: SourceLedger, others: Others, step: str, moment: str
) -> None:
    if step == "upsert":  # of what is new its first step has written them
        alone.admit(document("a", paragraphs(3, "old")))
        alone.index()
    alone.admit(document("a", paragraphs(3)))
    indexer, items = through(alone, step), alone.items()
    others.gate(moment)
    writes = others.begin(lambda: getattr(indexer, step)(alone.tenant, items))
    cleared = others.begin(lambda: clear(alone), waiting=2)
    others.open()
    writes.result(30)
    cleared.result(30)
    assert alone.documents() == []
    assert alone.chunks() == []


def test_chunks_left_by_an_earlier_document_of_the_name_give_way_to_the_new_text(notes: SourceLedger) -> None:
    for edition in ("Old words.", "Older words.", "The oldest words."):
        notes.admit(document("a", edition))
        notes.index()
    notes.documents.clear()
    assert notes.contents("a") == ["The oldest words."]
    notes.admit(document("a", "New words."))
    notes.index()
    assert (notes.row("a")["state"], notes.row("a")["indexed_version"]) == ("done", 1)
    assert notes.contents("a") == ["New words."]


def test_clearing_waits_for_the_page_that_is_stored_and_stops_the_next(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"))
    run = alone.open_run()
    with alone.database.tenant(alone.tenant) as connection:
        token = sources.claim(connection, alone.source, lease=LEASE)
    assert token is not None
    with alone.database.tenant(alone.tenant) as connection:
        sources.renew(connection, alone.source, token, lease=LEASE)
        cleared = others.begin(lambda: clear(alone))
        page = Page(cursor={}, documents=(document("a", "edited"), document("b")))
        runs.add(connection, run, admission.admit(connection, alone.where(run), page))
    cleared.result(30)
    assert alone.documents() == []
    assert (alone.run(run).state, alone.run(run).queued) == ("failed", 2)
    with pytest.raises(LeaseLost), alone.database.tenant(alone.tenant) as connection:
        sources.renew(connection, alone.source, token, lease=LEASE)


def test_filling_the_active_index_beside_the_ordinary_way_is_no_deadlock(
    second_index: SecondIndex, others: Others
) -> None:
    """An index that was made active too early is written by both."""
    notes = second_index.notes
    second_index.switch()
    index, (due,) = first(second_index), second_index.due(first(second_index))
    notes.admit(document("a", "Edited words."))
    reached, go_on = threading.Event(), threading.Event()

    def paused(connection: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            assert go_on.wait(30)
        return active_index(connection)

    indexer = through(
        notes,
        "upsert",
        model=index.model,
        embedder=lambda: HashingEmbedder(index.dimensions),
        index=paused,
    )
    items = notes.items()
    claim = second_index.claim([i.document_id for i in due.items], index)
    upsert = others.pool.submit(lambda: indexer.upsert(notes.tenant, items))
    assert reached.wait(30)
    with notes.database.tenant(notes.tenant) as connection:
        assert notes.id("a") in work.still_ours(connection, claim)
        go_on.set()
        others.settle(upsert)
        second_index.finish(
            connection, claim, [IndexedDocument(document_id=notes.id("a"), version=1, chunks=0)]
        )
    upsert.result(30)
    assert (notes.row("a")["state"], notes.row("a")["waits"]) == ("done", 0)
    assert second_index.contents(index)["a"] == ["Edited words."]


def through_all(notes: SourceLedger) -> None:
    """Edit both documents of the index, and make them searchable."""
    notes.admit(document("a", "Edited words."), document("b", "Others, edited."))
    notes.index()


def look(second_index: SecondIndex) -> list[due_work.Batch]:
    """What the pump does for the second index."""
    with second_index.notes.database.control() as connection:
        return due_fills(connection, second_index.index)


def test_a_letter_about_a_fill_waits_for_nobody_who_writes_the_document(
    second_index: SecondIndex, others: Others
) -> None:
    notes = second_index.notes
    assert second_index.due()
    second_index.kill("b")
    others.gate("before insert on chunk for each row")
    indexed = others.begin(lambda: through_all(notes))
    looked = others.begin(lambda: look(second_index), waiting=2)
    assert looked.done()
    others.open()
    indexed.result(30)
    assert [(r["state"], r["waits"], r["attempts"]) for r in notes.documents()] == [("done", 0, 0)] * 2
    assert notes.dead() == [], "a newer version is to be filled by now"
    assert notes.work_items.values("version", "crash_count") == [(2, 0)] * 2


def test_the_pump_waits_for_no_fill_that_somebody_notes_while_it_holds_another(
    second_index: SecondIndex, others: Others
) -> None:
    notes = second_index.notes
    assert second_index.due()
    notes.work_items.set(enqueued_at=None)
    ids = sorted([notes.id("a"), notes.id("b")])
    notes.work_items.set({"document_id": ids[1]}, due_at=ago(minutes=1))
    moment = f"when (new.document_id = '{ids[0]}' and new.version > old.version)"
    others.gate(f"before update on index_work for each row {moment}")
    indexed = others.begin(lambda: through_all(notes))
    looked = others.begin(lambda: look(second_index), waiting=2)
    others.open()
    sent = [i.document_id for due in looked.result(30) for i in due.items]
    indexed.result(30)
    assert sent == [ids[1]], "the other one is being written"
    assert {r["waits"] for r in notes.documents()} == {0}


def test_words_of_a_document_that_comes_while_words_are_counted_are_counted_later(
    alone: SourceLedger, others: Others
) -> None:
    """Nothing else would make them known: no question would find them by their words."""
    alone.admit(document("a", "A harbour."))
    alone.index()
    others.gate("before update on run_item for each row when (new.outcome = 'done')")
    alone.admit(document("b", "A quay."))
    indexed = others.begin(alone.index)
    with alone.database.control() as connection:
        index = active_index(connection)
    assert index is not None
    with alone.database.tenant(alone.tenant) as connection:
        term_statistics.refresh(connection, alone.tenant, index.id)
    others.open()
    indexed.result(30)
    with alone.database.control() as connection:
        assert upkeep.tenants_to_count(connection) == [alone.tenant]
    with alone.database.tenant(alone.tenant) as connection:
        term_statistics.refresh(connection, alone.tenant, index.id)
    assert alone.lexemes(lexeme="quay")
    with alone.database.control() as connection:
        assert upkeep.tenants_to_count(connection) == []


def test_a_switch_beside_a_worker_is_no_deadlock(alone: SourceLedger, others: Others) -> None:
    """All documents learn how many chunks they have in the new index, while workers hold some of them."""
    first_, second, last = sorted("abc", key=alone.id)
    alone.admit(*(document(name, paragraphs(3)) for name in "abc"))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    second_index.fill()
    for name in (last, first_, second):  # as they lie in the tables now
        alone.set(name, waits=0)
        alone.indexed.set({"index_id": second_index.index.id, "document_id": alone.id(name)}, chunk_count=7)

    def adopt() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            search_indexes.adopt_counts(connection, second_index.index.id)

    def work_on_all() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            work.lock_documents(connection, [alone.id(name) for name in "abc"])

    with alone.database.tenant(alone.tenant) as connection:
        work.lock_documents(connection, [alone.id(second)])
        worker = others.begin(work_on_all)
        adopted = others.begin(adopt, waiting=2)
    worker.result(30)
    adopted.result(30)
    assert {row["chunk_count"] for row in alone.documents()} == {7}


def test_an_index_that_begins_beside_a_write_gets_the_document_too(
    alone: SourceLedger, others: Others
) -> None:
    """Whoever writes saw no other index to note it for, and a look at all would not see it yet."""
    alone.admit(document("a"))
    indexer, items = through(alone, "upsert"), alone.items()
    others.gate("before update on document for each row when (new.state = 'done')")
    written = others.begin(lambda: indexer.upsert(alone.tenant, items))
    begun = others.begin(lambda: SecondIndex(alone), waiting=2)
    assert not begun.done()
    others.open()
    written.result(30)
    assert [len(due.items) for due in begun.result(30).due()] == [1]


def test_an_index_that_waits_for_a_build_to_begin_stops_no_write(alone: SourceLedger, others: Others) -> None:
    alone.admit(document("a"))
    alone.index()
    others.sql.execute("select pg_advisory_lock_shared(hashtext('larder.search_index'))")  # as a build has it
    begun = others.begin(lambda: SecondIndex(alone))
    alone.admit(document("a", "Edited words."))
    alone.index()
    assert (begun.done(), alone.contents("a")) == (False, ["Edited words."])
    others.sql.execute("select pg_advisory_unlock_shared(hashtext('larder.search_index'))")
    assert begun.result(30).index.status == "building"


def test_a_run_is_opened_while_its_source_is_cleared(alone: SourceLedger, others: Others) -> None:
    """The pump opens it: for as long as that takes, nobody else would have a turn."""
    alone.admit(document("a"))
    alone.runs.set(state="finished", finished_at=ago())

    def open_run() -> int | None:
        with alone.database.tenant(alone.tenant) as connection:
            return runs.open_run(connection, alone.tenant, alone.source, trigger="schedule")

    with alone.database.tenant(alone.tenant) as connection:
        documents.clear(connection, alone.source)
        opened = others.begin(open_run)
        assert opened.done()
    assert opened.result(30) is not None


def test_a_removed_document_that_comes_back_is_not_taken_for_an_old_one(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"))
    alone.admit_page(Page(cursor={}, deleted=("a",)))
    alone.set("a", first_seen_at=ago(days=40))
    run = alone.open_run()

    def trim() -> None:
        with alone.database.control() as connection:
            upkeep.trim(connection, "document", runs_days=30, dead_days=30, answers_hours=1)

    with alone.database.tenant(alone.tenant) as connection:
        admission.admit(connection, alone.where(run), Page(cursor={}, documents=(document("a", "again"),)))
        trimmed = others.begin(trim)
    trimmed.result(30)
    alone.index()
    assert alone.contents("a") == ["again"]


def test_giving_up_on_a_document_beside_its_deletion_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    (due,) = second_index.due()

    def refusing(_source: str, _type: object) -> Chunker:
        raise DocumentRejected("not this one")

    def delete() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            admission.remove(connection, [alone.id("a")])

    others.gate("before update on index_work for each row when (new.dead)")
    given_up = others.begin(lambda: second_index.filler(chunker_of=refusing).fill(due.tenant_id, due.items))
    deleted = others.begin(delete, waiting=2)
    others.open()
    given_up.result(30)
    deleted.result(30)
    assert alone.row("a")["deleted"]


# Chosen by the pump, and changed before they are noted as sent ------------------------------------


def test_what_a_page_changes_at_this_moment_is_not_sent_to_be_embedded(
    alone: SourceLedger, others: Others
) -> None:
    """It is to be cut anew: noted as sent, it would wait for that until the message counts as lost."""
    alone.admit(document("a", paragraphs(2)), document("b", paragraphs(2)))
    alone.indexer().chunk(alone.tenant, alone.items())
    run = alone.open_run()

    def choose() -> list[due_work.Batch]:
        with alone.database.control() as connection:
            return due_work.choose_embeds(connection, Limits(), due_work.EmbedRoom())

    with alone.database.tenant(alone.tenant) as connection:
        admission.admit(
            connection, alone.where(run), Page(cursor={}, documents=(document("a", "New words."),))
        )
        chosen = others.begin(choose)
        assert chosen.done(), "it waits for nobody"
    assert [item.document_id for batch in chosen.result(30) for item in batch.items] == [alone.id("b")]
    assert (alone.row("a")["stage"], alone.row("a")["enqueued_at"]) == ("fetched", None)


def test_a_job_that_is_put_back_at_this_moment_waits_for_its_time(
    alone: SourceLedger, others: Others
) -> None:
    with alone.database.tenant(alone.tenant) as connection:
        asked = [
            jobs.submit(connection, alone.tenant, alone.project, {"n": n}, sends=False).id for n in range(3)
        ]

    def pump() -> set[Any]:
        with alone.database.control() as connection:
            return {due.id for due in jobs.pump_once(connection, jobs.JobLimits())}

    others.gate(
        "before update of enqueued_at on enrichment_job for each row when (new.enqueued_at is not null)"
    )
    pumped = others.begin(pump)
    free = {row["id"] for row in alone.sql("select id from enrichment_job for update skip locked")}
    with alone.database.tenant(alone.tenant) as connection:
        for one in free:
            claimed = jobs.claim(connection, one, lease=LEASE)
            assert claimed is not None
            jobs.put_back(connection, claimed, SearchError("late"), delay=60)
    others.open()
    assert free
    assert pumped.result(30) == set(asked) - free


def test_nobody_takes_what_the_pump_is_sending_at_this_moment(
    second_index: SecondIndex, others: Others
) -> None:
    """Noted as sent after it was put back, it would wait until the message counts as lost."""
    notes, ids = second_index.notes, {second_index.notes.id(name) for name in "ab"}
    assert second_index.due()
    notes.work_items.set(enqueued_at=None)
    others.gate(
        """before update of enqueued_at on index_work for each row
           when (new.enqueued_at is not null and new.lease_token is null)"""
    )
    looked = others.begin(lambda: look(second_index))
    with notes.database.tenant(notes.tenant) as connection:
        items = [Item(i, 1) for i in sorted(ids)]
        claim = work.claim(
            connection, notes.tenant, Stage.FETCHED, items, lease=LEASE, index=second_index.index.id
        )
    others.open()
    assert claim.ids == []
    assert {i.document_id for due in looked.result(30) for i in due.items} == ids


# Configured anew while a page comes in ------------------------------------------------------------


def test_a_list_of_ids_by_an_old_configuration_ends_with_the_piece_that_comes_in(
    alone: SourceLedger, others: Others
) -> None:
    """The next walk would go on behind it, and take what it skips for gone."""
    run = alone.open_run()
    with alone.database.tenant(alone.tenant) as connection:
        token = sources.claim(connection, alone.source, lease=LEASE)
    assert token is not None

    def configure_anew() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            sources.register(connection, [alone.registration(config_hash="c2")])

    with alone.database.tenant(alone.tenant) as connection:
        sources.renew(connection, alone.source, token, lease=LEASE)
        piece = Listing(ids=frozenset({"a"}), complete=True, cursor={"after": "a"})
        runs.add_id_list(connection, run, 1, piece)
        configured = others.begin(configure_anew)
    configured.result(30)
    assert alone.walk_pieces() == []


def test_a_walk_goes_on_in_the_project_to_which_its_source_moves(notes: SourceLedger) -> None:
    notes.admit(document("a"), document("b"))
    other, where = uuid4(), notes.where(notes.open_run())
    with notes.database.tenant(notes.tenant) as connection:
        sources.ensure_tenant(connection, notes.tenant, "", other, str(other))
        sources.register(connection, [notes.registration(project_id=other)])
        page = Page(cursor={}, documents=(document("a", "New words."), document("c")))
        admission.admit(connection, where, page)
    assert [notes.row(name)["project_id"] for name in "abc"] == [other] * 3


def test_a_walk_that_another_is_ending_at_this_moment_is_not_begun_again(
    alone: SourceLedger, others: Others
) -> None:
    """Its run is over: what it listed once more would count twice, and what it queued would never be settled."""
    run, source = alone.open_run(), fake_source(2)
    with alone.database.tenant(alone.tenant) as connection:
        token = sources.claim(connection, alone.source, lease=-1.0)
    assert token is not None
    with alone.database.tenant(alone.tenant) as connection:
        sources.renew(connection, alone.source, token, lease=LEASE)
        again = others.begin(lambda: go_on(alone, source, run))
        runs.finish_walk(connection, run)
        sources.release(connection, alone.source, token)
    assert again.result(30)
    assert (source.begun_at, alone.run(run).listed) == ([], 0)


def test_a_walk_that_begins_while_its_source_is_configured_anew_is_not_one_by_the_old(
    alone: SourceLedger, others: Others
) -> None:
    run, source = alone.open_run(), fake_source(2)
    with alone.database.tenant(alone.tenant) as connection:
        sources.register(connection, [alone.registration(config_hash="c2")])
        walked = others.begin(lambda: go_on(alone, source, run))
    with pytest.raises(SourceUnavailable, match="another configuration"):
        walked.result(30)
    assert (source.begun_at, alone.sources.one()["sync_token"]) == ([], None)
    assert go_on(alone, source, run, config_hash="c2")
