"""Dates in a person's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pipeline.errors import ConfigurationError
from workers.app.questions.searches import filter_of, moment
from workers.cli.search import SearchOptions
from workers.runtime import Addresses, Runtime
from workers.settings import load

NOW = datetime(2025, 7, 10, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.req("001-032")
@pytest.mark.parametrize(
    ("word", "end", "expected"),
    [
        ("2025-07-01", False, datetime(2025, 6, 30, 22, tzinfo=UTC)),
        ("2025-07-01", True, datetime(2025, 7, 1, 22, tzinfo=UTC)),
        ("2025-07-01T00:00:00Z", True, datetime(2025, 7, 1, tzinfo=UTC)),
        ("2025-07-01T02:00:00+02:00", False, datetime(2025, 7, 1, tzinfo=UTC)),
        ("2025-01-01T00:00:00", False, datetime(2024, 12, 31, 23, tzinfo=UTC)),
        ("7d", False, NOW - timedelta(days=7)),
        ("7d", True, NOW - timedelta(days=7)),
        (" 12H ", False, NOW - timedelta(hours=12)),
        ("2w", False, NOW - timedelta(weeks=2)),
        ("90m", False, NOW - timedelta(minutes=90)),
    ],
)
def test_moments(word: str, end: bool, expected: datetime) -> None:
    assert moment("--since", word, NOW, BERLIN, end=end) == expected


@pytest.mark.parametrize("word", ["", "d", "-7d", "7 days", "2025-13-01", "1.1.2025", "99999999d", "now"])
def test_other_words_are_no_moments(word: str) -> None:
    with pytest.raises(ConfigurationError, match="is no date"):
        moment("--since", word, NOW, BERLIN)


def test_an_empty_span_is_told_and_a_day_is_none() -> None:
    runtime = Runtime(load(None, {}), Addresses())
    day = filter_of(runtime, vars(SearchOptions(since="2026-01-31", until="2026-01-31")))
    assert day.since is not None
    assert day.until == day.since + timedelta(days=1)
    with pytest.raises(ConfigurationError, match="--since 7d is not before --until 30d"):
        filter_of(runtime, vars(SearchOptions(since="7d", until="30d")))
