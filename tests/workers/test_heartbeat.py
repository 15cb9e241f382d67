"""A worker that waits for a server gives signs of life; one that is deaf does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kombu.asynchronous.timer import Timer

from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import Ledger
from workers.monitoring import liveness
from workers.processes.heartbeat import ANSWER_TIMEOUT, DEAF_LOOKS, Presence
from workers.runtime import Addresses, Runtime

SQL = psycopg.Connection[Any]
LOOK = 0.2
NAME = "worker-embed@here"


@pytest.fixture
def where(runtime: Runtime) -> Iterator[tuple[Addresses, TcpProxy, TcpProxy]]:
    """The servers behind proxies: addresses, database, broker."""
    there = runtime.addresses
    with TcpProxy.to(there.control) as store, TcpProxy.to(there.broker) as broker:
        yield replace(there, control=store.url(there.control), broker=broker.url(there.broker)), store, broker


@pytest.fixture
def ends() -> list[str]:
    """Why it has ended itself."""
    return []


@pytest.fixture
def neglected() -> list[str]:
    """What waits for it in vain."""
    return []


@pytest.fixture
def presence(
    where: tuple[Addresses, TcpProxy, TcpProxy], tmp_path: Path, ends: list[str], neglected: list[str]
) -> Iterator[Presence]:
    """Seen since now; its consumer's timer has run once and stands still."""
    made = Presence(
        NAME, "embed", tmp_path, where[0], look=LOOK, starves=lambda: bool(neglected), die=ends.append
    )
    made.start()
    yield made
    for proxy in where[1:]:
        proxy.heal()
    made.stop()


def timer() -> Any:
    """A consumer's, which nobody drives."""
    return Timer()  # type: ignore[no-untyped-call]


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)


def age(folder: Path) -> float:
    """Seconds since the last sign of life."""
    return liveness.ages(folder)["worker-embed"]


def rows(ledger: Ledger) -> list[Any]:
    return [row["queues"] for row in ledger.workers(name=NAME) if row["pid"] > 0]


def test_it_is_listed_while_it_runs(presence: Presence, ledger: Ledger) -> None:
    until(lambda: rows(ledger) == ["embed"])
    presence.stop()
    assert rows(ledger) == []


def test_a_consumer_that_stands_still_while_the_broker_is_there_is_deaf(
    presence: Presence, tmp_path: Path
) -> None:
    time.sleep(1.5)
    assert age(tmp_path) > 1
    begun = time.monotonic()
    presence.consumer_ran()
    assert age(tmp_path) <= time.monotonic() - begun + 0.1


@pytest.mark.parametrize("fault", ["cut", "freeze"])
def test_one_that_waits_for_the_broker_is_not(
    presence: Presence, where: tuple[Addresses, TcpProxy, TcpProxy], tmp_path: Path, fault: str
) -> None:
    del presence
    getattr(where[2], fault)()
    time.sleep(1.5)  # without a sign it would be as old as that, and older from now on
    until(lambda: age(tmp_path) < 0.5)


def test_a_frozen_database_does_not_keep_the_consumer_from_listening(
    presence: Presence, where: tuple[Addresses, TcpProxy, TcpProxy], tmp_path: Path
) -> None:
    where[1].freeze()
    begun = time.monotonic()
    while time.monotonic() - begun < 2:
        before = time.monotonic()
        presence.consumer_ran()
        assert time.monotonic() - before < ANSWER_TIMEOUT, "it waited for the database"
        assert age(tmp_path) <= time.monotonic() - before + 0.1
        time.sleep(0.05)


def test_one_that_stays_deaf_ends_itself(presence: Presence, ends: list[str]) -> None:
    time.sleep(2 * DEAF_LOOKS * LOOK)
    assert ends == [], "it has never listened: it is still starting"
    presence.listen(timer())
    until(lambda: ends)
    assert ends[0] == "its consumer stands still, and the broker is there"


def test_one_that_waits_for_the_broker_does_not(
    presence: Presence, where: tuple[Addresses, TcpProxy, TcpProxy], ends: list[str]
) -> None:
    presence.listen(timer())
    where[2].cut()
    time.sleep(2 * DEAF_LOOKS * LOOK)
    assert ends == []


def test_one_that_hears_and_takes_nothing_ends_itself(
    presence: Presence, neglected: list[str], ends: list[str]
) -> None:
    presence.listen(timer())
    begun = time.monotonic()
    while not ends:
        assert time.monotonic() - begun < 30
        if time.monotonic() - begun > 2 * DEAF_LOOKS * LOOK:
            neglected[:] = ["a message"]
        presence.consumer_ran()
        time.sleep(LOOK / 4)
    assert neglected, "it ended while nothing waited"
    assert ends[0] == "messages wait, and it takes none"


def test_a_new_timer_takes_the_place_of_the_old_one(presence: Presence) -> None:
    first, second = timer(), timer()
    presence.listen(first)
    entry = first.queue[0].entry
    presence.listen(second)
    assert entry.canceled
    assert len(second.queue) == 1
