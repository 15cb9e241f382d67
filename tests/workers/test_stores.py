"""Vector stores beside PostgreSQL as workers, commands and the doctor use them; the store is FAISS in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from sqlalchemy import text

from pipeline.errors import ConfigurationError, NotFound, StoreUnavailable
from pipeline.search.stores import Point, Scope, outbox
from pipeline.search.stores.comparison import points_in_postgres
from pipeline.search.stores.faiss_files import FaissStore
from tests.conftest import Addresses
from tests.ledger import Ledger, ahead
from tests.workers.indexed import index, write_pages
from tests.workers.installed import installed
from workers import runtime as runtimes
from workers import tasks
from workers.app import status, stores
from workers.app.doctor import doctor
from workers.app.ingestion import sync
from workers.local import embedded
from workers.local.supervisor import Supervisor
from workers.queue.celeryconfig import MIRROR
from workers.runtime import Runtime
from workers.settings import load

CONFIG = """
rag:
  provider: {provider}
  embedding: {{provider: hashing, dimensions: 64}}
  retrieval: {{exactBelow: 0}}
  storage: {{local: {{type: faiss, path: vectors, algorithm: flat}}}}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
"""


@pytest.fixture
def broker(servers: embedded.Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers.broker_url) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def here(
    tmp_path: Path,
    addresses: Addresses,
    servers: embedded.Servers,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Runtime]:
    """Twelve pages, indexed; FAISS is configured, and the provider unless a test says otherwise."""
    write_pages(tmp_path, 12)
    monkeypatch.setattr(stores, "_rests", {})
    config = CONFIG.format(provider=getattr(request, "param", "faiss"))
    with installed(tmp_path, addresses, servers, config) as made:
        runtimes.use(made)
        sync.register(made)
        index(made)
        yield made


def row(runtime: Runtime) -> Any:
    with runtime.database.control() as connection:
        return next(iter(outbox.listed(connection)), None)


def carry(runtime: Runtime) -> None:
    """What the worker of the queue does, until nothing is left."""
    for _ in range(50):
        if not stores.mirror(runtime, "faiss") and row(runtime).is_ready:
            return
    raise AssertionError(f"it never ends: {row(runtime)}")


@pytest.mark.req("001-008")
def test_the_provider_is_added_filled_and_asked_by_itself(here: Runtime, broker: redis.Redis) -> None:
    assert row(here) is None
    broker.delete(MIRROR)
    stores.send_mirrors(here)
    assert broker.llen(MIRROR) == 1
    tasks.mirror("faiss")
    carry(here)
    found = status.status(here)["vector_stores"]
    assert (found["answers"], found["stores"][0]["outbox"]) == ("faiss", 0)
    assert stores.check(here, "faiss") | {"milliseconds": 0} == {
        "store": "faiss",
        "status": "ready",
        "problems": [],
        "questions": 12,
        "recall": 1.0,
        "milliseconds": 0,
    }


def test_messages_do_not_pile_up_and_a_task_with_more_to_do_sends_the_next(
    here: Runtime, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        stores.send_mirrors(here)
    assert broker.llen(MIRROR) == stores.MOST_MESSAGES
    broker.delete(MIRROR)
    monkeypatch.setattr(stores, "BUSY_SECONDS", 0.0)
    tasks.mirror("faiss")
    assert broker.llen(MIRROR) > 0


def test_written_chunks_send_a_message_at_once_unless_one_waits(here: Runtime, broker: redis.Redis) -> None:
    broker.delete(MIRROR)
    for _ in range(3):
        stores.ring(here)
    assert broker.llen(MIRROR) == 1
    broker.delete(MIRROR)  # a worker took it
    stores.ring(here)
    assert broker.llen(MIRROR) == 1


def test_a_store_that_cannot_be_opened_stops_nobody_and_is_left_alone_for_a_while(
    here: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def away(_name: str) -> Any:
        opened.append(1)
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(here, "mirror", away)
    assert [stores.mirror(here, "faiss") for _ in range(3)] == [False] * 3
    assert opened == [1]


def test_workers_have_one_for_the_queue_where_a_store_is_configured(here: Runtime) -> None:
    """Of its own: while a store is filled, its messages would take the place of those of the first load."""
    every = Supervisor(settings=here.settings, addresses=here.addresses)
    answering = Supervisor(settings=here.settings, addresses=here.addresses, queues=["control", "enrich"])
    for boss, expected in ((every, True), (answering, False)):
        boss.plan()
        assert ("worker-mirror" in {child.name for child in boss.children}) is expected


def test_a_store_that_a_reload_brings_gets_its_worker(tmp_path: Path) -> None:
    (tmp_path / "larder.yaml").write_text("rag: {}\n", encoding="utf-8")
    boss = Supervisor(settings=load(tmp_path / "larder.yaml", {}), addresses=runtimes.Addresses())
    boss.plan()
    before = [child.name for child in boss.children]
    (tmp_path / "larder.yaml").write_text("rag: {provider: faiss}\n", encoding="utf-8")
    boss.reload_settings()
    assert {child.name for child in boss.children} - {*before} == {"worker-mirror"}


def test_a_paused_store_is_not_asked_for_each_tenant(
    here: Runtime, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    carry(here)
    ledger.stores.set(due_at=ahead(minutes=1))
    ledger.documents.set(hidden=True)
    monkeypatch.setattr(FaissStore, "delete", lambda *_: pytest.fail("it is paused"))
    assert stores.mirror(here, "faiss") is False
    with here.database.control() as connection:
        assert outbox.due_tenants(connection, "faiss") == []


@pytest.mark.req("001-007", "001-075")
@pytest.mark.parametrize("here", ["pgvector"], indirect=True)
def test_a_second_store_is_filled_compared_switched_to_and_back_and_dropped(
    here: Runtime, ledger: Ledger
) -> None:
    def answers() -> str:
        return str(stores.listed(here)["answers"])

    with pytest.raises(ConfigurationError, match="no vector store 'qdrant', it has faiss"):
        stores.add(here, "qdrant")
    with pytest.raises(NotFound):
        stores.switch(here, "faiss")
    assert (stores.mirror(here, "faiss"), row(here)) == (False, None), (
        "nothing is added that nobody asked for"
    )
    assert [stores.add(here, "faiss")["added"] for _ in range(2)] == [True, False]
    with pytest.raises(ConfigurationError, match="not filled"):
        stores.switch(here, "faiss")
    carry(here)
    assert (answers(), stores.check(here, "faiss")["recall"]) == ("pgvector", 1.0)
    assert stores.switch(here, "faiss") == {"store": "faiss", "before": "pgvector"}
    assert answers() == "faiss"
    with pytest.raises(ConfigurationError, match="searches ask"):
        stores.drop(here, "faiss")
    assert stores.switch(here, "pgvector") == {"store": "pgvector", "before": "faiss"}
    assert answers() == "pgvector"
    held = here.mirror("faiss").store
    assert held.stats(Scope(collection="chunks-1")).points > 12
    assert stores.drop(here, "faiss") == {"dropped": True, "emptied": True}
    assert held.stats(Scope(collection="chunks-1")).points == 0
    with here.database.control() as connection:
        triggers = text("select count(*) from pg_trigger where tgname like 'vectors_%'")
        assert connection.execute(triggers).scalar() == 0
    done = [action for action in ledger.audit.values("action") if action.startswith("stores.")]
    assert done == ["stores.add", "stores.switch", "stores.switch", "stores.drop"]


def test_the_provider_is_not_dropped_to_be_added_again(here: Runtime) -> None:
    carry(here)
    stores.switch(here, "pgvector")
    with pytest.raises(ConfigurationError, match="added again"):
        stores.drop(here, "faiss")


@pytest.mark.parametrize("harm", ["lost", "doubled", "emptied"])
def test_the_doctor_finds_and_mends_a_store_that_differs(
    here: Runtime, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(stores, "SETTLE_SECONDS", 0.0)
    carry(here)
    check = next(one for one in doctor.CHECKS if one.name == "vector stores")
    assert check.look(here).status == "ok"
    tenant, held = here.settings.tenant_id, here.mirror("faiss").store
    scope = Scope(collection="chunks-1", tenant=tenant)
    (before,) = {held.stats(scope).points}
    near = held.near(np.ones(64, dtype="f4"), 5, scope)
    if harm == "lost":
        held.delete(scope, [one.id for one in near])
    elif harm == "doubled":
        held.put("chunks-1", [Point(id="x:1", vector=np.ones(64, dtype="f4"), tenant=tenant)])
    else:
        held.delete(Scope(collection="chunks-1"))
    found = check.look(here)
    expected = {
        "lost": f"default: {before - 5} points for {before} chunks, 5 of {before} looked for are missing",
        "doubled": f"default: {before + 1} points for {before} chunks",
        "emptied": f"default: 0 points for {before} chunks, {before} of {before} looked for are missing",
    }
    assert (found.status, found.detail) == ("error", f"faiss: {expected[harm]}")
    assert stores.check(here, "faiss")["problems"] == [expected[harm]]
    assert check.repair is not None
    check.repair(here)
    carry(here)
    assert check.look(here).status == "ok"
    assert held.stats(scope).points == before


def test_the_repair_finds_a_single_lost_point_that_is_in_no_sample(
    here: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SETTLE_SECONDS": 0.0, "SAMPLE": 0, "PAGE": 50}.items():
        monkeypatch.setattr(stores, name, value)
    write_pages(tmp_path, 230)
    index(here)
    carry(here)
    tenant, held = here.settings.tenant_id, here.mirror("faiss").store
    scope = Scope(collection="chunks-1", tenant=tenant)
    with here.database.tenant(tenant) as connection:
        count, ids = points_in_postgres(connection, 1, 1000)
    assert count > 200
    lost = sorted(ids)[-10]
    held.delete(scope, [lost])
    held.put("chunks-1", [Point(id="x:1", vector=np.ones(64, dtype="f4"), tenant=tenant)])

    def finding(*, repair: bool) -> tuple[str, str]:
        every = doctor.examine(here, repair=repair)
        return next((one.status, one.detail) for one in every if one.check == "vector stores")

    assert finding(repair=False)[0] == "ok", "counts are equal"
    size = count % 50 or 50
    detail = f"faiss: default: {count} points, 1 of {size} looked for are missing"
    assert finding(repair=True) == ("ok", f"repaired: {detail}")
    carry(here)
    assert held.stats(scope, [lost, "x:1"]).present == {lost}
    assert held.stats(scope).points == count


def test_what_is_on_its_way_is_no_difference(
    here: Runtime, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    monkeypatch.setattr(stores, "SETTLE_SECONDS", 0.0)
    carry(here)
    ledger.documents.set("%1.md", hidden=True)
    held, scope = here.mirror("faiss").store, Scope(collection="chunks-1", tenant=here.settings.tenant_id)
    ledger.documents.set("%2.md", kind="work")
    with here.database.tenant(here.settings.tenant_id) as connection:
        waiting = outbox.waiting_points(connection, "faiss")
    held.delete(scope, sorted(waiting))
    assert stores.check(here, "faiss")["problems"] == []
    ledger.outbox.clear()
    assert stores.check(here, "faiss")["problems"] != []
