"""Many rows are read as they lie in the table; they are locked in one order all the same, or two end as a deadlock."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text

from pipeline.documents import Listing
from pipeline.errors import DocumentDamaged
from pipeline.ingest import work_in_progress
from pipeline.ledger import (
    Item,
    admission,
    dead,
    documents,
    runs,
    sources,
    work,
)
from pipeline.ledger.search_indexes import IndexedDocument, drop_index
from tests.ledger import ago
from tests.pipeline.ledger.conftest import Others
from tests.pipeline.second_index import SecondIndex
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs


def as_they_lie(connection: Connection) -> None:
    """As the planner has it where most of a table is asked for."""
    for kind in ("indexscan", "indexonlyscan", "bitmapscan"):
        connection.execute(text(f"set local enable_{kind} = off"))


def clear_all(notes: SourceLedger) -> None:
    """What `larder clear` of everything does."""
    with notes.database.tenant(notes.tenant) as connection:
        documents.clear(connection, None)


OF_INDEX = "where index_id = :i and document_id = :id"


def shelved(alone: SourceLedger) -> tuple[SecondIndex, list[UUID]]:
    """A second index, and in order the ids of three documents that it lacks."""
    alone.admit(*(document(name) for name in "abc"))
    alone.index()
    second_index = SecondIndex(alone)
    assert second_index.due()
    return second_index, sorted(alone.id(name) for name in "abc")


def written_last_first(
    alone: SourceLedger, second_index: SecondIndex, ids: list[UUID], **change: Any
) -> None:
    """Update what is noted of three documents for an index, so that they lie in another order than that of their ids."""
    for one in (ids[2], ids[0], ids[1]):
        alone.work_items.set({"index_id": second_index.index.id, "document_id": one}, **change)


@pytest.mark.parametrize("how", ["removed", "cleared"])
def test_removing_documents_beside_a_worker_that_fills_them_is_no_deadlock(
    alone: SourceLedger, others: Others, how: str
) -> None:
    second_index, ids = shelved(alone)
    claim = second_index.claim(ids)
    written_last_first(alone, second_index, ids, attempts=0)

    def fill() -> list[UUID]:
        with alone.database.tenant(alone.tenant) as connection:
            return work.still_ours(connection, claim)

    def remove() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            as_they_lie(connection)
            if how == "removed":
                admission.remove(connection, ids)
            else:
                documents.clear(connection, alone.source)

    with alone.database.tenant(alone.tenant) as connection:
        held = text(f"select from index_work {OF_INDEX} for update")
        connection.execute(held, {"i": second_index.index.id, "id": ids[1]})
        filled = others.begin(fill)
        removed = others.begin(remove, waiting=2)
    assert filled.result(30) == ids
    removed.result(30)
    assert alone.indexed() == []


def test_replaying_what_was_given_up_on_for_an_index_beside_a_worker_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    second_index, ids = shelved(alone)
    written_last_first(alone, second_index, ids, dead=True)

    def index_anew() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            work.enqueue_lacking(connection, ids)

    def replay() -> list[UUID]:
        with alone.database.tenant(alone.tenant) as connection:
            as_they_lie(connection)
            return dead.replay(connection, ids)

    alone.documents.set(indexed_version=2)
    with alone.database.tenant(alone.tenant) as connection:
        held = text(f"select from index_work {OF_INDEX} for update")
        connection.execute(held, {"i": second_index.index.id, "id": ids[1]})
        indexed = others.begin(index_anew)
        replayed = others.begin(replay, waiting=2)
    indexed.result(30)
    assert replayed.result(30) == [], "they wait in a newer version"


def test_giving_back_some_and_giving_up_on_others_beside_a_page_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"), document("b"))
    alone.set("b", attempts=1)
    claim, run = alone.claim("a", "b"), alone.open_run()

    def fault() -> None:
        alone.indexer()._fault(claim, claim.ids, DocumentDamaged("not now"))

    def store() -> None:
        alone.admit(document("a", "Other words."), document("b", "Other words."), run=run)

    a = alone.id("a")
    others.gate(
        f"before update on index_work for each row when (new.document_id = '{a}' and new.attempts = 1)"
    )
    given_back = others.begin(fault)
    stored = others.begin(store, waiting=2)
    others.open()
    given_back.result(30)
    stored.result(30)
    assert alone.documents.values("state", "desired_version") == [("pending", 2)] * 2


def test_moving_documents_beside_a_worker_that_renews_its_lease_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    second_index, ids = shelved(alone)
    claim = second_index.claim(ids)
    written_last_first(alone, second_index, ids, attempts=0)
    new = uuid4()
    with alone.database.tenant(alone.tenant) as connection:
        sources.register(connection, [alone.registration("others", id=new)])

    def renew() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            work.renew(connection, claim, lease=60)

    def move() -> tuple[int, int]:
        with alone.database.tenant(alone.tenant) as connection:
            as_they_lie(connection)
            return documents.move(connection, alone.source, new)

    with alone.database.tenant(alone.tenant) as connection:
        held = text(f"select from index_work {OF_INDEX} for update")
        connection.execute(held, {"i": second_index.index.id, "id": ids[1]})
        renewed = others.begin(renew)
        moved = others.begin(move, waiting=2)
    renewed.result(30)
    assert moved.result(30) == (3, 0)
    assert set(alone.work_items.values("source_id")) == {new}


def test_dropping_an_index_beside_a_worker_that_fills_it_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"))
    alone.index()
    second_index = SecondIndex(alone)
    (due,) = second_index.due()

    def drop() -> None:
        with alone.database.control() as connection:
            drop_index(connection, second_index.index)

    others.gate("before insert on index_document for each row")
    filled = others.begin(lambda: second_index.filler().fill(due.tenant_id, due.items))
    dropped = others.begin(drop, waiting=2)
    others.open()
    assert filled.result(30).indexed == 1
    dropped.result(30)
    assert alone.work_items() == []


def test_the_pump_waits_for_nobody_who_clears(alone: SourceLedger, others: Others) -> None:
    alone.admit(document("a"), document("b"))
    alone.index()
    second_index = SecondIndex(alone)
    with alone.database.tenant(alone.tenant) as connection:
        documents.clear(connection, None)
        assert others.begin(second_index.due).result(30) == []


def test_taking_back_that_messages_were_sent_beside_a_worker_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    first_, second, last = sorted("abc", key=alone.id)
    alone.admit(*(document(name) for name in "abc"))
    for name in (last, first_, second):  # as they lie in the table now
        alone.set(name, enqueued_at=ago())
    ids = [alone.id(name) for name in "abc"]

    def work_on_all() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            work.lock_documents(connection, ids)

    def take_back() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            as_they_lie(connection)
            work.mark_unsent(connection, [Item(i, 1) for i in ids])

    with alone.database.tenant(alone.tenant) as connection:
        work.lock_documents(connection, [alone.id(second)])
        worker = others.begin(work_on_all)
        taken_back = others.begin(take_back, waiting=2)
    worker.result(30)
    taken_back.result(30)
    assert set(alone.documents.values("enqueued_at")) == {None}


def sources_named(alone: SourceLedger, *names: str) -> list[str]:
    """Sources in the order of their ids."""
    return sorted(
        names, key=lambda name: SourceLedger(alone.database, alone.tenant, alone.project, name).source
    )


def test_registering_sources_beside_a_clear_is_no_deadlock(alone: SourceLedger, others: Others) -> None:
    names = sources_named(alone, *"abc")

    def register() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            sources.register(connection, [alone.registration(name) for name in reversed(names)])

    with alone.database.tenant(alone.tenant) as connection:
        held = text("select from source where id = :id for update")
        connection.execute(held, {"id": alone.registration(names[1]).id})
        cleared = others.begin(lambda: clear_all(alone))
        registered = others.begin(register, waiting=2)
    cleared.result(30)
    registered.result(30)


def test_trimming_the_cache_beside_a_clear_is_no_deadlock(alone: SourceLedger, others: Others) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    hashes = [row["hash"] for row in alone.sql("select hash from embedding_cache order by ctid")]
    for age, one in enumerate(hashes):  # the last in the table is the longest unused
        alone.cached_vectors.set(one, used_at=ago(days=1 + age))

    def trim() -> int:
        with alone.database.tenant(alone.tenant) as connection:
            return work_in_progress.trim_cache(connection, megabytes=0)

    with alone.database.tenant(alone.tenant) as connection:
        held = text("select from embedding_cache where hash = :h for update")
        connection.execute(held, {"h": hashes[1]})
        cleared = others.begin(lambda: clear_all(alone))
        trimmed = others.begin(trim, waiting=2)
    cleared.result(30)
    assert trimmed.result(30) <= 2
    assert alone.cached_vectors() == []


@pytest.mark.parametrize("kept", [(), (2,)])
def test_retiring_sources_beside_a_clear_is_no_deadlock(
    alone: SourceLedger, others: Others, kept: tuple[int, ...]
) -> None:
    names = sources_named(alone, *"abc")
    ids = [alone.registration(name).id for name in names]
    for one in (ids[2], ids[0], ids[1]):  # as they lie in the table now
        alone.sources.set({"id": one}, held=0)

    def register() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            as_they_lie(connection)
            named = [alone.registration(names[n]) for n in kept]
            sources.register(connection, named, every=True)

    with alone.database.tenant(alone.tenant) as connection:
        held = text("select from source where id = :id for update")
        connection.execute(held, {"id": ids[1]})
        cleared = others.begin(lambda: clear_all(alone))
        registered = others.begin(register, waiting=2)
    cleared.result(30)
    registered.result(30)


def test_the_pump_beside_sources_that_are_configured_anew_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    names = sources_named(alone, *"abc")
    of = {name: alone.registration(name, config_hash="c2") for name in names}
    for name in reversed(names):
        with alone.database.tenant(alone.tenant) as connection:
            assert runs.open_run(connection, alone.tenant, of[name].id, trigger="manual")
        # As they lie in the tables now.
        alone.sources.set({"id": of[name].id}, held=0)
    alone.runs.set(enqueued_at=None)

    def register() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            sources.register(connection, [*of.values()])

    def pump() -> int:
        with alone.database.control() as connection:
            as_they_lie(connection)
            return len(runs.sync_due(connection, resend=240))

    with alone.database.tenant(alone.tenant) as connection:
        held = text("select from sync_run where source_id = :id for update")
        connection.execute(held, {"id": of[names[1]].id})
        registered = others.begin(register)
        pumped = others.begin(pump, waiting=2)
    registered.result(30)
    assert pumped.result(30) == 1, "the one that nobody held"


def test_closing_runs_beside_a_clear_is_no_deadlock(alone: SourceLedger, others: Others) -> None:
    names = sources_named(alone, "a", "b")
    for name in names:
        with alone.database.tenant(alone.tenant) as connection:
            source = alone.registration(name).id
            assert runs.open_run(connection, alone.tenant, source, trigger="manual")
    first_, second = alone.runs.values("id")
    alone.runs.set(state="processing")
    alone.runs.set(first_, settled_at=ago())

    with alone.database.control() as connection:
        settled = [row.id for row in runs.list_settled(connection)]
        cleared = others.begin(lambda: clear_all(alone))
        closed = [one["run"] for one in runs.close(connection, settled)]
    cleared.result(30)
    assert (settled, closed) == ([first_, second], [second])
    assert (alone.run(first_).state, alone.run(second).state) == ("failed", "finished")


def test_a_walk_that_hides_and_shows_beside_a_worker_is_no_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    _, second = sorted("ab", key=alone.id)
    alone.admit(document("a"), document("b"))
    alone.set(second, hidden=True)
    claimed = alone.claim("a", "b")

    def walk() -> admission.Pruned:
        with alone.database.tenant(alone.tenant) as connection:
            here = Listing(ids=frozenset({second}), complete=True)
            return admission.prune(connection, alone.source, here, admission.DeletionGuard())

    others.gate("after update of hidden on document for each row when (not new.hidden)")
    walked = others.begin(walk)

    def work_on_all() -> list[UUID]:
        with alone.database.tenant(alone.tenant) as connection:
            return work.still_ours(connection, claimed)

    worked = others.begin(work_on_all, waiting=2)
    others.open()
    pruned = walked.result(30)
    assert (pruned.hidden, pruned.restored) == (1, 1)
    assert worked.result(30) == claimed.ids


def test_a_letter_about_a_fill_is_settled_by_two_without_a_deadlock(
    alone: SourceLedger, others: Others
) -> None:
    alone.admit(document("a"))
    alone.index()
    second_index = SecondIndex(alone)
    assert second_index.due()
    alone.add_letter(stage="fill", reason="", attempts=1, index_id=second_index.index.id)
    alone.admit(document("a", "New words."))
    claim = second_index.claim([alone.id("a")])
    others.gate("before update on dead_letter for each row")

    def fill() -> None:
        with alone.database.tenant(alone.tenant) as connection:
            assert work.still_ours(connection, claim) == claim.ids
            second_index.finish(
                connection, claim, [IndexedDocument(document_id=claim.ids[0], version=1, chunks=0)]
            )

    filled = others.begin(fill)
    indexed = others.begin(alone.index, waiting=2)
    others.open()
    filled.result(30)
    indexed.result(30)
    assert (alone.row("a")["state"], alone.row("a")["waits"]) == ("done", 0)
