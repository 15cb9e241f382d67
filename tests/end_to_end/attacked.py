"""An installation of two tenants that drills attack: its work, who looks after it, and what it must have come through."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import redis
from celery import Celery

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Document, Kind, SourceType
from pipeline.errors import LarderError
from tests.end_to_end.fleet import Fleet
from tests.end_to_end.store_servers import SERVERS, StoreServer
from tests.fakes.tcp_proxy import TcpProxy
from tests.forked import Forked
from tests.ledger import Ledger, ago, of_all
from workers.client import Client

HERE = Path(__file__).parent
TENANTS = ("red", "blue")
MOST_IN_FLIGHT = 8
"""Enrichments of a tenant, as Step 4 has them."""
GRACE_SECONDS = 45.0
"""After which an orchestrator ends by force what it told to end."""
FAR = ("ingest", "embed", "enrich")
"""Workers that reach their servers by way of proxies."""
WORKERS = {
    name: ["worker", name, "--concurrency", n]
    for name, n in {"control": "2", "ingest": "2", "embed": "2", "enrich": "1"}.items()
}
MIRROR = {"mirror": ["worker", "mirror", "--concurrency", "2"]}
CONFIG = """
rag:
  embedding: {{provider: hashing, cache: {{maxSize: {megabytes}}}}}
  chunking: {{maxSize: 300, overlap: 50}}
  queue:
    keepRunsDays: {days}
    leaseSeconds: {lease}
    resendSeconds: {resend}
    batchDocuments: 16
    tickSeconds: 0.5
    visibilityTimeout: {visible}
    timeLimit: {hard}
    softTimeLimit: {soft}
    retryBaseSeconds: 0.5
    retryMaxSeconds: 2
  enrichment: {{leaseSeconds: {lease}, resendSeconds: {resend}, resultsKeptHours: {hours}}}
  {vectors}
  sources:
    - {{name: red, type: markdown, paths: ['./red/*.md'], tenant: red, autoIndex: false}}
    - {{name: blue, type: markdown, paths: ['./blue/*.md'], tenant: blue, autoIndex: false}}
"""

VECTORS = """provider: {type}
  storage: {{cloud: {{type: {type}, timeout: 5, {storage}}}}}"""
"""Lines of the configuration with a store beside PostgreSQL."""
OPEN_WORK = """
    select (select count(*) from sync_run where finished_at is null)
         + (select count(*) from source where next_sync_at <= now())
         + (select count(*) from document where state = 'pending')
         + (select count(*) from enrichment_job where finished_at is null)"""
OPEN_IN_STORE = """
    select (select count(*) from vector_outbox)
         -- One that was emptied just now is not noticed before the next look.
         + (select count(*) from vector_store where status <> 'ready' or not active or failures > 0
            or marked_at is null or marked_at < %s)"""
KEPT: Mapping[str, float] = {"megabytes": 500, "days": 30, "hours": 720}
"""How much of the cache, and for how long runs and answers."""


def body(tenant: str, number: int, version: int) -> str:
    """Four sections, one of which stays the same over all versions.

    Words come again after five versions: an index of words never forgets one, and would grow with the text.
    """
    parts = [
        f"# Page {number}",
        f"Constant paragraph of {tenant} page {number} that no version touches. " * 4,
    ]
    for section in range(3):
        words = " ".join(f"{tenant}{number}x{version % 5}x{section}x{k}" for k in range(15))
        parts += [f"## Section {section}", f"Version {version} of section {section}: {words}."]
    return "\n\n".join(parts) + "\n"


@dataclass
class Clock:
    """The time of day of the processes that are started with `env`, moved by a library of ours that they load first."""

    library: Path
    file: Path

    @classmethod
    def made(cls, folder: Path, name: str) -> Clock | None:
        """None without a C compiler."""
        library, file = folder / "clock.so", folder / name
        command: list[str | Path] = ["cc", "-shared", "-fPIC", "-o", library, HERE / "clock.c", "-ldl"]
        with suppress(FileNotFoundError):
            if not library.exists():
                subprocess.run(command, check=True, capture_output=True)
            file.write_bytes(struct.pack("l", 0))
            for one in (library, file):
                one.chmod(0o755)
            return cls(library, file)
        return None

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "LARDER_TEST_CLOCK": str(self.file)}

    def move(self, seconds: int) -> None:
        """From now on it is so many seconds later than it was, or earlier."""
        with self.file.open("r+b") as handle:
            before = struct.unpack("l", handle.read())[0]
            handle.seek(0)
            handle.write(struct.pack("l", before + seconds))


@dataclass
class Asking:
    """Somebody who always has a few enrichments in flight, and all the time they take."""

    client: Client
    tenant: str
    in_flight: Callable[[list[UUID]], int]
    accepted: list[UUID] = field(default_factory=list)
    refused: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self.over.wait(0.25):
            if self.in_flight(self.accepted[-2 * MOST_IN_FLIGHT :]) >= MOST_IN_FLIGHT:
                continue
            number += 1
            asked = {"id": f"{self.tenant}-{number}", "title": f"Page {number} of {self.tenant}, section 1"}
            try:
                self.accepted.append(self.client.submit(asked, deadline=math.inf))
            except LarderError:
                self.refused += 1  # and told so: nobody waits for it


@dataclass
class Drill:
    """The installation, its attackers, and what is expected of it."""

    fleet: Fleet
    store: TcpProxy
    broker: TcpProxy
    lease: float
    pages: int
    """Of each tenant."""
    poison: int
    """Documents that kill whoever cuts them."""
    clocks: Mapping[str, Clock]
    """`workers` and `servers`, if they can be moved."""
    askers: Sequence[Asking] = ()
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    versions: dict[tuple[str, int], int] = field(default_factory=Counter)
    healing: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """What ends a fault, and when."""
    busy: set[str] = field(default_factory=set)
    """Processes that are paused."""
    leaving: list[tuple[float, str, Forked | subprocess.Popen[bytes]]] = field(default_factory=list)
    """Processes that were told to end, and when."""
    forced: Counter[str] = field(default_factory=Counter)
    """How many of each kind did not end within GRACE_SECONDS."""
    seen_full: int = 0
    """How often somebody met the full disk."""
    batches: set[UUID] = field(default_factory=set)
    """Leases of batches whose mirror worker was killed."""
    vectors: StoreServer | None = None
    """The active vector store; None: pgvector."""

    @property
    def data(self) -> Path:
        return self.fleet.root / ".larder"

    # -- work ----------------------------------------------------------------------------------------

    def sql(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """As one who sees everything."""
        return self._patiently(lambda: self.fleet.sql(query, *args))

    @property
    def ledger(self) -> Ledger:
        """As that one finds it."""
        run = of_all(self.fleet.superuser)
        return Ledger(lambda statement, values: self._patiently(lambda: run(statement, values)))

    @staticmethod
    def _patiently(ask: Callable[[], list[Any]]) -> list[Any]:
        """Waits for a server that is just coming back."""
        end = time.monotonic() + 30
        while True:
            try:
                return ask()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    @property
    def pending(self) -> int:
        return len(self.ledger.documents.values("id", state="pending"))

    @property
    def unsent(self) -> int:
        """Chunks on their way to the vector store."""
        return int(self.sql("select count(*) from vector_outbox")[0][0])

    def publish(self, pages: int | None = None) -> None:
        """Write the next version of some pages, or all, and ask for a sync as soon as one may begin."""
        for tenant in TENANTS:
            folder = self.fleet.root / tenant
            folder.mkdir(exist_ok=True)
            for number in self.chance.sample(range(self.pages), pages or self.pages):
                self.versions[tenant, number] += 1
                text = body(tenant, number, self.versions[tenant, number])
                (folder / f"page-{number:05}.md").write_text(text)
            if tenant == TENANTS[0] and pages is None:
                for number in range(self.poison):
                    version = self.versions[tenant, 0]
                    (folder / f"poison-{number}.md").write_text(f"# Poison {number}\n\nPOISON {version}\n")
        self.sql(
            "update source set next_sync_at = now() returning id"
        )  # by the server's clock, which may be moved

    def feed(self, pages: int | None = None) -> None:
        """Publish, and wait for the walk to bring work: a fault that hits nothing proves nothing."""
        self.publish(pages)
        end = time.monotonic() + 30
        while not self.pending and time.monotonic() < end:
            self.tend()
            time.sleep(0.1)

    def tend(self) -> None:
        """Do what is due by now: faults end, and what died is started again as a supervisor would."""
        now = time.monotonic()
        for one in [one for one in self.healing if one[0] <= now]:
            self.healing.remove(one)
            one[1]()
        for since, name, process in list(self.leaving):
            if process.poll() is None and now - since > GRACE_SECONDS:
                self.forced[name] += 1
                process.kill()
                process.wait()
            if process.poll() is not None:
                self.leaving.remove((since, name, process))
        self.fleet.revive()

    def until_indexed(self, seconds: float) -> None:
        """Until another document is searchable, so many seconds at most."""
        known = self.ledger.documents
        before, end = sum(known.values("generation")), time.monotonic() + seconds
        while sum(known.values("generation")) == before and time.monotonic() < end:
            self.tend()
            time.sleep(0.1)

    def after(self, seconds: float, heal: Callable[[], object]) -> None:
        self.healing.append((time.monotonic() + seconds, heal))

    def settled(self, seconds: float, *, store: bool = True) -> float | None:
        """Seconds until nothing is left to do, without `store` in PostgreSQL; None if that does not come in time."""
        begun, calm, done = time.monotonic(), 0, 0.0
        ((asked_at,),) = self.sql("select now()")
        while time.monotonic() - begun < seconds:
            self.tend()
            open_work = self.sql(OPEN_WORK)[0][0]
            if store and not open_work:
                open_work = self.sql(OPEN_IN_STORE, asked_at)[0][0]
            done = time.monotonic() - begun if not calm else done
            calm = 0 if open_work else calm + 1
            if calm == 3:
                return done
            time.sleep(0.2)
        return None

    def heal(self) -> None:
        """Wait until every fault has ended."""
        while self.healing:
            self.tend()
            time.sleep(0.1)

    def standing(self) -> list[object]:
        """What the ledger says of work that is not done."""
        ledger = self.ledger
        return [
            Counter(ledger.documents.values("stage", "state", "crash_count", "last_error")),
            Counter(ledger.outbox.values("lane", "dead_at", "last_error")),
            *ledger.stores.values("status", "active", "failures", "last_error"),
            *ledger.runs.values("state", "attempts", "error", "due_at", finished_at=None),
            *ledger.jobs.values("state", "crash_count", "error", "due_at", finished_at=None),
            ago(),
        ]

    def trim(self) -> None:
        """Have upkeep remove what is kept no longer, as it does each hour."""
        Celery(broker=self.fleet.servers.broker_url).send_task("larder.upkeep.trim", queue="control")
        until = time.monotonic() + 30
        while any(self.ledger.runs.values("finished_at")):
            assert time.monotonic() < until, "nothing is trimmed"
            time.sleep(0.2)

    def sizes(self) -> dict[str, float]:
        """Megabytes: memory of a process of each kind and its children, tables with their indexes, Valkey."""
        found: dict[str, float] = {}
        for name in self.fleet.commands:
            used = 0
            for process in self.fleet.family(name):
                with suppress(psutil.Error):
                    used += process.memory_full_info().uss
            found[name] = round(used / 1e6, 1)
        self.sql("vacuum")
        # It alone keeps the map of free pages: a crash before it, and what follows is put behind them all.
        self.sql("checkpoint")
        found["tables"] = round(float(self.sql("select pg_database_size('larder')")[0][0]) / 1e6, 1)
        with redis.Redis.from_url(self.fleet.servers.broker_url) as broker:
            found["valkey"] = round(broker.info("memory")["used_memory"] / 1e6, 1)
        return found

    # -- what became of it ---------------------------------------------------------------------------

    def damage(self) -> Counter[str]:
        """Chunks that are lost, doubled, stale, of mixed versions or of the other tenant; answers likewise."""
        rows = self.sql("""
            select d.external_id, c.content, c.version, d.indexed_version,
                   c.tenant_id <> d.tenant_id or t.name <> split_part(d.external_id, '/', 1) as foreign
            from chunk c join document d on d.id = c.document_id join tenant t on t.id = c.tenant_id""")
        have: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            have.setdefault(row[0], []).append(row[1:])
        found: Counter[str] = Counter(
            dict.fromkeys(("lost", "doubled", "stale", "mixed", "foreign", "answers lost"), 0)
        )
        for item, wanted in expected_chunks(self.versions).items():
            mine = have.get(item, [])
            found["lost"] += sum((Counter(wanted) - Counter(r[0] for r in mine)).values())
            found["doubled"] += max(0, len(mine) - len(wanted))
            found["stale"] += sum(r[0] not in wanted or r[1] != r[2] for r in mine)
            found["mixed"] += len({r[1] for r in mine}) > 1
            found["foreign"] += sum(r[3] for r in mine)
        for asker in self.askers:
            other = next(t for t in TENANTS if t != asker.tenant)
            ((done, foreign),) = self.sql(
                """select count(*) filter (where state = 'done'),
                          count(*) filter (where result::text like %s) from enrichment_job where id = any(%s)""",
                f"%{other}%",
                asker.accepted,
            )
            # The same question about the same documents is the same job.
            found["answers lost"] += len(set(asker.accepted)) - done
            found["foreign"] += foreign
        return found

    def dead(self) -> set[str]:
        return set(self.ledger.documents.values("external_id", state="dead"))


def expected_chunks(versions: Mapping[tuple[str, int], int]) -> dict[str, list[str]]:
    """What must be searchable in the end, by external id."""
    chunker = open_chunker(ChunkingOptions(max_size=300, overlap=50))
    found = {}
    for (tenant, number), version in versions.items():
        document = Document(
            external_id=f"{tenant}/page-{number:05}.md",
            title=f"Page {number}",
            text=body(tenant, number, version),
            source_type=SourceType.DOCUMENTATION,
            kind=Kind.REFERENCE,
        )
        found[document.external_id] = [c.content for c in chunker.chunk(document)]
    return found


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """What is started while the block runs has these variables."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def installed(
    *,
    lease: float,
    pages: int,
    poison: int = 1,
    clocks_move: bool = False,
    kept: Mapping[str, float] = KEPT,
    vectors: str = "",
    source: str = "",
) -> Iterator[Drill]:
    """Servers, workers and people who ask, with nothing to do yet.

    `vectors` is the type of the active vector store, if it is not pgvector; `source` is one more source, in the
    configuration's words.
    """
    root = Path(tempfile.mkdtemp(prefix="larder-drill-"))
    outside = Path(tempfile.mkdtemp(prefix="larder-clock-"))
    outside.chmod(0o755)  # the server runs as somebody else
    times = {"resend": 2 * lease, "soft": 3 * lease, "hard": 4 * lease, "visible": max(10, round(6 * lease))}
    server = SERVERS[vectors](root / vectors) if vectors else None
    made = {name: Clock.made(outside, name) for name in ("workers", "servers") if clocks_move}
    clocks = {name: clock for name, clock in made.items() if clock}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        stack.callback(shutil.rmtree, outside, ignore_errors=True)
        if server:
            server.start()
            stack.callback(server.kill)
        beside = VECTORS.format(type=vectors, storage=server.storage) if server else ""
        (root / "larder.yaml").write_text(
            CONFIG.format(lease=lease, vectors=beside, **times, **kept) + source
        )
        with environment(clocks["servers"].env if clocks else {}):
            fleet = Fleet.started(root, HERE / "drill_process.py")
        stack.callback(fleet.stop)
        s = fleet.servers
        store = stack.enter_context(TcpProxy.to(s.database_url))
        broker = stack.enter_context(TcpProxy.to(s.broker_url))
        far = {
            "LARDER_DATABASE_URL": store.url(s.database_url),
            "LARDER_CONTROL_DATABASE_URL": store.url(s.control_url),
            "LARDER_ADMIN_DATABASE_URL": store.url(s.admin_url),
            "LARDER_BROKER_URL": broker.url(s.broker_url),
        }
        moved = clocks["workers"].env if clocks else {}
        fleet = replace(
            fleet,
            env=fleet.env | {"DRILL_STALLS": str(root)},
            env_of={name: moved | (far if name in FAR else {}) for name in (*WORKERS, "mirror")},
            commands={**WORKERS, **(MIRROR if server else {}), "beat": ["beat"]},
        )
        stack.callback(fleet.stop)
        askers: list[Asking] = []

        def in_flight(ids: list[UUID]) -> int:
            try:
                return len(set(ids) & set(fleet.ledger.jobs.values("id", finished_at=None)))
            except psycopg.Error:
                return 0

        for tenant in TENANTS:
            client = Client(s.database_url, broker_url=s.broker_url, tenant=tenant, answer_timeout=2.0)
            stack.callback(client.close)
            askers.append(Asking(client, tenant, in_flight))
        drill = Drill(fleet, store, broker, lease, pages, poison, clocks, askers, vectors=server)
        fleet.revive()
        end = time.monotonic() + 60
        while len(drill.ledger.sources()) < len(TENANTS) + bool(source):
            assert time.monotonic() < end, "no worker has made the sources known"
            time.sleep(0.1)
        yield drill


@contextmanager
def asking(drill: Drill) -> Iterator[None]:
    """While the block runs somebody of each tenant asks."""
    threads = [threading.Thread(target=asker.run, daemon=True) for asker in drill.askers]
    for asker, thread in zip(drill.askers, threads, strict=True):
        asker.over.clear()
        thread.start()
    try:
        yield
    finally:
        for asker in drill.askers:
            asker.over.set()
        for thread in threads:
            thread.join(30)


def report(name: str, values: Mapping[str, Any]) -> None:
    """Print a table, and write JSON beside the figures of the benchmarks."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            print(f"{key}:")
            for one, count in value.items():
                print(f"  {one:<36}{count!s:>10}")
        else:
            print(f"{key:<38}{value!s:>10}")
    out = HERE.parents[1] / "tests" / "benchmarks" / "out"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(values, indent=2, default=str) + "\n")
