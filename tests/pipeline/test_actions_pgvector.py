"""The actions with `vector_store: pgvector`: collections that outlive the engine, apart by tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.actions import register_actions
from tests.conftest import Addresses

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def registry() -> Iterator[Make]:
    """Makes a registry of an engine whose secret is a database's address."""
    with ExitStack() as closing:

        def make(url: str, **rag: Any) -> dict[str, Any]:
            made: dict[str, Any] = {}
            settings = {
                "embedding_provider": "hashing",
                "embedding_dimensions": 64,
                "vector_store": "pgvector",
            }
            engine = SimpleNamespace(settings={"rag": settings | rag}, secrets={"LARDER_DATABASE_URL": url})
            closing.callback(register_actions(made, engine).close)
            return made

        yield make


@pytest.mark.req("003-005", "003-015")
def test_what_one_engine_stores_another_finds(registry: Make, addresses: Addresses) -> None:
    texts = ["the pilot waits for the tide", "two bollards hold the vessel"]
    stored = registry(addresses.app)["vector.store"]({}, texts, metadata=[{"since": 2024}, {"since": 1998}])
    assert stored["stored"] == 2
    other = registry("", database_url=addresses.app)
    found = other["vector.query"]({}, "the pilot and the tide", filter={"since_gte": 2000})["results"]
    assert [(one["text"], one["metadata"]) for one in found] == [(texts[0], {"since": 2024})]
    assert found[0]["id"] == stored["ids"][0]
    theirs = registry(addresses.app, tenant="somebody else")
    assert theirs["vector.query"]({}, "the pilot and the tide")["results"] == []


@pytest.mark.req("003-025", "003-038")
def test_a_database_that_is_away_is_an_answer_without_its_password(registry: Make) -> None:
    url = "postgresql://larder_app:s3cret-word@127.0.0.1:1/larder"
    answer = registry(url)["vector.query"]({}, "tide")
    assert set(answer) == {"error", "success"}
    assert "the database does not answer" in answer["error"]
    assert "s3cret-word" not in answer["error"]
