"""Step 4 while parts of the installation are slow, gone or frozen: always an answer, at the right level, and back again.

Real processes and servers; proxies of ours stand before PostgreSQL and the broker. Times of health are shortened, so
that a quiet minute passes in seconds.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from pipeline.step4 import EnrichContextStep
from tests.end_to_end.fleet import ENRICHING, Fleet
from tests.fakes.tcp_proxy import TcpProxy
from workers import metrics
from workers.client import Client

CALM, SLOW, PATIENCE, DEADLINE = 10.0, 0.2, 1.0, 30.0
"""Seconds: after which a level is left, from which a call to the database is slow, after which its silence means that
it is gone, and for which Step 4 waits. Where they are used for real: 60, 2, 5 and 120."""
CONFIG = """
rag:
  embedding: {provider: hashing}
  queue: {tickSeconds: 0.5}
  enrichment: {leaseSeconds: 5, resendSeconds: 1}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}
    - {name: backlog, type: pbi_json, paths: ['./output/run-*/final-output.json'], autoIndex: false}
"""
FILES = {
    "larder.yaml": CONFIG,
    "docs/tides.md": "# Tide tables\n\nThe bar is shallow water for three hours around low water.\n",
    "docs/adr/0001-bar.md": "# Warn of shallow water\n\n## Status\n\nAccepted\n\n## Decision\n\nWe warn of shallow water.\n",
    "output/run-2026-09-01/final-output.json": json.dumps(
        {
            "pbis": [
                {"id": "PBI-7", "title": "Warn of shallow water", "description": "Tell the pilot of the bar."}
            ]
        }
    ),
}
SHAPE = {
    "similar_work": {"ref", "title", "similarity", "learnings", "link"},
    "past_decisions": {"ref", "title", "decision", "status", "decided_at", "superseded_by", "link"},
    "technical_docs": {"ref", "title", "relevant_sections", "link"},
    "suggestions": {"text"},
    "likely_duplicates": {"ref"},
    "citations": {"ref"},
    "risk_flags": set(),
}
"""What Step 4 promises of each list's items."""


@dataclass
class Drill:
    """One installation behind two proxies, and the pipeline's process that asks it."""

    fleet: Fleet
    store: TcpProxy
    broker: TcpProxy
    client: Client
    counted: Path
    last: str = ""
    """The title that was asked about last."""

    def step4(self, *titles: str) -> list[dict[str, Any]]:
        """Run Step 4 over PBIs of these titles, as a pipeline does; their contexts, found to be valid."""
        self.last = titles[-1]
        items = [{"pbi": pbi(title), "scores": {"overall": 1}} for title in titles]
        context: dict[str, Any] = {"scored_pbis": {"scored_pbis": items}}
        made = EnrichContextStep(self.client).execute(context)["enriched_pbis"]["enriched_pbis"]
        assert [(m["pbi"], m["scores"]) for m in made] == [(i["pbi"], i["scores"]) for i in items]
        for one in made:
            assert_valid(one["context"])
        return [one["context"] for one in made]

    def levels(self, *titles: str) -> list[int]:
        return [context["degradation_level"] for context in self.step4(*titles)]

    def reaches(self, level: int, seconds: float) -> None:
        """Ask new questions until one is answered at `level`."""
        end = time.monotonic() + seconds
        while (now := self.levels(new())) != [level]:
            assert time.monotonic() < end, f"still at level {now}, not {level}"
            time.sleep(0.1)

    def known(self) -> str:
        """A question that was answered in full."""
        self.reaches(0, 60)
        return self.last

    def metric(self, name: str) -> dict[str, float]:
        """Samples of one metric over all processes."""
        lines = metrics.exposition(self.counted).decode().splitlines()
        found = [line.rpartition(" ") for line in lines if line.startswith(name)]
        return {key: float(value) for key, _, value in found}

    def until_metric(self, name: str, least: float) -> None:
        """Ask until a metric has come that far."""
        end = time.monotonic() + 60 + DEADLINE
        while self.metric(name)[name] < least:
            assert time.monotonic() < end, self.metric(name)
            self.levels(new())

    def status(self) -> int:
        """The level on the operator's screen."""
        return int(json.loads(self.fleet.larder("status", "--json").stdout)["degradation_level"])

    def quiet(self) -> None:
        """No process has written a traceback."""
        for log in self.fleet.root.glob("*.log"):
            lines = log.read_text(errors="replace").splitlines()
            assert [line for line in lines if "Traceback" in line] == []


def pbi(title: str) -> dict[str, Any]:
    return {
        "id": f"PBI-{abs(hash(title))}",
        "title": title,
        "description": "Tell the pilot of shallow water.",
    }


def new() -> str:
    """A question that nobody has asked before."""
    return f"Warn of shallow water {uuid4().hex[:8]}"


def assert_valid(context: dict[str, Any]) -> None:
    assert set(SHAPE) | {"degradation_level"} <= set(context)
    assert context["degradation_level"] in range(6)
    for key, wanted in SHAPE.items():
        assert isinstance(context[key], list)
        assert all(wanted <= set(item) for item in context[key]), key
    json.dumps(context)


@pytest.fixture(scope="module")
def installation() -> Iterator[Drill]:
    root = Path(tempfile.mkdtemp(prefix="larder-degradation-"))
    root.chmod(0o755)
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    counted = root / "metrics"
    counted.mkdir()
    fleet = Fleet.started(root, Path(__file__).parent / "enrich_process.py")
    indexed = fleet.larder("index", "--json")
    assert indexed.returncode == 0, indexed.stderr
    s = fleet.servers
    with TcpProxy.to(s.database_url) as store, TcpProxy.to(s.broker_url) as broker:
        fleet.env |= {
            "LARDER_DATABASE_URL": store.url(s.database_url),
            "LARDER_CONTROL_DATABASE_URL": store.url(s.control_url),
            "LARDER_ADMIN_DATABASE_URL": store.url(s.admin_url),
            "LARDER_BROKER_URL": broker.url(s.broker_url),
            "PROMETHEUS_MULTIPROC_DIR": str(counted),
            "DRILL_HEALTH": f"calm_seconds={CALM} probe_seconds={CALM / 12} slow_seconds={SLOW}",
        }
        fleet.commands = {**ENRICHING, "enrich": ["worker", "enrich", "--concurrency", "1"]}
        fleet.revive()
        client = Client(
            store.url(s.database_url), broker_url=broker.url(s.broker_url), deadline=30, patience=1
        )
        with client:
            yield Drill(fleet, store, broker, client, counted)
        fleet.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def drill(installation: Drill) -> Iterator[Drill]:
    """The installation in good health; healed at the end, and every log looked through."""
    installation.reaches(0, 120)
    yield installation
    installation.store.heal()
    installation.broker.heal()
    (installation.fleet.root / "embedder-is-away").unlink(missing_ok=True)
    installation.quiet()


Cause = Callable[[], None]


@pytest.mark.req("001-102", "001-107")
def test_the_embedder_is_away(drill: Drill) -> None:
    away = drill.fleet.root / "embedder-is-away"
    away.touch()
    answers = drill.step4(new(), new(), new(), new())
    assert [a["degradation_level"] for a in answers] == [3, 3, 3, 3]
    assert all(a["similar_work"][0]["title"] == "Warn of shallow water" for a in answers)
    assert all(a["similar_work"][0]["similarity_by"] == "words" for a in answers)
    assert drill.status() == 3
    assert drill.metric("larder_degradation_level") == {"larder_degradation_level": 3}
    away.unlink()
    drill.reaches(0, 3 * CALM + 30)
    assert drill.metric('larder_enrichments_total{level="3",state="done"}')


@pytest.mark.req("001-110")
def test_the_database_is_slow(drill: Drill) -> None:
    drill.store.delay = 1.1 * SLOW  # of each answer; a search may be a single round trip
    drill.until_metric("larder_degradation_level", 2)
    found = [level for _ in range(3) for level in drill.levels(new())]
    # Now and then one is tried the full way: its answer is slow, and whole; the next one is spared that.
    assert all(max(pair) >= 2 for pair in pairwise(found)), found
    drill.store.heal()
    drill.reaches(0, 3 * CALM + 30)


@pytest.mark.req("001-106", "001-108", "001-111")
def test_the_database_is_gone(drill: Drill) -> None:
    known = drill.known()
    before = drill.step4(known)
    drill.store.cut()
    after = drill.step4(known, new())
    assert after[0] == {**before[0], "degradation_level": 2}
    assert after[1]["degradation_level"] == 4
    assert drill.status() == 4
    (drill.fleet.root / "step-3.json").write_text(json.dumps([pbi(new())]))
    made = drill.fleet.larder("enrich", "step-3.json", "--json")
    assert made.returncode == 1
    assert "Traceback" not in made.stderr
    assert_valid(json.loads(made.stdout)["enriched_pbis"][0]["context"])
    drill.store.heal()
    drill.reaches(0, 60)


def test_the_database_is_frozen(drill: Drill) -> None:
    known = drill.known()
    postgres = psutil.Process(drill.fleet.servers.postgres_pid)
    frozen = [postgres, *postgres.children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert drill.levels(known, *(new() for _ in range(12))) == [2, *[4] * 12]
        assert time.monotonic() - begun < 10 + 5 * PATIENCE, "each of them found out alone"
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    drill.reaches(0, 60)


def test_the_broker_is_gone(drill: Drill) -> None:
    drill.broker.cut()
    begun = time.monotonic()
    assert drill.levels(new(), new()) == [0, 0], (
        "the ledger knows what is asked, and the workers know the ledger"
    )
    print("seconds without a broker:", round(time.monotonic() - begun, 1))
    drill.broker.heal()
    drill.reaches(0, 60)


@pytest.mark.req("001-101", "001-108")
def test_everything_is_gone(drill: Drill) -> None:
    known = drill.known()
    drill.store.cut()
    drill.broker.cut()
    assert drill.levels(known, new(), new()) == [2, 4, 4]
    drill.broker.heal()
    drill.store.heal()
    drill.reaches(0, 60)
