"""All the ways a service says when to come back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from requests.structures import CaseInsensitiveDict

from pipeline.errors.http_rules import MOST_SECONDS, clamped, provider_pause, source_pause

NOW = datetime(2025, 3, 4, 5, 6, 0, tzinfo=UTC)
EPOCH = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": " 7 "}, 7),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 1),
        ({"Retry-After": "-5"}, 1),
        ({"Retry-After": "999999"}, 3600),
        ({"Retry-After": "9" * 400}, 30),
        ({"Retry-After": "soon"}, 30),
        ({"Retry-After": "nan"}, 30),
        ({"Retry-After": "1_000"}, 30),
        ({"Retry-After": "٧"}, 30),
        ({"Retry-After": ""}, 30),
        ({}, 30),
        ({"Retry-After": "Tue, 04 Mar 2025 05:06:40 GMT"}, 40),
        ({"Retry-After": "Tuesday, 04-Mar-25 05:06:40 GMT"}, 40),
        ({"Retry-After": "Tue, 04 Mar 2025 05:06:40 -0000"}, 40),
        ({"Retry-After": "Tue, 04 Mar 2025 01:00:00 GMT"}, 1),
        ({"Retry-After": "Wed, 05 Mar 2025 05:06:40 GMT"}, 3600),
        ({"Retry-After": "Tue, 99 Foo 2025 05:06:40 GMT"}, 30),
        ({"Retry-After": "Tue, 04 Mar 2025 07:06:40 GMT", "Date": "Tue, 04 Mar 2025 07:06:10 GMT"}, 30),
        ({"X-RateLimit-Reset": str(EPOCH + 50)}, 50),
        ({"X-RateLimit-Reset": "50"}, 50),
        ({"X-RateLimit-Reset": "2025-03-04T05:08Z"}, 120),
        ({"X-RateLimit-Reset": "2025-03-04T07:08+02:00"}, 120),
        ({"X-RateLimit-Reset": "2025-03-04T05:08"}, 120),
        ({"X-RateLimit-Reset": "later"}, 30),
        ({"X-RateLimit-Reset": "999999999999999"}, 30),
        ({"Retry-After": "7", "X-RateLimit-Reset": "50"}, 7),
        ({"Retry-After": "soon", "X-RateLimit-Reset": "50"}, 50),
    ],
)
def test_too_many_requests(headers: dict[str, str], seconds: float) -> None:
    assert source_pause(429, CaseInsensitiveDict(headers), NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (503, {}, None),
        (503, {"X-RateLimit-Reset": "50"}, None),
        (503, {"Retry-After": "9"}, 9),
        (503, {"Retry-After": "soon"}, 30),
        (403, {}, None),
        (403, {"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "50"}, None),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"}, 50),
        (403, {"X-RateLimit-Remaining": "0"}, 30),
        (403, {"Retry-After": "60"}, 60),
        (500, {"Retry-After": "9"}, None),
        (404, {"Retry-After": "9"}, None),
        (200, {}, None),
        (200, {"Retry-After": "9"}, 9),
        (200, {"Retry-After": "0"}, None),
        (200, {"Retry-After": "soon"}, None),
        (200, {"X-RateLimit-Remaining": "17", "X-RateLimit-Reset": "50"}, None),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(EPOCH + 50)}, 50),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Interval-Seconds": "2"}, 2),
        (200, {"X-RateLimit-Remaining": "0"}, 5),
        (200, {"X-RateLimit-NearLimit": "true"}, 5),
        (200, {"X-RateLimit-NearLimit": "TRUE", "Retry-After": "2"}, 2),
        (200, {"X-RateLimit-NearLimit": "false"}, None),
    ],
)
def test_other_answers(status: int, headers: dict[str, str], seconds: float | None) -> None:
    assert source_pause(status, CaseInsensitiveDict(headers), NOW) == seconds


def test_without_a_given_time_the_present_counts() -> None:
    year = datetime.now(UTC).year + 1
    assert source_pause(429, CaseInsensitiveDict({"X-RateLimit-Reset": f"{year}-01-02T00:00Z"})) == 3600


IN_90_SECONDS = "Tue, 04 Mar 2025 05:07:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.1),
        ({"retry-after": "-5"}, 0.1),
        ({"retry-after": IN_90_SECONDS}, 90),
        ({"retry-after": IN_90_SECONDS, "date": "Tue, 04 Mar 2025 05:07:00 GMT"}, 30),
        ({"retry-after": "Tue, 04 Mar 2025 05:00:00 GMT"}, 0.1),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "999999"}, MOST_SECONDS),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"x-ratelimit-reset": "50"}, 50),
        ({"x-ratelimit-reset": str(EPOCH * 1000)}, None),
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
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    found = provider_pause(CaseInsensitiveDict(headers), NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_a_wait_is_no_endless_loop_and_no_day_off() -> None:
    assert [clamped(s) for s in (-3.0, 0.0, 5.0, 1e9)] == [0.1, 0.1, 5.0, MOST_SECONDS]
