"""When messages count as waiting in vain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery.signals import task_received
from celery.worker import state

from tests.fakes.tcp_proxy import TcpProxy
from workers.processes.heartbeat import Starvation
from workers.queue import dispatch
from workers.runtime import Runtime


class Task:
    """As Celery's sets of what is worked on hold it."""


@pytest.fixture
def proxy(runtime: Runtime) -> Iterator[TcpProxy]:
    with TcpProxy.to(runtime.addresses.broker) as made:
        yield made


@pytest.fixture
def neglect(runtime: Runtime, proxy: TcpProxy, broker: redis.Redis) -> Starvation:
    """Of a worker that serves `ingest`, where a message waits, and that was asked before."""
    del broker
    made = Starvation(proxy.url(runtime.addresses.broker), lambda: ["ingest"])
    made()
    assert dispatch.send("larder.upkeep.canary", "ingest", queue="ingest", priority=9)
    return made


def test_a_message_that_waits_while_nothing_is_done_is_neglected(neglect: Starvation) -> None:
    assert neglect()
    assert neglect()


def test_a_worker_to_which_messages_come_does_not_neglect_those_behind(neglect: Starvation) -> None:
    task_received.send(sender=None)
    assert not neglect()
    assert neglect(), "none has come since"


def test_one_that_is_at_work_does_not(neglect: Starvation) -> None:
    task = Task()
    for under_way in (state.reserved_requests, state.active_requests):
        under_way.add(task)
        assert not neglect()
        under_way.discard(task)
    assert neglect()


def test_an_empty_queue_is_not_neglected(neglect: Starvation, broker: redis.Redis) -> None:
    broker.flushdb()
    assert not neglect()


def test_a_broker_that_is_away_has_nothing_to_give(neglect: Starvation, proxy: TcpProxy) -> None:
    proxy.cut()
    assert not neglect()


def test_a_queue_of_others_is_not_its_own(runtime: Runtime, neglect: Starvation) -> None:
    del neglect
    other = Starvation(runtime.addresses.broker, lambda: ["embed"])
    other()
    assert not other()
