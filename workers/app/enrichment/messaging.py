"""Messages about enrichment jobs: publishing one without Celery, and waking who waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
from sqlalchemy.engine import make_url

from pipeline.database.engine import Database
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ledger import jobs
from pipeline.ledger.jobs import ENRICH
from workers.queue import broker, rabbit
from workers.queue.rest import Rest

POLL_SECONDS = 1.0
"""Seconds between two looks at jobs: a notification may be lost, with its connection or in a pooler."""


@dataclass
class _Watched:
    """A job that somebody waits for."""

    tenant: UUID
    wakes: list[Callable[[], object]] = field(default_factory=list)
    state: str | None = None
    """State that was seen last."""


class JobNotifications:
    """Wakes waiters of jobs: one thread and one connection for all of a process, from the first waiter on."""

    def __init__(
        self,
        database: Database,
        url: str,
        *,
        answer_timeout: float = 5.0,
        poll: float = POLL_SECONDS,
    ) -> None:
        """`answer_timeout` is how many seconds the server may take for an answer when it is connected to."""
        self._database = database
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._answer_timeout = answer_timeout
        self._poll = poll
        self._lock = threading.Lock()
        self._waiting: dict[UUID, _Watched] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, tenant: UUID, job_ids: Iterable[UUID], wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` in a thread when one of the jobs ends, and within a second after it begins.

        It is called at other times, too, so look what has happened; and look once before the first wait.
        """
        watched = [*job_ids]
        with self._lock:
            for job_id in watched:
                self._waiting.setdefault(job_id, _Watched(tenant)).wakes.append(wake)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="larder-notifications", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                for job_id in watched:
                    self._waiting[job_id].wakes.remove(wake)
                    if not self._waiting[job_id].wakes:
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
            while not self._closed.is_set():
                self._look()
                for notification in connection.notifies(timeout=self._poll):
                    with suppress(ValueError):
                        self._wake(UUID(notification.payload))
                    if self._closed.is_set():
                        return

    def _wake(self, job_id: UUID, state: str | None = None) -> None:
        with self._lock:
            watched = self._waiting.get(job_id)
            if watched is not None and (state is None or state != watched.state):
                watched.state = state or watched.state
                for wake in watched.wakes:
                    with suppress(RuntimeError):  # its event loop is closed; the others are still to be woken
                        wake()

    def _look(self) -> None:
        """Ask the database how the jobs stand: a question for each tenant, however many wait."""
        by_tenant: dict[UUID, list[UUID]] = {}
        with self._lock:
            for job_id, watched in self._waiting.items():
                by_tenant.setdefault(watched.tenant, []).append(job_id)
        for tenant, job_ids in by_tenant.items():
            with suppress(LarderError):
                with self._database.tenant(tenant) as connection:
                    states = jobs.states(connection, job_ids)
                for job_id in job_ids:
                    self._wake(job_id, states.get(job_id, "gone"))


QUEUE = "enrich"
_SCHEMES = ("redis://", "rediss://", "redis+socket://", "amqp://", "amqps://")
SECONDS = 3.0
"""Seconds to send a message: the pump sends what could not be sent."""
OPTIONS = {
    "socket_timeout": SECONDS,
    "socket_connect_timeout": SECONDS,
    **rabbit.transport_options(SECONDS),
    # Left to itself it would try for 12 seconds.
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}


class JobPublisher:
    """One connection to the broker, opened with the first message, for all threads of a process."""

    def __init__(self, broker_url: str) -> None:
        """Check the address; nothing is connected yet.

        Raises:
            ConfigurationError: it is no address of a Valkey, Redis or RabbitMQ; another broker would take messages
                that no worker hears of.
        """
        if not broker_url.startswith(_SCHEMES):
            # The address is not quoted: it may hold a password.
            raise ConfigurationError(
                "broker_url is no address of a Valkey, Redis or RabbitMQ",
                fix="write redis://:PASSWORD@HOST:6379/0",
            )
        self._url = broker_url
        self._lock = threading.Lock()
        self._connection: Any = None
        self._rest = Rest()

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
            if self._rest.holds():
                return False
            # A connection that lay idle may have been closed by the server: that alone deserves a second try.
            for _ in range(1 if self._connection is None else 2):
                try:
                    self._send(message)
                except Exception:  # noqa: BLE001 (kombu's errors, the client's, the socket's: nobody can list them)
                    self._drop()
                else:
                    return True
            self._rest.begin()
        return False

    def close(self) -> None:
        """Give the connection back; a later message connects anew."""
        with self._lock:
            self._drop()

    def _send(self, message: Mapping[str, Any]) -> None:
        from kombu.connection import Connection

        if self._connection is None:
            self._connection = cast("Any", Connection)(  # kombu is not annotated
                rabbit.address_of(self._url),
                transport_options=OPTIONS,
                connect_timeout=SECONDS,
                ssl=broker.tls_of(self._url),
            )
        # To the queue itself and not by an exchange.
        queue = broker.queue_for(QUEUE, self._url, message["priority"])
        declare = [rabbit.queue_of(queue)] if rabbit.is_rabbit(self._url) else []
        self._connection.Producer(auto_declare=False).publish(
            **message, routing_key=queue, exchange="", serializer="json", retry=False, declare=declare
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                connection.release()
