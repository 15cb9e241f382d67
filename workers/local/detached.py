"""Workers that a command starts for its own length."""

from __future__ import annotations

import os
from collections.abc import Sequence
from subprocess import PIPE

import psutil

from workers.local import embedded, supervisor
from workers.settings import Settings


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
    log = settings.data / "logs" / "supervisor.log"
    command = [*supervisor.LARDER, "lend", *queues]
    return embedded.start_detached(command, log, cwd=settings.folder, env=os.environ | variables, stdin=PIPE)
