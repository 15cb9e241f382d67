"""Step 4 while parts of the installation are slow, gone or frozen: always an answer, at the right level, and back again.

Real processes and servers; proxies of ours stand before PostgreSQL and the broker. Times are shortened, so that a quiet
minute passes in seconds; `make drills` runs it with the real ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.end_to_end.drilled import (
    ANSWER_TIMEOUT,
    CALM,
    COMMANDS,
    DEADLINE,
    SLOW,
    Drill,
    assert_commands_say_that_the_database_is_frozen,
    assert_valid,
    frozen,
    installed,
    new,
    pbi,
)


@pytest.fixture(scope="module")
def installation() -> Iterator[Drill]:
    with installed() as made:
        yield made


@pytest.fixture
def drill(installation: Drill) -> Iterator[Drill]:
    """The installation in good health; healed at the end, and every log looked through."""
    installation.reaches(0, 120)
    installation.refused.clear()
    yield installation
    installation.heal()
    installation.quiet()


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
    drill.reaches(0, CALM + 30)
    assert drill.metric('larder_enrichments_total{level="3",state="done"}')


@pytest.mark.req("001-110")
def test_the_database_is_slow(drill: Drill) -> None:
    drill.store.delay = 1.1 * SLOW  # of each answer; a search may be a single round trip
    drill.until_metric("larder_degradation_level", 2)
    found = [level for _ in range(3) for level in drill.levels(new())]
    # Now and then one is tried the full way: its answer is slow, and whole; the next one is spared that.
    assert all(max(pair) >= 2 for pair in pairwise(found)), found
    assert drill.refused == [], "slow is not gone: a worker answered each of them"
    drill.store.heal()
    drill.reaches(0, CALM + DEADLINE / 3)  # sooner than two quiet minutes: the first is not begun anew


@pytest.mark.drill
def test_a_slow_database_is_not_gone_for_those_who_connect_to_it_now(drill: Drill) -> None:
    drill.store.delay = 1.1 * SLOW
    (drill.fleet.root / "step-3.json").write_text(json.dumps([pbi(new())]))
    # Two connections of its own come first, each of ten ways and more to the server.
    made = drill.fleet.larder("enrich", "step-3.json", "--json", seconds=2 * DEADLINE + 60)
    drill.store.heal()
    assert made.returncode == 0, made.stderr
    assert_valid(json.loads(made.stdout)["enriched_pbis"][0]["context"])


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
    drill.reaches(0, CALM + 30)


def test_the_database_is_frozen(drill: Drill) -> None:
    known = drill.known()
    with frozen(drill.fleet.servers.postgres_pid):
        begun = time.monotonic()
        assert drill.levels(known, *(new() for _ in range(12))) == [2, *[4] * 12]
        assert time.monotonic() - begun < 10 + 5 * ANSWER_TIMEOUT, "each of them found out alone"
    drill.reaches(0, CALM + 30)


def test_the_broker_is_gone(drill: Drill) -> None:
    drill.broker.cut()
    begun = time.monotonic()
    assert drill.levels(new(), new()) == [0, 0], (
        "the ledger knows what is asked, and the workers know the ledger"
    )
    print("seconds without a broker:", round(time.monotonic() - begun, 1))
    drill.broker.heal()
    drill.reaches(0, CALM + 30)


@pytest.mark.req("001-101", "001-108")
def test_everything_is_gone(drill: Drill) -> None:
    known = drill.known()
    drill.store.cut()
    drill.broker.cut()
    assert drill.levels(known, new(), new()) == [2, 4, 4]
    drill.broker.heal()
    drill.store.heal()
    drill.reaches(0, CALM + 30)


def test_every_command_says_that_the_database_is_frozen(drill: Drill) -> None:
    assert_commands_say_that_the_database_is_frozen(drill, *COMMANDS)
    drill.reaches(0, CALM + 30)
