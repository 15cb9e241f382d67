"""When a source is due next, in its own time zone, told in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workers.app.ingestion.sync import next_time


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


BACK, FORWARD = "2026-10-24T22:00", "2026-03-28T22:00"
"""Hours before the clocks of Europe are put back, and forward."""


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "times"),
    [
        ("30 2 * * *", "Europe/Berlin", BACK, ["25T00:30", "26T01:30"]),
        ("0 2 * * *", "Europe/Berlin", BACK, ["25T00:00", "26T01:00"]),
        ("0 3 * * *", "Europe/Berlin", BACK, ["25T02:00", "26T02:00"]),
        ("30 1 * * *", "Europe/London", BACK, ["25T00:30", "26T01:30"]),
        ("*/30 2 * * *", "Europe/Berlin", BACK, ["25T00:00", "25T00:30", "26T01:00"]),
        ("0 1-3 * * *", "Europe/Berlin", BACK, ["24T23:00", "25T00:00", "25T02:00", "26T00:00"]),
        ("0 * * * *", "Europe/Berlin", BACK, ["24T23:00", "25T00:00", "25T01:00", "25T02:00"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00", ["25T00:30", "25T01:30", "25T02:30"]),
        ("40 * * * *", "Europe/Berlin", "2026-10-25T00:50", ["25T01:40", "25T02:40"]),
        ("*/20 * * * *", "Europe/Berlin", "2026-10-25T00:30", ["25T00:40", "25T01:00", "25T01:20"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:00", ["26T01:30"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T00:00", ["01T05:30", "02T06:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-03T20:00", ["04T14:45", "05T15:15"]),
        ("30 2 * * *", "Europe/Berlin", FORWARD, ["29T01:30", "30T00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", ["29T01:30", "30T00:30"]),
        ("0 3 * * *", "Europe/Berlin", FORWARD, ["29T01:00", "30T01:00"]),
        ("0,30 2-3 * * *", "Europe/Berlin", FORWARD, ["29T01:00", "29T01:30", "30T00:00"]),
        ("0 * * * *", "Europe/Berlin", FORWARD, ["28T23:00", "29T00:00", "29T01:00", "29T02:00"]),
        ("30 2 8 3 *", "America/New_York", "2026-03-07T12:00", ["08T07:30"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["06T04:00", "07T03:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T20:00", ["03T15:45", "04T15:15"]),
        ("30 2 29 3 *", "Europe/Berlin", FORWARD, ["29T01:30"]),
    ],
)
def test_once_a_day_is_once_in_nights_in_which_the_clock_is_changed(
    schedule: str, zone: str, after: str, times: list[str]
) -> None:
    found, moment = [], at(after)
    for _ in times:
        due = next_time(schedule, zone, moment)
        assert due is not None
        found.append(f"{due:%dT%H:%M}")
        moment = due
    assert found == times


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Pacific/Apia", "UTC"])
def test_what_runs_in_every_hour_never_waits_for_more_than_one(zone: str) -> None:
    moment = at("2026-03-01T00:00")
    for _ in range(24 * 32):
        due = next_time("0 * * * *", zone, moment)
        assert due is not None
        assert (due - moment).total_seconds() == 3600
        moment = due


def test_the_answer_is_in_utc() -> None:
    found = next_time("0 2 * * *", "Asia/Tokyo", at("2026-01-10T01:00"))
    assert found is not None
    assert found.tzinfo is UTC
