"""What an asker of Step 4 remembers, and when it is given again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from pipeline.documents import Json
from pipeline.errors import StoreUnavailable
from pipeline.ledger import jobs
from tests.conftest import Addresses
from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import of_connection
from workers.client import Client, EnrichmentExpired
from workers.local import embedded
from workers.monitoring import metrics
from workers.settings import load
from workers.settings.models import ResultCacheSettings, RetrievalSettings

NOWHERE = "postgresql://larder_app:x@127.0.0.1:1/none"
PBI: Json = {"id": "PBI-1", "title": "Warn of shallow water"}
ANSWER: Json = {"similar_work": [{"ref": "PBI-7"}], "degradation_level": 0}


def asker(monkeypatch: pytest.MonkeyPatch, client: Client) -> Callable[..., Json | None]:
    """`ask(found)`: what `enrich` gives if this is the answer, or if there is none; None: it raises."""

    def ask(found: Json | None = None, pbi: Json = PBI, **options: Any) -> Json | None:
        def wait(*_: Any, **__: Any) -> Json:
            if found is None:
                raise StoreUnavailable("the database is away")
            return found

        monkeypatch.setattr(client, "ask", lambda *_, **__: uuid4())
        monkeypatch.setattr(client, "_wait", wait)
        try:
            return client.enrich(pbi, {"overall": 1, "risk": 2}, **options)
        except StoreUnavailable:
            return None

    return ask


def test_the_very_same_question_gets_a_copy_of_its_answer_with_level_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = asker(monkeypatch, Client(NOWHERE))
    given: Json = {"similar_work": [], "degradation_level": 0}
    assert ask(given) == given
    given["similar_work"].append("changed")
    for _ in range(2):
        kept = ask()
        assert kept == {"similar_work": [], "degradation_level": 2}
        kept["similar_work"].append("changed")
    assert ask(pbi=dict(reversed(PBI.items()))) is not None, "the order of keys means nothing"
    assert ask(pbi={**PBI, "title": "Other"}) is None
    assert ask(project="other") is None


@pytest.mark.parametrize(
    ("level", "kept"), [(0, True), (1, True), (2, False), (3, False), (4, False), (5, False)]
)
def test_an_answer_of_need_is_not_kept(monkeypatch: pytest.MonkeyPatch, level: int, kept: bool) -> None:
    ask = asker(monkeypatch, Client(NOWHERE))
    ask({**ANSWER, "degradation_level": level})
    assert (ask() is not None) is kept


def test_time_and_number_are_those_of_the_cache_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def client(**cache: Any) -> Client:
        retrieval = RetrievalSettings(cache=ResultCacheSettings(**cache))
        settings = load(None, {})
        rag = settings.rag.model_copy(update={"retrieval": retrieval})
        return Client.of(replace(settings, rag=rag), NOWHERE, "redis://127.0.0.1:1/0")

    ask = asker(monkeypatch, client(max_entries=2))
    for n in range(3):
        ask(ANSWER, {**PBI, "id": str(n)})
    assert [ask(pbi={**PBI, "id": str(n)}) is not None for n in range(3)] == [False, True, True]
    ask = asker(monkeypatch, client(enabled=False))
    ask(ANSWER)
    assert ask() is None


def answered(addresses: Addresses, client: Client, result: Json) -> Json:
    """Ask, and be the worker that answers."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.enrich, PBI, {}, deadline=20)
        worker = client._database
        while True:
            with worker.tenant(client.tenant) as connection:
                job = client.submit({"pbi": PBI, "scores": {}})
                claimed = jobs.claim(connection, job, lease=10)
                if claimed:
                    jobs.finish(connection, claimed, result, result["degradation_level"])
                    break
            time.sleep(0.05)
        return waiting.result(20)


def fallbacks(reason: str) -> float:
    return float(metrics.FALLBACKS.labels(reason=reason)._value.get())


def test_a_store_that_is_gone_or_workers_that_do_not_answer_leave_what_is_remembered(
    addresses: Addresses, servers: embedded.Servers
) -> None:
    with (
        TcpProxy.to(addresses.app) as proxy,
        Client(proxy.url(addresses.app), tenant="acme", project="app") as client,
    ):
        assert answered(addresses, client, ANSWER) == ANSWER
        proxy.cut()
        before = fallbacks("StoreUnavailable")
        assert client.enrich(PBI, {}) == {**ANSWER, "degradation_level": 2}
        with pytest.raises(StoreUnavailable):
            client.enrich({**PBI, "title": "Never asked"}, {})
        assert fallbacks("StoreUnavailable") == before + 2
        proxy.heal()
        with pytest.raises(EnrichmentExpired):
            client.enrich({**PBI, "title": "Never asked"}, {}, deadline=0.3)


def test_a_silent_database_is_waited_for_once_and_not_by_every_asker(addresses: Addresses) -> None:
    with TcpProxy.to(addresses.app) as proxy, Client(proxy.url(addresses.app), answer_timeout=1) as client:
        client._rest.seconds = 600.0  # however slow this machine is
        client.submit(PBI)
        proxy.freeze()
        with pytest.raises(StoreUnavailable):
            client.submit(PBI)
        for _ in range(20):
            with pytest.raises(StoreUnavailable, match="a moment ago"):
                client.submit(PBI)
        proxy.thaw()
        client._rest.end()
        assert client.submit(PBI)


def test_a_broker_that_breaks_off_is_no_error(addresses: Addresses, servers: embedded.Servers) -> None:
    with (
        TcpProxy.to(servers.broker_url) as proxy,
        Client(
            addresses.app, broker_url=proxy.url(servers.broker_url), tenant="acme", project="app"
        ) as client,
    ):
        client.submit(PBI)
        proxy.cut()
        job = client.submit({**PBI, "id": "PBI-2"})
        with client._database.tenant(client.tenant) as connection:
            unsent = of_connection(connection).jobs.values("id", enqueued_at=None)
        assert unsent == [job], "the pump sends it"
