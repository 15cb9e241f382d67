"""Isolates items that a service fails over: batches are divided until such a one is alone; it is read again later."""

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
"""Items that one Divider isolates; where more fail, the service is ill."""
MOST_UNPROVEN = 2
"""Items that are isolated as long as no other was answered."""
FIRST_PAUSE, LONGEST_PAUSE = 600, 86_400
"""Seconds before a culprit is read again: doubled with each try."""
MOST_RETRIES = 500
"""Culprits that a cursor remembers; the daily id walk reads the others again."""
RETRIES_AT_ONCE = 20
"""Culprits that one sync reads again."""


@dataclass(frozen=True, kw_only=True)
class Culprit(Problem):
    """An item that the service fails over whenever it is asked for it."""

    key: str
    """Id of what is read again: the item, or the page that it hangs on."""


def culprit(
    external_id: str, error: LarderError, *, url: str = "", what: str = "it", key: str = ""
) -> Culprit:
    """The report of an item for which `error` came; `what` is what was asked for."""
    reason = (
        f"{error.message} each time {what} is asked for, and not for others; it is tried again by itself: "
        "if it lasts, open and save it there"
    )
    return Culprit(external_id=external_id, reason=reason, url=url, key=key or external_id)


def comes_of_an_item(error: LarderError) -> bool:
    """Whether a single item may be to blame for a failed answer; that needs proof."""
    status = getattr(error, "status", 0)
    return isinstance(error, AnswerTooLarge) or (isinstance(error, BadAnswer) and not 400 <= status < 500)  # noqa: PLR2004 (4xx)


@dataclass(kw_only=True)
class Divider:
    """Fetches batches of ids, and isolates those that make a batch fail.

    A batch that fails is asked for once more, then in halves: 200 ids cost about 16 requests a culprit. An answer that
    is too large is halved without more.
    """

    probe: Callable[[], object]
    """Asks for something harmless of the same kind: where that fails too, the service is ill as a whole."""
    at_once: bool = True
    """False: a batch that fails for the first time raises its error, for the source to come back after a pause."""
    _answers: bool = field(default=False, init=False)
    """The probe has been answered."""
    _others: bool = field(default=False, init=False)
    """Items have been answered."""
    _culprits: int = field(default=0, init=False)

    def fetch(
        self, ids: Sequence[Key], ask: Callable[[list[Key]], Answer]
    ) -> tuple[list[Answer], dict[Key, LarderError]]:
        """The answers, in the order of the ids, and the error of each id that fails alone.

        Raises:
            SourceUnavailable: the service is ill, or a batch failed for the first time and `at_once` is False.
        """
        answers: list[Answer] = []
        failed: dict[Key, LarderError] = {}
        waiting, asked_again = [list(ids)] if ids else [], False
        while waiting:
            batch = waiting.pop()
            try:
                answers.append(ask(batch))
            except LarderError as error:
                if not comes_of_an_item(error):
                    raise
                if isinstance(error, BadAnswer):
                    self._prove(error)
                    if not asked_again:
                        asked_again = True
                        waiting.append(batch)
                        continue
                if len(batch) > 1:
                    middle = len(batch) // 2
                    waiting += [batch[middle:], batch[:middle]]
                else:
                    self._count(error)
                    failed[batch[0]] = error
            else:
                self._others = True
        return answers, failed

    def _prove(self, error: LarderError) -> None:
        """Raises unless the service answers something else."""
        if not self.at_once:
            raise error
        if not self._answers:
            try:
                self.probe()
            except LarderError as other:
                if other.transient:  # a refusal is an answer
                    raise
        self._answers = True

    def _count(self, error: LarderError) -> None:
        if isinstance(error, BadAnswer):
            self._culprits += 1
            if self._culprits > (MOST_CULPRITS if self._others else MOST_UNPROVEN):
                raise error


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When a culprit is read again."""

    tries: int
    due: int
    """Epoch seconds."""


Retries = Mapping[str, Retry]
"""By the id that is read again; part of a source's cursor."""


def noted(retries: Retries, read: Collection[str], problems: Iterable[Problem]) -> Retries:
    """The retries after these ids were read and these problems met."""
    culprits = {problem.key for problem in problems if isinstance(problem, Culprit)}
    kept = {key: retry for key, retry in retries.items() if key not in read or key in culprits}
    for key in culprits:
        tries = kept[key].tries + 1 if key in kept else 1
        pause = int(pause_after(tries, first=FIRST_PAUSE, most=LONGEST_PAUSE))
        if key in kept or len(kept) < MOST_RETRIES:
            kept[key] = Retry(tries=tries, due=int(time.time()) + pause)
    return kept


def due(retries: Retries) -> list[str]:
    """The ids whose time has come, the longest due first."""
    now = time.time()
    ready = sorted((retry.due, key) for key, retry in retries.items() if retry.due <= now)
    return [key for _, key in ready[:RETRIES_AT_ONCE]]
