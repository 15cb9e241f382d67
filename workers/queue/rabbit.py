"""RabbitMQ as the broker: a quorum queue for each priority, and what it can be asked over AMQP alone."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

_kept = threading.local()
"""Address and process -> this thread's connection, for the next question: RabbitMQ logs each one that is opened."""


def is_rabbit(url: str) -> bool:
    """Whether an address is that of a RabbitMQ, and not of a Valkey or Redis."""
    return url.startswith(("amqp:", "amqps:"))


def transport_options(seconds: float) -> dict[str, Any]:
    """For Kombu: a message is sent when RabbitMQ says that it keeps it; one that is silent for `seconds` is away."""
    return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}


def tls_of(url: str) -> dict[str, Any] | None:
    """For Kombu: that the server must prove who it is; None without TLS.

    The address may name a file of authorities as `ssl_ca_certs`; else those count that this machine trusts.
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
    """For Kombu: the address of any broker, for RabbitMQ without options, which it would not understand."""
    return url.partition("?")[0] if is_rabbit(url) else url


def queue_of(name: str) -> Any:
    """A quorum queue, for Kombu; whoever sends to it or reads it declares it first, or messages would be dropped."""
    from kombu.entity import Exchange, Queue

    return cast("Any", Queue)(
        name, cast("Any", Exchange)("larder"), routing_key=name, queue_arguments={"x-queue-type": "quorum"}
    )


class RabbitClient:
    """What is asked of any broker, in the words of a client of Valkey; raises an OSError while it cannot be reached."""

    def __init__(self, url: str, seconds: float) -> None:
        """Nothing is connected yet; `seconds` is how long it may say nothing."""
        self._url, self._seconds = url, seconds
        # A forked child must not speak on its parent's connection.
        self._key = f"{os.getpid()} {url}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The connection is kept for the next one who asks."""

    def close(self) -> None:
        """Give the connection back."""
        if kept := _kept.__dict__.pop(self._key, None):
            with suppress(OSError):
                kept.collect()

    def ping(self) -> None:
        """Find out whether it answers."""
        self._ask(lambda _channel: None)

    def exists(self, queue: str) -> None:
        """Find out whether queues may be declared: it is there then."""
        self._ask(lambda channel: queue_of(queue)(channel).declare())

    def llen(self, queue: str) -> int:
        """Messages that wait in a queue, without those a worker has taken."""
        from amqp.exceptions import NotFound

        def count(channel: Any) -> int:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except NotFound:
                return 0  # nobody has sent anything yet

        return int(self._ask(count))

    def version(self) -> str:
        """Its name and number."""
        told: Mapping[str, str] = self._ask(lambda channel: channel.connection.server_properties)
        return f"{told.get('product', 'RabbitMQ')} {told.get('version', '')}"

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from amqp.exceptions import AMQPError

        kept = _kept.__dict__.pop(self._key, None)
        connection = kept
        try:
            connection = connection or self._connected()
            channel = connection.channel()
            answer = question(channel)
            channel.close()
        except (AMQPError, OSError) as error:
            if connection:
                connection.collect()
            if kept and not isinstance(error, TimeoutError):
                return self._ask(question)  # it lay idle, and the server had closed it
            raise (error if isinstance(error, OSError) else ConnectionError(str(error))) from None
        _kept.__dict__[self._key] = connection
        return answer

    def _connected(self) -> Any:
        from kombu.connection import Connection

        made = cast("Any", Connection)(
            address_of(self._url),
            connect_timeout=self._seconds,
            transport_options=transport_options(self._seconds),
            ssl=tls_of(self._url),
        )
        return made.transport.establish_connection()
