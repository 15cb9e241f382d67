"""The best answer that can be had right now: ways to it in order, and a prepared answer at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from pipeline.enrichment.degradation import LEVELS, DegradationLevel, Health, Part
from pipeline.errors import ConfigurationError, LarderError, LeaseLost

FULL, UNRANKED, CACHED, KEYWORDS, STATIC, DISABLED = DegradationLevel

AFTER: Mapping[str, tuple[DegradationLevel, ...]] = {
    "E001": (KEYWORDS, CACHED),
    "E002": (CACHED, KEYWORDS),
    "E004": (UNRANKED, CACHED, KEYWORDS),
}
"""Code of an error -> what to try next, as far as the level allows it; any other error ends in the static answer."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Way(Generic[_Request, _Result]):
    """One way to an answer."""

    level: DegradationLevel
    run: Callable[[_Request], _Result | None]
    """None: nothing to be had this way, such as from a cache that does not know the question."""
    reached: Callable[[_Result], int] | None = None
    """The level that the result itself tells of, if it may be a worse one."""


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[_Result]):
    """What came back, and how it was reached."""

    result: _Result
    level: DegradationLevel
    """The one really reached."""
    failed: Mapping[DegradationLevel, str] = field(default_factory=dict)
    """Ways that ended in an error, with its code."""


def answer(
    request: _Request,
    ways: Sequence[Way[_Request, _Result]],
    *,
    health: Health,
    static: Callable[[DegradationLevel], _Result],
    passes: tuple[type[BaseException], ...] = (ConfigurationError, LeaseLost),
) -> Answer[_Result]:
    """The best answer that the present level allows; trouble on the way ends in `static`, never in an error.

    The parts called by a way tell `health` how they are, by `Health.watching`; nothing is noted here, since an answer
    may come from a cache that says nothing of them. Errors of `passes` go through: a wrong configuration must
    be corrected, and a time limit of the caller is the caller's.
    """
    probe, begun = health.claim_probe(), time.monotonic()
    level = health.level()
    offered = {way.level: way for way in ways}
    queue = [at for at in _queue(level, health.down(), probe=probe) if at in offered]
    try:
        found = _first([offered[at] for at in queue], request, health.options.slow_seconds, passes)
    finally:
        if probe:
            health.probed(time.monotonic() - begun)
    if isinstance(found, Answer):
        return found
    last = DISABLED if level is DISABLED else STATIC
    return Answer(result=static(last), level=last, failed=found)


def _first(
    ways: Sequence[Way[_Request, _Result]],
    request: _Request,
    slow_seconds: float,
    passes: tuple[type[BaseException], ...],
) -> Answer[_Result] | dict[DegradationLevel, str]:
    """The answer of the first way that has one; else the ways that ended in an error."""
    offered = {way.level: way for way in ways}
    queue = list(offered)
    failed: dict[DegradationLevel, str] = {}
    while queue:
        way = offered[queue.pop(0)]
        begun = time.monotonic()
        try:
            result = way.run(request)
        except passes:
            raise
        except Exception as error:  # noqa: BLE001 (an answer without context beats none: 001-103)
            failed[way.level] = _code(error, way.level)
            queue = _after(failed[way.level], queue, slow=time.monotonic() - begun > slow_seconds)
            continue
        if result is not None:
            reached = max(int(way.level), way.reached(result) if way.reached else 0)
            return Answer(result=result, level=DegradationLevel(reached), failed=failed)
    return failed


def _queue(level: DegradationLevel, down: frozenset[Part], *, probe: bool) -> list[DegradationLevel]:
    """Ways in order; those that need a part that does not answer are left to the probe."""
    tries = [at for at in LEVELS[level].tries if not LEVELS[at].needs & down]
    return [FULL, *(at for at in tries if at is not FULL)] if probe else tries


def _after(code: str, queue: list[DegradationLevel], *, slow: bool) -> list[DegradationLevel]:
    """What is left to try after an error."""
    left = [at for at in AFTER.get(code, ()) if at in queue]
    # A store that took so long to fail would take as long once more.
    return [at for at in left if at is not KEYWORDS] if code == "E001" and slow else left


def _code(error: Exception, level: DegradationLevel) -> str:
    """The error's code, logged: never its message if it is none of ours, for that may hold a text."""
    if isinstance(error, LarderError):
        _log().warning("RAG search failed", way=level.name, code=error.code, error=str(error))
        return error.code
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    _log().error("RAG search failed", way=level.name, error=type(error).__name__, where=where)
    return type(error).__name__


def _log() -> Any:
    return structlog.get_logger(__name__)
