"""How long something takes by the clock of a busy machine, and how much of that a processor works for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


def ran(pid: int) -> float:
    """Seconds that a process had a processor, to the nanosecond; of its first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


@dataclass
class Took:
    """Seconds of something that this process and a connection's do in turn."""

    seconds: float = 0.0
    """By the clock."""
    cpu: float = 0.0
    """Of the processor, both together: by the clock of a machine that has nothing else to do, if all is in memory."""
    load: float = 0.0
    """Processes of the machine that ran or were ready, on average of the last minute."""


@contextmanager
def measured(backend: int) -> Iterator[Took]:
    """What this process and the connection of the server's process `backend` do meanwhile."""
    took, pids = Took(), {os.getpid(), backend}
    before, begun = sum(map(ran, pids)), time.perf_counter()
    yield took
    took.seconds = time.perf_counter() - begun
    took.cpu = sum(map(ran, pids)) - before
    took.load = psutil.getloadavg()[0]


def each(backend: int, times: int, do: Callable[[], object]) -> list[Took]:
    """What it takes so often."""
    found = []
    for _ in range(times):
        with measured(backend) as took:
            do()
        found.append(took)
    return found
