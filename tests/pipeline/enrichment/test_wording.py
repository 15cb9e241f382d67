"""Which configurations of a wording are one and the same, as far as kept answers are concerned."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.enrichment import WordingOptions

GEMINI: dict[str, Any] = {"generator": "gemini", "model": "small", "base_url": "https://one.example"}


@pytest.mark.parametrize(
    "other", [{"generator": "extract"}, {"model": "large"}, {"base_url": "https://two.example"}]
)
def test_another_generator_model_or_address_is_another_wording(other: dict[str, Any]) -> None:
    assert WordingOptions(**{**GEMINI, **other}).identity != WordingOptions(**GEMINI).identity


def test_key_and_timeout_are_none_and_neither_is_a_model_that_nobody_asks() -> None:
    assert WordingOptions(**GEMINI, api_key="k", timeout=1).identity == WordingOptions(**GEMINI).identity
    assert WordingOptions(model="large").identity == WordingOptions(model="small").identity
