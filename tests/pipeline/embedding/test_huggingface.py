"""HuggingFace's Inference API, against a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import ATTEMPTS, embed_checked, open_embedder
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    TextRejected,
    TextTooLong,
)
from tests.fakes.huggingface_server import TOKEN, FakeHuggingFace
from tests.fakes.messages import Answer
from tests.fakes.server import ScriptedServer

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def server() -> Iterator[FakeHuggingFace]:
    with FakeHuggingFace() as made:
        yield made


def options(server: FakeHuggingFace | ScriptedServer) -> EmbeddingOptions:
    return EmbeddingOptions(provider="huggingface", base_url=server.address, api_key=TOKEN, timeout=20)


def opened(server: FakeHuggingFace, model: str = "", dimensions: int | None = None) -> Embedder:
    return open_embedder(replace(options(server), model=model, dimensions=dimensions))


@pytest.mark.req("001-078")
def test_texts_become_vectors_of_length_one(server: FakeHuggingFace) -> None:
    embedder = opened(server)
    vectors = embedder.embed_documents(["one", "two"])
    assert (embedder.model, vectors.shape) == (MINILM, (2, 384))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-6)
    (seen,) = server.requests()
    assert seen.path == f"/models/{MINILM}/pipeline/feature-extraction"
    assert seen.json == {"inputs": ["one", "two"], "normalize": True, "truncate": False}


def test_a_question_to_an_e5_model_is_marked_as_one(server: FakeHuggingFace) -> None:
    embedder = opened(server, "intfloat/multilingual-e5-small")
    embedder.embed_documents(["a"])
    embedder.embed_query("a")
    assert [seen.json["inputs"] for seen in server.requests()] == [["passage: a"], ["query: a"]]


def test_a_model_that_loads_says_for_how_long(server: FakeHuggingFace) -> None:
    server.loading = 23.5
    with pytest.raises(EmbedderUnavailable, match="answered 503") as caught:
        opened(server).embed_query("one")
    assert caught.value.retry_after == 23.5


def test_a_vector_per_token_is_refused_and_not_guessed_at(server: FakeHuggingFace) -> None:
    with pytest.raises(EmbedderRefused, match="a vector per token") as caught:
        opened(server, "bert-base-uncased", 768).embed_documents(["one two", "three"])
    assert "sentence-transformers" in caught.value.fix


def test_a_text_that_is_too_long_is_not_cut_in_silence(server: FakeHuggingFace) -> None:
    with pytest.raises(TextTooLong):
        opened(server).embed_documents(["word " * 300])
    assert server.usage.texts == 0


def test_a_server_that_takes_fewer_texts_is_served_in_smaller_calls(server: FakeHuggingFace) -> None:
    with pytest.raises(ConfigurationError, match=r"batchSize.*at most 32"):
        open_embedder(replace(options(server), batch_size=33))
    embedder = opened(server)
    texts = [f"text number{n}" for n in range(40)]
    with pytest.raises(TextRejected):
        embedder.embed_documents(texts)
    assert embed_checked(embedder, texts).shape == (40, 384)


def test_a_model_it_does_not_serve_is_named(server: FakeHuggingFace) -> None:
    with pytest.raises(EmbedderRefused, match="no embedding model nobody/nothing"):
        opened(server, "nobody/nothing", 384).embed_query("one")


def test_a_wrong_key_is_refused_without_showing_it(server: FakeHuggingFace) -> None:
    with pytest.raises(EmbedderRefused, match="does not accept the key") as caught:
        open_embedder(replace(options(server), api_key="hf_wrong")).embed_query("one")
    assert "hf_wrong" not in str(caught.value)


def test_the_router_needs_a_key_and_an_endpoint_of_ones_own_may_do_without() -> None:
    with pytest.raises(ConfigurationError, match="key of HuggingFace") as caught:
        open_embedder(EmbeddingOptions(provider="huggingface"))
    assert "HF_TOKEN" in caught.value.fix
    with FakeHuggingFace(token="") as own:
        assert open_embedder(replace(options(own), api_key="")).embed_query("one").shape == (384,)


def test_a_missing_vector_is_an_error_and_no_shift(server: FakeHuggingFace) -> None:
    server.change = lambda vectors: vectors[:-1]
    attempts = ATTEMPTS.copy(sleep=lambda _seconds: None)
    with pytest.raises(AnswerMalformed):
        embed_checked(opened(server), ["one", "two", "three"], attempts=attempts)


@pytest.mark.parametrize("body", [{"embeddings": []}, [[1.0], [1.0, 2.0]], [["a"]], "text"])
def test_an_answer_in_another_form_may_be_better_later(body: object) -> None:
    with ScriptedServer(lambda _: Answer(json=body)) as odd:
        embedder = open_embedder(options(odd))
        with pytest.raises(EmbedderUnavailable, match="without embeddings"):
            embedder.embed_documents(["one", "two"])
