"""Vector stores beside PostgreSQL as workers, commands and the doctor use them; the store is FAISS in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text

from pipeline.errors import StoreUnavailable
from pipeline.search.stores import outbox
from pipeline.search.stores.faiss_files import FaissStore
from tests.conftest import Addresses
from tests.workers.indexed import index, write_pages
from tests.workers.installed import installed
from workers import runtime as runtimes
from workers import tasks
from workers.app import status, stores
from workers.app.ingestion import sync
from workers.local import embedded
from workers.processes import run as processes
from workers.queue.celeryconfig import MIRROR
from workers.runtime import Runtime

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
    monkeypatch.setattr(stores, "_rung_at", {})
    config = CONFIG.format(provider=getattr(request, "param", "faiss"))
    with installed(tmp_path, addresses, servers, config) as made:
        runtimes.use(made)
        sync.register(made)
        index(made)
        yield made


def row(parts: Runtime) -> Any:
    with parts.database.control() as connection:
        return next(iter(outbox.listed(connection)), None)


def carry(parts: Runtime) -> None:
    """What the worker of the queue does, until nothing is left."""
    for _ in range(50):
        if not stores.mirror(parts, "faiss") and row(parts).is_ready:
            return
    raise AssertionError(f"it never ends: {row(parts)}")


def sql(parts: Runtime, statement: str) -> Any:
    with parts.database.control() as connection:
        return connection.execute(text(statement))


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


@pytest.mark.parametrize(("queue", "serves"), [("ingest", ["ingest", MIRROR]), ("embed", ["embed"])])
def test_the_worker_of_ingest_serves_the_queue_where_a_store_is_configured(
    here: Runtime, queue: str, serves: list[str]
) -> None:
    assert processes.queues_of(here, queue) == serves


def test_a_paused_store_is_not_asked_for_each_tenant(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    carry(here)
    sql(here, "update vector_store set due_at = now() + interval '1 minute'")
    sql(here, "update document set hidden = true")
    monkeypatch.setattr(FaissStore, "delete", lambda *_: pytest.fail("it is paused"))
    assert stores.mirror(here, "faiss") is False
    with here.database.control() as connection:
        assert outbox.due_tenants(connection, "faiss") == []
