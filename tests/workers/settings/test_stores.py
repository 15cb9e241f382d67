"""Vector stores in the configuration, as the documents write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workers.settings import Settings

Lines = Callable[..., list[str]]
Loaded = Callable[..., Settings]

DOCUMENTED = """\
rag:
  provider: ${RAG_PROVIDER:-chroma}
  storage:
    local:
      type: chroma
      path: ${VECTOR_DB_PATH:-./vector-db}
      persist: true
      collection: ${VECTOR_COLLECTION:-backlog_chef}
    cloud:
      type: pinecone
      apiKey: ${PINECONE_API_KEY}
      environment: ${PINECONE_ENV:-us-west1-gcp}
      index: ${PINECONE_INDEX:-backlog-chef}
      namespace: ${PROJECT_ID}
      createIfNotExists: true
"""


@pytest.mark.req("001-029", "001-040", "001-043", "001-044")
def test_the_section_of_the_documents(loaded: Loaded) -> None:
    settings = loaded(DOCUMENTED, {"PINECONE_API_KEY": "secret", "PROJECT_ID": "app"})
    assert settings.rag.provider == "chroma"
    chroma, pinecone = settings.stores["chroma"], settings.stores["pinecone"]
    assert (chroma.path, chroma.collection) == (settings.folder / "vector-db" / "chroma", "backlog_chef")
    assert (pinecone.api_key, pinecone.environment) == ("secret", "us-west1-gcp")
    assert (pinecone.collection, pinecone.namespace, pinecone.create) == ("backlog-chef", "app", True)
    assert "secret" not in repr(pinecone)
    assert settings.notes == ()


@pytest.mark.req("001-029")
def test_a_cloud_that_nobody_asks_for_needs_no_key(loaded: Loaded, lines: Lines) -> None:
    settings = loaded(DOCUMENTED)
    assert list(settings.stores) == ["chroma"]
    assert settings.notes == ("larder.yaml:9: storage.cloud: not used: a variable in it is not set",)
    (first, *_) = lines(DOCUMENTED.replace("chroma}", "pinecone}", 1))
    assert first.startswith("larder.yaml:11: storage.cloud.apiKey")


@pytest.mark.req("001-027")
@pytest.mark.parametrize("provider", ["chroma", "faiss", "qdrant", "pgvector"])
def test_a_provider_alone_is_enough_for_a_folder(loaded: Loaded, provider: str) -> None:
    settings = loaded("rag: {}\n", {"RAG_PROVIDER": provider})
    assert settings.rag.provider == provider
    assert list(settings.stores) == [provider] * (provider != "pgvector")


@pytest.mark.req("001-027")
def test_a_service_needs_its_section(loaded: Loaded, lines: Lines) -> None:
    (line,) = lines("rag:\n  provider: weaviate\n")
    assert line.startswith(
        "larder.yaml:2: provider: found 'weaviate', expected a store that the section storage has"
    )
    (line,) = lines("rag:\n  storage:\n    cloud: {type: weaviate}\n")
    assert line.startswith(
        "larder.yaml:3: storage.cloud.url: found nothing, expected the address of the server"
    )
    text = "rag: {provider: weaviate, storage: {cloud: {type: weaviate, url: 'http://127.0.0.1:8080', index: Chef}}}"
    assert loaded(text).stores["weaviate"].url == "http://127.0.0.1:8080"
    text = text.replace("index:", "grpcUrl: 'http://127.0.0.1:50052', index:")
    assert loaded(text).stores["weaviate"].grpc_url == "http://127.0.0.1:50052"
    (line,) = lines("rag:\n  provider: milvus\n")
    assert "expected one of pgvector, faiss, chroma, qdrant, pinecone, weaviate" in line


def test_variables_fill_the_section_that_is_there(loaded: Loaded, tmp_path: Path) -> None:
    variables = {"PINECONE_API_KEY": "k", "PINECONE_INDEX": "other", "PINECONE_ENV": "eu-west1-gcp"}
    local = {"VECTOR_DB_PATH": str(tmp_path), "VECTOR_COLLECTION": "chef"}
    assert loaded("rag: {}\n", {**variables, **local}).stores == {}
    settings = loaded("rag: {provider: pinecone}\n", variables)
    pinecone = settings.stores["pinecone"]
    assert (pinecone.api_key, pinecone.collection, pinecone.environment) == ("k", "other", "eu-west1-gcp")
    chroma = loaded("rag: {provider: chroma}\n", {**variables, **local}).stores
    assert list(chroma) == ["chroma"]
    assert (chroma["chroma"].path, chroma["chroma"].collection) == (tmp_path / "chroma", "chef")
    weaviate = "rag: {storage: {cloud: {type: weaviate, url: 'http://w:8080', index: Chef}}}"
    assert loaded(weaviate, variables).stores["weaviate"].api_key == "", (
        "a key of Pinecone goes to Pinecone alone"
    )


def test_both_addresses_of_a_store_are_checked(loaded: Loaded, lines: Lines) -> None:
    text = """\
rag:
  security: {hosts: [vectors.example.com]}
  storage:
    cloud: {type: weaviate, url: 'https://vectors.example.com', grpcUrl: 'http://elsewhere.example.com:50051', apiKey: k, index: Chef}
"""
    (line,) = lines(text)
    assert line.startswith("larder.yaml:4: storage.cloud: found 'elsewhere.example.com', expected a host of")
    settings = loaded(text.replace("[vectors.example.com]", "['*.example.com']"))
    assert "its secret is readable on the way to http://elsewhere.example.com" in " ".join(settings.notes)


def test_the_key_of_a_store_is_given_to_the_processes_that_search(loaded: Loaded) -> None:
    settings = loaded(DOCUMENTED, {"PINECONE_API_KEY": "secret", "PROJECT_ID": "app"})
    assert settings.variables["PINECONE_API_KEY"] == frozenset({"stores"})


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("local: {type: chroma, collection: 'has blanks'}", "larder.yaml:3: storage.local.collection: found 'has blanks', expected a name that chroma takes"),
        ("cloud: {type: pinecone, apiKey: k, index: Under_scored}", "larder.yaml:3: storage.cloud.index: found 'Under_scored', expected a name that pinecone takes: up to 40 lower-case"),
        ("cloud: {type: weaviate, url: 'http://w:1', index: 1st}", "larder.yaml:3: storage.cloud.index: found '1st', expected a name that weaviate takes"),
        ("cloud: {type: weaviate, url: 'http://w:1', index: Köche}", "expected a name that weaviate takes"),
        ("cloud: {type: pinecone, apiKey: k, environment: us-east-1}", "larder.yaml:3: storage.cloud.environment: found 'us-east-1', expected a region with its cloud at the end"),
        ("cloud: {type: pinecone, apiKey: k, namespace: 'two words'}", "larder.yaml:3: storage.cloud.namespace: found 'two words', expected up to 200 letters"),
        ("local: {type: chroma, persist: false}", "larder.yaml:3: storage.local.persist: found false, expected true"),
        ("cloud: {type: pinecone}", "storage.cloud.apiKey: found nothing, expected the key of Pinecone"),
        ("cloud: {type: faiss, url: 'http://w:1'}", "expected one of pinecone, weaviate, qdrant, chroma"),
    ],
)  # fmt: skip
def test_what_a_store_cannot_do_is_told_with_the_line(lines: Lines, section: str, complaint: str) -> None:
    (line,) = lines(f"rag:\n  storage:\n    {section}\n")
    assert complaint in line
