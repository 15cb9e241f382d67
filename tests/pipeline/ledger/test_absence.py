"""Removing by absence: hidden, then deleted, never on an incomplete walk, and held if it is too much."""

from __future__ import annotations

import pytest

from pipeline.documents import Listing
from pipeline.ledger import sources
from pipeline.ledger.admission import DeletionGuard, Pruned, prune
from tests.ledger import ago, ahead
from tests.pipeline.workshop import Workshop, document


def walk(shop: Workshop, *ids: str, complete: bool = True, guard: DeletionGuard | None = None) -> Pruned:
    with shop.database.tenant(shop.tenant) as connection:
        listing = Listing(ids=frozenset(ids), complete=complete)
        return prune(connection, shop.source, listing, guard or DeletionGuard())


def fill(shop: Workshop, count: int) -> list[str]:
    names = [f"d{n:03}" for n in range(count)]
    shop.admit(*(document(name) for name in names))
    shop.documents.set(state="done", stage="done")
    return names


def states(shop: Workshop) -> dict[str, tuple[bool, bool]]:
    return {r["external_id"]: (r["hidden"], r["deleted"]) for r in shop.documents()}


def test_absent_once_is_hidden_and_absent_twice_is_deleted(shop: Workshop) -> None:
    shop.admit(document("here"), document("gone"))
    shop.index()
    assert walk(shop, "here") == Pruned(hidden=1)
    assert states(shop) == {"here": (False, False), "gone": (True, False)}
    assert shop.contents("gone") == ["Some words."]
    assert walk(shop, "here") == Pruned(deleted=1)
    assert states(shop)["gone"] == (True, True)
    assert shop.contents("gone") == []
    assert walk(shop, "here") == Pruned()


def test_back_before_the_second_walk_means_restored(shop: Workshop) -> None:
    shop.admit(document("a"), document("b"))
    shop.index()
    walk(shop, "a")
    assert shop.admit(document("b")).restored == 1
    assert walk(shop, "a", "b") == Pruned()
    assert walk(shop, "a") == Pruned(hidden=1)


@pytest.mark.parametrize("hidden", [False, True])
def test_an_incomplete_walk_proves_nothing(shop: Workshop, hidden: bool) -> None:
    shop.admit(document("a"))
    shop.set("a", hidden=hidden)
    assert walk(shop, complete=False) == Pruned()
    assert states(shop) == {"a": (hidden, False)}


def test_an_odd_name_is_found_in_the_walk(shop: Workshop) -> None:
    shop.admit(document("bad\udc80.md"))
    assert walk(shop, "bad\udc80.md") == Pruned()


def test_other_sources_are_left_alone(shop: Workshop) -> None:
    shop.admit(document("a"))
    other = Workshop(shop.database, shop.tenant, shop.project, name="other")
    other.admit(document("b"))
    assert walk(shop, "a") == Pruned()
    assert states(shop)["b"] == (False, False)


class TestTheGuard:
    @pytest.mark.parametrize(
        ("living", "absent", "held"),
        [(100, 25, 0), (100, 26, 26), (200, 40, 0), (200, 41, 41), (26, 26, 26), (25, 25, 0)],
    )
    def test_more_than_a_fifth_and_more_than_25_wait_for_a_human(
        self, shop: Workshop, living: int, absent: int, held: int
    ) -> None:
        names = fill(shop, living)
        assert walk(shop, *names[absent:]) == Pruned(pending_approval=held, hidden=0 if held else absent)
        assert sum(hidden for hidden, _ in states(shop).values()) == (0 if held else absent)
        assert shop.sources.one()["held"] == held

    def test_numbers_of_its_own(self, shop: Workshop) -> None:
        fill(shop, 4)
        guard = DeletionGuard(share=0.5, documents=1)
        assert walk(shop, "d000", guard=guard) == Pruned(pending_approval=3)
        assert walk(shop, "d000", "d001", guard=guard) == Pruned(hidden=2)

    def test_a_release_lets_the_next_walk_through(self, shop: Workshop) -> None:
        names = fill(shop, 60)
        assert walk(shop, *names[30:]).pending_approval == 30
        with shop.database.tenant(shop.tenant) as connection:
            assert sources.release_deletions(connection, shop.source) == 30
        assert walk(shop, *names[30:]) == Pruned(hidden=30)
        assert walk(shop, *names[30:]) == Pruned(deleted=30)

    def test_a_release_is_for_as_many_as_were_held(self, shop: Workshop) -> None:
        names = fill(shop, 100)
        assert walk(shop, *names[30:]).pending_approval == 30
        with shop.database.tenant(shop.tenant) as connection:
            assert sources.release_deletions(connection, shop.source) == 30
        assert walk(shop) == Pruned(pending_approval=100)
        assert walk(shop, *names[30:]) == Pruned(pending_approval=30), "the walk before has used it up"

    def test_a_release_that_was_used_lets_no_second_walk_through(self, shop: Workshop) -> None:
        names = fill(shop, 100)
        walk(shop, *names[30:])
        with shop.database.tenant(shop.tenant) as connection:
            sources.release_deletions(connection, shop.source)
        assert walk(shop, *names[30:]) == Pruned(hidden=30)
        assert walk(shop, *names[60:]) == Pruned(pending_approval=30)

    def test_a_walk_that_is_held_deletes_nothing_at_all(self, shop: Workshop) -> None:
        names = fill(shop, 100)
        assert walk(shop, *names[20:]) == Pruned(hidden=20)
        assert walk(shop) == Pruned(pending_approval=80)
        assert sum(deleted for _, deleted in states(shop).values()) == 0
        assert walk(shop, *names) == Pruned(restored=20)

    def test_a_release_ends_with_its_time(self, shop: Workshop) -> None:
        names = fill(shop, 60)
        with shop.database.tenant(shop.tenant) as connection:
            sources.release_deletions(connection, shop.source, hours=0.5)
        assert ahead(seconds=1700) < shop.sources.one()["released_until"] <= ahead(seconds=1800)
        shop.sources.set(released_until=ago(seconds=1))
        assert walk(shop, *names[30:]) == Pruned(pending_approval=30)

    def test_those_already_hidden_do_not_count_again(self, shop: Workshop) -> None:
        names = fill(shop, 100)
        assert walk(shop, *names[20:]) == Pruned(hidden=20)
        assert walk(shop, *names[30:]) == Pruned(hidden=10, deleted=20)

    def test_when_they_are_back_nothing_is_held_any_more(self, shop: Workshop) -> None:
        names = fill(shop, 60)
        walk(shop, *names[30:])
        walk(shop, *names)
        assert shop.sources.one()["held"] == 0
