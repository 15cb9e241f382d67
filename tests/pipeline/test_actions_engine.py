"""The actions and their engine: names, settings that come late or are wrong, and what no message shows."""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.actions import NAMES, Actions, register_actions, unregister_actions
from tests.pipeline.acting import SECRET, TEXTS, Registry, engine, refused, registry_of


@pytest.mark.req("003-007", "003-008", "003-031")
def test_action_registration_namespaces() -> None:
    registry: Registry = {"llm.call": print}
    register_actions(registry, engine())
    assert set(registry) == {"llm.call"} | {
        *("embedding.create", "embedding_create", "actions.embedding_create"),
        *("vector.store", "vector_store", "actions.vector_store"),
        *("vector.query", "vector_query", "actions.vector_query"),
    }
    for names in NAMES.values():
        assert len({registry[name] for name in names}) == 1
    registry["vector_store"]({}, TEXTS)
    assert len(registry["actions.vector_query"]({}, "tide")["results"]) == 3


@pytest.mark.req("003-021", "003-022", "003-023")
def test_the_parameters_are_those_of_the_documents() -> None:
    def plain(method: Any) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
        return [p.name for p in inspect.signature(method).parameters.values() if p.kind in kinds][1:]

    assert plain(Actions.embedding_create) == ["state", "text", "model", "batch"]
    assert plain(Actions.vector_store) == ["state", "texts", "embeddings", "ids", "metadata", "collection"]
    assert plain(Actions.vector_query) == [
        "state", "query", "k", "collection", "filter", "include_embeddings",
    ]  # fmt: skip


@pytest.mark.req("003-039")
def test_rolled_out_step_by_step_and_back() -> None:
    registry: Registry = {}
    off = engine()
    off.enable_rag = False
    register_actions(registry, off)
    assert registry == {}
    one = engine(actions=["embedding"])
    register_actions(registry, one)
    assert registry["embedding.create"]({}, "x")["dimensions"] == 64
    assert "add vector to settings.rag.actions" in refused(registry["vector.store"]({}, "x"))
    assert "add vector to settings.rag.actions" in refused(registry["vector.query"]({}, "x"))
    one.settings["rag"]["actions"] = ["embedding", "vector"]
    assert registry["vector.store"]({}, "x")["stored"] == 1
    one.enable_rag = False
    assert "set the engine's enable_rag to true" in refused(registry["embedding.create"]({}, "x"))
    registry["vector.query"] = print
    unregister_actions(registry)
    assert registry == {"vector.query": print}


def test_settings_may_come_after_registration_and_change() -> None:
    late = SimpleNamespace()
    registry = registry_of(late)
    late.settings = SimpleNamespace(rag={"embedding_provider": "hashing", "embedding_dimensions": 8})
    assert registry["embedding.create"]({}, "x")["dimensions"] == 8
    late.settings = {"rag": {"embedding_provider": "hashing", "embedding_dimensions": 16}}
    assert registry["embedding.create"]({}, "x")["dimensions"] == 16


def test_what_is_in_memory_stays_whatever_else_changes() -> None:
    registry: Registry = {}
    changing = engine()
    made = register_actions(registry, changing)
    registry["vector.store"]({}, TEXTS)
    changing.settings["rag"]["tenant"] = "other"
    changing.secrets["LARDER_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
    made.close()
    assert len(registry["vector.query"]({}, "tide")["results"]) == 3


@pytest.mark.req("003-015", "003-025")
@pytest.mark.parametrize(
    ("rag", "message"),
    [
        ({"embedding_provider": "word2vec"}, "settings.rag.embedding_provider is 'word2vec' (use one of"),
        (
            {"embeding_model": "x"},
            "settings.rag has an unknown key 'embeding_model' (did you mean embedding_model?)",
        ),
        ({"ollama_timeout": "soon"}, "settings.rag.ollama_timeout is 'soon'"),
        ({"embedding_dimensions": 0}, "settings.rag.embedding_dimensions is 0"),
        ({"actions": ["all"]}, "list some of embedding, vector"),
        (
            {"vector_store": "milvus"},
            "settings.rag.vector_store is 'milvus' (use one of memory, pgvector, faiss, chroma, qdrant, pinecone, weaviate)",
        ),
        ({"vector_store": "pinecone"}, "put PINECONE_API_KEY into the secrets of the engine"),
        ({"vector_store": "pgvector"}, "put LARDER_DATABASE_URL"),
        ({"vector_store": 7}, "settings.rag.vector_store is 7"),
        ({"embedding_provider": "gemini"}, "put GEMINI_API_KEY into the secrets"),
        ({"embedding_provider": "huggingface"}, "put HF_TOKEN into the secrets"),
    ],
)
def test_wrong_settings_are_answers(rag: dict[str, Any], message: str) -> None:
    registry = registry_of(engine(**rag))
    assert message in refused(registry["vector.store"]({}, "x"))


@pytest.mark.req("003-025", "003-038")
def test_no_message_shows_a_secret_or_a_text(caplog: pytest.LogCaptureFixture) -> None:
    registry = registry_of(engine(vector_store=SECRET))
    assert refused(registry["vector.store"]({}, "x")).startswith("settings.rag.vector_store is '***'")

    class Broken:
        @property
        def settings(self) -> Any:
            raise RuntimeError(f"{SECRET} and the text of a document")

    register_actions(registry, Broken())
    with caplog.at_level(logging.ERROR):
        message = refused(registry["embedding.create"]({}, "x"))
    assert message == "the action failed unexpectedly (RuntimeError); the log says where"
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "bare", [SimpleNamespace(), SimpleNamespace(settings=None), SimpleNamespace(settings={"rag": {}})]
)
def test_an_engine_that_says_nothing_has_the_built_in_model(bare: Any) -> None:
    registry = registry_of(bare)
    made = registry["embedding.create"]({}, "the tide gate")
    assert (made["model"], made["dimensions"]) == ("all-MiniLM-L6-v2", 384)
    assert registry["vector.store"]({}, ["ebb tide", "invoices"], ids=["a", "b"])["stored"] == 2
    assert registry["vector.query"]({}, "when does the water fall", k=1)["results"][0]["id"] == "a"


def test_a_key_that_is_not_there_is_named_with_its_place() -> None:
    unset = {"OPENAI_API_KEY": "${OPENAI_API_KEY}"}
    for one in (
        SimpleNamespace(settings={"rag": {"embedding_provider": "openai"}}),
        SimpleNamespace(secrets=unset),
        SimpleNamespace(secrets=unset, settings={"rag": {"embedding_provider": "openai"}}),
    ):
        said = refused(registry_of(one)["embedding.create"]({}, "x"))
        assert said.startswith(
            "the API key of OpenAI is missing (put OPENAI_API_KEY into the secrets of the engine"
        )


def test_a_key_of_openai_that_is_there_chooses_it() -> None:
    keyed = SimpleNamespace(
        secrets={"OPENAI_API_KEY": "sk-none"}, settings={"rag": {"openai_base_url": "http://127.0.0.1:1/v1"}}
    )
    assert "OpenAI at" in refused(registry_of(keyed)["embedding.create"]({}, "x"))
