"""One installation behind two proxies, and the pipeline's process that asks it: what drills take parts away from.

Times are a fifth of those that are used for real, all of them, so that what takes long beside another still does;
with LARDER_REAL_CLOCKS=1 (`make drills`) they are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from uuid import uuid4

import psutil

from pipeline.step4 import EnrichContextStep, Outcome
from tests.conftest import Site
from tests.end_to_end.fleet import ENRICHING, Fleet
from tests.fakes.tcp_proxy import TcpProxy
from workers.client import Client
from workers.monitoring import metrics

SECONDS = 75.0
"""In which a command ends that meets a frozen server: alone it takes 13 to 15, of which 10 are the database's and 3 for
each question to the broker; here many start at once, on a machine that may be busy with other tests."""
Ended = Mapping[tuple[str, ...], tuple[CompletedProcess[str], float]]
REAL = os.environ.get("LARDER_REAL_CLOCKS") == "1"
CALM, SLOW, ANSWER_TIMEOUT, DEADLINE = (60.0, 2.0, 5.0, 120.0) if REAL else (12.0, 0.4, 1.0, 24.0)
"""Seconds: after which a level is left, from which a call to the database is slow, after which its silence means that
it is gone, and for which Step 4 waits."""
QUEUE, ENRICHMENT = ("{}", "{}") if REAL else ("{tickSeconds: 1}", "{leaseSeconds: 3, resendSeconds: 3}")
CONFIG = f"""
rag:
  embedding: {{provider: hashing}}
  queue: {QUEUE}
  enrichment: {ENRICHMENT}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}}
    - {{name: backlog, type: pbi_json, paths: ['./output/run-*/final-output.json'], autoIndex: false}}
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
    "suggestion_details": {"text"},
    "likely_duplicates": {"ref"},
    "citations": {"ref"},
    "risk_flags": set(),
}
"""What Step 4 promises of each list's items."""


@dataclass
class Drill:
    """The installation, and whoever asks it."""

    fleet: Fleet
    store: TcpProxy
    broker: TcpProxy
    client: Client
    counted: Path
    last: str = ""
    """The title that was asked about last."""
    refused: list[str] = field(default_factory=list)
    """Why the pipeline had to do without a worker's answer, since the test began."""

    def step4(self, *titles: str) -> list[dict[str, Any]]:
        """Run Step 4 over PBIs of these titles, as a pipeline does; their contexts, found to be valid and in time."""
        self.last = titles[-1]
        items = [{"pbi": pbi(title), "scores": {"overall": 1}} for title in titles]
        context: dict[str, Any] = {"scored_pbis": {"scored_pbis": items}}
        begun = time.monotonic()
        step = EnrichContextStep(self.client, on_outcome=self._note)
        made = step.execute(context)["enriched_pbis"]["enriched_pbis"]
        took = time.monotonic() - begun
        assert took < DEADLINE + 2 * ANSWER_TIMEOUT, "the asker would no longer be there"
        assert [(m["pbi"], m["scores"]) for m in made] == [(i["pbi"], i["scores"]) for i in items]
        for one in made:
            assert_valid(one["context"])
        print(f"Step 4: {[one['context']['degradation_level'] for one in made]} after {took:.1f} s")
        return [one["context"] for one in made]

    def _note(self, outcome: Outcome) -> None:
        if outcome.error:
            self.refused.append(outcome.error)

    def levels(self, *titles: str) -> list[int]:
        return [context["degradation_level"] for context in self.step4(*titles)]

    def reaches(self, level: int, seconds: float) -> None:
        """Ask new questions until one is answered at `level`, and that is the workers' level, too.

        While parts are in trouble one question in a while is tried the full way: its answer may be whole long before
        the trouble is forgotten, and what comes next would not begin in good health.
        """
        begun = time.monotonic()
        while (now := self.levels(new())) != [level] or self.held() != level:
            assert time.monotonic() - begun < seconds, (
                f"answered at {now}, held at {self.held()}, not {level}"
            )
            time.sleep(0.1)
        print(f"level {level} after {time.monotonic() - begun:.1f} s")

    def known(self) -> str:
        """A question that was answered in full."""
        self.reaches(0, 60)
        return self.last

    def metric(self, name: str) -> dict[str, float]:
        """Samples of one metric over all processes."""
        lines = metrics.exposition(self.counted).decode().splitlines()
        found = [line.rpartition(" ") for line in lines if line.startswith(name)]
        return {key: float(value) for key, _, value in found}

    def held(self) -> float:
        """The level at which the workers stand."""
        return max(self.metric("larder_degradation_level").values(), default=0)

    def until_metric(self, name: str, least: float) -> None:
        """Ask until a metric has come that far."""
        end = time.monotonic() + 3 * DEADLINE
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

    def heal(self) -> None:
        """End every fault."""
        self.store.heal()
        self.broker.heal()
        (self.fleet.root / "embedder-is-away").unlink(missing_ok=True)


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


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A server that keeps its connections and does nothing while the block runs."""
    server = psutil.Process(pid)
    stopped: Sequence[psutil.Process] = [server, *server.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


@contextmanager
def installed(*more: str) -> Iterator[Drill]:
    """The installation with workers for enrichment, and those of the queues `more`."""
    root = Path(tempfile.mkdtemp(prefix="larder-degradation-"))
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    counted = root / "metrics"
    counted.mkdir()
    fleet = Fleet.started(root, Path(__file__).parent / "enrich_process.py")
    try:
        Site(root).index()
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
            fleet.commands |= {queue: ["worker", queue, "--concurrency", "1"] for queue in more}
            fleet.revive()
            urls = store.url(s.database_url), broker.url(s.broker_url)
            with Client(
                urls[0], broker_url=urls[1], deadline=DEADLINE, answer_timeout=ANSWER_TIMEOUT
            ) as client:
                yield Drill(fleet, store, broker, client, counted)
    finally:
        fleet.stop()
        shutil.rmtree(root, ignore_errors=True)


COMMANDS = (
    "doctor --json",
    "status --json",
    "status",
    "search water",
    "enrich step-3.json --json",
    "index --no-wait",
    "dead list",
)


def all_at_once(drill: Drill, *commands: str) -> Ended:
    """Run commands, each as a process; what came of them, and after how many seconds."""

    def run(words: tuple[str, ...]) -> tuple[CompletedProcess[str], float]:
        begun = time.monotonic()
        return drill.fleet.larder(*words), time.monotonic() - begun

    every = [tuple(command.split()) for command in commands]
    with ThreadPoolExecutor(7) as pool:  # they wait more than they work
        return dict(zip(every, pool.map(run, every), strict=True))


def assert_all_ended(ended: Ended) -> None:
    for words, (done, seconds) in ended.items():
        print(f"larder {' '.join(words)}: exit {done.returncode} after {seconds:.1f} s")
        assert seconds < SECONDS, words
        assert "Traceback" not in done.stdout + done.stderr, words


def finding(done: CompletedProcess[str], check: str) -> dict[str, str]:
    """What the doctor says of one check."""
    findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return next(one for one in findings if one["check"] == check)


def assert_commands_say_that_the_database_is_frozen(drill: Drill, *commands: str) -> None:
    """Each ends in time with a sentence and the way out, those of one JSON document with that document."""
    (drill.fleet.root / "step-3.json").write_text(json.dumps([pbi(new())]))
    with frozen(drill.fleet.servers.postgres_pid):
        ended = all_at_once(drill, *commands)
    assert_all_ended(ended)
    assert {done.returncode for done, _ in ended.values()} == {1}
    for words, (done, _) in ended.items():
        if "--json" not in words and words[0] != "status":
            assert "E001: the database says nothing: no answer within" in done.stderr, words
            assert "larder doctor" in done.stderr, words
    told = finding(ended["doctor", "--json"][0], "database")
    assert told["status"] == "error"
    assert "says nothing" in told["detail"]
    assert f"127.0.0.1:{drill.store.port}" in told["fix"]
    assert "stopped" in told["fix"]
    assert json.loads(ended["status", "--json"][0].stdout)["degradation_level"] == 4
    assert_valid(
        json.loads(ended["enrich", "step-3.json", "--json"][0].stdout)["enriched_pbis"][0]["context"]
    )
