"""Measures of rankings against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.app.evaluation import measures
from workers.app.evaluation.measures import (
    MEASURES,
    Interval,
    Scores,
    change,
    keeping,
    mean,
    share,
)

TEN = list("abcdefghij")


def scores(ndcg: Any, recall5: Any, recall10: Any, mrr: Any) -> Scores:
    return dict(zip(MEASURES, (ndcg, recall5, recall10, mrr), strict=True))


def judge(ranking: Sequence[str], relevant: Mapping[str, float] | set[str]) -> Scores:
    """Of a set each has the same grade."""
    return measures.judge(ranking, relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1))


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Of the same questions measured twice."""
    found = change([(value, 1) for value in first], [(value, 1) for value in second])
    assert found is not None
    return found


class TestJudge:
    def test_a_perfect_ranking_has_ones_everywhere(self) -> None:
        assert judge(["a", "b", "x"], {"a", "b"}) == scores(1, 1, 1, 1)

    def test_one_relevant_document_on_the_third_place(self) -> None:
        """1 / log2(4) of 1 / log2(2)."""
        assert judge(["x", "y", "a"], {"a"}) == scores(0.5, 1, 1, pytest.approx(1 / 3))

    def test_two_of_three_on_the_second_and_the_sixth_place(self) -> None:
        """(1/log2(3) + 1/log2(7)) / (1 + 1/log2(3) + 1/2) = (.63093 + .35621) / 2.13093."""
        found = judge(["v", "a", "w", "x", "y", "b"], {"a", "b", "c"})
        assert found == scores(
            pytest.approx(0.46324, abs=1e-5), pytest.approx(1 / 3), pytest.approx(2 / 3), 0.5
        )

    def test_what_stands_behind_the_tenth_place_does_not_count(self) -> None:
        assert judge([*TEN, "z"], {"z"}) == scores(0, 0, 0, 0)
        assert judge([*TEN[:9], "z"], {"z"})["recall@10"] == 1

    def test_more_relevant_documents_than_places_can_still_be_perfect(self) -> None:
        """Ten places hold ten, which nDCG knows and recall does not."""
        found = judge(TEN, {*TEN, *"klmnopqrst"})
        assert found == scores(pytest.approx(1), 0.25, 0.5, 1)

    def test_a_document_named_twice_counts_once(self) -> None:
        assert judge(["a", "a"], {"a", "b"}) == judge(["a"], {"a", "b"})

    def test_grades_weigh_in_ndcg_alone(self) -> None:
        """(1 + 2/log2(3)) / (2 + 1/log2(3)) = 2.26186 / 2.63093."""
        found = judge(["a", "b"], {"a": 1, "b": 2})
        assert found == scores(pytest.approx(0.85972, abs=1e-5), 1, 1, 1)
        assert judge(["b", "x", "a"], {"a": 1, "b": 1}) == judge(["b", "x", "a"], {"a", "b"})

    def test_an_empty_ranking_is_worth_nothing(self) -> None:
        assert judge([], {"a"}) == scores(0, 0, 0, 0)

    @given(st.permutations(TEN), st.sets(st.sampled_from([*TEN, "y", "z"]), min_size=1))
    def test_all_measures_lie_between_0_and_1(self, ranking: list[str], relevant: set[str]) -> None:
        found = judge(ranking, relevant)
        assert all(0 <= value <= 1 + 1e-12 for value in found.values())
        assert found["recall@5"] <= found["recall@10"]


def test_the_mean_is_taken_measure_by_measure() -> None:
    assert mean([scores(1, 0, 1, 0.5), scores(0, 0, 1, 0)]) == scores(0.5, 0, 1, 0.25)
    assert mean([]) == scores(0, 0, 0, 0)


class TestDifference:
    def test_the_same_answers_do_not_differ(self) -> None:
        found = difference([0.1, 0.9, 0.4], [0.1, 0.9, 0.4])
        assert (found.mean, found.low, found.high, found.certain) == (0, 0, 0, False)

    def test_a_gain_on_every_question_is_certain(self) -> None:
        found = difference([0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.5])
        assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
        assert found.certain

    def test_a_loss_is_negative_and_as_certain(self) -> None:
        found = difference([1.0] * 8, [0.5] * 7 + [0.6])
        assert found.high < 0
        assert found.certain

    def test_gains_and_losses_in_balance_may_be_chance(self) -> None:
        found = difference([0.0, 1.0] * 20, [1.0, 0.0] * 20)
        assert found.low < 0 < found.high
        assert not found.certain

    def test_the_interval_is_that_of_the_mean_of_questions_drawn_anew(self) -> None:
        """100 questions with a spread of 1 around .5: the mean's error is .1, the interval 1.96 of it."""
        each = np.random.default_rng(7).normal(size=100)
        each = (each - each.mean()) / each.std() + 0.5
        found = difference([0.0] * 100, each.tolist())
        assert found.mean == pytest.approx(0.5)
        assert (found.low, found.high) == pytest.approx((0.304, 0.696), abs=0.02)

    def test_questions_are_drawn_in_pairs(self) -> None:
        """Easy and hard questions lie far apart, and each gains the same: only pairs show it."""
        before = [0.0, 1.0] * 10
        assert difference(before, [x + 0.01 for x in before]).certain

    def test_the_same_numbers_give_the_same_interval(self) -> None:
        first, second = [0.1, 0.5, 0.3, 0.9], [0.4, 0.2, 0.8, 0.9]
        assert difference(first, second) == difference(first, second)


class TestShare:
    def test_it_is_of_all_that_was_judged_and_not_a_mean_of_questions(self) -> None:
        found = share([(1, 1), (0, 3)])
        assert found is not None
        assert (found.mean, found.low, found.high) == (0.25, 0, 1)

    def test_the_interval_is_that_of_a_share(self) -> None:
        """100 questions with one line each, 80 of them good: the error is .04, the interval 1.96 of it."""
        found = share([(1, 1)] * 80 + [(0, 1)] * 20)
        assert found is not None
        assert (found.low, found.high) == pytest.approx((0.72, 0.88), abs=0.015)

    def test_without_a_judgement_there_is_none(self) -> None:
        assert share([]) is None
        assert share([(0, 0), (0, 0)]) is None

    def test_two_are_compared_question_by_question(self) -> None:
        before = [(1, 1), (1, 2), (0, 0), (2, 2)] * 10
        after = [(1, 2), (0, 2), (0, 0), (2, 4)] * 10
        found = change(before, after)
        assert found is not None
        assert found.mean == pytest.approx(3 / 8 - 4 / 5)
        assert found.high < 0

    def test_what_was_judged_on_one_side_only_is_not_compared(self) -> None:
        assert change([(0, 0)], [(1, 1)]) is None


class TestKeeping:
    def test_it_is_the_highest_limit_that_enough_values_reach(self) -> None:
        values = [n / 100 for n in range(1, 101)]
        assert keeping(values, 0.98) == 0.03
        assert keeping(values, 1.0) == 0.01
        assert keeping(values, 0.5) == 0.51

    def test_few_values_are_all_kept(self) -> None:
        assert keeping([0.7, 0.2, 0.5], 0.98) == 0.2
