"""Step 4 through the real queue: whatever dies, every request ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from pipeline.step4 import EnrichContextStep
from tests.conftest import Site
from tests.end_to_end.fleet import Fleet
from workers.client import EnrichmentExpired, EnrichmentFailed

HERE = Path(__file__).parent
CONFIG = """
rag:
  embedding: {provider: hashing}
  queue: {tickSeconds: 0.5, answerApps: true}
  enrichment: {leaseSeconds: 2, resendSeconds: 2}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}
    - {name: backlog, type: pbi_json, paths: ['./output/run-*/final-output.json'], autoIndex: false}
    - {name: quay, type: pbi_json, paths: ['./quay.json'], project: quay, autoIndex: false}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    """One installation for all tests here, with two documents and an item of the backlog."""
    root = Path(tempfile.mkdtemp(prefix="larder-enrich-"))
    (root / "larder.yaml").write_text(CONFIG)
    for name, content in {
        "quay.json": '{"pbis": [{"id": "Q-1", "title": "Warn of shallow water at the quay"}]}',
        "docs/tides.md": "# Tide tables\n\nThe bar is passable for three hours around high water.\n",
        "docs/adr/0001-clock.md": "# Use harbour time\n\n## Status\n\nAccepted\n\n## Decision\n\nTimes are local.\n",
        "output/run-2026-09-01/final-output.json": json.dumps(
            {
                "pbis": [
                    {
                        "id": "PBI-7",
                        "title": "Warn of shallow water at the bar",
                        "description": "Tell the pilot of shallow water before high water.",
                        "acceptance_criteria": ["A warning below two metres"],
                    }
                ]
            }
        ),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    fleet = Fleet.started(root, HERE / "enrich_process.py")
    Site(root).index()
    fleet.revive()
    yield fleet
    fleet.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def fleet(running: Fleet) -> Iterator[Fleet]:
    """The installation with everything alive, and once more at the end."""
    running.revive()
    yield running
    running.revive()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)


def pbi(title: str) -> dict[str, Any]:
    """A PBI that nobody has asked about before."""
    return {"id": f"PBI-{uuid4().hex[:8]}", "title": title, "description": "Shallow water at the bar."}


@pytest.mark.req("001-036", "001-085", "001-090", "001-001", "001-002", "001-139")
def test_a_file_of_step_3_becomes_one_of_step_4(fleet: Fleet) -> None:
    items = [{"pbi": pbi(f"Shallow water warning {n}"), "scores": {"overall": n}} for n in range(3)]
    (fleet.root / "step-3.json").write_text(json.dumps({"scored_pbis": items}))
    made = fleet.larder("enrich", "step-3.json", "-o", "step-4.json", "--json")
    assert made.returncode == 0, made.stderr
    written = json.loads((fleet.root / "step-4.json").read_text())["enriched_pbis"]
    assert [{"pbi": w["pbi"], "scores": w["scores"]} for w in written] == items
    assert [w["title"] for w in written[0]["context"]["similar_work"]] == ["Warn of shallow water at the bar"]
    assert written[0]["context"]["risk_flags"] == []
    told = json.loads(made.stdout)
    assert told["enriched_pbis"] == written
    assert told["stats"] | {"time_elapsed": 0} == {"pbis": 3, "enriched": 3, "failed": 0, "time_elapsed": 0}
    assert [line.split(": ")[1] for line in made.stderr.splitlines() if line.startswith("PBI-")] == [
        "enriched"
    ] * 3
    before = len(fleet.ledger.jobs())
    again = fleet.larder("enrich", "step-3.json")
    assert json.loads(again.stdout)["enriched_pbis"] == written
    assert len(fleet.ledger.jobs()) == before


def test_items_of_another_project_come_when_they_are_asked_for(fleet: Fleet) -> None:
    items = [pbi("Warn of shallow water"), {**pbi("Warn of shallow water"), "project": "quay"}]
    (fleet.root / "two.json").write_text(json.dumps(items))

    def shown(*options: str) -> tuple[list[tuple[str, set[str]]], list[str]]:
        made = fleet.larder("enrich", "two.json", *options)
        assert made.returncode == 0, made.stderr
        contexts = [one["context"] for one in json.loads(made.stdout)["enriched_pbis"]]
        found = [(c["project"], {work["ref"] for work in c["similar_work"]}) for c in contexts]
        return found, [line for line in made.stderr.splitlines() if line.startswith("project")]

    here, both = {"PBI-7"}, {"PBI-7", "Q-1"}
    left = "project default: documents of other projects (quay) are left out; --projects '*' asks all"
    assert shown() == ([("default", here), ("quay", both)], [left])
    assert shown("--projects", "*") == ([("default", both), ("quay", both)], [])
    assert shown("--project", "quay") == ([("quay", both), ("quay", both)], [])


@pytest.mark.parametrize(
    ("items", "code", "failed"),
    [
        ([], 0, []),
        ([{"title": "Good"}, {"id": "BAD", "title": ["no", "text"]}, {"title": "Good too"}], 3, ["BAD"]),
        ([{"id": "BAD", "title": {"no": "text"}}, {"id": "WORSE"}], 1, ["BAD", "WORSE"]),
    ],
)
def test_a_file_of_which_some_or_none_can_be_enriched_says_so_by_its_exit(
    fleet: Fleet, items: list[dict[str, Any]], code: int, failed: list[str]
) -> None:
    (fleet.root / "some.json").write_text(json.dumps({"scored_pbis": {"scored_pbis": items}}))
    made = fleet.larder("enrich", "some.json", "--json")
    assert made.returncode == code, made.stderr
    told = json.loads(made.stdout)
    assert told["success"] is (code == 0)
    assert [one["pbi"] for one in told["enriched_pbis"]["enriched_pbis"]] == items
    assert [one["pbi"] for one in told["errors"]] == failed
    assert all("title" in one["reason"] for one in told["errors"])
    contexts = [one["context"] for one in told["enriched_pbis"]["enriched_pbis"]]
    assert ["error" in context for context in contexts] == [item.get("id") in failed for item in items]
    assert all(
        context["degradation_level"] == 0 for context in contexts
    )  # bad input degrades nothing of ours
    assert "Traceback" not in made.stderr


def test_a_worker_killed_in_the_middle_is_replaced_and_the_answer_comes(fleet: Fleet) -> None:
    with fleet.client() as client:
        job = client.submit(pbi("SLOW 3"))
        until(lambda: client.job(job).state == "running")
        fleet.kill("enrich")
        fleet.revive()
        assert client.result(job, wait=40)["degradation_level"] == 0
    assert fleet.ledger.jobs.values("crash_count", id=job) == [0]


def test_a_pbi_that_kills_every_worker_fails_and_takes_no_other_with_it(fleet: Fleet) -> None:
    with fleet.client() as client:
        poison, other = client.submit(pbi("POISON")), client.submit(pbi("Another"))
        with pytest.raises(EnrichmentFailed, match="died 3 times"):
            client.result(poison, wait=60)
        assert client.result(other, wait=10)
    assert fleet.ledger.jobs.values("crash_count", id=poison) == [3]


def test_a_message_that_the_broker_lost_is_sent_again(fleet: Fleet) -> None:
    fleet.kill("enrich")
    with fleet.client() as client:
        jobs = [client.submit(pbi(f"Lost {n}")) for n in range(5)]
        with redis.Redis.from_url(fleet.servers.broker_url) as broker:
            # Some were handed to the dead worker, whose end the broker has not noticed yet.
            assert broker.llen("enrich") >= 1
            broker.flushall()
        fleet.revive()
        assert all(client.result(job, wait=40) for job in jobs)


def test_what_no_worker_takes_in_time_expires_and_is_not_begun_later(fleet: Fleet) -> None:
    fleet.kill("enrich")
    with fleet.client() as client:
        job = client.submit(pbi("Too late"), deadline=1)
        with pytest.raises(EnrichmentExpired, match="deadline"):
            client.result(job, wait=20)
        fleet.revive()
        client.enrich(pbi("After it"))
        assert client.job(job).state == "expired"
        assert client.job(job).crash_count == 0


def test_twenty_at_once_all_get_their_own_answer(fleet: Fleet) -> None:
    with fleet.client() as client, ThreadPoolExecutor(20) as pool:
        # The criteria of the one item that is known stand in every answer that says "shallow".
        answers = list(pool.map(lambda n: client.enrich(pbi(f"Shallow {n}")), range(20)))
    assert all(a["similar_work"][0]["ref"] for a in answers)
    assert {"queued", "running"}.isdisjoint(fleet.ledger.jobs.values("state"))


def test_runs_of_step_4_lose_nothing_while_workers_are_killed(fleet: Fleet) -> None:
    with fleet.client() as client:

        def finished() -> int:
            asked = fleet.ledger.jobs.values("request", state="done")
            return sum(one["pbi"]["title"].startswith("SLOW 0.1") for one in asked)

        def run(number: int) -> list[dict[str, Any]]:
            items = [{"pbi": pbi(f"SLOW 0.1 {number}.{n}"), "scores": {}} for n in range(4)]
            made = EnrichContextStep(client).execute({"scored_pbis": {"scored_pbis": items}})
            enriched: list[dict[str, Any]] = made["enriched_pbis"]["enriched_pbis"]
            assert [one["pbi"] for one in enriched] == [item["pbi"] for item in items]
            return [one["context"] for one in enriched]

        with ThreadPoolExecutor(5) as pool:
            runs = [pool.submit(run, number) for number in range(5)]
            for done in (3, 9):
                until(lambda done=done: finished() >= done)  # type: ignore[misc]
                fleet.kill("enrich")
                fleet.revive()
            contexts = [context for one in runs for context in one.result(60)]
    assert [context["degradation_level"] for context in contexts] == [0] * 20
    assert all(context["similar_work"] for context in contexts)
    assert {"queued", "running"}.isdisjoint(fleet.ledger.jobs.values("state"))


BARE = """
import runpy, sys
sys.path[:] = [*sys.path, sys.argv[1]]  # no .pth file is read, so that no package of ours is found
try:
    import workers
except ModuleNotFoundError:
    runpy.run_path(sys.argv[2], run_name="__main__")
"""


@pytest.mark.req("ORD-01", "003-007")
def test_a_celery_app_without_this_package_is_answered(fleet: Fleet) -> None:
    libraries, script = sysconfig.get_paths()["purelib"], HERE.parents[1] / "docs/examples/plain_celery.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE, libraries, str(script)],
        cwd="/",
        env={"LARDER_BROKER_URL": fleet.servers.broker_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "rule: The pilot waits for the tide.",
        "similar: PBI-7 Warn of shallow water at the bar",
    ]
    log = (fleet.root / "enrich.log").read_text()
    assert "larder.vector.query" in log
    assert "pilot" not in log


@pytest.mark.req("ORD-04")
def test_a_full_ingest_queue_delays_nobody(fleet: Fleet) -> None:
    script = f"""
from uuid import UUID, uuid4
from workers.queue.app import configure
from workers.settings.queue import QueueSettings
app = configure(QueueSettings(), {fleet.servers.broker_url!r})
for _ in range(300):
    app.send_task("larder.chunk", args=[str(UUID(int=1)), [[str(uuid4()), 1]]])
"""
    # In a process of its own: the app of this one keeps its connections, and other tests have another broker.
    subprocess.run([sys.executable, "-c", script], cwd=HERE.parents[1], check=True, timeout=60)
    waits = []
    with fleet.client() as client:
        client.enrich(pbi("First"))
        for n in range(20):
            begun = time.monotonic()
            client.enrich(pbi(f"Quick {n}"))
            waits.append(time.monotonic() - begun)
    with redis.Redis.from_url(fleet.servers.broker_url) as broker:
        assert broker.llen("ingest") >= 300  # and the canaries of the minutes since
        broker.delete("ingest")
    print("seconds:", [round(w, 3) for w in sorted(waits)])
    assert (
        sorted(waits)[18] < 30
    )  # well under a tenth; nobody works on what lies before it, and it would never end


def test_urgent_ones_overtake_a_backlog(fleet: Fleet) -> None:
    with fleet.client() as client:
        bulk = [client.submit(pbi("SLOW 1"), priority=6) for _ in range(12)]
        client.enrich(pbi("Urgent"))
        waiting = [job for job in bulk if not client.job(job).ended]
        assert waiting, "it came after all of them"
        assert all(client.result(job, wait=30) for job in bulk)
