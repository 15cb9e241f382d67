"""Runs: one open per source, live counts, and closing by one statement that may be repeated."""

from __future__ import annotations

import pytest

from pipeline.documents import Listing, Page
from pipeline.errors import SourceUnavailable
from pipeline.ledger import admission, runs, sources, work
from tests.ledger import ago, ahead
from tests.pipeline.workshop import Workshop, document, paragraphs, problem


def settled(shop: Workshop) -> dict[int, bool]:
    with shop.database.control() as connection:
        return {s.id: s.changed for s in runs.list_settled(connection) if s.tenant_id == shop.tenant}


def sync_due(shop: Workshop, resend: float = 60) -> list[int]:
    with shop.database.control() as connection:
        due = runs.sync_due(connection, resend=resend)
    return [run for tenant, _, run in due if tenant == shop.tenant]


def walked(shop: Workshop, run: int) -> None:
    with shop.database.tenant(shop.tenant) as connection:
        runs.finish_walk(connection, run)


def due(shop: Workshop) -> list[str]:
    with shop.database.control() as connection:
        return [row.name for row in sources.due(connection) if row.tenant_id == shop.tenant]


def exists(shop: Workshop, run: int) -> bool:
    return bool(len(shop.runs(id=run)))


class TestOpening:
    def test_a_source_is_walked_by_one_run_at_a_time(self, shop: Workshop) -> None:
        run = shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            assert runs.open_run(connection, shop.tenant, shop.source, trigger="manual") is None
            found = runs.open_of(connection, shop.source)
        assert found is not None
        assert found.id == run

    def test_a_document_that_waits_keeps_its_source_from_no_walk(self, shop: Workshop) -> None:
        shop.sources.set(next_sync_at=ago())
        first = shop.open_run()
        shop.admit(document("a"), run=first)
        assert due(shop) == []
        walked(shop, first)
        assert due(shop) == ["notes"]
        with shop.database.tenant(shop.tenant) as connection:
            second = runs.open_run(connection, shop.tenant, shop.source, trigger="schedule")
            assert runs.is_walked(connection, shop.source)
            found = runs.open_of(connection, shop.source)
        assert found is not None
        assert found.id == first, "the oldest"
        assert second is not None
        shop.close_run(second)
        assert not exists(shop, second), "it found nothing"
        shop.index()
        shop.close_run(first)
        assert (shop.run(first).state, shop.run(first).indexed) == ("finished", 1)

    def test_scheduled_runs_do_not_pile_up_while_a_document_waits(self, shop: Workshop) -> None:
        opened = []
        for _ in range(3):
            with shop.database.tenant(shop.tenant) as connection:
                run = runs.open_run(connection, shop.tenant, shop.source, trigger="schedule")
            assert run is not None
            opened.append(run)
            shop.admit(document("a"), run=run)
            shop.close_run(run)
        assert [exists(shop, run) for run in opened] == [False, False, True]

    def test_a_run_remembers_what_it_was_opened_for(self, shop: Workshop) -> None:
        shop.open_run()
        found = shop.run(shop.open_run(force=True, walk=True))
        assert (found.force, found.walk, found.state) == (True, True, "discovering")

    def test_an_unknown_run_is_none(self, shop: Workshop) -> None:
        with shop.database.tenant(shop.tenant) as connection:
            assert runs.get(connection, -1) is None
            assert runs.open_of(connection, shop.source) is None


class TestClosing:
    def test_totals_come_from_the_items(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a", paragraphs(3, "one")), document("b", paragraphs(2, "two")), run=run)
        shop.index()
        walked(shop, run)
        assert settled(shop) == {run: True}
        shop.close_run(run)
        row = shop.run(run)
        assert (row.state, row.error, row.finished_at is None) == ("finished", None, False)
        assert (row.indexed, row.chunks, row.chunks_written, row.chunks_kept) == (2, 5, 5, 0)
        assert (row.texts_embedded, row.texts_reused, row.dead, row.superseded) == (5, 0, 0, 0)
        shop.close_run(run)
        assert shop.run(run) == row

    def test_it_waits_for_the_last_document(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a"), document("b"), run=run)
        shop.index(shop.items("a"))
        walked(shop, run)
        assert settled(shop) == {}
        shop.index()
        assert settled(shop) == {run: True}

    def test_it_waits_for_the_end_of_the_walk(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a"), run=run)
        shop.index()
        assert settled(shop) == {}

    def test_live_counts_tell_how_far_it_is(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a"), document("b"), run=run)
        shop.index(shop.items("a"))
        with shop.database.tenant(shop.tenant) as connection:
            found = runs.progress(connection, [run])[run]
        assert (found["open"], found["indexed"], found["chunks"]) == (1, 1, 1)

    @pytest.mark.parametrize(("trigger", "stays"), [("schedule", False), ("watch", False), ("manual", True)])
    def test_a_run_that_found_nothing_is_removed_unless_a_person_asked(
        self, shop: Workshop, trigger: str, stays: bool
    ) -> None:
        shop.admit(document("a"))
        shop.index()
        run = shop.open_run(trigger=trigger)
        shop.admit(document("a"), run=run)
        walked(shop, run)
        assert settled(shop) == {run: False}
        shop.close_run(run)
        assert exists(shop, run) is stays

    @pytest.mark.parametrize(
        "page",
        [
            Page(cursor={}, documents=(document("new"),)),
            Page(cursor={}, failed=(problem("f"),)),
            Page(cursor={}, skipped=(problem("s"),)),
            Page(cursor={}, deleted=("old",)),
        ],
    )
    def test_a_scheduled_run_that_found_something_stays(self, shop: Workshop, page: Page) -> None:
        shop.admit(document("old"))
        shop.index()
        run = shop.open_run(trigger="schedule")
        shop.admit_page(page, run=run)
        shop.index()
        shop.close_run(run)
        assert exists(shop, run)

    def test_closing_touches_no_run_that_is_still_walking(self, shop: Workshop) -> None:
        run = shop.open_run(trigger="schedule")
        with shop.database.control() as connection:
            runs.close(connection, [run])
        assert shop.run(run).state == "discovering"

    def test_hiding_is_a_change_that_search_sees(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        run = shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            listing = Listing(ids=frozenset(), complete=True)
            pruned = admission.prune(connection, shop.source, listing, admission.DeletionGuard())
            runs.add(connection, run, pruned)
        walked(shop, run)
        assert settled(shop) == {run: True}


class TestFailing:
    def test_a_failed_run_is_closed_and_its_documents_go_their_way(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a"), run=run)
        with shop.database.tenant(shop.tenant) as connection:
            runs.fail(connection, run, "the source is away")
        shop.index()
        row = shop.run(run)
        assert (row.state, row.error) == ("failed", "the source is away")
        assert shop.row("a")["state"] == "done"
        assert shop.run_items.one()["outcome"] == "done"

    def test_a_closed_run_cannot_fail_any_more(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.close_run(run)
        with shop.database.tenant(shop.tenant) as connection:
            runs.fail(connection, run, "late")
            runs.finish_walk(connection, run)
        assert (shop.run(run).state, shop.run(run).error) == ("finished", None)

    def test_a_dead_document_does_not_keep_its_run_open(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a"), run=run)
        claimed = shop.claim("a")
        with shop.database.tenant(shop.tenant) as connection:
            work.fail(connection, claimed, claimed.ids, SourceUnavailable("x"), delay=0, dead=True)
        shop.close_run(run)
        assert (shop.run(run).state, shop.run(run).dead) == ("finished", 1)


class TestSending:
    def test_a_lost_message_is_sent_again_after_a_while(self, shop: Workshop) -> None:
        run = shop.open_run()
        assert sync_due(shop) == []
        shop.runs.set(enqueued_at=ago(seconds=61))
        assert sync_due(shop) == [run]
        assert sync_due(shop) == []

    def test_not_while_somebody_walks(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.runs.set(enqueued_at=None)
        shop.sources.set(sync_lease_until=ahead(minutes=1))
        assert sync_due(shop) == []
        shop.sources.set(sync_lease_until=ago(seconds=1))
        assert sync_due(shop) == [run]

    def test_a_wait_that_was_asked_for_is_no_failure(self, shop: Workshop) -> None:
        run = shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            assert runs.postpone(connection, run, delay=60, error="asks", tried=False) == 0
            assert runs.postpone(connection, run, delay=60, error="busy") == 1

    def test_only_a_cursor_that_moved_makes_tries_count_anew(self, shop: Workshop) -> None:
        run = shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 1})
            runs.postpone(connection, run, delay=60, error="busy")
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 1})
        assert (shop.run(run).attempts, shop.run(run).error) == (1, None)
        with shop.database.tenant(shop.tenant) as connection:
            runs.add(connection, run, runs.Counts(unchanged=1), cursor={"at": 2})
        assert shop.run(run).attempts == 0

    def test_a_postponed_walk_waits_its_time(self, shop: Workshop) -> None:
        run = shop.open_run()
        with shop.database.tenant(shop.tenant) as connection:
            assert runs.postpone(connection, run, delay=60, error="busy") == 1
            assert runs.postpone(connection, run, delay=60, error="busy still") == 2
        assert sync_due(shop) == []
        shop.runs.set(due_at=ago())
        assert sync_due(shop) == [run]
        assert shop.run(run).error == "busy still"

    def test_nothing_is_sent_for_a_walk_that_is_over(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.runs.set(enqueued_at=None)
        walked(shop, run)
        assert sync_due(shop) == []
