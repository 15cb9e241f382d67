"""Retrying is a pure question: a table of numbers, and no worker."""

from __future__ import annotations

import random

import pytest

from pipeline.errors import (
    BudgetSpent,
    ConfigurationError,
    DocumentRejected,
    EmbedderUnavailable,
    LarderError,
    LeaseLost,
    ModelMissing,
    RateLimited,
    SourceDenied,
    SourceUnavailable,
    StoreHindered,
    StoreRejected,
    StoreUnavailable,
    TextRejected,
)
from pipeline.ingest.steps import Decision
from workers.app.ingestion.steps import decide
from workers.settings.queue import QueueSettings

QUEUE = QueueSettings(retry_base_seconds=2, retry_max_seconds=100, max_attempts=100)
EIGHT = QueueSettings(retry_base_seconds=2, retry_max_seconds=100, max_attempts=8)


@pytest.mark.parametrize(
    ("attempt", "chance", "seconds"),
    [
        (1, 0.0, 1.0),
        (1, 0.5, 1.5),
        (1, 1.0, 2.0),
        (2, 0.0, 2.0),
        (2, 1.0, 4.0),
        (4, 0.0, 8.0),
        (4, 1.0, 16.0),
        (7, 0.0, 50.0),
        (7, 1.0, 100.0),
        (50, 1.0, 100.0),
        (0, 1.0, 2.0),
    ],
)
def test_half_is_fixed_and_half_is_chance(
    monkeypatch: pytest.MonkeyPatch, attempt: int, chance: float, seconds: float
) -> None:
    monkeypatch.setattr(random, "random", lambda: chance)
    assert decide(QUEUE, SourceUnavailable(), attempt) == Decision(delay=seconds, dead=False)


@pytest.mark.parametrize(("asked", "seconds"), [(None, 1.0), (0.5, 1.0), (30.0, 30.0), (5000.0, 5000.0)])
def test_never_before_the_time_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: float | None, seconds: float
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert decide(QUEUE, SourceUnavailable(retry_after=asked), 1).delay == seconds


@pytest.mark.parametrize("error", [SourceUnavailable(), RateLimited(), LeaseLost()])
def test_passing_trouble_is_tried_again_until_the_last_time(
    error: LarderError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    found = [decide(EIGHT, error, attempt) for attempt in range(1, 10)]
    assert [d.delay for d in found] == [1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 75.0, 0.0, 0.0]
    assert [d.dead for d in found] == [False] * 7 + [True] * 2


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError(),
        DocumentRejected(),
        ModelMissing(),
        SourceDenied(),
        StoreRejected(),
        TextRejected(),
    ],
)
def test_what_will_not_work_ends_at_once(error: LarderError) -> None:
    assert decide(EIGHT, error, 1) == Decision(delay=0.0, dead=True)


def test_the_provider_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert decide(EIGHT, RateLimited("busy", retry_after=42), 1) == Decision(delay=42, dead=False)
    assert decide(EIGHT, RateLimited("busy", retry_after=42), 8) == Decision(delay=0.0, dead=True)


@pytest.mark.parametrize("error", [EmbedderUnavailable(), BudgetSpent(), StoreUnavailable(), StoreHindered()])
def test_a_wait_grows_and_is_never_the_last(error: LarderError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    found = [decide(EIGHT, error, waits) for waits in (1, 2, 5, 8, 5000)]
    assert [d.delay for d in found] == [2.0, 4.0, 32.0, 100.0, 100.0]
    assert not any(d.dead for d in found)


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 30.0), (1.0, 31.0)])
def test_a_wait_that_was_asked_for_does_not_grow(
    chance: float, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: chance)
    for waits in (1, 5000):
        assert decide(EIGHT, BudgetSpent(retry_after=30), waits) == Decision(delay=delay, dead=False)


def test_seven_waits_last_long_enough_for_a_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full jitter could spend them all within a second; half a wait is always kept."""
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert sum(decide(QueueSettings(), RateLimited(), n).delay for n in range(1, 8)) > 120
