"""How long a service asks to stay away, in each of its ways."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from pipeline.embedding.providers.waits import MOST_SECONDS, bounded, wait_of

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
IN_90_SECONDS = "Sun, 01 Mar 2026 12:01:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.1),
        ({"retry-after": IN_90_SECONDS}, 90),
        ({"retry-after": IN_90_SECONDS, "date": "Sun, 01 Mar 2026 12:01:00 GMT"}, 30),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0.1),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "999999"}, MOST_SECONDS),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"x-ratelimit-reset-requests": "20ms"}, 0.1),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "12"}, 360),
        (
            {
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-reset-tokens": "12.5s",
                "x-ratelimit-remaining-requests": "40",
                "x-ratelimit-remaining-tokens": "0",
            },
            12.5,
        ),
        ({"x-ratelimit-reset-tokens": "1h2x"}, None),
        ({"retry-after": "3", "x-ratelimit-reset-tokens": "50s"}, 3),
    ],
)
def test_the_wait_that_headers_ask_for(headers: Mapping[str, str], seconds: float | None) -> None:
    assert wait_of(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_a_wait_is_no_endless_loop_and_no_day_off() -> None:
    assert [bounded(s) for s in (-3.0, 0.0, 5.0, 1e9)] == [0.1, 0.1, 5.0, MOST_SECONDS]
