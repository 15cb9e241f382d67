"""A message whose end the broker does not hear of takes no slot with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.transport import redis

from tests.fakes.tcp_proxy import TcpProxy
from workers import embedded
from workers.queue import app

logger = logging.getLogger(__name__)


@pytest.fixture
def proxy(servers: embedded.Servers) -> Iterator[TcpProxy]:
    with TcpProxy.to(servers.broker_url) as made:
        yield made


@pytest.fixture
def connection(servers: embedded.Servers, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker's, by way of the proxy; it waits half a second for each answer."""
    monkeypatch.setattr(redis.Channel, "QoS", redis.Channel.QoS)  # as it was, afterwards
    app.install_qos()
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    url = proxy.url(servers.broker_url)
    with Connection(url, transport_options=options) as made:  # type: ignore[no-untyped-call]
        yield made


def acknowledge(message: Any, connection: Any) -> None:
    message.ack_log_error(logger, connection.connection_errors)


def put_back(message: Any, connection: Any) -> None:
    message.reject_log_error(logger, connection.connection_errors, requeue=True)


@pytest.mark.parametrize("end", [acknowledge, put_back])
def test_after_a_freeze_the_next_message_comes(
    connection: Any,
    proxy: TcpProxy,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[Any, Any], None],
) -> None:
    queue: Any = Queue(f"slots-{uuid4().hex}", auto_delete=True)  # type: ignore[no-untyped-call]
    came: list[Any] = []
    producer = connection.Producer()
    with connection.Consumer([queue], on_message=came.append, accept=["json"]) as consumer:
        consumer.qos(prefetch_count=1)
        for n in (1, 2):
            producer.publish({"n": n}, routing_key=queue.name, declare=[queue], retry=False)
        connection.drain_events(timeout=5)
        assert [message.payload for message in came] == [{"n": 1}]
        proxy.freeze()
        end(came[0], connection)
        assert "Couldn't" in caplog.text
        proxy.heal()
        connection.drain_events(timeout=5)
        assert came[1].payload["n"] in {1, 2}  # what was put back and not heard of may be there already
        came[1].ack()
