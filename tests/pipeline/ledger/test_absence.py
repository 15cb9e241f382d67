"""Removing by absence: hidden, then deleted, never on an incomplete walk, and held if it is too much."""

from __future__ import annotations

import pytest

from pipeline.documents import Listing
from pipeline.ledger import sources
from pipeline.ledger.admission import DeletionGuard, Pruned, prune
from tests.ledger import ago, ahead
from tests.pipeline.source_ledger import SourceLedger, document


def walk(notes: SourceLedger, *ids: str, complete: bool = True, guard: DeletionGuard | None = None) -> Pruned:
    with notes.database.tenant(notes.tenant) as connection:
        listing = Listing(ids=frozenset(ids), complete=complete)
        return prune(connection, notes.source, listing, guard or DeletionGuard())


def fill(notes: SourceLedger, count: int) -> list[str]:
    names = [f"d{n:03}" for n in range(count)]
    notes.admit(*(document(name) for name in names))
    notes.documents.set(state="done", stage="done")
    return names


def states(notes: SourceLedger) -> dict[str, tuple[bool, bool]]:
    return {r["external_id"]: (r["hidden"], r["deleted"]) for r in notes.documents()}


def test_absent_once_is_hidden_and_absent_twice_is_deleted(notes: SourceLedger) -> None:
    notes.admit(document("here"), document("gone"))
    notes.index()
    assert walk(notes, "here") == Pruned(hidden=1)
    assert states(notes) == {"here": (False, False), "gone": (True, False)}
    assert notes.contents("gone") == ["Some words."]
    assert walk(notes, "here") == Pruned(deleted=1)
    assert states(notes)["gone"] == (True, True)
    assert notes.contents("gone") == []
    assert walk(notes, "here") == Pruned()


def test_back_before_the_second_walk_means_restored(notes: SourceLedger) -> None:
    notes.admit(document("a"), document("b"))
    notes.index()
    walk(notes, "a")
    assert notes.admit(document("b")).restored == 1
    assert walk(notes, "a", "b") == Pruned()
    assert walk(notes, "a") == Pruned(hidden=1)


@pytest.mark.parametrize("hidden", [False, True])
def test_an_incomplete_walk_proves_nothing(notes: SourceLedger, hidden: bool) -> None:
    notes.admit(document("a"))
    notes.set("a", hidden=hidden)
    assert walk(notes, complete=False) == Pruned()
    assert states(notes) == {"a": (hidden, False)}


def test_an_odd_name_is_found_in_the_walk(notes: SourceLedger) -> None:
    notes.admit(document("bad\udc80.md"))
    assert walk(notes, "bad\udc80.md") == Pruned()


def test_other_sources_are_left_alone(notes: SourceLedger) -> None:
    notes.admit(document("a"))
    other = SourceLedger(notes.database, notes.tenant, notes.project, name="other")
    other.admit(document("b"))
    assert walk(notes, "a") == Pruned()
    assert states(notes)["b"] == (False, False)


class TestTheGuard:
    @pytest.mark.parametrize(
        ("living", "absent", "held"),
        [(100, 25, 0), (100, 26, 26), (200, 40, 0), (200, 41, 41), (26, 26, 26), (25, 25, 0)],
    )
    def test_more_than_a_fifth_and_more_than_25_wait_for_a_human(
        self, notes: SourceLedger, living: int, absent: int, held: int
    ) -> None:
        names = fill(notes, living)
        assert walk(notes, *names[absent:]) == Pruned(pending_approval=held, hidden=0 if held else absent)
        assert sum(hidden for hidden, _ in states(notes).values()) == (0 if held else absent)
        assert notes.sources.one()["held"] == held

    def test_numbers_of_its_own(self, notes: SourceLedger) -> None:
        fill(notes, 4)
        guard = DeletionGuard(share=0.5, documents=1)
        assert walk(notes, "d000", guard=guard) == Pruned(pending_approval=3)
        assert walk(notes, "d000", "d001", guard=guard) == Pruned(hidden=2)

    def test_a_release_lets_the_next_walk_through(self, notes: SourceLedger) -> None:
        names = fill(notes, 60)
        assert walk(notes, *names[30:]).pending_approval == 30
        with notes.database.tenant(notes.tenant) as connection:
            assert sources.release_deletions(connection, notes.source) == 30
        assert walk(notes, *names[30:]) == Pruned(hidden=30)
        assert walk(notes, *names[30:]) == Pruned(deleted=30)

    def test_a_release_is_for_as_many_as_were_held(self, notes: SourceLedger) -> None:
        names = fill(notes, 100)
        assert walk(notes, *names[30:]).pending_approval == 30
        with notes.database.tenant(notes.tenant) as connection:
            assert sources.release_deletions(connection, notes.source) == 30
        assert walk(notes) == Pruned(pending_approval=100)
        assert walk(notes, *names[30:]) == Pruned(pending_approval=30), "the walk before has used it up"

    def test_a_release_that_was_used_lets_no_second_walk_through(self, notes: SourceLedger) -> None:
        names = fill(notes, 100)
        walk(notes, *names[30:])
        with notes.database.tenant(notes.tenant) as connection:
            sources.release_deletions(connection, notes.source)
        assert walk(notes, *names[30:]) == Pruned(hidden=30)
        assert walk(notes, *names[60:]) == Pruned(pending_approval=30)

    def test_a_walk_that_is_held_deletes_nothing_at_all(self, notes: SourceLedger) -> None:
        names = fill(notes, 100)
        assert walk(notes, *names[20:]) == Pruned(hidden=20)
        assert walk(notes) == Pruned(pending_approval=80)
        assert sum(deleted for _, deleted in states(notes).values()) == 0
        assert walk(notes, *names) == Pruned(restored=20)

    def test_a_release_ends_with_its_time(self, notes: SourceLedger) -> None:
        names = fill(notes, 60)
        with notes.database.tenant(notes.tenant) as connection:
            sources.release_deletions(connection, notes.source, hours=0.5)
        assert ahead(seconds=1700) < notes.sources.one()["released_until"] <= ahead(seconds=1800)
        notes.sources.set(released_until=ago(seconds=1))
        assert walk(notes, *names[30:]) == Pruned(pending_approval=30)

    def test_those_already_hidden_do_not_count_again(self, notes: SourceLedger) -> None:
        names = fill(notes, 100)
        assert walk(notes, *names[20:]) == Pruned(hidden=20)
        assert walk(notes, *names[30:]) == Pruned(hidden=10, deleted=20)

    def test_when_they_are_back_nothing_is_held_any_more(self, notes: SourceLedger) -> None:
        names = fill(notes, 60)
        walk(notes, *names[30:])
        walk(notes, *names)
        assert notes.sources.one()["held"] == 0
