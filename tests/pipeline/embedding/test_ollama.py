"""Ollama, against a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import open_embedder
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    TextTooLong,
)
from tests.fakes.messages import Answer
from tests.fakes.ollama_server import FakeOllama
from tests.fakes.server import Fault, ScriptedServer


@pytest.fixture
def server() -> Iterator[FakeOllama]:
    with FakeOllama() as made:
        yield made


def opened(server: FakeOllama | ScriptedServer, model: str = "", dimensions: int | None = None) -> Embedder:
    return open_embedder(
        EmbeddingOptions(
            provider="ollama", base_url=server.address, model=model, dimensions=dimensions, timeout=20
        )
    )


@pytest.mark.req("003-012", "003-004")
@pytest.mark.parametrize(
    ("model", "dimensions", "tokens"),
    [
        ("nomic-embed-text", 768, 8192),
        ("mxbai-embed-large", 1024, 512),
        ("all-minilm", 384, 256),
        ("bge-m3", 1024, 8192),
    ],
)
def test_the_documented_models(server: FakeOllama, model: str, dimensions: int, tokens: int) -> None:
    embedder = opened(server, model)
    assert (embedder.model, embedder.dimensions) == (f"{model}:latest", dimensions)
    assert embedder.embed_documents(["one", "two"]).shape == (2, dimensions)
    # Room is left for what stands before each text, and for the model's own marks.
    assert tokens - 20 < embedder.limits.tokens_per_text < tokens
    assert embedder.limits.empty is False


@pytest.mark.req("003-012")
def test_the_documented_address_and_timeout() -> None:
    facts = PROVIDER_FACTS["ollama"]
    assert (facts.base_url, facts.timeout, facts.model) == (
        "http://localhost:11434",
        60.0,
        "nomic-embed-text",
    )


def test_a_bare_name_means_latest_and_a_tag_is_kept(server: FakeOllama) -> None:
    server.pulled["nomic-embed-text:v1.5"] = (768, 8192)
    assert opened(server, "nomic-embed-text:v1.5").model == "nomic-embed-text:v1.5"
    assert opened(server, "nomic-embed-text:v1.5").embed_query("one").shape == (768,)
    assert [seen.json["model"] for seen in server.requests()] == ["nomic-embed-text:v1.5"]


@pytest.mark.parametrize(
    ("model", "document", "query"),
    [
        ("nomic-embed-text", "search_document: a", "search_query: a"),
        ("mxbai-embed-large", "a", "Represent this sentence for searching relevant passages: a"),
        ("all-minilm", "a", "a"),
        ("bge-m3", "a", "a"),
    ],
)
def test_questions_and_documents_are_marked_as_the_model_learned_it(
    server: FakeOllama, model: str, document: str, query: str
) -> None:
    embedder = opened(server, model)
    embedder.embed_documents(["a"])
    embedder.embed_query("a")
    assert [seen.json["input"] for seen in server.requests()] == [[document], [query]]


@pytest.mark.req("003-014", "003-006")
def test_many_texts_are_one_call_that_cuts_nothing(server: FakeOllama) -> None:
    opened(server, "all-minilm").embed_documents([f"text {n}" for n in range(20)])
    (seen,) = server.requests()
    assert (seen.path, seen.json["truncate"], len(seen.json["input"])) == ("/api/embed", False, 20)


def test_a_text_that_is_too_long_is_not_cut_in_silence(server: FakeOllama) -> None:
    with pytest.raises(TextTooLong, match="too long for all-minilm:latest"):
        opened(server, "all-minilm").embed_documents(["word " * 300])
    assert server.usage.texts == 0


@pytest.mark.req("003-012")
def test_a_model_that_was_not_pulled_says_what_to_do(server: FakeOllama) -> None:
    with pytest.raises(EmbedderRefused, match="no embedding model snowflake:latest") as caught:
        opened(server, "snowflake", 1024).embed_query("one")
    assert caught.value.fix == "ollama pull snowflake:latest"


def test_a_model_that_is_not_known_here_needs_its_length(server: FakeOllama) -> None:
    with pytest.raises(ConfigurationError, match="length of the vectors of snowflake"):
        opened(server, "snowflake")
    server.pulled["snowflake:latest"] = (1024, 512)
    assert opened(server, "snowflake", 1024).embed_query("one").shape == (1024,)


def test_an_address_that_is_no_ollama_is_refused() -> None:
    with (
        ScriptedServer(lambda _: Answer(status=404, body="404 page not found")) as other,
        pytest.raises(EmbedderRefused, match="there is no embedding API") as caught,
    ):
        opened(other).embed_query("one")
    assert "baseUrl" in caught.value.fix


@pytest.mark.parametrize(
    "body", [[1], {"embeddings": None}, {"embeddings": [["x"]]}, {"embeddings": []}, {"embeddings": [1]}, {}]
)
def test_an_answer_in_another_form_may_be_better_later(body: object) -> None:
    with ScriptedServer(lambda _: Answer(json=body)) as odd:
        embedder = opened(odd)
        with pytest.raises(EmbedderUnavailable, match="without embeddings"):
            embedder.embed_documents(["one"])
        with pytest.raises(EmbedderUnavailable, match="without embeddings"):
            embedder.embed_query("one")


@pytest.mark.parametrize("rows", [[], [[1.0], [2.0]]])
def test_a_question_has_one_vector(rows: list[list[float]]) -> None:
    with ScriptedServer(lambda _: Answer(json={"embeddings": rows})) as odd:
        embedder = opened(odd)
        with pytest.raises(EmbedderUnavailable, match="without embeddings"):
            embedder.embed_query("one")


def test_a_crash_of_its_runner_may_work_later(server: FakeOllama) -> None:
    said = b'{"error":"llama runner process has terminated: exit status 2"}'
    server.faults.next(Fault.status(500, body=said, content_type="application/json"))
    embedder = opened(server)
    with pytest.raises(EmbedderUnavailable, match="answered 500"):
        embedder.embed_query("one")
    assert embedder.embed_query("one").shape == (768,)


def test_a_limit_of_ones_own_for_a_models_tokens(server: FakeOllama) -> None:
    options = EmbeddingOptions(provider="ollama", base_url=server.address, model="all-minilm", max_tokens=128)
    assert open_embedder(options).limits.tokens_per_text == 126
    assert open_embedder(replace(options, max_tokens=None)).limits.tokens_per_text == 254
