"""Ways to an answer: which are tried in what order, and that something always comes back."""

from __future__ import annotations

import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.enrichment.degradation import (
    LEVELS,
    DegradationLevel,
    Health,
    HealthOptions,
    answer,
)
from pipeline.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    IndexingError,
    LeaseLost,
    ModelMissing,
    SearchError,
    StoreRejected,
    StoreUnavailable,
    TextRejected,
)

FULL, UNRANKED, CACHED, KEYWORDS, STATIC, DISABLED = DegradationLevel


class AnswerPaths:
    """Four ways whose outcome is set by hand; notes which were taken."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.health = Health(clock=lambda: self.now)
        self.outcome: dict[DegradationLevel, str | Exception | None] = {
            FULL: "full",
            UNRANKED: "unranked",
            CACHED: None,
            KEYWORDS: "keywords",
        }
        self.taken: list[int] = []
        self.reached: dict[str, int] = {}

    def ask(self, *levels: DegradationLevel) -> tuple[str, DegradationLevel]:
        self.taken = []
        return answer(
            {level: partial(self._run, level) for level in levels or self.outcome},
            health=self.health,
            static=lambda level: f"static {int(level)}",
            reached=lambda result: self.reached.get(result, 0),
        )

    def _run(self, level: DegradationLevel) -> str | None:
        self.taken.append(int(level))
        outcome = self.outcome[level]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def break_down(self, part: str) -> None:
        for _ in range(2):
            self.health.record(part, ok=False)  # type: ignore[arg-type]  # (parametrized by name)
        self.health.claim_probe()


@pytest.fixture
def paths() -> AnswerPaths:
    return AnswerPaths()


def test_all_well_is_one_try(paths: AnswerPaths) -> None:
    assert paths.ask() == ("full", FULL)
    assert paths.taken == [0]


def test_a_try_that_took_long_is_not_repeated_by_the_next_request() -> None:
    health = Health(HealthOptions(probe_seconds=0, calm_seconds=60, probe_share=0.01))
    for _ in range(2):
        health.record("embedder", ok=False)

    def slowly() -> str:
        time.sleep(0.05)
        return "found"

    found = [answer({FULL: slowly, KEYWORDS: slowly}, health=health, static=str)[1] for _ in range(2)]
    assert found == [FULL, KEYWORDS], "each was a try"


@pytest.mark.req("001-101")
def test_a_store_error_falls_back_to_keywords_then_cache_then_static(paths: AnswerPaths) -> None:
    paths.outcome[FULL] = StoreUnavailable()
    assert paths.ask() == ("keywords", KEYWORDS)
    assert paths.taken == [0, 3]
    paths.outcome |= {KEYWORDS: StoreUnavailable(), CACHED: "cached"}
    assert paths.ask() == ("cached", CACHED)
    assert paths.taken == [0, 3, 2]
    paths.outcome[CACHED] = None
    assert paths.ask() == ("static 4", STATIC)
    assert paths.taken == [0, 3, 2]


@pytest.mark.req("001-102")
@pytest.mark.parametrize("error", [EmbedderUnavailable(), ModelMissing(), TextRejected()])
def test_an_embedding_error_falls_back_to_the_cache_then_keywords_then_static(
    paths: AnswerPaths, error: Exception
) -> None:
    paths.outcome |= {FULL: error, CACHED: "cached"}
    assert paths.ask() == ("cached", CACHED)
    paths.outcome[CACHED] = None
    assert paths.ask() == ("keywords", KEYWORDS)
    assert paths.taken == [0, 2, 3]
    paths.outcome[KEYWORDS] = StoreUnavailable()
    assert paths.ask()[1] is STATIC


@pytest.mark.req("001-105")
def test_a_search_error_is_tried_without_the_reranker(paths: AnswerPaths) -> None:
    paths.outcome[FULL] = SearchError()
    assert paths.ask() == ("unranked", UNRANKED)


@pytest.mark.req("001-103")
@pytest.mark.parametrize("error", [IndexingError("no"), ZeroDivisionError("secret text"), TimeoutError()])
def test_any_other_error_is_logged_and_ends_in_the_static_answer(
    paths: AnswerPaths, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    paths.outcome[FULL] = error
    assert paths.ask()[0] == "static 4"
    assert paths.taken == [0]
    assert [record.message for record in caplog.records] == ["RAG search failed"]
    assert "secret text" not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("error", [ConfigurationError("x"), LeaseLost()])
def test_what_the_caller_must_know_goes_through(paths: AnswerPaths, error: Exception) -> None:
    paths.outcome[FULL] = error
    with pytest.raises(type(error)):
        paths.ask()


def test_what_the_caller_names_goes_through_too(paths: AnswerPaths) -> None:
    class TimeIsUpError(Exception):
        pass

    def run() -> str:
        raise TimeIsUpError

    with pytest.raises(TimeIsUpError):
        answer({FULL: run}, health=paths.health, static=lambda _level: "static", passes=(TimeIsUpError,))


def test_a_result_may_tell_of_a_worse_level_than_its_way_but_not_of_a_better_one(paths: AnswerPaths) -> None:
    paths.reached = {"full": 1}
    assert paths.ask()[1] is UNRANKED
    paths.outcome[FULL] = EmbedderUnavailable()
    paths.reached = {"keywords": 0}
    assert paths.ask()[1] is KEYWORDS


@pytest.mark.parametrize(
    ("part", "taken", "level"),
    [("reranker", [1], UNRANKED), ("embedder", [2, 3], KEYWORDS), ("store", [], STATIC)],
)
def test_a_level_takes_its_own_ways_only(
    paths: AnswerPaths, part: str, taken: list[int], level: DegradationLevel
) -> None:
    paths.break_down(part)
    assert paths.ask()[1] is level
    assert paths.taken == taken


def test_keywords_are_not_looked_up_in_a_store_that_is_down(paths: AnswerPaths) -> None:
    paths.break_down("embedder")
    paths.break_down("store")
    assert paths.ask()[1] is STATIC
    assert paths.taken == []


@pytest.mark.parametrize(("error", "tries"), [(StoreUnavailable(), 1), (EmbedderUnavailable(), 2)])
def test_a_store_that_took_long_to_fail_is_not_asked_again(
    paths: AnswerPaths, error: Exception, tries: int
) -> None:
    waited = []

    def run() -> str | None:
        waited.append(1)
        raise error

    options = paths.health.options.__class__(slow_seconds=-1)
    health = Health(options, clock=lambda: 0.0)
    found, _ = answer({FULL: run, KEYWORDS: run}, health=health, static=lambda _level: "static")
    assert found == "static"
    assert len(waited) == tries


def test_while_degraded_one_request_in_a_while_tries_the_full_way(paths: AnswerPaths) -> None:
    paths.break_down("embedder")
    paths.outcome[FULL] = EmbedderUnavailable()
    assert paths.ask()[1] is KEYWORDS
    assert paths.taken == [2, 3]
    paths.now += 5
    assert paths.ask()[1] is KEYWORDS
    assert paths.taken == [0, 2, 3]
    assert paths.ask()[1] is KEYWORDS
    assert paths.taken == [2, 3]
    paths.outcome[FULL] = "full"
    paths.now += 5
    assert paths.ask() == ("full", FULL)
    assert paths.health.level() is KEYWORDS, "one good answer is no good minute"


def test_ways_that_are_not_offered_are_left_out(paths: AnswerPaths) -> None:
    paths.outcome[FULL] = StoreUnavailable()
    assert paths.ask(FULL, CACHED)[1] is STATIC
    assert paths.taken == [0, 2]
    assert paths.ask(FULL)[0] == "static 4"


@pytest.mark.req("001-109")
def test_switched_off_tries_nothing(paths: AnswerPaths) -> None:
    paths.break_down("embedder")
    paths.now += 100
    paths.health.switch(on=False)
    assert paths.ask() == ("static 5", DISABLED)
    assert paths.taken == []


OUTCOMES = st.sampled_from(
    ["fine", None, StoreUnavailable(), StoreRejected(), EmbedderUnavailable(), SearchError(), KeyError("x")]
)


@given(
    outcomes=st.lists(OUTCOMES, min_size=4, max_size=4),
    troubles=st.sets(st.sampled_from(["store", "embedder", "reranker"])),
    later=st.sampled_from([0, 5, 70]),
)
def test_whatever_fails_an_answer_comes_and_no_way_is_taken_twice(
    outcomes: list[str | Exception | None], troubles: set[str], later: int
) -> None:
    paths = AnswerPaths()
    paths.outcome = dict(zip(list(DegradationLevel)[:4], outcomes, strict=True))
    for part in sorted(troubles):
        paths.break_down(part)
    paths.now += later
    found, level = paths.ask()
    assert len(set(paths.taken)) == len(paths.taken)
    assert level in LEVELS
    if level is STATIC:
        assert found == "static 4"
        assert [paths.outcome[DegradationLevel(n)] for n in paths.taken].count("fine") == 0
    else:
        assert found == "fine"
        assert paths.taken[-1] == level
