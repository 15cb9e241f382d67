"""Signs of life: a file touched every second by the process that consumes, and a row every ten seconds.

A worker can be alive and deaf (its consumer gone while a task runs); only the consumer's own timer tells.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from celery import bootsteps
from celery.beat import Scheduler
from sqlalchemy import text

from pipeline.errors import LarderError
from workers import runtime
from workers.liveness import touch

FILE_SECONDS = 1.0
ROW_SECONDS = 10.0


def note_worker(name: str, queues: str) -> None:
    """Tell the database that this worker lives; a database that is away is no reason to stop."""
    with suppress(LarderError), runtime.current().database.control() as connection:
        connection.execute(
            text("""
                insert into worker (name, queues, host, pid) values (:name, :queues, :host, :pid)
                on conflict (name) do update set seen_at = now(), pid = excluded.pid, queues = excluded.queues,
                    started_at = case when worker.pid = excluded.pid then worker.started_at else now() end"""),
            {"name": name, "queues": queues, "host": socket.gethostname(), "pid": os.getpid()},
        )


class Heartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Touches the file from the worker's own timer, the one that also drives its consumer."""

    requires = {"celery.worker.components:Timer"}  # noqa: RUF012 - the name and type Celery asks for

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.timers: list[Any] = []

    def start(self, parent: Any) -> None:
        """Begin to beat."""
        host = parent.hostname
        queues = ",".join(sorted(parent.app.amqp.queues.consume_from))
        folder = runtime.current().heartbeat_folder
        name = host.split("@")[0]
        touch(folder, name)
        note_worker(host, queues)
        self.timers = [
            parent.timer.call_repeatedly(FILE_SECONDS, touch, (folder, name)),
            parent.timer.call_repeatedly(ROW_SECONDS, note_worker, (host, queues)),
        ]

    def stop(self, parent: Any) -> None:
        """Stop beating, and be no longer listed: an ended worker is not a silent one."""
        for timer in self.timers:
            timer.cancel()
        self.timers = []
        with suppress(LarderError), runtime.current().database.control() as connection:
            connection.execute(text("delete from worker where name = :name"), {"name": parent.hostname})

    def terminate(self, parent: Any) -> None:
        """What a soft or cold shutdown calls instead of `stop`."""
        self.stop(parent)


class TickScheduler(Scheduler):  # type: ignore[misc]
    """Beat's clock without a schedule file: all it keeps is a tick, and missed ticks need no memory."""

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Tick, and give a sign of life."""
        touch(runtime.current().heartbeat_folder, "beat")
        return super().tick(*args, **kwargs)
