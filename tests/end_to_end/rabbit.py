"""A RabbitMQ server of its own: as this user, on a free port of 127.0.0.1, with a data folder that is thrown away."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import amqp

from workers.local.embedded import free_port
from workers.local.supervisor import kill_tree
from workers.queue import broker

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Debian's own; those in /usr/sbin become the user `rabbitmq`, or refuse."""
START_SECONDS = 120.0


@dataclass
class RabbitServer:
    """`start` and `kill` may be called many times; what is durable outlives both, until `wipe`."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="larder-rabbit-")))
    port: int = field(default_factory=free_port)
    names_port: int = field(default_factory=free_port)
    """Of epmd, which tells Erlang's nodes of each other."""
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"amqp://larder:{self.password}@127.0.0.1:{self.port}//"

    @property
    def data(self) -> Path:
        return self.folder / "mnesia"

    def __enter__(self) -> Self:
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise AssertionError("no rabbitmq-server is installed: apt-get install rabbitmq-server")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"default_user = larder\ndefault_pass = {self.password}\n"
            # A disk that is nearly full stops all senders; this one may lie in memory.
            "disk_free_limit.absolute = 1MB\n"
        )
        (self.folder / "plugins").write_text("[].\n")
        try:
            self._run("epmd", "-port", str(self.names_port), "-address", "127.0.0.1")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Begin, and wait until it lets its user in."""
        self._run(str(PROGRAMS / "rabbitmq-server"))
        end = time.monotonic() + START_SECONDS
        while why := broker.connect_problem(self.url):
            told = (self.folder / "output.log").read_text()[-2000:]
            assert self._processes[-1].poll() is None, told
            assert time.monotonic() < end, f"RabbitMQ {why}: {told}"
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a crash of its machine would."""
        _kill(self._processes.pop())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes connections and says nothing."""
        os.killpg(self._processes[-1].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._processes[-1].pid, signal.SIGCONT)

    def publish(self, queue: str, body: bytes, **properties: object) -> None:
        """A message as anybody may write one."""
        with self._connection() as connection:
            channel = connection.channel()
            channel.basic_publish(amqp.Message(body, **properties), routing_key=queue)

    def declare_classic(self, host: str, queue: str) -> None:
        """A queue of the kind that is usual, on a virtual host."""
        with self._connection(host) as connection:
            connection.channel().queue_declare(queue, durable=True, auto_delete=False)

    def wipe(self) -> None:
        """Have it begin anew with nothing, as one whose disk was lost."""
        self.kill()
        shutil.rmtree(self.data)
        self.start()

    def control(self, *command: str) -> str:
        """What `rabbitmqctl` says."""
        done = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "--quiet", "--node", f"larder{self.port}@localhost", *command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def list(self, what: str, *columns: str) -> list[list[str]]:
        """What there is, as `rabbitmqctl list_queues` and its like tell."""
        told = json.loads(self.control(f"list_{what}", "--formatter", "json", *columns))
        return [[row[column] for column in columns] for row in told]

    def consumers(self, queue: str) -> int:
        """How many read a queue; 0 of one that is not there. `rabbitmqctl` takes a second of a core to tell."""
        with self._connection() as connection, suppress(amqp.exceptions.NotFound):
            return int(connection.channel().queue_declare(queue, passive=True).consumer_count)
        return 0

    def _connection(self, host: str = "/") -> Any:
        return amqp.Connection(
            f"127.0.0.1:{self.port}", userid="larder", password=self.password, virtual_host=host
        )

    def _run(self, *command: str) -> None:
        with (self.folder / "output.log").open("ab") as output:
            made = subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(made)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),  # where the cookie lies
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self.names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"larder{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self.data / "flags"),
            # Two schedulers: each thread more of a machine that many use waits busily.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            " -kernel inet_dist_use_interface {127,0,0,1}",
        }

    _distribution: int = field(default_factory=free_port)


def _kill(process: subprocess.Popen[bytes]) -> None:
    kill_tree(process.pid)
    process.wait()
