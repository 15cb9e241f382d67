"""Workers that look into the ledger themselves, while there is no broker to tell them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Addresses
from tests.fakes.tcp_proxy import TcpProxy
from tests.pipeline.stories.storyteller import story
from workers import runtime as runtimes
from workers.app.enrichment import job as enriching
from workers.client import Client, NoAnswerYet
from workers.local import embedded
from workers.processes.broker_outage import LedgerPoller
from workers.runtime import Runtime
from workers.settings import load

PBI = {"id": "PBI-1", "title": "Warn of shallow water"}


@pytest.fixture
def proxy(servers: embedded.Servers) -> Iterator[TcpProxy]:
    with TcpProxy.to(servers.broker_url) as made:
        yield made


@pytest.fixture
def runtime(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, proxy: TcpProxy
) -> Iterator[Runtime]:
    (tmp_path / "larder.yaml").write_text("rag: {embedding: {provider: hashing}}")
    where = runtimes.Addresses(
        database=addresses.app,
        control=addresses.control,
        admin=addresses.admin,
        broker=proxy.url(servers.broker_url),
    )
    made = Runtime(load(tmp_path / "larder.yaml", {}), where)
    yield made
    made.database.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)


def test_it_answers_while_the_broker_is_away_and_only_then(
    runtime: Runtime, proxy: TcpProxy, addresses: Addresses
) -> None:
    line = LedgerPoller(runtime, look=0.1, back=0.5)
    line.start()
    with Client(addresses.app) as client:
        first = client.submit(PBI)
        with pytest.raises(NoAnswerYet):
            client.result(first, wait=1)
        proxy.cut()
        assert client.result(first, wait=20)["degradation_level"] == 0
        proxy.heal()
        until(lambda: not line._needed())
        second = client.submit({**PBI, "id": "PBI-2"})
        with pytest.raises(NoAnswerYet):
            client.result(second, wait=1)
        line.close()
        assert client.job(second).crash_count == 0
    assert not line._thread.is_alive()


def test_jobs_of_every_task_are_done_by_their_own_work(
    runtime: Runtime, proxy: TcpProxy, addresses: Addresses
) -> None:
    proxy.cut()
    line = LedgerPoller(runtime, look=0.1)
    line.start()
    with Client(addresses.app) as client:
        stored = client.ask("larder.vector.store", {"texts": ["Wait for the tide."], "ids": ["a"]})
        assert client.result(stored, wait=20) == {"stored": 1, "collection": "default", "ids": ["a"]}
        hits = client.result(client.ask("larder.vector.query", {"query": "tide"}), wait=20)["results"]
        assert [hit["id"] for hit in hits] == ["a"]
        assert client.stored_stories(client.store_stories([story("see tides")]), wait=20)["stored"] == 1
    line.close()


def test_a_database_that_is_away_as_well_is_waited_for(
    runtime: Runtime, proxy: TcpProxy, addresses: Addresses
) -> None:
    with TcpProxy.to(addresses.app) as store, Client(addresses.app) as client:
        behind = runtimes.Addresses(
            database=store.url(addresses.app),
            control=store.url(addresses.control),
            admin=addresses.admin,
            broker=runtime.addresses.broker,
        )
        worker = Runtime(runtime.settings, behind)
        line = LedgerPoller(worker, look=0.1)
        store.cut()
        proxy.cut()
        line.start()
        job = client.submit(PBI)
        with pytest.raises(NoAnswerYet):
            client.result(job, wait=1)
        store.heal()
        assert client.result(job, wait=20)["degradation_level"] == 0
        line.close()
        worker.database.close()


def test_the_ledger_is_told_how_answers_are_made_as_soon_as_it_is_there(
    runtime: Runtime, addresses: Addresses
) -> None:
    with TcpProxy.to(addresses.control) as store, Client(addresses.app) as client:
        first = client.submit(PBI)
        enriching.run(runtime, client.tenant, first)
        assert client.submit(PBI) == first
        r = runtime.rag.retrieval.model_copy(update={"candidates": 77})
        settings = replace(runtime.settings, rag=runtime.rag.model_copy(update={"retrieval": r}))
        worker = Runtime(settings, replace(runtime.addresses, control=store.url(addresses.control)))
        line = LedgerPoller(worker, look=0.1)
        store.cut()
        line.start()
        time.sleep(0.5)
        assert client.submit(PBI) == first
        store.heal()
        until(lambda: client.submit(PBI) != first)
        line.close()
        worker.database.close()
