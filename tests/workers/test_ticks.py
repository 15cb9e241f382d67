"""Messages to the pump: they count on no clock but their reader's, and many of them are one."""

from __future__ import annotations

import json
import time

import pytest
import redis
from celery.beat import ScheduleEntry

from workers import tasks
from workers.processes.heartbeat import TickScheduler
from workers.queue import dispatch
from workers.queue.app import app
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime


def test_what_beat_sends_never_expires_by_a_clock_of_another_machine(
    runtime: Runtime, broker: redis.Redis
) -> None:
    del runtime
    scheduler = object.__new__(TickScheduler)  # a whole one would begin to tick
    for name, entry in app.conf.beat_schedule.items():
        scheduler.apply_entry(ScheduleEntry(name=name, app=app, **entry))
    dispatch.wake_pump()
    sent = [json.loads(m) for queue in QUEUES for m in broker.lrange(queue, 0, -1)]
    assert len(sent) == len(app.conf.beat_schedule) + 1
    assert all(message["headers"].get("expires") is None for message in sent)


def test_ticks_that_piled_up_are_one_and_whoever_asks_by_name_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not tasks.done_recently("a tick", 5.0)
    assert all(tasks.done_recently("a tick", 5.0) for _ in range(1000))
    assert not tasks.done_recently("a tick", 0.0), "a ring"
    now += 5.0
    assert not tasks.done_recently("a tick", 5.0)


def test_pages_ring_the_pump_at_most_once_a_second(
    runtime: Runtime, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    del runtime
    monkeypatch.setattr(dispatch, "_rung_at", {})
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(100):
        dispatch.wake_pump(seldom=True)
    assert broker.llen("control") == 1
    now += 1.0
    dispatch.wake_pump(seldom=True)
    assert broker.llen("control") == 2
    dispatch.wake_pump()
    assert broker.llen("control") == 3, "a command is heard at once"
