"""The client that any pipeline imports: what it loads, what it sends, and what it says when something is away."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import redis

from pipeline.database.engine import SPARE_CONNECTIONS
from pipeline.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    LarderError,
    RequestRejected,
    SearchError,
    StoreUnavailable,
)
from pipeline.ledger import jobs
from pipeline.ledger.jobs import BULK
from tests.conftest import Addresses
from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import Ledger, ago
from workers.app.enrichment import job as enriching
from workers.app.enrichment.messaging import JobNotifications
from workers.app.ingestion import maintenance, pump, steps
from workers.client import Client, EnrichmentExpired, EnrichmentFailed, NoAnswerYet, UnknownJob
from workers.local import embedded
from workers.runtime import Runtime

ROOT = Path(__file__).parents[2]
SECRET = "a sentence that must not leave the database"
PBI = {"id": "PBI-1", "title": SECRET, "description": SECRET}
SQL = psycopg.Connection[Any]


@pytest.fixture
def client(addresses: Addresses, servers: embedded.Servers, broker: redis.Redis) -> Iterator[Client]:
    with Client(addresses.app, broker_url=servers.broker_url, tenant="acme", project="app") as made:
        yield made


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Stands for the enrichment itself."""
    return {"similar_work": [], "title": request["pbi"]["title"], "degradation_level": 0}


def work(runtime: Runtime, job: UUID, enrich: Any = answer) -> None:
    enriching.run(runtime, runtime.settings.tenant_id, job, enrich)


# What it loads and what it sends ------------------------------------------------------------------


def test_importing_it_and_waiting_with_it_load_no_celery(addresses: Addresses) -> None:
    script = f"""
import sys
from workers.client import Client, NoAnswerYet
with Client({addresses.app!r}) as client:
    job = client.submit({{"id": "1", "title": "a"}})
    try:
        client.result(job, wait=0.3)
    except NoAnswerYet:
        print(sorted(m for m in ("celery", "kombu", "openvino", "tokenizers", "fastapi") if m in sys.modules))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


def test_telling_the_workers_loads_no_celery_either(addresses: Addresses, servers: embedded.Servers) -> None:
    script = f"""
import sys
from workers.client import Client
with Client({addresses.app!r}, broker_url={servers.broker_url!r}) as client:
    client.submit({{"id": "1", "title": "a"}})
print("celery" in sys.modules, "kombu" in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "False True"


def test_a_message_holds_two_ids_and_no_text_and_waits_where_its_priority_says(
    client: Client, broker: redis.Redis
) -> None:
    urgent, bulk = client.submit(PBI), client.submit({**PBI, "id": "PBI-2"}, priority=BULK)
    for job, queue in ((urgent, "enrich"), (bulk, "enrich\x06\x166")):
        (message,) = broker.lrange(queue, 0, -1)
        assert SECRET.encode() not in message
        assert len(message) < 1500
        body = base64.b64decode(json.loads(message)["body"])
        assert body.startswith(f'[["{client.tenant}", "{job}"], {{}}'.encode())


def test_the_same_question_is_one_message(client: Client, broker: redis.Redis) -> None:
    assert client.submit(PBI) == client.submit({"pbi": PBI, "scores": {}})
    assert client.submit(PBI) == client.submit({"PBI": PBI, "projectId": "app", "filters": {}})
    assert broker.llen("enrich") == 1
    assert client.submit(PBI, projects="*") == client.submit({"pbi": PBI, "Projects": ["*"]})


def test_what_one_worker_answered_is_not_given_again_where_another_way_serves(
    client: Client, runtime: Runtime
) -> None:
    first = client.submit(PBI)
    work(runtime, first)
    assert client.submit(PBI) == first
    section = runtime.rag.retrieval.model_copy(update={"candidates": 77})
    rag = runtime.rag.model_copy(update={"retrieval": section})
    other = Runtime(replace(runtime.settings, rag=rag), runtime.addresses)
    work(other, client.submit({"title": "another"}))
    other.database.close()
    assert client.submit(PBI) != first


def test_without_a_broker_the_pump_sends_the_message(
    addresses: Addresses, runtime: Runtime, broker: redis.Redis
) -> None:
    with Client(addresses.app, tenant="acme", project="app") as client:
        client.submit(PBI)
        assert broker.llen("enrich") == 0
        pump.pump_once(runtime)
        assert broker.llen("enrich") == 1
        pump.pump_once(runtime)
        assert broker.llen("enrich") == 1


def test_a_broker_that_is_away_is_no_error_and_the_pump_sends_later(
    addresses: Addresses, runtime: Runtime, broker: redis.Redis
) -> None:
    with Client(addresses.app, broker_url="redis://127.0.0.1:1/0", tenant="acme", project="app") as client:
        begun = time.monotonic()
        job = client.submit(PBI)
        assert time.monotonic() - begun < 60
        pump.pump_once(runtime)
        assert broker.llen("enrich") == 1
        work(runtime, job)
        assert client.result(job)["title"] == SECRET


# Waiting ------------------------------------------------------------------------------------------


def test_a_waiter_is_woken_at_once(
    client: Client, runtime: Runtime, omniscient: SQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.client.LOOK_SECONDS", 240.0)  # so that looking by itself would come too late
    client._notifications._poll = 240.0
    job = client.submit(PBI)
    waits = []

    def wait() -> None:
        client.result(job, wait=240)
        waits.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.7)
    assert not waits
    work(runtime, job)
    done = time.monotonic()
    thread.join(120)
    assert waits[0] - done < 60
    client._notifications._closed.set()
    omniscient.execute(f"notify {jobs.CHANNEL}, ''")  # or closing would wait for the next look


def test_a_notification_that_is_lost_costs_a_second(
    addresses: Addresses, runtime: Runtime, omniscient: SQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.client.LOOK_SECONDS", 240.0)
    with Client(addresses.app, tenant="acme", project="app") as client, ThreadPoolExecutor(1) as pool:
        job = client.submit(PBI)
        waiting = pool.submit(client.result, job, wait=90)
        time.sleep(0.5)
        # The listener's connection dies, and with it the notification.
        omniscient.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'larder-notifications'"
            " and datname = current_database()"
        )
        work(runtime, job)
        assert waiting.result(60)["title"] == SECRET


def test_looking_finds_what_nobody_told(
    addresses: Addresses, runtime: Runtime, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.client.LOOK_SECONDS", 240.0)
    with Client(addresses.app, tenant="acme", project="app") as client, ThreadPoolExecutor(1) as pool:
        job = client.submit(PBI)
        waiting = pool.submit(client.result, job, wait=90)
        time.sleep(0.5)
        ledger.jobs.set(job, state="done", result={"x": 1}, finished_at=ago())
        assert waiting.result(60) == {"x": 1}


def test_many_in_flight_share_one_listening_connection(
    client: Client, runtime: Runtime, omniscient: SQL
) -> None:
    made = [client.submit({"id": str(n), "title": str(n)}) for n in range(30)]
    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(client.result, job, wait=30) for job in made]
        time.sleep(0.5)
        count = "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s"
        assert omniscient.execute(count, ("larder-notifications",)).fetchone() == (1,)
        for job in reversed(made):
            work(runtime, job)
        assert [w.result(20)["title"] for w in waiting] == [str(n) for n in range(30)]


def test_asking_and_waiting_in_one(client: Client, runtime: Runtime) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.enrich, PBI, {"overall": 1})
        job = client.submit({"pbi": PBI, "scores": {"overall": 1}})
        work(runtime, job)
        assert waiting.result(60)["title"] == SECRET


# Errors -------------------------------------------------------------------------------------------


def test_no_answer_yet_says_so_and_keeps_the_job(client: Client) -> None:
    job = client.submit(PBI)
    with pytest.raises(NoAnswerYet, match="waits for a worker"):
        client.result(job)
    with pytest.raises(NoAnswerYet):
        client.result(job, wait=0.2)
    with pytest.raises(EnrichmentExpired, match="within"):
        client.enrich(PBI, {}, deadline=0.3)


def test_what_fails_says_why_without_a_word_of_the_text(
    client: Client, runtime: Runtime, ledger: Ledger
) -> None:
    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise SearchError("pbi.title is int, not a text", fix="send it as text")

    def stumble(request: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(request["pbi"]["title"])

    for n, (broken, words) in enumerate(((refuse, "pbi.title is int"), (stumble, "unexpectedly .KeyError"))):
        job = client.submit({**PBI, "id": str(n)})
        work(runtime, job, broken)
        with pytest.raises(EnrichmentFailed, match=words) as caught:
            client.result(job)
        assert SECRET not in str(caught.value)
    for error in ledger.jobs.values("error"):
        assert SECRET not in error


def test_what_may_pass_is_tried_again_and_not_for_ever(client: Client, runtime: Runtime) -> None:
    tried = []

    def away(_: dict[str, Any]) -> dict[str, Any]:
        tried.append(1)
        raise EmbedderUnavailable("the model is away", retry_after=0.0)

    job = client.submit(PBI)
    for _ in range(5):
        work(runtime, job, away)
    assert len(tried) == 3
    with pytest.raises(EnrichmentFailed, match="the model is away"):
        client.result(job)


def test_one_whose_lease_is_short_is_kept_while_it_works(client: Client, runtime: Runtime) -> None:
    runtime.__dict__["job_limits"] = jobs.JobLimits(lease=1.5, resend=0)

    def slow(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(3)
        with runtime.database.control() as connection:
            assert jobs.pump_once(connection, steps.job_limits(runtime.rag)) == []
        return answer(request)

    job = client.submit(PBI)
    work(runtime, job, slow)
    assert client.result(job)["title"] == SECRET


def test_a_slow_database_does_not_make_its_worker_look_dead(
    client: Client, runtime: Runtime, addresses: Addresses
) -> None:
    """Three ways take the claim, and three more its renewal; meanwhile a pump with a fast way looks all the time."""
    over = threading.Event()

    def pump() -> None:
        while not over.wait(0.02):
            with runtime.database.control() as connection:
                jobs.pump_once(connection, jobs.JobLimits(resend=60))

    def enrich(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(4)
        return answer(request)

    job = client.submit(PBI)
    pumping = threading.Thread(target=pump)
    with TcpProxy.to(addresses.app) as proxy:
        slow = Runtime(runtime.settings, replace(runtime.addresses, database=proxy.url(addresses.app)))
        slow.__dict__["job_limits"] = jobs.JobLimits(lease=2)
        with (
            slow.database.tenant(runtime.settings.tenant_id),
            slow.database.tenant(runtime.settings.tenant_id),
        ):
            pass  # both are connected, the job's and the lease's
        proxy.delay = 0.55
        pumping.start()
        try:
            work(slow, job, enrich)
        finally:
            over.set()
            pumping.join()
        proxy.delay = 0
        slow.database.close()
    assert client.job(job).state == "done"


@pytest.mark.parametrize("wanted", ["82de78ef-2081-4b46-986b-9ea6ffe5365c", "nonsense"])
def test_an_unknown_job_is_a_sentence(client: Client, wanted: str) -> None:
    client.submit(PBI)
    with pytest.raises(UnknownJob, match=wanted):
        client.result(wanted, wait=1)


def test_another_tenants_job_is_unknown(client: Client, addresses: Addresses, runtime: Runtime) -> None:
    job = client.submit(PBI)
    work(runtime, job)
    with Client(addresses.app, tenant="other") as other, pytest.raises(UnknownJob):
        other.result(job)


def test_answers_go_with_upkeep_after_their_time(client: Client, runtime: Runtime, ledger: Ledger) -> None:
    job = client.submit(PBI)
    work(runtime, job)
    maintenance.trim(runtime)
    assert client.result(job)
    ledger.jobs.set(finished_at=ago(hours=25))
    maintenance.trim(runtime)
    with pytest.raises(UnknownJob, match="resultsKeptHours"):
        client.result(job)


def test_a_database_that_is_away_is_told_at_once_when_asking() -> None:
    with Client("postgresql://larder_app:x@127.0.0.1:1/larder") as client:
        begun = time.monotonic()
        for ask in (lambda: client.submit(PBI), lambda: client.result(uuid4()), lambda: client.enrich(PBI)):
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            assert isinstance(caught.value, LarderError)
            assert "x@" not in str(caught.value)
        assert time.monotonic() - begun < 60


def test_a_database_that_comes_back_is_waited_for(client: Client, runtime: Runtime, omniscient: SQL) -> None:
    job = client.submit(PBI)
    name = omniscient.info.dbname
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(
            omniscient.info.dsn, autocommit=True, password=omniscient.info.password, dbname="postgres"
        ) as admin,
    ):
        waiting = pool.submit(client.result, job, wait=120)
        time.sleep(0.3)
        admin.execute(f'alter database "{name}" allow_connections false')
        try:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and usename = 'larder_app'",
                (name,),
            )
            time.sleep(1.5)
            assert not waiting.done()
        finally:
            admin.execute(f'alter database "{name}" allow_connections true')
        work(runtime, job)
        assert waiting.result(10)["title"] == SECRET


def test_closing_ends_the_thread(addresses: Addresses, runtime: Runtime) -> None:
    notifications = JobNotifications(runtime.database, addresses.app, poll=0.2)
    with notifications.watch(runtime.settings.tenant_id, [uuid4()], list):
        pass
    notifications.close()
    assert notifications._thread is not None
    assert not notifications._thread.is_alive()


def test_one_whose_event_loop_is_closed_keeps_nobody_from_being_woken(
    client: Client, runtime: Runtime
) -> None:
    notifications = JobNotifications(runtime.database, runtime.addresses.database, poll=0.2)
    gone, loop = client.submit({"id": "1", "title": "a"}), asyncio.new_event_loop()
    loop.close()
    woken, job = threading.Event(), client.submit(PBI)
    with notifications.watch(client.tenant, [gone], lambda: loop.call_soon_threadsafe(list)):
        work(runtime, gone)
        time.sleep(1)
        with notifications.watch(client.tenant, [job], woken.set):
            assert woken.wait(20)
    notifications.close()


def test_a_time_without_a_free_connection_does_not_end_the_notifications(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifications = JobNotifications(runtime.database, runtime.addresses.database, poll=0.2)
    monkeypatch.setattr(runtime.database.app.pool, "_timeout", 0.2)
    woken, job = threading.Event(), client.submit(PBI)
    with ExitStack() as held:
        for _ in range(runtime.rag.storage.database.pool_size + SPARE_CONNECTIONS):
            held.enter_context(runtime.database.tenant(client.tenant))
        with notifications.watch(client.tenant, [client.submit({"id": "1", "title": "a"})], list):
            time.sleep(1)
    with notifications.watch(client.tenant, [job], woken.set):
        work(runtime, job)
        assert woken.wait(20)
    notifications.close()


def test_what_is_no_request_is_refused_before_anybody_is_asked() -> None:
    with Client("postgresql://larder_app:x@127.0.0.1:1/larder") as client:
        for ask in (client.submit, client.enrich):
            with pytest.raises(RequestRejected, match="neither a title nor a description"):
                ask({"id": "PBI-1", "title": "  "})
            with pytest.raises(RequestRejected, match=r"pbi.title is a list, not a text"):
                ask({"pbi": {"title": ["a"]}, "scores": {}})
            with pytest.raises(RequestRejected, match="projects is a list, not a list of texts"):
                ask(PBI, projects=[7])  # type: ignore[list-item]


def test_an_address_of_no_postgresql_is_refused_and_not_quoted() -> None:
    for address in ("", "host/larder", "mysql://u:hush@host/larder"):
        with pytest.raises(ConfigurationError, match="no address of a PostgreSQL") as caught:
            Client(address)
        assert "hush" not in str(caught.value)


def test_a_broker_that_would_take_messages_in_vain_is_refused_and_not_quoted() -> None:
    for address in ("sqs://u:hush@host//", "host/0"):
        with pytest.raises(ConfigurationError, match="no address of a Valkey, Redis or RabbitMQ") as caught:
            Client("postgresql://u@h/larder", broker_url=address)
        assert "hush" not in str(caught.value)
