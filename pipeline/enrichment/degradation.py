"""The six degradation levels, the health of dependencies that decides on them, and the methods tried at each."""

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

Dependency = Literal["store", "embedder", "reranker"]
Trouble = Literal["slow", "down"]
DEPENDENCIES: tuple[Dependency, ...] = get_args(Dependency)


class DegradationLevel(IntEnum):
    """Degradation of an answer, from everything to nothing; part of every answer and metric."""

    FULL_RAG = 0
    NO_RERANKING = 1
    CACHED_ONLY = 2
    KEYWORD_ONLY = 3
    STATIC_ONLY = 4
    DISABLED = 5


FULL, UNRANKED, CACHED, KEYWORDS, STATIC, DISABLED = DegradationLevel


@dataclass(frozen=True, kw_only=True)
class Level:
    """Description of a level, and the methods tried at it."""

    says: str
    """Text for people who read an answer; empty for the full level."""
    tries: tuple[DegradationLevel, ...] = ()
    """Levels whose methods are tried, best first; after them comes the static answer."""


LEVELS: Mapping[int, Level] = {
    FULL: Level(says="", tries=(FULL, UNRANKED, CACHED, KEYWORDS)),
    UNRANKED: Level(says="without reranking", tries=(UNRANKED, CACHED, KEYWORDS)),
    CACHED: Level(says="cached answers only", tries=(CACHED,)),
    KEYWORDS: Level(says="by keywords alone", tries=(CACHED, KEYWORDS)),
    STATIC: Level(says="nothing could be looked up"),
    DISABLED: Level(says="switched off"),
}

AFTER: Mapping[str, tuple[DegradationLevel, ...]] = {
    "E001": (KEYWORDS, CACHED),
    "E002": (CACHED, KEYWORDS),
    "E004": (UNRANKED, CACHED, KEYWORDS),
}
"""Code of an error -> levels to try next, if allowed; any other error ends in the static answer."""


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """Limits that decide when a dependency is in trouble, and for how long."""

    slow_seconds: float = 2.0
    slow_in_a_row: int = 3
    """Consecutive slow calls that mean trouble. One slow call is a checkpoint, a cold cache or a lock: a store with one
    slow call in a hundred has three in a row once in a million calls, and a slow store is detected after three."""
    failures_in_a_row: int = 2
    """Consecutive failures that mean trouble. One failure is a deadlock or a restarting server, and its own request
    falls back anyway; after two a third attempt is not worth it."""
    calm_seconds: float = 60.0
    """Seconds without trouble after which a level is left."""
    probe_seconds: float = 5.0
    """Seconds between probes: requests that try the full method while a worse level holds."""
    probe_share: float = 0.2
    """Largest share of time for probes: slow ones are made less often, down to one in `calm_seconds`."""


@dataclass(kw_only=True)
class _State:
    """Observed state of one dependency."""

    slow: int = 0
    failed: int = 0
    """Consecutive slow calls and failures up to the last call."""
    trouble: Trouble | None = None
    last_trouble: float = 0.0
    well: bool = True
    """Whether the last call was successful and not slow."""

    def count(self, *, ok: bool, late: bool) -> None:
        """Count a call; a quick failure says nothing about slowness."""
        self.well = ok and not late
        self.failed = 0 if ok else self.failed + 1
        self.slow = self.slow + 1 if late else 0 if ok else self.slow


Moved = Callable[[DegradationLevel, DegradationLevel], None]


class Health:
    """Health of this process's dependencies, and the level that follows from it; safe for many threads.

    The level gets worse at once and better only after a calm minute, so that it cannot flap. `moved(old, new)` is
    called for every change, in order, under the lock: it must be quick and must not wait for another thread.
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
        self._states: dict[Dependency, _State] = {dependency: _State() for dependency in DEPENDENCIES}
        self._on = True
        self._level = FULL
        self._next_probe = float("-inf")

    def record(self, dependency: Dependency, ok: bool, seconds: float | None = None) -> None:
        """Record a call to a dependency: whether it succeeded, and its seconds if they were measured."""
        with self._lock:
            now, state, o = self._clock(), self._states[dependency], self.options
            late = dependency == "store" and seconds is not None and seconds > o.slow_seconds
            if not state.trouble and now - state.last_trouble >= o.calm_seconds:
                state.slow = state.failed = 0  # calls of long ago are not consecutive
            state.count(ok=ok, late=late)
            if not state.well:
                # For a dependency in trouble a single bad call extends the trouble; it ends in `_troubles` only.
                state.last_trouble = now
                slow: Trouble | None = "slow" if state.slow >= o.slow_in_a_row else None
                state.trouble = "down" if state.failed >= o.failures_in_a_row else state.trouble or slow
            self._settle(now)

    @contextmanager
    def watching(self, dependency: Dependency) -> Iterator[None]:
        """Record time and success of the block, which should be the call alone without the processing of its result.

        An error counts against the dependency only if it is an outage: an embedder that refuses a text, or a database
        that refuses a value, is alive.
        """
        begun = self._clock()
        try:
            yield
        except Exception as error:
            self.record(dependency, not is_outage(error, dependency), self._clock() - begun)
            raise
        self.record(dependency, ok=True, seconds=self._clock() - begun)

    def switch(self, *, on: bool) -> None:
        """Switch off (level 5) or on (the level of the dependencies), at once and without a calm minute."""
        with self._lock:
            self._on = on
            self._settle(self._clock())

    def level(self) -> DegradationLevel:
        """The present level."""
        with self._lock:
            self._settle(self._clock())
            return self._level

    def claim_probe(self) -> bool:
        """Whether the caller should try the full method: once per `probe_seconds` while a dependency is in trouble.

        The caller then reports the time by `probed`.
        """
        with self._lock:
            now = self._clock()
            self._settle(now)
            if self._level in (FULL, DISABLED) or now < self._next_probe:
                return False
            self._next_probe = now + self.options.probe_seconds
            return True

    def probed(self, seconds: float) -> None:
        """Report the seconds of a probe allowed by `claim_probe`; after a slow one the next comes later."""
        o = self.options
        rest = min(o.calm_seconds, max(o.probe_seconds, seconds * (1 - o.probe_share) / o.probe_share))
        with self._lock:
            self._next_probe = self._clock() + rest

    def _troubles(self, now: float) -> dict[Dependency, Trouble]:
        """Troubles that have not ended."""
        for state in self._states.values():
            if state.well and now - state.last_trouble >= self.options.calm_seconds:
                state.trouble = None
        return {dependency: state.trouble for dependency, state in self._states.items() if state.trouble}

    def _settle(self, now: float) -> None:
        """Forget troubles that have ended, and announce a new level."""
        troubles = self._troubles(now)
        new = max((_CAUSES[one] for one in troubles.items()), default=FULL) if self._on else DISABLED
        if new != self._level:
            old, self._level = self._level, new
            say = logger.warning if new > old else logger.info
            levels: dict[str, object] = {"old": old.name, "new": new.name}
            say(
                "degradation level moved",
                extra=levels | {str(name): trouble for name, trouble in troubles.items()},
            )
            if self._moved:
                self._moved(old, new)


_CAUSES: Mapping[tuple[Dependency, Trouble], DegradationLevel] = {
    ("store", "slow"): CACHED,
    ("store", "down"): STATIC,
    ("embedder", "down"): KEYWORDS,
    ("reranker", "down"): UNRANKED,
}


def is_outage(error: BaseException, dependency: Dependency) -> bool:
    """Whether the error means that the dependency does not work, rather than that its input was bad."""
    if isinstance(error, StoreError):
        return dependency == "store" and error.transient
    if isinstance(error, EmbeddingError):
        return dependency == "embedder" and isinstance(error, (EmbedderUnavailable, ModelMissing))
    return dependency == "reranker"


_Result = TypeVar("_Result")


def answer(
    ways: Mapping[DegradationLevel, Callable[[], _Result | None]],
    *,
    health: Health,
    static: Callable[[DegradationLevel], _Result],
    reached: Callable[[_Result], int] = lambda _result: FULL,
    passes: tuple[type[BaseException], ...] = (ConfigurationError, LeaseLost),
) -> tuple[_Result, DegradationLevel]:
    """The best answer that the present level allows, with its actual level.

    Trouble ends in `static`, never in an error. Calls of dependencies are recorded by `Health.watching` and not here,
    since an answer may come from a cache that says nothing about them.

    Args:
        ways: Level -> method that makes an answer at it; it returns None if it has none.
        health: Decides on the present level.
        static: Makes the static answer of level 4 or 5.
        reached: The actual level of a result, which may be worse.
        passes: Errors that are raised: a wrong configuration must be corrected, and a time limit is the caller's.
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
                # A store that took so long to fail would take as long again.
                useless = KEYWORDS if code == "E001" and slow else None
                queue = [
                    method for method in AFTER.get(code, ()) if method in queue and method is not useless
                ]
            else:
                if result is not None:
                    return result, DegradationLevel(max(at, reached(result)))
    finally:
        if probe:
            health.probed(time.monotonic() - begun)
    last = DISABLED if level is DISABLED else STATIC
    return static(last), last


def _code(error: Exception, level: DegradationLevel) -> str:
    """Log an error and return its code; messages of foreign errors are not logged, since they may hold a text."""
    if isinstance(error, LarderError):
        details = {"way": level.name, "code": error.code, "error": str(error)}
        logger.warning("RAG search failed", extra=details)
        return error.code
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    location = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    details = {"way": level.name, "error": type(error).__name__, "where": location}
    logger.error("RAG search failed", extra=details)
    return type(error).__name__
