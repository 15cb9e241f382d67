"""Embedding for money, with real workers: storms, outages, wrong keys, spent budgets and kills."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import psycopg
import pytest

from tests import forked
from tests.conftest import Addresses
from tests.end_to_end.fleet import Processes
from tests.fakes.messages import Answer
from tests.fakes.openai_server import KEY, FakeOpenAI
from tests.fakes.server import Fault
from tests.ledger import Ledger, ago, ahead, of_all
from workers.local import embedded

CALL = 8
"""Texts of one call."""
CEILING = 100_000_000
CONFIG = """
rag:
  embedding:
    provider: openai
    model: text-embedding-3-small
    dimensions: 64
    batchSize: 8
    baseUrl: ${TEST_ADDRESS}/v1
    apiKey: ${TEST_KEY}
    dailyTokens: 100000000
    queryShare: 0
    costPerMillionTokens: 2
  chunking: {maxSize: 300, overlap: 0}
  queue:
    leaseSeconds: 5
    batchDocuments: 4
    tickSeconds: 0.3
    visibilityTimeout: 60
    timeLimit: 40
    softTimeLimit: 30
    retryBaseSeconds: 0.5
    retryMaxSeconds: 2
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
"""


class Service(FakeOpenAI):
    """OpenAI with a bill for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.bill: Counter[str] = Counter()
        self.seconds = 0.0
        self.arrived = threading.Event()
        """Set when a call has come in that will be answered."""

    def _vectors(self, body: dict[str, Any], texts: list[str]) -> Answer:
        with self.lock:
            self.bill.update(texts)
        self.arrived.set()
        self.stopping.wait(self.seconds)
        return super()._vectors(body, texts)


@dataclass(kw_only=True)
class Paying(Processes):
    """Workers and beat on a database of their own, driven by files and SQL."""

    service: Service
    connect: Callable[[], psycopg.Connection[Any]]

    def start_with(self, *names: str, **env: str) -> None:
        """Start these anew with another environment."""
        self.env.update(env)
        for name in names:
            self.kill(name)
        self.revive()

    @property
    def ledger(self) -> Ledger:
        return Ledger(of_all(self.connect))

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def publish(self, documents: dict[str, str]) -> None:
        """Write files and have them read."""
        folder = self.root / "docs"
        folder.mkdir(exist_ok=True)
        for name, body in documents.items():
            (folder / f"{name}.md").write_text(body)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            asked = self.sql("""
                update source set next_sync_at = now() where not exists (
                    select from sync_run where finished_at is null) returning id""")
            if asked:
                return
            time.sleep(0.1)
        raise AssertionError("the source is not known, or its last run does not end")

    def settled(self) -> bool:
        waiting = self.sql("""
            select (select count(*) from source where next_sync_at <= now())
                 + (select count(*) from sync_run where finished_at is null)
                 + (select count(*) from document where state = 'pending')""")
        return waiting == [(0,)]

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, Counter(
                self.ledger.documents.values("stage", "state", "attempts", "waits", "last_error")
            )
            time.sleep(0.05)

    def status(self) -> Any:
        done = self.larder("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def innocent(self) -> bool:
        """No document was ever blamed."""
        states = self.ledger.documents.values("state", "attempts")
        return not any(state == "dead" or attempts for state, attempts in states) and not self.ledger.dead()

    @property
    def paid_twice(self) -> int:
        """Texts that were paid for more than once, each time counted."""
        return sum(self.service.bill.values()) - len(self.service.bill)


@pytest.fixture(scope="module")
def fleet(
    shared_addresses: Addresses,
    servers: embedded.Servers,
    superuser: Callable[[str], psycopg.Connection[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Paying]:
    root = tmp_path_factory.mktemp("paid")
    (root / "larder.yaml").write_text(CONFIG)
    with Service() as service:
        made = Paying(
            root=root,
            env=forked.environment(
                LARDER_CONFIG=str(root / "larder.yaml"),
                LARDER_DATABASE_URL=shared_addresses.app,
                LARDER_CONTROL_DATABASE_URL=shared_addresses.control,
                LARDER_BROKER_URL=f"{servers.broker_url.rpartition('/')[0]}/7",
                TEST_ADDRESS=service.address,
                TEST_KEY="sk-wrong",
            ),
            commands={
                "control": ["worker", "control"],
                "ingest": ["worker", "ingest"],
                "embed": ["worker", "embed", "--concurrency", "4"],
                "beat": ["beat"],
            },
            service=service,
            connect=lambda: superuser(shared_addresses.name),
        )
        made.revive()
        yield made
        made.stop()


@pytest.fixture(autouse=True)
def _fresh(fleet: Paying) -> None:
    fleet.service.bill.clear()
    fleet.service.seconds = 0.0


def pages(prefix: str, count: int, sections: int = 4) -> dict[str, str]:
    """Documents whose texts are all different."""
    return {
        f"{prefix}{n}": f"# {prefix} {n}\n\n"
        + "\n\n".join(
            f"## Part {s}\n\n" + f"Part {s} of {prefix} {n} tells this. " * 8 for s in range(sections)
        )
        for n in range(count)
    }


def test_a_wrong_key_stops_embedding_until_it_is_mended(fleet: Paying) -> None:
    fleet.publish(pages("key", 30))
    fleet.until(lambda: len(fleet.ledger.holds()) == 1)
    # Those that were sent before the hold wait with its reason, and no other one is sent.
    unsent = {"state": "pending", "stage": "chunked", "enqueued_at": None}
    fleet.until(lambda: len(fleet.ledger.documents(**unsent)) == 30)
    assert len(fleet.service.requests()) <= 4, "one call of each process at most"
    found = fleet.status()
    assert found["embedding"]["state"] == "held"
    assert "embedding.apiKey" in found["next"][0]["detail"]
    asked = fleet.larder("index", "--json")
    assert (asked.returncode, "nothing is embedded" in asked.stderr) == (1, True)
    fleet.start_with("control", "embed", TEST_KEY=KEY)
    fleet.until(fleet.settled)
    assert fleet.status()["embedding"]["state"] == "ok"
    assert fleet.innocent
    assert fleet.paid_twice == 0


@pytest.mark.req("001-020", "001-097")
def test_a_text_of_fifty_documents_is_paid_once(fleet: Paying) -> None:
    fleet.service.seconds = 0.2
    (body,) = pages("same", 1, sections=12).values()
    fleet.publish({f"copy-{n}": body for n in range(50)})
    fleet.until(fleet.settled)
    assert len(fleet.service.bill) >= 12
    assert fleet.paid_twice == 0
    assert fleet.innocent


@pytest.mark.req("001-099", "ORD-03")
def test_a_storm_and_an_outage_kill_nothing_and_cost_few_calls(fleet: Paying) -> None:
    service = fleet.service
    service.faults.next(Fault.status(429, headers={"Retry-After": "1"}), times=4)
    service.faults.next(Fault.status(503), times=None)
    before = len(service.requests())
    fleet.publish(pages("storm", 40))
    fleet.until(lambda: sum(n > 0 for n in fleet.ledger.documents.values("waits", stage="chunked")) >= 40)
    time.sleep(3)  # an outage has a length; what is counted is how often it was asked meanwhile
    calls = len(service.requests()) - before
    service.faults.clear()
    assert calls <= 4 + 4 * 3 + 6, "all 4 workers may have been under way, then one probes at a time"
    fleet.until(fleet.settled)
    assert fleet.innocent
    assert fleet.paid_twice == 0


def test_a_killed_worker_costs_one_call_at_most(fleet: Paying) -> None:
    service = fleet.service
    service.seconds = 0.5
    fleet.publish(pages("killed", 12, sections=8))
    for _ in range(2):
        service.arrived.clear()
        assert service.arrived.wait(30)
        for child in fleet.family("embed")[1:]:
            with contextlib.suppress(psutil.Error):
                child.send_signal(signal.SIGKILL)
    service.seconds = 0.0
    fleet.until(fleet.settled)
    assert fleet.paid_twice <= 2 * 4 * CALL, "two kills of four processes with a call each"
    assert len(fleet.ledger.documents(state="dead")) == 0
    assert sum(service.bill.values()) >= 12 * 8


def test_a_spent_day_waits_for_the_next(fleet: Paying) -> None:
    fleet.ledger.usage.set(tokens=CEILING - 3000)
    fleet.publish(pages("day", 20))

    def waits() -> bool:
        pending = fleet.ledger.documents.values("waits", "due_at", state="pending")
        return any(n for n, _ in pending) and all(due_at >= ahead(seconds=30) for _, due_at in pending)

    fleet.until(waits)
    found = fleet.status()["embedding"]
    assert (found["state"], found["until"][11:15]) == ("waiting", "00:0")
    assert "daily" in found["error"]
    (row,) = found["today"]
    assert CEILING - 3000 < row["tokens"] <= CEILING
    fleet.ledger.usage.set(tokens=CEILING)  # not even room for a question
    asked = fleet.larder("search", "what does part one tell", "--json")
    assert asked.returncode == 0, asked.stderr
    assert fleet.ledger.usage.values("texts", kind="query") == []
    assert json.loads(asked.stdout)["degradation_level"] == 3, (
        "by words alone: the day is spent for questions, too"
    )
    for day in sorted(set(fleet.ledger.usage.values("day"))):
        fleet.ledger.usage.set({"day": day}, day=day - timedelta(days=1))
    fleet.ledger.documents.set(due_at=ago())  # midnight
    fleet.until(fleet.settled)
    assert fleet.innocent
    assert fleet.paid_twice == 0
    fleet.larder("search", "what does part one tell", "--json")
    row, questions = fleet.status()["embedding"]["today"]
    assert (questions["kind"], questions["texts"]) == ("query", 1)
    assert row["cost"] == pytest.approx(row["tokens"] * 2 / 1e6)
    assert row["texts"] >= 20
