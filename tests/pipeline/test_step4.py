"""Step 4 as a step of a pipeline: its shapes, its switches, and what happens when something fails."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError, EmbedderUnavailable, RequestRejected
from pipeline.step4 import EnrichContextStep, Outcome, StepOptions, in_rollout, pbi_id

Json = dict[str, Any]


class Enricher:
    """Knows the context of every PBI, apart from those that `fails` names."""

    def __init__(self, *fails: str, error: Exception | None = None, seconds: float = 0) -> None:
        self.fails, self.error, self.seconds = fails, error, seconds
        self.asked: list[tuple[Json, Json]] = []
        self.most = self.busy = 0
        self.lock = threading.Lock()

    def enrich(self, pbi: Json, scores: Json) -> Json:
        with self.lock:
            self.asked.append((pbi, scores))
            self.busy += 1
            self.most = max(self.most, self.busy)
        time.sleep(self.seconds)
        with self.lock:
            self.busy -= 1
        if pbi.get("id") in self.fails:
            raise self.error or RuntimeError("secret words")
        return {"similar_work": [{"ref": pbi.get("id")}], "degradation_level": 0}


class Legacy:
    """The way from before."""

    def __init__(self, *, broken: bool = False) -> None:
        self.asked: list[Json] = []
        self.broken = broken

    def enrich(self, scored_pbi: Json, context: Mapping[str, Any]) -> Json:
        assert "scored_pbis" in context
        self.asked.append(scored_pbi)
        if self.broken:
            raise ValueError("old and broken")
        return {"similar_work": [], "old": True}


class Metrics:
    def __init__(self) -> None:
        self.fallbacks = 0


class Snake(Metrics):
    def record_fallback(self) -> None:
        self.fallbacks += 1


class Camel(Metrics):
    def recordFallback(self) -> None:  # noqa: N802 (the name that the specification uses)
        self.fallbacks += 1


class Plain(Metrics):
    def __call__(self) -> None:
        self.fallbacks += 1


def scored(count: int = 3) -> Json:
    items = [{"pbi": {"id": f"P{n}", "title": f"Title {n}"}, "scores": {"overall": n}} for n in range(count)]
    return {"run": "7", "scored_pbis": {"scored_pbis": items, "model": "x"}}


def enriched(context: Mapping[str, Any]) -> list[Json]:
    found: list[Json] = context["enriched_pbis"]["enriched_pbis"]
    return found


@pytest.mark.req("001-036", "001-085", "001-005")
def test_every_pbi_comes_back_in_order_with_its_scores_and_its_context() -> None:
    given_ = scored()
    before = copy.deepcopy(given_)
    enricher = Enricher(seconds=0.01)
    result = EnrichContextStep(enricher).execute(given_)
    assert result is given_
    assert {key: result[key] for key in before} == before
    assert enriched(result) == [
        {**item, "context": {"similar_work": [{"ref": f"P{n}"}], "degradation_level": 0}}
        for n, item in enumerate(before["scored_pbis"]["scored_pbis"])
    ]
    assert sorted(scores["overall"] for _, scores in enricher.asked) == [0, 1, 2]


def test_a_project_beside_a_pbi_goes_with_it_and_answers_without_a_search_name_theirs() -> None:
    items: list[Json] = [
        {"pbi": {"id": "a", "project": "shop"}, "project": "billing"},
        {"pbi": {"id": "b", "project": "shop"}},
        {"pbi": {"id": "c", "project": {"key": "shop"}}},
    ]
    enricher = Enricher()
    EnrichContextStep(enricher).execute({"scored_pbis": items})
    assert {pbi["id"]: pbi["project"] for pbi, _ in enricher.asked} == {
        "a": "billing",
        "b": "shop",
        "c": {"key": "shop"},
    }
    options = StepOptions(project="own")
    for fails in (
        Enricher("a", "b", "c"),
        Enricher("a", "b", "c", error=RequestRejected("no", fix="x")),
        None,
    ):
        result = EnrichContextStep(fails, options).execute({"scored_pbis": items})
        assert [one["context"]["project"] for one in enriched(result)] == ["billing", "shop", "own"]
        assert [one["pbi"] for one in enriched(result)] == [item["pbi"] for item in items]


def test_other_spellings_and_bare_pbis_are_read() -> None:
    items = [{"id": "a", "title": "bare", "extra": [1]}, {"pbi": {"id": "b"}, "rank": 2}]
    for context in ({"scoredPBIs": {"scored_pbis": items}}, {"scored_pbis": items}):
        result = EnrichContextStep(Enricher()).execute(context)
        key = "enrichedPBIs" if "scoredPBIs" in context else "enriched_pbis"
        found = result[key]["enriched_pbis"]
        assert [(f["pbi"], f["scores"]) for f in found] == [(items[0], {}), ({"id": "b"}, {})]
        assert found[1]["rank"] == 2


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({}, "scored_pbis"),
        ({"scored_pbis": {"pbis": []}}, "scored_pbis.scored_pbis"),
        ({"scored_pbis": {"scored_pbis": "text"}}, "scored_pbis.scored_pbis"),
        ({"scored_pbis": {"scored_pbis": [{}, 7]}}, "scored_pbis.scored_pbis[1]"),
        ({"scored_pbis": {"scored_pbis": [{"pbi": "x"}]}}, "scored_pbis.scored_pbis[0].pbi"),
    ],
)
def test_a_context_without_pbis_is_refused_by_field(context: Json, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EnrichContextStep(Enricher()).execute(context)
    assert field in caught.value.message
    assert caught.value.fix


def test_no_pbis_are_no_error() -> None:
    assert enriched(EnrichContextStep(Enricher()).execute(scored(0))) == []


def test_as_many_are_in_flight_as_allowed() -> None:
    enricher = Enricher(seconds=0.05)
    EnrichContextStep(enricher, StepOptions(at_once=4)).execute(scored(12))
    assert enricher.most == 4


# Failure ------------------------------------------------------------------------------------------


@pytest.mark.req("001-145")
@pytest.mark.parametrize("make", [Snake, Camel, Plain])
def test_one_that_fails_goes_the_old_way_is_counted_and_takes_no_other_with_it(
    make: Callable[[], Metrics],
) -> None:
    metrics, legacy = make(), Legacy()
    result = EnrichContextStep(Enricher("P1"), fallback=legacy, metrics=metrics).execute(scored())
    assert [bool(e["context"].get("old")) for e in enriched(result)] == [False, True, False]
    assert [item["pbi"]["id"] for item in legacy.asked] == ["P1"]
    assert metrics.fallbacks == 1


def test_without_an_old_way_the_context_is_empty_and_says_so() -> None:
    result = EnrichContextStep(Enricher("P1")).execute(scored())
    found = enriched(result)[1]["context"]
    assert found["degradation_level"] == 4
    assert (
        found["similar_work"]
        == found["past_decisions"]
        == found["technical_docs"]
        == found["risk_flags"]
        == []
    )


def test_an_old_way_that_fails_too_loses_no_pbi_either() -> None:
    outcomes: list[Outcome] = []
    step = EnrichContextStep(Enricher("P1"), fallback=Legacy(broken=True), on_outcome=outcomes.append)
    assert len(enriched(step.execute(scored()))) == 3
    (bad,) = [o for o in outcomes if o.error]
    assert (bad.id, bad.status) == ("P1", "empty")
    assert "RuntimeError" in bad.error
    assert "fallback failed" in bad.error


def test_reasons_tell_our_own_words_and_of_foreign_errors_the_kind_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[Outcome] = []
    EnrichContextStep(Enricher("P0"), on_outcome=outcomes.append).execute(scored(1))
    ours = Enricher("P0", error=EmbedderUnavailable("the model is away", fix="wait"))
    EnrichContextStep(ours, on_outcome=outcomes.append).execute(scored(1))
    assert [o.error for o in outcomes] == ["RuntimeError", "the model is away (wait)"]
    assert "secret words" not in caplog.text


# Switches -----------------------------------------------------------------------------------------


@pytest.mark.req("001-143", "001-084")
@pytest.mark.parametrize("off", ["flag", "rollout", "no enricher"])
def test_switched_off_everything_goes_the_old_way_and_nothing_is_counted(off: str) -> None:
    enricher, legacy, metrics = Enricher(), Legacy(), Snake()
    options = StepOptions(enabled=off != "flag", rollout=0 if off == "rollout" else 100)
    step = EnrichContextStep(
        None if off == "no enricher" else enricher, options, fallback=legacy, metrics=metrics
    )
    result = step.execute(scored())
    assert all(e["context"]["old"] for e in enriched(result))
    assert (enricher.asked, metrics.fallbacks, len(legacy.asked)) == ([], 0, 3)


def test_switched_off_without_an_old_way_the_level_is_disabled() -> None:
    outcomes: list[Outcome] = []
    step = EnrichContextStep(Enricher(), StepOptions(enabled=False), on_outcome=outcomes.append)
    assert [e["context"]["degradation_level"] for e in enriched(step.execute(scored()))] == [5, 5, 5]
    assert [o.error for o in outcomes] == ["", "", ""]


@pytest.mark.req("001-083")
def test_the_log_says_at_the_start_which_way_pbis_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    EnrichContextStep(Enricher()).initialize()
    EnrichContextStep(Enricher(), StepOptions(enabled=False)).initialize()
    assert [r.message for r in caplog.records] == [
        "RAG service initialized successfully",
        "RAG service disabled, using fallback enrichment",
    ]


@pytest.mark.req("001-144")
@given(tenant=st.text(max_size=9), pbi=st.text(max_size=9), low=st.floats(0, 100), high=st.floats(0, 100))
def test_a_pbi_stays_in_the_rollout_while_it_grows(tenant: str, pbi: str, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert not in_rollout(tenant, pbi, 0)
    assert in_rollout(tenant, pbi, 100)
    assert in_rollout(tenant, pbi, low) <= in_rollout(tenant, pbi, high)


@pytest.mark.req("001-144")
def test_the_rollout_reaches_its_share_the_same_ones_each_time_and_others_in_each_tenant() -> None:
    names = [f"PBI-{n}" for n in range(4000)]
    ours = [n for n in names if in_rollout("acme", n, 30)]
    assert 0.27 < len(ours) / len(names) < 0.33
    assert ours == [n for n in names if in_rollout("acme", n, 30)]
    theirs = {n for n in names if in_rollout("other", n, 30)}
    assert 0.2 < len(theirs & set(ours)) / len(ours) < 0.4
    # A constant, so that an update never moves anybody to the other side.
    assert [n for n in names[:12] if in_rollout("acme", n, 30)] == FIRST


FIRST = ["PBI-2", "PBI-4", "PBI-5"]


def test_a_pbi_without_an_id_has_one_that_lasts() -> None:
    assert pbi_id({"title": "a", "n": 1}) == pbi_id({"n": 1, "title": "a"}) != pbi_id({"title": "b", "n": 1})
    assert pbi_id({"id": 7}) == "7"


def test_a_pbi_that_is_none_is_refused_or_left_to_the_fallback(caplog: pytest.LogCaptureFixture) -> None:
    asked = {"scored_pbis": {"scored_pbis": [{"pbi": {"id": "a"}}, {"pbi": {"id": "b"}}]}}
    broken = Enricher("b", error=RequestRejected("the PBI has no title"))
    outcomes: list[Outcome] = []
    made = EnrichContextStep(broken, on_outcome=outcomes.append).execute(copy.deepcopy(asked))
    context = made["enriched_pbis"]["enriched_pbis"][1]["context"]
    assert (context["degradation_level"], context["error"]) == (0, "the PBI has no title")
    assert sorted((o.index, o.status, o.error) for o in outcomes) == [
        (0, "enriched", ""),
        (1, "refused", "the PBI has no title"),
    ]
    assert "RAG enrichment failed" not in caplog.text
    made = EnrichContextStep(broken, fallback=Legacy()).execute(copy.deepcopy(asked))
    assert made["enriched_pbis"]["enriched_pbis"][1]["context"] == {"similar_work": [], "old": True}
