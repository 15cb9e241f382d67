"""Workers and beat as processes of a test, which kills them and starts them again as a supervisor would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from workers import embedded
from workers.client import Client

ROOT = Path(__file__).parents[2]
ENRICHING: Mapping[str, list[str]] = {
    "enrich": ["worker", "enrich", "--concurrency", "2"],
    "control": ["worker", "control", "--concurrency", "1"],
    "beat": ["beat"],
}


@dataclass
class Fleet:
    """Servers and processes of one installation, which the tests kill."""

    root: Path
    servers: embedded.Servers
    env: dict[str, str]
    script: Path
    """Run in place of `larder` for the processes; commands are the product's own."""
    commands: Mapping[str, list[str]] = field(default_factory=lambda: ENRICHING)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def started(cls, root: Path, script: Path) -> Self:
        """The servers of the folder `root`, with its larder.yaml; no process of ours runs yet."""
        servers = embedded.ensure(root / ".larder")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
        env = {**clean, "PYTHONPATH": str(ROOT), "LARDER_CONFIG": str(root / "larder.yaml"), "NO_COLOR": "1"}
        return cls(root, servers, env, script)

    def revive(self) -> None:
        """Start what does not run."""
        for name, command in self.commands.items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                with (self.root / f"{name}.log").open("ab") as log:
                    self.processes[name] = subprocess.Popen(
                        [sys.executable, str(self.script), *command],
                        cwd=self.root,
                        env=self.env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def kill(self, name: str) -> None:
        """End a process and all its children, without a chance to say goodbye."""
        process = self.processes[name]
        with suppress(psutil.Error):
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                with suppress(psutil.Error):
                    one.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Kill all, and stop the servers."""
        for name in self.processes:
            self.kill(name)
        embedded.stop(self.root / ".larder")

    def client(self) -> Client:
        return Client(self.servers.database_url, broker_url=self.servers.broker_url, deadline=60)

    def sql(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """As one who sees every tenant, on the server itself."""
        password = embedded.Credentials.of(self.root / ".larder").postgres
        port = psycopg.conninfo.conninfo_to_dict(self.servers.database_url)["port"]
        with psycopg.connect(
            host="127.0.0.1",
            port=port,
            user="postgres",
            password=password,
            dbname="larder",
            autocommit=True,
        ) as connection:
            return connection.execute(query, args or None).fetchall()

    def larder(self, *args: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command, to its end within so many seconds."""
        return subprocess.run(
            [sys.executable, "-m", "workers.cli", *args],
            cwd=self.root,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
