"""Quality of a ranking: nDCG, recall and reciprocal rank, and whether a difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DEPTH = 10
"""Number of results that count."""
MEASURES = ("ndcg@10", "recall@5", "recall@10", "mrr@10")
RESAMPLES = 10_000
_SEED = 20_250_101
_INTERVAL = (2.5, 97.5)

Scores = dict[str, float]
"""Measure -> score of one question, or mean over many; 0 to 1, more is better."""


def judge(ranking: Sequence[str], grades: Mapping[str, float]) -> Scores:
    """Score one ranking; a result named twice counts once.

    `grades` are those of the relevant documents, one at least: nDCG weighs them, the other measures count hits.
    """
    best = list(dict.fromkeys(ranking))[:DEPTH]
    places = [place for place, document in enumerate(best, 1) if document in grades]
    scores = (
        _gain(grades.get(document, 0) for document in best)
        / _gain(sorted(grades.values(), reverse=True)[:DEPTH]),
        sum(place <= DEPTH // 2 for place in places) / len(grades),
        len(places) / len(grades),
        1 / places[0] if places else 0,
    )
    return dict(zip(MEASURES, scores, strict=True))


def mean(scores: Collection[Scores]) -> Scores:
    """The mean of each measure; zeros without any."""
    return {name: sum(one[name] for one in scores) / (len(scores) or 1) for name in MEASURES}


def _gain(grades: Iterable[float]) -> float:
    return sum(grade / math.log2(place + 1) for place, grade in enumerate(grades, 1))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with its 95 % interval, as other questions would have shown it."""

    mean: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether a difference is certain: zero lies outside the interval."""
        return self.low > 0 or self.high < 0


def share(counts: Sequence[tuple[float, float]]) -> Interval | None:
    """Share of all pairs of (good, judged), a pair for each question; None if nothing was judged."""
    return change([(0.0, 1.0)] * len(counts), counts)


def change(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> Interval | None:
    """Difference between two such shares, second minus first; None if nothing was judged in one of them.

    Questions are drawn anew in pairs, and the same numbers give the same interval.
    """
    pairs = np.asarray([first, second], dtype=np.float64).reshape(2, -1, 2)
    good, judged = pairs.sum(axis=1).T
    if not judged.all():
        return None
    drawn = np.random.default_rng(_SEED).integers(0, len(first), size=(RESAMPLES, len(first)))
    sums = [[column[drawn].sum(axis=1) for column in each.T] for each in pairs]
    some = (sums[0][1] > 0) & (sums[1][1] > 0)
    shares = [each[0][some] / each[1][some] for each in sums]
    low, high = np.percentile(shares[1] - shares[0], _INTERVAL)
    before, after = good / judged
    return Interval(mean=float(after - before), low=float(low), high=float(high))


def keeping(values: Sequence[float], share: float) -> float:
    """The highest limit that at least `share` of the values reach; there is a value."""
    return sorted(values, reverse=True)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]
