"""Kill everything for a while; then every expected chunk is accounted for.

`make drill` runs it at ten times the size.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis

from pipeline.chunking import ChunkingOptions, open_chunker
from pipeline.documents import Document, Kind, SourceType
from workers import embedded

SCALE = int(os.environ.get("LARDER_DRILL", "1"))
DOCUMENTS, POISON, KILLS, WIPES, PAUSES = 300 * SCALE, 3, 12 * SCALE, 2 * SCALE, 3 * SCALE
LEASE = 4.0
HERE = Path(__file__).parent
CONFIG = f"""
rag:
  embedding: {{provider: hashing}}
  chunking: {{maxSize: 300, overlap: 50}}
  queue:
    leaseSeconds: {LEASE}
    resendSeconds: {2 * LEASE}
    batchDocuments: 16
    tickSeconds: 0.5
    visibilityTimeout: 30
    timeLimit: 20
    softTimeLimit: 15
    retryBaseSeconds: 0.5
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
"""


def body(number: int, version: int) -> str:
    """Four sections, one of which stays the same over all versions."""
    parts = [f"# Page {number}", f"Constant paragraph of page {number} that no version touches. " * 4]
    for section in range(3):
        words = " ".join(f"w{number}x{version}x{section}x{k}" for k in range(20))
        parts += [f"## Section {section}", f"Version {version} of section {section}: {words}."]
    return "\n\n".join(parts) + "\n"


@dataclass
class Fleet:
    """Workers and beat as processes of the test: it kills them, and starts them again as a supervisor would."""

    root: Path
    env: dict[str, str]
    commands: dict[str, list[str]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        for name in ("control", "ingest", "embed"):
            self.commands[name] = ["worker", name, "--concurrency", "2"]
        self.commands["beat"] = ["beat"]
        self.revive()

    def revive(self) -> None:
        for name, command in self.commands.items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                with (self.root / f"{name}.log").open("ab") as log:
                    self.processes[name] = subprocess.Popen(
                        [sys.executable, str(HERE / "drill_process.py"), *command],
                        cwd=self.root,
                        env=self.env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def family(self, name: str) -> list[psutil.Process]:
        with suppress(psutil.Error):
            main = psutil.Process(self.processes[name].pid)
            return [main, *main.children(recursive=True)]
        return []

    def kill(self, name: str) -> None:
        for process in self.family(name):
            with suppress(psutil.Error):
                process.kill()
        self.processes[name].wait()

    def stop(self) -> None:
        for name in self.processes:
            self.kill(name)


@dataclass
class Drill:
    """One installation under attack."""

    root: Path
    servers: embedded.Servers
    fleet: Fleet
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    version: int = 0

    def sql(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        password = embedded.Credentials.of(self.root / ".larder").postgres
        port = urlsplit(self.servers.database_url).port
        with psycopg.connect(
            host="127.0.0.1", port=port, user="postgres", password=password, dbname="larder", autocommit=True
        ) as connection:
            return connection.execute(query, args or None).fetchall()

    @property
    def pending(self) -> int:
        return int(self.sql("select count(*) from document where state = 'pending'")[0][0])

    def publish(self) -> None:
        """Write the next version of every page, and ask for a sync."""
        self.version += 1
        folder = self.root / "docs"
        folder.mkdir(exist_ok=True)
        for number in range(DOCUMENTS):
            (folder / f"page-{number:05}.md").write_text(body(number, self.version))
        for number in range(POISON):
            (folder / f"poison-{number}.md").write_text(f"# Poison {number}\n\nPOISON {self.version}\n")
        self.request_sync()

    def feed(self) -> None:
        """Publish, and wait for the walk to bring work: a fault that hits nothing proves nothing."""
        self.publish()
        end = time.monotonic() + 30
        while not self.pending and time.monotonic() < end:
            self.fleet.revive()
            time.sleep(0.1)

    def request_sync(self) -> None:
        """As `larder index --no-wait`; while a run is open the next one comes after it, by the schedule."""
        if self.version > 1:
            self.sql("update source set next_sync_at = now() returning id")
            return
        command = [sys.executable, "-m", "workers.cli", "index", "--no-wait"]
        subprocess.run(command, cwd=self.root, env=self.fleet.env, check=True, capture_output=True)

    def fault(self, step: int) -> None:
        """One of the things that happen at three in the morning."""
        name = self.chance.choice(["ingest", "embed", "embed", "ingest", "control"])
        self.fleet.kill(name)
        if step % (KILLS // WIPES) == KILLS // WIPES - 1:
            redis.Redis.from_url(self.servers.broker_url).flushall()
        if step % (KILLS // PAUSES) == 1:
            self.pause(self.chance.choice([n for n in ("ingest", "embed") if n != name]))
        if step % 9 == 4:
            self.fleet.kill("beat")

    def pause(self, name: str) -> None:
        """Freeze the children past their lease: they wake up and believe the work is still theirs."""
        frozen = self.fleet.family(name)[1:]
        for process in frozen:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        time.sleep(LEASE * 1.2)
        for process in frozen:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)

    def settle(self, seconds: float) -> bool:
        """Keep the fleet alive until nothing is pending and no run is open."""
        end = time.monotonic() + seconds
        calm = 0
        while time.monotonic() < end and calm < 3:
            self.fleet.revive()
            open_runs = self.sql("select count(*) from sync_run where finished_at is null")[0][0]
            due = self.sql("select count(*) from source where next_sync_at <= now()")[0][0]
            calm = calm + 1 if not open_runs and not due and not self.pending else 0
            time.sleep(0.4)
        return calm >= 3


@pytest.fixture
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    root = tmp_path_factory.mktemp("drill")
    (root / "larder.yaml").write_text(CONFIG)
    servers = embedded.ensure(root / ".larder")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    env = {**clean, "PYTHONPATH": str(HERE.parents[1]), "LARDER_CONFIG": str(root / "larder.yaml")}
    made = Drill(root, servers, Fleet(root, env))
    yield made
    made.fleet.stop()
    embedded.stop(root / ".larder")


def expected_chunks(version: int) -> dict[str, list[str]]:
    """What must be searchable in the end, by external id."""
    chunker = open_chunker(ChunkingOptions(max_size=300, overlap=50))
    found = {}
    for number in range(DOCUMENTS):
        document = Document(
            external_id=f"docs/page-{number:05}.md",
            title=f"Page {number}",
            text=body(number, version),
            source_type=SourceType.DOCUMENTATION,
            kind=Kind.REFERENCE,
        )
        found[document.external_id] = [c.content for c in chunker.chunk(document)]
    return found


def damage(drill: Drill) -> Counter[str]:
    """Count what is lost, doubled, stale or of mixed versions."""
    rows = drill.sql("""
        select d.external_id, c.ord, c.content, c.version, d.indexed_version, d.desired_version
        from chunk c join document d on d.id = c.document_id order by d.external_id, c.ord""")
    have: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        have.setdefault(row[0], []).append(row[1:])
    found: Counter[str] = Counter()
    for external_id, wanted in expected_chunks(drill.version).items():
        mine = have.get(external_id, [])
        contents = Counter(r[1] for r in mine)
        found["lost"] += sum((Counter(wanted) - contents).values())
        found["doubled"] += max(0, len(mine) - len(wanted))
        found["stale"] += sum(1 for r in mine if r[1] not in wanted)
        found["mixed"] += len({r[2] for r in mine} | {r[3] for r in mine}) > 1
        found["outdated"] += any(r[3] != r[4] for r in mine)
    return found


@pytest.mark.timeout(300 * SCALE)
@pytest.mark.req("ORD-02", "ORD-03")
def test_nothing_is_lost_doubled_or_stale_whatever_is_killed(drill: Drill) -> None:
    drill.publish()
    drill.fleet.start()
    idle_faults = 0
    time.sleep(6)
    for step in range(KILLS):
        if step == KILLS // 2 or drill.pending < DOCUMENTS // 10:
            drill.feed()  # there must be something to lose until the last fault
        idle_faults += drill.pending == 0
        drill.fault(step)
        time.sleep(drill.chance.uniform(0.1, 0.6))
        drill.fleet.revive()
        time.sleep(1.0)
    assert idle_faults <= KILLS // 6, "the faults must hit work"
    assert drill.version >= 2
    assert drill.settle(90 * SCALE), drill.sql("select state, stage, count(*) from document group by 1, 2")
    dead = {row[0] for row in drill.sql("select external_id from document where state = 'dead'")}
    assert dead == {f"docs/poison-{n}.md" for n in range(POISON)}
    assert not +damage(drill)
    letters = drill.sql("select distinct crash_count from dead_letter where resolved_at is null")
    assert letters == [(3,)]
