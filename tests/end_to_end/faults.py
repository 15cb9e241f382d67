"""What may happen at three in the morning: each fault as a function, and how often a full drill has it.

Each returns soon, and whether there was anything to strike; what ends it later is left to `Drill.tend`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import redis

from tests.end_to_end.attacked import WORKERS, Drill, environment
from workers.local import embedded
from workers.local.embedded.folder import stop_server


def _worker(drill: Drill, *among: str) -> str:
    free = [name for name in among or WORKERS if name not in drill.busy]
    return drill.chance.choice(free or ["control"])


def kill_worker(drill: Drill) -> bool:
    every = ("ingest", "embed", "embed", "ingest", "control", "enrich", "mirror", "mirror")
    name = _worker(drill, *(one for one in every if one in drill.fleet.commands))
    lived = bool(drill.fleet.family(name))
    drill.fleet.kill(name)
    return lived


def kill_child(drill: Drill) -> bool:
    children = drill.fleet.family(_worker(drill))[1:]
    with suppress(psutil.Error, IndexError):
        drill.chance.choice(children).kill()
        return True
    return False


def pause(drill: Drill) -> bool:
    """Children are frozen past their lease: they wake up and believe the work is still theirs."""
    name = _worker(drill, "ingest", "embed", "enrich")
    frozen = drill.fleet.family(name)[1:]
    drill.busy.add(name)

    def thaw() -> None:
        drill.busy.discard(name)
        for process in frozen:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)

    for process in frozen:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    drill.after(1.2 * drill.lease, thaw)
    return bool(frozen)


def stall(drill: Drill) -> bool:
    """A child stops in the middle of a transaction and goes on past its lease."""
    root = drill.fleet.root
    for file in ("stalled", "go"):
        (root / file).unlink(missing_ok=True)
    (root / "stall").write_text(drill.chance.choice(["cut", "embed", "write", "answer", "walk", "pump"]))
    end = time.monotonic() + 5
    while not (root / "stalled").exists() and time.monotonic() < end:
        time.sleep(0.05)
    (root / "stall").unlink(missing_ok=True)
    if stalled := (root / "stalled").exists():
        drill.after(1.2 * drill.lease, (root / "go").touch)
    return stalled


def drop(drill: Drill) -> bool:
    """Connections of three workers carry nothing any more, and neither end is told."""
    dropped = 0
    for proxy in (drill.store, drill.broker):
        proxy.forget()
        dropped += proxy.drop()
    drill.after(1.2 * drill.lease, drill.store.forget)
    drill.after(1.2 * drill.lease, drill.broker.forget)
    return dropped > 0


def wipe_broker(drill: Drill) -> bool:
    with suppress(redis.RedisError), redis.Redis.from_url(drill.fleet.servers.broker_url) as broker:
        broker.flushall()
        return True
    return False


def restart_broker(drill: Drill) -> bool:
    stop_server(drill.data / "valkey", drill.chance.choice([signal.SIGKILL, signal.SIGTERM]), 10)
    _serve(drill)
    return True


def crash_backend(drill: Drill) -> bool:
    """The server ends all its other processes then, and recovers."""
    found = drill.sql("""
        select pid from pg_stat_activity where application_name like 'larder-%'
        order by state = 'active' desc, random() limit 1""")
    for (pid,) in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def restart_postgres(drill: Drill) -> bool:
    stop_server(drill.data / "postgres", signal.SIGINT, 30)
    _serve(drill)
    return True


def _serve(drill: Drill) -> None:
    clock = drill.clocks.get("servers")
    with environment(clock.env if clock else {}):
        drill.fleet.servers = embedded.ensure(drill.data)


def fail_over(drill: Drill) -> bool:
    """All are thrown out and meet a server that only reads, for a while."""
    _reads_only(drill, "on")
    drill.after(min(3.0, drill.lease), lambda: _reads_only(drill, "off"))
    return True


def _reads_only(drill: Drill, how: str) -> None:
    drill.fleet.sql(f"alter database larder set default_transaction_read_only = {how}", database="postgres")
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'larder-%'"
    drill.fleet.sql(ended, database="postgres")


def fill_disk(drill: Drill) -> bool:
    """What is staged lies on a small disk that is full, until somebody has met that."""
    drill.heal()  # a failover would let nobody move a table
    with small_disk(drill.sql) as free:
        begun = time.monotonic()
        while not _met_full_disk(drill) and time.monotonic() - begun < 15:
            drill.tend()
            time.sleep(0.2)
        met = _met_full_disk(drill)
        drill.seen_full += met
        free()
    return met > 0


def _met_full_disk(drill: Drill) -> int:
    errors = drill.ledger.documents.values("last_error", state="pending")
    return sum("No space left" in (error or "") for error in errors)


def kill_beat(drill: Drill) -> bool:
    lived = bool(drill.fleet.family("beat"))
    drill.fleet.kill("beat")
    return lived


def second_beat(drill: Drill) -> bool:
    commands = drill.fleet.commands
    drill.fleet.commands = {**commands, "beat-2": ["beat"]}
    drill.fleet.revive()

    def end() -> None:
        drill.fleet.commands = commands
        drill.fleet.kill("beat-2")

    drill.after(3 * drill.lease, end)
    return True


def move_workers_clock(drill: Drill) -> bool:
    return _move(drill, "workers", drill.chance.choice([60, -60]))


def move_workers_day(drill: Drill) -> bool:
    return _move(drill, "workers", drill.chance.choice([86_400, -86_400]))


def move_servers_clock(drill: Drill) -> bool:
    return _move(drill, "servers", 60)


def move_servers_day(drill: Drill) -> bool:
    return _move(drill, "servers", 86_400)


def _move(drill: Drill, whose: str, seconds: int) -> bool:
    if clock := drill.clocks.get(whose):
        clock.move(seconds)
    return clock is not None


def roll(drill: Drill) -> bool:
    """A new process of a kind is started, and the one before told to end when it has done what it is at."""
    name = drill.chance.choice([name for name in drill.fleet.commands if name not in drill.busy])
    old = drill.fleet.processes.pop(name)
    drill.fleet.revive()
    lived = old.poll() is None
    old.terminate()
    drill.leaving.append((time.monotonic(), name, old))
    return lived


STAGED = ("chunk_stage", "document_body")
FULL_DISK = """
    create or replace function full_disk() returns trigger language plpgsql as $$ begin
        raise exception 'could not extend file "base/1/2": No space left on device' using errcode = '53100'; end $$;
    create trigger full_disk before insert on {} for each row execute function full_disk()"""


@contextmanager
def small_disk(sql: Callable[..., Any]) -> Iterator[Callable[[], object]]:
    """While the block runs these tables lie on a disk that is full, until what it yields is called.

    Where none may be mounted, their triggers say what the server does then.
    """
    folder = Path(tempfile.mkdtemp(prefix="larder-disk-"))
    indexes = [
        row[0] for row in sql("select indexname from pg_indexes where tablename = any(%s)", list(STAGED))
    ]

    def lie_on(space: str) -> None:
        for table in STAGED:
            sql(f"alter table {table} set tablespace {space}")
        for index in indexes:
            sql(f"alter index {index} set tablespace {space}")

    mounted: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mounted, check=False, capture_output=True).returncode:
        for table in STAGED:
            sql(FULL_DISK.format(table))
        yield lambda: [sql(f"drop trigger full_disk on {table}") for table in STAGED]
        folder.rmdir()
        return
    try:
        shutil.chown(folder, "larder-pg", "larder-pg")
        sql(f"create tablespace small location '{folder}'")
        lie_on("small")
        ballast = folder / "ballast"
        with suppress(OSError), ballast.open("wb") as handle:
            while True:
                handle.write(bytes(65_536))
                handle.flush()
        yield ballast.unlink
        lie_on("pg_default")
        sql("drop tablespace small")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)
        folder.rmdir()


def store_away(drill: Drill) -> bool:
    """The vector store is gone for six leases."""
    assert drill.vectors is not None
    drill.vectors.kill()
    drill.after(6 * drill.lease, drill.vectors.start)
    return True


def store_emptied(drill: Drill) -> bool:
    """The vector store comes back with nothing in it."""
    assert drill.vectors is not None
    drill.vectors.empty()
    return True


def kill_mirror(drill: Drill) -> bool:
    """Who carries chunks over is killed, or its children, with a batch if one is begun within some seconds."""
    begun, held = time.monotonic(), set[UUID]()
    while not held and time.monotonic() - begun < 3:
        drill.tend()
        leases = drill.sql("select distinct lease_token from vector_outbox where lease_until > now()")
        held = {token for (token,) in leases} - drill.batches
    processes = drill.fleet.family("mirror")
    if not processes or not drill.unsent:
        return False  # perhaps it is just starting, and would never have anything
    drill.batches |= held
    if drill.chance.choice([True, False]):
        drill.fleet.kill("mirror")
    for child in processes[1:]:
        with suppress(psutil.Error):
            child.kill()
    return True


Act = Callable[[Drill], bool]
FAULTS: Mapping[str, tuple[int, Act]] = {
    "worker killed": (100, kill_worker),
    "child killed": (20, kill_child),
    "child paused past its lease": (14, pause),
    "child paused in a transaction": (6, stall),
    "connections cut without FIN": (20, drop),
    "broker wiped": (10, wipe_broker),
    "broker restarted": (10, restart_broker),
    "PostgreSQL backend killed": (5, crash_backend),
    "PostgreSQL restarted": (2, restart_postgres),
    "failover to read-only and back": (1, fail_over),
    "disk full": (1, fill_disk),
    "Beat killed": (10, kill_beat),
    "two Beats": (1, second_beat),
    "clock of workers moved a minute": (1, move_workers_clock),
    "clock of workers moved a day": (1, move_workers_day),
    "clock of servers moved a minute": (1, move_servers_clock),
    "clock of servers moved a day": (1, move_servers_day),
    "process replaced while it works": (50, roll),
}
"""Fault -> how often a full drill has it, and what does it."""
STORE_FAULTS: Mapping[str, tuple[int, Act]] = {
    "mirror worker killed": (20, kill_mirror),
    "vector store away": (5, store_away),
    "vector store emptied": (3, store_emptied),
}
"""The same of a vector store beside PostgreSQL."""
