"""What an error means for the message that met it: when to try again, or never."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipeline.errors import LarderError
from pipeline.indexing import Decision


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
    step = min(options.longest, options.base * 2.0 ** max(0, attempt - 1))
    wait = step / 2 + step / 2 * chance
    return max(wait, retry_after or 0.0)


def decide(error: LarderError, attempts: int, options: RetryOptions) -> Decision:
    """`attempts` counts this failed try. Permanent errors and the last try are final."""
    dead = not error.transient or attempts >= options.attempts
    chance = random.random()  # noqa: S311 - spreads load, guards nothing
    return Decision(
        delay=0.0 if dead else delay(attempts, options, error.retry_after, chance=chance), dead=dead
    )
