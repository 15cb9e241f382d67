"""What one provider is asked, by all workers together, on a real Valkey."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from pipeline.embedding.budget import Cost
from pipeline.errors import BudgetSpent
from workers.limits import limiters as rate
from workers.limits.limiters import PROVIDER_PREFIX, ProviderRateLimiter, RateLimits
from workers.local import embedded

HERE = Path(__file__).parent
Open = Callable[..., ProviderRateLimiter]
_names = itertools.count(1)


@pytest.fixture
def opened(servers: embedded.Servers) -> Iterator[Open]:
    """Opens the rate of a provider nobody called yet, as another worker each time."""
    name, made = f"provider-{next(_names)}", []

    def open_rate(**limits: float) -> ProviderRateLimiter:
        plain = {"window": 60.0, "base": 8.0, "longest": 20.0, **limits}
        made.append(ProviderRateLimiter(servers.broker_url, name, RateLimits(**plain), chance=lambda: 1.0))  # type: ignore[arg-type]
        return made[-1]

    yield open_rate
    for one in made:
        one.disconnect()


Later = Callable[[str], float]


@pytest.fixture
def later(servers: embedded.Servers) -> Iterator[Later]:
    """Lets the time pass that this part of the newest provider is kept for; returns how much it was."""
    with redis.Redis.from_url(servers.broker_url) as valkey:

        def passed(part: str) -> float:
            (key,) = valkey.keys(f"{PROVIDER_PREFIX}*:{part}")
            seconds = valkey.pttl(key) / 1000
            valkey.delete(key)
            return float(seconds)

        yield passed
        kept = valkey.keys(f"{PROVIDER_PREFIX}*")
        if kept:
            valkey.delete(*kept)


def refused(one: ProviderRateLimiter, cost: Cost) -> float:
    """After how many seconds to come back."""
    with pytest.raises(BudgetSpent) as caught:
        one.take(cost)
    assert caught.value.fix
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def texts(count: int, tokens: int = 0, *, query: bool = False) -> Cost:
    return Cost(texts=count, tokens=tokens, query=query)


class TestWindows:
    def test_two_processes_never_exceed_the_limit_and_use_it_up(self, servers: embedded.Servers) -> None:
        window, limit, seconds, size = 1.0, 50, 3.0, 5
        limits = json.dumps({"texts": limit, "window": window, "query_share": 0.0})
        name = f"processes-{next(_names)}"
        command = [sys.executable, str(HERE / "rate_process.py"), servers.broker_url, name, limits]
        running = [
            subprocess.Popen(
                [*command, str(size), str(seconds)], stdout=subprocess.PIPE, cwd=HERE.parents[1], text=True
            )
            for _ in range(2)
        ]
        calls = [json.loads(process.communicate(timeout=60)[0]) for process in running]
        assert all(calls)
        granted = sorted(itertools.chain(*calls))
        worst = max(
            sum(start <= before and after < start + window for before, after in granted)
            for start, _ in granted
        )
        assert worst * size <= limit
        period = window + 0.25 + 1 / 60  # the guard of so short a window, and the length of a slot
        assert len(granted) * size >= limit * int((granted[-1][1] - granted[0][0]) / (period + 0.2))

    def test_all_or_nothing(self, opened: Open) -> None:
        one = opened(requests=10, texts=10, tokens=100, query_share=0.0)
        one.take(texts(8, 10))
        refused(one, texts(3, 10))
        refused(one, texts(1, 91))
        one.take(texts(2, 90))
        refused(one, texts(0, 1))
        assert 59 < refused(one, texts(1)) < 63

    def test_a_clock_that_is_set_back_uses_up_nothing(self, opened: Open, servers: embedded.Servers) -> None:
        one = opened(texts=10, query_share=0.0)
        slot = one.take(texts(10))
        with redis.Redis.from_url(servers.broker_url) as valkey:
            key = f"{PROVIDER_PREFIX}{{{one._name}}}:slots"
            assert valkey.hdel(key, slot)
            valkey.hset(key, str(int(slot) + 86_400), "1 10 0")
        one.take(texts(10))
        assert refused(one, texts(1)) < 63

    def test_calls_are_counted_too(self, opened: Open) -> None:
        one = opened(requests=2, query_share=0.0)
        one.take(texts(1000))
        one.take(texts(1000))
        refused(one, texts(0))

    def test_without_limits_of_our_own_all_get_in(self, opened: Open) -> None:
        one = opened()
        for _ in range(50):
            one.take(texts(10_000, 10**9))

    def test_the_wait_is_exact(self, opened: Open) -> None:
        one = opened(texts=10, query_share=0.0, window=2.0)
        one.take(texts(4))
        one.take(texts(6))
        wait = refused(one, texts(4))
        assert 0 < wait < 2.3
        time.sleep(wait + 0.01)
        one.take(texts(4))

    def test_only_as_much_is_waited_for_as_is_needed(self, opened: Open) -> None:
        one = opened(texts=10, query_share=0.0, window=30.0)
        begun = time.monotonic()
        one.take(texts(5))
        time.sleep(1.1)
        one.take(texts(5))
        more = refused(one, texts(10)) - refused(one, texts(5))
        assert 0.5 < more < time.monotonic() - begun + 0.6

    def test_what_a_call_really_took_is_what_counts(self, opened: Open) -> None:
        one = opened(tokens=100, query_share=0.0)
        slot = one.take(texts(1, 100))
        refused(one, texts(1, 60))
        one.answered(slot, -60)
        slot = one.take(texts(1, 30))
        one.answered(slot, 25)
        refused(one, texts(1, 10))
        one.take(texts(1, 5))

    def test_what_is_above_the_limit_alone_gets_in_alone(self, opened: Open) -> None:
        one = opened(tokens=100, query_share=0.0)
        one.take(texts(1, 250))
        refused(one, texts(1, 1))
        other = opened(tokens=100)
        refused(other, texts(1, 250))

    def test_documents_leave_a_share_to_questions(self, opened: Open) -> None:
        one = opened(texts=10, query_share=0.2)
        one.take(texts(8))
        refused(one, texts(1))
        one.take(texts(1, query=True))
        one.take(texts(1, query=True))
        refused(one, texts(1, query=True))


@pytest.mark.usefixtures("later")
class TestOutages:
    def test_who_is_sent_away_takes_all_others_along(self, opened: Open) -> None:
        one, other = opened(), opened()
        assert one.failed(30.0) == pytest.approx(30, abs=1)
        assert 28 < refused(other, texts(1)) <= 30
        one.failed(1.0)
        assert refused(other, texts(1, query=True)) > 28
        assert other.state().closed_seconds > 28

    def test_one_failure_is_none(self, opened: Open) -> None:
        one, other = opened(), opened()
        for _ in range(4):
            assert one.failed(None) == 0
            assert other.failed(None) == 0
            one.answered()
        other.take(texts(1))
        assert not one.state().doubtful

    def test_three_in_a_row_close_it_for_longer_each_time(self, opened: Open, later: Later) -> None:
        one, other = opened(), opened()
        waits = []
        for _ in range(5):
            waits.append(one.failed(None))
            if waits[-1]:
                assert other.failed(None) <= waits[-1], "what was under way must not make it longer"
                later("closed")
        assert waits == [0, 0, 8, 16, 20]

    def test_one_caller_finds_out_whether_it_is_back(self, opened: Open, later: Later) -> None:
        one, other = opened(), opened()
        for _ in range(3):
            one.failed(None)
        assert refused(other, texts(1)) > 5
        later("closed")
        assert other.state().doubtful
        other.take(texts(1))
        assert refused(one, texts(1)) == 1
        other.answered()
        one.take(texts(1))
        assert not one.state().doubtful

    def test_a_probe_that_fails_closes_it_again(self, opened: Open, later: Later) -> None:
        one = opened()
        for _ in range(3):
            one.failed(None)
        later("closed")
        one.take(texts(1))
        assert one.failed(None) > 8
        assert "paused" in _said(one)

    def test_a_probe_that_died_does_not_close_it_for_ever(self, opened: Open, later: Later) -> None:
        one = opened()
        for _ in range(3):
            one.failed(None)
        later("closed")
        one.take(texts(1))
        refused(one, texts(1))
        assert 50 < later("probing") <= 60
        one.take(texts(1))


def _said(one: ProviderRateLimiter) -> str:
    with pytest.raises(BudgetSpent) as caught:
        one.take(texts(1))
    return caught.value.message


class TestWithoutValkey:
    @pytest.fixture
    def away(self) -> ProviderRateLimiter:
        return ProviderRateLimiter("redis://:geheim@127.0.0.1:1/0", "p", RateLimits(), chance=lambda: 0.0)

    def test_documents_wait_and_questions_pass(self, away: ProviderRateLimiter) -> None:
        away.take(texts(1, query=True))
        assert refused(away, texts(1)) == rate.AWAY_SECONDS

    def test_the_password_is_told_to_nobody(self, away: ProviderRateLimiter) -> None:
        with pytest.raises(BudgetSpent) as caught:
            away.take(texts(1))
        assert "geheim" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"

    def test_nothing_else_fails(self, away: ProviderRateLimiter) -> None:
        away.answered()
        assert away.failed(3.0) == 0
        assert away.state() == rate.ProviderState()
