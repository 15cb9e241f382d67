"""Processes that a command starts and does not wait for: workers for its own length, and what serves later commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from pipeline.errors import LarderError
from workers import embedded
from workers.processes import supervisor
from workers.runtime import Addresses
from workers.settings import Settings

ALONE = "LARDER_ALONE"
"""Variable that keeps commands from leaving a process for later ones, whatever its value."""


def start_temporary_workers(settings: Settings, queues: Sequence[str]) -> psutil.Popen:
    """A process that runs workers and beat until it is told to end, or its input, which is ours, is closed."""
    (settings.data / "metrics").mkdir(exist_ok=True)
    variables = {
        "LARDER_DATA": str(settings.data),
        "LARDER_TENANT": settings.tenant,
        "LARDER_PROJECT": settings.project,
        "LARDER_CONFIG": str(settings.path or ""),
        "PROMETHEUS_MULTIPROC_DIR": str(settings.data / "metrics"),
    }
    return _larder(settings, ["lend", *queues], env=os.environ | variables, stdin=subprocess.PIPE)


def leave_serving(settings: Settings, addresses: Addresses) -> None:
    """Start a process that runs the next commands of terminals, as `larder up` has one: they need not load anything.

    Only beside embedded servers, which stay as well when a command that started them ends; and only one. Where it
    cannot be, on a full disk say, there is none: the command itself has its answer.
    """
    data, folder = settings.data, settings.data / "commands"
    if os.environ.get(ALONE) or not embedded.running(data / "postgres"):
        return
    with suppress(OSError, LarderError), embedded.locked(data):
        # `larder down` may have had the lock until now. And whose folder root looks into could not ask or stop root's.
        needed = embedded.running(data / "postgres") and data.stat().st_uid == os.getuid()
        if not needed or embedded.running(folder) or "supervisor" in supervisor.running(data):
            return
        environment = supervisor.Supervisor(settings=settings, addresses=addresses).environment("commands")
        del environment["PROMETHEUS_MULTIPROC_DIR"]
        process = _larder(settings, ["serve", "--for-now"], env=environment)
        try:
            embedded.note_process(folder, process.pid)
        except BaseException:
            process.kill()  # nobody would find it
            raise


def _larder(settings: Settings, args: Sequence[str], **options: Any) -> psutil.Popen:
    log = settings.data / "logs" / "supervisor.log"
    return embedded.start_detached([*supervisor.LARDER, *args], log, cwd=settings.folder, **options)
