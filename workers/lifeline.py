"""Enrichments while the broker is away: workers look into the ledger themselves instead of waiting for messages."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.errors import LarderError
from pipeline.ledger import jobs
from workers import enriching
from workers.runtime import Runtime

LOOK_SECONDS = 1.0
RETURN_SECONDS = 40.0
"""So long after the broker is back Celery may still pause before it connects."""

logger = logging.getLogger(__name__)


class Lifeline:
    """A thread of a worker process. Beside others of its kind, and beside messages, it does no harm: claims decide."""

    def __init__(self, parts: Runtime, *, look: float = LOOK_SECONDS, back: float = RETURN_SECONDS) -> None:
        self._parts = parts
        self._look = look
        self._back = back
        self._needed_until = float("-inf")
        self._over = threading.Event()
        # Kombu writes the address of a socket differently from the client.
        address = parts.addresses.broker.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
        self._broker = redis.Redis.from_url(
            address, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
        )
        self._thread = threading.Thread(target=self._run, name="larder-lifeline", daemon=True)

    def start(self) -> None:
        """Begin to look, in this process."""
        self._thread.start()

    def close(self) -> None:
        """End it, after the job it may be working on."""
        self._over.set()
        self._thread.join()
        self._broker.close()

    def _run(self) -> None:
        while not self._over.wait(self._look):
            if self._needed():
                while not self._over.is_set() and self._answer_one():
                    pass

    def _needed(self) -> bool:
        """True while the broker is away, and for a while after it."""
        now = time.monotonic()
        try:
            self._broker.ping()
        except (redis.RedisError, OSError):
            if now >= self._needed_until:
                logger.warning("the broker is away: enrichments are taken from the ledger")
            self._needed_until = now + self._back
        return now < self._needed_until

    def _answer_one(self) -> bool:
        """Answer what the pump would send a message about next; False if there is nothing, or no database."""
        with suppress(LarderError):
            with self._parts.database.control() as connection:
                due = jobs.stroke(connection, replace(self._parts.job_limits, batch=1))
            for one in due:
                enriching.run(self._parts, one.tenant_id, one.id)
            return bool(due)
        return False
