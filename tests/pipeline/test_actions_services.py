"""The actions with OpenAI and with Ollama: HTTP servers of ours that answer as these do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import PROVIDERS, open_embedder
from tests.fakes.faults import Fault
from tests.fakes.ollama_server import FakeOllama
from tests.fakes.openai_server import KEY, FakeOpenAI
from tests.pipeline.acting import TEXTS, Registry, registry_of
from tests.pipeline.yaml_engine import Engine


@pytest.fixture
def openai() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
def ollama() -> Iterator[FakeOllama]:
    with FakeOllama() as fake:
        yield fake


def on_openai(fake: FakeOpenAI, key: str = KEY, **rag: Any) -> Registry:
    settings = {"rag": {"openai_base_url": f"{fake.address}/v1", **rag}}
    return registry_of(SimpleNamespace(settings=settings, secrets={"OPENAI_API_KEY": key}))


def on_ollama(address: str, **rag: Any) -> Registry:
    return registry_of(
        SimpleNamespace(
            settings={
                "rag": {
                    "embedding_provider": "ollama",
                    "embedding_model": "nomic-embed-text",
                    "ollama_base_url": address,
                    "ollama_timeout": 20.0,
                    **rag,
                }
            }
        )
    )


@pytest.mark.req("003-001", "003-004", "003-015", "003-031")
def test_openai_custom_base_url(openai: FakeOpenAI) -> None:
    """With no setting but the address: the provider is openai and the model its small one."""
    actions = on_openai(openai)
    assert openai.requests() == []  # nothing is opened by registering
    answer = actions["embedding.create"]({}, TEXTS[0])
    assert (answer["model"], answer["dimensions"]) == ("text-embedding-3-small", 1536)
    assert [seen.path for seen in openai.requests()] == ["/v1/embeddings"]


@pytest.mark.req("003-001", "003-006", "003-015")
def test_openai_models_lengths_and_batches(openai: FakeOpenAI) -> None:
    actions = on_openai(openai, embedding_model="text-embedding-3-large")
    assert actions["embedding.create"]({}, TEXTS[0])["dimensions"] == 3072
    for model, dimensions in (("text-embedding-3-small", 1536), ("text-embedding-ada-002", 1536)):
        answer = actions["embedding.create"]({}, TEXTS[0], model=model)
        assert (answer["model"], answer["dimensions"]) == (model, dimensions)
    assert actions["embedding.create"]({}, TEXTS[0], dimensions=256)["dimensions"] == 256
    before = len(openai.requests())
    batch = actions["embedding.create"]({}, TEXTS, batch=True)
    assert [len(vector) for vector in batch["embeddings"]] == [3072] * 3
    assert len(openai.requests()) == before + 1
    assert batch["embeddings"][1] == actions["embedding.create"]({}, TEXTS[1])["embedding"]


@pytest.mark.req("003-026", "003-030")
def test_vectors_of_two_openai_models_of_one_length_do_not_meet(openai: FakeOpenAI) -> None:
    actions = on_openai(openai)
    actions["vector.store"]({}, TEXTS)
    answer = actions["vector.query"]({}, "tide", model="text-embedding-ada-002")
    assert "holds vectors of text-embedding-3-small, these are of text-embedding-ada-002" in answer["error"]
    assert actions["vector.query"]({}, "when does the pilot wait")["results"][0]["text"] == TEXTS[0]


@pytest.mark.req("003-025", "003-028", "003-038")
def test_embedding_create_handles_api_error(openai: FakeOpenAI) -> None:
    """A wrong key, an unknown model, a server in trouble: all are answers, and none shows the key or the text."""
    wrong = "sk-wrong-9876543210"
    answers = [
        on_openai(openai, key=wrong)["embedding.create"]({}, TEXTS[0]),
        on_openai(openai)["embedding.create"]({}, TEXTS[0], model="text-embedding-9", dimensions=8),
        on_openai(openai, key="${OPENAI_API_KEY}", openai_base_url="")["embedding.create"]({}, TEXTS[0]),
        on_openai(openai)["embedding.create"]({}, ["", TEXTS[0]]),
    ]
    openai.faults.next(Fault.status(401, body=f"{KEY} {TEXTS[0]}"))
    answers.append(on_openai(openai)["vector.store"]({}, TEXTS))
    for answer in answers:
        assert set(answer) == {"error", "success"}
        assert answer["success"] is False
        for secret in (wrong, KEY, TEXTS[0]):
            assert secret not in answer["error"]
    assert "401" in answers[0]["error"]
    assert "text-embedding-9" in answers[1]["error"]
    assert "OPENAI_API_KEY" in answers[2]["error"] or "key" in answers[2]["error"]


@pytest.mark.req("003-012", "003-032")
def test_ollama_embedding_create_single(ollama: FakeOllama) -> None:
    answer = on_ollama(ollama.address)["embedding.create"]({}, TEXTS[0])
    assert (answer["model"], answer["dimensions"]) == ("nomic-embed-text:latest", 768)


@pytest.mark.req("003-032")
def test_ollama_embedding_create_batch(ollama: FakeOllama) -> None:
    answer = on_ollama(ollama.address)["embedding.create"]({}, TEXTS, model="all-minilm")
    assert (answer["count"], answer["model"]) == (3, "all-minilm:latest")
    assert {len(vector) for vector in answer["embeddings"]} == {384}


@pytest.mark.req("003-025", "003-032")
def test_ollama_connection_error_handling(ollama: FakeOllama) -> None:
    address = ollama.address
    ollama.stop()
    answer = on_ollama(address)["vector.query"]({}, "tide")
    assert set(answer) == {"error", "success"}
    assert "Ollama" in answer["error"]


@pytest.mark.req("003-025", "003-032")
def test_ollama_model_not_found_error(ollama: FakeOllama) -> None:
    ollama.pulled.clear()
    answer = on_ollama(ollama.address)["embedding.create"]({}, TEXTS[0])
    assert "ollama pull nomic-embed-text" in answer["error"]


@pytest.mark.req("003-004", "003-014", "003-032")
def test_provider_switching_openai_to_ollama(openai: FakeOpenAI, ollama: FakeOllama) -> None:
    """A collection stays with the model it was made with; another takes the new one."""
    rag = {"openai_base_url": f"{openai.address}/v1", "ollama_base_url": ollama.address}
    engine = SimpleNamespace(settings={"rag": rag}, secrets={"OPENAI_API_KEY": KEY})
    actions = registry_of(engine)
    actions["vector.store"]({}, TEXTS)
    rag |= {"embedding_provider": "ollama", "embedding_model": "nomic-embed-text"}
    assert (
        "has 768 dimensions, the collection 'default' has 1536"
        in actions["vector.query"]({}, "tide")["error"]
    )
    assert actions["vector.store"]({}, TEXTS, collection="new")["stored"] == 3
    assert actions["vector.query"]({}, "pilot tide", collection="new")["results"][0]["text"] == TEXTS[0]
    rag |= {"embedding_provider": "openai", "embedding_model": "text-embedding-3-small"}
    assert actions["vector.query"]({}, "pilot tide")["results"][0]["text"] == TEXTS[0]


@pytest.mark.req("003-004", "003-010", "003-031")
def test_embedding_provider_protocol_compliance(openai: FakeOpenAI, ollama: FakeOllama) -> None:
    """What the actions ask of an embedder, both give; tests/contracts/test_embedder.py asks more."""
    for options in (
        EmbeddingOptions(provider="openai", base_url=f"{openai.address}/v1", api_key=KEY),
        EmbeddingOptions(provider="ollama", base_url=ollama.address),
    ):
        embedder: Embedder = open_embedder(options)
        assert embedder.embed_documents(TEXTS).shape == (3, embedder.dimensions)
        assert embedder.embed_query(TEXTS[0]).shape == (embedder.dimensions,)
        assert embedder.model
    assert {"openai", "ollama"} <= set(PROVIDERS)


@pytest.mark.req("003-009", "003-034", "003-036")
def test_the_example_agent_runs_as_it_stands_in_the_documents(openai: FakeOpenAI) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "rag-agent.yaml"
    engine = Engine(example, {"OPENAI_API_KEY": KEY})
    engine.settings["rag"]["openai_base_url"] = f"{openai.address}/v1"
    about = [
        {"type": "rule", "since": "2024-02-01"},
        {"type": "rule", "since": "2025-01-01"},
        {"type": "note", "since": "2025-01-01"},
    ]
    state = engine.run({"rules": TEXTS, "about": about, "question": "When does the pilot wait?"})
    assert [one["text"] for one in state["found"]["results"]] == TEXTS[:2]
    assert f"- {TEXTS[0]}\n- {TEXTS[1]}" in state["answer"]["content"]
