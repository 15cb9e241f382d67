"""The Celery app; importing it does nothing, `configure` gives it a broker."""

from __future__ import annotations

from typing import Any

from celery import Celery

from workers.queue.celeryconfig import celery_settings
from workers.settings.queue import QueueSettings

app: Any = Celery("larder", include=["workers.tasks"])


def configure(queue: QueueSettings, broker_url: str, *, hurried: bool = False) -> Any:
    """Point the app at a broker, with our queues, limits and ticks; returns the app.

    `hurried` is for commands, which only send: a person waits for them, and the pump sends what they could not.
    """
    app.conf.update(celery_settings(queue, broker_url, hurried=hurried))
    return app
