"""One rule for metadata, by whichever door a search comes: the command line, the API, or a client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipeline.ledger import project_id, sources, tenant_id
from pipeline.search import SearchRequest
from tests.conftest import Addresses
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.api.conftest import ACME, CONFIG
from tests.workers.installed import installed
from workers.api.app import create_app
from workers.app import search as searching
from workers.app import tokens
from workers.app.questions import searches
from workers.cli.search import SearchOptions
from workers.client import Client
from workers.local import embedded
from workers.runtime import Runtime

DOCUMENTS: dict[str, dict[str, Any]] = {
    "number": {"n": 3, "version": 1.5, "done": True, "list": ["a", 3]},
    "text": {"n": "3", "version": "1.50", "done": "true", "list": "a"},
    "other": {"n": 31, "version": "1.5", "done": False, "list": ["ab"], "place": {"a": "b"}},
    "empty": {"n": None, "list": [], "hash": "1e5", "quote": '"3"'},
}
Found = set[str]
Door = Callable[..., Found]


@pytest.fixture(scope="module")
def runtime(
    tmp_path_factory: pytest.TempPathFactory, shared_addresses: Addresses, servers: embedded.Servers
) -> Iterator[Runtime]:
    with installed(tmp_path_factory.mktemp("metadata"), shared_addresses, servers, CONFIG) as made:
        tenant = tenant_id("acme")
        berth = project_id(tenant, "berth")
        with made.database.tenant(tenant) as connection:
            sources.ensure_tenant(connection, tenant, "acme", berth, "berth")
        notes = SourceLedger(made.database, tenant, berth, "notes")
        notes.admit(*(document(name, f"Mooring of {name}.", metadata=m) for name, m in DOCUMENTS.items()))
        notes.index()
        yield made


def named(answer: Any) -> Found:
    return {name for name in DOCUMENTS for hit in answer["results"] if f" of {name}." in hit["content"]}


@pytest.fixture(scope="module", params=["api", "client"])
def door(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Door]:
    if request.param == "client":
        with Client(
            runtime.addresses.database, tenant="acme", project="berth", settings=runtime.settings
        ) as own:
            yield lambda **metadata: named(own.search("mooring", k=9, metadata=metadata))
        return
    headers = {"Authorization": f"Bearer {tokens.issue_token(runtime.settings, ACME, hours=1)}"}
    headers["Content-Type"] = "application/json"
    with TestClient(create_app(runtime)) as api:

        def ask(**metadata: Any) -> Found:
            body = json.dumps({"text": "mooring", "k": 9, "metadata": metadata})
            return named(api.post("/api/v1/search", content=body, headers=headers).json())

        yield ask


def by_command(runtime: Runtime, *pairs: str) -> Found:
    condition = searches.filter_of(runtime, vars(SearchOptions(metadata=[*pairs])))
    request = SearchRequest(text="mooring", k=9, filter=condition)
    results = searching.search(runtime, runtime.settings.tenant_id, request, by="ann")
    return named(searching.to_json(runtime, runtime.settings.tenant_id, results))


CONDITIONS: list[tuple[str, Any, Found]] = [
    ("n", 3, {"number", "text"}),
    ("n", "3", {"number", "text"}),
    ("n", None, {"empty"}),
    ("absent", None, set()),
    ("version", 1.5, {"number", "other"}),
    ("version", "1.50", {"text"}),
    ("done", True, {"number", "text"}),
    ("done", "true", {"number", "text"}),
    ("done", False, {"other"}),
    ("list", "a", {"number", "text"}),
    ("list", 3, {"number"}),
    ("list", "3", {"number"}),
    ("list", "b", set()),
    ("place", "a", set()),
    ("hash", "1e5", {"empty"}),
    ("hash", "", set()),
    ("quote", '"3"', {"empty"}),
    ("quote", "3", set()),
]


@pytest.mark.req("001-032")
@pytest.mark.parametrize(("key", "value", "names"), CONDITIONS)
def test_api_and_client_find_what_is_equal_or_written_the_same(
    door: Door, key: str, value: Any, names: Found
) -> None:
    assert door(**{key: value}) == names


@pytest.mark.req("001-032")
@pytest.mark.parametrize(("key", "value", "names"), CONDITIONS)
def test_the_command_line_reads_json_and_finds_the_same(
    runtime: Runtime, key: str, value: Any, names: Found
) -> None:
    assert by_command(runtime, f"{key}={json.dumps(value)}") == names
    if isinstance(value, str) and not value.startswith('"'):
        assert by_command(runtime, f"{key}={value}") == names


def test_what_is_no_scalar_of_json_is_text(runtime: Runtime, door: Door) -> None:
    for word in ("1.50", "1e5", "-0", "03", "NaN", "1e999", "9" * 5000, "[1]", "[" * 5000, '"', "nul", " 3"):
        assert searches._pair(f"n={word}") == ("n", word)
    assert by_command(runtime, "version=1.50") == {"text"}
    assert by_command(runtime, "hash=1e5") == {"empty"}
    assert by_command(runtime, "list=a", "list=3") == {"number"}
    assert door(list=["a", 3]) == {"number"}
    assert door(list=["a"]) == set()
    assert door(place={"a": "b"}) == {"other"}
    assert door(n="\x00", list="\ud800") == set()
