"""A frozen server keeps its connections and says nothing: nobody waits for it for ever, and all goes on when it thaws.

What commands print is looked at, too: whoever reads it has just been woken up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import psutil
import pytest
import redis

from tests.end_to_end.drilled import (
    COMMANDS,
    Drill,
    all_at_once,
    assert_all_ended,
    assert_commands_say_that_the_database_is_frozen,
    finding,
    frozen,
    installed,
    new,
    pbi,
)
from tests.ledger import ago
from workers.monitoring import liveness
from workers.processes.broker_outage import RETURN_SECONDS


@pytest.fixture(scope="module")
def installation() -> Iterator[Drill]:
    with installed("ingest", "embed") as made:
        yield made


@pytest.fixture
def drill(installation: Drill, request: pytest.FixtureRequest) -> Iterator[Drill]:
    """The installation in good health; healed at the end, and every log looked through."""
    installation.reaches(0, 120)
    (installation.fleet.root / "step-3.json").write_text(json.dumps([pbi(new())]))
    before = pids(installation)
    yield installation
    installation.heal()
    if request.node.get_closest_marker("drill") is None:
        # Celery itself writes one where it loses a broker.
        installation.quiet()
    assert pids(installation) == before, "it went on only because it was started again"


def pids(drill: Drill) -> dict[str, int]:
    """Of the processes that live."""
    return {
        name: p.pid
        for name, p in drill.fleet.processes.items()
        if psutil.pid_exists(p.pid) and p.poll() is None
    }


def stays_fresh(drill: Drill, frozen_at: float) -> None:
    """Every process gives signs of life, so long that a supervisor would have killed it otherwise."""
    time.sleep(max(0.0, liveness.DEAF_SECONDS + 10 - (time.monotonic() - frozen_at)))
    ages = liveness.ages(drill.fleet.root / ".larder" / "heartbeat")
    assert len(ages) == len(drill.fleet.processes)
    assert max(ages.values()) < liveness.DEAF_SECONDS, ages


def under_way(drill: Drill) -> list[object]:
    """Where the newest runs and the documents that wait stand in the ledger."""
    ledger = drill.fleet.ledger
    runs = ledger.runs.values("state", "due_at", "enqueued_at", "error")[-2:]
    waiting = ledger.documents.values("stage", "due_at", "enqueued_at", "lease_until", state="pending")
    return [ago(), *runs, *waiting]


@pytest.mark.drill
def test_every_command_says_that_the_database_is_frozen(drill: Drill) -> None:
    """Those that a smaller test leaves to this one, too."""
    assert_commands_say_that_the_database_is_frozen(
        drill,
        *COMMANDS,
        "index",
        "sources list",
        "explain docs/tides.md",
        "reindex status",
        "reindex switch",
        "clear --yes",
        "migrate",
    )


@pytest.mark.drill
def test_workers_bear_a_frozen_database(drill: Drill) -> None:
    with frozen(drill.fleet.servers.postgres_pid):
        stays_fresh(drill, time.monotonic())
    drill.reaches(0, 60)


@pytest.mark.drill
def test_commands_and_workers_bear_a_frozen_broker(drill: Drill) -> None:
    with frozen(drill.fleet.servers.valkey_pid):
        begun = time.monotonic()
        for titles in ([new()], [new() for _ in range(10)]):
            assert set(drill.levels(*titles)) == {0}, "the workers know the ledger"
        ended = all_at_once(
            drill,
            "doctor --json",
            "status --json",
            "search water",
            "enrich step-3.json --json",
            "index --no-wait",
            "dead list",
            "sources list",
        )
        assert_all_ended(ended)
        failed = {words for words, (done, _) in ended.items() if done.returncode}
        assert failed == {("doctor", "--json")}, "its finding is an error, the others do without the broker"
        told = finding(ended["doctor", "--json"][0], "broker")
        assert "accepts connections and does not answer" in told["detail"]
        assert "stopped" in told["fix"]
        status = json.loads(ended["status", "--json"][0].stdout)
        assert (status["broker"], status["degradation_level"]) == ("error", 0)
        stays_fresh(drill, begun)
        assert drill.levels(new()) == [0]
    drill.reaches(0, 60)


@pytest.mark.drill
def test_indexing_goes_on_after_a_frozen_broker(drill: Drill) -> None:
    """Also where the freeze met a worker in the midst of a task, whose end it could not tell."""
    until_all_runs_are_closed(drill)
    until_under_way(drill, "larder.pump")
    with frozen(drill.fleet.servers.valkey_pid):
        (drill.fleet.root / "docs" / "fenders.md").write_text(
            "# Fenders\n\nHang three fenders over the side.\n"
        )
        asked = drill.fleet.larder("index", "--no-wait")
        assert asked.returncode == 0, asked.stderr
        time.sleep(75)
    thawed = time.monotonic()
    found = ""
    while "fenders.md" not in found:
        assert time.monotonic() - thawed < 90, f"what was queued meanwhile is not indexed: {under_way(drill)}"
        found = drill.fleet.larder("search", "fenders", "-k", "1").stdout
    print(f"indexed {time.monotonic() - thawed:.1f} s after the thaw")
    drill.reaches(0, 60)
    time.sleep(max(0.0, RETURN_SECONDS + 10 - (time.monotonic() - thawed)))
    # Nobody speaks for the consumers any more: they tell of themselves.
    ages = liveness.ages(drill.fleet.root / ".larder" / "heartbeat")
    assert max(ages.values()) < liveness.DEAF_SECONDS / 3, ages


def until_all_runs_are_closed(drill: Drill) -> None:
    """A command waits for an earlier run of its source, and in vain while the broker is away."""
    end = time.monotonic() + 60
    while drill.fleet.ledger.runs(finished_at=None):
        assert time.monotonic() < end, under_way(drill)
        time.sleep(0.2)


def until_under_way(drill: Drill, task: str) -> None:
    """Wait for the moment in which a worker has a message and has not told the broker of its end."""
    end = time.monotonic() + 60
    with redis.Redis.from_url(drill.fleet.servers.broker_url) as broker:
        while not any(task.encode() in message for message in broker.hvals("unacked")):
            assert time.monotonic() < end


@pytest.mark.drill
def test_packets_that_vanish_are_the_same_as_a_frozen_broker(drill: Drill) -> None:
    drill.broker.freeze()
    assert set(drill.levels(*(new() for _ in range(10)))) == {0}
    drill.broker.cut()  # what comes back is another connection: those that wait must not wait for the old one
    drill.broker.heal()
    drill.reaches(0, 60)
    queued = time.monotonic()
    done = drill.fleet.larder("index", "--json")
    assert done.returncode == 0, done.stderr
    print(f"indexed {time.monotonic() - queued:.1f} s later")
