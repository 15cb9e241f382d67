"""Which model a process opens: the configured one, or the one an index was made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import EmbedderRefused
from pipeline.ledger import Stage
from pipeline.search.chunk_store import SearchIndex
from tests.fakes.openai_server import KEY, FakeOpenAI
from workers.app.ingestion import steps
from workers.runtime import Addresses, Runtime
from workers.settings import load


def runtime_with(folder: Path, embedding: str) -> Runtime:
    path = folder / "larder.yaml"
    path.write_text(f"rag:\n  embedding: {embedding}\n", encoding="utf-8")
    return Runtime(load(path, {}), Addresses())


def index(provider: str, model: str, dimensions: int) -> SearchIndex:
    return SearchIndex(id=1, provider=provider, model=model, dimensions=dimensions, status="active")


@pytest.mark.parametrize(
    ("embedding", "model"),
    [
        ("{}", "all-MiniLM-L6-v2"),
        ("{model: sentence-transformers/all-MiniLM-L6-v2}", "sentence-transformers/all-MiniLM-L6-v2"),
        ("{provider: hashing}", "hashing-384"),
        ("{provider: hashing, dimensions: 64}", "hashing-64"),
        ("{modelPath: ./models/bge-small, dimensions: 512}", "bge-small-512"),
        ("{provider: ollama}", "ollama/nomic-embed-text:latest"),
        ("{provider: openai, apiKey: k, dimensions: 512}", "openai/text-embedding-3-small-512"),
    ],
)
def test_the_name_vectors_are_kept_under_is_known_without_a_model(
    tmp_path: Path, embedding: str, model: str
) -> None:
    """The first five stand in existing stores: another name would embed everything again."""
    runtime = runtime_with(tmp_path, embedding)
    assert runtime.model == model
    assert "embedder" not in runtime.__dict__


@pytest.mark.req("001-028", "003-014")
def test_all_that_is_configured_reaches_the_provider(tmp_path: Path) -> None:
    runtime = runtime_with(
        tmp_path,
        "{provider: openai, model: bge, dimensions: 8, baseUrl: 'http://here/v1', apiKey: k-1, timeout: 7, "
        "batchSize: 5, maxTokens: 99}",
    )
    o = runtime.embedding_options
    assert (
        o.provider,
        o.model,
        o.dimensions,
        o.base_url,
        o.api_key,
        o.timeout,
        o.batch_size,
        o.max_tokens,
    ) == (
        "openai",
        "bge",
        8,
        "http://here/v1",
        "k-1",
        7,
        5,
        99,
    )


def test_an_index_is_asked_with_the_model_it_was_made_with(tmp_path: Path) -> None:
    with FakeOpenAI() as server:
        runtime = runtime_with(
            tmp_path,
            f"{{provider: openai, model: text-embedding-3-large, baseUrl: '{server.address}/v1', apiKey: {KEY}}}",
        )
        now = index("openai", "openai/text-embedding-3-large", 3072)
        assert runtime.embedder_of(now) is runtime.embedder
        old = index("openai", "openai/text-embedding-3-small", 1536)
        assert runtime.embedder_of(old).embed_query("one").shape == (1536,)
        assert server.requests()[-1].json["model"] == "text-embedding-3-small"
        assert runtime.embedder_of(old) is runtime.embedder_of(old)


def test_an_index_of_the_previous_provider_is_still_asked(tmp_path: Path) -> None:
    with FakeOpenAI() as server:
        runtime = runtime_with(
            tmp_path, f"{{previous: {{provider: openai, baseUrl: '{server.address}/v1', apiKey: {KEY}}}}}"
        )
        old = index("openai", "openai/text-embedding-3-small", 1536)
        assert runtime.embedder_of(old).embed_query("one").shape == (1536,)
        assert runtime.model == "all-MiniLM-L6-v2"


def test_an_index_nobody_describes_says_what_to_write(tmp_path: Path) -> None:
    runtime = runtime_with(tmp_path, "{}")
    with pytest.raises(
        EmbedderRefused, match="openai/text-embedding-3-small of the provider openai"
    ) as caught:
        runtime.embedder_of(index("openai", "openai/text-embedding-3-small", 1536))
    assert "embedding.previous" in caught.value.fix
    assert runtime.embedder_of(index("hashing", "hashing-64", 64)).dimensions == 64


@pytest.mark.parametrize(
    ("embedding", "texts"),
    [
        ("{}", 64),
        ("{batchSize: 500}", 64),
        ("{provider: hashing}", 500),
        ("{provider: openai, apiKey: k}", 256),
        ("{provider: openai, apiKey: k, batchSize: 10}", 64),
    ],
)
def test_a_message_carries_what_one_call_may_carry(tmp_path: Path, embedding: str, texts: int) -> None:
    assert steps.weights(runtime_with(tmp_path, embedding).rag)[Stage.CHUNKED] == texts
