"""Workers and beat as processes of a test, which kills them and starts them again as a supervisor would."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Self

import psutil
import psycopg

from tests import forked, template
from tests.forked import Forked
from tests.ledger import Ledger, of_all
from workers.client import Client
from workers.local import embedded

ENRICHING: Mapping[str, list[str]] = {
    "enrich": ["worker", "enrich", "--concurrency", "2"],
    "control": ["worker", "control", "--concurrency", "1"],
    "beat": ["beat"],
}


@dataclass(kw_only=True)
class Processes:
    """Processes of one installation, by name."""

    root: Path
    env: dict[str, str]
    script: Path | None = None
    """Run in place of `larder` for the processes; commands are the product's own."""
    commands: Mapping[str, Sequence[str]] = field(default_factory=lambda: ENRICHING)
    env_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What single processes have in their environment besides."""
    processes: dict[str, Forked | subprocess.Popen[bytes]] = field(default_factory=dict)

    def revive(self) -> None:
        """Start what does not run."""
        for name, command in self.commands.items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                env = {**self.env, **self.env_of.get(name, {})}
                self.processes[name] = self._begun(command, env, self.root / f"{name}.log")

    def _begun(
        self, command: Sequence[str], env: dict[str, str], log: Path
    ) -> Forked | subprocess.Popen[bytes]:
        if "LD_PRELOAD" not in env or self.script is None:
            return Forked(command, cwd=self.root, env=env, out=log, script=self.script)
        with log.open("ab") as out:  # a library that comes first does so at the start of a program only
            return subprocess.Popen(
                [sys.executable, self.script, *command],
                cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def family(self, name: str) -> list[psutil.Process]:
        """The process and all that it has started; none if it is gone."""
        with suppress(KeyError, psutil.Error):
            first = psutil.Process(self.processes[name].pid)
            return [first, *first.children(recursive=True)]
        return []

    def kill(self, name: str) -> None:
        """End a process and all its children, without a chance to say goodbye."""
        for one in self.family(name):
            with suppress(psutil.Error):
                one.kill()
        if name in self.processes:
            self.processes[name].wait()

    def stop(self) -> None:
        """Kill all."""
        for name in self.processes:
            self.kill(name)

    def larder(self, *args: str, seconds: float = 120) -> CompletedProcess[str]:
        """A command, to its end within so many seconds."""
        return forked.run(args, cwd=self.root, env=self.env, seconds=seconds)


@dataclass(kw_only=True)
class Fleet(Processes):
    """The same with servers of its own."""

    servers: embedded.Servers

    @classmethod
    def started(
        cls, root: Path, script: Path | None = None, commands: Mapping[str, Sequence[str]] = ENRICHING
    ) -> Self:
        """The servers of the folder `root`, with its larder.yaml; no process of ours runs yet."""
        template.prepare(root / ".larder")
        servers = embedded.ensure(root / ".larder")
        env = forked.environment(LARDER_CONFIG=str(root / "larder.yaml"))
        return cls(root=root, env=env, script=script, servers=servers, commands=commands)

    def stop(self) -> None:
        """Kill all, stop the servers and remove what they hold, of which pytest would keep three runs."""
        super().stop()
        embedded.stop(self.root / ".larder")
        shutil.rmtree(self.root / ".larder", ignore_errors=True)

    @property
    def database(self) -> dict[str, str]:
        """The variables that name its database; whoever names another broker names all servers."""
        return {
            "LARDER_DATABASE_URL": self.servers.database_url,
            "LARDER_CONTROL_DATABASE_URL": self.servers.control_url,
            "LARDER_ADMIN_DATABASE_URL": self.servers.admin_url,
        }

    def client(self) -> Client:
        return Client(self.servers.database_url, broker_url=self.servers.broker_url, deadline=60)

    def superuser(self, database: str = "larder") -> psycopg.Connection[Any]:
        """One who sees every tenant, on the server itself."""
        password = embedded.Credentials.of_folder(self.root / ".larder").postgres
        port = psycopg.conninfo.conninfo_to_dict(self.servers.database_url)["port"]
        return psycopg.connect(
            host="127.0.0.1",
            port=port,
            user="postgres",
            password=password,
            dbname=database,
            autocommit=True,
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger(of_all(self.superuser))

    def sql(self, query: str, *args: Any, database: str = "larder") -> list[tuple[Any, ...]]:
        """As that one."""
        with self.superuser(database) as connection:
            done = connection.execute(query, args or None)
            return done.fetchall() if done.description else []


def indexers() -> dict[str, list[str]]:
    """Workers that index, and the beat."""
    workers = {name: ["worker", name, "--concurrency", "2"] for name in ("control", "ingest", "embed")}
    return {**workers, "beat": ["beat"]}


@contextmanager
def indexing(root: Path) -> Iterator[Fleet]:
    """An installation in the folder `root`, with its larder.yaml, whose workers index."""
    fleet = Fleet.started(root, commands=indexers())
    try:
        fleet.revive()
        end = time.monotonic() + 60
        while len(fleet.ledger.workers()) != 3:  # else a command starts workers of its own
            assert time.monotonic() < end, "the workers do not come up"
            time.sleep(0.05)
        yield fleet
    finally:
        fleet.stop()
