"""What the operator is told of a database that answers slowly, or of a server that says nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.access import Caller
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import RateLimited
from pipeline.ledger import overview, tenant_id
from tests.fakes.tcp_proxy import TcpProxy
from workers.api import callers
from workers.app import status
from workers.app.doctor import doctor, server_checks
from workers.app.ingestion import sync
from workers.local.embedded import locating
from workers.queue import broker
from workers.runtime import Runtime
from workers.settings import load


@pytest.fixture
def proxies(runtime: Runtime) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Before the database and the broker."""
    with TcpProxy.to(runtime.addresses.database) as store, TcpProxy.to(runtime.addresses.broker) as queue:
        yield store, queue


@pytest.fixture
def behind(runtime: Runtime, proxies: tuple[TcpProxy, TcpProxy], tmp_path: Path) -> Iterator[Runtime]:
    """The installation as a command sees it that reaches its own servers by those ways."""
    sync.register(runtime)
    store, queue = proxies
    there = runtime.addresses
    where = replace(
        there,
        database=store.url(there.database),
        control=store.url(there.control),
        broker=queue.url(there.broker),
    )
    servers = {"LARDER_DATABASE_URL": where.database, "LARDER_BROKER_URL": where.broker}
    made = Runtime(load(None, {**servers, "LARDER_DATA": str(tmp_path)}), where)
    made.answer_timeout = 2
    yield made
    for proxy in proxies:
        proxy.heal()
    made.database.close()


def test_a_way_to_the_database_is_measured_alone(behind: Runtime, proxies: tuple[TcpProxy, TcpProxy]) -> None:
    with behind.database.control() as connection:
        assert overview.round_trip(connection) < 0.2
        proxies[0].delay = 0.3
        assert 0.3 <= overview.round_trip(connection) < 0.6


def test_slowness_is_a_warning_of_the_doctor(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_checks.database(behind).status == "ok"
    monkeypatch.setattr(server_checks, "SLOW_SECONDS", 0.2)
    proxies[0].delay = 0.3
    first, *rest = doctor.examine(behind)
    assert first.status == "warning"
    assert "takes 0.3 s for each answer" in first.detail
    assert not {"schema", "orphaned chunks", "audit chain"} & {one.check for one in rest}, (
        "hundreds of questions"
    )
    assert "broker" in {one.check for one in rest}


def test_slowness_is_a_level_and_an_advice_of_the_status(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    found = status.status(behind, told.append)
    assert (found["degradation_level"], told) == (0, [])
    assert "database" not in {step["check"] for step in found["next"]}
    monkeypatch.setattr(HealthOptions, "slow_seconds", 0.2)
    proxies[0].delay = 0.3
    found = status.status(behind, told.append)
    assert found["degradation_level"] == 2
    assert "the database takes 0.3 s for each answer" in {step["detail"] for step in found["next"]}
    assert len(told) == 1
    assert told[0] >= 0.3


def test_of_a_silent_database_nobody_is_told_what_was_seen_before(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def while_somebody_looks() -> tuple[str, str, str]:
        """What others are told at once and after a while, and then who looks."""
        with ThreadPoolExecutor(1) as pool:
            looks = pool.submit(status.recent, behind)
            time.sleep(0.2)
            soon = status.recent(behind)["database"]
            time.sleep(1.5)
            assert not looks.done()
            later = status.recent(behind)["database"]
            return soon, later, looks.result()["database"]

    monkeypatch.setattr(status, "RECENT_SECONDS", -1.0)
    monkeypatch.setattr(status, "SILENT_SECONDS", 1.5)
    assert status.recent(behind)["database"] == "ok"
    proxies[0].freeze()
    assert while_somebody_looks() == ("ok", "error", "error")
    proxies[0].heal()
    assert status.recent(behind)["database"] == "ok"
    monkeypatch.setattr(HealthOptions, "slow_seconds", 0.05)
    proxies[0].delay = 0.25
    assert while_somebody_looks() == ("ok", "ok", "ok"), "a slow one has answered"


def test_the_doctor_tells_frozen_servers_from_those_that_are_gone(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locating, "PING_SECONDS", 0.5)
    for proxy in proxies:
        proxy.freeze()
    frozen = [server_checks.database(behind), server_checks.message_broker(behind)]
    for proxy in proxies:
        proxy.cut()
    gone = [server_checks.database(behind), server_checks.message_broker(behind)]
    assert all(found.status == "error" for found in (*frozen, *gone))
    silent = ("says nothing", "does not answer within")
    assert all(any(words in found.detail for words in silent) and "stopped" in found.fix for found in frozen)
    assert not any(words in found.detail for words in silent for found in gone)
    assert not any("stopped" in found.fix for found in gone)
    assert all("correct LARDER_" in found.fix for found in gone)


def test_a_broker_that_answers_has_no_trouble(behind: Runtime, proxies: tuple[TcpProxy, TcpProxy]) -> None:
    assert broker.connect_problem(behind.addresses.broker) == ""
    proxies[1].freeze()
    assert broker.connect_problem(behind.addresses.broker) == broker.SILENT


def test_a_frozen_broker_costs_one_request_its_time_and_not_each(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(tenant=tenant_id("acme"), tenant_name="acme", subject="ann", projects=("*",))

    async def entered(times: int = 1) -> float:
        """Seconds until so many requests at once are let in."""
        begun = time.monotonic()
        async with AsyncExitStack() as under_way:
            for _ in range(times):
                await under_way.enter_async_context(callers.counted(behind, caller))
            return time.monotonic() - begun

    def seconds() -> float:
        return asyncio.run(entered())

    monkeypatch.setattr(callers.UNCOUNTED, "seconds", 2.0)
    proxies[1].freeze()
    assert seconds() > 1
    assert seconds() + seconds() < 0.5
    proxies[1].heal()
    time.sleep(2.0)
    assert seconds() < 0.5
    limited = behind.rag.api.model_copy(update={"at_once": 1})
    monkeypatch.setattr(behind, "rag", behind.rag.model_copy(update={"api": limited}))
    monkeypatch.setattr(callers, "QUEUE_SECONDS", 0.3)
    with pytest.raises(RateLimited):
        asyncio.run(entered(2))


def test_a_frozen_valkey_beside_rabbitmq_is_an_error_of_the_broker(
    behind: Runtime, proxies: tuple[TcpProxy, TcpProxy]
) -> None:
    beside = replace(behind.addresses, broker="amqp://127.0.0.1:1//", valkey_url=behind.addresses.broker)
    runtime = Runtime(behind.settings, beside)
    assert status.broker_facts(runtime, {})["broker"] == "ok"
    proxies[1].freeze()
    told = status.broker_facts(runtime, {})
    assert told["broker"] == "error"
    assert told["broker_error"].startswith(
        "has a Valkey beside it that accepts connections and does not answer"
    )
