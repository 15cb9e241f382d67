"""Slices of a sync: pages, faults, where the next one begins, what is gone, and the walk over ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pipeline.documents import Page, Problem
from pipeline.errors import LeaseLost, RateLimited, SourceUnavailable
from pipeline.ledger import runs, sources
from tests.ledger import ago, ahead
from tests.pipeline.source_ledger import SourceLedger
from tests.pipeline.walked import EARLIER, LATER, FakeSource, fake_source, go_on, pipeline_of, sync


class TestSlices:
    def test_a_whole_walk_takes_everything_and_notes_its_end(self, notes: SourceLedger) -> None:
        source, rung = fake_source(5), []
        run = notes.open_run()
        assert go_on(notes, source, run, after_page=lambda: rung.append(1))
        row = notes.run(run)
        assert (row.state, row.listed, row.queued, len(rung)) == ("processing", 5, 5, 3)
        (known,) = notes.sources()
        assert (known["cursor"], known["stamp"], known["next_sync_at"]) == ({"read": 5}, "stamp-5", LATER)
        assert (known["pipeline_version"], known["sync_token"]) == (pipeline_of(source), None)

    def test_a_walk_gives_way_and_goes_on_where_it_stopped(self, notes: SourceLedger) -> None:
        source, run, slices = fake_source(7), notes.open_run(), 0
        while not go_on(notes, source, run, slice_seconds=-1.0):
            slices += 1
            assert slices < 10
        assert source.begun_at[:3] == [None, {"read": 2}, {"read": 4}]
        row = notes.run(run)
        assert (row.listed, row.queued, row.unchanged) == (7, 7, 0)

    def test_a_walk_over_all_gives_way_too(self, notes: SourceLedger) -> None:
        source, run = fake_source(6, walks_all=True), notes.open_run()
        results = [go_on(notes, source, run, slice_seconds=-1.0) for _ in range(3)]
        assert results == [False, False, True]
        assert (notes.run(run).queued, notes.run(run).listed) == (6, 6)

    def test_what_a_walk_has_behind_it_is_on_the_disk(
        self, alone: SourceLedger, omniscient: psycopg.Connection[Any]
    ) -> None:
        """A server that dies and is back before the walk asks for the next page must not have forgotten this one."""
        omniscient.execute("""
            create table walked (in_haste boolean);
            create function note_haste() returns trigger language plpgsql security definer as $$ begin
            insert into walked select source = 'session' from pg_settings where name = 'synchronous_commit';
            return new; end $$;
            create trigger noted after update on source for each row execute function note_haste()""")
        source = fake_source(6)
        source.versions = dict.fromkeys(source.documents, "1")
        sync(alone, source, walk=True)
        source.versions["d1"] = "2"
        sync(alone, source, walk=True)
        assert source.read_again[-1] == ["d1"], "one was read again"
        sync(alone, source, chunker="another")
        found = omniscient.execute("select in_haste, count(*) > 10 from walked group by 1").fetchall()
        assert found == [(False, True)]

    def test_a_long_listing_brings_as_much_as_it_cost(self, notes: SourceLedger) -> None:
        source, run = fake_source(16, walks_all=True, listing_seconds=1.0), notes.open_run()
        go_on(notes, source, run, slice_seconds=0.001)
        assert notes.run(run).queued > 2, "a listing for each page"

    def test_a_change_during_the_walk_is_seen_by_whoever_watches(self, notes: SourceLedger) -> None:
        source, run = fake_source(6, walks_all=True), notes.open_run()

        def edit_what_was_read() -> None:
            source.documents.setdefault("d9", "added behind the reader")

        assert not go_on(notes, source, run, slice_seconds=-1.0, after_page=edit_what_was_read)
        while not go_on(notes, source, run, slice_seconds=-1.0):
            pass
        assert notes.sources.one()["stamp"] == "stamp-6" != source.stamp()

    def test_who_made_it_due_during_the_walk_is_not_forgotten(self, notes: SourceLedger) -> None:
        source, run = fake_source(6, walks_all=True), notes.open_run()
        notes.sources.set(next_sync_at=ahead(hours=2))
        assert go_on(notes, source, run, after_page=lambda: notes.sources.set(next_sync_at=ago()))
        assert notes.sources.one()["next_sync_at"] <= ago()
        assert go_on(notes, source, notes.open_run())
        assert notes.sources.one()["next_sync_at"] == LATER

    def test_nothing_is_done_for_a_run_that_is_over(self, notes: SourceLedger) -> None:
        source, run = fake_source(2), notes.open_run()
        with notes.database.tenant(notes.tenant) as connection:
            runs.fail(connection, run, "x")
        assert go_on(notes, source, run)
        assert go_on(notes, source, -1)
        assert source.begun_at == []

    def test_nothing_is_done_while_somebody_else_walks(self, notes: SourceLedger) -> None:
        source, run = fake_source(2), notes.open_run()
        notes.sources.set(sync_token=uuid4(), sync_lease_until=ahead(seconds=9))
        assert go_on(notes, source, run)
        assert source.begun_at == []
        assert notes.run(run).state == "discovering"

    def test_who_loses_the_sync_on_the_way_stops_and_keeps_the_others_token(
        self, notes: SourceLedger
    ) -> None:
        source, run = fake_source(6), notes.open_run()

        def take_over() -> None:
            notes.sources.set(sync_token=uuid4())

        with pytest.raises(LeaseLost):
            go_on(notes, source, run, after_page=take_over)
        assert notes.run(run).listed == 2
        (known,) = notes.sources()
        assert (known["cursor"], known["sync_token"] is None) == ({"read": 2}, False)


class TestFaults:
    @pytest.mark.parametrize("walks_all", [False, True])
    @pytest.mark.parametrize("page", [0, 1, 2])
    def test_after_any_page_the_run_goes_on_where_it_stood(
        self, notes: SourceLedger, page: int, walks_all: bool
    ) -> None:
        source, run = fake_source(6, breaks_at=page, walks_all=walks_all), notes.open_run()
        with pytest.raises(SourceUnavailable):
            go_on(notes, source, run)
        row = notes.run(run)
        assert (row.state, row.listed, row.cursor) == (
            "discovering",
            page * 2,
            {"read": page * 2} if page else None,
        )
        assert notes.sources.one()["sync_token"] is None
        assert go_on(notes, source, run)
        row = notes.run(run)
        assert (row.listed, row.queued, row.unchanged) == (6, 6, 0)

    @pytest.mark.parametrize("walks_all", [False, True])
    def test_a_foreign_fault_becomes_ours_without_its_text(
        self, notes: SourceLedger, walks_all: bool
    ) -> None:
        source = fake_source(2, breaks_at=0, walks_all=walks_all, fault=KeyError("secret words"))
        with pytest.raises(SourceUnavailable) as caught:
            go_on(notes, source, notes.open_run())
        assert str(caught.value) == "the connector failed with KeyError"
        assert caught.value.__cause__ is None

    def test_a_foreign_fault_of_the_id_walk_as_well(self, notes: SourceLedger) -> None:
        source, run = fake_source(2, walks_all=True, ids_fault=ValueError("secret words")), notes.open_run()
        with pytest.raises(SourceUnavailable, match="the connector failed with ValueError"):
            go_on(notes, source, run)
        assert notes.run(run).state == "discovering"


class TestWhereToBegin:
    def test_an_incremental_source_keeps_its_cursor_between_runs(self, notes: SourceLedger) -> None:
        source = fake_source(3)
        sync(notes, source)
        source.documents["d3"] = "text 3"
        row = sync(notes, source)
        assert source.begun_at == [None, {"read": 3}]
        assert (row.listed, row.queued) == (1, 1)

    def test_a_source_that_walks_all_begins_anew(self, notes: SourceLedger) -> None:
        source = fake_source(3, walks_all=True)
        sync(notes, source)
        row = sync(notes, source)
        assert source.begun_at == [None, None]
        assert (row.listed, row.unchanged, row.queued) == (3, 3, 0)

    def test_force_begins_at_the_start_and_takes_everything_again(self, notes: SourceLedger) -> None:
        source = fake_source(3)
        sync(notes, source)
        row = sync(notes, source, force=True)
        assert source.begun_at == [None, None]
        assert row.queued == 3

    def test_a_forced_run_resumes_like_any_other(self, notes: SourceLedger) -> None:
        source = fake_source(6)
        sync(notes, source)
        run = notes.open_run(force=True)
        source.breaks_at = source.pages_read + 1
        with pytest.raises(SourceUnavailable):
            go_on(notes, source, run, force=True)
        assert go_on(notes, source, run, force=True)
        assert source.begun_at[-2:] == [None, {"read": 2}]
        assert notes.run(run).queued == 6

    def test_another_extractor_reads_everything_again(self, notes: SourceLedger) -> None:
        source = fake_source(3)
        sync(notes, source)
        source.extractor = "fake-2"
        row = sync(notes, source)
        assert source.begun_at == [None, None]
        assert row.queued == 3

    def test_another_chunker_brings_unlisted_documents_up_to_date(self, notes: SourceLedger) -> None:
        source = fake_source(3)
        sync(notes, source)
        row = sync(notes, source, chunker="c2")
        assert source.begun_at == [None, {"read": 3}]
        assert (row.listed, row.queued, row.unchanged) == (3, 3, 0)
        assert {r["pipeline_version"] for r in notes.documents()} == {pipeline_of(source, "c2")}
        assert {r["desired_version"] for r in notes.documents()} == {2}

    def test_another_configuration_during_the_walk_reads_everything_by_it(self, notes: SourceLedger) -> None:
        source, run = fake_source(6), notes.open_run()

        def configure_anew() -> None:
            with notes.database.tenant(notes.tenant) as connection:
                sources.register(connection, [notes.registration(config_hash="c2")])

        with pytest.raises(LeaseLost):
            go_on(notes, source, run, after_page=configure_anew)
        assert (notes.sources.one()["cursor"], notes.run(run).cursor) == (None, None)
        assert go_on(notes, source, run, config_hash="c2")
        assert source.begun_at == [None, None]

    def test_another_configuration_forgets_what_was_listed_by_the_old_one(self, notes: SourceLedger) -> None:
        source = fake_source(4, piece_size=2)
        source.versions = dict.fromkeys(source.documents, "v1")
        run = notes.open_run()
        assert not go_on(notes, source, run, slice_seconds=-1.0)
        while not notes.walk_pieces():
            assert not go_on(notes, source, run, slice_seconds=-1.0)
        with notes.database.tenant(notes.tenant) as connection:
            sources.register(connection, [notes.registration(config_hash="c2")])
        assert notes.walk_pieces() == []
        assert (notes.run(run).cursor, notes.run(run).stamp) == (None, None)


class TestWhatIsGone:
    def hidden(self, notes: SourceLedger) -> list[str]:
        return [r["external_id"] for r in notes.documents(hidden=True)]

    @pytest.mark.parametrize(
        ("options", "walk", "hidden"),
        [
            ({"walks_all": True}, False, ["d1"]),
            ({"walks_all": False}, False, []),
            ({"walks_all": False}, True, ["d1"]),
            ({"walks_all": True, "complete": False}, False, []),
            ({"complete": False}, True, []),
        ],
    )
    def test_only_a_complete_walk_tells(
        self, notes: SourceLedger, options: dict[str, bool], walk: bool, hidden: list[str]
    ) -> None:
        source = fake_source(3, **options)
        sync(notes, source)
        del source.documents["d1"]
        row = sync(notes, source, walk=walk)
        assert self.hidden(notes) == hidden
        assert row.hidden == len(hidden)

    def test_the_next_walk_is_timed_at_first_and_after_each(self, notes: SourceLedger) -> None:
        source = fake_source(2)
        sync(notes, source)
        assert notes.sources.one()["next_walk_at"] == LATER
        notes.sources.set(next_walk_at=EARLIER)
        sync(notes, source)
        assert notes.sources.one()["next_walk_at"] == EARLIER
        sync(notes, source, walk=True)
        assert notes.sources.one()["next_walk_at"] == LATER

    def test_a_source_whose_syncs_all_walk_needs_no_walks_besides(self, notes: SourceLedger) -> None:
        sync(notes, fake_source(2, walks_all=True))
        assert notes.sources.one()["next_walk_at"] is None

    def test_a_failed_walk_removes_nothing(self, notes: SourceLedger) -> None:
        source = fake_source(4, walks_all=True)
        sync(notes, source)
        source.documents.clear()
        source.breaks_at = source.pages_read
        with pytest.raises(SourceUnavailable):
            go_on(notes, source, notes.open_run())
        assert self.hidden(notes) == []


class TestWhatIsLeftOut:
    def test_it_is_counted_by_reason_in_the_run_and_kept_for_the_source(self, notes: SourceLedger) -> None:
        source = fake_source(3)
        empty = Problem(external_id="e", reason="e holds no text", because="holds no text")
        source.left_out, source.skipped = {"not for everybody": 4}, (empty,)
        row = sync(notes, source)
        assert row.left_out == {"not for everybody": 8, "holds no text": 2}, "two pages"
        assert (row.skipped, row.listed) == (10, 13)
        assert notes.sources.one()["left_out"] == row.left_out
        source.left_out = {}
        sync(notes, source)
        assert notes.sources.one()["left_out"] == row.left_out, "a look at changes tells nothing of the rest"

    def test_an_id_walk_that_tells_it_counts_for_all(self, notes: SourceLedger) -> None:
        source = fake_source(3, left_out={"not for everybody": 4}, all_left_out={"not for everybody": 5})
        assert sync(notes, source).left_out == {"not for everybody": 5}
        source.all_left_out = {}
        assert sync(notes, source, walk=True).left_out == {}
        assert notes.sources.one()["left_out"] == {}


class TestTheIdWalk:
    """A walk that shows fingerprints finds what the pages of an incremental source did not bring."""

    def source(self, notes: SourceLedger, count: int = 4) -> FakeSource:
        source = fake_source(count)
        source.versions = dict.fromkeys(source.documents, "v1")
        sync(notes, source)
        source.read_again.clear()
        return source

    def test_the_first_sync_ends_with_one_and_finds_nothing_to_read_again(self, notes: SourceLedger) -> None:
        source = fake_source(4)
        source.versions = dict.fromkeys(source.documents, "v1")
        row = sync(notes, source)
        assert (row.walk, row.queued, source.read_again) == (True, 4, [])

    def test_a_first_sync_that_was_broken_off_ends_with_one_too(self, notes: SourceLedger) -> None:
        source, run = fake_source(6, breaks_at=1), notes.open_run()
        with pytest.raises(SourceUnavailable):
            go_on(notes, source, run)
        gone = source.documents.pop("d0")
        assert go_on(notes, source, run), gone
        assert [r["external_id"] for r in notes.documents(hidden=True)] == ["d0"]

    def test_only_what_differs_is_read_again(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.versions["d2"] = "v2"
        source.documents["d2"] = "another text"
        row = sync(notes, source, walk=True)
        assert source.read_again == [["d2"]]
        assert (row.queued, row.listed, row.hidden) == (1, 1, 0)
        source.read_again.clear()
        sync(notes, source, walk=True)
        assert source.read_again == [], "its fingerprint was not kept"

    def test_without_a_walk_nothing_is_read_again(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.versions["d2"] = "v2"
        sync(notes, source)
        assert source.read_again == []

    def test_a_mark_alone_is_kept_and_nothing_is_queued(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.versions["d2"] = "v2"
        row = sync(notes, source, walk=True)
        assert (row.queued, row.unchanged) == (0, 1)
        assert notes.documents.one(external_id="d2")["fingerprint"] == "v2"

    def test_an_item_the_pages_never_brought_is_read(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.documents = {"a-new": "text", **source.documents}
        source.versions["a-new"] = "v1"
        row = sync(notes, source, walk=True)
        assert source.read_again == [["a-new"]]
        assert row.queued == 1

    def test_what_turns_out_to_be_gone_is_deleted_at_once(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.versions["d2"] = "v2"
        del source.documents["d2"]
        row = sync(notes, source, walk=True)
        assert row.deleted == 1
        assert notes.documents.one(external_id="d2")["deleted"]

    def test_what_was_hidden_and_is_there_again_is_shown(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        kept = source.documents.pop("d1")
        del source.versions["d1"]
        assert sync(notes, source, walk=True).hidden == 1
        source.documents["d1"] = kept
        source.versions["d1"] = "v1"
        row = sync(notes, source, walk=True)
        assert (row.restored, source.read_again) == (1, [])
        assert not notes.documents.one(external_id="d1")["hidden"]

    def test_a_long_one_gives_way_and_goes_on_behind_what_it_read(self, notes: SourceLedger) -> None:
        source = self.source(notes, 120)
        for i in source.documents:
            source.versions[i] = "v2"
            source.marks[i] = "never the same"
        run = notes.open_run(walk=True)
        slices = 0
        while not go_on(notes, source, run, slice_seconds=-1.0):
            slices += 1
            assert slices < 9, "it begins anew each time"
        read = [i for ids in source.read_again for i in ids]
        assert sorted(read) == sorted(source.documents), "read twice, or not at all"

    def test_what_was_read_again_before_a_fault_is_not_read_once_more(self, notes: SourceLedger) -> None:
        class Torn(FakeSource):
            def read(self, ids: Sequence[str]) -> Iterator[Page]:
                yield from super().read(ids[:1])
                if len(ids) > 1:
                    raise RateLimited(retry_after=1)

        source = Torn({f"d{n}": f"text {n}" for n in range(4)})
        source.versions = dict.fromkeys(source.documents, "v1")
        sync(notes, source)
        source.versions = dict.fromkeys(source.documents, "v2")
        run = notes.open_run(walk=True)
        for _ in range(3):
            with pytest.raises(RateLimited):
                go_on(notes, source, run)
        assert go_on(notes, source, run)
        assert source.read_again == [["d0"], ["d1"], ["d2"], ["d3"]]

    def test_a_list_of_ids_longer_than_a_slice_goes_on_where_it_stopped(self, notes: SourceLedger) -> None:
        source = self.source(notes, 7)
        source.piece_size = 2
        del source.documents["d3"]
        source.versions["d5"] = "v2"
        run = notes.open_run(walk=True)
        results = [go_on(notes, source, run, slice_seconds=-1.0) for _ in range(3)]
        assert (results, source.pieces_begun) == ([False, False, True], [0, 2, 4])
        assert source.read_again == [["d5"]]
        row = notes.run(run)
        assert (row.hidden, row.left_out) == (1, {"not for everybody": 3})
        assert notes.walk_pieces() == []

    def test_what_comes_while_ids_are_listed_is_not_taken_for_gone(self, notes: SourceLedger) -> None:
        source = self.source(notes, 6)
        source.piece_size = 2
        run = notes.open_run(walk=True)
        assert not go_on(notes, source, run, slice_seconds=-1.0)
        source.documents["a-new"] = "its id stands before those that were listed"
        source.versions["a-new"] = "v1"
        while not go_on(notes, source, run, slice_seconds=-1.0):
            pass
        assert (notes.run(run).queued, notes.run(run).hidden, notes.row("a-new")["hidden"]) == (1, 0, False)

    def test_slices_of_reading_again_do_not_list_again(self, notes: SourceLedger) -> None:
        source = self.source(notes, 120)
        source.piece_size = 1000
        source.versions = dict.fromkeys(source.documents, "v2")
        run, slices = notes.open_run(walk=True), 1
        while not go_on(notes, source, run, slice_seconds=-1.0):
            slices += 1
        assert (slices, source.pieces_begun) == (3, [0])

    def test_a_fault_behind_a_piece_does_not_cost_the_piece(self, notes: SourceLedger) -> None:
        source = self.source(notes, 6)
        source.piece_size = 2
        run = notes.open_run(walk=True)
        assert not go_on(notes, source, run, slice_seconds=-1.0)
        source.ids_fault = RateLimited(retry_after=1)
        with pytest.raises(RateLimited):
            go_on(notes, source, run)
        source.ids_fault = None
        assert go_on(notes, source, run)
        assert source.pieces_begun == [0, 2, 4]

    def test_its_pages_do_not_move_the_cursor(self, notes: SourceLedger) -> None:
        source = self.source(notes)
        source.versions["d2"] = "v2"
        sync(notes, source, walk=True)
        assert notes.sources.one()["cursor"] == {"read": 4}


def test_what_is_gone_goes_while_a_document_of_the_last_run_waits(notes: SourceLedger) -> None:
    source = fake_source(3, walks_all=True)
    go_on(notes, source, notes.open_run())
    notes.documents.set(due_at=ahead(days=1))
    del source.documents["d1"]
    with notes.database.tenant(notes.tenant) as connection:
        second = runs.open_run(connection, notes.tenant, notes.source, trigger="schedule")
    assert second is not None
    assert go_on(notes, source, second)
    assert [r["external_id"] for r in notes.documents(hidden=True)] == ["d1"]


def test_a_newer_run_takes_over_what_the_older_still_waits_for(notes: SourceLedger) -> None:
    source = fake_source(2)
    first = notes.open_run()
    go_on(notes, source, first)
    second = notes.open_run(force=True)
    go_on(notes, source, second, force=True)
    with notes.database.tenant(notes.tenant) as connection:
        found = runs.progress(connection, [first, second])
    assert (found[first]["open"], found[first]["superseded"], found[second]["open"]) == (0, 2, 2)
