"""What a caller does is in the audit: by whom, how much, and no more of a question than its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from mcp import Client

from pipeline.ledger import audit, project_id
from tests.workers.api.conftest import ACME, Ask
from workers.api.agents import server
from workers.runtime import Runtime

pytestmark = pytest.mark.req("001-116")
BERTH = str(project_id(ACME.tenant, "berth"))


@pytest.fixture
def noted(runtime: Runtime) -> Callable[[], list[tuple[str, str, str, Any]]]:
    """(actor, action, subject, detail) of what was noted since, in order."""

    def entries() -> list[dict[str, Any]]:
        runtime.audit_log.flush()
        with runtime.database.tenant(ACME.tenant) as connection:
            assert audit.verify(connection).problems == ()
            return audit.listed(connection, 1000)[::-1]

    before = len(entries())
    return lambda: [(e["actor"], e["action"], e["subject"], e["detail"]) for e in entries()[before:]]


def test_a_question_is_noted_with_its_first_hundred_characters(ask: Ask, noted: Callable[[], Any]) -> None:
    long = "mooring lines " * 20
    answers = [ask(text, subject=by) for text, by in (("otters", "ann"), (long, "bob"))]
    counts = [answer.json()["total_results"] for answer in answers]
    assert noted() == [
        ("ann", "rag_search", "otters", {"resultsCount": counts[0]}),
        ("bob", "rag_search", long[:100], {"resultsCount": counts[1]}),
    ]
    assert counts[1] > 0


def test_a_question_that_is_refused_is_not_one(ask: Ask, noted: Callable[[], Any]) -> None:
    assert ask("x", project=uuid4()).status_code == 404
    assert ask("").status_code == 422
    assert noted() == []


@pytest.fixture
def silent(runtime: Runtime) -> Iterator[None]:
    """Searches are not audited."""
    rag = runtime.rag
    runtime.rag = rag.model_copy(update={"security": rag.security.model_copy(update={"audit": False})})
    yield
    runtime.rag = rag


def post(api: TestClient, token: str, path: str, body: Any) -> Any:
    answer = api.post(f"/api/v1{path}", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.is_success, answer.text
    return answer.json()


def test_what_changes_something_is_noted_in_any_case(
    silent: None, ask: Ask, api: TestClient, token: Callable[..., str], noted: Callable[[], Any]
) -> None:
    mighty = token(permissions=frozenset({"admin"}))
    assert ask().status_code == 200
    pbi = {"id": "PBI-9" * 40, "title": "Check mooring lines", "project": "berth"}
    (job,) = post(api, mighty, "/enrich", {"pbi": pbi})["jobs"]
    documents = [{"title": "Otters", "text": "They swim."}]
    post(api, mighty, "/knowledge/documents", {"project_id": BERTH, "documents": documents})
    said = {"item": "how are lines checked", "ref": "public-0", "verdict": "useful", "source": "notes-berth"}
    post(api, mighty, "/feedback", said)
    found = noted()
    assert [entry[:3] for entry in found] == [
        ("ann", "enrich", job["id"]),
        ("ann", "upload", BERTH),
        ("ann", "feedback.useful", "public-0"),
    ]
    assert found[0][3] == {"pbi": pbi["id"][:100]}
    assert "lines are" not in str(found)


def test_an_agent_is_noted_as_whoever_it_asks_for(runtime: Runtime, noted: Callable[[], Any]) -> None:
    async def run() -> None:
        async with Client(server(runtime, lambda _context: ACME)) as client:
            await client.call_tool("search_knowledge", {"query": "mooring lines"})
            await client.call_tool("enrich_backlog_item", {"title": "Check lines", "project": "berth"})

    asyncio.run(run())
    assert [entry[:3] for entry in noted()] == [
        ("ann", "rag_search", "mooring lines"),
        ("ann", "enrich", "no job"),
    ]
