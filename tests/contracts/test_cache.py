"""What every cache must do, in memory and in Valkey."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
import redis

from pipeline.search.cache import Cache, LayeredCache, MemoryCache, Value, made
from workers import embedded
from workers.limits.caches import MOST_PENDING, PREFIX, SECONDS, Behind, ValkeyCache
from workers.limits.valkey import Scripts

Make = Callable[..., Cache]


@pytest.fixture(params=["memory", "valkey", "layered", "behind"])
def make(request: pytest.FixtureRequest, servers: embedded.Servers) -> Iterator[Make]:
    """Builds a cache of some entries that live for some seconds."""
    opened: list[ValkeyCache] = []

    def build(entries: int = 3, seconds: float = 60) -> Cache:
        near = MemoryCache(entries=entries, seconds=seconds)
        if request.param == "memory":
            return near
        opened.append(ValkeyCache(servers.broker_url, entries=entries, seconds=seconds))
        far = opened[-1]
        others: dict[str, Cache] = {
            "valkey": far,
            "layered": LayeredCache(near, far),
            "behind": Behind(far),
        }
        return others[request.param]

    yield build
    for cache in opened:
        cache.disconnect()


@pytest.fixture
def space() -> str:
    return f"test:{uuid4()}"


@pytest.mark.req("001-079", "001-096", "001-098")
def test_what_was_put_is_got(make: Make, space: str) -> None:
    cache = make()
    assert cache.get(space, "a") is None
    cache.put(space, "a", b"\x00\xff1")
    cache.put(space, "b", b"")
    assert cache.get(space, "a") == b"\x00\xff1"
    assert cache.get(space, "b") == b""
    cache.put(space, "a", b"2")
    assert cache.get(space, "a") == b"2"


def test_what_makes_a_value_is_called_once_where_it_is_written(make: Make, space: str) -> None:
    calls: list[int] = []

    def value() -> bytes:
        calls.append(1)
        return b"made"

    cache = make()
    cache.put(space, "a", value)
    assert cache.get(space, "a") == b"made"
    assert calls == [1]


def test_spaces_know_nothing_of_each_other(make: Make, space: str) -> None:
    cache = make(entries=1)
    cache.put(space, "a", b"mine")
    cache.put(f"{space}x", "a", b"other")
    assert cache.get(space, "a") == b"mine"
    assert cache.get(f"{space}y", "a") is None


@pytest.mark.req("001-079")
def test_the_longest_unused_goes_first(make: Make, space: str) -> None:
    cache = make(entries=3)
    for key in "abc":
        cache.put(space, key, key.encode())
    assert cache.get(space, "a") == b"a"
    cache.put(space, "d", b"d")
    # Of two layers each keeps what it was itself asked for.
    assert [cache.get(space, key) for key in "acd"] == [b"a", b"c", b"d"]
    assert isinstance(cache, LayeredCache) or cache.get(space, "b") is None


def test_entries_end(make: Make, space: str) -> None:
    cache, lasting = make(seconds=0.05), make(seconds=600)
    cache.put(space, "a", b"1")
    lasting.put(space, "b", b"2")
    time.sleep(0.08)
    assert cache.get(space, "a") is None
    assert lasting.get(space, "b") == b"2"


def test_a_near_cache_learns_from_the_far_one(space: str) -> None:
    near, far = MemoryCache(), MemoryCache()
    far.put(space, "a", b"1")
    assert LayeredCache(near, far).get(space, "a") == b"1"
    assert near.get(space, "a") == b"1"


def test_another_process_finds_it_and_nothing_stays_behind(servers: embedded.Servers, space: str) -> None:
    one, other = (ValkeyCache(servers.broker_url, entries=2, seconds=60) for _ in range(2))
    for n in range(10):
        one.put(space, f"k{n}", b"x")
    assert other.get(space, "k9") == b"x"
    client = redis.Redis.from_url(servers.broker_url)
    keys = list(client.scan_iter(f"{PREFIX}{{{space}}}*", count=1000))
    assert len(keys) == 3, "two entries and their order"
    assert all(0 < client.pttl(key) <= 60_000 for key in keys)
    client.close()
    one.disconnect()
    other.disconnect()


def test_a_broker_that_is_away_is_no_cache_and_no_error() -> None:
    now = [0.0]
    cache = ValkeyCache("redis://127.0.0.1:1/0", clock=lambda: now[0])
    cache.put("s", "a", b"1")
    assert cache.get("s", "a") is None


def test_after_a_failure_it_is_left_alone_for_a_while(servers: embedded.Servers, space: str) -> None:
    now = [0.0]
    cache = ValkeyCache("redis://127.0.0.1:1/0", clock=lambda: now[0])
    assert cache.get(space, "a") is None
    cache._scripts = Scripts(servers.broker_url, seconds=SECONDS)
    cache.put(space, "a", b"1")
    assert cache.get(space, "a") is None, "it rests"
    now[0] = 5.0
    cache.put(space, "a", b"1")
    assert cache.get(space, "a") == b"1"
    cache.disconnect()


# --- puts behind one's back ---


class Slow:
    """A cache that writes when it is let."""

    def __init__(self) -> None:
        self.kept = MemoryCache(entries=1000)
        self.let = threading.Event()
        self.entered = threading.Event()

    def get(self, space: str, key: str) -> bytes | None:
        return self.kept.get(space, key)

    def put(self, space: str, key: str, value: Value) -> None:
        self.entered.set()
        assert self.let.wait(60)
        self.kept.put(space, key, made(value))


def test_nobody_waits_for_a_put_but_who_asks_for_it() -> None:
    slow = Slow()
    cache = Behind(slow)
    cache.put("s", "a", b"1")
    assert slow.entered.wait(60)
    assert cache.get("s", "b") is None, "another key"
    assert slow.get("s", "a") is None, "it is not written yet"
    threading.Timer(0.05, slow.let.set).start()
    assert cache.get("s", "a") == b"1"


def test_puts_that_pile_up_are_dropped_and_later_ones_done_again() -> None:
    slow = Slow()
    cache = Behind(slow)
    for n in range(MOST_PENDING + 20):
        cache.put("s", str(n), b"x")
    slow.let.set()
    found = [cache.get("s", str(n)) for n in range(MOST_PENDING + 20)]
    assert found == [b"x"] * MOST_PENDING + [None] * 20
    cache.put("s", "again", b"y")
    assert cache.get("s", "again") == b"y"


def test_a_value_that_cannot_be_made_is_not_kept_and_stops_nothing() -> None:
    cache = Behind(MemoryCache())

    def broken() -> bytes:
        raise ZeroDivisionError

    cache.put("s", "a", broken)
    cache.put("s", "b", b"2")
    assert cache.get("s", "b") == b"2"
    assert cache.get("s", "a") is None
    assert not cache._pending


def test_a_process_that_ends_does_its_puts_first(servers: embedded.Servers, space: str) -> None:
    """As the command that searches once."""
    code = """
import sys
from workers.limits.caches import Behind, ValkeyCache
cache = Behind(ValkeyCache(sys.argv[1]))
for n in range(20):
    cache.put(sys.argv[2], str(n), lambda: b"done")
"""
    subprocess.run([sys.executable, "-c", code, servers.broker_url, space], check=True, timeout=60)
    cache = ValkeyCache(servers.broker_url)
    assert [cache.get(space, str(n)) for n in range(20)] == [b"done"] * 20
    cache.disconnect()
