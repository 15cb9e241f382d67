"""Sentences about a source, from the document of `larder status --json`; light, for commands that ask the API."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.documents import Json


def count_rejected(source: Json) -> int:
    """Number of a source's failures, as far as they are named."""
    return sum(problem["outcome"] == "failed" for problem in source["problems"])


def nothing_stored(source: Json) -> bool:
    """Whether a source has shown items, and none of them became a document."""
    return bool(source["left_out"]) and not (source["documents"] or source["pending"] or source["removed"])


def left_out_in_words(counts: Mapping[str, int]) -> str:
    """Counts of excluded items, the most frequent reason first: `3 excluded: too large: 2; empty: 1`."""
    reasons = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return f"{sum(counts.values())} excluded: " + "; ".join(f"{reason}: {n}" for reason, n in reasons)
