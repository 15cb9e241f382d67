"""Workers that a command needs: being restarted, or its own for its length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired

from pipeline.documents import Json
from pipeline.errors import LarderError, StoreUnavailable
from pipeline.ledger import overview
from workers.monitoring.liveness import DEAF_SECONDS
from workers.queue import broker
from workers.queue.celeryconfig import ENRICHING, INDEXING
from workers.runtime import Runtime

UNSERVED_SECONDS = 60.0
"""Seconds in which a worker that is being restarted is back."""
RESTART_POLL_SECONDS = 0.5
WORK_IS_KEPT = "it is kept and goes on by itself when the broker is back: larder doctor, larder status"


def broker_lost(why: str, fix: str = WORK_IS_KEPT) -> StoreUnavailable:
    """Error for a command that would wait in vain."""
    return StoreUnavailable(f"the broker {why}, so no worker gets this work", fix=fix)


def served_queues(workers: Sequence[Json]) -> set[str]:
    """Queues that living workers serve; `workers` are those of the status."""
    return {queue for w in workers if w["age_seconds"] <= DEAF_SECONDS for queue in w["queues"]}


def await_restarted(runtime: Runtime, tell: Callable[[str], object]) -> None:
    """Wait for workers that ended a moment ago, on servers of one's own: they are perhaps being restarted."""
    from workers.local.embedded.locating import uses_embedded

    announced = False
    while not uses_embedded(runtime.settings):
        with runtime.database.control() as connection:
            missing = overview.unserved(connection, INDEXING, silent=DEAF_SECONDS)
        if not missing or any((s or math.inf) > UNSERVED_SECONDS for s in missing.values()):
            return
        if not announced:
            tell(
                f"no worker serves {', '.join(sorted(missing))} at this moment: waiting for one to come back"
            )
            announced = True
        time.sleep(RESTART_POLL_SECONDS)


class QueuesUnserved(LarderError):
    """No worker serves what a command needs, and it cannot start its own here."""


def unserved(runtime: Runtime, queues: Sequence[str] = INDEXING) -> list[str]:
    """Those of the queues that no living worker serves."""
    with runtime.database.control() as connection:
        return sorted(set(queues) - served_queues(overview.workers(connection)))


@contextmanager
def temporary_workers(runtime: Runtime, queues: Sequence[str] = INDEXING) -> Iterator[bool]:
    """Workers for the length of one command, if none run on this machine's embedded servers."""
    lacking = unserved(runtime, queues)
    if not lacking:
        yield False
        return
    from workers.local import detached, supervisor
    from workers.local.embedded.locating import uses_embedded

    is_embedded = uses_embedded(runtime.settings)
    # Workers for Step 4 look into the ledger, those for indexing do not.
    needed = not is_embedded or set(lacking) - set(ENRICHING)
    if needed and (why := broker.connect_problem(runtime.addresses.broker)):
        raise broker_lost(why, broker.advice_on(why))
    if not is_embedded:
        started = ", ".join(f"`larder worker {queue}`" for queue in lacking)
        raise QueuesUnserved(f"no worker serves {', '.join(lacking)}", fix=f"start {started}")
    lender = detached.start_temporary_workers(runtime.settings, queues)
    try:
        yield True
    finally:
        lender.terminate()
        try:
            with suppress(TimeoutExpired):
                lender.communicate(timeout=supervisor.STOP_SECONDS + 10)
        finally:  # also at a second Ctrl-C: they must not outlive this process
            if lender.poll() is None:
                supervisor.kill_tree(lender.pid)
