"""What every RequestLimiter must do, run for each of them."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from connectors.web.limiter import LocalRequestLimiter, RequestLimiter, RequestLimits
from pipeline.errors import RateLimited, SourceUnavailable
from workers.limits.limiters import HOST_PREFIX, ValkeyRequestLimiter
from workers.local import embedded

FREE = RequestLimits(at_once=10_000)
_names = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class World:
    """A limiter, its time, and a host nobody asked yet."""

    limiter: RequestLimiter
    another: Callable[[], RequestLimiter]
    """The same limiter as another worker opens it."""
    wait: Callable[[float], None]
    key: str


def local_world() -> World:
    clock = [500.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    limiter = LocalRequestLimiter(lambda: clock[0])
    return World(limiter=limiter, another=lambda: limiter, wait=wait, key="host")


@pytest.fixture(params=["local", "valkey"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "local":
        yield local_world()
        return
    servers: embedded.Servers = request.getfixturevalue("servers")
    with contextlib.ExitStack() as stack:

        def opened() -> RequestLimiter:
            made = ValkeyRequestLimiter(servers.broker_url)
            stack.callback(made.disconnect)
            return made

        yield World(limiter=opened(), another=opened, wait=time.sleep, key=f"host-{next(_names)}:443")


def entered(limiter: RequestLimiter, key: str, limits: RequestLimits, most: int = 1000) -> int:
    """How many get in at once, each leaving before the next comes."""
    for count in range(most):
        try:
            limiter.release(key, limiter.acquire(key, limits))
        except RateLimited:
            return count
    return most


def refused(limiter: RequestLimiter, key: str, limits: RequestLimits = FREE) -> float:
    """After how many seconds to come back."""
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(key, limits)
    assert caught.value.fix
    assert caught.value.transient
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def test_without_a_rate_everybody_enters(world: World) -> None:
    assert entered(world.limiter, world.key, FREE, most=100) == 100


@pytest.mark.parametrize(("per_minute", "burst"), [(1, 1), (12, 12), (600, 30)])
def test_a_burst_enters_and_then_nobody(world: World, per_minute: int, burst: int) -> None:
    limits = RequestLimits(per_minute=per_minute)

    count = entered(world.limiter, world.key, limits)

    # Valkey's clock runs on meanwhile, on a busy machine for seconds: a fast rate drips while the burst enters.
    dripped = per_minute // 6 + 1
    assert burst <= count <= burst + dripped
    assert entered(world.another(), world.key, limits) <= dripped


def test_the_bucket_fills_again_at_the_rate_and_a_refusal_names_a_useful_time(world: World) -> None:
    limits = RequestLimits(per_minute=600)  # 10 a second
    with pytest.raises(RateLimited) as caught:  # noqa: PT012 (one of many calls raises)
        for _ in range(1000):
            world.limiter.release(world.key, world.limiter.acquire(world.key, limits))

    seconds = caught.value.retry_after or 0.0
    assert 0.6 <= seconds <= 0.8  # until about 7.5 of 30 are there
    world.wait(seconds)

    assert 7 <= entered(world.limiter, world.key, limits) < 30


def test_people_may_ask_a_minutes_worth_at_once_and_come_back_for_the_next(world: World) -> None:
    limits = RequestLimits(per_minute=120, at_once=2, of_people=True)

    count = entered(world.limiter, world.key, limits)

    assert 120 <= count <= 120 + 20, "no more but what comes meanwhile, at two a second"
    assert refused(world.limiter, world.key, limits) <= 0.5


def test_a_long_quiet_time_gives_no_more_than_a_burst() -> None:
    world = local_world()
    limits = RequestLimits(per_minute=60)
    entered(world.limiter, world.key, limits)

    world.wait(10_000)

    assert entered(world.limiter, world.key, limits) == 30


def test_so_many_are_in_flight_and_no_more_until_one_leaves(world: World) -> None:
    limits = RequestLimits(at_once=3)
    tickets = [world.limiter.acquire(world.key, limits) for _ in range(3)]
    assert len(set(tickets)) == 3
    assert refused(world.another(), world.key, limits) == pytest.approx(1, abs=0.5)

    world.limiter.release(world.key, "a ticket nobody has")
    refused(world.limiter, world.key, limits)
    world.another().release(world.key, tickets[1])

    world.limiter.acquire(world.key, limits)
    refused(world.limiter, world.key, limits)


def test_being_refused_for_the_crowd_takes_nothing_from_the_bucket(world: World) -> None:
    limits = RequestLimits(per_minute=12, at_once=1)
    ticket = world.limiter.acquire(world.key, limits)
    for _ in range(20):
        refused(world.limiter, world.key, limits)
    world.limiter.release(world.key, ticket)

    assert entered(world.limiter, world.key, limits) == 11


def test_a_closed_gate_is_closed_to_everybody_until_its_time(world: World) -> None:
    world.limiter.pause(world.key, 0.2)

    assert 0.1 < refused(world.another(), world.key) <= 0.2
    world.wait(0.21)
    world.another().acquire(world.key, FREE)


def test_a_shorter_close_never_shortens_a_longer_one(world: World) -> None:
    world.limiter.pause(world.key, 100)
    world.another().pause(world.key, 5)
    assert 95 < refused(world.limiter, world.key) <= 100

    world.another().pause(world.key, 3600)
    assert 3500 < refused(world.limiter, world.key) <= 3600


def test_hosts_do_not_disturb_each_other(world: World) -> None:
    world.limiter.pause(world.key, 100)
    world.limiter.acquire(f"{world.key}0", RequestLimits(at_once=1))

    world.limiter.acquire(f"{world.key}1", RequestLimits(at_once=1))


def test_threads_together_keep_the_limits(world: World) -> None:
    limits = RequestLimits(per_minute=30, at_once=2)
    inside, most, count = 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most, count
        limiter = world.another()
        for _ in range(30):
            try:
                ticket = limiter.acquire(world.key, limits)
            except RateLimited:
                time.sleep(0.001)
                continue
            with lock:
                inside, count = inside + 1, count + 1
                most = max(most, inside)
            time.sleep(0.001)
            with lock:
                inside -= 1
            limiter.release(world.key, ticket)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 2
    assert 30 <= count < 40  # one every two seconds comes in addition


# -- Valkey only

WORKER = """
import sys, time
from connectors.web.limiter import RequestLimits
from pipeline.errors import RateLimited
from workers.limits.limiters import ValkeyRequestLimiter
limiter = ValkeyRequestLimiter(sys.argv[1])
limits = RequestLimits(per_minute=600)
until = time.time() + float(sys.argv[3])
while time.time() < until:
    before = time.time()
    try:
        limiter.release(sys.argv[2], limiter.acquire(sys.argv[2], limits))
        print(before, time.time())
    except RateLimited as error:
        if error.retry_after > 50:
            print("closed")
            break
        time.sleep(0.02)
limiter.disconnect()
"""


def _workers(servers: embedded.Servers, key: str, seconds: float) -> list[subprocess.Popen[str]]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WORKER, servers.broker_url, key, str(seconds)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]


def test_processes_together_never_pass_the_rate(servers: embedded.Servers) -> None:
    printed = [
        worker.communicate(timeout=60)[0].splitlines() for worker in _workers(servers, "host-processes", 2)
    ]

    assert all(printed), "one of them did all the work"
    granted = [[float(moment) for moment in line.split()] for lines in printed for line in lines]
    assert len(granted) >= 40, "the rate was not used"
    for (begun, _), (_, ended) in itertools.product(granted, granted):
        # The limiter's own clock stood somewhere between the two that were read around each grant.
        meanwhile = sum(begun <= before and after <= ended for before, after in granted)
        assert meanwhile <= 30 + max(0.0, ended - begun) * 10 + 1


def test_a_close_in_one_process_is_obeyed_by_others(servers: embedded.Servers) -> None:
    workers = _workers(servers, "host-closing", 50)
    limiter = ValkeyRequestLimiter(servers.broker_url)
    assert workers[0].stdout
    workers[0].stdout.readline()  # both are at work, or soon will be
    limiter.pause("host-closing", 100)

    assert [worker.communicate(timeout=60)[0].split()[-1] for worker in workers] == ["closed"] * 2
    limiter.disconnect()


def test_the_ticket_of_a_killed_worker_dies(servers: embedded.Servers) -> None:
    limiter = ValkeyRequestLimiter(servers.broker_url)
    limits = RequestLimits(per_minute=600, at_once=1)
    limiter.acquire("host-killed", limits)
    tickets = f"{HOST_PREFIX}{{host-killed}}:tickets"
    with redis.Redis.from_url(servers.broker_url) as client:
        ((name, end),) = client.zrange(tickets, 0, -1, withscores=True)
        assert end - time.time() == pytest.approx(300, abs=5)
        client.zadd(tickets, {name: time.time() - 1})

        limiter.acquire("host-killed", limits)

        keys = list(client.scan_iter(f"{HOST_PREFIX}*host-killed*"))
        assert len(keys) == 2
        assert all(client.pttl(key) > 0 for key in keys), "something stays for ever"
    limiter.disconnect()


def test_a_clock_that_is_set_back_shuts_no_host(servers: embedded.Servers) -> None:
    """What was noted by the clock as it was lies in the future, and that would be waited for."""
    limiter, limits = ValkeyRequestLimiter(servers.broker_url), RequestLimits(per_minute=600, at_once=1)
    limiter.acquire("host-back", limits)
    place = f"{HOST_PREFIX}{{host-back}}"
    with redis.Redis.from_url(servers.broker_url) as client:
        ((name, end),) = client.zrange(f"{place}:tickets", 0, -1, withscores=True)
        client.zadd(f"{place}:tickets", {name: end + 86_400})  # its worker was killed
        client.hset(f"{place}:bucket", mapping={"tokens": "0", "at": time.time() + 86_400})
    with pytest.raises(RateLimited):
        limiter.acquire("host-back", limits)
    time.sleep(0.3)
    limiter.acquire("host-back", limits)
    limiter.disconnect()


def test_a_broker_that_is_away_is_transient_and_tells_no_password() -> None:
    limiter = ValkeyRequestLimiter("redis://:hunter2@127.0.0.1:1/0")

    for attempt in (lambda: limiter.acquire("host", FREE), lambda: limiter.pause("host", 5)):
        with pytest.raises(SourceUnavailable) as caught:
            attempt()
        assert not isinstance(caught.value, RateLimited)
        assert caught.value.fix
        assert "hunter2" not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}"
    limiter.release("host", "ticket")


def test_making_a_gate_connects_to_nothing() -> None:
    ValkeyRequestLimiter("redis://127.0.0.1:1/0").disconnect()
