"""A server's folder with its process, port and log, and the credentials of all servers."""

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
from workers.monitoring.liveness import is_same_process, process_start

PORT_SECONDS = 3.0
"""Seconds to wait for the former port to become free."""
START_SECONDS = 60.0
"""Timeout of a server's start."""
NOT_READY = "the database system is"
"""Start of PostgreSQL's messages, logged as FATAL, to clients that connect while it starts, recovers or stops."""
_started: list[psutil.Popen] = []
"""Servers that this process has started, kept to reap them when they end."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Credentials of a data folder, generated once and stored in a file that only its owner may read."""

    postgres: str
    owner: str
    app: str
    control: str
    broker: str
    flower: str
    jwt: str
    encryption: str = field(default_factory=lambda: secrets.token_urlsafe(32) + "=")
    """Fernet key; earlier releases generated none."""

    @classmethod
    def of_folder(cls, data: Path) -> Credentials:
        """Read `DATA/credentials.json`, or create it.

        Raises:
            ConfigurationError: the file is damaged; its servers have no other passwords.
        """
        path = data / "credentials.json"
        stored = {f.name: secrets.token_urlsafe(24) for f in fields(cls) if f.default_factory is MISSING}
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                credentials = cls(**stored)
            except (ValueError, TypeError):
                raise ConfigurationError(
                    f"{path} is damaged: it does not contain the passwords of the embedded servers",
                    fix="put back a copy; without one name another data folder and index again",
                ) from None
        else:
            credentials = cls(**stored)
        if not path.exists() or stored != vars(credentials):
            write_private(path, json.dumps(vars(credentials), indent=1))
        return credentials


_DATA_FOLDER_NAMES = {".lock", "credentials.json", "supervisor.lock", "heartbeat", "flower.db", "eval"}
"""Names of which every data folder contains one."""


def private_folder(data: Path) -> Path:
    """The data folder, created if missing, with access for its owner only.

    Raises:
        ConfigurationError: it cannot be created or written to, or it is open to others and has foreign files.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (mode := stat.S_IMODE(data.stat().st_mode)) & 0o077:
            names = {path.name for path in data.iterdir()}
            if names and not names & _DATA_FOLDER_NAMES:
                raise ConfigurationError(
                    f"the data folder {data} is open to other users (mode {mode:o}) and contains other files",
                    fix=f"name a folder of its own with --data, LARDER_DATA or storage.data, or: chmod 700 {data}",
                )
            data.chmod(0o700)
        (data / ".lock").touch()
    except OSError as error:
        raise ConfigurationError(
            f"the data folder {data} cannot be created or written to: {error.strerror}",
            fix="name another with --data, LARDER_DATA or storage.data, or correct its rights",
        ) from None
    return data


def write_private(path: Path, content: str) -> None:
    """Write `path` as a file of mode 0600, atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(content)
    temporary.replace(path)


def start_detached(command: Sequence[str], log: Path, **options: Any) -> psutil.Popen:
    """Start a process that may outlive this one, in its own session; its output is appended to `log`.

    `options` are for `subprocess.Popen`; there is no input by default.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    options = {"stdin": subprocess.DEVNULL, **options}
    with log.open("ab") as output:
        return psutil.Popen(command, stdout=output, stderr=output, start_new_session=True, **options)


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
    """Start the folder's server, with the working folder `at`, and wait until it answers; returns its process id.

    `answers` returns None while the server recovers: that is waited for without limit, since it would be repeated
    after each further start.

    Raises:
        StoreUnavailable: the server did not start; the message names its log.
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
    log_lines = log.read_bytes()[before:].decode(errors="replace").strip().splitlines() or ["empty log"]
    # PostgreSQL logs the cause first, then its shutdown; refused clients are no cause.
    causes = [line for line in log_lines if ("FATAL:" in line or "PANIC:" in line) and NOT_READY not in line]
    why = causes or log_lines
    raise StoreUnavailable(f"{folder.name} did not start: {why[-1][:200]}", fix=f"see {log}")


def _note_process(folder: Path, pid: int, port: int) -> None:
    """Keep in its folder, made if there is none, which process is the server, and that it is that of this folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    entry = [pid, port, process_start(pid), folder.stat().st_ino]
    (folder / "larder.pid").write_text(json.dumps(entry), encoding="utf-8")


def running(folder: Path) -> tuple[int, int] | None:
    """(pid, port) from the folder's pid file, if that process is alive and the same.

    A pid file that was copied with its folder describes another folder's server and is ignored.
    """
    with suppress(OSError, ValueError, psutil.Error):
        pid, port, started, *inode = json.loads((folder / "larder.pid").read_text(encoding="utf-8"))
        if inode not in ([], [folder.stat().st_ino]):  # earlier releases did not record it
            return None
        if is_same_process(pid, started) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return pid, port
    return None


def stop_server(folder: Path, sign: signal.Signals, seconds: float) -> bool:
    """Stop the folder's server by a signal, after `seconds` by force; False if none ran."""
    process_and_port = running(folder)
    if process_and_port:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(process_and_port[0])
            process.send_signal(sign)
            if not _ends(process, seconds):
                process.kill()
                _ends(process, 10)
    _started[:] = [process for process in _started if process.poll() is None]
    (folder / "larder.pid").unlink(missing_ok=True)
    return process_and_port is not None


def _ends(process: psutil.Process, seconds: float) -> bool:
    """True if the process ends in time; a zombie counts as ended."""
    end = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
MIN_PORT = 10_000


def free_port() -> int:
    """A free TCP port on loopback, below the system's range for outgoing connections.

    A port in that range may be given to a connection while its server restarts, even to a client that connects to
    itself, and the server could not listen on it again.
    """
    least_local = 32_768
    with suppress(OSError, ValueError):
        least_local = int(_LOCAL_PORTS.read_text(encoding="ascii").split()[0])
    candidates = [MIN_PORT + secrets.randbelow(max(1, least_local - MIN_PORT)) for _ in range(100)]
    for port in (*candidates, 0):  # 0: any port, if all of these are taken
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise StoreUnavailable("this machine has no free TCP port", fix="end programs that use many of them")


def is_taken(port: int) -> bool:
    """True if a program on this machine listens on the TCP port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def usual_port(folder: Path) -> int:
    """The former port of this server, so that its address stays valid; a new one if another program has it.

    `folder` is the server's own and created if missing. The port is waited for: a killed server keeps it for some
    milliseconds while its threads end.
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
    """Folder of an installed package, which is not imported, since only its binaries are needed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the package {name} is not installed, so there is no embedded server",
            fix="set LARDER_DATABASE_URL and LARDER_BROKER_URL to servers of your own",
        )
    return Path(spec.submodule_search_locations[0])
