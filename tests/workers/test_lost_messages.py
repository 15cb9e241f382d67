"""Messages that a broker lost are sent again soon; those that wait behind slow work, or are with a worker, are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from pipeline.errors import StoreHindered
from pipeline.ledger import Lane
from tests.workers.indexed import Build, index, write_pages
from workers.app import reindex
from workers.app.ingestion import pump, sync
from workers.app.ingestion.sync import configured_sources
from workers.queue import broker as broker_of
from workers.queue import dispatch
from workers.queue.app import app
from workers.runtime import Runtime

CUTS = broker_of.lists_of("ingest")[broker_of.PRIORITIES.index(Lane.FEW)]
"""Where the message waits by which a few documents are cut."""


@pytest.fixture
def broker(broker: redis.Redis) -> Iterator[redis.Redis]:
    """Without what tests before this one left with their workers."""
    broker.delete("unacked", "unacked_index")
    yield broker
    broker.delete("unacked", "unacked_index")


@pytest.fixture
def sent(build: Build, tmp_path: Path, broker: redis.Redis) -> Runtime:
    """Three pages were walked, and the message to cut them is under way."""
    write_pages(tmp_path, 3)
    runtime = build()
    (one,) = configured_sources(runtime.settings).values()
    run = sync.start_run(runtime, one.tenant_id, one.id, trigger="manual")
    assert run is not None
    assert sync.sync(runtime, one.tenant_id, one.id, run)
    broker.delete("ingest")
    pump.pump_once(runtime)
    assert broker.llen(CUTS) == 1
    broker.delete("control")
    return runtime


def later(omniscient: psycopg.Connection[Any], seconds: float) -> None:
    for table in ("index_work", "sync_run"):
        omniscient.execute(f"update {table} set enqueued_at = enqueued_at - make_interval(secs => {seconds})")


def test_what_a_wiped_broker_lost_is_sent_again_within_15_seconds(
    sent: Runtime, broker: redis.Redis, omniscient: psycopg.Connection[Any]
) -> None:
    assert pump.LOST_SECONDS + sent.rag.queue.tick_seconds < 15
    broker.delete(CUTS)
    pump.pump_once(sent)
    assert broker.llen(CUTS) == 0, "it may be on its way"
    later(omniscient, pump.LOST_SECONDS)
    pump.pump_once(sent)
    assert broker.llen(CUTS) == 1
    pump.pump_once(sent)
    assert broker.llen(CUTS) == 1


def test_trouble_with_another_index_keeps_no_document_waiting(
    build: Build, tmp_path: Path, broker: redis.Redis, omniscient: psycopg.Connection[Any]
) -> None:
    write_pages(tmp_path, 3)
    runtime = build()
    index(runtime)
    reindex.begin(runtime, dimensions=64)
    write_pages(tmp_path, 4)
    (one,) = configured_sources(runtime.settings).values()
    run = sync.start_run(runtime, one.tenant_id, one.id, trigger="manual")
    assert run is not None
    assert sync.sync(runtime, one.tenant_id, one.id, run)
    broker.delete("ingest")
    omniscient.execute(
        "revoke update (walk_tenant, walk_document, walked_at) on search_index from larder_control"
    )
    with pytest.raises(StoreHindered):
        pump.pump_once(runtime)
    assert broker.llen(CUTS) == 1, "it is noted as under way, and nobody was told"


def test_a_walk_whose_message_was_lost_goes_on(
    build: Build, broker: redis.Redis, omniscient: psycopg.Connection[Any]
) -> None:
    runtime = build()
    (one,) = configured_sources(runtime.settings).values()
    assert sync.start_run(runtime, one.tenant_id, one.id, trigger="manual") is not None
    broker.delete("ingest")
    later(omniscient, pump.LOST_SECONDS)
    pump.pump_once(runtime)
    (message,) = broker.lrange(broker_of.lists_of("ingest")[broker_of.PRIORITIES.index(Lane.BULK)], 0, -1)
    assert b'"larder.sync"' in message


def test_what_waits_behind_slow_work_is_not_sent_twice(
    sent: Runtime, broker: redis.Redis, omniscient: psycopg.Connection[Any]
) -> None:
    later(omniscient, sent.rag.queue.resend_after - 10)
    pump.pump_once(sent)
    assert broker.llen(CUTS) == 1
    with app.connection_for_read() as connection, connection.SimpleQueue("ingest") as queue:
        message = queue.get(timeout=5)
        assert broker.llen(CUTS) == 0
        pump.pump_once(sent)
        assert broker.llen(CUTS) == 0, "a worker is at it"
        message.ack()
        pump.pump_once(sent)
        assert broker.llen(CUTS) == 1, "the worker died without a word to the ledger"


@pytest.mark.parametrize("task", dispatch.LISTS)
def test_messages_are_looked_for_where_they_wait(build: Build, broker: redis.Redis, task: str) -> None:
    build()
    dispatch.send(task, priority=Lane.FILL if task == "larder.fill" else None)
    assert broker.exists(*dispatch.LISTS[task]) == 1
