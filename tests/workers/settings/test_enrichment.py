"""The section of Step 4's answers."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.enrichment import GENERATORS as BUILT
from workers.settings import Settings
from workers.settings.models import GENERATORS

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]


def test_a_generator_that_this_version_does_not_have_is_refused(lines: Lines) -> None:
    (line,) = lines("rag:\n  enrichment: {generator: parrot}\n")
    assert "enrichment.generator: found 'parrot', expected one of extract, gemini" in line


def test_generators_here_are_those_of_the_pipeline() -> None:
    assert set(GENERATORS) == set(BUILT)


def test_a_generator_that_needs_a_key_says_so(lines: Lines) -> None:
    (line,) = lines("rag:\n  enrichment: {generator: gemini}\n")
    assert "enrichment.apiKey" in line
    assert "the key of the generator gemini" in line


def test_the_key_of_a_generator_comes_from_a_variable_and_is_not_shown(loaded: Loaded) -> None:
    text = "rag:\n  enrichment: {generator: gemini, apiKey: '${GEMINI_API_KEY}', baseUrl: 'http://127.0.0.1:8/'}\n"
    enrichment = loaded(text, {"GEMINI_API_KEY": "AIza-of-the-tests"}).rag.enrichment
    assert enrichment.api_key is not None
    assert enrichment.api_key.get_secret_value() == "AIza-of-the-tests"
    assert "AIza" not in repr(enrichment)
    assert (enrichment.base_url, enrichment.model) == ("http://127.0.0.1:8", "gemini-2.5-flash")
