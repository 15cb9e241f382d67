"""Cutting a step's documents into messages, and whose turn it is."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from itertools import groupby
from uuid import UUID

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger import Item, Lane, Stage
from pipeline.ledger.due_work import even_batches
from workers.processes.run import embedders
from workers.queue import dispatch
from workers.queue.app import configure
from workers.queue.broker import SHARE, lists_of, promote_lower_priority
from workers.queue.celeryconfig import ROUTES
from workers.queue.dispatch import TASK_OF
from workers.runtime import Runtime


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
    runtime = even_batches(every, known, weight=weight, most=most)
    assert [item for part in runtime for item in part] == every
    for part in runtime:
        assert 1 <= len(part) <= most
        assert len(part) == 1 or sum(known[i.document_id] for i in part) <= weight


@given(count=st.integers(min_value=1, max_value=40), most=st.integers(min_value=1, max_value=10))
def test_messages_are_as_full_as_they_may_be(count: int, most: int) -> None:
    runtime = even_batches(items(count), {}, weight=1000, most=most)
    assert all(len(part) == most for part in runtime[:-1])


def test_a_document_heavier_than_a_message_travels_alone() -> None:
    small, huge, last = items(3)
    runtime = even_batches([small, huge, last], {huge.document_id: 5000}, weight=500, most=32)
    assert runtime == [[small], [huge], [last]]


def test_nothing_makes_no_message() -> None:
    assert even_batches([], {}, weight=10, most=10) == []


def test_every_stage_that_waits_has_a_task_with_a_queue() -> None:
    assert set(TASK_OF) == set(Stage) - {Stage.DONE}
    assert all(name in ROUTES for name in TASK_OF.values())


def test_a_message_names_ids_and_versions_only() -> None:
    assert Item(UUID(int=7), 3).to_json() == ["00000000-0000-0000-0000-000000000007", 3]


def test_nobody_who_edits_without_end_keeps_loads_and_fills_waiting(
    runtime: Runtime, broker: redis.Redis
) -> None:
    configure(runtime.rag.queue, runtime.addresses.broker)
    for n in range(20):
        for priority in (Lane.BULK, Lane.FILL):
            assert dispatch.send("larder.embed", priority, n, priority=priority)
    taken: list[int] = []
    for n in range(40):
        assert dispatch.send("larder.embed", Lane.CHANGED, n, priority=Lane.CHANGED)
        found = next(message for name in lists_of("embed") if (message := broker.rpop(name)))
        (priority, number), *_ = json.loads(b64decode(json.loads(found)["body"]))  # type: ignore[arg-type]
        assert number == taken.count(priority), "the longest waiting first"
        taken.append(priority)
        promote_lower_priority(runtime.addresses.broker, "embed")
    assert Counter(taken) == {Lane.CHANGED: 31, Lane.BULK: 6, Lane.FILL: 3}
    assert max(len(list(run)) for lane, run in groupby(taken) if lane == Lane.CHANGED) == SHARE


def test_where_nothing_waits_behind_nothing_is_moved(runtime: Runtime, broker: redis.Redis) -> None:
    configure(runtime.rag.queue, runtime.addresses.broker)
    dispatch.send("larder.embed", "a", 1, priority=Lane.CHANGED)
    for _ in range(2 * SHARE):
        promote_lower_priority(runtime.addresses.broker, "embed")
    assert broker.llen("embed") == 1


@pytest.mark.parametrize(
    ("provider", "cores", "gigabytes", "processes"),
    [
        ("minilm", 16, 64, 16),
        ("minilm", 16, 2, 6),
        ("minilm", 2, 0.1, 1),
        ("transformers", 4, 2.5, 2),
        ("gemini", 16, 64, 1),
    ],
)
def test_as_many_embed_as_there_are_cores_and_memory(
    provider: str, cores: int, gigabytes: float, processes: int
) -> None:
    assert embedders(provider, cores, gigabytes * 1e9) == processes
