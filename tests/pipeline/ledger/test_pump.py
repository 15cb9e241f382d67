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
from pipeline.ledger import Item, Limits, Stage, due_work, work
from tests.ledger import ago, ahead, of_connection
from tests.pipeline.workshop import Workshop, document, paragraphs


@pytest.fixture
def shop(shared_database: Database) -> Iterator[Workshop]:
    """A workshop in a database where nobody else has documents; the pump looks at every tenant."""
    yield Workshop(shared_database, uuid4(), uuid4())
    with shared_database.control() as connection:
        ledger = of_connection(connection)
        ledger.documents.clear()
        ledger.runs.clear()
        connection.execute(text("update lane_clock set turn = 0"))


def pump_once(shop: Workshop, *, embed: int | None = None, **limits: float) -> due_work.PumpResult:
    room = due_work.EmbedRoom(documents=embed)
    with shop.database.control() as connection:
        found = due_work.pump_once(connection, Limits(**limits), embed=room)  # type: ignore[arg-type]
    assert found is not None
    return found


def finish_sent(shop: Workshop) -> None:
    """Have everything done of which a message is under way."""
    for one in shop.documents():
        if one["enqueued_at"]:
            shop.documents.set({"id": one["id"]}, state="done")


def names(shop: Workshop, batch: due_work.Batch) -> list[str]:
    known = dict(shop.documents.values("id", "external_id"))
    return [known[item.document_id] for item in batch.items]


class TestEmbedding:
    """While nothing may be embedded, all else goes on."""

    def sent(self, shop: Workshop, embed: int | None, **limits: float) -> dict[Stage, int]:
        for name in "abcdef":
            shop.admit(document(name))
        for name in "abc":
            shop.set(name, stage="chunked", due_at=ago(hours=1))
        shop.set("d", stage="embedded")
        found = pump_once(shop, embed=embed, **limits)
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
        self, shop: Workshop, embed: int | None, sent: dict[Stage, int]
    ) -> None:
        assert self.sent(shop, embed) == sent

    def test_a_probe_takes_no_more_room_than_there_is(self, shop: Workshop) -> None:
        found = self.sent(shop, 4, in_flight=4)
        assert sum(found.values()) == 4

    def test_what_was_left_out_goes_when_it_may(self, shop: Workshop) -> None:
        self.sent(shop, 0)
        (batch,) = pump_once(shop).batches
        assert (batch.stage, names(shop, batch)) == (Stage.CHUNKED, ["a", "b", "c"])


class TestChoosing:
    def test_what_is_due_goes_out_with_its_version(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.admit(document("a", "edited"))
        (batch,) = pump_once(shop).batches
        assert batch == due_work.Batch(
            tenant_id=shop.tenant, stage=Stage.FETCHED, items=(Item(shop.id("a"), 2),)
        )

    def test_it_goes_out_once(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        assert len(pump_once(shop).batches) == 1
        assert pump_once(shop) == due_work.PumpResult()

    @pytest.mark.parametrize("state", [{"due_at": ahead(days=1)}, {"state": "done"}, {"state": "dead"}])
    def test_neither_what_waits_nor_what_is_settled(self, shop: Workshop, state: dict[str, Any]) -> None:
        shop.admit(document("a"))
        shop.set("a", **state)
        assert pump_once(shop).batches == ()

    def test_nothing_that_somebody_works_on(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.claim("a")
        assert pump_once(shop).batches == ()

    def test_those_that_wait_longest_go_first(self, shop: Workshop) -> None:
        shop.admit(*(document(i) for i in "abcd"))
        for n, external_id in enumerate("dbca"):
            shop.set(external_id, due_at=ago(minutes=10 - n))
        found = pump_once(shop, in_flight=2)
        assert sorted(names(shop, found.batches[0])) == ["b", "d"]

    def test_two_pumps_never_work_at_once(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        with shop.database.control() as first:
            first.execute(text("select pg_advisory_xact_lock(hashtext('larder.pump'))"))
            with shop.database.control() as second:
                assert due_work.pump_once(second, Limits()) is None
        assert len(pump_once(shop).batches) == 1


class TestBatches:
    def test_they_hold_so_many_and_no_more(self, shop: Workshop) -> None:
        shop.admit(*(document(f"d{n}") for n in range(7)))
        found = pump_once(shop, batch=3)
        assert sorted(len(b.items) for b in found.batches) == [1, 3, 3]
        assert len({i for b in found.batches for i in b.items}) == 7

    def test_stages_travel_apart(self, shop: Workshop) -> None:
        shop.admit(*(document(i) for i in "abc"))
        shop.set("a", stage="chunked")
        shop.set("b", stage="embedded")
        found = {b.stage: names(shop, b) for b in pump_once(shop).batches}
        assert found == {Stage.CHUNKED: ["a"], Stage.EMBEDDED: ["b"], Stage.FETCHED: ["c"]}

    def test_tenants_travel_apart(self, shop: Workshop) -> None:
        other = Workshop(shop.database, uuid4(), uuid4())
        for one in (shop, other):
            one.admit(document("a"), document("b"))
        found: dict[UUID, set[UUID]] = {
            b.tenant_id: {i.document_id for i in b.items} for b in pump_once(shop).batches
        }
        assert found == {one.tenant: {one.id("a"), one.id("b")} for one in (shop, other)}

    def test_those_that_crashed_before_travel_alone(self, shop: Workshop) -> None:
        shop.admit(*(document(i) for i in "abcd"))
        for external_id in "ab":
            shop.set(external_id, crash_count=1)
        found = sorted(names(shop, b) for b in pump_once(shop).batches)
        assert [sorted(f) for f in found] in ([["a"], ["b"], ["c", "d"]], [["a"], ["b"], ["d", "c"]])


class TestTurns:
    def sent(self, shop: Workshop, *, embed: int | None = None, **limits: int) -> list[tuple[UUID, UUID]]:
        """(tenant, source) of each document that goes out, in order."""
        found = pump_once(shop, embed=embed, **limits)
        ids = [item.document_id for batch in found.batches for item in batch.items]
        with shop.database.control() as connection:
            rows = of_connection(connection).documents.values("id", "tenant_id", "source_id")
        known = {key: place for key, *place in rows}
        return [(tenant, source) for tenant, source in (known[i] for i in ids)]

    @pytest.mark.parametrize(("stage", "in_flight"), [("fetched", 320), ("chunked", 288)])
    def test_loads_take_turns_by_tenant_and_then_by_source(
        self, shop: Workshop, stage: str, in_flight: int
    ) -> None:
        """Of 320 documents a tenth is left for edits."""
        small, other = (Workshop(shop.database, uuid4(), uuid4()) for _ in range(2))
        second = Workshop(shop.database, shop.tenant, shop.project, "second")
        loads = (shop, second, other)
        for page in range(2):
            for one in loads:
                one.admit(*(document(f"{page}-{n}") for n in range(due_work.SHORT_OF + 8)))
        small.admit(document("a"), document("b"))
        for one in (*loads, small):
            one.documents.set(stage=stage)
        sent = self.sent(shop, in_flight=in_flight)
        assert len(sent) == 288
        assert sent[:2] == [(small.tenant, small.source)] * 2, "a few go before loads"
        assert abs(sent.count((other.tenant, other.source)) - 144) <= due_work.BLOCK
        assert all(abs(sent.count((one.tenant, one.source)) - 72) <= due_work.BLOCK for one in (shop, second))
        assert {tenant for tenant, _ in sent[2 : 2 + 2 * 128]} == {shop.tenant, other.tenant}, "one by one"

    def test_a_later_load_is_cut_until_it_has_caught_up_and_embedded_by_turns_at_once(
        self, shop: Workshop
    ) -> None:
        later = Workshop(shop.database, uuid4(), uuid4())
        shop.admit(*(document(f"d{n}") for n in range(400)))
        for n in (0, 1, 2):
            shop.documents.set(f"d{n}%", stage="chunked")
        first = self.sent(shop, in_flight=160)
        assert {tenant for tenant, _ in first} == {shop.tenant}
        finish_sent(shop)
        later.admit(*(document(f"d{n}") for n in range(due_work.SHORT_OF + 16)))
        assert {tenant for tenant, _ in self.sent(shop, in_flight=80, embed=0)} == {later.tenant}
        later.documents.set(stage="chunked", enqueued_at=None)
        sent = [tenant for tenant, _ in self.sent(shop, in_flight=80)]
        assert abs(sent.count(later.tenant) - 40) <= 2 * due_work.BLOCK

    def test_whoever_clears_a_load_begins_where_all_others_do(self, shop: Workshop) -> None:
        other = Workshop(shop.database, uuid4(), uuid4())
        other.admit(*(document(f"d{n}") for n in range(200)))
        names = [f"d{n}" for n in range(200)]
        shop.admit(*map(document, names))
        shop.admit_page(Page(cursor={}, deleted=tuple(names)))
        shop.admit(*(document(f"e{n}") for n in range(due_work.SHORT_OF + 1)))
        assert self.sent(shop, in_flight=150).count((shop.tenant, shop.source)) >= due_work.SHORT_OF

    def test_the_room_is_kept_where_the_planner_takes_the_table_for_empty(
        self, alone: Workshop, omniscient: psycopg.Connection[Any]
    ) -> None:
        for name in "abcd":
            source = Workshop(alone.database, alone.tenant, alone.project, name)
            source.admit(*(document(f"d{n}") for n in range(60)))
        omniscient.execute(
            "update pg_class set reltuples = 1, relpages = 100 where oid = 'document'::regclass"
        )
        omniscient.commit()
        assert len(self.sent(alone, in_flight=38)) == 38

    def test_there_is_room_for_a_few_of_very_many_and_the_longest_due_go_first(self, shop: Workshop) -> None:
        others = [Workshop(shop.database, uuid4(), uuid4()) for _ in range(5)]
        for n, one in enumerate(others):
            one.admit(document("a"))
            one.set("a", due_at=ago(minutes=n))
        assert {tenant for tenant, _ in self.sent(shop, in_flight=2)} == {o.tenant for o in others[3:]}


class TestLanes:
    """What is changed goes before what is new, a little before much, and only a few messages wait to be embedded."""

    @pytest.fixture
    def load(self, shop: Workshop) -> Workshop:
        """Two documents are searchable; then came many new ones, and one of the two was edited."""
        shop.admit(document("edited", "Old words."), document("settled", "Old words."))
        shop.index()
        shop.admit(*(document(f"d{n:03}", paragraphs(2)) for n in range(due_work.SHORT_OF + 6)))
        shop.admit(document("edited", "New words."))
        return shop

    def chosen(
        self, shop: Workshop, waiting: Mapping[int, int] | None = None, chunks: int = 4
    ) -> list[due_work.Batch]:
        room = due_work.EmbedRoom(chunks=chunks, waiting=waiting or {})
        with shop.database.control() as connection:
            return due_work.choose_embeds(connection, Limits(), room)

    @pytest.mark.parametrize("step", ["cut", "embedded"])
    def test_what_was_edited_goes_before_a_load_that_came_earlier(self, load: Workshop, step: str) -> None:
        if step == "embedded":
            load.indexer().chunk(load.tenant, load.items())
            first, *rest = self.chosen(load)
        else:
            first, *rest = pump_once(load).batches
        assert (names(load, first), first.lane) == (["edited"], due_work.Lane.CHANGED)
        assert {batch.lane for batch in rest} == {due_work.Lane.BULK}

    def test_a_small_new_source_goes_before_a_load(self, load: Workshop) -> None:
        small = Workshop(load.database, load.tenant, load.project, "small")
        small.admit(document("note"))
        lanes = [(batch.lane, len(batch.items)) for batch in pump_once(load).batches[:2]]
        assert lanes == [(due_work.Lane.CHANGED, 1), (due_work.Lane.FEW, 1)]

    def test_everything_edited_at_once_is_a_load(self, shop: Workshop) -> None:
        many = [f"d{n:03}" for n in range(due_work.SHORT_OF + 1)]
        for body in ("Old words.", "New words."):
            shop.admit(*(document(name, body) for name in many))
            if body.startswith("Old"):
                shop.index()
        assert {batch.lane for batch in pump_once(shop).batches} == {due_work.Lane.BULK}

    def test_few_messages_wait_and_each_is_short(self, load: Workshop) -> None:
        load.indexer().chunk(load.tenant, load.items())
        found = [batch for batch in self.chosen(load) if batch.lane is due_work.Lane.BULK]
        assert [len(batch.items) for batch in found] == [2] * due_work.AHEAD, "of two chunks each"
        assert self.chosen(load, {6: due_work.AHEAD}) == []
        assert len(self.chosen(load, {6: due_work.AHEAD - 1})) == 1
        load.claim(*names(load, found[0]), stage=Stage.CHUNKED)
        assert len(self.chosen(load, {6: due_work.AHEAD})) == 1, "one more for each that somebody works on"

    def test_a_large_document_travels_alone(self, load: Workshop) -> None:
        load.indexer().chunk(load.tenant, load.items())
        assert [len(batch.items) for batch in self.chosen(load, chunks=1)] == [1] * (1 + due_work.AHEAD)


class TestBounds:
    def test_what_is_under_way_takes_room(self, shop: Workshop) -> None:
        shop.admit(*(document(f"d{n}") for n in range(5)))
        first = pump_once(shop, in_flight=3)
        assert len(first.batches[0].items) == 3
        assert pump_once(shop, in_flight=3) == due_work.PumpResult()
        assert len(pump_once(shop, in_flight=4).batches[0].items) == 1

    def test_a_tick_sends_so_many_and_the_next_one_the_rest(self, shop: Workshop) -> None:
        shop.admit(*(document(f"d{n}") for n in range(5)))
        sent = [sum(len(b.items) for b in pump_once(shop, at_once=3).batches) for _ in range(3)]
        assert sent == [3, 2, 0]

    def test_of_many_tenants_some_send_and_then_others(self, shop: Workshop) -> None:
        shops = [Workshop(shop.database, uuid4(), uuid4()) for _ in range(5)]
        for one in shops:
            one.admit(*(document(f"d{n}") for n in range(due_work.SHORT_OF)))
        turns: list[UUID] = []
        for _ in range(due_work.SHORT_OF // due_work.BLOCK):
            turns += [b.tenant_id for b in pump_once(shop, in_flight=6).batches]
            for one in shops:
                finish_sent(one)
        assert set(turns) == {one.tenant for one in shops}, "those whose documents are older go on for ever"

    def test_settled_documents_give_their_room_back(self, shop: Workshop) -> None:
        shop.admit(*(document(f"d{n}") for n in range(4)))
        pump_once(shop, in_flight=2)
        finish_sent(shop)
        assert sum(len(b.items) for b in pump_once(shop, in_flight=2).batches) == 2

    def test_a_lost_message_is_sent_again_after_a_while(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        pump_once(shop, resend=60)
        shop.set("a", enqueued_at=ago(seconds=59))
        assert pump_once(shop, resend=60).batches == ()
        shop.set("a", enqueued_at=ago(seconds=61))
        assert len(pump_once(shop, resend=60).batches) == 1

    def test_what_is_being_worked_on_is_not_noted_as_unsent(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        (batch,) = pump_once(shop).batches
        shop.claim("a")
        with shop.database.tenant(shop.tenant) as connection:
            work.mark_unsent(connection, list(batch.items))
        assert shop.row("a")["enqueued_at"] is not None

    def test_what_waits_for_its_time_is_no_longer_looked_at_until_then(self, shop: Workshop) -> None:
        shop.admit(document("a"), document("b"))
        claimed = shop.claim("a")
        with shop.database.tenant(shop.tenant) as connection:
            work.postpone(connection, claimed, claimed.ids, delay=60, reason="busy")
        assert (shop.row("a")["turn"], shop.row("b")["turn"]) == (None, 0)
        assert names(shop, pump_once(shop).batches[0]) == ["b"]
        shop.set("a", due_at=ago())
        assert names(shop, pump_once(shop).batches[0]) == ["a"]
        assert shop.row("a")["turn"] is not None

    def test_what_a_worker_of_before_admits_without_a_turn_is_sent(self, shop: Workshop) -> None:
        shop.admit(*(document(f"d{n:02}") for n in range(20)))
        shop.sql("update document set turn = default, lane = default")
        assert sum(len(batch.items) for batch in pump_once(shop).batches) == 20
        assert {row["turn"] for row in shop.documents()} == {0, 8, 16}

    def test_a_message_the_broker_did_not_take_is_sent_at_the_next_look(self, shop: Workshop) -> None:
        shop.admit(document("a"), document("b"))
        pump_once(shop)
        items = shop.items("a", "b")
        shop.claim("b")
        with shop.database.tenant(shop.tenant) as connection:
            work.mark_unsent(connection, items)
        (batch,) = pump_once(shop).batches
        assert names(shop, batch) == ["a"]


class TestCrashes:
    def test_an_expired_lease_goes_back_to_the_queue_alone(self, shop: Workshop) -> None:
        shop.admit(document("a"), document("b"))
        shop.claim("a", lease=-1)
        found = pump_once(shop)
        assert found.crashed == 1
        assert sorted(map(len, (b.items for b in found.batches))) == [1, 1]
        row = shop.row("a")
        assert (row["state"], row["lease_token"], row["crash_count"]) == ("pending", None, 1)
        assert "died or hung" in row["last_error"]

    def test_a_third_crash_is_the_last(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("poison"), run=run)
        for crash in (1, 2, 3):
            assert shop.row("poison")["state"] == "pending"
            assert shop.claim("poison", lease=-1).ids, crash
            assert pump_once(shop).crashed == 1
        (letter,) = shop.dead_letters()
        assert (shop.row("poison")["state"], letter["crash_count"], letter["code"]) == ("dead", 3, "E003")
        assert "3 times" in letter["reason"]
        assert shop.run_items.one()["outcome"] == "dead"
        assert pump_once(shop) == due_work.PumpResult()

    def test_crashes_of_different_stages_do_not_add_up(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        indexer = shop.indexer()
        for stage, step in ((Stage.FETCHED, indexer.chunk), (Stage.CHUNKED, indexer.embed)):
            for _ in range(2):
                shop.claim("a", stage=stage, lease=-1)
                pump_once(shop)
            step(shop.tenant, shop.items("a"))
        assert (shop.row("a")["state"], shop.row("a")["stage"]) == ("pending", "embedded")

    def test_a_lease_that_still_runs_is_left_alone(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        claimed = shop.claim("a")
        assert pump_once(shop).crashed == 0
        assert shop.row("a")["lease_token"] == claimed.token


def test_the_pump_sends_lost_syncs_again(shop: Workshop) -> None:
    run = shop.open_run()
    assert pump_once(shop, resend=60).syncs == ()
    shop.runs.set(enqueued_at=ago(seconds=61))
    assert pump_once(shop, resend=60).syncs == ((shop.tenant, shop.source, run),)
    assert pump_once(shop, resend=60).syncs == ()
