"""The thread that keeps a worker of Step 4 in touch with the ledger, also while the broker is away."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace

from pipeline.errors import LarderError
from pipeline.ledger import jobs
from workers.app.enrichment import job
from workers.app.ingestion import steps
from workers.queue import broker
from workers.runtime import Runtime

LOOK_SECONDS = 1.0
ANNOUNCE_SECONDS = 60.0
"""Seconds between two announcements of how answers are made: tenants may be new, and older workers may have gone."""
RETURN_SECONDS = 40.0
"""Seconds that Celery may still pause before it connects once the broker is back."""

logger = logging.getLogger(__name__)


class LedgerPoller:
    """Answers jobs found in the ledger while no messages come, and writes `answer_version` there.

    Beside others of its kind, and beside messages, it does no harm: claims decide.
    """

    def __init__(self, runtime: Runtime, *, look: float = LOOK_SECONDS, back: float = RETURN_SECONDS) -> None:
        self._runtime = runtime
        self._look = look
        self._back = back
        self._needed_until = self._announce_at = float("-inf")
        self._over = threading.Event()
        self._broker = broker.client_of(runtime.addresses.broker)
        self._thread = threading.Thread(target=self._run, name="larder-ledger-poller", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, after the job it may be working on."""
        self._over.set()
        self._thread.join()
        self._broker.close()

    def _run(self) -> None:
        while not self._over.wait(self._look):
            # Now and then; at every look until the database is there to be told.
            if time.monotonic() >= self._announce_at and job.record_answer_version(self._runtime):
                self._announce_at = time.monotonic() + ANNOUNCE_SECONDS
            if self._needed():
                while not self._over.is_set() and self._answer_one():
                    pass

    def _needed(self) -> bool:
        """True while the broker is away, and for a while after it."""
        now = time.monotonic()
        try:
            self._broker.ping()
        except broker.AWAY:
            if now >= self._needed_until:
                logger.warning("the broker is away: enrichments are taken from the ledger")
            self._needed_until = now + self._back
        return now < self._needed_until

    def _answer_one(self) -> bool:
        """Answer the job that the pump would send a message about next; False if there is none, or no database."""
        with suppress(LarderError):
            with self._runtime.database.control() as connection:
                due = jobs.pump_once(connection, replace(steps.job_limits(self._runtime.rag), batch=1))
            for one in due:
                job.run(self._runtime, one.tenant_id, one.id)
            return bool(due)
        return False
