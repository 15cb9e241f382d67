"""Step 4 over HTTP: asked, waited for, watched, and never told to whom may not see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from pipeline.ledger import project_id
from tests.ledger import Ledger, of_tenant
from tests.workers.api.conftest import ACME
from workers.api import callers
from workers.api.client import HttpClient
from workers.app.enrichment import job
from workers.app.enrichment.messaging import JobNotifications
from workers.runtime import Runtime

PBI = {"id": "PBI-1", "title": "Check mooring lines before each tide", "project": "berth"}


@pytest.fixture
def call(api: TestClient, token: Callable[..., str]) -> Callable[..., Any]:
    def send(method: str, path: str, body: Any = None, *, headers: Any = None, **changes: Any) -> Any:
        told = {"Authorization": f"Bearer {token(**changes)}", **(headers or {})}
        return api.request(method, path, json=body, headers=told)

    return send


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[None]:
    """A thread that answers what is asked."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.05):
            for one in Ledger(of_tenant(runtime.database, ACME.tenant)).jobs.values("id", state="queued"):
                job.run(runtime, ACME.tenant, one)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


def test_an_answer_is_fetched_at_its_address(call: Callable[..., Any], runtime: Runtime) -> None:
    asked = call("POST", "/api/v1/enrich", {"pbi": PBI})
    assert asked.status_code == 202, asked.text
    (one,) = asked.json()["jobs"]
    assert (one["state"], asked.headers["Location"]) == ("queued", one["url"])
    job.run(runtime, ACME.tenant, UUID(one["id"]))
    found = call("GET", one["url"]).json()
    assert found["state"] == "done"
    assert found["context"]["technical_docs"], "the notes are found"


@pytest.mark.usefixtures("worker")
def test_who_prefers_to_wait_gets_the_answer_at_once(call: Callable[..., Any]) -> None:
    prefer = {"Prefer": "respond-async, wait=20"}
    items = [{**PBI, "id": f"PBI-{n}"} for n in range(3)]
    for body in (
        {**PBI, "id": "PBI-7"},
        items,
        {"scored_pbis": [{"pbi": one, "scores": {}} for one in items]},
    ):
        answer = call("POST", "/api/v1/enrich", body, headers=prefer)
        assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=20")
        assert all(one["context"]["technical_docs"] for one in answer.json()["jobs"])


@pytest.mark.usefixtures("worker")
def test_its_states_come_as_events(call: Callable[..., Any]) -> None:
    url = call("POST", "/api/v1/enrich", {**PBI, "id": "PBI-8"}).json()["jobs"][0]["url"]
    answer = call("GET", url, headers={"Accept": "text/event-stream"})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [block.split("\n")[0] for block in answer.text.strip().split("\n\n")]
    assert events[-1] == "event: done"
    assert events.count("event: done") == 1
    assert '"technical_docs"' in answer.text


def test_fifty_wait_on_one_connection_while_others_are_served(
    call: Callable[..., Any],
    runtime: Runtime,
    address: str,
    token: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callers, "MAX_WAITING", 50)
    asked = call("POST", "/api/v1/enrich", {**PBI, "id": "PBI-9"}).json()["jobs"][0]
    headers = {"Authorization": f"Bearer {token()}", "Accept": "text/event-stream"}

    def wait() -> tuple[HTTPConnection, HTTPResponse]:
        line = HTTPConnection(urlsplit(address).netloc, timeout=60)
        line.request("GET", asked["url"], headers=headers)
        return line, line.getresponse()

    def connections() -> int:
        count = "select count(*) from pg_stat_activity where datname = current_database()"
        with runtime.database.tenant(ACME.tenant) as connection:
            found: int = connection.execute(
                text(f"{count} and application_name like '%-notif%'")
            ).scalar_one()
            return found

    before = connections()
    waiting = [wait() for _ in range(50)]
    try:
        assert {answer.readline() for _, answer in waiting} == {b"event: queued\n"}
        assert connections() <= before + 1
        with HttpClient(address, token=token()) as client:
            assert client.search("mooring lines", projects=["berth"])["results"]
        one_more = wait()
        assert (one_more[1].status, "Retry-After" in one_more[1].headers) == (429, True)
        for line, answer in (*waiting[40:], one_more):
            answer.close()
            line.close()
        while (again := wait())[1].status == 429:  # a place is free as soon as the server knows who is gone
            again[0].close()
        waiting[40:] = [again]
        job.run(runtime, ACME.tenant, UUID(asked["id"]))
        for _, answer in waiting:
            assert b"event: done\n" in answer.read()
    finally:
        for line, _ in waiting:
            line.close()


def cited(answer: Any) -> set[str]:
    (one,) = answer.json()["jobs"]
    return {item["ref"] for item in one["context"]["technical_docs"]}


@pytest.mark.usefixtures("worker")
@pytest.mark.req("001-115")
def test_an_answer_holds_what_its_asker_may_see(call: Callable[..., Any]) -> None:
    def ask(**changes: Any) -> Any:
        body = {
            "pbi": PBI,
            "topK": 20,
            "filters": {"readers": ["group:board"], "security_levels": ["restricted"]},
        }
        return call("POST", "/api/v1/enrich", body, headers={"Prefer": "wait=20"}, **changes)

    assert cited(ask(subject="bob")) <= {"public-0", "internal-0"}
    assert cited(ask(subject="bob", level="public")) <= {"public-0"}
    ann = ask(level="confidential", groups=("harbour", "board"))
    assert cited(ann) - {"public-0", "internal-0"}, "who may see more gets more"
    url = ann.json()["jobs"][0]["url"]
    assert call("GET", url, level="confidential", groups=("harbour", "board")).status_code == 200
    for fewer in ({"subject": "bob"}, {"level": "internal"}, {"groups": ()}, {"projects": ("empty",)}):
        rights = {"level": "confidential", "groups": ("harbour", "board"), **fewer}
        assert call("GET", url, **rights).status_code == 404, fewer


def test_what_is_wrong_is_said(call: Callable[..., Any]) -> None:
    path = "/api/v1/enrich"
    assert call("GET", f"{path}/{uuid4()}").status_code == 404
    assert call("GET", f"{path}/x").status_code == 422
    wrong: tuple[Any, ...] = (
        {},
        [],
        "text",
        3,
        {"pbi": {}},
        [{"title": ""}],
        {"pbi": {"title": 3}, "topK": "x"},
    )
    for body in wrong:
        answer = call("POST", path, body)
        assert answer.status_code == 422, (body, answer.text)
        assert answer.json()["detail"]
    assert call("POST", path, [PBI] * 201).status_code == 422
    assert call("POST", path, {"pbi": {**PBI, "project": "empty"}}).status_code == 403
    assert call("POST", path, {"pbi": {**PBI, "project": "nowhere"}}).status_code == 404
    assert call("POST", path, {"pbi": PBI, "projects": ["empty"]}).status_code == 403
    assert call("POST", path, {"pbi": PBI, "project": "*"}).status_code == 404, "one item is of one project"
    everywhere = call("POST", path, {"pbi": PBI, "projects": ["*"]})
    assert everywhere.status_code == 202, "all of one's own"


def test_whoever_waits_is_told_by_the_first_sign(
    api: TestClient, call: Callable[..., Any], runtime: Runtime
) -> None:
    state: Any = api.app.state  # type: ignore[attr-defined]
    before = state.notifications
    state.notifications = notifications = JobNotifications(
        runtime.database, runtime.addresses.database, poll=50
    )
    body = {"pbi": {**PBI, "id": "PBI-7", "title": "Whoever waits for the tide"}}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, "POST", "/api/v1/enrich", body, headers={"Prefer": "wait=40"})
        jobs = Ledger(of_tenant(runtime.database, ACME.tenant)).jobs
        while not (notifications._waiting and (ids := jobs.values("id", state="queued"))):
            threading.Event().wait(0.05)
        threading.Event().wait(1)  # until it has looked and waits
        for one in ids:
            job.run(runtime, ACME.tenant, one)
        assert asked.result(20).status_code == 200, "not when it looks again, or the time is over"
    state.notifications = before
    notifications._closed.set()
    with runtime.database.tenant(ACME.tenant) as connection:
        connection.execute(text("notify larder_enriched"))
    notifications.close()


@pytest.mark.parametrize(("depth", "status"), [(900, 422), (100_000, 400)])
def test_what_is_nested_without_end_is_no_fault_of_ours(
    api: TestClient, token: Callable[..., str], depth: int, status: int
) -> None:
    headers = {"Authorization": f"Bearer {token(permissions=frozenset({'admin'}))}"}
    place, deep = project_id(ACME.tenant, "berth"), "[" * depth + "]" * depth
    for path, body in {
        "/api/v1/enrich": f'{{"pbi": {{"title": "x", "more": {deep}}}}}',
        "/api/v1/search": f'{{"text": "x", "metadata": {{"a": {deep}}}}}',
        "/api/v1/knowledge/documents": f'{{"project_id": "{place}", "documents": [{{"title": "d", "text": "x",'
        f' "metadata": {{"a": {deep}}}}}]}}',
    }.items():
        answer = api.post(path, content=body, headers={**headers, "Content-Type": "application/json"})
        assert answer.status_code == status, (path, answer.text)


def test_feedback_is_about_what_one_sees(call: Callable[..., Any], runtime: Runtime) -> None:
    said = {"item": "how are lines checked", "ref": "public-0", "verdict": "useful", "source": "notes-berth"}
    write = {"permissions": frozenset({"read", "write"})}
    assert call("POST", "/api/v1/feedback", said).status_code == 403
    marked = call("POST", "/api/v1/feedback", said, **write)
    assert (marked.status_code, marked.json()["verdict"]) == (200, "useful"), marked.text
    hidden = call("POST", "/api/v1/feedback", {**said, "ref": "confidential-0"}, **write)
    unknown = call("POST", "/api/v1/feedback", {**said, "ref": "confidential-9"}, **write)
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.json()["detail"] == unknown.json()["detail"].replace("-9", "-0")
    # An item that one may not see is none: here it would be the question of a project.
    about = {**said, "project": str(project_id(ACME.tenant, "berth"))}
    told = [
        call("POST", "/api/v1/feedback", {**about, "item": item}, **write)
        for item in ("public-0", "confidential-0")
    ]
    assert [one.status_code for one in told] == [200, 404]
    confidential = {**about, "item": "confidential-0"}
    assert call("POST", "/api/v1/feedback", confidential, **write, level="confidential").status_code == 200
    again = call("POST", "/api/v1/feedback", confidential, **write)
    assert again.status_code == 404, "who may not see it is not told that somebody judged it"
    elsewhere = {**said, "item": "PBI-1", "project": str(project_id(ACME.tenant, "empty"))}
    assert call("POST", "/api/v1/feedback", elsewhere, **write).status_code == 403
