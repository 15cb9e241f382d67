"""Publishing the message of a job without Celery, for pipelines that do not have it loaded."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

from pipeline.ledger.jobs import ENRICH

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

    def publish(
        self, tenant: UUID, job_id: UUID, *, priority: int, expires: float, task: str = ENRICH
    ) -> bool:
        """Send the workers a message of a job, which they drop `expires` seconds later.

        False if the broker does not take the message.
        """
        message = _message(task, [str(tenant), str(job_id)], expires)
        with self._lock:
            if time.monotonic() < self._resting_until:
                return False
            # A connection that lay idle may have been closed by the server: that alone deserves a second try.
            for _ in range(1 if self._connection is None else 2):
                try:
                    self._send(message, priority)
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

    def _send(self, message: dict[str, Any], priority: int) -> None:
        from kombu.connection import Connection

        if self._connection is None:
            self._connection = cast("Any", Connection)(  # kombu is not annotated
                self._url, transport_options=OPTIONS, connect_timeout=SECONDS
            )
        # To the queue itself and not by an exchange.
        self._connection.Producer(auto_declare=False).publish(
            **message, routing_key=QUEUE, exchange="", serializer="json", priority=priority, retry=False
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                connection.release()


def _message(task: str, arguments: list[str], expires: float) -> dict[str, Any]:
    """The second version of Celery's message protocol."""
    message_id = str(uuid4())
    headers = {
        "lang": "py",
        "task": task,
        "id": message_id,
        "root_id": message_id,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": repr(tuple(arguments)),
        "kwargsrepr": "{}",
        "origin": f"client@{socket.gethostname()}",
        "ignore_result": True,
        "eta": None,
        "expires": (datetime.now(UTC) + timedelta(seconds=expires)).isoformat(),
    }
    body: Any = (arguments, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    return {"body": body, "headers": headers, "correlation_id": message_id, "delivery_mode": 2}
