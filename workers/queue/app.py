"""The Celery app; `configure` gives it a broker, importing it has no effect."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from queue import Empty
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery
from celery.exceptions import InvalidTaskError
from celery.worker.consumer import Consumer
from celery.worker.consumer.delayed_delivery import DelayedDelivery
from celery.worker.request import Request as CeleryRequest
from kombu.exceptions import InconsistencyError
from kombu.transport import pyamqp, redis, virtual

from workers.queue.broker import AWAY, MAX_QUARANTINED, QUARANTINE_KEY, QUARANTINE_LIST
from workers.queue.celeryconfig import ROUTES, celery_settings
from workers.settings.queue import QueueSettings

app: Any = Celery("larder", include=["workers.tasks"])


def configure(queue: QueueSettings, broker_url: str, *, send_only: bool = False) -> Any:
    """Point the app at a broker, with our queues, limits and ticks; returns the app.

    `send_only` is for processes that consume nothing: they give up on a silent broker soon, since the pump sends
    later what they could not.
    """
    app.conf.update(celery_settings(queue, broker_url, send_only=send_only))
    return app


logger = logging.getLogger(__name__)

_BROKERS_OWN = (Empty, InconsistencyError, *AWAY)
_virtual: Any = virtual.QoS
"""Kombu's local bookkeeping of a channel's slots, without the broker's."""


class QoS(redis.QoS):
    """Frees a slot also if the broker could not be told that its message is done.

    Kombu would keep the slot: a worker with one slot that finished its task while the broker was frozen took no
    message ever again and looked healthy. The message may be delivered again; the ledger knows that it is done.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; raises if the broker does not answer."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except Exception:
            _virtual.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject or requeue a message; raises if the broker does not answer."""
        headers = getattr(self._delivered.get(delivery_tag), "headers", None)
        try:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]
        except Exception:
            _virtual.ack(self, delivery_tag)
            raise
        if not requeue:
            count_quarantined(self.channel, headers)


def count_quarantined(channel: Any, headers: Any = None) -> None:
    """Record a quarantined message for `larder status`; the pump sends its work again from the ledger."""
    header_values = headers if isinstance(headers, dict) else {}
    entry = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: str(header_values.get(name) or "")[:100] for name in ("task", "id")},
    }
    with channel.conn_or_acquire() as client:
        client.incr(QUARANTINE_KEY)
        client.lpush(QUARANTINE_LIST, json.dumps(entry))
        client.ltrim(QUARANTINE_LIST, 0, MAX_QUARANTINED - 1)


def guarded(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `read` of a channel so that a message that cannot be read or handled is quarantined.

    It would otherwise end the worker, be delivered again and end the next one. Errors of the broker are raised.
    """

    @wraps(read)
    def guarded(channel: Any, **options: Any) -> Any:
        before = set(channel.qos._delivered) - channel.qos._dirty  # noqa: SLF001 (kombu has no public way)
        try:
            return read(channel, **options)
        except _BROKERS_OWN:
            raise
        except Exception as error:  # noqa: BLE001 - messages may come from other programs
            # Without the message and the error's text, which may quote it.
            logger.error("a message is quarantined: taking it fails with %s", type(error).__name__)  # noqa: TRY400
            unread = set(channel.qos._delivered) - before - channel.qos._dirty  # noqa: SLF001
            for tag in unread:
                channel.qos.reject(tag)
            if not unread:
                count_quarantined(channel)
            return True

    return guarded


def guarded_consume(consume: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `consume` of a RabbitMQ channel so that a message that cannot be handled is dropped."""

    @wraps(consume)
    def guarded(channel: Any, *, callback: Callable[[Any], Any], no_ack: bool = False, **options: Any) -> Any:
        def handle(message: Any) -> None:
            try:
                callback(message)
            except (AMQPError, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - as above
                logger.error("a message is quarantined: taking it fails with %s", type(error).__name__)  # noqa: TRY400
                if not no_ack:
                    channel.basic_reject(message.delivery_tag, requeue=False)

        return consume(channel, callback=handle, no_ack=no_ack, **options)

    return guarded


_IDS = re.compile(r"[(\[]'[0-9a-f-]{36}', '[0-9a-f-]{36}'[)\]]")
"""Arguments of a message that names a stored job."""


class Request(CeleryRequest):  # type: ignore[misc]
    """A task request that is validated before it takes a place in the pool, which an invalid one would keep."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limits = self.time_limits
        pair = isinstance(limits, list | tuple) and len(limits) == len(("hard", "soft"))
        if not pair or not all(limit is None or type(limit) in (int, float) for limit in limits):
            raise InvalidTaskError("invalid time limits")
        if not isinstance(self.id, str):
            raise InvalidTaskError("invalid id")
        # A message of an app carries texts, which neither logs nor Flower may show.
        if ROUTES.get(self._type) == "enrich":
            arguments = str(getattr(self, "_argsrepr", ""))
            self._argsrepr, self._kwargsrepr = arguments if _IDS.fullmatch(arguments) else "", ""

    def info(self, **_options: object) -> Any:
        """Description of a running task, also for Flower, with its arguments redacted."""
        return super().info(safe=True)


def install_transport() -> None:
    """Patch every channel of this process; a transport of our own would need its own URL scheme."""
    channel: Any = redis.Channel
    channel.QoS = QoS
    channel._brpop_read = guarded(channel._brpop_read)  # noqa: SLF001 (reads all messages)
    channel._receive = guarded(channel._receive)  # noqa: SLF001 (reads all commands)
    queues: Any = pyamqp.Channel
    queues.basic_consume = guarded_consume(queues.basic_consume)
    app.Task.Request = Request
    # Celery would declare 28 exchanges and queues in RabbitMQ for delayed messages, which we do not use.
    delayed: Any = DelayedDelivery
    delayed.include_if = lambda *_: False
    # Celery would acknowledge an undecodable message, as if it were done.
    consumer: Any = Consumer
    consumer.on_decode_error = lambda self, message, error: self.on_invalid_task(None, message, error)
