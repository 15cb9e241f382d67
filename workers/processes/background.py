"""Threads of a control worker's first process beside its tasks: they hold up no task and need no message."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps

from pipeline.errors import LarderError
from workers import runtime
from workers.app.ingestion import maintenance
from workers.app.ingestion.maintenance import wait_for_request
from workers.app.status import recent, watcher
from workers.monitoring import metrics
from workers.processes.alerts import Watcher
from workers.runtime import Runtime

BUILD_SECONDS = 1.0
ENDING_SECONDS = 2.0
"""Seconds that work under way may take before its connections are closed: enough for a look, not to build an index."""

logger = logging.getLogger(__name__)


class Loop:
    """A thread that does the same thing every few seconds; what fails is tried again the next time."""

    def __init__(
        self,
        name: str,
        seconds: float,
        do: Callable[[], object],
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """`wait` may end sooner than after the seconds it is given."""
        self._seconds = seconds
        self._do = do
        self._over = threading.Event()
        self._waits = threading.Event()
        self._waits.set()
        self._wait = wait or self._over.wait
        self._thread = threading.Thread(target=self._run, name=f"larder-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits first."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; work that takes longer ends with this process."""
        self._over.set()
        self._waits.wait(ENDING_SECONDS)

    def _run(self) -> None:
        while True:
            self._waits.set()
            self._wait(self._seconds)
            self._waits.clear()
            if self._over.is_set():
                self._waits.set()
                return
            try:
                self._do()
            except LarderError:
                pass  # the database is away, which others tell
            except Exception as error:  # noqa: BLE001 (the next time it may work, and nobody else would try)
                # Without the error's words, which may quote anything.
                logger.warning("%s failed with %s", self._thread.name, type(error).__name__)


class Loops:
    """The loops of a process, with connections of their own: a child forked meanwhile must wait for no lock of theirs.

    Of several in a fleet, one is at each index.
    """

    def __init__(self, runtime: Runtime) -> None:
        builder, watching, monitoring = (
            Runtime(runtime.settings, runtime.addresses),
            watcher(runtime),
            runtime.rag.monitoring,
        )
        self._runtimes = (builder, watching)
        self._every = [
            Loop("builder", BUILD_SECONDS, partial(maintenance.build_requested, builder), wait_for_request)
        ]
        if monitoring.alerts.enabled:
            look = Watcher(watching, builder).look
            self._every.append(Loop("alerts", monitoring.health_check.interval, look))
        if monitoring.metrics.enabled and monitoring.metrics.export_path:
            folder = runtime.settings.resolve(monitoring.metrics.export_path)

            def export() -> None:
                metrics.export(folder, metrics.exposition(runtime.metrics_folder, recent(watching)))

            self._every.append(Loop("metrics", monitoring.metrics.export_interval, export))

    def start(self) -> None:
        """Start all threads."""
        for loop in self._every:
            loop.start()

    def stop(self) -> None:
        """Stop all threads, and close their connections."""
        for loop in self._every:
            loop.stop()
        for one in self._runtimes:
            one.close()


class Background(bootsteps.StartStopStep):  # type: ignore[misc]
    """Celery bootstep that runs `Loops` in a worker."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - the name and type Celery asks for

    def create(self, _parent: Any) -> Loops:
        """Celery starts and stops what this returns."""
        return Loops(runtime.current())
