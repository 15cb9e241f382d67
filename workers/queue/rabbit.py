"""RabbitMQ as the broker: a quorum queue per priority, and the calls that AMQP alone allows."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

_connections = threading.local()
"""Process and address -> this thread's idle connection, reused since RabbitMQ logs each new one."""


def is_rabbit(url: str) -> bool:
    """True for the address of a RabbitMQ."""
    return url.startswith(("amqp:", "amqps:"))


def transport_options(seconds: float) -> dict[str, Any]:
    """Kombu's transport options: confirmed publishing, and timeouts in `seconds`."""
    return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}


def tls_of(url: str) -> dict[str, Any] | None:
    """Kombu's TLS options, which verify the server; None without TLS.

    The address may name a file of authorities as `ssl_ca_certs`; the default are those of this machine.
    """
    if not url.startswith("amqps:"):
        return None
    [authorities] = parse_qs(urlsplit(url).query).get("ssl_ca_certs", [None])
    return {
        "cert_reqs": ssl.CERT_REQUIRED,
        "server_hostname": urlsplit(url).hostname,
        "ca_certs": authorities,
    }


def address_of(url: str) -> str:
    """The address of a broker for Kombu, which does not understand options of a RabbitMQ address."""
    return url.partition("?")[0] if is_rabbit(url) else url


def queue_of(name: str) -> Any:
    """A quorum queue for Kombu; senders and readers declare it first, or messages would be dropped."""
    from kombu.entity import Exchange, Queue

    return cast("Any", Queue)(
        name, cast("Any", Exchange)("larder"), routing_key=name, queue_arguments={"x-queue-type": "quorum"}
    )


class RabbitClient:
    """The calls we make on any broker, with the interface of a Valkey client; raises OSError if unreachable."""

    def __init__(self, url: str, seconds: float) -> None:
        """Connects on first use; `seconds` is the timeout of an answer."""
        self._url, self._seconds = url, seconds
        # A forked child must not use its parent's connection.
        self._key = f"{os.getpid()} {url}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the connection open for the next call."""

    def close(self) -> None:
        """Close the connection."""
        if pooled := _connections.__dict__.pop(self._key, None):
            with suppress(OSError):
                pooled.collect()

    def ping(self) -> None:
        """Raise unless the server answers."""
        self._ask(lambda _channel: None)

    def exists(self, queue: str) -> None:
        """Declare the queue; raises if that is not allowed."""
        self._ask(lambda channel: queue_of(queue)(channel).declare())

    def llen(self, queue: str) -> int:
        """Waiting messages of a queue, without those delivered to a worker."""
        from amqp.exceptions import NotFound

        def count(channel: Any) -> int:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except NotFound:
                return 0  # not declared yet

        return int(self._ask(count))

    def version(self) -> str:
        """Product and version of the server."""
        properties: Mapping[str, str] = self._ask(lambda channel: channel.connection.server_properties)
        return f"{properties.get('product', 'RabbitMQ')} {properties.get('version', '')}"

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from amqp.exceptions import AMQPError

        pooled = _connections.__dict__.pop(self._key, None)
        connection = pooled
        try:
            connection = connection or self._connected()
            channel = connection.channel()
            answer = question(channel)
            channel.close()
        except (AMQPError, OSError) as error:
            if connection:
                connection.collect()
            if pooled and not isinstance(error, TimeoutError):
                return self._ask(question)  # the server had closed the idle connection
            raise (error if isinstance(error, OSError) else ConnectionError(str(error))) from None
        _connections.__dict__[self._key] = connection
        return answer

    def _connected(self) -> Any:
        from kombu.connection import Connection

        connection = cast("Any", Connection)(
            address_of(self._url),
            connect_timeout=self._seconds,
            transport_options=transport_options(self._seconds),
            ssl=tls_of(self._url),
        )
        return connection.transport.establish_connection()
