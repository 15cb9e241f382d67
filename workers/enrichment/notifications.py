"""Waking those who wait for enrichment jobs: one connection listens for all threads of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import psycopg
from sqlalchemy.engine import make_url

from pipeline.database.engine import Database, TimedConnection
from pipeline.errors import LarderError
from pipeline.ledger import jobs

POLL_SECONDS = 1.0
"""A notification may be lost, with its connection or in a pooler; looking once in a while finds what it told."""
READY_SECONDS = 2.0


class JobNotifications:
    """Sets an event when a job has ended; starts its thread with the first waiter."""

    def __init__(
        self, database: Database, tenant: UUID, url: str, *, patience: float = 5.0, poll: float = POLL_SECONDS
    ) -> None:
        """`patience` is how many seconds the server may take for an answer when it is connected to."""
        self._database = database
        self._tenant = tenant
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._patience = patience
        self._poll = poll
        self._lock = threading.Lock()
        self._waiting: dict[UUID, list[threading.Event]] = {}
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, job_id: UUID) -> Iterator[threading.Event]:
        """An event that is set soon after the job has ended; look at the job once before waiting for it."""
        ended = threading.Event()
        with self._lock:
            self._waiting.setdefault(job_id, []).append(ended)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="larder-notifications", daemon=True)
                self._thread.start()
        self._ready.wait(READY_SECONDS)
        try:
            yield ended
        finally:
            with self._lock:
                self._waiting[job_id].remove(ended)
                if not self._waiting[job_id]:
                    del self._waiting[job_id]

    def close(self) -> None:
        """End the thread; whoever still waits is woken a last time."""
        self._closed.set()
        for job_id in list(self._waiting):
            self._wake(job_id)
        if self._thread is not None:
            self._thread.join(2 * self._poll + 1)

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(psycopg.Error):
                self._listen()
            self._look()
            self._closed.wait(self._poll)

    def _listen(self) -> None:
        with TimedConnection.opened(
            self._patience, self._url, autocommit=True, application_name="larder-notifications"
        ) as connection:
            connection.execute(f"listen {jobs.CHANNEL}")
            self._ready.set()
            while not self._closed.is_set():
                for notification in connection.notifies(timeout=self._poll):
                    with suppress(ValueError):
                        self._wake(UUID(notification.payload))
                    if self._closed.is_set():
                        return
                self._look()

    def _wake(self, job_id: UUID) -> None:
        with self._lock:
            for event in self._waiting.get(job_id, ()):
                event.set()

    def _look(self) -> None:
        """Ask the database which of the jobs have ended meanwhile."""
        if waiting := list(self._waiting):
            with suppress(LarderError):
                with self._database.tenant(self._tenant) as connection:
                    ended = jobs.ended(connection, waiting)
                for job_id in ended:
                    self._wake(job_id)
