"""Gemini's embeddings through the real SDK, against a service of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import TextsRejected, embed_checked, embed_query_checked, open_embedder
from pipeline.embedding.providers.gemini import MOST_BYTES
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    TextRejected,
    TextTooLong,
)
from tests.fakes.gemini_embedding import NATIVE, FakeGeminiEmbedding


@pytest.fixture
def fake() -> Iterator[FakeGeminiEmbedding]:
    with FakeGeminiEmbedding() as started:
        yield started


def opened(fake: FakeGeminiEmbedding, model: str = "", dimensions: int | None = None) -> Embedder:
    return open_embedder(
        EmbeddingOptions(
            provider="gemini", model=model, dimensions=dimensions, base_url=fake.address, api_key=fake.key
        )
    )


def words(count: int) -> list[str]:
    return [f"text number{n}" for n in range(count)]


@pytest.mark.req("000-018", "000-019")
def test_the_default_is_gemini_embedding_001_at_768(fake: FakeGeminiEmbedding) -> None:
    embedder = opened(fake)
    assert (embedder.model, embedder.dimensions) == ("gemini-embedding-001", 768)
    assert embed_checked(embedder, ["one"]).shape == (1, 768)
    seen = fake.requests()[0]
    assert seen.path.endswith("/models/gemini-embedding-001:batchEmbedContents")
    assert seen.json["requests"][0]["outputDimensionality"] == 768
    assert "google-genai-sdk" in seen.headers.get("x-goog-api-client", "")


@pytest.mark.req("000-019")
@pytest.mark.parametrize("dimensions", [128, 768, 1536, 3072])
def test_a_shorter_vector_is_the_beginning_of_the_whole_brought_to_length_one(
    fake: FakeGeminiEmbedding, dimensions: int
) -> None:
    left: list[float] = []

    def watch(vectors: list[list[float]]) -> list[list[float]]:
        left.append(float(np.linalg.norm(vectors[0])))
        return vectors

    fake.change = watch
    short = opened(fake, dimensions=dimensions).embed_documents(["some words"])[0]
    whole = opened(fake, dimensions=NATIVE).embed_documents(["some words"])[0]
    assert np.allclose(short, whole[:dimensions] / np.linalg.norm(whole[:dimensions]), atol=1e-6)
    assert left[0] == pytest.approx(1.0) if dimensions == NATIVE else left[0] < 0.99


@pytest.mark.parametrize(("dimensions", "known"), [(127, "128 to 3072"), (3073, "128 to 3072")])
def test_dimensions_that_gemini_does_not_give_are_refused(
    fake: FakeGeminiEmbedding, dimensions: int, known: str
) -> None:
    with pytest.raises(ConfigurationError, match=known):
        opened(fake, dimensions=dimensions)


def test_a_model_not_known_here_needs_its_dimensions(fake: FakeGeminiEmbedding) -> None:
    with pytest.raises(ConfigurationError, match="embedding-9") as caught:
        opened(fake, "embedding-9")
    assert "embedding.dimensions" in caught.value.message
    assert "gemini-embedding-001" in caught.value.fix
    assert opened(fake, "embedding-9", 640).dimensions == 640
    with pytest.raises(EmbedderRefused, match="no such model"):
        opened(fake, "embedding-9", 640).embed_documents(["one"])


def test_a_name_may_have_googles_prefix(fake: FakeGeminiEmbedding) -> None:
    assert opened(fake, "models/gemini-embedding-001").model == "gemini-embedding-001"


@pytest.mark.parametrize("key", ["", "  "])
def test_no_key_names_the_variable(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_embedder(EmbeddingOptions(provider="gemini", api_key=key))
    assert "GEMINI_API_KEY" in caught.value.fix


@pytest.mark.req("001-020")
def test_documents_and_questions_are_encoded_for_retrieval(fake: FakeGeminiEmbedding) -> None:
    embedder = opened(fake)
    document, question = embedder.embed_documents(["kestrel"])[0], embedder.embed_query("kestrel")
    tasks = [seen.json["requests"][0]["taskType"] for seen in fake.requests()]
    assert tasks == ["RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"]
    assert 0.5 < float(document @ question) < 0.999


@pytest.mark.req("001-020")
def test_the_newer_model_is_told_the_task_by_a_prefix(fake: FakeGeminiEmbedding) -> None:
    """It gives the same vector whatever the task type, and was trained with these words."""
    embedder = opened(fake, "gemini-embedding-2")
    embedder.embed_documents(["kestrel"])
    embedder.embed_query("kestrel")
    sent = [seen.json["requests"][0] for seen in fake.requests()]
    assert [one["content"]["parts"][0]["text"] for one in sent] == [
        "title: none | text: kestrel",
        "task: search result | query: kestrel",
    ]
    assert not any("taskType" in one for one in sent)


def test_the_newer_model_gives_each_text_a_vector_of_its_own(fake: FakeGeminiEmbedding) -> None:
    """The client makes one content of a list of strings, and the service one vector of it."""
    embedder = opened(fake, "gemini-embedding-2")
    vectors = embed_checked(embedder, words(7))
    assert vectors.shape == (7, 768)
    assert len(fake.requests()) == 1
    for n, text in enumerate(words(7)):
        assert int(np.argmax(vectors @ embedder.embed_query(text))) == n


def test_the_client_does_make_one_vector_of_a_list_of_strings(fake: FakeGeminiEmbedding) -> None:
    """What the test above guards against; should it fail, the client has changed and the guard may go."""
    from pipeline.embedding.providers.gemini import open_client

    client = open_client(fake.key, fake.address)
    found = client.models.embed_content(model="gemini-embedding-2", contents=["one", "two"])
    assert len(found.embeddings or ()) == 1


def test_a_call_has_at_most_100_texts(fake: FakeGeminiEmbedding) -> None:
    assert embed_checked(opened(fake), words(250)).shape == (250, 768)
    assert [len(seen.json["requests"]) for seen in fake.requests()] == [100, 100, 50]
    with pytest.raises(TextRejected):
        opened(fake).embed_documents(words(101))


def test_a_call_stays_below_four_mebibytes(fake: FakeGeminiEmbedding) -> None:
    """Within the tokens of a text no call gets so large; a model that reads more would."""
    embedder = open_embedder(
        EmbeddingOptions(
            provider="gemini", base_url=fake.address, api_key=fake.key, max_tokens=1_000_000, dimensions=128
        )
    )
    texts = [f"{n} " + "ü" * 300_000 for n in range(5)]
    assert len(embed_checked(embedder, texts)) == 5
    sizes = [len(seen.body) for seen in fake.requests()]
    assert len(sizes) == 3
    assert max(sizes) <= MOST_BYTES


def test_no_text_reaches_the_service_longer_than_it_reads(fake: FakeGeminiEmbedding) -> None:
    embedder = opened(fake)
    texts = [
        "plain words of a ticket " * 1000,
        "0x7fff " * 2000,
        "日本語" * 1000,
        '{"a":[1,2]}' * 500,
        "xqzj" * 2500,
    ]
    vectors = embed_checked(embedder, texts)
    assert fake.cut == 0
    assert fake.usage.texts > len(texts)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)
    with pytest.raises(TextTooLong) as caught:
        embedder.embed_documents(texts[:1])
    assert "ticket" not in str(caught.value)
    assert fake.cut == 0


def test_a_question_of_ten_thousand_characters_is_asked_in_parts(fake: FakeGeminiEmbedding) -> None:
    vector = embed_query_checked(opened(fake), "why does the login fail after the update? " * 240)
    assert vector.shape == (768,)
    assert fake.cut == 0
    assert len(fake.requests()) > 1


def test_one_empty_text_does_not_cost_its_neighbours(fake: FakeGeminiEmbedding) -> None:
    """The service refuses the whole batch for it."""
    with pytest.raises(TextsRejected) as caught:
        embed_checked(opened(fake), ["one", " ", "two"])
    assert caught.value.indexes == (1,)
    assert len(fake.requests()) == 1
    with pytest.raises(TextRejected):
        opened(fake).embed_documents(["one", " "])


@pytest.mark.parametrize("told", [True, False])
def test_a_spent_minute_says_when_to_come_back(fake: FakeGeminiEmbedding, told: bool) -> None:
    fake.texts_per_minute, fake.says_when = 4, told
    embedder = opened(fake)
    embedder.embed_documents(words(3))
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_documents(words(2))
    wait = caught.value.retry_after
    assert (wait is None) is not told
    if wait is not None:
        assert 0 < wait <= 60
    assert fake.usage.texts == 3


def test_after_the_wait_the_service_answers(fake: FakeGeminiEmbedding) -> None:
    fake.texts_per_minute, fake.window = 3, 0.4
    embedder = opened(fake)
    embedder.embed_documents(words(3))
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_documents(words(3))
    time.sleep(caught.value.retry_after or 0.0)
    assert embedder.embed_documents(words(3)).shape == (3, 768)


def test_a_spent_day_is_not_asked_again_soon(fake: FakeGeminiEmbedding) -> None:
    fake.texts_per_day = 2
    with pytest.raises(EmbedderUnavailable, match="day") as caught:
        opened(fake).embed_documents(words(3))
    assert (caught.value.retry_after or 0) >= 600


def test_one_client_serves_all_calls_of_all_threads(fake: FakeGeminiEmbedding) -> None:
    embedder = opened(fake)
    with ThreadPoolExecutor(4) as pool:
        vectors = list(pool.map(embedder.embed_query, ["same text"] * 8))
        clients = set(pool.map(lambda _: id(embedder._client.get()), range(8)))  # type: ignore[attr-defined]
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors)
    assert len(clients) == 1


def test_nothing_heavy_is_imported_before_the_first_call() -> None:
    code = (
        "import json, sys; from pipeline.embedding import EmbeddingOptions; from pipeline.embedding.calls import open_embedder\n"
        "embedder = open_embedder(EmbeddingOptions(provider='gemini', api_key='k'))\n"
        "embedder.count_tokens('some words')\n"
        "print(json.dumps(sorted({'google', 'httpx2', 'pydantic'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
