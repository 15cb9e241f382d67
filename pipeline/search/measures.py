"""How good a ranking is: nDCG, recall and reciprocal rank, and whether a difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

DEPTH = 10
"""Results that count."""
RESAMPLES = 10_000
_SEED = 20_250_101
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of one question, or the means over many; 0 to 1, more is better."""

    ndcg10: float
    recall5: float
    recall10: float
    mrr10: float

    def to_json(self) -> dict[str, float]:
        """Rounded to four digits, under the names that papers use."""
        return {NAMES[f.name]: round(getattr(self, f.name), 4) for f in fields(self)}


NAMES: Mapping[str, str] = {
    "ndcg10": "ndcg@10",
    "recall5": "recall@5",
    "recall10": "recall@10",
    "mrr10": "mrr@10",
}


def judge(ranking: Sequence[str], relevant: Collection[str]) -> Scores:
    """How good one ranking is; a result named twice counts once.

    Of a mapping the values are grades: nDCG gains as many, all else only asks whether a document is relevant.

    Raises:
        ValueError: nothing is relevant, so that no ranking is better than another.
    """
    if not relevant:
        raise ValueError("a question without a relevant document cannot be judged")
    grades = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
    best = list(dict.fromkeys(ranking))[:DEPTH]
    places = [place for place, document in enumerate(best, 1) if document in grades]
    gain = _gain([grades.get(document, 0.0) for document in best])
    ideal = _gain(sorted(grades.values(), reverse=True)[:DEPTH])
    return Scores(
        ndcg10=gain / ideal,
        recall5=sum(place <= DEPTH // 2 for place in places) / len(relevant),
        recall10=len(places) / len(relevant),
        mrr10=1 / places[0] if places else 0.0,
    )


def mean(scores: Collection[Scores]) -> Scores:
    """The mean of each measure; zeros without any."""
    count = len(scores) or 1
    return Scores(**{f.name: sum(getattr(s, f.name) for s in scores) / count for f in fields(Scores)})


def _gain(grades: Sequence[float]) -> float:
    return sum(grade / math.log2(place + 1) for place, grade in enumerate(grades, 1))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure, with what holds 95 % of the figures that other questions would have shown."""

    mean: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Of a difference: True if the interval leaves no room for "no difference"."""
        return self.low > 0 or self.high < 0


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Second minus first, of the same questions measured twice; a paired bootstrap."""
    found = change([(value, 1.0) for value in first], [(value, 1.0) for value in second])
    return found or Interval(mean=0.0, low=0.0, high=0.0)


def share(parts: Sequence[tuple[float, float]]) -> Interval | None:
    """The share that pairs of (good, judged) have in all, a pair for each question; None if nothing was judged."""
    return change([(0.0, 1.0)] * len(parts), parts)


def change(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> Interval | None:
    """How much such a share differs, second minus first; None if nothing was judged in one of them.

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
    """The highest limit that at least `share` of the values reach.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    falling = sorted(values, reverse=True)
    return falling[max(1, math.ceil(share * len(falling) - 1e-9)) - 1]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A similarity from which on a result is called a duplicate, and what it is worth."""

    value: float
    precision: float
    recall: float
    """Of all duplicates there are, also those that were never shown."""
    f1: float


def best_limit(shown: Sequence[tuple[float, bool]], relevant: int) -> Limit | None:
    """The limit with the best F1 over results shown as (similarity, is a duplicate); None if none is one.

    Of limits that are equally good it is the highest: a missed duplicate does less harm than a false one.
    """
    best: Limit | None = None
    right = 0
    falling = sorted(shown, key=lambda one: -one[0])
    for count, (value, good) in enumerate(falling, 1):
        right += good
        if not right or (count < len(falling) and falling[count][0] == value):
            continue  # results of the same similarity are called duplicates together
        precision, recall = right / count, right / max(relevant, right)
        f1 = 2 * precision * recall / (precision + recall)
        if best is None or f1 > best.f1:
            best = Limit(value=value, precision=precision, recall=recall, f1=f1)
    return best
