"""When a source is due next, in its own time zone, told in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workers.control.sync import next_time


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "due"),
    [
        ("0 2 * * *", "UTC", "2026-01-10T01:00", "2026-01-10T02:00"),
        ("0 2 * * *", "UTC", "2026-01-10T02:00", "2026-01-11T02:00"),
        ("*/15 * * * *", "UTC", "2026-01-10T01:01", "2026-01-10T01:15"),
        ("0 2 * * *", "Europe/Berlin", "2026-01-10T00:30", "2026-01-10T01:00"),
        ("0 2 * * *", "Europe/Berlin", "2026-07-10T00:30", "2026-07-11T00:00"),
        ("30 9 * * 1", "Asia/Kolkata", "2026-01-10T00:00", "2026-01-12T04:00"),
        ("0 0 1 1 *", "America/New_York", "2026-06-01T00:00", "2027-01-01T05:00"),
    ],
)
def test_the_cron_text_is_read_in_its_zone(schedule: str, zone: str, after: str, due: str) -> None:
    assert next_time(schedule, zone, at(after)) == at(due)


@pytest.mark.parametrize("schedule", [None, ""])
def test_without_a_schedule_there_is_no_time(schedule: str | None) -> None:
    assert next_time(schedule, "UTC", at("2026-01-10T01:00")) is None


def test_days_of_23_and_25_hours_have_their_turn_too() -> None:
    """Europe/Berlin: no 02:30 on 29 March 2026, two of them on 25 October."""
    for day in ("2026-03-28T12:00", "2026-10-24T12:00"):
        found = next_time("30 2 * * *", "Europe/Berlin", at(day))
        assert found is not None
        assert 0 < (found - at(day)).total_seconds() <= 26 * 3600


def test_the_answer_is_in_utc() -> None:
    found = next_time("0 2 * * *", "Asia/Tokyo", at("2026-01-10T01:00"))
    assert found is not None
    assert found.tzinfo is UTC
