"""Sources in the ledger: registering, being due, and who holds the sync."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pipeline.errors import LeaseLost
from pipeline.ledger import runs, source_id, sources
from tests.ledger import ago
from tests.pipeline.source_ledger import SourceLedger

NOW = datetime.now(UTC).replace(microsecond=0)
PAST, LATER = NOW - timedelta(hours=1), NOW + timedelta(hours=1)


def register(notes: SourceLedger, **changes: Any) -> sources.SourceRow:
    with notes.database.tenant(notes.tenant) as connection:
        sources.register(connection, [notes.registration(**changes)])
        found = sources.get(connection, notes.source)
    assert found is not None
    return found


def due(notes: SourceLedger) -> list[UUID]:
    with notes.database.control() as connection:
        return [row.id for row in sources.due(connection) if row.tenant_id == notes.tenant]


def watched(notes: SourceLedger) -> list[UUID]:
    with notes.database.control() as connection:
        return [row.id for row in sources.watched(connection) if row.tenant_id == notes.tenant]


def claim(notes: SourceLedger, lease: float = 60) -> UUID | None:
    with notes.database.tenant(notes.tenant) as connection:
        return sources.claim(connection, notes.source, lease=lease)


class TestRegistering:
    def test_the_same_again_keeps_where_it_stands(self, notes: SourceLedger) -> None:
        notes.sources.set(cursor={"n": 3}, stamp="s", pipeline_version="p")
        row = register(notes, kind="markdown")
        assert (row.cursor, row.stamp, row.pipeline_version, row.kind) == ({"n": 3}, "s", "p", "markdown")

    def test_another_configuration_begins_at_the_start(self, notes: SourceLedger) -> None:
        notes.sources.set(cursor={"n": 3}, stamp="s")
        row = register(notes, config_hash="c2")
        assert (row.cursor, row.stamp) == (None, None)

    def test_the_time_moves_only_with_the_schedule(self, notes: SourceLedger) -> None:
        assert register(notes, schedule="0 * * * *", next_sync_at=PAST).next_sync_at == PAST
        assert register(notes, schedule="0 * * * *", next_sync_at=LATER).next_sync_at == PAST
        assert register(notes, schedule="5 * * * *", next_sync_at=LATER).next_sync_at == LATER
        assert (
            register(notes, schedule="5 * * * *", timezone="Asia/Tokyo", next_sync_at=PAST).next_sync_at
            == PAST
        )

    def test_one_that_is_no_longer_named_is_retired_and_can_return(self, notes: SourceLedger) -> None:
        with notes.database.tenant(notes.tenant) as connection:
            sources.register(connection, [notes.registration("typed", origin="command")])
            sources.register(connection, [], every=True)
            rows = {row.name: row.removed_at is not None for row in sources.listed(connection)}
        assert rows == {"notes": True, "typed": False}
        row = register(notes, next_sync_at=LATER)
        assert (row.removed_at, row.next_sync_at) == (None, LATER)

    def test_ids_are_the_same_everywhere_and_differ_by_tenant(self) -> None:
        tenant = UUID(int=1)
        assert source_id(tenant, "a") == source_id(tenant, "a")
        assert len({source_id(tenant, "a"), source_id(tenant, "b"), source_id(UUID(int=2), "a")}) == 3


class TestBeingDue:
    def test_only_when_the_time_has_come(self, notes: SourceLedger) -> None:
        assert due(notes) == []
        notes.sources.set(next_sync_at=LATER)
        assert due(notes) == []
        notes.sources.set(next_sync_at=PAST)
        assert due(notes) == [notes.source]

    def test_the_walk_has_a_time_of_its_own(self, notes: SourceLedger) -> None:
        notes.sources.set(next_walk_at=PAST)
        assert due(notes) == [notes.source]

    @pytest.mark.parametrize("column", ["paused_at", "removed_at"])
    def test_neither_paused_nor_removed(self, notes: SourceLedger, column: str) -> None:
        notes.sources.set(next_sync_at=PAST, watch=True, **{column: ago()})
        assert (due(notes), watched(notes)) == ([], [])

    def test_not_while_a_run_is_open(self, notes: SourceLedger) -> None:
        notes.sources.set(next_sync_at=PAST, watch=True)
        run = notes.open_run()
        assert (due(notes), watched(notes)) == ([], [])
        with notes.database.tenant(notes.tenant) as connection:
            runs.fail(connection, run, "x")
        assert (due(notes), watched(notes)) == ([notes.source], [notes.source])

    def test_a_failing_one_is_left_alone_for_minutes_and_then_for_an_hour(self, notes: SourceLedger) -> None:
        pauses = []
        for _ in range(9):
            with notes.database.tenant(notes.tenant) as connection:
                sources.failed(connection, notes.source, "it refuses the key", PAST)
            notes.sources.set(next_walk_at=PAST, watch=True)
            assert (due(notes), watched(notes)) == ([], []), "it is called on every tick"
            pauses.append((notes.sources.one()["retry_at"] - ago()).total_seconds())
        assert [round(p / 60) for p in pauses] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        notes.sources.set(retry_at=ago())
        assert (due(notes), watched(notes)) == ([notes.source], [notes.source])

    @pytest.mark.parametrize("by", ["resume", "configuration"])
    def test_a_failing_one_is_called_at_once_after_a_person_saw_to_it(
        self, notes: SourceLedger, by: str
    ) -> None:
        with notes.database.tenant(notes.tenant) as connection:
            sources.failed(connection, notes.source, "it refuses the key", LATER)
        if by == "resume":
            with notes.database.tenant(notes.tenant) as connection:
                sources.pause(connection, notes.source, paused=False)
        else:
            register(notes)  # a key that was corrected is no part of the hash
        assert due(notes) == [notes.source]

    def test_pausing_twice_keeps_the_first_time(self, notes: SourceLedger) -> None:
        times = []
        for paused in (True, True, False):
            with notes.database.tenant(notes.tenant) as connection:
                sources.pause(connection, notes.source, paused=paused)
            times.append(notes.sources.one()["paused_at"])
        assert times[0] == times[1] is not None
        assert times[2] is None


class TestHoldingTheSync:
    def test_one_at_a_time(self, notes: SourceLedger) -> None:
        token = claim(notes)
        assert token is not None
        assert claim(notes) is None
        with notes.database.tenant(notes.tenant) as connection:
            sources.release(connection, notes.source, token)
        assert claim(notes) not in {None, token}

    def test_two_claims_at_the_same_moment_give_one_token(self, notes: SourceLedger) -> None:
        barrier, tokens = threading.Barrier(6), []

        def compete() -> None:
            barrier.wait()
            tokens.append(claim(notes))

        threads = [threading.Thread(target=compete) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([t for t in tokens if t]) == 1

    def test_an_expired_lease_is_taken_over_and_the_first_holder_is_refused(
        self, notes: SourceLedger
    ) -> None:
        first = claim(notes, lease=-1)
        second = claim(notes)
        assert first is not None
        assert second is not None
        with notes.database.tenant(notes.tenant) as connection:
            sources.release(connection, notes.source, first)
        with pytest.raises(LeaseLost), notes.database.tenant(notes.tenant) as connection:
            sources.renew(connection, notes.source, first, lease=60, cursor={"mine": "first"})
        assert notes.sources.one()["cursor"] is None
        assert notes.sources.one()["sync_token"] == second

    def test_holding_renews(self, notes: SourceLedger) -> None:
        token = claim(notes, lease=-1)
        assert token is not None
        with notes.database.tenant(notes.tenant) as connection:
            sources.renew(connection, notes.source, token, lease=60)
        assert claim(notes) is None

    def test_an_unknown_token_holds_nothing(self, notes: SourceLedger) -> None:
        with pytest.raises(LeaseLost), notes.database.tenant(notes.tenant) as connection:
            sources.renew(connection, notes.source, uuid4(), lease=60)


class TestOutcome:
    def test_failures_are_counted_until_a_walk_reaches_its_end(self, notes: SourceLedger) -> None:
        with notes.database.tenant(notes.tenant) as connection:
            for _ in range(2):
                sources.failed(connection, notes.source, "away", LATER)
            row = sources.get(connection, notes.source)
        assert row is not None
        assert (row.failures, row.last_error, row.next_sync_at) == (2, "away", LATER)
        with notes.database.tenant(notes.tenant) as connection:
            sources.completed(
                connection,
                notes.source,
                pipeline_version="p2",
                stamp="s2",
                next_sync_at=None,
                next_walk_at=LATER,
            )
            row = sources.get(connection, notes.source)
        assert row is not None
        assert (row.failures, row.last_error, row.pipeline_version, row.stamp) == (0, None, "p2", "s2")
        assert (row.next_sync_at, row.next_walk_at) == (None, LATER)
        assert row.last_sync_at is not None

    def test_a_sync_without_a_walk_keeps_the_time_of_the_next(self, notes: SourceLedger) -> None:
        notes.sources.set(next_walk_at=LATER)
        with notes.database.tenant(notes.tenant) as connection:
            sources.completed(
                connection,
                notes.source,
                pipeline_version="",
                stamp=None,
                next_sync_at=None,
                next_walk_at=LATER + timedelta(days=1),
                walked=False,
            )
        assert notes.sources.one()["next_walk_at"] == LATER
