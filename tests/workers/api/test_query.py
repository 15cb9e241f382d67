"""A question over HTTP: what comes back, whose it is, and what is refused."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient

from pipeline.enrichment.degradation import Health
from pipeline.ledger import project_id, tenant_id
from tests.workers.api.conftest import ACME, Ask, served
from workers.api import app
from workers.api.callers import COOKIE
from workers.runtime import Runtime

BERTH = project_id(ACME.tenant, "berth")


def found(answer: Any) -> set[str]:
    """The external ids of the documents that came back."""
    assert answer.status_code == 200, answer.text
    return {one["metadata"]["external_id"] for one in answer.json()["results"]}


@pytest.mark.req("004-001", "004-002", "004-003", "004-008", "004-009", "004-010")
def test_an_answer_has_the_form_that_is_promised(ask: Ask) -> None:
    answer = ask("mooring lines", k=2)
    body = answer.json()
    assert (answer.status_code, body["total_results"], len(body["results"])) == (200, 2, 2)
    UUID(body["query_id"])
    for one in body["results"]:
        assert {UUID(one["id"]), UUID(one["document_id"])}
        assert "Mooring lines of acme berth" in one["chunk_text"]
        assert one["metadata"]["source"] == "notes-berth"
    scores = [one["similarity_score"] for one in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert ask("mooring lines", k=2).json()["results"] == body["results"], "ids are the same every time"


@pytest.mark.req("004-004", "004-013", "004-021", "004-022", "001-117", "001-119", "001-120")
def test_only_what_the_project_holds_is_found(ask: Ask, runtime: Runtime) -> None:
    for project in ("berth", "default"):
        answer = ask(project=project_id(ACME.tenant, project), k=50)
        assert {one["metadata"]["source"] for one in answer.json()["results"]} == {f"notes-{project}"}


@pytest.mark.req("004-005", "004-011", "004-007")
def test_as_many_as_are_asked_for(ask: Ask, runtime: Runtime) -> None:
    assert len(found(ask(level="confidential", groups=("harbour", "board")))) == 5
    assert len(found(ask(k=3, level="confidential", groups=("harbour", "board")))) == 3
    everything = found(ask(k=10**6, level="confidential", groups=("harbour", "board")))
    assert len(everything) == 12, "more than the most is cut, not refused"


@pytest.mark.req("004-015")
def test_an_empty_project_has_nothing(ask: Ask) -> None:
    answer = ask(project=project_id(ACME.tenant, "empty"), projects=("*",))
    assert (answer.status_code, answer.json()["results"]) == (200, [])


@pytest.mark.req("004-017", "004-018", "004-021", "004-023")
@pytest.mark.parametrize(
    ("project", "status"),
    [
        (uuid4(), 404),
        (project_id(ACME.tenant, "empty"), 403),
        (project_id(tenant_id("evil"), "berth"), 404),  # nobody is told that it is there
    ],
)
def test_other_projects_are_closed(ask: Ask, project: UUID, status: int) -> None:
    answer = ask(project=project)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert str(project) not in answer.text


@pytest.mark.req("001-115")
def test_levels_and_readers_limit_what_is_seen(ask: Ask) -> None:
    assert found(ask(k=50, subject="bob")) == {"public-0", "internal-0"}
    assert found(ask(k=50, subject="bob", level="public")) == {"public-0"}
    assert found(ask(k=50, level="public")) == {"public-0", "public-1"}
    assert found(ask(k=50, level="public", groups=("harbour",))) == {"public-0", "public-1", "public-2"}
    assert "public-3" not in found(ask(k=50, level="public", subject="bob", groups=("board",)))
    assert "public-3" in found(ask(k=50, level="public", groups=("board",)))
    confidential = found(ask(k=50, subject="bob", level="confidential"))
    assert confidential == {"public-0", "internal-0", "confidential-0"}


@pytest.mark.req("004-018", "004-025")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query_text": "x"}, "body.project_id"),
        ({"project_id": str(BERTH)}, "body.query_text"),
        ({"project_id": str(BERTH), "query_text": ""}, "body.query_text"),
        ({"project_id": str(BERTH), "query_text": "x" * 10_001}, "body.query_text"),
        ({"project_id": "", "query_text": "x"}, "body.project_id"),
        ({"project_id": str(BERTH), "query_text": "x", "top_k": 0}, "body.top_k"),
        ({"project_id": str(BERTH), "query_text": "x", "top_k": "many"}, "body.top_k"),
    ],
)
def test_a_wrong_field_is_named(
    api: TestClient, token: Callable[..., str], body: dict[str, Any], field: str
) -> None:
    answer = api.post("/api/v1/rag/query", json=body, headers={"Authorization": f"Bearer {token()}"})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert "xxxx" not in answer.text, "what was sent is not said again"


def test_a_body_that_is_no_json_or_too_large(api: TestClient, token: Callable[..., str]) -> None:
    headers = {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"}
    assert api.post("/api/v1/rag/query", content=b"{", headers=headers).status_code == 422
    assert api.post("/api/v1/rag/query", content=b"[" * 100_000, headers=headers).status_code in (400, 422)
    large = api.post("/api/v1/rag/query", content=b" " * 1_200_000, headers=headers)
    assert (large.status_code, large.json()["title"]) == (413, "Request Entity Too Large")
    pieces = (b" " * 100_000 for _ in range(20))  # sent without its length
    assert api.post("/api/v1/rag/query", content=pieces, headers=headers).status_code == 413


def test_nothing_large_is_kept_of_who_has_no_token(api: TestClient, token: Callable[..., str]) -> None:
    """Bodies are read before anybody looks at the token: forty of them would be a gigabyte."""
    for headers in ({}, {"Authorization": "Bearer a.b.c"}, {"Cookie": f"{COOKIE}=a.b.c"}):
        for path in ("/api/v1/search", "/api/v1/enrich"):
            sent = {"Content-Type": "application/json", **headers}
            assert api.post(path, content=b" " * 900_000, headers=sent).status_code == 401, (path, headers)
        assert api.post("/console/login", data={"token": "x" * 900_000}, headers=headers).status_code == 401
    sent = {"Content-Type": "application/json", "Authorization": f"bearer {token()}"}
    assert api.post("/api/v1/search", content=b" " * 900_000, headers=sent).status_code == 422
    body = json.dumps({"text": "lines", "metadata": {"a": "x" * 900_000}})
    assert api.post("/api/v1/search", content=body, headers=sent).status_code == 200


def test_a_request_that_does_not_come_whole_ends(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are few, and cost who opens them nothing."""
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.3)
    length = b"POST /api/v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    head, whole = b"GET /health/live HTTP/1.1\r\nHost: x\r\n", b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with served(app.create_app(runtime), http=app.Protocol) as address:
        told = []
        for sent in (b"", head, whole + head, length):
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as line:
                line.sendall(sent)
                told.append(b"".join(iter(partial(line.recv, 65_536), b""))[:12])
    assert told == [b"", b"", b"HTTP/1.1 200", b"HTTP/1.1 408"]


def test_a_request_has_an_id(api: TestClient) -> None:
    assert api.get("/health/live", headers={"X-Request-Id": "a-1"}).headers["X-Request-Id"] == "a-1"
    made = api.get("/nowhere", headers={"X-Request-Id": "a b" * 40})
    assert made.headers["X-Request-Id"] == made.json()["request_id"] != ""
    assert made.headers["X-Content-Type-Options"] == "nosniff"
    assert api.put("/health/live").json()["status"] == 405


def test_what_is_unforeseen_is_a_problem_without_words(
    api: TestClient, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = "a secret sentence"

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError(words)

    monkeypatch.setattr("workers.api.knowledge.search_as", broken)
    answer = ask()
    assert (answer.status_code, answer.headers["Content-Type"]) == (500, "application/problem+json")
    assert "ZeroDivisionError" in caplog.text
    assert "secret sentence" not in answer.text + caplog.text


def test_health_needs_no_token(api: TestClient) -> None:
    health = api.get("/health/rag").json()
    assert health["store"] == health["broker"] == "ok"
    assert api.get("/health/live").json() == {"status": "ok"}
    assert "larder_degradation_level" in api.get("/metrics").text


def test_health_finds_out_by_itself_that_the_database_is_well_again(
    api: TestClient, runtime: Runtime
) -> None:
    now = time.monotonic()
    runtime.health = Health(clock=lambda: now)
    for _ in range(runtime.health.options.failures_in_a_row):
        runtime.health.record("store", ok=False)
    assert api.get("/health/rag").json()["degradation_level"] == 4
    now += 2 * runtime.health.options.calm_seconds
    api.get("/health/rag")
    assert api.get("/health/rag").json()["degradation_level"] == 0


WORD_PARTS = {f"{name}_score" for name in ("keyword", "overlap", "title", "covered")} | {
    f"{name}_part" for name in ("keyword", "title", "covered")
}


@pytest.mark.req("001-119", "001-120")
def test_how_rare_words_are_is_explained_to_who_may_see_all(
    api: TestClient, token: Callable[..., str], runtime: Runtime
) -> None:
    """Counts over all documents would tell what is in those that are kept from the caller."""

    def told(**rights: Any) -> set[str]:
        headers = {"Authorization": f"Bearer {token(**rights)}"}
        body = {"text": "mooring lines", "k": 50, "projects": [str(BERTH)], "explain": True}
        results = api.post("/api/v1/search", json=body, headers=headers).json()["results"]
        assert results
        assert all(hit["explanation"]["vector_part"] is not None for hit in results)
        return {name for hit in results for name in WORD_PARTS if hit["explanation"][name] is not None}

    everything: dict[str, Any] = {
        "projects": ("*",), "level": "confidential", "groups": ("harbour", "board")
    }  # fmt: skip
    assert told(**everything) == WORD_PARTS
    assert [
        told(**everything | less)
        for less in ({"level": "internal"}, {"groups": ()}, {"projects": ("berth",)})
    ] == ([set(), set(), WORD_PARTS])
