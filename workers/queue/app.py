"""The Celery app; importing it does nothing, `configure` gives it a broker."""

from __future__ import annotations

import json
import logging
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

from workers.queue.broker import ASIDE_LIST, AWAY, MOST_ASIDE, SET_ASIDE
from workers.queue.celeryconfig import celery_settings
from workers.settings.queue import QueueSettings

app: Any = Celery("larder", include=["workers.tasks"])


def configure(queue: QueueSettings, broker_url: str, *, send_only: bool = False) -> Any:
    """Point the app at a broker, with our queues, limits and ticks; returns the app.

    `send_only` is for who consumes nothing: it does not wait long for a broker that says nothing, since the pump
    sends what it could not.
    """
    app.conf.update(celery_settings(queue, broker_url, send_only=send_only))
    return app


logger = logging.getLogger(__name__)

_BROKERS_OWN = (Empty, InconsistencyError, *AWAY)
_virtual: Any = virtual.QoS
"""What Kombu keeps of a channel's slots, apart from what the broker knows."""


class QoS(redis.QoS):
    """Gives a slot back also where the broker did not hear that its message is done.

    Kombu keeps it, and Celery goes on: a worker with one slot that finished its task while the broker was frozen took
    no message ever again, and looked healthy. The message itself may come once more; the ledger knows that it is done.
    """

    def ack(self, delivery_tag: str) -> None:
        """Take a message off the broker's list of those under way; a broker that does not answer raises."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except Exception:
            _virtual.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Take a message off that list, or put it back into its queue, in the same way."""
        headers = getattr(self._delivered.get(delivery_tag), "headers", None)
        try:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]
        except Exception:
            _virtual.ack(self, delivery_tag)
            raise
        if not requeue:
            count_set_aside(self.channel, headers)


def count_set_aside(channel: Any, headers: Any = None) -> None:
    """Count a message that nobody will do, for `larder status`; the ledger sends anew what it was about."""
    told = headers if isinstance(headers, dict) else {}
    entry = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: str(told.get(name) or "")[:100] for name in ("task", "id")},
    }
    with channel.conn_or_acquire() as client:
        client.incr(SET_ASIDE)
        client.lpush(ASIDE_LIST, json.dumps(entry))
        client.ltrim(ASIDE_LIST, 0, MOST_ASIDE - 1)


def guarded(read: Callable[..., Any]) -> Callable[..., Any]:
    """`read` of a channel, but a message that cannot be read, or whose taking fails, ends no worker: it is set aside.

    It would otherwise be put back after the worker's death and end the next one. The broker's own errors go their way.
    """

    @wraps(read)
    def guarded(channel: Any, **options: Any) -> Any:
        before = set(channel.qos._delivered) - channel.qos._dirty  # noqa: SLF001 (kombu tells it nowhere else)
        try:
            return read(channel, **options)
        except _BROKERS_OWN:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stranger wrote there
            # Neither the message nor the error's text, which may quote it.
            logger.error("a message is quarantined: taking it fails with %s", type(error).__name__)  # noqa: TRY400
            taken = set(channel.qos._delivered) - before - channel.qos._dirty  # noqa: SLF001
            for tag in taken:
                channel.qos.reject(tag)
            if not taken:
                count_set_aside(channel)
            return True

    return guarded


def guarded_consume(consume: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a channel of RabbitMQ, which hands messages over: what cannot be taken is dropped."""

    @wraps(consume)
    def guarded(channel: Any, *, callback: Callable[[Any], Any], no_ack: bool = False, **options: Any) -> Any:
        def taken(message: Any) -> None:
            try:
                callback(message)
            except (AMQPError, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - as above
                logger.error("a message is quarantined: taking it fails with %s", type(error).__name__)  # noqa: TRY400
                if not no_ack:
                    channel.basic_reject(message.delivery_tag, requeue=False)

        return consume(channel, callback=taken, no_ack=no_ack, **options)

    return guarded


ASK = "larder.ask"
"""The task that a Celery app without this package asks for."""


class Request(CeleryRequest):  # type: ignore[misc]
    """A message as a task to be run, refused before it takes a place in the pool, which it would keep."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        limits = self.time_limits
        pair = isinstance(limits, list | tuple) and len(limits) == len(("hard", "soft"))
        if not pair or not all(limit is None or type(limit) in (int, float) for limit in limits):
            raise InvalidTaskError("its time limits are none")
        if not isinstance(self.id, str):
            raise InvalidTaskError("its id is none")
        if self._type == ASK:  # its arguments are no ids but texts, which neither logs nor Flower may show
            self._argsrepr = self._kwargsrepr = ""

    def info(self, **_how: object) -> Any:
        """What the worker tells of a task under way, to Flower too: its arguments as they may be shown."""
        return super().info(safe=True)


def install_transport() -> None:
    """Use these for every channel of this process, whatever the scheme of its URL; a transport would need its own."""
    channel: Any = redis.Channel
    channel.QoS = QoS
    channel._brpop_read = guarded(channel._brpop_read)  # noqa: SLF001 (what all messages come by)
    channel._receive = guarded(channel._receive)  # noqa: SLF001 (and all commands)
    queues: Any = pyamqp.Channel
    queues.basic_consume = guarded_consume(queues.basic_consume)
    app.Task.Request = Request
    # 28 exchanges and as many queues of RabbitMQ, for messages that are to come later: none of ours is.
    delayed: Any = DelayedDelivery
    delayed.include_if = lambda *_: False
    # Acknowledged, one that cannot be decoded would look like one that was done.
    consumer: Any = Consumer
    consumer.on_decode_error = lambda self, message, error: self.on_invalid_task(None, message, error)
