"""Actions that a remote engine asks for: what travels, what is kept, and what a caller is told."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis
from celery import Celery

from pipeline.actions import NAMES, Actions, register_actions
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ledger import jobs
from tests.conftest import Addresses
from tests.ledger import Ledger
from workers import runtime as runtimes
from workers.app.enrichment.job import WorkerParts, run
from workers.app.ingestion import pump
from workers.client import Client
from workers.local import embedded
from workers.queue.app import Request, app
from workers.queue.broker import lists_of
from workers.queue.celeryconfig import ROUTES
from workers.remote_actions import MOST_BYTES, RemoteActions, receive, register_remote_actions
from workers.runtime import Runtime

TEXTS = ["the pilot waits for the tide", "two bollards hold the vessel"]
METHODS = {"larder.embedding.create": "embedding_create", "larder.vector.store": "vector_store", "larder.vector.query": "vector_query"}  # fmt: skip
URGENT, *LATER = lists_of("enrich")
"""Where messages lie: questions that somebody waits for, and loads of texts."""
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's, for results
Registry = dict[str, Callable[..., Any]]


@pytest.fixture
def client(addresses: Addresses, servers: embedded.Servers, broker: redis.Redis) -> Iterator[Client]:
    with Client(
        addresses.app, broker_url=servers.broker_url, tenant="acme", project="app", deadline=30
    ) as made:
        yield made


def message(broker: redis.Redis) -> tuple[str, UUID, UUID, bytes]:
    """(task, tenant, job, everything) of the oldest message, taken from the queue; questions first."""
    raw: Any = next(found for part in (URGENT, *LATER) if (found := broker.rpop(part)))
    whole = json.loads(raw)
    (tenant, job), _, _ = json.loads(base64.b64decode(whole["body"]))
    return whole["headers"]["task"], UUID(tenant), UUID(job), raw + base64.b64decode(whole["body"])


@pytest.fixture
def registry(client: Client, runtime: Runtime, broker: redis.Redis) -> Iterator[Registry]:
    """The remote actions, with a thread that does what a worker does with a message: twice each, as brokers do."""
    made: Registry = {}
    register_remote_actions(made, client)
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            if broker.exists(URGENT, *LATER):
                task, tenant, job, _ = message(broker)
                for _ in range(2):
                    receive(runtime, task, "1", [str(tenant), str(job)], {})

    worker = threading.Thread(target=serve)
    worker.start()
    yield made
    over.set()
    worker.join()


@pytest.mark.req("003-007", "003-008")
def test_remote_actions_answer_as_local_ones_do(registry: Registry) -> None:
    local: Registry = {}
    settings = {"rag": {"embedding_provider": "hashing", "embedding_dimensions": 64}}
    register_actions(local, type("Engine", (), {"settings": settings}))
    assert set(registry) == set(local)
    calls: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("embedding.create", lambda: {"text": TEXTS[0]}),
        ("embedding.create", lambda: {"text": iter(TEXTS), "batch": True}),
        ("vector.query", lambda: {"query": "tide"}),
        ("vector.store", lambda: {"texts": iter(TEXTS), "ids": ("a", "b"), "metadata": [{"n": 1}, {"n": 2}]}),
        ("vector.store", lambda: {"texts": "x", "ids": "x", "embeddings": [1, 0], "collection": "given"}),
        (
            "vector.query",
            lambda: {"embedding": (1.0, 0.0), "collection": "given", "include_embeddings": True},
        ),
        ("vector.store", lambda: {"texts": TEXTS, "ids": ["a"]}),
        ("vector.query", lambda: {"query": "tide", "filter": {"n_gte": {}}}),
        ("embedding.create", lambda: {"text": None}),
    ]
    for name, arguments in calls:
        assert registry[name](state={}, **arguments()) == local[name](state={}, **arguments()), name
    found = registry["vector.query"]({}, "when does the pilot wait for the tide", filter={"n_lt": 2})[
        "results"
    ]
    assert [(one["id"], one["text"], one["metadata"]) for one in found] == [("a", TEXTS[0], {"n": 1})]


@pytest.mark.req("003-002", "003-033")
def test_a_call_delivered_twice_stores_once(registry: Registry) -> None:
    stored = registry["vector.store"]({}, TEXTS, metadata={"type": "rule"})
    found = registry["vector.query"]({}, "tide", k=9)["results"]
    assert sorted(one["id"] for one in found) == sorted(stored["ids"])


def test_a_worker_that_dies_and_another_store_under_the_same_ids(client: Client, ledger: Ledger) -> None:
    RemoteActions(client, seconds=0).vector_store({}, iter(TEXTS))
    assert len({UUID(ident) for ident in ledger.jobs.one()["request"]["ids"]}) == 2


def test_the_same_call_again_is_another_call(registry: Registry) -> None:
    assert registry["vector.query"]({}, "tide")["results"] == []
    registry["vector.store"]({}, TEXTS)
    assert len(registry["vector.query"]({}, "tide")["results"]) == 2


@pytest.mark.req("003-038", "001-118")
def test_collections_belong_to_their_tenant(
    registry: Registry, addresses: Addresses, servers: embedded.Servers
) -> None:
    registry["vector.store"]({}, TEXTS)
    with Client(addresses.app, broker_url=servers.broker_url, tenant="other", deadline=30) as other:
        assert RemoteActions(other).vector_query({}, "tide")["results"] == []
    assert len(registry["vector.query"]({}, "tide")["results"]) == 2


@pytest.mark.req("003-038")
def test_the_message_holds_two_ids_and_no_text(client: Client, broker: redis.Redis) -> None:
    remote = RemoteActions(client, seconds=0)
    calls: dict[str, Callable[[], Any]] = {
        "larder.embedding.create": lambda: remote.embedding_create({}, TEXTS[0]),
        "larder.vector.store": lambda: remote.vector_store({}, TEXTS),
        "larder.vector.query": lambda: remote.vector_query({}, TEXTS[0]),
    }
    for task, call in calls.items():
        answer = call()
        assert answer["error"].startswith("no worker answered within 0 seconds")
        assert broker.exists(URGENT) == (task == "larder.vector.query")  # loads step aside for Step 4
        name, tenant, _, everything = message(broker)
        assert (name, tenant) == (task, client.tenant)
        assert TEXTS[0].encode() not in everything
        assert len(everything) < 2000


def test_the_pump_sends_a_lost_message_to_the_right_task(
    addresses: Addresses, runtime: Runtime, broker: redis.Redis
) -> None:
    with Client(addresses.app, tenant="acme", project="app") as deaf:
        job = deaf.ask("larder.vector.query", {"query": "tide"})
        pump.pump_once(runtime)
        assert message(broker)[:3] == ("larder.vector.query", deaf.tenant, job)
        run(runtime, deaf.tenant, job)
        assert deaf.result(job)["results"] == []


def test_what_cannot_travel_is_refused_at_once(client: Client, broker: redis.Redis) -> None:
    remote = RemoteActions(client)
    for answer in (
        remote.vector_store({}, "x" * MOST_BYTES),
        remote.vector_store({}, "x", embeddings=[float("nan")]),
        remote.vector_store({}, "x", metadata={"x": object()}),
        remote.embedding_create({}, b"bytes"),
    ):
        assert set(answer) == {"error", "success"}
    assert broker.llen("enrich") == 0


@pytest.mark.req("003-026")
def test_workers_embed_with_their_own_model_only(registry: Registry) -> None:
    name = HashingEmbedder(64).model
    assert registry["embedding.create"]({}, "x", model=name, dimensions=64)["model"] == name
    for asked in ({"model": "ada"}, {"dimensions": 32}):
        assert (
            f"the workers embed with {name} of 64" in registry["embedding.create"]({}, "x", **asked)["error"]
        )


@pytest.mark.req("003-039")
def test_workers_that_are_switched_off_serve_none(runtime: Runtime) -> None:
    off = replace(runtime.settings, rag=runtime.rag.model_copy(update={"enabled": False}))
    for made, served in ((Runtime(off, runtime.addresses), False), (runtime, True)):
        answer = Actions(WorkerParts(made, made.settings.tenant_id)).embedding_create({}, "x")
        assert ("embedding" in answer) is served
        assert ("switched off" in answer.get("error", "")) is not served


def test_a_job_of_no_known_task_cannot_be_written(client: Client, ledger: Ledger) -> None:
    client.ask(jobs.ENRICH, {"pbi": {"title": "tide"}})
    with pytest.raises(psycopg.errors.CheckViolation):
        ledger.jobs.set(task="larder.sync")


def answering(runtime: Runtime, *, apps: bool) -> Runtime:
    queue = runtime.rag.queue.model_copy(update={"answer_apps": apps})
    settings = replace(runtime.settings, rag=runtime.rag.model_copy(update={"queue": queue}))
    made = Runtime(settings, runtime.addresses)
    made.__dict__["database"] = runtime.database
    return made


@pytest.fixture(params=["task", "larder.ask"])
def asking(runtime: Runtime, broker: redis.Redis, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Sends a message as an app without this package does, and does with it what a worker does; its answer.

    An app of the release before sends `larder.ask`, and names the task in the first of `args`.
    """
    runtimes.use(answering(runtime, apps=True))
    app.loader.import_default_modules()
    own: Any = Celery(broker=runtime.addresses.broker)

    def ask(*args: Any, task_id: str | None = None, **given: Any) -> Any:
        task = "larder.ask"
        if request.param == "task" and args and ROUTES.get(f"larder.{args[0]}") == "enrich":
            task, args = f"larder.{args[0]}", args[1:]
        sent = own.send_task(task, args=args, kwargs=given, queue="asked", task_id=task_id)
        body = json.loads(base64.b64decode(json.loads(bytes(broker.rpop("asked")))["body"]))  # type: ignore[arg-type]
        app.tasks[task].apply(args=body[0], kwargs=body[1], task_id=sent.id, throw=True)
        return json.loads(bytes(broker.get(f"celery-task-meta-{sent.id}")))["result"]  # type: ignore[arg-type]

    return ask


def test_an_app_without_this_package_gets_what_the_actions_answer(
    asking: Callable[..., Any], runtime: Runtime, ledger: Ledger
) -> None:
    twice = str(UUID(int=7))
    assert asking("vector.store", texts=TEXTS, task_id=twice).get("stored") == 2
    asking("vector.store", texts=TEXTS, task_id=twice)  # delivered again
    assert len(asking("vector.query", query="tide", k=9)["results"]) == 2
    assert asking("enrich", pbi={"title": "Pilots"})["degradation_level"] == 0
    assert set(ledger.jobs.values("tenant_id")) == {runtime.settings.tenant_id}


@pytest.mark.req("001-118")
def test_a_message_cannot_ask_for_more_than_its_tenant_shows_to_all(
    asking: Callable[..., Any], addresses: Addresses, ledger: Ledger
) -> None:
    with Client(addresses.app, tenant="other") as other:
        RemoteActions(other, seconds=0).vector_store({}, "x")
    said = asking("enrich", tenant="other", pbi={"title": "Pilots"})
    assert said == {
        "error": "a message cannot name a tenant: it asks as that of the workers (leave tenant out)",
        "success": False,
    }
    rights = {"security_levels": ["restricted"], "readers": ["user:boss"]}
    asking("enrich", pbi={"title": "Pilots"}, filters=rights)
    asked = ledger.jobs(task="larder.enrich")[0]["request"]["filters"]
    assert asked["readers"] == ["unnamed"]
    assert "restricted" not in asked["security_levels"]


@pytest.mark.parametrize(
    ("args", "given", "said"),
    [
        ((), {}, "larder.ask does not know 'None' (ask for one of enrich, embedding.create,"),
        (({},), {}, "larder.ask does not know '{}'"),
        (("larder.sync",), {}, "larder.ask does not know 'larder.sync'"),
        (("sync",), {}, "larder.ask does not know 'sync'"),
        (("stories.search",), {"query": "x"}, "stories.search"),
        (("enrich",), {}, "pbi"),
        (("enrich",), {"pbi": 7}, "pbi"),
        (("enrich",), {"pbi": {"title": "x"}, "project": {"a": 1}}, "project"),
        (("vector.query",), {"k": 1}, "query"),
        (("vector.store",), {"texts": {"self": 1}, "self": 1, "state": 2}, "texts"),
        (("enrich", "more"), {"pbi": {"title": "x"}}, "args has 1 member too many"),
        (("vector.query", 5), {"query": "x"}, "args has 1 member too many"),
        (("enrich",), {"pbi": {"title": "x"}, "projct": "a"}, "enrich does not take projct"),
        (("vector.query",), {"query": "x", "top_k": 3}, "vector.query does not take top_k"),
        (("vector.store",), {"texts": ["x"], "txts": ["y"]}, "vector.store does not take txts"),
        (("embedding.create",), {"text": "x", "_more": 1}, "embedding.create does not take _more"),
        (("enrich",), {"pbi": {"title": "x"}, "project": "nowhere"}, "'nowhere' holds no documents"),
        (("enrich",), {"pbi": {"title": "x"}, "projects": ["nowhere"]}, "'nowhere' holds no documents"),
        (("enrich",), {"pbi": {"title": "x"}, "project": 5}, "'5' holds no documents"),
        (("embedding.create",), {"text": "x" * MOST_BYTES}, "a remote one may have 8000000"),
    ],
)
def test_a_wrong_message_is_told_so(
    asking: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], said: str
) -> None:
    found = asking(*args, **given)
    assert found["success"] is False
    assert said in found["error"]


def test_without_leave_of_the_operator_the_asker_is_told_at_once(
    runtime: Runtime, asking: Callable[..., Any], ledger: Ledger
) -> None:
    runtimes.use(answering(runtime, apps=False))
    said = asking("vector.query", query="tide")
    assert said["success"] is False
    assert "rag.queue.answerApps" in said["error"]
    assert len(ledger.jobs()) == 0


def test_neither_logs_nor_flower_see_what_an_app_asks(runtime: Runtime) -> None:
    message: Any = SimpleNamespace(
        headers={}, body=b"", payload=((), {}, {}), delivery_info={}, properties={}
    )
    message.content_type = message.content_encoding = None
    head = {
        "id": "1",
        "task": "larder.ask",
        "shadow": "x",
        "argsrepr": "('tide',)",
        "kwargsrepr": "{'a': 'tide'}",
    }
    made = Request(message, app=app, headers=head)
    assert "tide" not in repr(made.info())
    for task in ("larder.enrich", "larder.vector.query"):
        for texts in ("('tide',)", "()", "('tide', '7')"):
            made = Request(message, app=app, headers={**head, "task": task, "argsrepr": texts})
            assert "tide" not in repr(made.info())
        for ids in (repr((str(UUID(int=1)), str(UUID(int=2)))), repr([str(UUID(int=1)), str(UUID(int=2))])):
            made = Request(message, app=app, headers={**head, "task": task, "argsrepr": ids})
            assert made.info()["args"] == ids
            assert "tide" not in repr(made.info())


def test_every_task_has_a_method_and_a_queue() -> None:
    app.loader.import_default_modules()
    assert set(METHODS.values()) == set(NAMES)
    assert all(ROUTES[task] == "enrich" and task in app.tasks for task in METHODS)
