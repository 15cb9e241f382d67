"""What the API says of itself: names for ids, positions in lists, patience with many, and no folders of its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from pipeline.errors import RequestRejected
from tests.ledger import Ledger, of_tenant
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.api.conftest import ACME, served
from tests.workers.api.test_enrichment import PBI, call, worker
from tests.workers.api.test_query import BERTH
from workers.api import callers
from workers.api.app import create_app
from workers.api.client import HttpClient
from workers.client import Client
from workers.runtime import Runtime

__all__ = ["call", "worker"]
Call = Callable[..., Any]
EVERYTHING = frozenset({"read", "write", "operate", "admin"})


@pytest.mark.parametrize("project", ["berth", str(BERTH)])
def test_a_project_is_named_by_id_or_name(call: Call, project: str) -> None:
    query = call("POST", "/api/v1/rag/query", {"project_id": project, "query_text": "mooring lines"})
    assert query.status_code == 200, query.text
    assert query.json()["total_results"] > 0
    sent = {"project_id": project, "documents": [{"title": f"Cleat {project}", "text": "A cleat of bronze."}]}
    taken = call("POST", "/api/v1/knowledge/documents", sent, permissions=EVERYTHING)
    assert taken.status_code == 202, taken.text


@pytest.mark.parametrize("project", ["berth", str(BERTH)])
def test_files_are_sent_to_a_project_by_id_or_name(
    api: TestClient, token: Callable[..., str], project: str
) -> None:
    headers = {"Authorization": f"Bearer {token(permissions=EVERYTHING)}"}
    files = [("files", ("cleat.md", b"# Cleat\n\nOf bronze."))]
    taken = api.post("/api/v1/knowledge/upload", data={"project_id": project}, files=files, headers=headers)
    assert taken.status_code == 202, taken.text


def test_an_unknown_name_is_not_found_and_one_of_others_forbidden(call: Call) -> None:
    for name, status in (("nowhere", 404), ("empty", 403)):
        assert (
            call("POST", "/api/v1/rag/query", {"project_id": name, "query_text": "x"}).status_code == status
        )


def wrong_items() -> Iterator[tuple[Any, str]]:
    good = {**PBI, "id": "PBI-good"}
    yield [good, {"id": "PBI-2"}, good], "item 2 of 3"
    yield [good, good, {"id": "PBI-3", "title": " "}], "item 3 of 3"
    yield [good, {}], "item 2 of 2"
    yield [good, 5], "PBIs[1]"
    yield {"scored_pbis": [{"pbi": good}, {"pbi": {"id": "PBI-9"}}]}, "item 2 of 2"


@pytest.mark.parametrize(("body", "place"), [*wrong_items()])
def test_a_bad_item_is_named_by_its_place_and_none_is_asked_for(
    call: Call, runtime: Runtime, body: Any, place: str
) -> None:
    def jobs() -> int:
        return len(Ledger(of_tenant(runtime.database, ACME.tenant)).jobs())

    before = jobs()
    answer = call("POST", "/api/v1/enrich", body)
    assert answer.status_code == 422, answer.text
    assert place in answer.json()["detail"]
    assert jobs() == before


def test_the_address_itself_leads_to_the_console(api: TestClient) -> None:
    answer = api.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/console")
    assert "text/html" in api.get("/").headers["content-type"]


NO_WORDS: list[Any] = [{}, 5, None, []]
WRONG_LISTS: list[dict[str, Any]] = [
    *({name: [value]} for name in ("source_types", "kinds", "tags", "sources") for value in NO_WORDS),
    {"projects": [{}]},
    {"metadata": []},
    {"mode": {}},
    {"since": 0},
    {"explain": 1},
    {"k": True},
]


@pytest.mark.parametrize("wrong", WRONG_LISTS, ids=str)
def test_what_is_no_word_is_a_wrong_field(call: Call, runtime: Runtime, wrong: dict[str, Any]) -> None:
    answer = call("POST", "/api/v1/search", {"text": "mooring lines", **wrong})
    assert answer.status_code == 422, answer.text
    (name,) = wrong
    assert answer.json()["errors"][0]["field"].startswith(f"body.{name}")
    if name in ("source_types", "kinds", "tags", "sources"):
        client = Client(runtime.addresses.database, tenant="acme", settings=runtime.settings)
        with client, pytest.raises(RequestRejected, match=name):
            client.search("mooring lines", **wrong)


# Patience -----------------------------------------------------------------------------------------


@pytest.fixture
def narrow(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an API that lets two requests of a user in at once."""
    limited = runtime.rag.api.model_copy(update={"at_once": 2})
    monkeypatch.setattr(runtime, "rag", runtime.rag.model_copy(update={"api": limited}))
    with served(create_app(runtime)) as address:
        yield address


def statuses(address: str, token: str, count: int) -> list[int]:
    """Of so many searches at once."""
    with httpx2.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:

        def search(_: int) -> int:
            return client.post(f"{address}/api/v1/search", json={"text": "mooring lines"}).status_code

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(search, range(count)))


def test_more_than_may_be_under_way_wait_for_their_turn(narrow: str, token: Callable[..., str]) -> None:
    assert statuses(narrow, token(), 40) == [200] * 40
    assert not callers._queued


def test_who_has_waited_long_is_told_to_come_back(
    narrow: str, token: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "QUEUE_SECONDS", 0.0)
    told = statuses(narrow, token(), 20)
    assert set(told) == {200, 429}


def test_a_queue_is_bounded(narrow: str, token: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_WAITING", 3)
    assert 429 in statuses(narrow, token(), 30)


@pytest.mark.usefixtures("worker")
def test_fifty_items_of_step_4_at_once_are_all_answered(address: str, token: Callable[..., str]) -> None:
    with HttpClient(address, token=token()) as client, ThreadPoolExecutor(50) as pool:
        items = [
            {**PBI, "id": f"PBI-{n}", "title": f"Check mooring line {n} before the tide"} for n in range(50)
        ]
        answers = list(pool.map(client.enrich, items))
    assert len(answers) == 50
    assert all(answer["technical_docs"] for answer in answers)


# Folders of the machine ---------------------------------------------------------------------------

FOLDER = "/srv/secret-share"


@pytest.fixture
def filed(runtime: Runtime) -> str:
    """The id of a document that was read from a file."""
    notes = SourceLedger(runtime.database, ACME.tenant, BERTH, "files")
    notes.admit(
        document(
            "docs/winch.md",
            "# Winch brakes\n\nWinch brakes are tested with twice the load before each season.",
            title="Winch brakes",
            url=f"file://{FOLDER}/docs/winch.md",
            metadata={"source_path": "docs/winch.md"},
        )
    )
    notes.index()
    return str(notes.id("docs/winch.md"))


@pytest.mark.usefixtures("worker")
def test_no_door_tells_where_files_lie(
    call: Call, runtime: Runtime, filed: str, api: TestClient, token: Callable[..., str]
) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    tools = {
        "search_knowledge": {"query": "winch brakes"},
        "get_document": {"document_id": filed},
        "enrich_backlog_item": {"title": "Test the winch brakes with twice the load"},
    }
    mcp = {"Accept": "application/json, text/event-stream"}
    pbi = {"id": "PBI-W", "title": "Test the winch brakes with twice the load", "project": "berth"}
    answers = [
        call("POST", "/api/v1/search", {"text": "winch brakes"}),
        call("POST", "/api/v1/rag/query", {"project_id": "berth", "query_text": "winch brakes"}),
        call("GET", f"/api/v1/documents/{filed}"),
        call("POST", "/api/v1/enrich", pbi, headers={"Prefer": "wait=20"}),
        *(
            call("POST", "/mcp", {**asked, "params": {"name": name, "arguments": given}}, headers=mcp)
            for name, given in tools.items()
        ),
    ]
    cookies = {"Cookie": f"larder_console={token()}"}
    pages = ["/console?q=winch+brakes", f"/console/documents/{filed}"]
    answers += [api.get(page, headers=cookies) for page in pages]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert "inch brakes" in answer.text
        assert FOLDER not in answer.text
        assert "file:" not in answer.text
    client = Client(runtime.addresses.database, tenant="acme", settings=runtime.settings)
    with client:
        assert FOLDER not in str(client.search("winch brakes"))
