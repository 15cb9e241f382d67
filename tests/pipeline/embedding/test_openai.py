"""OpenAI and servers that speak its language, against a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import ATTEMPTS, embed_checked, open_embedder
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.embedding.providers import remote
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    TextRejected,
    TextTooLong,
)
from tests.fakes.embedding_words import word_vector
from tests.fakes.messages import Answer
from tests.fakes.openai_server import KEY, FakeOpenAI, problem
from tests.fakes.server import Fault, ScriptedServer

SMALL = "text-embedding-3-small"


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as made:
        yield made


def options(server: FakeOpenAI) -> EmbeddingOptions:
    return EmbeddingOptions(provider="openai", base_url=f"{server.address}/v1", api_key=KEY, timeout=20)


def opened(server: FakeOpenAI, model: str = "", dimensions: int | None = None) -> Embedder:
    return open_embedder(replace(options(server), model=model, dimensions=dimensions))


@pytest.mark.req("003-011", "001-078")
@pytest.mark.parametrize(
    ("model", "dimensions"),
    [("", 1536), (SMALL, 1536), ("text-embedding-3-large", 3072), ("text-embedding-ada-002", 1536)],
)
def test_the_documented_models(server: FakeOpenAI, model: str, dimensions: int) -> None:
    embedder = opened(server, model)
    assert (embedder.model, embedder.dimensions) == (model or SMALL, dimensions)
    assert embedder.embed_documents(["one", "two"]).shape == (2, dimensions)
    sent = server.requests()[0].json
    assert sent == {"model": model or SMALL, "input": ["one", "two"]}


@pytest.mark.req("003-011")
def test_shorter_vectors_of_the_third_generation(server: FakeOpenAI) -> None:
    embedder = opened(server, "text-embedding-3-large", 256)
    assert embedder.embed_query("one").shape == (256,)
    assert server.requests()[0].json["dimensions"] == 256


@pytest.mark.parametrize(
    ("model", "dimensions"),
    [("text-embedding-ada-002", 512), (SMALL, 1537), ("text-embedding-3-large", 3073)],
)
def test_lengths_a_model_does_not_give_are_refused_before_a_call(
    server: FakeOpenAI, model: str, dimensions: int
) -> None:
    with pytest.raises(ConfigurationError, match="dimensions"):
        opened(server, model, dimensions)


@pytest.mark.req("003-011", "003-004")
def test_a_server_of_ones_own_needs_no_key_and_any_model_with_its_length() -> None:
    with FakeOpenAI(key="", models={"bge-small": 384}) as local:
        mine = replace(options(local), model="bge-small", dimensions=384, api_key="")
        assert open_embedder(mine).embed_query("one").shape == (384,)
        assert "dimensions" not in local.requests()[0].json
        with pytest.raises(ConfigurationError, match=r"dimensions.*length of the vectors of bge-small"):
            open_embedder(replace(mine, dimensions=None))


def test_the_public_service_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match="key of OpenAI") as caught:
        open_embedder(EmbeddingOptions(provider="openai"))
    assert "OPENAI_API_KEY" in caught.value.fix


@pytest.mark.req("003-006")
def test_a_call_carries_at_most_2048_texts_and_300000_tokens(server: FakeOpenAI) -> None:
    limits = opened(server).limits
    assert (limits.texts, limits.tokens, limits.empty) == (256, 300_000, False)
    assert open_embedder(replace(options(server), batch_size=2048)).limits.texts == 2048
    with pytest.raises(ConfigurationError, match=r"batchSize.*at most 2048"):
        open_embedder(replace(options(server), batch_size=2049))


def test_answers_in_any_order_reach_their_text(server: FakeOpenAI) -> None:
    texts = [f"text number{n}" for n in range(9)]
    assert server.shuffled
    expected = np.array([word_vector(text, 1536, salt=SMALL) for text in texts])
    assert np.allclose(opened(server).embed_documents(texts), expected, atol=1e-6)


@pytest.mark.parametrize(
    "items",
    [
        [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [2]}],
        [{"index": 1, "embedding": [1]}, {"index": 2, "embedding": [2]}],
        [{"index": 0, "embedding": [1]}, {"embedding": [2]}],
        [{"index": 0, "embedding": [1]}, 5],
        [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}],
        [{"index": 0, "embedding": "not base64!"}],
        [{"index": 0, "embedding": "AAA="}],
        [{"index": 0, "embedding": {"values": [1]}}],
        {"0": [1]},
        None,
    ],
    ids=[
        "twice",
        "gap",
        "half",
        "no-item",
        "ragged",
        "no-base64",
        "half-a-float",
        "mapping",
        "no-list",
        "none",
    ],
)
def test_an_answer_in_another_form_may_be_better_later(items: object) -> None:
    with ScriptedServer(lambda _: Answer(json={"data": items})) as odd:
        embedder = open_embedder(EmbeddingOptions(provider="openai", base_url=odd.address))
        with pytest.raises(EmbedderUnavailable, match="without embeddings"):
            embedder.embed_documents(["one", "two"])


def test_without_indexes_the_order_is_the_order() -> None:
    body = {"data": [{"embedding": [1, 0]}, {"embedding": [0, 1]}]}
    with ScriptedServer(lambda _: Answer(json=body)) as plain:
        embedder = open_embedder(EmbeddingOptions(provider="openai", base_url=plain.address))
        assert embedder.embed_documents(["one", "two"]).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("known", [True, False], ids=["base64", "numbers"])
def test_packed_numbers_are_read_and_plain_ones_too(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public service is asked for base64, a server of one's own for numbers."""
    with FakeOpenAI(base64_known=known) as server:
        public = replace(PROVIDER_FACTS["openai"], base_url=f"{server.address}/v1")
        monkeypatch.setattr(remote, "PROVIDER_FACTS", {**PROVIDER_FACTS, "openai": public})
        packed = open_embedder(EmbeddingOptions(provider="openai", api_key=KEY)).embed_documents(
            ["one", "two"]
        )
        assert server.requests()[0].json["encoding_format"] == "base64"
        plain = opened(server).embed_documents(["one", "two"])
        assert "encoding_format" not in server.requests()[1].json
    assert np.allclose(packed, plain, atol=1e-6)


def test_a_missing_vector_is_an_error_and_no_shift(server: FakeOpenAI) -> None:
    server.change = lambda vectors: vectors[:-1]
    attempts = ATTEMPTS.copy(sleep=lambda _seconds: None)
    with pytest.raises(AnswerMalformed):
        embed_checked(opened(server), ["one", "two", "three"], attempts=attempts)


def test_a_wrong_key_is_refused_without_showing_it(server: FakeOpenAI) -> None:
    with pytest.raises(EmbedderRefused, match="does not accept the key") as caught:
        open_embedder(replace(options(server), api_key="sk-wrong")).embed_query("one")
    assert "sk-wrong" not in str(caught.value)


def test_a_used_up_quota_is_no_matter_of_waiting(server: FakeOpenAI) -> None:
    body = problem(429, "You exceeded your current quota", code="insufficient_quota").content()
    server.faults.next(Fault.status(429, body=body, content_type="application/json"))
    with pytest.raises(EmbedderRefused, match="balance"):
        opened(server).embed_query("one")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "4"}, 4.0),
        ({"retry-after-ms": "1200"}, 1.2),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({}, None),
    ],
)
def test_too_many_requests_wait_as_long_as_the_service_says(
    server: FakeOpenAI, headers: dict[str, str], wait: float | None
) -> None:
    body = problem(429, "Rate limit reached", code="rate_limit_exceeded").content()
    server.faults.next(Fault.status(429, headers=headers, body=body, content_type="application/json"))
    with pytest.raises(EmbedderUnavailable) as caught:
        opened(server).embed_query("one")
    assert caught.value.retry_after == wait


def test_one_refused_text_does_not_take_the_others_with_it(server: FakeOpenAI) -> None:
    server.refused_words = {"number3"}
    texts = [f"text number{n}" for n in range(6)]
    with pytest.raises(TextRejected) as caught:
        embed_checked(opened(server), texts)
    assert caught.value.indexes == (3,)  # type: ignore[attr-defined]
    assert "number3" not in str(caught.value)


def test_a_text_the_service_finds_too_long_says_so() -> None:
    with FakeOpenAI(tokens_per_text=50) as server:
        embedder = opened(server)
        with pytest.raises(TextTooLong, match="too long for text-embedding-3-small"):
            embedder.embed_documents(["word " * 60])


def test_a_nul_is_not_the_end_of_a_text(server: FakeOpenAI) -> None:
    opened(server).embed_documents(["before\0after"])
    assert server.requests()[0].json["input"] == ["before after"]
