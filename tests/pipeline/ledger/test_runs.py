"""Runs: one open per source, live counts, and closing by one statement that may be repeated."""

from __future__ import annotations

import pytest

from pipeline.documents import Listing, Page
from pipeline.errors import SourceUnavailable
from pipeline.ledger import admission, runs, sources, work
from tests.ledger import ago, ahead
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs, problem


def settled(notes: SourceLedger) -> dict[int, bool]:
    with notes.database.control() as connection:
        return {s.id: s.changed for s in runs.list_settled(connection) if s.tenant_id == notes.tenant}


def sync_due(notes: SourceLedger, resend: float = 60) -> list[int]:
    with notes.database.control() as connection:
        due = runs.sync_due(connection, resend=resend)
    return [run for tenant, _, run in due if tenant == notes.tenant]


def walked(notes: SourceLedger, run: int) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        runs.finish_walk(connection, run)


def due(notes: SourceLedger) -> list[str]:
    with notes.database.control() as connection:
        return [row.name for row in sources.due(connection) if row.tenant_id == notes.tenant]


def exists(notes: SourceLedger, run: int) -> bool:
    return bool(len(notes.runs(id=run)))


class TestOpening:
    def test_a_source_is_walked_by_one_run_at_a_time(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            assert runs.open_run(connection, notes.tenant, notes.source, trigger="manual") is None
            found = runs.open_of(connection, notes.source)
        assert found is not None
        assert found.id == run

    def test_a_document_that_waits_keeps_its_source_from_no_walk(self, notes: SourceLedger) -> None:
        notes.sources.set(next_sync_at=ago())
        first = notes.open_run()
        notes.admit(document("a"), run=first)
        assert due(notes) == []
        walked(notes, first)
        assert due(notes) == ["notes"]
        with notes.database.tenant(notes.tenant) as connection:
            second = runs.open_run(connection, notes.tenant, notes.source, trigger="schedule")
            assert runs.is_walked(connection, notes.source)
            found = runs.open_of(connection, notes.source)
        assert found is not None
        assert found.id == first, "the oldest"
        assert second is not None
        notes.close_run(second)
        assert not exists(notes, second), "it found nothing"
        notes.index()
        notes.close_run(first)
        assert (notes.run(first).state, notes.run(first).indexed) == ("finished", 1)

    def test_scheduled_runs_do_not_pile_up_while_a_document_waits(self, notes: SourceLedger) -> None:
        opened = []
        for _ in range(3):
            with notes.database.tenant(notes.tenant) as connection:
                run = runs.open_run(connection, notes.tenant, notes.source, trigger="schedule")
            assert run is not None
            opened.append(run)
            notes.admit(document("a"), run=run)
            notes.close_run(run)
        assert [exists(notes, run) for run in opened] == [False, False, True]

    def test_a_run_remembers_what_it_was_opened_for(self, notes: SourceLedger) -> None:
        notes.open_run()
        found = notes.run(notes.open_run(force=True, walk=True))
        assert (found.force, found.walk, found.state) == (True, True, "discovering")

    def test_an_unknown_run_is_none(self, notes: SourceLedger) -> None:
        with notes.database.tenant(notes.tenant) as connection:
            assert runs.get(connection, -1) is None
            assert runs.open_of(connection, notes.source) is None


class TestClosing:
    def test_totals_come_from_the_items(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a", paragraphs(3, "one")), document("b", paragraphs(2, "two")), run=run)
        notes.index()
        walked(notes, run)
        assert settled(notes) == {run: True}
        notes.close_run(run)
        row = notes.run(run)
        assert (row.state, row.error, row.finished_at is None) == ("finished", None, False)
        assert (row.indexed, row.chunks, row.chunks_written, row.chunks_kept) == (2, 5, 5, 0)
        assert (row.texts_embedded, row.texts_reused, row.dead, row.superseded) == (5, 0, 0, 0)
        notes.close_run(run)
        assert notes.run(run) == row

    def test_it_waits_for_the_last_document(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), document("b"), run=run)
        notes.index(notes.items("a"))
        walked(notes, run)
        assert settled(notes) == {}
        notes.index()
        assert settled(notes) == {run: True}

    def test_it_waits_for_the_end_of_the_walk(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), run=run)
        notes.index()
        assert settled(notes) == {}

    def test_live_counts_tell_how_far_it_is(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), document("b"), run=run)
        notes.index(notes.items("a"))
        with notes.database.tenant(notes.tenant) as connection:
            found = runs.progress(connection, [run])[run]
        assert (found["open"], found["indexed"], found["chunks"]) == (1, 1, 1)

    @pytest.mark.parametrize(("trigger", "stays"), [("schedule", False), ("watch", False), ("manual", True)])
    def test_a_run_that_found_nothing_is_removed_unless_a_person_asked(
        self, notes: SourceLedger, trigger: str, stays: bool
    ) -> None:
        notes.admit(document("a"))
        notes.index()
        run = notes.open_run(trigger=trigger)
        notes.admit(document("a"), run=run)
        walked(notes, run)
        assert settled(notes) == {run: False}
        notes.close_run(run)
        assert exists(notes, run) is stays

    @pytest.mark.parametrize(
        "page",
        [
            Page(cursor={}, documents=(document("new"),)),
            Page(cursor={}, failed=(problem("f"),)),
            Page(cursor={}, skipped=(problem("s"),)),
            Page(cursor={}, deleted=("old",)),
        ],
    )
    def test_a_scheduled_run_that_found_something_stays(self, notes: SourceLedger, page: Page) -> None:
        notes.admit(document("old"))
        notes.index()
        run = notes.open_run(trigger="schedule")
        notes.admit_page(page, run=run)
        notes.index()
        notes.close_run(run)
        assert exists(notes, run)

    def test_closing_touches_no_run_that_is_still_walking(self, notes: SourceLedger) -> None:
        run = notes.open_run(trigger="schedule")
        with notes.database.control() as connection:
            runs.close(connection, [run])
        assert notes.run(run).state == "discovering"

    def test_hiding_is_a_change_that_search_sees(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        run = notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            listing = Listing(ids=frozenset(), complete=True)
            pruned = admission.prune(connection, notes.source, listing, admission.DeletionGuard())
            runs.add(connection, run, pruned)
        walked(notes, run)
        assert settled(notes) == {run: True}


class TestFailing:
    def test_a_failed_run_is_closed_and_its_documents_go_their_way(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), run=run)
        with notes.database.tenant(notes.tenant) as connection:
            runs.fail(connection, run, "the source is away")
        notes.index()
        row = notes.run(run)
        assert (row.state, row.error) == ("failed", "the source is away")
        assert notes.row("a")["state"] == "done"
        assert notes.run_items.one()["outcome"] == "done"

    def test_a_closed_run_cannot_fail_any_more(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.close_run(run)
        with notes.database.tenant(notes.tenant) as connection:
            runs.fail(connection, run, "late")
            runs.finish_walk(connection, run)
        assert (notes.run(run).state, notes.run(run).error) == ("finished", None)

    def test_a_dead_document_does_not_keep_its_run_open(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), run=run)
        claimed = notes.claim("a")
        with notes.database.tenant(notes.tenant) as connection:
            work.fail(connection, claimed, claimed.ids, SourceUnavailable("x"), delay=0, dead=True)
        notes.close_run(run)
        assert (notes.run(run).state, notes.run(run).dead) == ("finished", 1)


class TestSending:
    def test_a_lost_message_is_sent_again_after_a_while(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        assert sync_due(notes) == []
        notes.runs.set(enqueued_at=ago(seconds=61))
        assert sync_due(notes) == [run]
        assert sync_due(notes) == []

    def test_not_while_somebody_walks(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.runs.set(enqueued_at=None)
        notes.sources.set(sync_lease_until=ahead(minutes=1))
        assert sync_due(notes) == []
        notes.sources.set(sync_lease_until=ago(seconds=1))
        assert sync_due(notes) == [run]

    def test_a_wait_that_was_asked_for_is_no_failure(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            assert runs.postpone(connection, run, delay=60, error="asks", tried=False) == 0
            assert runs.postpone(connection, run, delay=60, error="busy") == 1

    def test_only_a_cursor_that_moved_makes_tries_count_anew(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 1})
            runs.postpone(connection, run, delay=60, error="busy")
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 1})
        assert (notes.run(run).attempts, notes.run(run).error) == (1, None)
        with notes.database.tenant(notes.tenant) as connection:
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 2})
        assert notes.run(run).attempts == 0

    def test_a_postponed_walk_waits_its_time(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            assert runs.postpone(connection, run, delay=60, error="busy") == 1
            assert runs.postpone(connection, run, delay=60, error="busy still") == 2
        assert sync_due(notes) == []
        notes.runs.set(due_at=ago())
        assert sync_due(notes) == [run]
        assert notes.run(run).error == "busy still"

    def test_nothing_is_sent_for_a_walk_that_is_over(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.runs.set(enqueued_at=None)
        walked(notes, run)
        assert sync_due(notes) == []
