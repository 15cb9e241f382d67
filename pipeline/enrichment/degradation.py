"""The six degradation levels, the health that moves between them, and the ways to an answer at each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeVar, get_args

from pipeline.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    EmbeddingError,
    LarderError,
    LeaseLost,
    ModelMissing,
    StoreError,
)

logger = logging.getLogger(__name__)

Part = Literal["store", "embedder", "reranker"]
Trouble = Literal["slow", "down"]
PARTS: tuple[Part, ...] = get_args(Part)


class DegradationLevel(IntEnum):
    """How much less than everything; in every answer and metric."""

    FULL_RAG = 0
    NO_RERANKING = 1
    CACHED_ONLY = 2
    KEYWORD_ONLY = 3
    STATIC_ONLY = 4
    DISABLED = 5


FULL, UNRANKED, CACHED, KEYWORDS, STATIC, DISABLED = DegradationLevel


@dataclass(frozen=True, kw_only=True)
class Level:
    """What one level means."""

    says: str
    """For a person who reads an answer; empty if there is nothing to say."""
    tries: tuple[DegradationLevel, ...] = ()
    """Ways to an answer, best first; after them comes the static one."""


LEVELS: Mapping[int, Level] = {
    FULL: Level(says="", tries=(FULL, UNRANKED, CACHED, KEYWORDS)),
    UNRANKED: Level(says="without a closer look", tries=(UNRANKED, CACHED, KEYWORDS)),
    CACHED: Level(says="only what was asked before", tries=(CACHED,)),
    KEYWORDS: Level(says="by words alone", tries=(CACHED, KEYWORDS)),
    STATIC: Level(says="nothing could be looked up"),
    DISABLED: Level(says="switched off"),
}

AFTER_STORE: tuple[DegradationLevel, ...] = (KEYWORDS, CACHED)
"""What to try after an error of the store, as far as the level allows it; any other error ends in the static answer."""


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """When a part is in trouble, and when it no longer is."""

    slow_seconds: float = 2.0
    slow_in_a_row: int = 3
    """One slow call is a checkpoint, a cold cache or a lock: a store of which one call in a hundred is slow shows
    three in a row once in a million, and a slow one is found out after three calls."""
    failures_in_a_row: int = 2
    """One failure is a deadlock or a server that just restarts, and its own answer falls back anyway; two in a
    row are a state, for which it is not worth being asked a third time."""
    calm_seconds: float = 60.0
    """A level is left when its part has had no trouble for so long."""
    probe_seconds: float = 5.0
    """While a level holds, one request in this time is tried the full way."""
    probe_share: float = 0.2
    """Of the time at most: where a try takes long, tries are rarer, down to one in `calm_seconds`."""


@dataclass(kw_only=True)
class _State:
    """What is known of one part."""

    slow: int = 0
    failed: int = 0
    """In a row, up to the last call."""
    trouble: Trouble | None = None
    last_trouble: float = 0.0
    well: bool = True
    """The last call was fine."""

    def count(self, *, ok: bool, late: bool) -> None:
        """One more call; one that fails in time says nothing of how slow the part is."""
        self.well = ok and not late
        self.failed = 0 if ok else self.failed + 1
        self.slow = self.slow + 1 if late else 0 if ok else self.slow


Moved = Callable[[DegradationLevel, DegradationLevel], None]


class Health:
    """What this process has seen of its parts, and the level that follows; safe for many threads.

    The level gets worse at once and better only after a quiet minute, so that it cannot flap. `moved(old, new)`
    is told of every change, in order, under the lock: it must be quick and must not wait for another thread.
    """

    def __init__(
        self,
        options: HealthOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        moved: Moved | None = None,
    ) -> None:
        self.options = options or HealthOptions()
        self._clock = clock
        self._moved = moved
        self._lock = threading.RLock()
        self._states: dict[Part, _State] = {part: _State() for part in PARTS}
        self._on = True
        self._level = FULL
        self._next_probe = float("-inf")

    def record(self, part: Part, ok: bool, seconds: float | None = None) -> None:
        """One call to a part went well or not and took so long; None if nobody measured."""
        with self._lock:
            now, state, o = self._clock(), self._states[part], self.options
            late = part == "store" and seconds is not None and seconds > o.slow_seconds
            if not state.trouble and now - state.last_trouble >= o.calm_seconds:
                state.slow = state.failed = 0  # what happened long ago is no row
            state.count(ok=ok, late=late)
            if not state.well:
                # What a part in trouble does wrong keeps it there, be it a single time; it does not get better here.
                state.last_trouble = now
                slow: Trouble | None = "slow" if state.slow >= o.slow_in_a_row else None
                state.trouble = "down" if state.failed >= o.failures_in_a_row else state.trouble or slow
            self._settle(now)

    @contextmanager
    def watching(self, part: Part) -> Iterator[None]:
        """Time the block and note how it went; put it around the one call, not around what is made of it.

        An error counts against the part only if it speaks of the part: a text that an embedder refuses, or a value
        that a database refuses, says that it is alive.
        """
        begun = self._clock()
        try:
            yield
        except Exception as error:
            self.record(part, not is_outage(error, part), self._clock() - begun)
            raise
        self.record(part, ok=True, seconds=self._clock() - begun)

    def switch(self, *, on: bool) -> None:
        """Switch off (level 5) or on (the level of the parts); both hold at once, without a calm minute."""
        with self._lock:
            self._on = on
            self._settle(self._clock())

    def level(self) -> DegradationLevel:
        """The level that holds now."""
        with self._lock:
            self._settle(self._clock())
            return self._level

    def claim_probe(self) -> bool:
        """True for one caller per `probe_seconds` while parts are in trouble: it should try the full way.

        It then says by `probed` how long that took.
        """
        with self._lock:
            now = self._clock()
            self._settle(now)
            if self._level in (FULL, DISABLED) or now < self._next_probe:
                return False
            self._next_probe = now + self.options.probe_seconds
            return True

    def probed(self, seconds: float) -> None:
        """Report how many seconds the try took that `claim_probe` allowed; after a slow one the next comes later."""
        o = self.options
        rest = min(o.calm_seconds, max(o.probe_seconds, seconds * (1 - o.probe_share) / o.probe_share))
        with self._lock:
            self._next_probe = self._clock() + rest

    def _troubles(self, now: float) -> dict[Part, Trouble]:
        """Those that are not over."""
        for state in self._states.values():
            if state.well and now - state.last_trouble >= self.options.calm_seconds:
                state.trouble = None
        return {part: state.trouble for part, state in self._states.items() if state.trouble}

    def _settle(self, now: float) -> None:
        """Forget troubles that are over, and tell of a new level."""
        troubles = self._troubles(now)
        new = max((_CAUSES[one] for one in troubles.items()), default=FULL) if self._on else DISABLED
        if new != self._level:
            old, self._level = self._level, new
            say = logger.warning if new > old else logger.info
            told: dict[str, object] = {"old": old.name, "new": new.name}
            say("degradation level moved", extra=told | {str(part): it for part, it in troubles.items()})
            if self._moved:
                self._moved(old, new)


_CAUSES: Mapping[tuple[Part, Trouble], DegradationLevel] = {
    ("store", "slow"): CACHED,
    ("store", "down"): STATIC,
    ("embedder", "down"): KEYWORDS,
    ("reranker", "down"): UNRANKED,
}


def is_outage(error: BaseException, part: Part) -> bool:
    """True if the error says that the part itself does not work, not what it was given."""
    if isinstance(error, StoreError):
        return part == "store" and error.transient
    if isinstance(error, EmbeddingError):
        return part == "embedder" and isinstance(error, (EmbedderUnavailable, ModelMissing))
    return part == "reranker"


_Result = TypeVar("_Result")


def answer(
    ways: Mapping[DegradationLevel, Callable[[], _Result | None]],
    *,
    health: Health,
    static: Callable[[DegradationLevel], _Result],
    reached: Callable[[_Result], int] = lambda _result: FULL,
    passes: tuple[type[BaseException], ...] = (ConfigurationError, LeaseLost),
) -> tuple[_Result, DegradationLevel]:
    """The best answer that the present level allows, with the level that it really has.

    Trouble on the way ends in `static`, never in an error. The parts that a way calls tell `health` how they are, by
    `Health.watching`; nothing is noted here, since an answer may come from a cache that says nothing of them.

    Args:
        ways: Level -> what makes an answer of it; None: nothing to be had this way.
        health: Tells which level holds.
        static: Makes the prepared answer of level 4 or 5.
        reached: The level that a result itself tells of, if it may be a worse one.
        passes: Errors that go through: a wrong configuration must be corrected, a caller's time limit is the caller's.
    """
    probe, begun = health.claim_probe(), time.monotonic()
    level = health.level()
    tries = LEVELS[level].tries
    queue = [at for at in dict.fromkeys([FULL, *tries] if probe else tries) if at in ways]
    try:
        while queue:
            at, tried = queue.pop(0), time.monotonic()
            try:
                result = ways[at]()
            except passes:
                raise
            except Exception as error:  # noqa: BLE001 (an answer without context beats none: 001-103)
                code, slow = _code(error, at), time.monotonic() - tried > health.options.slow_seconds
                # A store that took so long to fail would take as long once more.
                useless = KEYWORDS if code == "E001" and slow else None
                allowed = AFTER_STORE if code == "E001" else ()
                queue = [way for way in allowed if way in queue and way is not useless]
            else:
                if result is not None:
                    return result, DegradationLevel(max(at, reached(result)))
    finally:
        if probe:
            health.probed(time.monotonic() - begun)
    last = DISABLED if level is DISABLED else STATIC
    return static(last), last


def _code(error: Exception, level: DegradationLevel) -> str:
    """The error's code, logged: never its message if it is none of ours, for that may hold a text."""
    if isinstance(error, LarderError):
        told = {"way": level.name, "code": error.code, "error": str(error)}
        logger.warning("RAG search failed", extra=told)
        return error.code
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    told = {"way": level.name, "error": type(error).__name__, "where": where}
    logger.error("RAG search failed", extra=told)
    return type(error).__name__
