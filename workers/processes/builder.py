"""The thread of a control worker's first process that builds indexes: it holds up no task, and needs no message."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from celery import bootsteps

from pipeline.errors import LarderError
from workers import runtime
from workers.control import maintenance
from workers.runtime import Runtime

LOOK_SECONDS = 1.0


class IndexBuilder:
    """Looks now and then whether an index is to be built; of several in a fleet, one is at each index."""

    def __init__(self, parts: Runtime, *, look: float = LOOK_SECONDS) -> None:
        self._parts = parts
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="larder-index-builder", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing any more; what is being built ends with this process, and is begun anew by the next one."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._look):
            with suppress(LarderError):  # the database is away
                maintenance.build_asked(self._parts)


class Building(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker build beside its tasks."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - the name and type Celery asks for

    def create(self, _parent: Any) -> IndexBuilder:
        """With connections of its own: a child that is forked while it works must not wait for a lock of theirs."""
        parts = runtime.current()
        return IndexBuilder(Runtime(parts.settings, parts.addresses))
