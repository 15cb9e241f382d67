"""Messages about enrichment jobs: publishing one without Celery, and waking who waits for its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
from sqlalchemy.engine import make_url

from pipeline.database.engine import Database, TimedConnection
from pipeline.errors import LarderError
from pipeline.ledger import jobs
from pipeline.ledger.jobs import ENRICH
from workers.queue import broker

POLL_SECONDS = 1.0
"""A notification may be lost, with its connection or in a pooler; looking once in a while finds what it told."""
READY_SECONDS = 2.0


class JobNotifications:
    """Sets an event when a job has ended; starts its thread with the first waiter."""

    def __init__(
        self,
        database: Database,
        tenant: UUID,
        url: str,
        *,
        answer_timeout: float = 5.0,
        poll: float = POLL_SECONDS,
    ) -> None:
        """`answer_timeout` is how many seconds the server may take for an answer when it is connected to."""
        self._database = database
        self._tenant = tenant
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._answer_timeout = answer_timeout
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
            self._answer_timeout, self._url, autocommit=True, application_name="larder-notifications"
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


QUEUE = "enrich"
SECONDS = 3.0
"""Longer is not worth waiting for: the pump sends what could not be sent."""
REST_SECONDS = 5.0
"""A broker that is away is left alone for a while, so that many askers do not wait for it one by one."""
OPTIONS = {
    "socket_timeout": SECONDS,
    "socket_connect_timeout": SECONDS,
    # Left to itself it would try for 12 seconds.
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}


class JobPublisher:
    """One connection to the broker, opened with the first message, for all threads of a process."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url
        self._lock = threading.Lock()
        self._connection: Any = None
        self._resting_until = 0.0

    def publish(self, tenant: UUID, job_id: UUID, *, priority: int, task: str = ENRICH) -> bool:
        """Send the workers a message of a job; False if the broker does not take it."""
        message_id, arguments = str(uuid4()), (str(tenant), str(job_id))
        message = {  # the second version of Celery's protocol, as far as a worker reads it
            "headers": {
                "lang": "py",
                "task": task,
                "id": message_id,
                "root_id": message_id,
                "argsrepr": repr(arguments),
                "ignore_result": True,
                **broker.request_header(),
            },
            "body": (arguments, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}),
            "correlation_id": message_id,
            "delivery_mode": 2,
            "priority": priority,
        }
        with self._lock:
            if time.monotonic() < self._resting_until:
                return False
            # A connection that lay idle may have been closed by the server: that alone deserves a second try.
            for _ in range(1 if self._connection is None else 2):
                try:
                    self._send(message)
                except Exception:  # noqa: BLE001 (kombu's errors, the client's, the socket's: nobody can list them)
                    self._drop()
                else:
                    return True
            self._resting_until = time.monotonic() + REST_SECONDS
        return False

    def close(self) -> None:
        """Give the connection back; a later message connects anew."""
        with self._lock:
            self._drop()

    def _send(self, message: Mapping[str, Any]) -> None:
        from kombu.connection import Connection

        if self._connection is None:
            self._connection = cast("Any", Connection)(  # kombu is not annotated
                self._url, transport_options=OPTIONS, connect_timeout=SECONDS
            )
        # To the queue itself and not by an exchange.
        self._connection.Producer(auto_declare=False).publish(
            **message, routing_key=QUEUE, exchange="", serializer="json", retry=False
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                connection.release()
