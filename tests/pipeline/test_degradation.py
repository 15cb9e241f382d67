"""Six levels: when a part's trouble begins, when it ends, and who may try."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.enrichment.degradation import (
    DEPENDENCIES,
    LEVELS,
    DegradationLevel,
    Dependency,
    Health,
    HealthOptions,
)
from pipeline.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    LarderError,
    ModelMissing,
    SearchError,
    StoreRejected,
    StoreUnavailable,
    TextRejected,
)

FULL, UNRANKED, CACHED, KEYWORDS, STATIC, DISABLED = DegradationLevel
CALM = HealthOptions().calm_seconds


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ObservedHealth:
    """A health with its clock and the moves it told of."""

    def __init__(self, **changes: Any) -> None:
        self.clock = Clock()
        self.moves: list[tuple[int, int]] = []
        self.health = Health(
            clock=self.clock, moved=lambda old, new: self.moves.append((int(old), int(new))), **changes
        )

    def notes(self, part: Dependency, *, ok: bool, times: int = 1, seconds: float = 0.1) -> None:
        for _ in range(times):
            self.health.record(part, ok, seconds)

    @property
    def level(self) -> DegradationLevel:
        return self.health.level()


@pytest.fixture
def observed() -> ObservedHealth:
    return ObservedHealth()


@pytest.mark.req("001-104", "001-105", "001-106", "001-107", "001-108", "001-109")
def test_the_six_levels_have_their_numbers_and_each_skips_what_the_one_before_it_does_not() -> None:
    assert [(int(at), at.name) for at in DegradationLevel] == [
        (0, "FULL_RAG"),
        (1, "NO_RERANKING"),
        (2, "CACHED_ONLY"),
        (3, "KEYWORD_ONLY"),
        (4, "STATIC_ONLY"),
        (5, "DISABLED"),
    ]
    assert list(LEVELS) == list(DegradationLevel)
    tries = {at: set(LEVELS[at].tries) for at in LEVELS}
    assert tries[FULL] == {FULL, UNRANKED, CACHED, KEYWORDS}
    assert tries[UNRANKED] == tries[FULL] - {FULL}
    assert tries[KEYWORDS] == {CACHED, KEYWORDS}
    assert tries[CACHED] == {CACHED}
    assert tries[STATIC] == tries[DISABLED] == set()


def test_a_healthy_process_answers_in_full(observed: ObservedHealth) -> None:
    for part in DEPENDENCIES:
        observed.notes(part, ok=True, times=10)
    assert observed.level is FULL
    assert observed.moves == []
    assert not observed.health.claim_probe()


@pytest.mark.req("001-110")
def test_a_store_that_is_slow_three_times_in_a_row_is_spared(observed: ObservedHealth) -> None:
    observed.notes("store", ok=True, seconds=2.01, times=2)
    assert observed.level is FULL
    observed.notes("store", ok=True, seconds=2.01)
    assert observed.level is CACHED


def test_an_outlier_moves_nothing(observed: ObservedHealth) -> None:
    for _ in range(20):
        observed.notes("store", ok=True, seconds=9, times=2)
        observed.notes("store", ok=True, seconds=2.0)
    assert observed.level is FULL


def test_slowness_of_another_part_moves_nothing(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=True, seconds=60, times=10)
    observed.notes("reranker", ok=True, seconds=60, times=10)
    assert observed.level is FULL


def test_slow_calls_hours_apart_are_no_row(observed: ObservedHealth) -> None:
    for _ in range(10):
        observed.notes("store", ok=True, seconds=5)
        observed.notes("embedder", ok=False)
        observed.clock.now += 3600
    assert observed.level is FULL


@pytest.mark.parametrize(
    ("part", "level"), [("store", STATIC), ("embedder", KEYWORDS), ("reranker", UNRANKED)]
)
@pytest.mark.req("001-111")
def test_two_failures_in_a_row_are_a_trouble_and_one_is_not(
    observed: ObservedHealth, part: Dependency, level: DegradationLevel
) -> None:
    observed.notes(part, ok=False)
    observed.notes(part, ok=True)
    observed.notes(part, ok=False)
    assert observed.level is FULL
    observed.notes(part, ok=False)
    assert observed.level is level


def test_of_two_troubles_the_worse_one_counts(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    observed.notes("store", ok=True, seconds=3, times=3)
    observed.notes("reranker", ok=False, times=2)
    assert observed.level is KEYWORDS


def test_a_level_is_left_after_a_minute_without_trouble_and_with_a_good_try(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    observed.clock.now += CALM - 0.1
    observed.notes("embedder", ok=True)
    assert observed.level is KEYWORDS
    observed.clock.now += 0.1
    assert observed.level is FULL
    assert observed.moves == [(0, 3), (3, 0)]


def test_silence_is_no_proof_of_health(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    observed.clock.now += 100 * CALM
    assert observed.level is KEYWORDS
    observed.notes("embedder", ok=True)
    assert observed.level is FULL


def test_one_failure_of_a_part_in_trouble_starts_the_minute_anew(observed: ObservedHealth) -> None:
    observed.notes("store", ok=False, times=2)
    observed.clock.now += CALM - 1
    observed.notes("store", ok=True)
    observed.notes("store", ok=False)
    observed.notes("store", ok=True)
    observed.clock.now += CALM - 1
    observed.notes("store", ok=True)
    assert observed.level is STATIC
    observed.clock.now += 1
    assert observed.level is FULL


def test_a_slow_try_does_not_cure_a_slow_store(observed: ObservedHealth) -> None:
    observed.notes("store", ok=True, seconds=3, times=3)
    observed.clock.now += CALM
    observed.notes("store", ok=True, seconds=2.5)
    assert observed.level is CACHED
    observed.clock.now += CALM
    assert observed.level is CACHED
    observed.notes("store", ok=True)
    assert observed.level is FULL


def test_after_recovery_the_counting_starts_anew(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    observed.clock.now += CALM
    observed.notes("embedder", ok=True)
    observed.notes("embedder", ok=False)
    assert observed.level is FULL


def test_one_request_in_five_seconds_may_try_the_full_way(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    assert [observed.health.claim_probe() for _ in range(5)] == [True, False, False, False, False]
    observed.clock.now += 4.9
    assert not observed.health.claim_probe()
    observed.clock.now += 0.1
    assert observed.health.claim_probe()


@pytest.mark.parametrize(("took", "rest"), [(0.1, 5), (1, 5), (3, 12), (10, 40), (40, 60)])
def test_tries_that_take_long_are_rarer(observed: ObservedHealth, took: float, rest: float) -> None:
    observed.notes("embedder", ok=False, times=2)
    assert observed.health.claim_probe()
    observed.clock.now += took
    observed.health.probed(took)
    observed.clock.now += rest - 0.01
    assert not observed.health.claim_probe()
    observed.clock.now += 0.02
    assert observed.health.claim_probe()


def test_of_many_threads_one_gets_the_probe(observed: ObservedHealth) -> None:
    observed.notes("embedder", ok=False, times=2)
    claimed: list[bool] = []
    start = threading.Barrier(16)

    def ask() -> None:
        start.wait()
        claimed.append(observed.health.claim_probe())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == [False] * 15 + [True]


@pytest.mark.req("001-109")
def test_off_is_level_5_at_once_and_on_is_what_health_says(observed: ObservedHealth) -> None:
    observed.notes("reranker", ok=False, times=2)
    observed.health.switch(on=False)
    assert observed.moves == [(0, 1), (1, 5)]
    assert observed.level is DISABLED
    assert not observed.health.claim_probe()
    observed.health.switch(on=True)
    assert observed.level is UNRANKED


def test_every_move_is_logged_and_counted_once(
    observed: ObservedHealth, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    observed.notes("embedder", ok=False, times=30)
    for _ in range(10):
        assert observed.level is KEYWORDS
    observed.clock.now += CALM
    observed.notes("embedder", ok=True, times=30)
    assert observed.level is FULL
    assert observed.moves == [(0, 3), (3, 0)]
    told = [vars(record) for record in caplog.records]
    assert [(one["msg"], one["levelname"], one["old"], one["new"], one.get("embedder")) for one in told] == [
        ("degradation level moved", "WARNING", "FULL_RAG", "KEYWORD_ONLY", "down"),
        ("degradation level moved", "INFO", "KEYWORD_ONLY", "FULL_RAG", None),
    ]


@pytest.mark.parametrize(
    ("part", "error", "level"),
    [
        ("store", StoreUnavailable(), STATIC),
        ("store", StoreRejected(), FULL),
        ("embedder", EmbedderUnavailable(), KEYWORDS),
        ("embedder", ModelMissing(), KEYWORDS),
        ("embedder", TextRejected(), FULL),
        ("embedder", StoreUnavailable(), FULL),
        ("store", EmbedderUnavailable(), FULL),
        ("store", ConfigurationError(), FULL),
        ("reranker", SearchError(), UNRANKED),
    ],
)
def test_an_error_counts_against_a_part_if_it_speaks_of_it(
    observed: ObservedHealth, part: Dependency, error: LarderError, level: DegradationLevel
) -> None:
    for _ in range(2):
        with pytest.raises(type(error)), observed.health.watching(part):
            raise error
    assert observed.level is level


def test_a_watched_call_is_timed(observed: ObservedHealth) -> None:
    for _ in range(3):
        with observed.health.watching("store"):
            observed.clock.now += 2.5
    assert observed.level is CACHED


class Machine(RuleBasedStateMachine):
    """Any history of calls and waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = ObservedHealth()
        self.level: DegradationLevel = FULL
        self.worse_at = float("-inf")
        self.bad_at = dict.fromkeys(DEPENDENCIES, float("-inf"))
        self.good_since = dict.fromkeys(DEPENDENCIES, False)
        self.probed = float("-inf")

    @rule(seconds=st.one_of(st.floats(0, 8), st.floats(50, 70), st.floats(0, 4000)))
    def wait(self, seconds: float) -> None:
        self.observed.clock.now += seconds

    @rule(
        part=st.sampled_from(DEPENDENCIES), times=st.integers(1, 4), seconds=st.floats(0, 4), ok=st.booleans()
    )
    def call(self, part: Dependency, times: int, seconds: float, ok: bool) -> None:
        self.observed.notes(part, ok=ok, times=times, seconds=seconds)
        bad = not ok or (part == "store" and seconds > 2)
        if bad:
            self.bad_at[part] = self.observed.clock.now
        self.good_since[part] = not bad

    @rule(part=st.sampled_from(DEPENDENCIES))
    def heal(self, part: Dependency) -> None:
        """Tried as often as a probe may, and well for a minute."""
        for _ in range(13):
            self.observed.notes(part, ok=True)
            self.observed.clock.now += 5
        self.good_since[part] = True

    @rule()
    def probe(self) -> None:
        now = self.observed.clock.now
        if self.observed.health.claim_probe():
            assert now - self.probed >= 5
            assert self.level is not FULL or self.observed.level is not FULL
            self.probed = now

    @invariant()
    def is_one_of_six_and_never_flaps(self) -> None:
        new, now = self.observed.level, self.observed.clock.now
        assert new in LEVELS
        assert new is not DISABLED
        if new > self.level:
            self.worse_at = now
        if new < self.level:
            assert now - self.worse_at >= CALM, "left before a minute was over"
        self.level = new

    @invariant()
    def is_never_degraded_when_all_was_well_for_a_minute(self) -> None:
        now = self.observed.clock.now
        if all(self.good_since[p] or self.bad_at[p] == float("-inf") for p in DEPENDENCIES) and all(
            now - at >= CALM for at in self.bad_at.values()
        ):
            assert self.observed.level is FULL

    @invariant()
    def moves_form_a_chain_that_ends_at_the_level(self) -> None:
        at = 0
        for old, new in self.observed.moves:
            assert old == at
            assert new != old
            at = new
        assert at == self.observed.level


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = Machine.TestCase
