"""Whether work grows with what it is given and no faster, on any machine and however busy it is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import thread_time
from typing import TypeVar

FACTOR = 8
"""How many times larger the large input is than the small one."""
LIMIT = 3 * FACTOR
"""How many times longer it may take. Linear work takes 8 times as long, give or take the caches; quadratic 64."""
TRIES = 6

Given = TypeVar("Given")


def assert_linear(make: Callable[[int], Given], size: int, work: Callable[[Given], object]) -> None:
    """Do the work on inputs of two sizes, the larger 8 times the smaller, and compare what they take.

    What counts is the processor time of this thread alone, the least of a few tries. Work that turns out
    linear ends after the first one.

    Args:
        make: Builds an input of a size; its time does not count.
        size: Of the large input. It must be so large that what is feared shows at an eighth of it: where
            quadratic time is in the small input less than half of the rest, the ratio stays below the limit.
        work: Takes one input. It must leave it as it was.

    Raises:
        AssertionError: The large input took more than 24 times as long as the small one in every try.
    """
    small, large = make(size // FACTOR), make(size)
    work(small)  # what only the first call costs would hide in the small one what is feared of the large
    least = [float("inf"), float("inf")]
    for _ in range(TRIES):
        least = [min(least[0], _seconds(work, small)), min(least[1], _seconds(work, large))]
        if least[1] <= LIMIT * least[0]:
            break
    assert least[1] <= LIMIT * least[0], (
        f"{FACTOR} times the input took {least[1] / least[0]:.0f} times as long"
        f" ({1000 * least[0]:.2f} ms, {1000 * least[1]:.0f} ms)"
    )


def _seconds(work: Callable[[Given], object], given: Given) -> float:
    gc.disable()  # what it costs depends on what the tests before have left
    try:
        start = thread_time()
        work(given)
        return thread_time() - start
    finally:
        gc.enable()
