"""Isolation of items for which a service fails: failing batches are divided, and such items are retried later."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from connectors.web.answers import AnswerTooLarge, BadAnswer
from pipeline.documents import Problem
from pipeline.errors import LarderError, pause_after

Key = TypeVar("Key", int, str)
Answer = TypeVar("Answer")

MOST_CULPRITS = 20
"""Most items that one Divider isolates; if more fail, the service itself is at fault."""
MOST_UNPROVEN = 2
"""Most items that are isolated before any other item was answered."""
FIRST_PAUSE, LONGEST_PAUSE = 600, 86_400
"""Seconds before a culprit is retried, doubled with each attempt up to the second value."""
MOST_RETRIES = 500
"""Most culprits stored in a cursor; others are retried by the daily id walk."""
RETRIES_AT_ONCE = 20
"""Most culprits that one sync retries."""


@dataclass(frozen=True, kw_only=True)
class Culprit(Problem):
    """An item for which the service fails on each request."""

    key: str
    """Id to retry: that of the item, or of the page it is attached to."""


def culprit(
    external_id: str, error: LarderError, *, url: str = "", subject: str = "it", key: str = ""
) -> Culprit:
    """The problem of an item whose requests fail with `error`; `subject` is the requested part, for the message."""
    reason = (
        f"{error.message} each time {subject} is requested, but not for other items; it is tried again automatically: "
        "if it persists, open and save the item there"
    )
    return Culprit(external_id=external_id, reason=reason, url=url, key=key or external_id)


def may_be_item_fault(error: LarderError) -> bool:
    """Whether a single item may be the cause of a failed answer, which is still to be proven."""
    status = getattr(error, "status", 0)
    return isinstance(error, AnswerTooLarge) or (isinstance(error, BadAnswer) and not 400 <= status < 500)  # noqa: PLR2004 (4xx)


@dataclass(kw_only=True)
class Divider:
    """Fetches batches of ids, and isolates the ids that make a batch fail.

    A failing batch is requested once more, then in halves: about 16 requests per culprit among 200 ids. A batch whose
    answer is too large is halved at once.
    """

    probe: Callable[[], object]
    """Harmless request of the same kind: if it fails too, the service itself is at fault."""
    at_once: bool = True
    """False: the first failing batch raises its error, so that the source is retried after a pause."""
    _probe_answered: bool = field(default=False, init=False)
    """True once the probe was answered."""
    _items_answered: bool = field(default=False, init=False)
    """True once any items were answered."""
    _culprits: int = field(default=0, init=False)

    def fetch(
        self, ids: Sequence[Key], request: Callable[[list[Key]], Answer]
    ) -> tuple[list[Answer], dict[Key, LarderError]]:
        """The answers in the order of the ids, and the error of each id that fails alone.

        Raises:
            SourceUnavailable: the service itself fails, or a batch fails first and `at_once` is False.
        """
        answers: list[Answer] = []
        failed: dict[Key, LarderError] = {}
        waiting, retried = [list(ids)] if ids else [], False
        while waiting:
            batch = waiting.pop()
            try:
                answers.append(request(batch))
            except LarderError as error:
                if not may_be_item_fault(error):
                    raise
                if isinstance(error, BadAnswer):
                    self._prove(error)
                    if not retried:
                        retried = True
                        waiting.append(batch)
                        continue
                if len(batch) > 1:
                    middle = len(batch) // 2
                    waiting += [batch[middle:], batch[:middle]]
                else:
                    self._count(error)
                    failed[batch[0]] = error
            else:
                self._items_answered = True
        return answers, failed

    def _prove(self, error: LarderError) -> None:
        """Raise the error unless the service answers the probe."""
        if not self.at_once:
            raise error
        if not self._probe_answered:
            try:
                self.probe()
            except LarderError as other:
                if other.transient:  # a refusal is an answer
                    raise
        self._probe_answered = True

    def _count(self, error: LarderError) -> None:
        if isinstance(error, BadAnswer):
            self._culprits += 1
            if self._culprits > (MOST_CULPRITS if self._items_answered else MOST_UNPROVEN):
                raise error


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Attempts on a culprit, and when it is retried."""

    tries: int
    due: int
    """Time of the next attempt in epoch seconds."""


Retries = Mapping[str, Retry]
"""Retries by the id to read; part of a source's cursor."""


def updated_retries(retries: Retries, read: Collection[str], problems: Iterable[Problem]) -> Retries:
    """The retries after these ids were read with these problems."""
    culprits = {problem.key for problem in problems if isinstance(problem, Culprit)}
    remaining = {key: retry for key, retry in retries.items() if key not in read or key in culprits}
    for key in culprits:
        tries = remaining[key].tries + 1 if key in remaining else 1
        pause = int(pause_after(tries, first=FIRST_PAUSE, most=LONGEST_PAUSE))
        if key in remaining or len(remaining) < MOST_RETRIES:
            remaining[key] = Retry(tries=tries, due=int(time.time()) + pause)
    return remaining


def due(retries: Retries) -> list[str]:
    """Ids that are due, the longest overdue first, at most RETRIES_AT_ONCE."""
    now = time.time()
    ready = sorted((retry.due, key) for key, retry in retries.items() if retry.due <= now)
    return [key for _, key in ready[:RETRIES_AT_ONCE]]
