"""The supervisor of one machine: starts processes, restarts those that end or do not respond, stops all together."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy.engine import make_url

from connectors.sections import MASK, secret_value, without_secrets
from pipeline.errors import ConfigurationError, LarderError, pause_after
from workers.local import embedded
from workers.local.embedded import Credentials, write_private
from workers.local.embedded.locating import uses_embedded
from workers.local.local_socket import STARTED_AS, program_version, variables_digest
from workers.monitoring import liveness, logs
from workers.monitoring.liveness import process_start
from workers.queue.celeryconfig import MIRROR, QUEUES
from workers.runtime import Addresses
from workers.settings import Settings, load
from workers.settings.environment import WITHHELD, lookup, unused_secrets
from workers.settings.rendering import in_force

read_state, running, living_processes = liveness.read_state, liveness.running, liveness.living_processes

STOP_SECONDS = 45.0
"""Seconds to stop a worker; its soft shutdown takes up to 30."""
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0
"""Seconds of life after which the failures of a process are forgotten."""
SERVERS = ("database", "broker", "valkey")
FLOWER = "flower"
"""Process without a heartbeat. It is no fork: its counts are not added to the others', which is decided when the
library is loaded."""
FLOWER_AUTH = "LARDER_FLOWER_AUTH"
LARDER = [sys.executable, "-m", "workers.cli"]
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ANSWERING = ("worker-enrich", "api")
"""Processes that people wait for: they begin anew one after the other, once all others have."""
LOADED_BEFORE_FORK = {"api": ("workers.api.app",)}
"""Modules of one process that take most of its start: this process loads them once, while the ones before it start."""
FREE_RESTARTS = 2
"""Restarts in a row that come at once; later ones wait 2, 4, 8 seconds and so on."""


@dataclass
class Child:
    """One supervised process, and its restarts."""

    name: str
    command: list[str]
    process: psutil.Process | None = None
    started: float = 0.0
    failures: int = 0
    next_start: float = 0.0
    ending_pid: int = 0
    """Number of the process that was told to end, to begin anew with another configuration."""
    ending_since: float = 0.0


@dataclass
class Supervisor:
    """Owns the children; `run` returns after a signal, with everything stopped."""

    settings: Settings
    addresses: Addresses
    flower_port: int | None = None
    api_port: int | None = None
    queues: Sequence[str] = QUEUES
    """Queues whose workers are started; with that of ingest goes the one of vector stores, if there are some."""
    lends: bool = False
    """True: workers and beat for the length of one command; servers and state are not its own."""
    fork: Callable[[Sequence[str], Mapping[str, str], Path], int] | None = None
    """Runs a command in a fork: its words, environment and folder -> its exit code. Without it each process is a new
    Python, which takes two seconds of a core to start."""
    stopping: threading.Event = field(default_factory=threading.Event)
    reloading: threading.Event = field(default_factory=threading.Event)
    children: list[Child] = field(default_factory=list)
    outdated: list[Child] = field(default_factory=list)
    """Children that have yet to begin anew with the configuration taken over last."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    """The settings as `state.json` tells them; made once, since that costs more than all else of a look."""
    state: dict[str, object] = field(default_factory=dict)
    """Content of `state.json`, as written last."""
    servers: dict[str, int] = field(default_factory=dict)
    """The embedded servers, as they were found last: name -> process number."""
    trouble: str = ""
    """Error that broke off the last look; empty after a good one."""
    program: list[object] = field(default_factory=program_version)
    ended_by: int = 0
    """The signal that ended `run`."""

    @property
    def data(self) -> Path:
        """The folder of state, logs and heartbeats."""
        return self.settings.data

    def plan(self) -> None:
        """Decide which processes to run."""
        self.children = [Child(name, command) for name, command in self._commands().items()]
        self.configuration = in_force(self.settings)

    def _commands(self) -> dict[str, list[str]]:
        """Name of each process -> its command."""
        mirrors = [MIRROR] if self.settings.stores and "ingest" in self.queues else []
        arguments = {f"worker-{q}": ["worker", q] for q in (*self.queues, *mirrors)} | {"beat": ["beat"]}
        if self.flower_port is not None:
            arguments["flower"] = ["flower", "--port", str(self.flower_port)]
        if self.api_port is not None:
            arguments["api"] = ["api", "--port", str(self.api_port)]
        return {name: [*LARDER, *args] for name, args in arguments.items()}

    def run(
        self, ready: Callable[[], None] = lambda: None, leaving: Callable[[], None] = lambda: None
    ) -> None:
        """Start everything, call `ready`, look after it until `stopping`, call `leaving`, stop everything."""
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._end)
        if not self.lends:
            signal.signal(signal.SIGHUP, lambda *_: self.reloading.set())
        self.plan()
        shutil.rmtree(self.data / "metrics", ignore_errors=True)  # process numbers come again
        (self.data / "metrics").mkdir(parents=True)
        try:
            for child in self.children:
                self._start(child)
            self.write_state()
            ready()
            while not self.stopping.wait(0.1 if self.outdated else 0.5):
                try:
                    self.look()
                    self.trouble = ""
                except (LarderError, OSError) as error:
                    # The error passes, as a full disk does, and nobody else would start things again after it.
                    if str(error) != self.trouble:
                        logs.write_line(f"the processes cannot be checked: {error}; it is tried again")
                    self.trouble = str(error)
            leaving()
        finally:
            self.stop_children()
            if not self.lends:
                _stop_servers(self.data)

    def _end(self, number: int, _frame: object) -> None:
        self.ended_by = self.ended_by or number
        self.stopping.set()

    def look(self) -> None:
        """Check all processes once: restart what has died or does not respond, servers first."""
        if self.reloading.is_set():
            self.reloading.clear()
            self.reload_settings()
        self.write_state()
        ages = liveness.ages(self.data / "heartbeat")
        self._renew(ages)
        for child in self.children:
            lived = time.monotonic() - child.started
            if child.process is None:
                if time.monotonic() >= child.next_start:
                    self._start(child)
            elif (code := ended(child.process)) is None:
                # A process that lives and no longer consumes is of no use: its heartbeat tells.
                deaf = ages.get(child.name, 0.0) > liveness.DEAF_SECONDS
                if deaf and lived > 2 * liveness.DEAF_SECONDS:
                    silent = f"gave no sign of life for {ages[child.name]:.0f} s and is ended"
                    logs.write_line(f"{child.name} (process {child.process.pid}) {silent}")
                    kill_tree(child.process.pid)
            else:
                self._tell_end(child, child.process.pid, code, lived)
                was_told = child.process.pid == child.ending_pid
                child.failures = 0 if was_told or lived > STEADY_SECONDS else child.failures + 1
                late = child.failures - FREE_RESTARTS
                child.next_start = time.monotonic() + (
                    pause_after(late, first=2.0, most=LONGEST_PAUSE) if late > 0 else 0
                )
                child.process = None
        limits = self.settings.rag.monitoring.logging
        for path in (self.data / "logs").glob("*.log"):
            logs.rotate(path, most_bytes=int(limits.max_size), files=limits.max_files)

    def reload_settings(self) -> None:
        """Read the configuration anew, and have every process begin anew with it; a wrong one changes nothing."""
        before = self.settings
        try:
            new = load(before.path, {**os.environ, "LARDER_DATA": str(self.data)})
            if any(getattr(new, f"{server}_url") != getattr(before, f"{server}_url") for server in SERVERS):
                raise ConfigurationError("it names other servers", fix="larder down, then larder up --detach")
        except LarderError as error:
            logs.write_line(f"the configuration stays as it was: {error}")
            return
        self.settings, self.configuration = new, in_force(new)
        for name in ("flower", "api"):
            port = getattr(self.settings.rag, name).port
            if port and port != getattr(before.rag, name).port and getattr(self, f"{name}_port") is not None:
                setattr(self, f"{name}_port", port)
        commands = self._commands()
        for child in self.children:
            child.command = commands.get(child.name, child.command)
            if child.process is not None and child.process.pid != child.ending_pid:
                child.ending_pid = 0  # else it is ending already: told so twice, a worker drops what it is at
        self.outdated = list(self.children)
        known = {child.name for child in self.children}
        self.children += [Child(name, command) for name, command in commands.items() if name not in known]
        logs.write_line("the changed configuration is taken over: the processes restart")

    def _renew(self, ages: Mapping[str, float]) -> None:
        """Renew outdated processes: those that nobody waits for at once, the others one after the other."""
        background = [child for child in self.outdated if child.name not in ANSWERING]
        for child, process in [(one, one.process) for one in background or self.outdated[:1]]:
            if process is None:
                continue
            if not child.ending_pid:
                child.ending_pid, child.ending_since = process.pid, time.monotonic()
                process.terminate()
            elif child.ending_pid == process.pid:
                if time.monotonic() - child.ending_since > STOP_SECONDS:
                    kill_tree(process.pid)
            elif ended(process) is None and (child.name in ages or child.name == FLOWER):
                self.outdated.remove(child)

    def _tell_end(self, child: Child, pid: int, code: int, lived: float) -> None:
        """Log the end of a process, which may have had no time for a line of its own."""
        if not self.lends:
            ending = (
                f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            logs.write_line(f"{child.name} (process {pid}) {ending} after {lived:.0f} s and is started again")

    def _start(self, child: Child) -> None:
        log = self.data / "logs" / f"{child.name}.log"
        (self.data / "heartbeat" / f"{child.name}.heartbeat").unlink(missing_ok=True)
        environment = self.environment(child.name)
        if self.fork and child.name != FLOWER:
            for module in LOADED_BEFORE_FORK.get(child.name, ()):
                import_module(module)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                child.process = self._forked(self.fork, child, environment, output.fileno())
        else:
            child.process = embedded.start_detached(
                child.command, log, env=environment, cwd=self.settings.folder
            )
        child.started = time.monotonic()

    def _forked(
        self,
        run: Callable[[Sequence[str], Mapping[str, str], Path], int],
        child: Child,
        environment: Mapping[str, str],
        output: int,
    ) -> psutil.Process:
        sys.stdout.flush()  # else it is written twice
        gc.freeze()  # pages that its collector does not write to stay shared
        signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)  # until the fork has handlers of its own
        try:
            if pid := os.fork():
                return psutil.Process(pid)
            code = 1
            try:
                os.setsid()
                for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                    os.dup2(stream, number)
                for sign in _END_SIGNALS:
                    signal.signal(sign, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
                with suppress(OSError):  # what `top` and `ps -e` show; all have one command line
                    Path("/proc/self/comm").write_text(child.name, encoding="ascii")
                code = run(child.command[len(LARDER) :], environment, self.settings.folder)
            except BaseException:  # noqa: BLE001 (a fork must not go on as the process that it was)
                traceback.print_exc()
            finally:  # nor where it cannot print that, on a full disk
                os._exit(code)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)

    def environment(self, name: str) -> dict[str, str]:
        """Environment in which a child finds the same servers and settings; secrets go this way, not on command lines.

        No child migrates, and only workers and the API read tables and ask services: what it does not open is told
        without the password. Secrets that it does not use are withheld, and it is told their names, since the file
        may name their variables.
        """
        w, worker = self.addresses, name.startswith(("worker-", "api"))
        addresses = {
            "LARDER_DATABASE_URL": w.database if worker else _without_password(w.database),
            "LARDER_CONTROL_DATABASE_URL": w.control if worker else _without_password(w.control),
            "LARDER_ADMIN_DATABASE_URL": _without_password(w.admin),
            "LARDER_BROKER_URL": w.broker,
            "LARDER_VALKEY_URL": w.valkey_url,
            **({"LARDER_ENCRYPTION_KEYS": w.encryption_keys} if worker else {}),
        }
        withheld = unused_secrets(name, self.settings.variables) | {"LARDER_ENCRYPTION_KEYS"}
        withheld -= {variable for variable, value in addresses.items() if value}
        replaced = {*addresses, *withheld, *([] if name == "flower" else [FLOWER_AUTH])}
        env = {
            **{key: value for key, value in os.environ.items() if key.removesuffix("_FILE") not in replaced},
            **{key: value for key, value in addresses.items() if key not in withheld},
            WITHHELD: ",".join(sorted(withheld)),
            "LARDER_DATA": str(self.data),
            "LARDER_TENANT": self.settings.tenant,
            "LARDER_PROJECT": self.settings.project,
            "REMAP_SIGTERM": "SIGQUIT",  # short tasks finish, long ones are put back at once
            "PROMETHEUS_MULTIPROC_DIR": str(self.data / "metrics"),
        }
        if name == "api":
            env[STARTED_AS] = json.dumps(
                [self.program, variables_digest(self.settings.variables, os.environ)]
            )
        if name == FLOWER:  # it has metrics of its own, which tell the names of tasks and workers
            del env["PROMETHEUS_MULTIPROC_DIR"]
        if self.settings.path:
            env["LARDER_CONFIG"] = str(self.settings.path)
        env.pop("LARDER_HEARTBEAT_DIR", None)  # it is looked for in the data folder
        return env

    def write_state(self) -> None:
        """See that the embedded servers run, and tell other commands what runs where, if that is new."""
        running = [("supervisor", os.getpid(), 0)]
        if uses_embedded(self.settings):
            servers = embedded.ensure(self.data)
            pids = {"postgres": servers.postgres_pid, "valkey": servers.valkey_pid}
            for name in (name for name, pid in pids.items() if self.servers.get(name, pid) != pid):
                logs.write_line(f"{name} had ended and was started again: its log says more")
            self.servers = pids
            running += [(name, pid, 0) for name, pid in pids.items()]
        if self.lends:
            return
        running += [(c.name, c.process.pid, c.failures) for c in self.children if c.process]
        credentials = Credentials.of_folder(self.data)
        api = f"http://{self.settings.rag.api.host}:{self.api_port}" if self.api_port is not None else None
        flower: dict[str, object] = dict.fromkeys(("flower_url", "flower_user", "flower_password"))
        if self.flower_port is not None:
            url = f"http://127.0.0.1:{self.flower_port}{self.settings.rag.flower.url_prefix}"
            flower["flower_url"] = url
            if not self.settings.rag.flower.oauth.provider:
                user, _, flower["flower_password"] = flower_login(os.environ, self.data).partition(":")
                flower["flower_user"] = user
        state: dict[str, object] = {
            "database_url": self.addresses.database,
            "control_database_url": self.addresses.control,
            "admin_database_url": self.addresses.admin,
            "broker_url": self.addresses.broker,
            "api_url": api,
            **flower,
            "postgres_password": credentials.postgres if uses_embedded(self.settings) else None,
            "jwt_secret": secret_value(self.settings.rag.auth.secret) or credentials.jwt,
            "pids": [pid for _, pid, _ in running],
            "folder": self.data.stat().st_ino,
            "configuration": {"file": str(self.settings.path or ""), **self.configuration},
            "outdated": [child.name for child in self.outdated],
            "processes": [
                {"name": name, "pid": pid, "started": process_start(pid), "failures": failures}
                for name, pid, failures in running
            ],
        }
        if state != self.state:
            self.state = state
            write_private(self.data / "state.json", json.dumps(state, indent=1))

    def stop_children(self) -> None:
        """Stop workers, beat and Flower, softly first."""
        alive = [c.process for c in self.children if c.process and ended(c.process) is None]
        for process in alive:
            process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in alive:
            with suppress(psutil.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            kill_tree(process.pid)


def ended(process: psutil.Process) -> int | None:
    """The exit code of a child of ours, minus the signal that ended it; None while it lives."""
    try:
        code: int = process.wait(0)
    except psutil.TimeoutExpired:
        return None
    return code


def flower_login(environ: Mapping[str, str], data: Path) -> str:
    """`user:password` of Flower: what the variable says, else what the data folder keeps.

    Raises:
        ConfigurationError: the variable says no such pair, so nobody could log in.
    """
    login = lookup(environ)(FLOWER_AUTH) or f"larder:{Credentials.of_folder(data).flower}"
    if not all(login.partition(":")):
        raise ConfigurationError(
            "LARDER_FLOWER_AUTH has no user and password", fix="write it as user:password"
        )
    return login


def _without_password(url: str) -> str:
    """The address with its user, host and database; options may hold passwords too."""
    return make_url(url).set(query={})._replace(password=None).render_as_string() if url else ""


def kill_tree(pid: int) -> None:
    """Kill a process and all it has started."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                one.kill()


@contextmanager
def single_supervisor(data: Path) -> Iterator[None]:
    """Hold the lock of the one supervisor of this data folder, however many begin at once.

    Raises:
        ConfigurationError: there can be no such folder.
        LarderError: another one runs.
    """
    with (embedded.private_folder(data) / "supervisor.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refuse_second(data) from None
        # Left behind by one that was killed: nobody would ever stop them.
        _end_children(data)
        # The supervisor's own entry, for a `down` that comes before there is more to tell.
        os.register_at_fork(after_in_child=handle.close)  # a fork that outlives us must not hold the lock
        entry = {"name": "supervisor", "pid": os.getpid(), "started": process_start(os.getpid())}
        write_private(data / "state.json", json.dumps({"processes": [entry], "folder": data.stat().st_ino}))
        try:
            yield
        finally:
            (data / "state.json").unlink(missing_ok=True)


def refuse_second(data: Path) -> LarderError:
    """The error for a second supervisor on one data folder."""
    return LarderError(f"already running with {data}", fix="larder down, or another folder with --data")


def without_secrets_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it may be shown: passwords, keys, and what would let somebody guess them, are masked."""
    masked = dict(state)
    for key in ("postgres_password", "jwt_secret", "flower_password"):
        masked[key] = masked.get(key) and MASK
    for key in (name for name, value in state.items() if name.endswith("_url") and value):
        masked[key] = without_secrets(str(state[key]))
    masked["configuration"] = {**(state.get("configuration") or {}), "secrets": MASK}
    return masked


def _end_children(data: Path) -> None:
    """End processes that a killed supervisor left running; servers are looked after by their own folders."""
    for name, pid in running(data).items():
        if name not in {"postgres", "valkey"} and pid != os.getpid():
            kill_tree(pid)


def _stop_servers(data: Path) -> list[str]:
    """Stop the embedded servers, if any run; their data stay."""
    stopped = embedded.stop(data) if data.exists() else []
    (data / "state.json").unlink(missing_ok=True)
    return stopped


def shut_down(data: Path) -> list[str]:
    """Stop what `up` started and any embedded server; the names of what was stopped."""
    names = running(data)
    if boss := names.get("supervisor"):
        with suppress(psutil.Error):
            process = psutil.Process(boss)
            process.terminate()
            process.wait(STOP_SECONDS + 40)
    _end_children(data)
    return list(dict.fromkeys([*names, *_stop_servers(data)]))
