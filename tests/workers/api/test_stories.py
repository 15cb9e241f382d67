"""User stories over HTTP: found, counted and seeded as far as the token allows, and never another tenant's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipeline.ledger import tenant_id
from tests.ledger import Ledger, of_tenant
from tests.pipeline.stories.storyteller import story
from workers.app.enrichment.job import run
from workers.app.enrichment.stories import memory_of
from workers.runtime import Runtime

WRITER = frozenset({"read", "write"})


@pytest.fixture
def call(api: TestClient, token: Callable[..., str]) -> Callable[..., Any]:
    """A request of ann, changed as the caller says."""

    def send(method: str, path: str, body: Any = None, *, wait: int = 0, **changes: Any) -> Any:
        headers = {"Authorization": f"Bearer {token(**changes)}", "Prefer": f"wait={wait}"}
        return api.request(method, path, headers=headers, **({} if body is None else {"json": body}))

    return send


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[None]:
    """Does what a worker does, for the tenants `acme` and `evil`."""
    over = threading.Event()
    waiting = {"state": "queued", "task": "larder.stories.store"}

    def serve() -> None:
        while not over.wait(0.02):
            for tenant in (tenant_id("acme"), tenant_id("evil")):
                for job in Ledger(of_tenant(runtime.database, tenant)).jobs.values("id", **waiting):
                    run(runtime, tenant, job)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.req("000-045", "000-046", "000-047", "000-055")
def test_stories_are_seeded_counted_and_found_and_those_of_another_tenant_are_not(
    call: Callable[..., Any], worker: None, runtime: Runtime
) -> None:
    given = [
        story("reset a password by mail", tags=["Auth"], source_agent="UserStoryAgent"),
        {"title": "none"},
        story("print an invoice", tags=["billing"], confidence_score=0.8, source_agent="CLI-UserStoryAgent"),
    ]
    seeded = call("POST", "/rag/seed", {"user_stories": given}, wait=20, permissions=WRITER)
    assert seeded.status_code == 200, seeded.text
    done = seeded.json()
    assert len(done.pop("jobs")) == 1
    reason = "user_story_text: missing; it may also be called user_story or story"
    assert done == {
        "accepted": 2,
        "stored": 2,
        "skipped": 0,
        "refused": [{"number": 2, "reason": reason}],
        "failed": 0,
        "pending": 0,
        "error": None,
    }
    evil = {"tenant": tenant_id("evil"), "tenant_name": "evil", "permissions": WRITER}
    other = call("POST", "/rag/seed", {"user_stories": [story("reset a password of evil")]}, wait=20, **evil)
    assert other.json()["stored"] == 1

    model = memory_of(runtime, tenant_id("acme")).model
    stats = call("GET", "/rag/stats").json()
    assert stats == {
        "total_stories": 2,
        "by_source_agent": {"UserStoryAgent": 1, "CLI-UserStoryAgent": 1},
        "average_confidence_score": 0.85,
        "edited": 0,
        "by_model": {model: 2},
    }
    assert call("GET", "/rag/stats", **evil).json()["total_stories"] == 1

    def found(**body: Any) -> list[str]:
        answer = call("POST", "/rag/search", {"query": "reset a password by mail", "threshold": 0.1, **body})
        assert answer.status_code == 200, answer.text
        return [one["user_story_text"] for one in answer.json()["stories"]]

    assert found()[0] == "reset a password by mail"
    assert "reset a password of evil" not in found(threshold=0)
    assert found(k=1) == found(tags=["auth"]) == ["reset a password by mail"]
    assert found(threshold=0.999) == []
    score = call("POST", "/rag/search", {"query": "reset", "threshold": 0}).json()["stories"][0][
        "similarity_score"
    ]
    assert 0 < score < 1


def test_without_a_body_stories_of_a_former_model_are_embedded_anew(
    call: Callable[..., Any], worker: None
) -> None:
    done = call("POST", "/rag/seed", wait=20, permissions=WRITER)
    assert done.status_code == 200, done.text
    assert (done.json()["accepted"], done.json()["stored"]) == (0, 0)


def test_who_does_not_wait_is_told_what_is_accepted(call: Callable[..., Any]) -> None:
    taken = call("POST", "/rag/seed", {"user_stories": [story("later")]}, permissions=WRITER)
    assert taken.status_code == 202
    assert (taken.json()["accepted"], taken.json()["stored"]) == (1, 0)


@pytest.mark.req("000-045", "000-046", "000-047")
def test_a_token_does_what_it_may(call: Callable[..., Any], api: TestClient) -> None:
    assert call("POST", "/rag/seed", {"user_stories": []}, permissions=frozenset({"read"})).status_code == 403
    for path, body in (("/rag/search", {"query": "x"}), ("/rag/seed", {"user_stories": []})):
        assert call("POST", path, body, permissions=frozenset({"operate"})).status_code == 403
        assert api.post(path, json=body).status_code == 401
    assert api.get("/rag/stats").status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/rag/search", {}, "query"),
        ("/rag/search", {"query": "x", "k": 0}, "k"),
        ("/rag/search", {"query": "x", "threshold": 1.5}, "threshold"),
        ("/rag/seed", {"user_stories": "x"}, "user_stories"),
        ("/rag/seed", {"user_stories": ["x"]}, "user_stories"),
    ],
)
def test_a_wrong_field_is_named(call: Callable[..., Any], path: str, body: Any, field: str) -> None:
    refused = call("POST", path, body, permissions=WRITER)
    assert refused.status_code == 422
    assert field in refused.text
