"""What an error means for the message that met it: when to try again, or never."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipeline.errors import LarderError
from pipeline.ingest.steps import Decision

MOST_DOUBLINGS = 60
"""Waits are not limited in number, and a number has an end."""


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """Seconds and counts."""

    base: float = 2.0
    longest: float = 600.0
    attempts: int = 8


def delay(attempt: int, options: RetryOptions, retry_after: float | None = None, *, chance: float) -> float:
    """Seconds until the next try: half of them fixed, half by chance (0 to 1), and never before `retry_after`.

    Full jitter would use up eight tries within a second of a rate limit (measured with Celery's own).
    """
    step = min(options.longest, options.base * 2.0 ** min(max(0, attempt - 1), MOST_DOUBLINGS))
    wait = step / 2 + step / 2 * chance
    return max(wait, retry_after or 0.0)


def wait(waits: int, options: RetryOptions, retry_after: float | None = None, *, chance: float) -> float:
    """Seconds to wait the `waits`-th time for something that is nobody's failed try: growing, or as long as asked.

    Whoever names a time knows it exactly; a little chance keeps all who wait from coming at once.
    """
    if retry_after is None:
        return delay(waits, options, chance=chance)
    return retry_after + min(1.0, retry_after / 10) * chance


def decide(error: LarderError, attempts: int, options: RetryOptions) -> Decision:
    """`attempts` counts this failed try, or this wait. Permanent errors and the last try are final; waits never."""
    chance = random.random()  # noqa: S311 - spreads load, guards nothing
    if error.waits:
        return Decision(delay=wait(attempts, options, error.retry_after, chance=chance), dead=False)
    dead = not error.transient or attempts >= options.attempts
    return Decision(
        delay=0.0 if dead else delay(attempts, options, error.retry_after, chance=chance), dead=dead
    )
