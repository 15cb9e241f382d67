"""One set of methods on either side: with the database's address, and with the API's and a token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline.errors import Forbidden, NotFound, RateLimited, RequestRejected, StoreUnavailable, TokenRefused
from tests.ledger import Ledger, of_tenant
from tests.pipeline.stories.storyteller import story
from tests.workers.api.conftest import ACME, served
from workers.api.client import HttpClient, RAGService
from workers.app.enrichment import job
from workers.app.enrichment.client_interface import KnowledgeClient
from workers.client import Client, EnrichmentExpired, EnrichmentFailed, NoAnswerYet, UnknownJob
from workers.runtime import Runtime
from workers.settings import SettingsError

PBI = {"title": "Check mooring lines before each tide", "project": "berth"}
ALL = frozenset({"read", "write"})


@pytest.fixture(params=["database", "http"])
def client(
    request: pytest.FixtureRequest, runtime: Runtime, address: str, token: Callable[..., str]
) -> Iterator[KnowledgeClient]:
    made: KnowledgeClient
    if request.param == "database":
        where = runtime.addresses
        made = Client(
            where.database, broker_url=where.broker, tenant="acme", project="berth", settings=runtime.settings
        )
    else:
        made = HttpClient(address, token=token(permissions=ALL, projects=("*",), level="confidential"))
    with made:
        yield made


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.05):
            jobs = Ledger(of_tenant(runtime.database, ACME.tenant)).jobs
            for one in jobs.values("id", state="queued"):
                job.run(runtime, ACME.tenant, one)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


def test_both_search_alike(client: KnowledgeClient) -> None:
    found = client.search("mooring lines", k=2, projects=["berth"], explain=True)
    assert (len(found["results"]), found["degradation_level"]) == (2, 0)
    assert all("acme berth" in one["content"] and one["explanation"] for one in found["results"])
    assert client.search("mooring lines", tags=["none has it"])["results"] == []
    for wrong in ({"mode": "psychic"}, {"kinds": ["poem"]}, {"source_types": ["radio"]}):
        with pytest.raises(RequestRejected):
            client.search("mooring lines", **wrong)


@pytest.mark.usefixtures("worker")
def test_both_enrich_alike(client: KnowledgeClient) -> None:
    assert client.enrich(PBI)["technical_docs"]
    asked = client.submit({"pbi": {**PBI, "id": f"PBI-{uuid4()}"}})
    assert client.result(asked, wait=20)["technical_docs"]
    with pytest.raises(UnknownJob):
        client.result(uuid4())
    with pytest.raises(RequestRejected):
        client.submit({"pbi": {}})


def test_both_say_that_there_is_no_answer_yet(client: KnowledgeClient) -> None:
    asked = client.submit({"pbi": {**PBI, "id": f"PBI-{uuid4()}"}})
    with pytest.raises(NoAnswerYet):
        client.result(asked)
    with pytest.raises(NoAnswerYet):
        client.result(asked, wait=0.2)


@pytest.mark.req("002-011")
def test_both_upload_and_mark_alike(client: KnowledgeClient) -> None:
    name = f"{uuid4()}.md"
    taken = client.upload([(name, b"# Bollards\n\nPainted yellow."), ("a.exe", b"MZ")], project="berth")
    assert [one["external_id"] for one in taken["documents"]] == [name]
    assert [one["item"] for one in taken["rejected"]] == ["a.exe"]
    text_of = {"title": "Bollard", "text": "Painted red.", "external_id": str(uuid4())}
    assert len(client.upload(documents=[text_of], project="berth")["documents"]) == 1
    said = client.feedback("how are lines checked", "public-0", "useful", source="notes-berth")
    assert said["verdict"] == "useful"


@pytest.mark.usefixtures("worker")
@pytest.mark.req("000-045", "000-046", "000-047")
def test_both_store_count_and_find_stories_alike(client: KnowledgeClient, runtime: Runtime) -> None:
    mark = uuid4().hex
    before = client.story_stats()["total_stories"]
    given = [{"title": "none"}, *(story(f"{mark} number {n}", source_agent="x") for n in range(101))]
    accepted = client.store_stories(given, "Agent", {"REQ-001": "The system shall"})
    assert (len(accepted.jobs), accepted.accepted) == (2, 101)
    done = client.stored_stories(accepted, wait=30)
    assert (done["stored"], done["skipped"]) == (101, 0)
    assert [number for number, _ in done["refused"]] == [1]
    assert client.stored_stories(accepted) == done
    again = client.store_stories(given[1:])
    assert client.stored_stories(again, wait=30) == {"stored": 0, "skipped": 101, "refused": []}
    stats = client.story_stats()
    assert stats["total_stories"] == before + 101
    assert "x" not in stats["by_source_agent"]
    found = client.search_stories(f"{mark} number 7", k=3, threshold=0.0, tags=["auth"])
    scores = [one["similarity_score"] for one in found]
    assert len(found) == 3
    assert scores == sorted(scores, reverse=True)
    assert {one["requirement_text"] for one in found} == {"The system shall"}
    assert {one["source_agent"] for one in found} == {"Agent"}
    assert client.search_stories(f"{mark} number 7", threshold=0.0, tags=["nobody has it"]) == []
    assert client.search_stories(f"{mark} number 7", threshold=0.0, examples=True)
    assert client.stored_stories(client.embed_stories_anew(), wait=30)["stored"] == 0
    assert client.stored_stories(client.store_stories([]))["stored"] == 0
    runtime.audit_log.flush()


@pytest.mark.req("000-047")
def test_both_say_how_a_job_of_stories_ended(client: KnowledgeClient, runtime: Runtime) -> None:
    accepted = client.store_stories([story(f"{uuid4()} is not there yet")])
    with pytest.raises(NoAnswerYet):
        client.stored_stories(accepted, wait=0.1)
    off = Runtime(
        replace(runtime.settings, rag=runtime.rag.model_copy(update={"enabled": False})), runtime.addresses
    )
    job.run(off, ACME.tenant, accepted.jobs[0])
    off.database.close()
    with pytest.raises(EnrichmentFailed, match="switched off"):
        client.stored_stories(accepted)
    for other in (uuid4(), client.submit({"pbi": {**PBI, "id": f"PBI-{uuid4()}"}})):
        with pytest.raises((UnknownJob, NoAnswerYet)):
            client.stored_stories(replace(accepted, jobs=[other]))


def test_what_the_api_refuses_is_the_error_it_stands_for(address: str, token: Callable[..., str]) -> None:
    with HttpClient(address, token="x") as stranger, pytest.raises(TokenRefused):
        stranger.search("a")
    with HttpClient(address, token=token()) as reader:
        with pytest.raises(Forbidden):
            reader.upload([("a.md", b"# A")], project="berth")
        with pytest.raises(NotFound):
            reader.search("a", projects=["nowhere"])
        with pytest.raises(RequestRejected, match=r"body\.projects"):
            reader.search("a", projects=["berth"] * 101)


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, StoreUnavailable)])
def test_it_asks_again_when_it_is_told(status: int, kind: type[Exception]) -> None:
    asked = []

    async def api(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            later = len(asked) < 3
            headers = [(b"retry-after", b"0")] if later else [(b"content-type", b"application/json")]
            start = {"type": "http.response.start", "status": status if later else 200, "headers": headers}
            await send(start)
            await send({"type": "http.response.body", "body": b"" if later else b'{"results": []}'})

    with served(api, lifespan="off") as address, HttpClient(address, token="x") as client:
        assert client.search("a") == {"results": []}
        assert len(asked) == 3
    with HttpClient(address, token="x") as client, pytest.raises(StoreUnavailable):
        client._once("GET", "/")
    assert issubclass(kind, Exception)


@pytest.mark.req("001-031")
def test_the_service_is_ready_by_one_call(runtime: Runtime, tmp_path: Path) -> None:
    where = runtime.addresses
    storage = {"database": {"url": where.database, "controlUrl": where.control, "adminUrl": where.admin}}
    config = {
        "tenant": "acme",
        "project": "berth",
        "storage": {**storage, "broker": {"url": where.broker}, "data": str(tmp_path)},
        "embedding": {"provider": "hashing", "dimensions": 32},
    }
    with RAGService.initialize(config) as service:
        assert service.search("mooring lines", k=1)["results"]


WRONG_QUESTIONS: tuple[dict[str, Any], ...] = (
    {"text": ""}, {"text": 5}, {"text": "a" * 10_001}, {"k": 0}, {"k": 2**40}, {"k": "3"},
    {"since": datetime(2020, 1, 1)}, {"until": "2020-01-01"},  # noqa: DTZ001 (which has no zone)
)  # fmt: skip


def test_both_take_times_and_odd_letters_and_refuse_what_is_no_question(client: KnowledgeClient) -> None:
    now = datetime.now(UTC)
    found = client.search("mooring lines", since=now - timedelta(days=9000), until=now + timedelta(days=1))
    assert client.search("mooring lines")["results"] == found["results"] or not found["results"]
    assert client.search("mooring\x00 \ud800lines", k=1)["results"]
    for wrong in WRONG_QUESTIONS:
        with pytest.raises(RequestRejected):
            client.search(**{"text": "mooring lines", **wrong})
    with pytest.raises(TypeError, match="tgas"):
        client.search("mooring lines", tgas=["lines"])
    aliased = client.search("mooring lines", source_types=["markdown"])["results"]
    assert client.search("mooring lines", mode="Keyword") == client.search("mooring lines", mode="keyword")
    assert aliased == client.search("mooring lines", source_types=["documentation"])["results"]


def test_both_refuse_what_is_no_job_or_has_no_time(client: KnowledgeClient) -> None:
    for wrong in ("nope", "../projects", ""):
        with pytest.raises(UnknownJob):
            client.result(wrong)
    odd = {**PBI, "id": f"PBI-{uuid4()}", "description": "a\ud800b\x00"}
    with pytest.raises(EnrichmentExpired):
        client.enrich(odd, {"size": float("nan")}, deadline=0)


@pytest.mark.parametrize(
    "wrong", [{"title": ""}, {"title": None}, {"text": ""}, {"kind": "poem"}, {"url": "ftp://x"}]
)
def test_both_refuse_a_document_that_is_none(client: KnowledgeClient, wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected, match=rf"documents\.0\.{next(iter(wrong))}"):
        client.upload(documents=[{"title": "Bollard", "text": "Painted red.", **wrong}], project="berth")


def test_both_say_what_cannot_be_marked(client: KnowledgeClient) -> None:
    with pytest.raises(RequestRejected):
        client.feedback("how are lines checked", "public-0", "splendid")
    empty: tuple[dict[str, Any], ...] = ({"item": ""}, {"ref": ""}, {"item": 5})
    for wrong in empty:
        with pytest.raises(RequestRejected):
            client.feedback(
                **{"item": "how are lines checked", "ref": "public-0", "verdict": "useful", **wrong}
            )
    for item, ref in (("PBI-of-nobody", "public-0"), ("how are lines checked", "nowhere-0")):
        with pytest.raises(NotFound):
            client.feedback(item, ref, "useful", project="berth", source="notes-berth")


@pytest.mark.parametrize(
    "wrong", [{"query": " "}, {"query": "a" * 10_001}, {"k": 0}, {"k": 101}, {"threshold": 2}]
)
def test_both_refuse_what_is_no_question_for_stories(client: KnowledgeClient, wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected):
        client.search_stories(**{"query": "reset a password", **wrong})


def test_over_http_nothing_that_is_given_is_left_unsent(address: str, token: Callable[..., str]) -> None:
    with HttpClient(address, token=token(permissions=ALL)) as client:
        with pytest.raises(RequestRejected, match="two uploads"):
            client.upload([("a.md", b"# A")], [{"title": "b", "text": "c"}], project="berth")
        with pytest.raises(NotFound, match="no such project"):
            client.upload([("a.md", b"# A")], project="nowhere")


@pytest.mark.usefixtures("worker")
def test_a_client_with_a_caller_is_told_what_the_api_would_tell_them(runtime: Runtime) -> None:
    where = runtime.addresses

    def made(**changes: Any) -> Client:
        caller = replace(ACME, **{"permissions": ALL, **changes})
        return Client(
            where.database, tenant="acme", project="berth", settings=runtime.settings, caller=caller
        )

    with made(subject="bob") as bob, made() as ann, made(permissions=frozenset({"read"})) as reader:
        for ref in ("public-1", "confidential-0"):
            with pytest.raises(NotFound) as unseen:
                bob.feedback("how are lines checked", ref, "useful", source="notes-berth")
            assert ref in str(unseen.value)
        assert ann.feedback("how are lines checked", "public-1", "useful", source="notes-berth")["title"]
        name = f"{uuid4()}"
        sent = {"title": name, "text": "Painted red.", "metadata": {"acl": [["user:ann"]]}}
        assert ann.upload(documents=[sent])["documents"]
        assert bob.upload(documents=[sent])["rejected"]
        with pytest.raises(Forbidden):
            reader.upload(documents=[sent])
        with pytest.raises(Forbidden):
            reader.feedback("how are lines checked", "public-1", "useful", source="notes-berth")
        for refused in (partial(reader.store_stories, [story(name)]), reader.embed_stories_anew):
            with pytest.raises(Forbidden):
                refused()
        with made(permissions=frozenset()) as nobody:
            for unread in (partial(nobody.search_stories, name), nobody.story_stats):
                with pytest.raises(Forbidden):
                    unread()
        with pytest.raises(Forbidden):
            ann.upload(documents=[sent], project="empty")
        with pytest.raises(NotFound):
            ann.upload(documents=[sent], project="nowhere")
        assert ann.stored_stories(ann.store_stories([story(name)]), wait=20)["stored"] == 1
        assert ann.search_stories(name, threshold=0.0)
        asked = Ledger(of_tenant(runtime.database, ACME.tenant)).jobs.values("request")
        assert [one["by"] for one in asked if one.get("query") == name] == ["ann"], "for the audit"
    with Client(where.database, tenant="acme", project="berth", settings=runtime.settings) as operator:
        assert operator.upload(documents=[sent])["documents"], "whoever has the password sees everything"


@pytest.mark.req("001-031")
def test_a_configuration_that_is_wrong_is_refused_as_that_of_a_file(tmp_path: Path) -> None:
    hosts = {"security": {"hosts": ["wiki.example.com"]}}
    for config, said in (
        ({"nope": 1}, "configuration: rag: found an unknown key"),
        ({**hosts, "embedding": {"provider": "ollama", "baseUrl": "http://evil.org"}}, "a host of security"),
        ({"sources": [{"name": "a", "type": "markdown", "paths": ["*.md"]}] * 2}, "no other source has"),
    ):
        with pytest.raises(SettingsError, match=said):
            RAGService.initialize(config)
    nowhere = {"url": "postgresql://a:b@127.0.0.1:1/x", "controlUrl": "postgresql://a:b@127.0.0.1:1/x"}
    storage = {"database": nowhere, "broker": {"url": "redis://127.0.0.1:1/0"}, "data": str(tmp_path)}
    with pytest.raises(StoreUnavailable):
        RAGService.initialize({"storage": storage, "embedding": {"provider": "hashing", "dimensions": 32}})
