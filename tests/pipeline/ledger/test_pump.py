"""The pump: what is due, once, in batches that fit, with what was lost and what crashed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Page
from pipeline.ledger import Item, Lane, Limits, Stage, due_work, work
from tests.ledger import ago, ahead, of_connection
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs


@pytest.fixture
def notes(shared_database: Database) -> Iterator[SourceLedger]:
    """A source in a database where nobody else has documents; the pump looks at every tenant."""
    yield SourceLedger(shared_database, uuid4(), uuid4())
    with shared_database.control() as connection:
        ledger = of_connection(connection)
        ledger.documents.clear()
        ledger.runs.clear()
        connection.execute(text("update lane_clock set turn = 0"))


def pump_once(notes: SourceLedger, *, embed: int | None = None, **limits: float) -> due_work.PumpResult:
    room = due_work.EmbedRoom(documents=embed)
    with notes.database.control() as connection:
        found = due_work.pump_once(connection, Limits(**limits), embed=room)  # type: ignore[arg-type]
    assert found is not None
    return found


def finish_sent(notes: SourceLedger) -> None:
    """Have everything done of which a message is under way."""
    for one in notes.documents():
        if one["enqueued_at"]:
            notes.documents.set({"id": one["id"]}, state="done")


def names(notes: SourceLedger, batch: due_work.Batch) -> list[str]:
    known = dict(notes.documents.values("id", "external_id"))
    return [known[item.document_id] for item in batch.items]


class TestEmbedding:
    """While nothing may be embedded, all else goes on."""

    def sent(self, notes: SourceLedger, embed: int | None, **limits: float) -> dict[Stage, int]:
        for name in "abcdef":
            notes.admit(document(name))
        for name in "abc":
            notes.set(name, stage="chunked", due_at=ago(hours=1))
        notes.set("d", stage="embedded")
        found = pump_once(notes, embed=embed, **limits)
        return {b.stage: len(b.items) for b in found.batches}

    @pytest.mark.parametrize(
        ("embed", "sent"),
        [
            (None, {Stage.FETCHED: 2, Stage.EMBEDDED: 1, Stage.CHUNKED: 3}),
            (0, {Stage.FETCHED: 2, Stage.EMBEDDED: 1}),
            (2, {Stage.FETCHED: 2, Stage.EMBEDDED: 1, Stage.CHUNKED: 2}),
        ],
    )
    def test_only_so_many_are_sent_for_embedding(
        self, notes: SourceLedger, embed: int | None, sent: dict[Stage, int]
    ) -> None:
        assert self.sent(notes, embed) == sent

    def test_a_probe_takes_no_more_room_than_there_is(self, notes: SourceLedger) -> None:
        found = self.sent(notes, 4, in_flight=4)
        assert sum(found.values()) == 4

    def test_what_was_left_out_goes_when_it_may(self, notes: SourceLedger) -> None:
        self.sent(notes, 0)
        (batch,) = pump_once(notes).batches
        assert (batch.stage, names(notes, batch)) == (Stage.CHUNKED, ["a", "b", "c"])


class TestChoosing:
    def test_what_is_due_goes_out_with_its_version(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.admit(document("a", "edited"))
        (batch,) = pump_once(notes).batches
        assert batch == due_work.Batch(
            tenant_id=notes.tenant, stage=Stage.FETCHED, items=(Item(notes.id("a"), 2),)
        )

    def test_it_goes_out_once(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        assert len(pump_once(notes).batches) == 1
        assert pump_once(notes) == due_work.PumpResult()

    @pytest.mark.parametrize("state", [{"due_at": ahead(days=1)}, {"state": "done"}, {"state": "dead"}])
    def test_neither_what_waits_nor_what_is_settled(self, notes: SourceLedger, state: dict[str, Any]) -> None:
        notes.admit(document("a"))
        notes.set("a", **state)
        assert pump_once(notes).batches == ()

    def test_nothing_that_somebody_works_on(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.claim("a")
        assert pump_once(notes).batches == ()

    def test_those_that_wait_longest_go_first(self, notes: SourceLedger) -> None:
        notes.admit(*(document(i) for i in "abcd"))
        for n, external_id in enumerate("dbca"):
            notes.set(external_id, due_at=ago(minutes=10 - n))
        found = pump_once(notes, in_flight=2)
        assert sorted(names(notes, found.batches[0])) == ["b", "d"]

    def test_two_pumps_never_work_at_once(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        with notes.database.control() as first:
            first.execute(text("select pg_advisory_xact_lock(hashtext('larder.pump'))"))
            with notes.database.control() as second:
                assert due_work.pump_once(second, Limits()) is None
        assert len(pump_once(notes).batches) == 1


class TestBatches:
    def test_they_hold_so_many_and_no_more(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n}") for n in range(7)))
        found = pump_once(notes, batch=3)
        assert sorted(len(b.items) for b in found.batches) == [1, 3, 3]
        assert len({i for b in found.batches for i in b.items}) == 7

    def test_stages_travel_apart(self, notes: SourceLedger) -> None:
        notes.admit(*(document(i) for i in "abc"))
        notes.set("a", stage="chunked")
        notes.set("b", stage="embedded")
        found = {b.stage: names(notes, b) for b in pump_once(notes).batches}
        assert found == {Stage.CHUNKED: ["a"], Stage.EMBEDDED: ["b"], Stage.FETCHED: ["c"]}

    def test_tenants_travel_apart(self, notes: SourceLedger) -> None:
        other = SourceLedger(notes.database, uuid4(), uuid4())
        for one in (notes, other):
            one.admit(document("a"), document("b"))
        found: dict[UUID, set[UUID]] = {
            b.tenant_id: {i.document_id for i in b.items} for b in pump_once(notes).batches
        }
        assert found == {one.tenant: {one.id("a"), one.id("b")} for one in (notes, other)}

    def test_those_that_crashed_before_travel_alone(self, notes: SourceLedger) -> None:
        notes.admit(*(document(i) for i in "abcd"))
        for external_id in "ab":
            notes.set(external_id, crash_count=1)
        found = sorted(names(notes, b) for b in pump_once(notes).batches)
        assert [sorted(f) for f in found] in ([["a"], ["b"], ["c", "d"]], [["a"], ["b"], ["d", "c"]])


class TestTurns:
    def sent(
        self, notes: SourceLedger, *, embed: int | None = None, **limits: int
    ) -> list[tuple[UUID, UUID]]:
        """(tenant, source) of each document that goes out, in order."""
        found = pump_once(notes, embed=embed, **limits)
        ids = [item.document_id for batch in found.batches for item in batch.items]
        with notes.database.control() as connection:
            rows = of_connection(connection).documents.values("id", "tenant_id", "source_id")
        known = {key: place for key, *place in rows}
        return [(tenant, source) for tenant, source in (known[i] for i in ids)]

    @pytest.mark.parametrize(("stage", "in_flight"), [("fetched", 320), ("chunked", 288)])
    def test_loads_take_turns_by_tenant_and_then_by_source(
        self, notes: SourceLedger, stage: str, in_flight: int
    ) -> None:
        """Of 320 documents a tenth is left for edits."""
        small, other = (SourceLedger(notes.database, uuid4(), uuid4()) for _ in range(2))
        second = SourceLedger(notes.database, notes.tenant, notes.project, "second")
        loads = (notes, second, other)
        for page in range(2):
            for one in loads:
                one.admit(*(document(f"{page}-{n}") for n in range(due_work.SHORT_OF + 8)))
        small.admit(document("a"), document("b"))
        for one in (*loads, small):
            one.documents.set(stage=stage)
        sent = self.sent(notes, in_flight=in_flight)
        assert len(sent) == 288
        assert sent[:2] == [(small.tenant, small.source)] * 2, "a few go before loads"
        assert abs(sent.count((other.tenant, other.source)) - 144) <= due_work.BLOCK
        assert all(
            abs(sent.count((one.tenant, one.source)) - 72) <= due_work.BLOCK for one in (notes, second)
        )
        assert {tenant for tenant, _ in sent[2 : 2 + 2 * 128]} == {notes.tenant, other.tenant}, "one by one"

    def test_a_later_load_is_cut_until_it_has_caught_up_and_embedded_by_turns_at_once(
        self, notes: SourceLedger
    ) -> None:
        later = SourceLedger(notes.database, uuid4(), uuid4())
        notes.admit(*(document(f"d{n}") for n in range(400)))
        for n in (0, 1, 2):
            notes.documents.set(f"d{n}%", stage="chunked")
        first = self.sent(notes, in_flight=160)
        assert {tenant for tenant, _ in first} == {notes.tenant}
        finish_sent(notes)
        later.admit(*(document(f"d{n}") for n in range(due_work.SHORT_OF + 16)))
        assert {tenant for tenant, _ in self.sent(notes, in_flight=80, embed=0)} == {later.tenant}
        later.documents.set(stage="chunked", enqueued_at=None)
        sent = [tenant for tenant, _ in self.sent(notes, in_flight=80)]
        assert abs(sent.count(later.tenant) - 40) <= 2 * due_work.BLOCK

    def test_whoever_clears_a_load_begins_where_all_others_do(self, notes: SourceLedger) -> None:
        other = SourceLedger(notes.database, uuid4(), uuid4())
        other.admit(*(document(f"d{n}") for n in range(200)))
        names = [f"d{n}" for n in range(200)]
        notes.admit(*map(document, names))
        notes.admit_page(Page(cursor={}, deleted=tuple(names)))
        notes.admit(*(document(f"e{n}") for n in range(due_work.SHORT_OF + 1)))
        assert self.sent(notes, in_flight=150).count((notes.tenant, notes.source)) >= due_work.SHORT_OF

    def test_the_room_is_kept_where_the_planner_takes_the_table_for_empty(
        self, alone: SourceLedger, omniscient: psycopg.Connection[Any]
    ) -> None:
        for name in "abcd":
            source = SourceLedger(alone.database, alone.tenant, alone.project, name)
            source.admit(*(document(f"d{n}") for n in range(60)))
        omniscient.execute(
            "update pg_class set reltuples = 1, relpages = 100 where oid = 'document'::regclass"
        )
        omniscient.commit()
        assert len(self.sent(alone, in_flight=38)) == 38

    def test_there_is_room_for_a_few_of_very_many_and_the_longest_due_go_first(
        self, notes: SourceLedger
    ) -> None:
        others = [SourceLedger(notes.database, uuid4(), uuid4()) for _ in range(5)]
        for n, one in enumerate(others):
            one.admit(document("a"))
            one.set("a", due_at=ago(minutes=n))
        assert {tenant for tenant, _ in self.sent(notes, in_flight=2)} == {o.tenant for o in others[3:]}


class TestLanes:
    """What is changed goes before what is new, a little before much, and only a few messages wait to be embedded."""

    @pytest.fixture
    def load(self, notes: SourceLedger) -> SourceLedger:
        """Two documents are searchable; then came many new ones, and one of the two was edited."""
        notes.admit(document("edited", "Old words."), document("settled", "Old words."))
        notes.index()
        notes.admit(*(document(f"d{n:03}", paragraphs(2)) for n in range(due_work.SHORT_OF + 6)))
        notes.admit(document("edited", "New words."))
        return notes

    def chosen(
        self, notes: SourceLedger, waiting: Mapping[int, int] | None = None, chunks: int = 4
    ) -> list[due_work.Batch]:
        room = due_work.EmbedRoom(chunks=chunks, waiting=waiting or {})
        with notes.database.control() as connection:
            return due_work.choose_embeds(connection, Limits(), room)

    @pytest.mark.parametrize("step", ["cut", "embedded"])
    def test_what_was_edited_goes_before_a_load_that_came_earlier(
        self, load: SourceLedger, step: str
    ) -> None:
        if step == "embedded":
            load.indexer().chunk(load.tenant, load.items())
            first, *rest = self.chosen(load)
        else:
            first, *rest = pump_once(load).batches
        assert (names(load, first), first.lane) == (["edited"], Lane.CHANGED)
        assert {batch.lane for batch in rest} == {Lane.BULK}

    def test_a_small_new_source_goes_before_a_load(self, load: SourceLedger) -> None:
        small = SourceLedger(load.database, load.tenant, load.project, "small")
        small.admit(document("note"))
        lanes = [(batch.lane, len(batch.items)) for batch in pump_once(load).batches[:2]]
        assert lanes == [(Lane.CHANGED, 1), (Lane.FEW, 1)]

    def test_everything_edited_at_once_is_a_load(self, notes: SourceLedger) -> None:
        many = [f"d{n:03}" for n in range(due_work.SHORT_OF + 1)]
        for body in ("Old words.", "New words."):
            notes.admit(*(document(name, body) for name in many))
            if body.startswith("Old"):
                notes.index()
        assert {batch.lane for batch in pump_once(notes).batches} == {Lane.BULK}

    def test_few_messages_wait_and_each_is_short(self, load: SourceLedger) -> None:
        load.indexer().chunk(load.tenant, load.items())
        found = [batch for batch in self.chosen(load) if batch.lane is Lane.BULK]
        assert [len(batch.items) for batch in found] == [2] * due_work.AHEAD, "of two chunks each"
        assert self.chosen(load, {6: due_work.AHEAD}) == []
        assert len(self.chosen(load, {6: due_work.AHEAD - 1})) == 1
        load.claim(*names(load, found[0]), stage=Stage.CHUNKED)
        assert len(self.chosen(load, {6: due_work.AHEAD})) == 1, "one more for each that somebody works on"

    def test_a_large_document_travels_alone(self, load: SourceLedger) -> None:
        load.indexer().chunk(load.tenant, load.items())
        assert [len(batch.items) for batch in self.chosen(load, chunks=1)] == [1] * (1 + due_work.AHEAD)


class TestBounds:
    def test_what_is_under_way_takes_room(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n}") for n in range(5)))
        first = pump_once(notes, in_flight=3)
        assert len(first.batches[0].items) == 3
        assert pump_once(notes, in_flight=3) == due_work.PumpResult()
        assert len(pump_once(notes, in_flight=4).batches[0].items) == 1

    def test_a_tick_sends_so_many_and_the_next_one_the_rest(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n}") for n in range(5)))
        sent = [sum(len(b.items) for b in pump_once(notes, at_once=3).batches) for _ in range(3)]
        assert sent == [3, 2, 0]

    def test_of_many_tenants_some_send_and_then_others(self, notes: SourceLedger) -> None:
        others = [SourceLedger(notes.database, uuid4(), uuid4()) for _ in range(5)]
        for one in others:
            one.admit(*(document(f"d{n}") for n in range(due_work.SHORT_OF)))
        turns: list[UUID] = []
        for _ in range(due_work.SHORT_OF // due_work.BLOCK):
            turns += [b.tenant_id for b in pump_once(notes, in_flight=6).batches]
            for one in others:
                finish_sent(one)
        assert set(turns) == {one.tenant for one in others}, "those whose documents are older go on for ever"

    def test_settled_documents_give_their_room_back(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n}") for n in range(4)))
        pump_once(notes, in_flight=2)
        finish_sent(notes)
        assert sum(len(b.items) for b in pump_once(notes, in_flight=2).batches) == 2

    def test_a_lost_message_is_sent_again_after_a_while(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        pump_once(notes, resend=60)
        notes.set("a", enqueued_at=ago(seconds=59))
        assert pump_once(notes, resend=60).batches == ()
        notes.set("a", enqueued_at=ago(seconds=61))
        assert len(pump_once(notes, resend=60).batches) == 1

    def test_the_message_of_work_under_way_is_not_lost(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        pump_once(notes, resend=60)
        notes.claim("a")
        notes.set("a", enqueued_at=ago(seconds=61))
        assert pump_once(notes, resend=60).batches == ()
        assert notes.row("a")["enqueued_at"] is not None, "or more than `in_flight` are under way"

    def test_the_clock_of_a_lane_never_goes_back(self, notes: SourceLedger) -> None:
        """Or those that come later would have their turn before all that waits."""
        notes.admit(document("late"), document("early"), document("next"))
        notes.indexer().chunk(notes.tenant, notes.items("late", "early"))
        notes.set("late", turn=100)
        notes.set("early", turn=50, due_at=ahead(minutes=1))
        pump_once(notes)
        notes.set("early", due_at=ago())
        assert [names(notes, batch) for batch in pump_once(notes).batches] == [["early"]]
        notes.admit(document("newest"))
        assert notes.row("newest")["turn"] > 100

    def test_what_is_being_worked_on_is_not_noted_as_unsent(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        (batch,) = pump_once(notes).batches
        notes.claim("a")
        with notes.database.tenant(notes.tenant) as connection:
            work.mark_unsent(connection, list(batch.items))
        assert notes.row("a")["enqueued_at"] is not None

    def test_what_waits_for_its_time_is_no_longer_looked_at_until_then(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        claimed = notes.claim("a")
        with notes.database.tenant(notes.tenant) as connection:
            work.postpone(connection, claimed, claimed.ids, delay=60, reason="busy")
        assert (notes.row("a")["turn"], notes.row("b")["turn"]) == (None, 0)
        assert names(notes, pump_once(notes).batches[0]) == ["b"]
        notes.set("a", due_at=ago())
        assert names(notes, pump_once(notes).batches[0]) == ["a"]
        assert notes.row("a")["turn"] is not None

    def test_what_a_worker_of_before_admits_without_a_turn_is_sent(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n:02}") for n in range(20)))
        notes.sql("update document set turn = default, lane = default")
        assert sum(len(batch.items) for batch in pump_once(notes).batches) == 20
        assert {row["turn"] for row in notes.documents()} == {0, 8, 16}

    def test_a_message_the_broker_did_not_take_is_sent_at_the_next_look(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        pump_once(notes)
        items = notes.items("a", "b")
        notes.claim("b")
        with notes.database.tenant(notes.tenant) as connection:
            work.mark_unsent(connection, items)
        (batch,) = pump_once(notes).batches
        assert names(notes, batch) == ["a"]


class TestCrashes:
    def test_an_expired_lease_goes_back_to_the_queue_alone(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        notes.claim("a", lease=-1)
        found = pump_once(notes)
        assert found.crashed == 1
        assert sorted(map(len, (b.items for b in found.batches))) == [1, 1]
        row = notes.row("a")
        assert (row["state"], row["lease_token"], row["crash_count"]) == ("pending", None, 1)
        assert "died or hung" in row["last_error"]

    def test_a_third_crash_is_the_last(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("poison"), run=run)
        for crash in (1, 2, 3):
            assert notes.row("poison")["state"] == "pending"
            assert notes.claim("poison", lease=-1).ids, crash
            assert pump_once(notes).crashed == 1
        (letter,) = notes.dead_letters()
        assert (notes.row("poison")["state"], letter["crash_count"], letter["code"]) == ("dead", 3, "E003")
        assert "3 times" in letter["reason"]
        assert notes.run_items.one()["outcome"] == "dead"
        assert pump_once(notes) == due_work.PumpResult()

    def test_crashes_of_different_stages_do_not_add_up(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        indexer = notes.indexer()
        for stage, step in ((Stage.FETCHED, indexer.chunk), (Stage.CHUNKED, indexer.embed)):
            for _ in range(2):
                notes.claim("a", stage=stage, lease=-1)
                pump_once(notes)
            step(notes.tenant, notes.items("a"))
        assert (notes.row("a")["state"], notes.row("a")["stage"]) == ("pending", "embedded")

    def test_a_lease_that_still_runs_is_left_alone(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        claimed = notes.claim("a")
        assert pump_once(notes).crashed == 0
        assert notes.row("a")["lease_token"] == claimed.token


def test_the_pump_sends_lost_syncs_again(notes: SourceLedger) -> None:
    run = notes.open_run()
    assert pump_once(notes, resend=60).syncs == ()
    notes.runs.set(enqueued_at=ago(seconds=61))
    assert pump_once(notes, resend=60).syncs == ((notes.tenant, notes.source, run),)
    assert pump_once(notes, resend=60).syncs == ()
