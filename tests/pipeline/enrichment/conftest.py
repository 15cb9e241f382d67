"""A Gemini that writes, a clock, and the wording of answers by both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.enrichment import Rewording, WordingOptions, open_wording
from tests.fakes.gemini_text import FakeGeminiText
from tests.pipeline.enrichment.worded import (
    BETTER,
    CRITERION,
    KEY,
    NEW_CRITERION,
    NOW,
    STREAMED,
    Clock,
    saying,
)


@pytest.fixture
def fake() -> Iterator[FakeGeminiText]:
    with FakeGeminiText(key=KEY) as made:
        made.write = saying((STREAMED, BETTER), (CRITERION, NEW_CRITERION))
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rewording(fake: FakeGeminiText, clock: Clock) -> Iterator[Rewording]:
    wording = open_wording(
        WordingOptions(generator="gemini", base_url=fake.address, api_key=KEY, model=fake.model)
    )
    assert wording is not None
    yield Rewording(wording, clock=clock, now=lambda: NOW)
    if "_client" in vars(wording):
        vars(wording)["_client"].close()
