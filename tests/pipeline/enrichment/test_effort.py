"""What finished work took, alone and beside others."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipeline.enrichment.extraction import Effort, effort_of, effort_of_similar
from tests.pipeline.enrichment import stock

MADE = datetime(2025, 2, 20, 9, tzinfo=UTC)


def effort(metadata: dict[str, Any], created_at: datetime | None = MADE) -> Effort | None:
    """What an item of these metadata tells of its work."""
    return effort_of(replace(stock.hit().document, metadata=metadata, created_at=created_at))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (
            {
                "actual_points": 21,
                "story_points": 13,
                "started_at": "2025-03-01T08:00:00+00:00",
                "closed_at": "2025-03-13T07:00:00+00:00",
            },
            "took 21 points, estimated 13; 12 days",
        ),
        ({"actual_hours": 24, "estimated_hours": 16.5}, "took 24 hours, estimated 16.5"),
        ({"actual_hours": 24, "story_points": 5}, "took 24 hours, estimated 5 points"),
        ({"actual_points": 3, "actual_hours": 20, "estimated_hours": 16}, "took 20 hours, estimated 16"),
        ({"story_points": 8, "estimated_points": 5}, "estimated 5 points"),
        ({"story_points": 1, "resolved_at": "2025-02-20T10:00:00+00:00"}, "estimated 1 point"),
        ({"closed_at": "2025-02-22T01:00:00+02:00"}, "done after 1 day"),
        (
            {"resolved_at": "2025-02-25T10:00:00+00:00", "closed_at": "2025-12-01T10:00:00+00:00"},
            "done after 5 days",
        ),
    ],
)
def test_an_effort_in_words(metadata: dict[str, Any], text: str) -> None:
    found = effort(metadata)

    assert found is not None
    assert found.text == text


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"story_points": "L", "actual_hours": True, "estimated_points": -1},
        {"story_points": 0, "actual_points": math.nan},
        {"story_points": 0.001, "actual_points": math.inf, "actual_hours": 10**400},
        {"closed_at": "2025-02-01T00:00:00+00:00"},
        {"closed_at": "2025-03-01", "resolved_at": None},
        {"started_at": "0001-01-01T00:00:00+14:00", "closed_at": "9999-12-31T23:59:59-14:00"},
        {"started_at": "1990-01-01T00:00:00+00:00", "closed_at": "2025-03-01T00:00:00+00:00"},
    ],
)
def test_metadata_without_an_effort_tell_none(metadata: dict[str, Any]) -> None:
    assert effort(metadata) is None


def test_work_that_began_and_ended_on_one_day_tells_no_days() -> None:
    one_day = {"started_at": "2025-03-01T00:00:00+00:00", "closed_at": "2025-03-01T09:00:00+00:00"}
    assert effort(one_day) is None
    assert effort({**one_day, "closed_at": "2025-03-02T00:00:00+00:00"}) == Effort(days=1)


def test_without_a_beginning_there_are_no_days() -> None:
    assert effort({"closed_at": "2025-03-01T00:00:00+00:00"}, None) is None


@pytest.mark.parametrize(
    ("efforts", "told"),
    [
        ([Effort(days=9), Effort(days=2)], None),
        ([Effort(days=9), Effort(days=2), Effort(hours=3), Effort(estimated_points=3)], None),
        (
            [Effort(days=n) for n in (30, 9, 2, 12, 7)],
            {"text": "five like it: median 9 days (n = 5)", "n": 5, "median_days": 9, "median_points": None},
        ),
        (
            [
                Effort(days=1, points=8),
                Effort(days=2, points=3, estimated_points=9),
                Effort(days=3, estimated_points=5),
                Effort(days=4),
            ],
            {"text": "four like it: median 2.5 days (n = 4)", "n": 4, "median_days": 2.5, "median_points": 5},
        ),
        (
            [Effort(points=1), Effort(points=1), Effort(points=8)],
            {
                "text": "three like it: median 1 point (n = 3)",
                "n": 3,
                "median_days": None,
                "median_points": 1,
            },
        ),
    ],
)
def test_several_efforts_have_a_median(efforts: list[Effort], told: dict[str, Any] | None) -> None:
    found = effort_of_similar(efforts)
    assert (found and asdict(found)) == told


@pytest.mark.parametrize(("n", "word"), [(10, "ten"), (11, "11")])
def test_numbers_are_words_up_to_ten(n: int, word: str) -> None:
    told = effort_of_similar([Effort(days=4)] * n)

    assert told is not None
    assert told.text == f"{word} like it: median 4 days (n = {n})"


@pytest.mark.parametrize(
    ("effort", "share"),
    [
        (Effort(points=21, estimated_points=14), 1.5),
        (Effort(points=5, hours=10, estimated_hours=20), 0.5),
        (Effort(points=5, estimated_hours=20), 0.0),
        (Effort(days=3), 0.0),
    ],
)
def test_what_an_item_took_as_a_share_of_its_estimate(effort: Effort, share: float) -> None:
    assert effort.overran == share
