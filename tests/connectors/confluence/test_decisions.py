"""Times as CQL reads them, and where the next answer is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from connectors.confluence.client import next_address
from connectors.confluence.source import OVERLAP, ConfluenceCursor, minute, since
from connectors.documents.options import cursor_json, read_cursor


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "America/New_York", "Asia/Kathmandu", "Pacific/Kiritimati"])
def test_in_whatever_zone_a_time_is_read_it_is_never_later_than_the_moment(zone: str) -> None:
    moment = datetime(2025, 1, 1, 12, 34, 56, tzinfo=UTC)
    while moment.year == 2025:
        text = since("created", moment).split('"')[1]
        read = datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=ZoneInfo(zone))
        assert read <= moment
        moment += timedelta(hours=1)


@pytest.mark.parametrize(
    ("base", "link", "expected"),
    [
        (
            "https://x.net/wiki",
            "/rest/api/s?cursor=a%2Bb%3D",
            "https://x.net/wiki/rest/api/s?cursor=a%2Bb%3D",
        ),
        ("https://x.net/wiki", "/wiki/api/v2/pages?cursor=a", "https://x.net/wiki/api/v2/pages?cursor=a"),
        ("https://x.net/wiki", "rest/api/s?a=b", "https://x.net/wiki/rest/api/s?a=b"),
        ("http://x:8090", "/rest/api/s?start=5", "http://x:8090/rest/api/s?start=5"),
        ("http://x/confluence", "/rest/api/s?start=5", "http://x/confluence/rest/api/s?start=5"),
        ("http://x/wiki", "/wikipedia/s?start=5", "http://x/wiki/wikipedia/s?start=5"),
        ("http://inside/wiki", "https://public.org/wiki/rest/api/s?a=b", "http://inside/wiki/rest/api/s?a=b"),
        (
            "https://api.atlassian.com/ex/confluence/1/wiki",
            "/rest/api/s?a=b",
            "https://api.atlassian.com/ex/confluence/1/wiki/rest/api/s?a=b",
        ),
        (
            "https://api.atlassian.com/ex/confluence/1/wiki",
            "/wiki/api/v2/spaces?a=b",
            "https://api.atlassian.com/ex/confluence/1/wiki/api/v2/spaces?a=b",
        ),
        ("http://x/a/b", "/a/b/rest/api/s?a=b", "http://x/a/b/rest/api/s?a=b"),
    ],
)
def test_the_next_answer_is_on_our_host_below_our_context(base: str, link: str, expected: str) -> None:
    assert next_address(base, {"_links": {"next": link}}) == expected


@pytest.mark.parametrize(
    "payload", [{}, {"_links": {}}, {"_links": {"next": None}}, {"_links": {"next": ""}}]
)
def test_no_link_is_the_end(payload: dict[str, object]) -> None:
    assert next_address("https://x.net/wiki", payload) is None


def test_a_cursor_survives_json_and_forgets_what_is_past() -> None:
    at = datetime(2025, 3, 3, 12, 0, 30, tzinfo=UTC)
    rows = [
        ("1:1", at),
        ("2:1", at - timedelta(minutes=9)),
        ("3:1", at - timedelta(minutes=11)),
        ("4:1", None),
    ]

    cursor = ConfluenceCursor(selection="s", at=at).having_seen(rows)

    assert set(cursor.seen) == {"1:1", "2:1", "4:1"}
    assert cursor.horizon == minute(at) - OVERLAP
    assert read_cursor(ConfluenceCursor, cursor_json(cursor), "s") == cursor


def test_a_cursor_of_before_is_still_read() -> None:
    stored = {
        "selection": "s",
        "walking": True,
        "created": "2025-03-03T12:00:30.123000+00:00",
        "read_then": ["2", "1"],
        "admitted": 2,
        "at": "2025-03-03T12:00:30+00:00",
        "seen": {"1:1": 1741003230},
    }

    cursor = read_cursor(ConfluenceCursor, stored, "s")

    assert cursor == ConfluenceCursor(
        selection="s",
        walking=True,
        created=datetime(2025, 3, 3, 12, 0, 30, 123000, tzinfo=UTC),
        read_then=("2", "1"),
        admitted=2,
        at=datetime(2025, 3, 3, 12, 0, 30, tzinfo=UTC),
        seen={"1:1": 1741003230},
    )
