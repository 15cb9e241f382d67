"""What moves hits after they were found: a reranker, that they no longer hold, and what people said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.search.records import Hit


def reranked(hits: Sequence[Hit], scores: Sequence[float]) -> list[Hit]:
    """The same in the order of a reranker's `scores`, one for each; equals keep their order.

    New scores lie between the best and the worst of the old, so that they stay comparable with those behind.

    Raises:
        ValueError: a score is missing or no number.
    """
    if len(hits) != len(scores) or not all(math.isfinite(score) for score in scores):
        raise ValueError("a reranker must give one number for each text")
    if not hits:
        return []
    low, high = min(hit.score for hit in hits), max(hit.score for hit in hits)
    least, most = min(scores), max(scores)
    shares = [(raw - least) / (most - least) if most > least else 1.0 for raw in scores]
    moved = [
        _moved(hit, low + (high - low) * share, "rerank_part", rerank=raw)
        for hit, raw, share in zip(hits, scores, shares, strict=True)
    ]
    return sorted(moved, key=_falling)


def lowered(hits: Sequence[Hit], share: float) -> list[Hit]:
    """The same with documents that no longer hold brought down to `share` of their score."""
    moved = (
        _moved(hit, hit.score * share, "outdated_part") if hit.outdated and hit.score > 0.0 else hit
        for hit in hits
    )
    return sorted(moved, key=_falling)


def judged(hits: Sequence[Hit], k: int, spare: int) -> list[Hit]:
    """The same, moved by what people said of the first `k` and the `spare` behind them.

    What is marked as noise for this very question stays on the page if its score allows, but behind all others there,
    and scores no more than they do.
    """
    near = sorted(
        (
            _moved(hit, hit.score * hit.marks.factor, "feedback_part")
            if hit.marks and hit.score > 0.0
            else hit
            for hit in hits[: k + spare]
        ),
        key=_falling,
    )
    page = sorted(near[:k], key=_noise)
    least = min((hit.score for hit in page if not _noise(hit)), default=math.inf)
    page = [_moved(hit, least, "feedback_part") if _noise(hit) and hit.score > least else hit for hit in page]
    return [*page, *near[k:], *hits[k + spare :]]


def first_of_documents(hits: Sequence[Hit]) -> list[Hit]:
    """The first hit of each document, in the order given."""
    first: dict[object, Hit] = {}
    for hit in hits:
        first.setdefault(hit.document.id, hit)
    return list(first.values())


def _falling(hit: Hit) -> float:
    return -hit.score


def _noise(hit: Hit) -> bool:
    return hit.marks is not None and hit.marks.here < 0


def _moved(hit: Hit, score: float, part: str, **parts: Any) -> Hit:
    """The hit with another score; its explanation tells the difference as `part`."""
    e = hit.explanation
    if e is not None:
        parts[part] = getattr(e, part) + score - hit.score
        e = replace(e, **parts)
    return replace(hit, score=score, explanation=e)
