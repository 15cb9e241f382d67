"""All processes of one machine: starts them, restarts what dies or goes deaf, stops them together."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipeline.errors import LarderError
from workers import embedded
from workers.embedded import Credentials, write_private
from workers.embedded.locating import uses_embedded
from workers.processes import liveness, logs
from workers.processes.liveness import is_same_process, process_start
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Addresses
from workers.settings import Settings

STOP_SECONDS = 45.0
"""Soft shutdown of a worker takes up to 30 seconds."""
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0
"""A process that lived this long starts with a clean record."""
FREE_RESTARTS = 2
"""As many restarts in a row come at once; later ones wait 2, 4, 8 seconds and so on."""


@dataclass
class Child:
    """One process of ours and how it fares."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    next_start: float = 0.0


@dataclass
class Supervisor:
    """Owns the children; `run` returns after a signal, with everything stopped."""

    settings: Settings
    where: Addresses
    flower_port: int | None = None
    queues: Sequence[str] = QUEUES
    """Whose workers to start."""
    lends: bool = False
    """True: workers and beat for the length of one command; servers and state are not its own."""
    stopping: threading.Event = field(default_factory=threading.Event)
    children: list[Child] = field(default_factory=list)
    server_pids: tuple[int, ...] = ()
    ended_by: int = 0
    """The signal that ended `run`."""

    @property
    def data(self) -> Path:
        """The folder of state, logs and heartbeats."""
        return self.settings.data

    def plan(self) -> None:
        """Decide which processes there shall be."""
        base = [sys.executable, "-m", "workers.cli"]
        self.children = [Child(f"worker-{q}", [*base, "worker", q]) for q in self.queues]
        self.children.append(Child("beat", [*base, "beat"]))
        if self.flower_port is not None:
            self.children.append(Child("flower", [*base, "flower", "--port", str(self.flower_port)]))

    def run(self, ready: Callable[[], None], leaving: Callable[[], None] = lambda: None) -> None:
        """Start everything, call `ready`, look after it until a signal comes, call `leaving`, stop everything."""
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._end)
        self.plan()
        try:
            for child in self.children:
                self._start(child)
            self.write_state()
            ready()
            while not self.stopping.wait(0.5):
                self.look()
            leaving()
        finally:
            self.stop()

    def _end(self, number: int, _frame: object) -> None:
        self.ended_by = self.ended_by or number
        self.stopping.set()

    def lend(self) -> None:
        """As `run`, from a thread of a command: no signals, no state, and the servers go on afterwards."""
        self.plan()
        try:
            for child in self.children:
                self._start(child)
            while not self.stopping.wait(0.5):
                self.look()
        finally:
            self.stop_children()

    def look(self) -> None:
        """One round: restart what has died or stopped beating, servers first."""
        changed = self._look_after_servers()
        ages = liveness.ages(self.data / "heartbeat")
        for child in self.children:
            self._kill_deaf(child, ages)
            if child.process is None or child.process.poll() is None:
                if child.process is None and time.monotonic() >= child.next_start:
                    self._start(child)
                    changed = True
                continue
            lived = time.monotonic() - child.started
            child.failures = 0 if lived > STEADY_SECONDS else child.failures + 1
            late = child.failures - FREE_RESTARTS
            child.next_start = time.monotonic() + (min(LONGEST_PAUSE, 2.0**late) if late > 0 else 0)
            child.process = None
            changed = True
        if changed and not self.lends:
            self.write_state()
        self._rotate_logs()

    def _look_after_servers(self) -> bool:
        """Start an embedded server that has died, on its old port; True if one had."""
        if not uses_embedded(self.settings):
            return False
        servers = embedded.ensure(self.data)
        found = (servers.postgres_pid, servers.valkey_pid)
        changed = self.server_pids not in ((), found)
        self.server_pids = found
        return changed

    @staticmethod
    def _kill_deaf(child: Child, ages: dict[str, float]) -> None:
        """A process that lives and no longer consumes is of no use: its heartbeat tells."""
        age = ages.get(child.name)
        process = child.process
        if process is None or age is None or process.poll() is not None:
            return
        if age > liveness.DEAF_SECONDS and time.monotonic() - child.started > 2 * liveness.DEAF_SECONDS:
            kill_tree(process.pid)

    def _rotate_logs(self) -> None:
        limits = self.settings.rag.monitoring.logging
        for path in (self.data / "logs").glob("*.log"):
            logs.rotate(path, most_bytes=int(limits.max_size), files=limits.max_files)

    def _start(self, child: Child) -> None:
        log = self.data / "logs" / f"{child.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (self.data / "heartbeat" / f"heartbeat-{child.name}.json").unlink()
        with log.open("ab") as output:
            child.process = subprocess.Popen(
                child.command,
                env=self.environment(),
                cwd=self.settings.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child.started = time.monotonic()

    def environment(self) -> dict[str, str]:
        """What a child needs to find the same servers and settings; secrets go this way, not on command lines."""
        env = {
            **os.environ,
            "LARDER_DATA": str(self.data),
            "LARDER_DATABASE_URL": self.where.database,
            "LARDER_CONTROL_DATABASE_URL": self.where.control,
            "LARDER_ADMIN_DATABASE_URL": self.where.admin,
            "LARDER_BROKER_URL": self.where.broker,
            "LARDER_TENANT": self.settings.tenant,
            "LARDER_PROJECT": self.settings.project,
            "REMAP_SIGTERM": "SIGQUIT",  # short tasks finish, long ones are put back at once
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self.settings.path:
            env["LARDER_CONFIG"] = str(self.settings.path)
        return env

    def write_state(self) -> None:
        """Tell other commands what runs where."""
        credentials = Credentials.of(self.data)
        running = [("supervisor", os.getpid())]
        if uses_embedded(self.settings):
            servers = embedded.ensure(self.data)
            running += [("postgres", servers.postgres_pid), ("valkey", servers.valkey_pid)]
        running += [(c.name, c.process.pid) for c in self.children if c.process]
        flower = self.flower_port is not None
        state = {
            "database_url": self.where.database,
            "control_database_url": self.where.control,
            "admin_database_url": self.where.admin,
            "broker_url": self.where.broker,
            "api_url": None,
            "flower_url": f"http://127.0.0.1:{self.flower_port}{self.settings.rag.flower.url_prefix}"
            if flower
            else None,
            "flower_user": "larder" if flower else None,
            "flower_password": credentials.flower if flower else None,
            "postgres_password": credentials.postgres if uses_embedded(self.settings) else None,
            "jwt_secret": credentials.jwt,
            "pids": [pid for _, pid in running],
            "processes": [{"name": name, "pid": pid, "started": process_start(pid)} for name, pid in running],
        }
        write_private(self.data / "state.json", json.dumps(state, indent=1))

    def stop(self) -> None:
        """Stop the children, then the embedded servers; what they hold stays."""
        self.stop_children()
        if uses_embedded(self.settings):
            embedded.stop(self.data)
        (self.data / "state.json").unlink(missing_ok=True)

    def stop_children(self) -> None:
        """Stop workers, beat and Flower, softly first."""
        alive = [c.process for c in self.children if c.process and c.process.poll() is None]
        for process in alive:
            with suppress(ProcessLookupError):
                process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            kill_tree(process.pid)

    def kill_children(self) -> None:
        """End workers, beat and Flower at once; what they were at is done again by others."""
        for child in self.children:
            if child.process is not None:
                kill_tree(child.process.pid)


def kill_tree(pid: int) -> None:
    """Kill a process and all it has started."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                one.kill()


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Be the one supervisor of this data folder, however many begin at once.

    Raises:
        ConfigurationError: there can be no such folder.
        LarderError: another one runs.
    """
    with (embedded.made(data) / "supervisor.lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise already(data) from None
        # Who it is, for a `down` that comes before there is a state.
        handle.truncate(0)
        handle.write(json.dumps({"pid": os.getpid(), "started": process_start(os.getpid())}))
        handle.flush()
        # Left behind by one that was killed: nobody would ever stop them.
        _end_children(data)
        yield


def already(data: Path) -> LarderError:
    """Two sets of processes on one data folder would be in each other's way."""
    return LarderError(f"already running with {data}", fix="larder down, or another folder with --data")


def _beginning(data: Path) -> dict[str, int]:
    """The supervisor as its lock tells it: it may have no state yet."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((data / "supervisor.lock").read_text(encoding="utf-8"))
        if is_same_process(found["pid"], found["started"]):
            return {"supervisor": int(found["pid"])}
    return {}


def read_state(data: Path) -> dict[str, object] | None:
    """What `up` wrote; None if it does not run."""
    with suppress(OSError, ValueError):
        found = json.loads((data / "state.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def running(data: Path) -> dict[str, int]:
    """Living processes of the data folder by name, one that is beginning too; a reused process id does not count."""
    found = _beginning(data)
    entries = (read_state(data) or {}).get("processes")
    for entry in entries if isinstance(entries, list) else []:
        with suppress(KeyError, TypeError):  # a state that nobody of ours wrote
            if is_same_process(entry["pid"], entry["started"]):
                found[entry["name"]] = entry["pid"]
    return found


def _end_children(data: Path) -> None:
    """End what a supervisor left behind; servers are looked after by their own folders."""
    for name, pid in running(data).items():
        if name not in {"postgres", "valkey"} and pid != os.getpid():
            kill_tree(pid)


def shut_down(data: Path) -> list[str]:
    """Stop what `up` started and any embedded server; the names of what was stopped."""
    names = running(data)
    boss = names.get("supervisor")
    if boss:
        with suppress(psutil.Error):
            process = psutil.Process(boss)
            process.terminate()
            process.wait(STOP_SECONDS + 40)
    _end_children(data)
    servers = []
    if data.exists():
        servers = embedded.stop(data)
        (data / "state.json").unlink(missing_ok=True)
    return list(dict.fromkeys([*names, *servers]))
