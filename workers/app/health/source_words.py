"""What is said of a source in the document of `larder status --json`; light, for commands that ask the API."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.documents import Json


def count_rejected(source: Json) -> int:
    """How many items of a source could not be taken in, as far as they are named."""
    return sum(problem["outcome"] == "failed" for problem in source["problems"])


def nothing_stored(source: Json) -> bool:
    """Whether a source has shown items, and none of them became a document."""
    return bool(source["left_out"]) and not (source["documents"] or source["pending"] or source["removed"])


def left_out_in_words(counts: Mapping[str, int]) -> str:
    """As in `3 excluded: too large: 2; empty: 1`, the most frequent first."""
    reasons = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return f"{sum(counts.values())} excluded: " + "; ".join(f"{reason}: {n}" for reason, n in reasons)
