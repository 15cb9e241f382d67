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


class Bell:
    """One connection to the broker, opened at the first ring, for all threads of a process."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url
        self._lock = threading.Lock()
        self._connection: Any = None
        self._resting_until = 0.0

    def ring(
        self, tenant: UUID, job_id: UUID, *, priority: int, expires: float | None, task: str = ENRICH
    ) -> bool:
        """Tell the workers of a job; False if the broker does not take the message."""
        with self._lock:
            if time.monotonic() < self._resting_until:
                return False
            # A connection that lay idle may have been closed by the server: that alone deserves a second try.
            for _ in range(1 if self._connection is None else 2):
                try:
                    self._publish(task, [str(tenant), str(job_id)], priority, expires)
                except Exception:  # noqa: BLE001 (kombu's errors, the client's, the socket's: nobody can list them)
                    self._drop()
                else:
                    return True
            self._resting_until = time.monotonic() + REST_SECONDS
        return False

    def close(self) -> None:
        """Give the connection back; a later ring connects anew."""
        with self._lock:
            self._drop()

    def _publish(self, task: str, arguments: list[str], priority: int, expires: float | None) -> None:
        from kombu.connection import Connection
        from kombu.messaging import Producer

        connect, make = cast("Any", Connection), cast("Any", Producer)  # kombu is not annotated

        if self._connection is None:
            options = {
                "socket_timeout": SECONDS,
                "socket_connect_timeout": SECONDS,
                # Left to itself it would try for 12 seconds.
                "max_retries": 0,
                "interval_start": 0,
                "interval_step": 0,
                "interval_max": 0,
            }
            self._connection = connect(self._url, transport_options=options, connect_timeout=SECONDS)
        producer: Any = make(self._connection.default_channel)
        message_id = str(uuid4())
        # The second version of Celery's message protocol, to the queue itself and not by an exchange.
        producer.publish(
            (arguments, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}),
            routing_key=QUEUE,
            exchange="",
            serializer="json",
            priority=priority,
            correlation_id=message_id,
            delivery_mode=2,
            headers={
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
                "expires": None
                if expires is None
                else (datetime.now(UTC) + timedelta(seconds=expires)).isoformat(),
            },
            retry=False,
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                connection.release()
