"""A server's folder: its process, its port, its log, and the passwords of all of them."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import psutil

from pipeline.errors import ConfigurationError, StoreUnavailable
from workers.processes.liveness import is_same_process, process_start

PORT_SECONDS = 3.0
"""How long the port of last time is waited for."""
START_SECONDS = 60.0
"""A server that takes longer did not start."""
NOT_READY = "the database system is"
"""So begins what PostgreSQL tells, and logs as FATAL, to who connects while it starts, recovers or ends."""
_started: list[psutil.Popen] = []
"""Servers this process has started: they outlive the call, and a dead one must be reaped."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Generated once per data folder, kept in a file only its owner may read."""

    postgres: str
    owner: str
    app: str
    control: str
    broker: str
    flower: str
    jwt: str
    encryption: str = field(default_factory=lambda: secrets.token_urlsafe(32) + "=")
    """A key (Fernet); earlier releases made none."""

    @classmethod
    def of(cls, data: Path) -> Credentials:
        """Read `DATA/credentials.json`, or make it.

        Raises:
            ConfigurationError: the file is damaged; its servers know no other passwords.
        """
        path = data / "credentials.json"
        stored = {f.name: secrets.token_urlsafe(24) for f in fields(cls) if f.default_factory is MISSING}
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                made = cls(**stored)
            except (ValueError, TypeError):
                raise ConfigurationError(
                    f"{path} is damaged: it does not hold the passwords of the embedded servers",
                    fix="put back a copy; without one name another data folder and index again",
                ) from None
        else:
            made = cls(**stored)
        if not path.exists() or stored != vars(made):
            write_private(path, json.dumps(vars(made), indent=1))
        return made


_OURS = {".lock", "credentials.json", "supervisor.lock", "heartbeat", "flower.db", "eval"}
"""One of these is in every folder that has been a data folder."""


def private_folder(data: Path) -> Path:
    """The data folder, made if it is not there, and closed to all others.

    Raises:
        ConfigurationError: it cannot be made, nothing can be written there, or it is open and not ours to close.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (mode := stat.S_IMODE(data.stat().st_mode)) & 0o077:
            names = {path.name for path in data.iterdir()}
            if names and not names & _OURS:
                raise ConfigurationError(
                    f"the data folder {data} is open to other users (mode {mode:o}) and holds files of somebody else",
                    fix=f"name a folder of its own with --data, LARDER_DATA or storage.data, or: chmod 700 {data}",
                )
            data.chmod(0o700)
        (data / ".lock").touch()
    except OSError as error:
        raise ConfigurationError(
            f"the data folder {data} cannot be made or written to: {error.strerror}",
            fix="name another with --data, LARDER_DATA or storage.data, or correct its rights",
        ) from None
    return data


def write_private(path: Path, content: str) -> None:
    """Replace `path` by a file of mode 0600, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(content)
    temporary.replace(path)


def start_detached(command: Sequence[str], log: Path, **how: Any) -> psutil.Popen:
    """Start a process that may outlive this one, in a session of its own; what it prints is appended to `log`.

    `how` is for `subprocess.Popen`; it gets no input unless that says so.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    how = {"stdin": subprocess.DEVNULL, **how}
    with log.open("ab") as output:
        return psutil.Popen(command, stdout=output, stderr=output, start_new_session=True, **how)


def start_server(
    folder: Path,
    command: list[str],
    log: Path,
    port: int,
    answers: Callable[[], bool | None],
    *,
    user: str | None = None,
    at: Path | None = None,
    stdin: IO[str] | int = subprocess.DEVNULL,
) -> int:
    """Start the folder's server, in the folder `at`, and wait until it answers; its process id.

    `answers` tells None while the server says that it is not ready yet: what it puts in order then it would have to put
    in order after each further start, too.

    Raises:
        StoreUnavailable: it did not start; the message names its log.
    """
    before = log.stat().st_size if log.exists() else 0
    as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": [] if user else None}
    process = start_detached(command, log, cwd=at or "/", stdin=stdin, **as_user)
    _started.append(process)
    _note_process(folder, process.pid, port)  # before it answers, so that whoever comes after a kill finds it
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        answered = answers()
        if answered:
            return process.pid
        if answered is None:
            end = time.monotonic() + START_SECONDS
        time.sleep(0.03)
    with suppress(psutil.NoSuchProcess):
        process.kill()
    said = log.read_bytes()[before:].decode(errors="replace").strip().splitlines() or ["empty log"]
    # PostgreSQL tells the cause first, and then at length that it ends; those who ask meanwhile are no cause.
    causes = [line for line in said if ("FATAL:" in line or "PANIC:" in line) and NOT_READY not in line]
    why = causes or said
    raise StoreUnavailable(f"{folder.name} did not start: {why[-1][:200]}", fix=f"see {log}")


def _note_process(folder: Path, pid: int, port: int) -> None:
    """Keep in its folder, made if there is none, which process is the server, and that it is that of this folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    entry = [pid, port, process_start(pid), folder.stat().st_ino]
    (folder / "larder.pid").write_text(json.dumps(entry), encoding="utf-8")


def running(folder: Path) -> tuple[int, int] | None:
    """(pid, port) from the folder's pid file, if that process lives and is still the same one.

    One that came with a copy of the folder tells of the server of the other.
    """
    with suppress(OSError, ValueError, psutil.Error):
        pid, port, started, *of = json.loads((folder / "larder.pid").read_text(encoding="utf-8"))
        if of not in ([], [folder.stat().st_ino]):  # earlier releases did not note it
            return None
        if is_same_process(pid, started) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return pid, port
    return None


def stop_server(folder: Path, sign: signal.Signals, seconds: float) -> bool:
    """End the folder's server by a signal, after `seconds` by force; False if none ran."""
    found = running(folder)
    if found:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(found[0])
            process.send_signal(sign)
            if not _ends(process, seconds):
                process.kill()
                _ends(process, 10)
    _started[:] = [process for process in _started if process.poll() is None]
    (folder / "larder.pid").unlink(missing_ok=True)
    return found is not None


def _ends(process: psutil.Process, seconds: float) -> bool:
    """Whether it ends in time; what is left of one whose parent never asks counts as ended."""
    end = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
LEAST_PORT = 10_000


def free_port() -> int:
    """A TCP port on loopback that nobody listens on right now, below those that the system gives to connections.

    Among those, a server that begins anew could find a connection in its place, even one of its own clients to itself
    (a TCP connect to a port of this machine may be given that very port), and its clients would look for it in vain.
    """
    least_local = 32_768
    with suppress(OSError, ValueError):
        least_local = int(_LOCAL_PORTS.read_text(encoding="ascii").split()[0])
    wanted = [LEAST_PORT + secrets.randbelow(max(1, least_local - LEAST_PORT)) for _ in range(100)]
    for port in (*wanted, 0):  # where none is below, any
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise StoreUnavailable("this machine has no free TCP port", fix="end programs that hold many of them")


def is_taken(port: int) -> bool:
    """Whether a program of this machine listens on a TCP port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def usual_port(folder: Path) -> int:
    """The port of last time unless another program has it: whoever knows it finds what listens there again.

    `folder` is its own, and made if there is none. The port is waited for: a server that was killed keeps it for some
    milliseconds after it counts as ended, as long as one of its threads is still being taken down.
    """
    end = time.monotonic() + PORT_SECONDS
    with suppress(OSError, ValueError):
        port = int((folder / "port").read_text(encoding="utf-8"))
        while time.monotonic() < end:
            with suppress(OSError), socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return port
            time.sleep(0.02)
    port = free_port()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "port").write_text(str(port), encoding="utf-8")
    return port


def package_folder(name: str) -> Path:
    """Where a package's files lie; not imported, since only its binaries are wanted."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the package {name} is not installed, so there is no embedded server",
            fix="set LARDER_DATABASE_URL and LARDER_BROKER_URL to servers of your own",
        )
    return Path(spec.submodule_search_locations[0])
