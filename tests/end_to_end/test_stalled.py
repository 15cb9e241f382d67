"""One process of each kind freezes, or is cut off without a word, in the middle of a transaction: the rest goes on."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.end_to_end.drilled import frozen
from tests.end_to_end.fleet import Fleet
from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import ago
from workers.client import Client

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]
LEASE = 6.0
WORK = 6.0
"""Seconds that it takes to do what was held up, on a machine that does other things too."""
PAGES = 30
CONFIG = f"""
rag:
  embedding: {{provider: hashing}}
  queue:
    {{leaseSeconds: {LEASE}, tickSeconds: 0.5, visibilityTimeout: 120, softTimeLimit: 50, timeLimit: 60, batchDocuments: 8}}
  enrichment: {{leaseSeconds: {LEASE}, resendSeconds: {LEASE}}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
"""
WORKERS = {name: ["worker", name, "--concurrency", "1"] for name in ("control", "ingest", "embed", "enrich")}
EVERY = {**WORKERS, "beat": ["beat"]}


@dataclass
class Pair:
    """Two of each process: one of the second set is the victim, which asks its servers by way of proxies."""

    well: Fleet
    victims: Fleet
    store: TcpProxy
    broker: TcpProxy
    client: Client
    version: int = 0

    @property
    def root(self) -> Path:
        return self.well.root

    def publish(self) -> None:
        """Another version of every page, and a sync of them as soon as one may begin."""
        self.version += 1
        for n in range(PAGES):
            words = " ".join(f"w{n}x{self.version}x{k}" for k in range(30))
            (self.root / "docs" / f"{n}.md").write_text(f"# Page {n}\n\nVersion {self.version}. {words}\n")
        self.well.ledger.sources.set(next_sync_at=ago())

    def is_current(self) -> bool:
        """Every page is searchable in its last version, and nothing is left to do."""
        found = self.well.sql(
            """select (select count(*) from document d join chunk c on c.document_id = d.id
                       where c.content like %s and d.state = 'done' and d.indexed_version = d.desired_version),
                      (select count(*) from chunk), (select count(*) from sync_run where finished_at is null)""",
            f"%Version {self.version}. %",
        )
        return found == [(PAGES, PAGES, 0)]

    def until(self, condition: Callable[[], object], seconds: float) -> float:
        """Wait for it; how long that took."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < seconds, self.standing()
            time.sleep(0.1)
        return time.monotonic() - begun

    def standing(self) -> list[object]:
        """What the ledger says of work that is not done."""
        ask, ledger = self.well.sql, self.well.ledger
        return [
            Counter(ledger.documents.values("stage", "state", "crash_count", "last_error")),
            *ledger.runs.values("state", "attempts", "error", "enqueued_at", finished_at=None),
            ago(),
            *ask("select state, wait_event, query from pg_stat_activity where xact_start is not null"),
        ]

    def stalls(self, name: str, place: str) -> None:
        """Start the victim, and keep everybody busy until it is in the middle of a transaction."""
        for file in ("stall", "stalled", "go"):
            (self.root / file).unlink(missing_ok=True)
        if place:
            (self.root / "stall").write_text(place)
        self.victims.commands = {f"{name}-2": EVERY[name]}
        self.victims.revive()
        end = time.monotonic() + 60
        while place and not (self.root / "stalled").exists():
            assert time.monotonic() < end, "nothing has come its way"
            if place == "answer":
                self.client.submit(question())
            elif self.is_current():
                self.publish()
            time.sleep(0.2)
        if not place:
            log = self.root / f"{name}-2.log"
            self.until(lambda: log.exists() and log.stat().st_size, 60)

    @contextmanager
    def stalled(self, name: str, how: str) -> Iterator[None]:
        """While the block runs it is frozen, or goes on and reaches nobody."""
        with ExitStack() as stack:
            if how == "frozen":
                stack.enter_context(frozen(self.victims.processes[f"{name}-2"].pid))
            else:
                self.store.freeze()
                self.broker.freeze()
            (self.root / "go").touch()
            yield
        self.store.heal()
        self.broker.heal()


def question() -> dict[str, str]:
    return {"id": f"PBI-{time.monotonic_ns()}", "title": f"Warn of shallow water {time.monotonic_ns()}"}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    root = Path(tempfile.mkdtemp(prefix="larder-stalled-"))
    root.chmod(0o755)
    (root / "docs").mkdir()
    (root / "larder.yaml").write_text(CONFIG)
    well = Fleet.started(root, Path(__file__).parent / "drill_process.py")
    s = well.servers
    with (
        TcpProxy.to(s.database_url) as store,
        TcpProxy.to(s.broker_url) as broker,
        well.client() as client,
    ):
        by_proxy = {
            "LARDER_DATABASE_URL": store.url(s.database_url),
            "LARDER_CONTROL_DATABASE_URL": store.url(s.control_url),
            "LARDER_ADMIN_DATABASE_URL": store.url(s.admin_url),
            "LARDER_BROKER_URL": broker.url(s.broker_url),
            "DRILL_STALLS": str(root),
        }
        made = Pair(well, replace(well, env=well.env | by_proxy, processes={}), store, broker, client)
        try:
            well.commands = EVERY
            well.revive()
            made.until(well.ledger.sources, 60)
            made.publish()
            made.until(made.is_current, 60)
            yield made
        finally:
            for name in made.victims.processes:
                made.victims.kill(name)
            well.stop()
            shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("how", ["frozen", "cut off"])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("control", "pump"),
        ("ingest", "walk"),
        ("ingest", "cut"),
        ("ingest", "write"),
        ("embed", "embed"),
        ("enrich", "answer"),
        ("beat", ""),
    ],
)
def test_the_rest_goes_on_within_two_leases(pair: Pair, name: str, place: str, how: str) -> None:
    pair.stalls(name, place)
    with pair.stalled(name, how), ThreadPoolExecutor(4) as pool:
        begun = time.monotonic()
        answers = [pool.submit(pair.client.enrich, question()) for _ in range(4)]
        held = pair.until(pair.is_current, 2 * LEASE + WORK)  # what it was at is done by others
        pair.publish()
        fresh = pair.until(pair.is_current, 2 * LEASE + WORK)
        assert all(answer.result(2 * LEASE + WORK) for answer in answers)
        left = max(0.1, begun + 2 * LEASE + WORK - time.monotonic())
        pair.until(lambda: not pair.well.ledger.jobs(finished_at=None), left)
        print(
            f"{name} {how} at {place or 'rest'}: indexed after {held:.1f} s, what came later after {fresh:.1f} s"
        )
    time.sleep(2)  # it believes that the work is still its own
    assert pair.is_current()
    assert pair.well.ledger.dead() == []
    pair.victims.kill(f"{name}-2")
