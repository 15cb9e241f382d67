"""The section `embedding`: what is left out is the provider's own, and what cannot work is said with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.embedding.known_models import PROVIDER_FACTS
from workers.settings import Settings, SettingsProblem
from workers.settings.rendering import effective, show

Loaded = Callable[..., Settings]
Problems = Callable[..., list[SettingsProblem]]
Lines = Callable[..., list[str]]

KEYS = {"GEMINI_API_KEY": "g-1", "OPENAI_API_KEY": "o-1", "HF_TOKEN": "h-1"}


def embedding(provider: str, more: str = "") -> str:
    return f"rag:\n  embedding:\n    provider: {provider}\n{more}"


@pytest.mark.req("001-028", "001-078", "003-014")
@pytest.mark.parametrize(
    ("provider", "model", "dimensions", "batch", "timeout"),
    [
        ("minilm", "all-MiniLM-L6-v2", 384, 32, 30),
        ("hashing", "hashing", 384, 32, 30),
        ("gemini", "gemini-embedding-001", 768, 100, 30),
        ("openai", "text-embedding-3-small", 1536, 256, 30),
        ("ollama", "nomic-embed-text", 768, 32, 60),
        ("huggingface", "sentence-transformers/all-MiniLM-L6-v2", 384, 32, 60),
        ("transformers", "sentence-transformers/all-MiniLM-L6-v2", 384, 32, 30),
    ],
)
def test_what_is_left_out_is_the_providers_own(
    loaded: Loaded, provider: str, model: str, dimensions: int, batch: int, timeout: float
) -> None:
    e = loaded(embedding(provider), KEYS).rag.embedding
    assert (e.provider, e.model, e.dimensions, e.batch_size, e.timeout) == (
        provider,
        model,
        dimensions,
        batch,
        timeout,
    )


@pytest.mark.parametrize(("provider", "said"), [("minilm", "cut"), ("minilm", "split"), ("openai", "refuse")])
def test_what_becomes_of_long_texts_is_said_or_left_to_the_model(
    loaded: Loaded, provider: str, said: str
) -> None:
    assert loaded(embedding(provider), KEYS).rag.embedding.oversize is None
    assert loaded(embedding(provider, f"    oversize: {said}\n"), KEYS).rag.embedding.oversize == said


def test_only_minilm_cuts(problems: Problems) -> None:
    (problem,) = problems(embedding("hashing", "    oversize: cut\n"))
    assert (problem.key, problem.at.line) == ("embedding.oversize", 4)


def test_what_is_said_holds_in_either_spelling(loaded: Loaded) -> None:
    more = "    model: bge-m3\n    batch_size: 7\n    timeout: 5\n    max_tokens: 4096\n"
    e = loaded(embedding("OLLAMA", more)).rag.embedding
    assert (e.provider, e.model, e.dimensions, e.batch_size, e.timeout, e.max_tokens) == (
        "ollama",
        "bge-m3",
        1024,
        7,
        5,
        4096,
    )


@pytest.mark.parametrize("provider", sorted(PROVIDER_FACTS))
def test_what_is_shown_loads_to_the_same(loaded: Loaded, provider: str) -> None:
    settings = loaded(embedding(provider), KEYS)
    again = loaded(show(settings), KEYS).rag.embedding
    masked = settings.rag.embedding.model_copy(update={"api_key": again.api_key})
    assert again == masked


class TestKeys:
    @pytest.mark.parametrize(
        ("provider", "key"), [("gemini", "g-1"), ("openai", "o-1"), ("huggingface", "h-1"), ("ollama", None)]
    )
    def test_the_providers_own_variable_holds_its_key(
        self, loaded: Loaded, provider: str, key: str | None
    ) -> None:
        settings = loaded(embedding(provider), KEYS)
        assert settings.rag.embedding.api_key == (SecretStr(key) if key else None)
        if key:
            assert effective(settings)["rag"]["embedding"]["apiKey"] == "***"

    def test_the_file_and_our_own_variable_come_first(self, loaded: Loaded) -> None:
        more = "    apiKey: ${MINE}\n"
        e = loaded(embedding("openai", more), {**KEYS, "MINE": "m-1"}).rag.embedding
        assert e.api_key == SecretStr("m-1")
        e = loaded(embedding("openai"), {**KEYS, "LARDER_EMBEDDING_API_KEY": "l-1"}).rag.embedding
        assert e.api_key == SecretStr("l-1")

    def test_a_key_for_the_public_service_is_sent_to_no_other(self, loaded: Loaded) -> None:
        more = "    baseUrl: http://localhost:8000/v1\n"
        assert loaded(embedding("openai", more), KEYS).rag.embedding.api_key is None

    def test_the_key_of_another_provider_is_not_taken(self, lines: Lines) -> None:
        (line,) = lines(embedding("openai"), {"GEMINI_API_KEY": "g-1"})
        assert "OPENAI_API_KEY" in line
        assert "g-1" not in line

    def test_a_key_comes_from_a_secret_file(self, loaded: Loaded) -> None:
        Path("key").write_text("f-1\n", encoding="utf-8")
        e = loaded(embedding("openai"), {"OPENAI_API_KEY_FILE": "key"}).rag.embedding
        assert e.api_key == SecretStr("f-1")

    @pytest.mark.parametrize(
        ("provider", "variable"),
        [("gemini", "GEMINI_API_KEY"), ("openai", "OPENAI_API_KEY"), ("huggingface", "HF_TOKEN")],
    )
    def test_a_missing_key_names_the_variable(self, problems: Problems, provider: str, variable: str) -> None:
        (problem,) = problems(embedding(provider))
        assert (problem.key, problem.actual, problem.at.line) == ("embedding.apiKey", "nothing", 2)
        assert problem.allowed == f"the key of {PROVIDER_FACTS[provider].title}"
        assert variable in problem.fix

    @pytest.mark.parametrize("provider", ["openai", "huggingface", "ollama"])
    def test_a_server_of_ones_own_needs_none(self, loaded: Loaded, provider: str) -> None:
        e = loaded(embedding(provider, "    baseUrl: http://localhost:8000\n")).rag.embedding
        assert e.api_key is None

    def test_gemini_always_needs_one(self, problems: Problems) -> None:
        (problem,) = problems(embedding("gemini", "    baseUrl: http://localhost:8000\n"), KEYS)
        assert problem.key == "embedding.apiKey"


class TestWhatDoesNotFit:
    def test_a_model_not_known_here_needs_its_dimensions(self, problems: Problems, loaded: Loaded) -> None:
        (problem,) = problems(embedding("ollama", "    model: snowflake\n"))
        assert (problem.key, problem.at.line, problem.actual) == ("embedding.dimensions", 2, "nothing")
        assert "the length of the vectors of snowflake" in problem.allowed
        assert "nomic-embed-text" in problem.fix
        text = embedding("ollama", "    model: snowflake\n    dimensions: 1024\n")
        assert loaded(text).rag.embedding.dimensions == 1024

    @pytest.mark.parametrize(
        ("provider", "model", "dimensions", "allowed"),
        [
            ("openai", "text-embedding-ada-002", 512, "1536"),
            ("openai", "text-embedding-3-small", 3072, "1 to 1536"),
            ("gemini", "gemini-embedding-001", 64, "128 to 3072"),
            ("ollama", "nomic-embed-text:v1.5", 384, "768"),
        ],
    )
    def test_a_length_the_model_does_not_give(
        self, problems: Problems, provider: str, model: str, dimensions: int, allowed: str
    ) -> None:
        more = f"    model: {model}\n    dimensions: {dimensions}\n"
        (problem,) = problems(embedding(provider, more), KEYS)
        assert (problem.key, problem.at.line, problem.actual) == ("embedding.dimensions", 5, str(dimensions))
        assert problem.allowed == f"{allowed}, which {model} gives"

    @pytest.mark.parametrize(("provider", "most"), [("gemini", 100), ("huggingface", 32), ("ollama", 512)])
    def test_more_texts_than_a_call_takes(self, problems: Problems, provider: str, most: int) -> None:
        (problem,) = problems(embedding(provider, f"    batchSize: {most + 1}\n"), KEYS)
        assert (problem.key, problem.at.line) == ("embedding.batchSize", 4)
        assert f"at most {most}" in problem.allowed

    def test_all_of_it_is_told_at_once(self, problems: Problems) -> None:
        found = problems(embedding("huggingface", "    model: my/own\n    batchSize: 99\n"))
        assert [p.key for p in found] == ["embedding.apiKey", "embedding.dimensions", "embedding.batchSize"]


class TestPrevious:
    def test_it_is_described_like_the_present_one(self, loaded: Loaded) -> None:
        more = "    previous: {provider: ollama, model: bge-m3, baseUrl: 'http://old:11434'}\n"
        previous = loaded(embedding("openai", more), KEYS).rag.embedding.previous
        assert previous is not None
        assert (previous.provider, previous.model, previous.dimensions, previous.timeout) == (
            "ollama",
            "bge-m3",
            1024,
            60,
        )

    def test_there_is_none_unless_it_is_said(self, loaded: Loaded) -> None:
        assert loaded("rag: {}\n").rag.embedding.previous is None

    def test_its_key_comes_from_its_own_providers_variable(self, loaded: Loaded) -> None:
        e = loaded(embedding("openai", "    previous: {provider: gemini}\n"), KEYS).rag.embedding
        assert e.previous is not None
        assert (e.api_key, e.previous.api_key) == (SecretStr("o-1"), SecretStr("g-1"))

    def test_what_does_not_fit_is_told_at_its_place(self, problems: Problems) -> None:
        (problem,) = problems(embedding("minilm", "    previous:\n      provider: openai\n"))
        assert (problem.key, problem.at.line) == ("embedding.previous.apiKey", 4)

    def test_keys_that_only_the_present_one_has_are_unknown(self, problems: Problems) -> None:
        (problem,) = problems(embedding("minilm", "    previous: {provider: hashing, batchSize: 4}\n"))
        assert (problem.key, problem.actual) == ("embedding.previous.batchSize", "an unknown key")
