"""How long a model is waited for, and when it is left alone."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from pipeline.documents import Json
from pipeline.enrichment import Rewording
from tests.fakes import gemini_errors as says
from tests.fakes.gemini_text import FakeGeminiText
from tests.fakes.server import Fault
from tests.pipeline.enrichment.worded import (
    ANSWER,
    NOW,
    REQUEST,
    Clock,
)


class TestTime:
    """The deadline of whoever waits."""

    def test_the_call_gets_what_is_left_minus_a_reserve(
        self, rewording: Rewording, fake: FakeGeminiText
    ) -> None:
        rewording.reworded(ANSWER, REQUEST, NOW + timedelta(seconds=9))
        rewording.reworded(ANSWER, REQUEST, NOW + timedelta(seconds=900))
        rewording.reworded(ANSWER, REQUEST)
        assert [seen.headers["x-server-timeout"] for seen in fake.requests()] == ["7", "20", "20"]

    @pytest.mark.parametrize("left", [-1.0, 0.0, 2.9])
    def test_with_too_little_left_there_is_no_call(
        self, rewording: Rewording, fake: FakeGeminiText, left: float
    ) -> None:
        assert rewording.reworded(ANSWER, REQUEST, NOW + timedelta(seconds=left)) is ANSWER
        assert fake.requests() == []

    @pytest.mark.parametrize("planned", [Fault.slow(240), Fault.dripping(240)])
    def test_a_slow_model_is_not_waited_for(
        self, rewording: Rewording, fake: FakeGeminiText, planned: Fault
    ) -> None:
        fake.faults.next(planned)
        begun = time.monotonic()
        assert rewording.reworded(ANSWER, REQUEST, NOW + timedelta(seconds=3.1)) == ANSWER
        assert time.monotonic() - begun < 60


class TestPause:
    """A model that fails is left alone for a while."""

    def ask(self, rewording: Rewording, times: int = 1) -> list[str]:
        return [rewording.reworded(ANSWER, REQUEST)["generator"] for _ in range(times)]

    def test_after_three_failures_in_a_row_for_a_minute(
        self, rewording: Rewording, fake: FakeGeminiText, clock: Clock
    ) -> None:
        fake.faults.next(says.fault(503, "UNAVAILABLE"), times=3)
        assert self.ask(rewording, 6) == ["extract"] * 6
        assert len(fake.requests()) == 3
        clock.now += 59.9
        self.ask(rewording)
        assert len(fake.requests()) == 3
        clock.now += 0.2
        assert self.ask(rewording) == ["gemini"]

    def test_the_first_failure_after_the_pause_begins_another(
        self, rewording: Rewording, fake: FakeGeminiText, clock: Clock
    ) -> None:
        fake.faults.next(says.fault(503, "UNAVAILABLE"), times=4)
        self.ask(rewording, 3)
        clock.now += 60.1
        self.ask(rewording, 3)
        assert len(fake.requests()) == 4

    def test_failures_with_a_success_between_them_are_no_row(
        self, rewording: Rewording, fake: FakeGeminiText
    ) -> None:
        for _ in range(3):
            fake.faults.next(Fault.reset(), times=2)
            assert self.ask(rewording, 3) == ["extract", "extract", "gemini"]

    @pytest.mark.parametrize(
        ("details", "seconds"),
        [
            ([says.retry_info("37s")], 37.0),
            ([says.quota("RequestsPerDay")], 3600.0),
            ([says.retry_info("90000s")], 3600.0),
        ],
    )
    def test_a_service_that_asks_for_a_pause_gets_it_at_once(
        self,
        rewording: Rewording,
        fake: FakeGeminiText,
        clock: Clock,
        details: list[Json],
        seconds: float,
    ) -> None:
        fake.faults.next(says.too_many(*details))
        assert self.ask(rewording, 2) == ["extract", "extract"]
        clock.now += seconds - 0.1
        assert self.ask(rewording) == ["extract"]
        assert len(fake.requests()) == 1
        clock.now += 0.2
        assert self.ask(rewording) == ["gemini"]

    def test_a_refused_key_is_not_tried_with_every_answer(
        self, rewording: Rewording, fake: FakeGeminiText
    ) -> None:
        fake.key = "another"
        self.ask(rewording, 5)
        assert len(fake.requests()) == 1
