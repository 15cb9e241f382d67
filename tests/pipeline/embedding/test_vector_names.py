"""Names of vectors: no two models share one, and each leads back to its model."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.known_models import PROVIDER_FACTS, model_of, options_for, vector_key
from pipeline.errors import EmbedderRefused


def options(provider: str, model: str = "", dimensions: int | None = None) -> EmbeddingOptions:
    return EmbeddingOptions(provider=provider, model=model, dimensions=dimensions)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (options("minilm"), "all-MiniLM-L6-v2"),
        (options("minilm", "all-MiniLM-L6-v2", 384), "all-MiniLM-L6-v2"),
        (EmbeddingOptions(model_path=Path("/m/bge-small"), dimensions=384), "bge-small-384"),
        (options("hashing"), "hashing-384"),
        (options("hashing", "", 64), "hashing-64"),
        (options("openai"), "openai/text-embedding-3-small"),
        (options("openai", "text-embedding-3-large", 3072), "openai/text-embedding-3-large"),
        (options("openai", "text-embedding-3-large", 256), "openai/text-embedding-3-large-256"),
        (options("openai", "BAAI/bge-small", 384), "openai/BAAI/bge-small"),
        (options("ollama"), "ollama/nomic-embed-text:latest"),
        (options("ollama", "bge-m3:latest"), "ollama/bge-m3:latest"),
        (options("ollama", "all-minilm:33m"), "ollama/all-minilm:33m"),
        (options("gemini"), "gemini/gemini-embedding-001"),
        (options("gemini", "gemini-embedding-001", 3072), "gemini/gemini-embedding-001-3072"),
        (options("huggingface"), "huggingface/sentence-transformers/all-MiniLM-L6-v2"),
        (options("transformers"), "transformers/sentence-transformers/all-MiniLM-L6-v2"),
    ],
)
def test_the_names_of_vectors(given: EmbeddingOptions, key: str) -> None:
    """The first five stand in the stores of everybody: changing them would embed everything again."""
    assert vector_key(given) == key


def test_no_two_models_share_a_name() -> None:
    every = [
        (provider, model, dimensions)
        for provider, facts in PROVIDER_FACTS.items()
        for model, known in facts.models.items()
        for dimensions in {
            known.dimensions,
            known.shortest or known.dimensions,
            known.longest or known.dimensions,
        }
    ]
    keys = [vector_key(options(*one)) for one in every]
    assert len(set(keys)) == len(keys) > 30


@pytest.mark.parametrize("provider", sorted(PROVIDER_FACTS))
def test_a_name_leads_back_to_the_model(provider: str) -> None:
    facts = PROVIDER_FACTS[provider]
    for model, known in facts.models.items():
        lengths = {known.dimensions, known.shortest or known.dimensions, known.longest or known.dimensions}
        for dimensions in lengths:
            key = vector_key(options(provider, model, dimensions))
            found = options_for([options(provider)], provider=provider, key=key, dimensions=dimensions)
            assert vector_key(found) == key
            assert PROVIDER_FACTS[provider].dimensions_of(found.model, found.dimensions) == dimensions


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("gemini/gemini-embedding-001", "gemini-embedding-001"),
        ("gemini/gemini-embedding-001-3072", "gemini-embedding-001"),
        ("openai/my-model-512", "my-model-512"),
        ("somebody/else-1", "somebody/else-1"),
    ],
)
def test_the_makers_name_of_a_model(key: str, model: str) -> None:
    assert model_of(key) == model


class TestTheModelOfAnIndex:
    CONFIGURED = EmbeddingOptions(
        provider="openai",
        model="text-embedding-3-large",
        dimensions=3072,
        api_key="k",
        base_url="http://a/v1",
    )
    PREVIOUS = EmbeddingOptions(provider="ollama", model="bge-m3", base_url="http://b", timeout=9)

    def test_the_configured_one_is_taken_as_it_is(self) -> None:
        key = vector_key(self.CONFIGURED)
        assert options_for([self.CONFIGURED], provider="openai", key=key, dimensions=3072) is self.CONFIGURED

    def test_another_model_of_the_provider_has_its_key_and_address(self) -> None:
        found = options_for(
            [self.CONFIGURED], provider="openai", key="openai/text-embedding-3-small", dimensions=1536
        )
        assert (found.model, found.dimensions) == ("text-embedding-3-small", 1536)
        assert (found.api_key, found.base_url) == ("k", "http://a/v1")

    def test_the_previous_one_is_taken_for_its_index(self) -> None:
        described = [self.CONFIGURED, self.PREVIOUS]
        found = options_for(described, provider="ollama", key="ollama/bge-m3:latest", dimensions=1024)
        assert found is self.PREVIOUS

    @pytest.mark.parametrize(
        ("provider", "key"), [("minilm", "all-MiniLM-L6-v2"), ("hashing", "hashing-384")]
    )
    def test_the_free_ones_need_no_description(self, provider: str, key: str) -> None:
        found = options_for([self.CONFIGURED], provider=provider, key=key, dimensions=384)
        assert (found.provider, found.api_key) == (provider, "")

    @pytest.mark.parametrize(
        ("provider", "key"),
        [
            ("gemini", "gemini/gemini-embedding-001"),
            ("ollama", "ollama/bge-m3:latest"),
            ("minilm", "bge-small-384"),
            ("openai", "text-embedding-3-small"),
            ("openai", "gemini/gemini-embedding-001"),
            ("unheard-of", "unheard-of/x"),
        ],
    )
    def test_nobody_else_answers_for_a_model(self, provider: str, key: str) -> None:
        """Taking MiniLM for another folder's model of the same length would mix vectors in silence."""
        with pytest.raises(EmbedderRefused, match="does not describe") as caught:
            options_for([self.CONFIGURED], provider=provider, key=key, dimensions=384)
        assert "embedding.previous" in caught.value.fix
        assert key in caught.value.message


def test_keys_are_ordered_pairs_of_all_providers() -> None:
    firsts = {vector_key(options(name)) for name in PROVIDER_FACTS}
    assert len(firsts) == len(PROVIDER_FACTS)
    assert all(a == b or not a.startswith(f"{b}-") for a, b in itertools.product(firsts, firsts))
