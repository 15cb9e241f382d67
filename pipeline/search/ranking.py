"""Candidates in their final order: fused, looked at once more, and lowered if they no longer hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import cast

from pipeline.search.arms import ChunkScores
from pipeline.search.chunks import Mode
from pipeline.search.feedback import Marks
from pipeline.search.fusion import fuse, in_order
from pipeline.search.records import Weights
from pipeline.search.texts import Ranked

STANDING = attrgetter("text.standing")
"""What speaks against a `Ranked` that has its text."""


def rank(candidates: Sequence[ChunkScores], weights: Weights, mode: Mode) -> list[Ranked]:
    """The candidates by score; title and whole document count in a hybrid search only."""
    if mode != "hybrid":
        return [Ranked(cast("ChunkScores", f.candidate), *f[1:]) for f in fuse(candidates, weights, mode)]
    likeness = _likeness(candidates, min(weights.centroid, 1.0))
    w = weights
    whole = w.vector + w.keyword + w.title + w.covered or 1.0
    vector, keyword, title, covered = w.vector / whole, w.keyword / whole, w.title / whole, w.covered / whole
    parts = (
        (
            c,
            vector * (s or 0.0),
            keyword * (c.overlap or 0.0),
            title * (c.title or 0.0),
            covered * (c.covered or 0.0),
        )
        for c, s in zip(candidates, likeness, strict=True)
    )
    return in_order([Ranked(c, v + k + t + a, v, k, t, a) for c, v, k, t, a in parts])


def looked_at(ranked: Sequence[Ranked], scores: Sequence[float]) -> list[Ranked]:
    """The same in the order of a reranker's `scores`, one for each.

    New scores lie between the best and the worst of the old, so that they stay comparable with those behind.

    Raises:
        ValueError: a score is missing or no number.
    """
    if len(ranked) != len(scores) or not all(math.isfinite(score) for score in scores):
        raise ValueError("a reranker must give one number for each text")
    high, low = max((r.score for r in ranked), default=0.0), min((r.score for r in ranked), default=0.0)
    moved = []
    for one, raw, place in zip(ranked, scores, _spread(scores), strict=True):
        score = low + (high - low) * place
        moved.append(one._replace(score=score, rerank=raw, rerank_part=score - one.score))
    # Among equals the former order holds, hence a sort that is stable and no `in_order`.
    return sorted(moved, key=lambda r: -r.score)


def lowered(ranked: Sequence[Ranked], share: float) -> list[Ranked]:
    """The same, with documents that no longer hold brought down to `share` of their score; each has its text."""
    against = list(map(STANDING, ranked))
    if share == 1.0 or not any(against):
        return list(ranked)
    found = [
        r._replace(score=r.score * share, standing_part=r.score * (share - 1.0))
        if why and r.score > 0.0
        else r
        for r, why in zip(ranked, against, strict=True)
    ]
    return sorted(found, key=attrgetter("score"), reverse=True)


def judged(ranked: Sequence[Ranked], k: int, spare: int) -> list[Ranked]:
    """The same, moved by what people said of the first `k` and the `spare` behind them; each has its text.

    What is marked as noise for this very question stays on the page if its score allows, but behind all others there,
    and scores no more than they do.
    """
    near, rest = ranked[: k + spare], ranked[k + spare :]
    if not any(map(_MARKS, near)):
        return list(ranked)
    moved = sorted(map(_moved, near), key=attrgetter("score"), reverse=True)
    page = sorted(moved[:k], key=_noise)
    least = min((r.score for r in page if not _noise(r)), default=math.inf)
    page = [_scored(r, min(r.score, least)) if _noise(r) else r for r in page]
    return [*page, *moved[k:], *rest]


_MARKS = attrgetter("text.marks")


def _noise(one: Ranked) -> bool:
    marks: Marks | None = _MARKS(one)
    return marks is not None and marks.here < 0


def _moved(one: Ranked) -> Ranked:
    marks: Marks | None = _MARKS(one)
    return one if marks is None or one.score <= 0.0 else _scored(one, one.score * marks.factor)


def _scored(one: Ranked, score: float) -> Ranked:
    return one._replace(score=score, feedback_part=one.feedback_part + score - one.score)


def _spread(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(v - low) / (high - low) if high > low else 1.0 for v in values]


def _likeness(candidates: Sequence[ChunkScores], share: float) -> list[float | None]:
    """The candidates' likeness with that of their documents mixed in, where that is known."""
    own = 1.0 - share
    return [
        c.similarity
        if c.similarity is None or c.centroid is None
        else own * c.similarity + share * c.centroid
        for c in candidates
    ]
