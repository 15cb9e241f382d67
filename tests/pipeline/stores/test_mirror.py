"""What changes in PostgreSQL is carried over into a vector store: all of it, the last state, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.errors import StoreDamaged, StoreRejected, StoreUnavailable
from pipeline.ledger import search_indexes
from pipeline.search.stores import FloatVector, Neighbour, Point, Scope, StoreStats, backlog, outbox
from pipeline.search.stores.memory import MemoryStore
from pipeline.search.stores.mirror import NOBODY, Mirror
from tests.ledger import ago, ahead, of_connection
from tests.pipeline.second_index import SecondIndex
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs
from tests.pipeline.stores.mirrored import Mirrored


@pytest.fixture
def beside(alone: SourceLedger) -> Mirrored:
    """Two documents of five chunks, searchable, and a store that was added later."""
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    return Mirrored(alone)


def test_pgvector_alone_writes_no_outbox(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    assert len(alone.outbox()) == 0
    assert alone.sql("select from pg_trigger where tgname like 'vectors_%'") == []


def test_a_store_is_filled_with_what_was_there_before_and_then_asked(beside: Mirrored) -> None:
    assert beside.row.status == "emptying"
    assert beside.carry() == 5
    assert beside.stored() == beside.expected() != set()
    assert (beside.row.status, beside.row.active, beside.outbox()) == ("ready", True, [])


def test_points_carry_vector_and_attributes(beside: Mirrored) -> None:
    beside.carry()
    for row in beside.notes.chunks():
        point = beside.store.collections["chunks-1"][
            str(beside.notes.tenant), f"{row['document_id']}:{row['ord']}"
        ]
        assert np.array_equal(point.vector, row["embedding"].to_numpy().astype("f4"))
        assert (point.project, point.kind, point.source_type) == (beside.notes.project, "reference", "text")
        assert point.security_level == "internal"


def test_changes_are_carried_over_and_deletions_go_first(beside: Mirrored) -> None:
    beside.carry()
    beside.notes.admit(document("a", paragraphs(1)), document("c", paragraphs(2, "new")))
    beside.notes.index()
    lanes = [row["lane"] for row in beside.outbox()]
    assert lanes == sorted(lanes)
    assert set(lanes) == {0, 1}
    beside.mirror.batch = lanes.count(0)
    beside.mirror.carry(beside.notes.tenant)
    assert [row["lane"] for row in beside.outbox()] == [1] * lanes.count(1)
    beside.carry()
    assert beside.stored() == beside.expected()


@pytest.mark.parametrize(
    ("assignment", "left"),
    [({"hidden": True}, 2), ({"deleted": True, "hidden": True}, 2), ({"security_level": "secret"}, 5)],
)
def test_what_is_hidden_deleted_or_restricted_leaves_the_store(
    beside: Mirrored, assignment: dict[str, Any], left: int
) -> None:
    beside.carry()
    with (
        beside.notes.database.control()
        if "hidden" in assignment
        else beside.notes.database.tenant(beside.notes.tenant) as connection
    ):
        of_connection(connection).documents.set({"id": beside.notes.id("a")}, **assignment)
    assert [row["lane"] for row in beside.outbox()] == [0, 0, 0]
    beside.carry()
    scope = Scope(collection="chunks-1", tenant=beside.notes.tenant, security_levels=("internal",))
    assert len(beside.stored()) == left
    assert {id_.partition(":")[0] for id_ in beside.stored() if id_} >= {str(beside.notes.id("b"))}
    assert len(beside.store.near(np.ones(32, dtype="f4"), 10, scope)) == 2
    beside.notes.set("a", hidden=False, deleted=False, security_level="internal")
    beside.carry()
    assert len(beside.stored()) == 5


def test_steps_of_the_ledger_that_change_no_point_write_nothing(beside: Mirrored) -> None:
    beside.carry()
    beside.notes.set("a", last_error="x", attempts=1, lease_until=ago(), title="other")
    beside.notes.admit(document("a", paragraphs(3)))
    beside.notes.index()
    assert beside.outbox() == []


def test_a_row_that_changes_while_it_is_carried_is_carried_again(beside: Mirrored) -> None:
    beside.carry()
    store, notes = beside.store, beside.notes
    notes.set("a", kind="decision")

    class Late(MemoryStore):
        def put(self, collection: str, points: Sequence[Point]) -> None:
            if notes.documents.one(id=notes.id("a"))["kind"] == "decision":
                notes.set("a", kind="work")
            store.put(collection, points)

    assert Mirror(notes.database, "memory", Late()).carry(notes.tenant) == 3
    assert len(beside.outbox()) == 3
    beside.carry()
    kinds = {p.kind for p in store.collections["chunks-1"].values() if p.tenant == notes.tenant}
    assert kinds == {"work", "reference"}


def test_a_worker_whose_lease_ran_out_has_its_rows_carried_again(beside: Mirrored) -> None:
    beside.carry()
    beside.notes.set("a", kind="work")
    with beside.notes.database.tenant(beside.notes.tenant) as connection:
        frozen = outbox.claim(connection, beside.notes.tenant, "memory", most=10, lease=0.0)
    assert beside.carry() == 3
    # The first one wakes and has written an old state into the store.
    with beside.notes.database.tenant(beside.notes.tenant) as connection:
        outbox.finish(connection, frozen, list(frozen.turns))
    assert beside.carry() == 3


class Failing(MemoryStore):
    """Fails as told; refuses points of documents."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.refused: set[str] = set()

    def put(self, collection: str, points: Sequence[Point]) -> None:
        if self.error:
            raise self.error
        if any(point.id in self.refused for point in points):
            raise StoreRejected("no")
        super().put(collection, points)


def test_a_store_that_is_away_is_paused_and_nothing_is_lost(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    store = Failing()
    beside = Mirrored(alone, store)
    beside.carry()
    store.error = StoreUnavailable("it is away", retry_after=7)
    alone.set("a", kind="work")
    with pytest.raises(StoreUnavailable):
        beside.mirror.carry(alone.tenant)
    row = beside.row
    assert (row.failures, row.last_error) == (1, "it is away")
    assert beside.mirror.carry(alone.tenant) == 0
    assert beside.mirror.look_after() is None
    assert [(r["crash_count"], r["attempts"], r["dead_at"]) for r in beside.outbox()] == [(0, 0, None)] * 3
    assert ahead(seconds=5) < min(alone.outbox.values("due_at")) < ahead(seconds=8)
    store.error = None
    alone.outbox.set(due_at=ago())
    make_due(beside)
    assert beside.carry() == 3
    assert beside.row.failures == 0


def test_a_refused_chunk_alone_is_given_up_and_may_be_tried_again(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(7)))
    alone.index()
    store = Failing()
    store.refused = {f"{alone.id('a')}:4"}
    beside = Mirrored(alone, store)
    beside.carry()
    assert beside.expected() - beside.stored() == store.refused
    assert [(row["ord"], row["last_error"]) for row in beside.outbox()] == [(4, "no")]
    with alone.database.control() as connection:
        assert backlog.backlogs(connection)["memory"].dead == 1
        store.refused = set()
        assert outbox.retry_dead(connection, "memory") == 1
    beside.carry()
    assert beside.stored() == beside.expected()


def test_a_batch_that_takes_longer_than_its_lease_is_nobody_elses(alone: SourceLedger) -> None:
    """As while a service lets us wait: it would count as a crash each time, and be given up in the end."""
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    taken: list[int] = []

    class Slow(MemoryStore):
        def put(self, collection: str, points: Sequence[Point]) -> None:
            if any(point.tenant == alone.tenant for point in points):
                time.sleep(1.5)
                with alone.database.tenant(alone.tenant) as connection:
                    taken.append(len(outbox.claim(connection, alone.tenant, "memory", most=9, lease=1).turns))
            super().put(collection, points)

    beside = Mirrored(alone, Slow())
    beside.mirror.lease = 0.6
    beside.carry()
    assert taken == [0]
    assert beside.outbox() == []


def test_a_chunk_that_kills_workers_travels_alone_and_is_given_up(beside: Mirrored) -> None:
    beside.carry()
    notes = beside.notes
    notes.set("a", kind="work")
    notes.set("b", kind="work")
    notes.outbox.set({"document_id": notes.id("a"), "ord": 1}, crash_count=3)
    assert beside.carry() >= 4
    assert [(row["ord"], row["crash_count"]) for row in beside.outbox()] == [(1, 4)]
    assert beside.outbox()[0]["dead_at"] is not None


def test_two_workers_carry_everything_once(beside: Mirrored) -> None:
    beside.mirror.batch = 2
    for _ in range(2):
        beside.mirror.look_after()
    counts: list[int] = []

    def work() -> None:
        while carried := beside.mirror.carry(beside.notes.tenant):
            counts.append(carried)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert sum(counts) == 5
    assert beside.stored() == beside.expected()


def age(beside: Mirrored, seconds: int = 60) -> None:
    """Let a mark become old enough to be relied on."""
    with beside.notes.database.control() as connection:
        stores = of_connection(connection).stores
        for one in stores():
            if one["marked_at"]:
                stores.set(one["name"], marked_at=one["marked_at"] - timedelta(seconds=seconds))


def make_due(beside: Mirrored) -> None:
    """End the pause of a store."""
    with beside.notes.database.control() as connection:
        of_connection(connection).stores.set(due_at=ago())


def marks(beside: Mirrored) -> list[str]:
    return [id_ for tenant, id_ in beside.store.collections["chunks-1"] if tenant == str(NOBODY)]


@pytest.mark.parametrize("loss", ["emptied", "swapped", "restored"])
def test_a_store_that_is_not_the_one_that_was_filled_is_noticed_and_rebuilt(
    beside: Mirrored, loss: str
) -> None:
    beside.carry()
    earlier = {name: dict(points) for name, points in beside.store.collections.items()}
    for _ in range(3):
        age(beside)
        beside.mirror.look_after()
    assert len(marks(beside)) == 2
    assert beside.mirror.problem(beside.row) == ""
    other = Point(id=f"{UUID(int=5)}:9", vector=np.ones(32, dtype="f4"), tenant=NOBODY)
    beside.store.collections.clear()
    if loss == "swapped":
        beside.store.put("chunks-1", [other, Point(id="x", vector=other.vector, tenant=beside.notes.tenant)])
    if loss == "restored":
        beside.store.collections.update(earlier)
    age(beside)
    assert beside.mirror.problem(beside.row) != ""
    beside.mirror.look_after()
    assert (beside.row.status, beside.row.active) == ("emptying", True)
    beside.carry()
    assert beside.stored() == beside.expected()
    assert "x" not in beside.stored()


class Unreadable(MemoryStore):
    """Counts its points, but has an internal error where a point of a damaged collection is read or replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    def _read(self, collection: str) -> None:
        if collection in self.damaged:
            raise StoreDamaged("Error finding id")

    def put(self, collection: str, points: Sequence[Point]) -> None:
        self._read(collection)
        super().put(collection, points)

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        self._read(scope.collection)
        return super().near(vector, n, scope)

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        if ids:
            self._read(scope.collection)
        return super().stats(scope, ids)

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        super().delete(scope, ids)
        if ids is None:
            self.damaged.discard(scope.collection)


@pytest.mark.parametrize("met_by", ["the mark", "a chunk"])
def test_a_store_that_cannot_read_its_points_is_emptied_and_filled_anew(
    alone: SourceLedger, met_by: str
) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    store = Unreadable()
    beside = Mirrored(alone, store)
    beside.carry()
    store.damaged = {"chunks-1"}
    assert store.stats(beside.scope()).points == len(beside.expected())
    if met_by == "a chunk":
        alone.set("a", kind="work")
        with pytest.raises(StoreDamaged):
            beside.mirror.carry(alone.tenant)
    else:
        age(beside)
        with pytest.raises(StoreDamaged):
            beside.mirror.look_after()
        assert beside.row.status == "ready", "one error may be a chance"
        make_due(beside)
        beside.mirror.look_after()
    row = beside.row
    assert (row.status, row.last_error) == ("emptying", "Error finding id")
    make_due(beside)
    alone.outbox.set(due_at=ago())
    beside.carry()
    assert (beside.row.status, beside.row.failures) == ("ready", 0)
    assert beside.stored() == beside.expected()


def test_a_store_that_is_emptied_after_its_first_mark_is_noticed_before_the_second(beside: Mirrored) -> None:
    beside.carry()
    assert len(marks(beside)) == 1
    beside.store.collections.clear()
    age(beside)
    beside.mirror.look_after()
    assert beside.row.status == "emptying"


def test_a_store_that_was_away_and_is_empty_when_it_is_back_is_noticed(beside: Mirrored) -> None:
    """A write that follows a failure must not stand for the mark that is gone."""
    beside.carry()
    beside.store.collections.clear()
    for _ in range(3):
        beside.mirror.pause(StoreUnavailable("it is away"))
        make_due(beside)
        beside.mirror.look_after()
        assert beside.row.failures == 0
    age(beside)
    beside.mirror.look_after()
    assert beside.row.status == "emptying"


def test_a_store_that_is_emptied_between_look_and_mark_is_noticed(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    lost: list[str] = []

    class Emptied(MemoryStore):
        def put(self, collection: str, points: Sequence[Point]) -> None:
            if lost:
                self.collections.pop(lost.pop(), None)
            super().put(collection, points)

    beside = Mirrored(alone, Emptied())
    beside.carry()
    lost.append("chunks-1")
    for _ in range(2):
        age(beside)
        beside.mirror.look_after()
    assert beside.row.status == "emptying"


def test_a_database_that_was_restored_is_noticed(beside: Mirrored) -> None:
    beside.carry()
    mark = f"{beside.row.mark}:{10**9}"
    beside.store.put("chunks-1", [Point(id=mark, vector=np.ones(32, dtype="f4"), tenant=NOBODY)])
    assert "database was restored" in beside.mirror.problem(beside.row)


def test_what_is_under_way_when_a_store_is_emptied_is_carried_again(beside: Mirrored) -> None:
    beside.carry()
    beside.notes.set("a", kind="work")
    with beside.notes.database.tenant(beside.notes.tenant) as connection:
        claimed = outbox.claim(connection, beside.notes.tenant, "memory", most=10, lease=60)
    with beside.notes.database.control() as connection:
        outbox.rebuild(connection, "memory")
    beside.mirror.look_after()
    beside.mirror.look_after()
    # What it carried was emptied; it ends now, and takes no row away that the walk has noted meanwhile.
    with beside.notes.database.tenant(beside.notes.tenant) as connection:
        outbox.finish(connection, claimed, list(claimed.turns))
    beside.carry()
    assert beside.stored() == beside.expected()


def test_who_empties_a_store_after_another_one_has_filled_it_has_it_filled_again(alone: SourceLedger) -> None:
    """As a process that was frozen for longer than its lease."""
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    frozen: list[bool] = []

    class Late(MemoryStore):
        def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
            if ids is None and not frozen:
                frozen.append(True)
                with alone.database.control() as connection:
                    of_connection(connection).stores.set(lease_until=ago(seconds=1))
                Mirrored.carry(second)
                assert len(second.stored()) == 3
            super().delete(scope, ids)

    first = Mirrored(alone, Late())
    second = Mirrored.__new__(Mirrored)
    second.notes, second.store = alone, first.store
    second.mirror = Mirror(alone.database, "memory", first.store)
    first.carry()
    assert first.stored() == first.expected()


def test_what_a_late_carrier_may_have_written_is_carried_again(alone: SourceLedger) -> None:
    """The store has taken a batch, its answer came too late, and meanwhile another one has carried the next state."""
    alone.admit(document("a", paragraphs(1)))
    alone.index()
    late: list[bool] = []

    class Late(MemoryStore):
        def put(self, collection: str, points: Sequence[Point]) -> None:
            if late or all(point.tenant == NOBODY for point in points):
                super().put(collection, points)
                return
            late.append(True)
            alone.set("a", kind="work")
            alone.outbox.set(lease_until=ago(seconds=1))
            assert Mirror(alone.database, "memory", self).carry(alone.tenant) == 1
            super().put(collection, points)
            raise StoreUnavailable("its answer was lost")

    beside = Mirrored(alone, Late())
    for _ in range(2):
        beside.mirror.look_after()
    with pytest.raises(StoreUnavailable):
        beside.mirror.carry(alone.tenant)
    alone.outbox.set(due_at=ago())
    make_due(beside)
    beside.carry()
    (point,) = [
        one for (tenant, _), one in beside.store.collections["chunks-1"].items() if tenant != str(NOBODY)
    ]
    assert point.kind == "work"


def test_each_search_index_has_a_collection_which_goes_with_it(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    second_index = SecondIndex(alone)
    beside = Mirrored(alone)
    second_index.fill()
    beside.carry()
    sizes = {name: len(points) for name, points in beside.store.collections.items()}
    assert set(sizes) == {"chunks-1", f"chunks-{second_index.index.id}"}
    with alone.database.control() as connection:
        search_indexes.drop_index(connection, second_index.index)
    age(beside)
    beside.mirror.look_after()
    assert beside.store.collections.get(f"chunks-{second_index.index.id}", {}) == {}
    assert len(beside.stored()) == 5


def test_a_collection_that_is_added_later_has_the_marks_that_are_looked_for(beside: Mirrored) -> None:
    beside.carry()
    age(beside)
    beside.mirror.look_after()
    SecondIndex(beside.notes).fill()
    age(beside)
    beside.mirror.look_after()
    assert len(beside.row.collections) == 2
    age(beside)
    assert beside.mirror.problem(beside.row) == ""
    beside.mirror.look_after()
    assert beside.row.status == "ready"


def test_a_tenant_sees_only_its_own_rows(beside: Mirrored, database: Database) -> None:
    beside.notes.set("a", kind="work")
    other = SourceLedger(beside.notes.database, UUID(int=77), UUID(int=78))
    other.admit(document("a", paragraphs(1)))
    other.index()
    assert len(other.outbox()) == 1
    with other.database.tenant(other.tenant) as connection:
        assert outbox.claim(connection, beside.notes.tenant, "memory", most=10, lease=60).turns == {}
    beside.carry()
    assert len(beside.stored()) == 6
