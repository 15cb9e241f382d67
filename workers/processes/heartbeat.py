"""Signs of life: a file touched every second by the process that consumes, and a row every ten seconds.

A worker can be alive and deaf (its consumer gone while a task runs); only the consumer's own timer tells. It writes
the file and nothing else: a database that is slow or frozen must not keep it from listening. One that stays deaf ends
itself: containers, unlike `larder up`, are started again when they end, not when they are unwell.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.beat import ScheduleEntry, Scheduler
from celery.signals import task_received
from celery.worker import state

from pipeline.database.engine import Database, database_id
from pipeline.errors import LarderError
from pipeline.ledger import upkeep
from workers import runtime
from workers.local.supervisor import kill_tree
from workers.monitoring.liveness import DEAF_SECONDS, touch
from workers.processes.broker_outage import RETURN_SECONDS
from workers.queue import broker, dispatch

FILE_SECONDS = 1.0
LOOK_SECONDS = 5.0
ROW_SECONDS = 10.0
ANSWER_TIMEOUT = 5.0
"""Seconds in which the database must give each answer; the next row is soon due anyway."""
DEAF_LOOKS = int(2 * DEAF_SECONDS / LOOK_SECONDS)
"""Looks in a row at a deaf worker that end it: a supervisor that reads heartbeats is faster. Looks and not seconds,
because a process that was stopped for a while has not listened either."""

logger = logging.getLogger(__name__)


def end_process(why: str) -> None:
    """End this process and its children at once; what they were at is under way in the ledger, and done again."""
    logger.critical("this worker does not respond and ends itself: %s", why)
    faulthandler.dump_traceback()  # where each thread stands tells how it came to this
    kill_tree(os.getpid())
    os._exit(1)  # the first process of a container cannot be killed from inside


class Presence:
    """The heartbeat file and the database row of one worker, and the end of a worker that is deaf."""

    def __init__(
        self,
        name: str,
        queues: str,
        folder: Path,
        addresses: runtime.Addresses,
        *,
        look: float = LOOK_SECONDS,
        starves: Callable[[], bool] = lambda: False,
        die: Callable[[str], None] = end_process,
    ) -> None:
        """`name` is the host's name in Celery, `queues` those it serves, with commas; nothing is connected yet.

        `starves` is asked at every look whether messages wait for the worker in vain; `die` is called with the reason
        when it has been deaf for `DEAF_LOOKS` looks.
        """
        self._name = name
        self._queues = queues
        self._folder = folder
        self._broker_url = addresses.broker
        self._database = Database(
            addresses.database, addresses.control, pool_size=1, answer_timeout=ANSWER_TIMEOUT
        )
        self._look = look
        self._starves = starves
        self._die = die
        self._deaf_looks = 0
        self._database_id = ""
        self._timer: Any = None
        self._consumer_ran_at = self._row_written_at = float("-inf")
        self._excused_until = float("-inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="larder-presence", daemon=True)

    def start(self) -> None:
        """Write file and row, then start the thread, which is idle while the worker forks its children."""
        self.consumer_ran()
        self._show()
        self._thread.start()

    def listen(self, timer: Any) -> None:
        """Put `consumer_ran` on the consumer's timer; again after each lost connection, when Celery clears it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer.call_repeatedly(FILE_SECONDS, self.consumer_ran)

    def consumer_ran(self) -> None:
        """Note that the consumer's timer ran just now."""
        self._consumer_ran_at = time.monotonic()
        touch(self._folder, self._name.split("@")[0])

    def stop(self) -> None:
        """Note the end, so that the worker is not reported as silent and its queue as served."""
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        self._thread.join(2 * ANSWER_TIMEOUT)
        with suppress(LarderError), self._database.control() as connection:
            upkeep.record_worker_end(connection, self._name)
        self._database.close()

    def _run(self) -> None:
        while not self._over.wait(self._look):
            why = self._deafness()
            self._deaf_looks = self._deaf_looks + 1 if why else 0
            if self._deaf_looks >= DEAF_LOOKS:
                self._die(why)

    def _deafness(self) -> str:
        """Refresh the row; returns why the worker counts as deaf, empty if it does not."""
        now = time.monotonic()
        if now - self._consumer_ran_at <= self._look:
            self._show()
            return "messages wait, and it takes none" if self._starves() else ""
        # While the broker is away, and while Celery may still pause before it connects again, the timer stands still:
        # there is nothing to hear, and a restart would mend nothing.
        if broker.connect_problem(self._broker_url):
            self._excused_until = now + max(RETURN_SECONDS, DEAF_SECONDS)
        if now < self._excused_until:
            with suppress(OSError):  # the timer may write at the same moment
                touch(self._folder, self._name.split("@")[0])
            self._show()
            return ""
        # Neither the file nor the row shall say anything else. One that has not begun to listen is only slow.
        return "" if self._timer is None else "its consumer stands still, and the broker is there"

    def _show(self) -> None:
        """Write the row, if it is time; a database that is away is no reason to stop."""
        if time.monotonic() - self._row_written_at < ROW_SECONDS:
            return
        self._row_written_at = time.monotonic()
        with suppress(LarderError), self._database.control() as connection:
            host, pid = socket.gethostname(), os.getpid()
            upkeep.record_worker(connection, self._name, queues=self._queues, host=host, pid=pid)
            self._database_id = self._database_id or database_id(connection)
        if self._database_id and (other := broker.claim(self._broker_url, self._database_id)):
            logger.error("%s; %s", *broker.shared_with(other))


class Heartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Celery bootstep that starts and stops the `Presence` of a worker."""

    requires = {"celery.worker.components:Timer"}  # noqa: RUF012 - the name and type Celery asks for

    def create(self, parent: Any) -> Presence:
        """The worker's presence, kept as `parent.presence` for `Listening`."""
        current = runtime.current()

        def served() -> list[str]:
            # Without the queues of each priority that RabbitMQ has besides.
            return sorted(name for name in parent.app.amqp.queues.consume_from if "." not in name)

        starves = Starvation(current.addresses.broker, served)
        queues, folder = ",".join(served()), current.heartbeat_folder
        presence = Presence(parent.hostname, queues, folder, current.addresses, starves=starves)
        parent.presence = presence
        return presence


class Listening(bootsteps.StartStopStep):  # type: ignore[misc]
    """Celery bootstep that puts the heartbeat on the consumer's timer, each time when the consumer starts.

    Its end is not told here: while the last tasks of a worker end, the timer still runs.
    """

    requires = {"celery.worker.consumer.tasks:Tasks"}  # noqa: RUF012 - the name and type Celery asks for

    def start(self, parent: Any) -> None:
        """Put the heartbeat on the timer of this start."""
        parent.controller.presence.listen(parent.timer)


class TickScheduler(Scheduler):  # type: ignore[misc]
    """Beat's scheduler without a schedule file: missed ticks need not be remembered."""

    producer = None
    """Celery's own would wait for a broker that is away, half a minute at a time and long after it is back."""

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Tick, and give a sign of life."""
        touch(runtime.current().heartbeat_folder, "beat")
        return super().tick(*args, **kwargs)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send what is due; what the broker does not take is missed, and the next tick makes up for it."""
        del producer
        named = {**entry.kwargs, "sent": time.time()}  # where the trace of what it sets off begins
        dispatch.send(entry.task, *entry.args, named=named, queue=entry.options.get("queue"))


class Starvation:
    """Check for a worker that takes no messages while some wait; called now and then.

    A consumer may have lost its place at the broker and not know it: its timer runs, its connection is answered, and no
    message comes.
    """

    def __init__(self, broker_url: str, queues: Callable[[], Sequence[str]]) -> None:
        """`queues` are those that the worker serves now: an operator may take some from it."""
        self._broker_url = broker_url
        self._queues = queues
        self._received = True
        # A function of its own: of the methods of one class the signal keeps the first.
        task_received.connect(lambda **_: self._note(), weak=False)

    def __call__(self) -> bool:
        """True if messages wait, none has come since the last call, and none is being worked on.

        False for a broker that is away: it has no messages to give.
        """
        received, self._received = self._received, False
        if received or state.reserved_requests or state.active_requests:
            return False
        return any((broker.lengths(self._broker_url, self._queues()) or {}).values())

    def _note(self) -> None:
        self._received = True
