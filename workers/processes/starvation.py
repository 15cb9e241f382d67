"""Whether messages wait for this worker while it has nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery.signals import task_received
from celery.worker import state

from workers.queue import broker


class Neglect:
    """Asked now and then, it says whether messages waited in vain since it was last asked.

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
