"""Cutting a step's documents into messages."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger import Item, Stage
from workers.queue.celeryconfig import ROUTES
from workers.queue.dispatch import TASK_OF, portions


def items(count: int) -> list[Item]:
    return [Item(UUID(int=n), 1) for n in range(count)]


@given(
    sizes=st.lists(st.integers(min_value=0, max_value=50), max_size=60),
    weight=st.integers(min_value=1, max_value=100),
    most=st.integers(min_value=1, max_value=10),
)
def test_nothing_is_lost_doubled_or_out_of_order_and_the_limits_hold(
    sizes: list[int], weight: int, most: int
) -> None:
    every = items(len(sizes))
    known = {item.document_id: size for item, size in zip(every, sizes, strict=True)}
    parts = portions(every, known, weight=weight, most=most)
    assert [item for part in parts for item in part] == every
    for part in parts:
        assert 1 <= len(part) <= most
        assert len(part) == 1 or sum(known[i.document_id] for i in part) <= weight


@given(count=st.integers(min_value=1, max_value=40), most=st.integers(min_value=1, max_value=10))
def test_messages_are_as_full_as_they_may_be(count: int, most: int) -> None:
    parts = portions(items(count), {}, weight=1000, most=most)
    assert all(len(part) == most for part in parts[:-1])


def test_a_document_heavier_than_a_message_travels_alone() -> None:
    small, huge, last = items(3)
    parts = portions([small, huge, last], {huge.document_id: 5000}, weight=500, most=32)
    assert parts == [[small], [huge], [last]]


def test_nothing_makes_no_message() -> None:
    assert portions([], {}, weight=10, most=10) == []


def test_every_stage_that_waits_has_a_task_with_a_queue() -> None:
    assert set(TASK_OF) == set(Stage) - {Stage.DONE}
    assert all(name in ROUTES for name in TASK_OF.values())


def test_a_message_names_ids_and_versions_only() -> None:
    assert Item(UUID(int=7), 3).to_json() == ["00000000-0000-0000-0000-000000000007", 3]
