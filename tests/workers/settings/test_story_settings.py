"""The section `stories` and the variables of its document: the model, its key and address, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.sections import secret_value
from workers.settings import Settings, load
from workers.settings.models import StorySettings

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]
KEY = {"GEMINI_API_KEY": "g-1"}


def model(settings: Settings) -> tuple[str, str, int, str, str | None]:
    e = settings.rag.story_embedding
    return e.provider, e.model, e.dimensions, secret_value(e.api_key), e.base_url


@pytest.mark.req("000-048", "000-049", "000-024", "000-025")
def test_without_a_word_the_numbers_are_those_of_the_document_and_the_model_needs_no_key(here: Path) -> None:
    settings = load(None, {})
    s = settings.rag.stories
    assert (settings.rag.enabled, s.retrieval_k, s.max_examples, s.min_stories) == (True, 5, 3, 10)
    assert (s.similarity_threshold, s.min_confidence) == ("auto", 0.80)
    assert model(settings) == ("minilm", "all-MiniLM-L6-v2", 384, "", None)


@pytest.mark.req("000-048", "000-049")
def test_every_variable_of_the_document_is_read(here: Path) -> None:
    settings = load(
        None,
        {
            "RAG_ENABLED": "false",
            "RAG_EMBEDDING_MODEL": "gemini-embedding-001",
            "RAG_EMBEDDING_DIMENSIONS": "768",
            "RAG_RETRIEVAL_K": "7",
            "RAG_SIMILARITY_THRESHOLD": "0.65",
            "RAG_MAX_EXAMPLES": "2",
            "RAG_MIN_STORIES_FOR_RETRIEVAL": "20",
            **KEY,
        },
    )
    assert settings.rag.enabled is False
    embedding = settings.rag.stories.embedding
    found = settings.rag.stories.model_copy(update={"embedding": None})
    assert found == StorySettings(retrieval_k=7, similarity_threshold=0.65, max_examples=2, min_stories=20)
    assert embedding is not None
    assert model(settings) == ("gemini", "gemini-embedding-001", 768, "g-1", None)
    assert settings.rag.embedding.provider == "minilm", "documents keep their model"


@pytest.mark.req("000-025", "000-049")
@pytest.mark.parametrize(
    ("given", "least"),
    [
        ({"RAG_MIN_STORIES": "4"}, 4),
        ({"RAG_MIN_STORIES_FOR_RETRIEVAL": "6"}, 6),
        ({"RAG_MIN_STORIES": "4", "RAG_MIN_STORIES_FOR_RETRIEVAL": "6"}, 6),
    ],
)
def test_both_names_of_the_minimum_work_and_the_longer_one_wins(
    here: Path, given: dict[str, str], least: int
) -> None:
    assert load(None, given).rag.stories.min_stories == least


@pytest.mark.req("000-048")
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RAG_EMBEDDING_MODEL": "all-MiniLM-L6-v2"}, ("minilm", "all-MiniLM-L6-v2", 384, "", None)),
        ({"RAG_EMBEDDING_DIMENSIONS": "512", **KEY}, ("gemini", "gemini-embedding-001", 512, "g-1", None)),
        (
            {"RAG_EMBEDDING_MODEL": "text-embedding-3-small", "OPENAI_API_KEY": "o-1"},
            ("openai", "text-embedding-3-small", 1536, "o-1", None),
        ),
    ],
)
def test_a_model_brings_its_provider(
    here: Path, environ: dict[str, str], expected: tuple[str, str, int, str, str | None]
) -> None:
    assert model(load(None, environ)) == expected


@pytest.mark.req("000-048")
def test_the_provider_of_everything_else_is_asked_at_its_address_with_its_key(loaded: Loaded) -> None:
    private = (
        "rag:\n  embedding: {provider: gemini, dimensions: 256, baseUrl: 'http://127.0.0.1:9', apiKey: own}\n"
    )
    stories = {"RAG_EMBEDDING_MODEL": "gemini-embedding-001", **KEY}
    found = model(loaded(private, stories))
    assert found == ("gemini", "gemini-embedding-001", 768, "own", "http://127.0.0.1:9")
    assert model(loaded(private))[2:] == (256, "own", "http://127.0.0.1:9"), "nothing said is the same model"
    own = private + "  stories: {embedding: {baseUrl: 'http://127.0.0.1:8', apiKey: other}}\n"
    assert model(loaded(own, stories))[3:] == ("other", "http://127.0.0.1:8")
    other = private + "  stories: {embedding: {provider: ollama, model: bge-m3}}\n"
    assert model(loaded(other, KEY))[3:] == ("", None), "no key goes to somebody else"


def test_what_cannot_work_is_told_at_its_key(lines: Lines) -> None:
    (told,) = lines("rag: {}\n", {"RAG_EMBEDDING_MODEL": "gemini-embedding-001"})
    where = "RAG_EMBEDDING_MODEL: stories.embedding.apiKey: found nothing, expected the key of Gemini"
    assert told.startswith(f"{where}; set the variable GEMINI_API_KEY")
    assert lines("rag: {}\n", {"RAG_RETRIEVAL_K": "many"}) == [
        "RAG_RETRIEVAL_K: stories.retrievalK: found 'many', expected a whole number from 1 to 100"
    ]
