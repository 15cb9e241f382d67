"""A message whose end the broker does not hear of takes no slot with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.transport import redis
from redis import Redis

from tests.fakes.tcp_proxy import TcpProxy
from workers.local import embedded
from workers.queue import app, broker

logger = logging.getLogger(__name__)


@pytest.fixture
def proxy(servers: embedded.Servers) -> Iterator[TcpProxy]:
    with TcpProxy.to(servers.broker_url) as made:
        yield made


@pytest.fixture
def connection(servers: embedded.Servers, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker's, by way of the proxy; it waits half a second for each answer."""
    for name in ("QoS", "_brpop_read", "_receive"):
        monkeypatch.setattr(redis.Channel, name, getattr(redis.Channel, name))  # as it was, afterwards
    app.install_transport()
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


Strange = Callable[[dict[str, Any]], bytes]
ENVELOPES: dict[str, Strange] = {
    "garbage": lambda _: b"\xff{not json",
    "a list": lambda _: b"[1, 2]",
    "a number": lambda _: b"7",
    "null": lambda _: b"null",
    "no properties": lambda e: json.dumps({k: v for k, v in e.items() if k != "properties"}).encode(),
    "unknown body_encoding": lambda e: json.dumps(
        {**e, "properties": {**e["properties"], "body_encoding": "rot13"}}
    ).encode(),
    "no base64": lambda e: json.dumps({**e, "body": "A"}).encode(),
    "no delivery_info": lambda e: json.dumps(
        {**e, "properties": {k: v for k, v in e["properties"].items() if k != "delivery_info"}}
    ).encode(),
}


@pytest.mark.parametrize("strange", ENVELOPES.values(), ids=ENVELOPES)
def test_a_message_that_is_none_is_set_aside_and_the_next_one_comes(
    connection: Any, servers: embedded.Servers, caplog: pytest.LogCaptureFixture, strange: Strange
) -> None:
    queue: Any = Queue(f"strange-{uuid4().hex}", auto_delete=True)  # type: ignore[no-untyped-call]
    came: list[Any] = []
    before = broker.quarantined_total(servers.broker_url)
    assert before is not None
    with (
        Redis.from_url(servers.broker_url) as client,
        connection.Consumer([queue], on_message=came.append, accept=["json"]) as consumer,
    ):
        under_way = client.hlen("unacked")
        consumer.qos(prefetch_count=1)
        producer = connection.Producer()
        producer.publish({"n": 1}, routing_key=queue.name, declare=[queue], retry=False)
        envelope = json.loads(client.rpop(queue.name))
        client.lpush(queue.name, strange(envelope))
        producer.publish({"n": 2}, routing_key=queue.name, declare=[queue], retry=False)
        while not came:
            connection.drain_events(timeout=5)
        assert came[0].payload == {"n": 2}
        came[0].ack()
        assert client.hlen("unacked") == under_way
    assert broker.quarantined_total(servers.broker_url) == before + 1
    assert {*broker.quarantined_messages(servers.broker_url)[0]} == {"at", "task", "id"}
    assert caplog.text.count("a message is quarantined") == 1


def test_an_error_of_the_broker_is_not_taken_for_one_of_a_message(connection: Any, proxy: TcpProxy) -> None:
    queue: Any = Queue(f"away-{uuid4().hex}", auto_delete=True)  # type: ignore[no-untyped-call]
    with pytest.raises(connection.connection_errors), connection.Consumer([queue], accept=["json"]):  # noqa: PT012
        proxy.cut()
        connection.drain_events(timeout=5)
