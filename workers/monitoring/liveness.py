"""Liveness of processes: heartbeat files, and process numbers that are not someone else's by now.

Light: container health checks run it every few seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from errno import EACCES
from pathlib import Path

import psutil

from pipeline.errors import ConfigurationError

DEAF_SECONDS = 30.0
"""Age in seconds of a heartbeat from which on its process must be restarted."""


FOLDER = "LARDER_HEARTBEAT_DIR"
"""Variable that names the folder of the heartbeat files."""


def heartbeat_folder(data: Path, environ: Mapping[str, str]) -> Path:
    """Folder of the heartbeat files: LARDER_HEARTBEAT_DIR in containers, else below the data folder."""
    named = environ.get(FOLDER)
    return Path(named) if named else data / "heartbeat"


FIX = f"name a folder that this user may write to in {FOLDER}"


def prepare_folder(folder: Path) -> None:
    """Make the folder of the heartbeat files, before a process starts that could write none.

    Raises:
        ConfigurationError: this user may not write there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        message = f"signs of life cannot be written to {folder}: {error.strerror}"
        raise ConfigurationError(message, fix=FIX) from None


def touch(folder: Path, name: str) -> None:
    """Touch the heartbeat file of a process; `name` is that of its worker."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.heartbeat").touch()


def ages(folder: Path) -> dict[str, float]:
    """Seconds since the last heartbeat of each process in `folder`, by worker name."""
    seconds = {}
    for path in sorted(folder.glob("*.heartbeat")):
        with suppress(OSError):
            seconds[path.stem] = max(0.0, time.time() - path.stat().st_mtime)
    return seconds


ALIKE_SECONDS = 2.0
"""Seconds in which no process number comes round again."""


def process_start(pid: int) -> float:
    """Start of a process, 0 if there is none: seconds since the machine's start, where the system counts so.

    The time of day would not do: it is made of the machine's start, which moves whenever the clock is set, and then
    no living process would be known again.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if (
            process.status() == psutil.STATUS_ZOMBIE
        ):  # it has ended, and in a container nobody may ever take its code
            return 0.0
        began = float(process.create_time())
        return began - psutil.boot_time() if psutil.LINUX else began
    return 0.0


def is_same_process(pid: int, started: float) -> bool:
    """Whether that process lives and has this start."""
    began = process_start(pid)
    return bool(began) and abs(began - started) < ALIKE_SECONDS


def read_state(data: Path) -> dict[str, object] | None:
    """State that `up` wrote in this folder; None if it does not run, or the folder is a copy of one where it does."""
    with suppress(OSError, ValueError):
        state = json.loads((data / "state.json").read_text(encoding="utf-8"))
        is_original = isinstance(state, dict) and state.get("folder") in (None, data.stat().st_ino)
        return state if is_original else None
    return None


def refuse_foreign_state(data: Path) -> None:
    """Check that this user may read the state that `up` wrote in this folder, if there is one.

    Raises:
        ConfigurationError: it is another's, and tells passwords.
    """
    try:
        (data / "state.json").read_bytes()
    except FileNotFoundError:
        pass
    except OSError as error:
        message = (
            f"{data / 'state.json'} cannot be read: {error.strerror}; it is for the user of `larder up` only"
        )
        raise ConfigurationError(message, fix="ask as that user, who may be root: sudo") from None


def running(data: Path) -> dict[str, int]:
    """Living processes of the data folder by name, one that is beginning too; a reused process id does not count."""
    return living_processes(read_state(data) or {})


def living_processes(state: dict[str, object]) -> dict[str, int]:
    """Living processes by name, out of a state that was read."""
    pids = {}
    entries = state.get("processes")
    for entry in entries if isinstance(entries, list) else []:
        with suppress(KeyError, TypeError):  # a state that nobody of ours wrote
            if is_same_process(entry["pid"], entry["started"]):
                pids[entry["name"]] = entry["pid"]
    return pids
