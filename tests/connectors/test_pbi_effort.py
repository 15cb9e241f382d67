"""What a PBI tells of its size, its work and its course."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from connectors.pbi.effort import course_facts, effort_facts
from pipeline.documents.plain_text import plain_keys
from tests.connectors.outputs import ONE, read, write


@pytest.mark.parametrize(
    ("pbi", "facts"),
    [
        ({"story_points": 5}, {"story_points": 5}),
        ({"storyPoints": "13 points"}, {"story_points": 13}),
        ({"points": 0.5}, {"story_points": 0.5}),
        ({"points": "5 SP"}, {"story_points": 5}),
        ({"size": "8 story points"}, {"story_points": 8}),
        ({"effort": 8}, {"story_points": 8}),
        ({"estimate": 13, "effort": 21}, {"estimated_points": 13, "actual_points": 21}),
        ({"story_points": 13, "effort": "3d"}, {"story_points": 13, "actual_hours": 24}),
        ({"estimated_effort": 13, "actual_effort": 21}, {"estimated_points": 13, "actual_points": 21}),
        ({"effortEstimate": "2 days", "actualEffort": "16h"}, {"estimated_hours": 16, "actual_hours": 16}),
        ({"estimate": "1w"}, {"estimated_hours": 40}),
        ({"estimated_hours": 12, "hours_spent": "9.5"}, {"estimated_hours": 12, "actual_hours": 9.5}),
        ({"estimate_days": 3, "actual_days": "2"}, {"estimated_hours": 24, "actual_hours": 16}),
        ({"estimate": {"value": 5, "unit": "days"}}, {"estimated_hours": 40}),
        ({"estimate": {"points": 5}}, {"estimated_points": 5}),
        ({"estimate": 5, "estimate_unit": "hours"}, {"estimated_hours": 5}),
        (
            {"effort": {"estimated": 13, "actual": 21, "unit": "points"}},
            {"estimated_points": 13, "actual_points": 21},
        ),
        (
            {
                "timetracking": {
                    "originalEstimate": "3d",
                    "originalEstimateSeconds": 86400,
                    "timeSpent": "3d 4h",
                }
            },
            {"estimated_hours": 24, "actual_hours": 28},
        ),
        ({"timeSpent": 100800}, {"actual_hours": 28}),
        ({"timeSpentSeconds": 5400}, {"actual_hours": 1.5}),
        ({"time_spent": "3d 4h"}, {"actual_hours": 28}),
        ({"time_spent": "2 days and 4 hours"}, {"actual_hours": 20}),
        ({"time_spent": "~ 1,5 Tage"}, {"actual_hours": 12}),
        ({"time_spent": 16}, {"actual_hours": 16}),
        ({"time_spent": "1h 30m"}, {"actual_hours": 1.5}),
        ({"timeoriginalestimate": 28800, "timeestimate": 0}, {"estimated_hours": 8}),
        ({"story_points": None, "storyPoints": 3}, {"story_points": 3}),
    ],
)
def test_efforts_are_points_or_hours_whatever_they_are_called(
    pbi: dict[str, Any], facts: dict[str, Any]
) -> None:
    assert effort_facts(pbi) == facts


@pytest.mark.parametrize(
    "pbi",
    [
        {"estimate": "L"},
        {"effort": "3-5 days"},
        {"time_spent": "too long"},
        {"points": "1,000 points"},
        {"Effort": "5 SP or 3 days"},
        {"estimate": "5 points 3 days"},
    ],
)
def test_what_is_no_amount_stays_as_it_is(pbi: dict[str, str]) -> None:
    assert effort_facts(pbi) == pbi


def test_a_time_that_may_be_hours_or_seconds_stays_as_it_is() -> None:
    assert effort_facts({"time_spent": 480}) == {"time_spent": "480"}


def test_an_amount_of_another_unit_stays_as_it_is() -> None:
    assert effort_facts({"estimate": {"value": 5, "unit": "bananas"}}) == {"estimate": "5 bananas"}


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -3, "-3", "-3 points", "NaN", 1e9, "1e9", 10**400, True, None, "", [], [5], {}, {"a": {}}, "9" * 99]
)  # fmt: skip
@pytest.mark.parametrize("key", ["story_points", "time_spent", "effort", "estimate", "timetracking"])
def test_what_cannot_be_is_dropped(key: str, value: Any) -> None:
    assert effort_facts({key: value}) == {}


@pytest.mark.parametrize("value", [math.nan, -3, "-3", 1e9, True, None, [5]])
def test_what_cannot_be_with_a_unit_is_dropped(value: Any) -> None:
    assert effort_facts({"estimate": {"value": value, "unit": "days"}}) == {}


@pytest.mark.parametrize(
    ("pbi", "facts"),
    [
        (
            {
                "startedAt": "2025-03-01",
                "resolutionDate": "2025-03-12T10:00:00+02:00",
                "closed": 1741910400000,
            },
            {
                "started_at": "2025-03-01T00:00:00+00:00",
                "resolved_at": "2025-03-12T08:00:00+00:00",
                "closed_at": "2025-03-14T00:00:00+00:00",
            },
        ),
        ({"completed_at": "2025-03-14T00:00:00Z"}, {"closed_at": "2025-03-14T00:00:00+00:00"}),
        ({"closed": True, "resolved": "yes", "started": 5, "closed_at": "9999-01-01T00:00:00Z"}, {}),
        ({"reopened": 2}, {"reopened": 2}),
        ({"reopen_count": "0"}, {"reopened": 0}),
        ({"reopened": True}, {"reopened": 1}),
        ({"reopened": ["2025-01-01", "2025-02-01"]}, {"reopened": 2}),
        ({"reopened": -1}, {}),
        ({"reopened": "often"}, {}),
        ({"reopened": math.nan}, {}),
    ],
)
def test_when_work_began_and_ended(pbi: dict[str, Any], facts: dict[str, Any]) -> None:
    assert course_facts(plain_keys(pbi)) == facts


def test_efforts_reach_the_metadata_of_the_document(tmp_path: Path) -> None:
    told = {
        "storyPoints": 13,
        "actual_effort": 21,
        "started_at": "2025-03-01",
        "closedAt": "2025-03-13",
        "reopened": 1,
    }
    write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": [{**ONE, **told, "estimate": "L"}]})

    metadata = read(tmp_path)[0]["PBI-1"].metadata

    json.dumps(metadata, allow_nan=False)
    assert {key: metadata[key] for key in ("story_points", "actual_points", "reopened", "estimate")} == {
        "story_points": 13, "actual_points": 21, "reopened": 1, "estimate": "L",
    }  # fmt: skip
    assert metadata["started_at"] == "2025-03-01T00:00:00+00:00"
    assert metadata["closed_at"] == "2025-03-13T00:00:00+00:00"
