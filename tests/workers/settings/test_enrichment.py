"""The section of Step 4's answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workers.settings import Settings

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]


@pytest.mark.parametrize("generator", ["gemini", "parrot"])
def test_answers_quote_and_a_generator_is_refused(lines: Lines, generator: str) -> None:
    (line,) = lines(f"rag:\n  enrichment: {{generator: {generator}}}\n")
    assert f"enrichment.generator: found '{generator}', expected extract" in line
    assert "suggestions quote what people wrote: remove the key" in line


def test_naming_what_is_done_anyway_is_no_error(loaded: Loaded) -> None:
    assert loaded("rag:\n  enrichment: {generator: extract}\n").rag.enrichment.deadline_seconds == 120
