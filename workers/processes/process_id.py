"""Whether a process is still the one that was noted: by its number and when it began."""

from __future__ import annotations

from contextlib import suppress

import psutil

ALIKE_SECONDS = 2.0
"""No process number comes round again in so short a time."""


def born(pid: int) -> float:
    """When a process began, 0 if there is none: seconds since the machine did, where the system counts so.

    The time of day would not do: it is made of the machine's start, which moves whenever the clock is set, and then
    no living process would be known again.
    """
    with suppress(psutil.Error):
        began = float(psutil.Process(pid).create_time())
        return began - psutil.boot_time() if psutil.LINUX else began
    return 0.0


def same(pid: int, noted: float) -> bool:
    """Whether that process lives and began when it was noted; also as the time of day, as it was noted before."""
    now = born(pid)
    if not now:
        return False
    if abs(now - noted) < ALIKE_SECONDS:
        return True
    return psutil.LINUX and abs(now + psutil.boot_time() - noted) < ALIKE_SECONDS
