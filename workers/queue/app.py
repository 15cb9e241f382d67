"""The Celery app; importing it does nothing, `configure` gives it a broker."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.transport import redis, virtual

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
        try:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]
        except Exception:
            _virtual.ack(self, delivery_tag)
            raise


def install_qos() -> None:
    """Use it for every channel of this process, whatever the scheme of its URL: a transport of ours would need one."""
    redis.Channel.QoS = QoS
