"""What services say they charged, where they say it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import open_embedder
from tests.fakes.embedding_words import count_tokens
from tests.fakes.messages import Answer
from tests.fakes.ollama_server import FakeOllama
from tests.fakes.openai_server import KEY, FakeOpenAI
from tests.fakes.server import ScriptedServer

TEXTS = ["the quay is closed", "two bollards"]
TOKENS = sum(map(count_tokens, TEXTS))


def used(embedder: Embedder) -> Any:
    return embedder.used_tokens  # type: ignore[attr-defined]


def test_openai_tells_its_tokens() -> None:
    with FakeOpenAI() as server:
        embedder = open_embedder(
            EmbeddingOptions(provider="openai", base_url=f"{server.address}/v1", api_key=KEY)
        )
        assert used(embedder) is None
        embedder.embed_documents(TEXTS)
        assert used(embedder) == TOKENS < sum(map(embedder.count_tokens, TEXTS))
        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(used(embedder)))
        thread.start()
        thread.join()
        assert elsewhere == [None]
        embedder.embed_query(TEXTS[0])
        assert used(embedder) == count_tokens(TEXTS[0])


def test_an_ollama_that_does_not_tell_is_counted_by_us() -> None:
    with FakeOllama() as server:
        embedder = open_embedder(EmbeddingOptions(provider="ollama", base_url=server.address))
        embedder.embed_documents(TEXTS)
        assert used(embedder) is None


@pytest.mark.parametrize(("said", "tokens"), [(12, 12), (None, None), ("12", None), (-3, None), (0, None)])
def test_only_a_number_of_tokens_is_believed(said: Any, tokens: int | None) -> None:
    body = {"embeddings": [[1.0]], "prompt_eval_count": said}
    with ScriptedServer(lambda _: Answer(json=body)) as server:
        embedder = open_embedder(EmbeddingOptions(provider="ollama", base_url=server.address))
        embedder.embed_query("one")
        assert used(embedder) == tokens
