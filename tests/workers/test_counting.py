"""Counting the words of millions of chunks takes minutes: the pump has it done and goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.ledger import due_work
from tests.ledger import Ledger, of_connection
from tests.workers.indexed import Build
from workers.app.ingestion import maintenance, pump, steps, sync
from workers.app.ingestion.sync import configured_sources
from workers.runtime import Runtime


@pytest.fixture
def runtime(build: Build, tmp_path: Path) -> Runtime:
    """A runtime with a run whose documents are all through; nothing of it was counted."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Herons\n\nA text about herons.\n")
    runtime = build(16)
    sync.register(runtime)
    (one,) = configured_sources(runtime.settings).values()
    run = sync.start_run(runtime, one.tenant_id, one.id, trigger="manual")
    assert run is not None
    assert sync.sync(runtime, one.tenant_id, one.id, run)
    indexer = steps.indexer(runtime, one.tenant_id)
    for step in (indexer.chunk, indexer.embed, indexer.upsert):
        with runtime.database.control() as connection:
            of_connection(connection).documents.set({"state": "pending"}, enqueued_at=None)
            found = due_work.pump_once(connection, steps.limits(runtime.rag))
        assert found is not None
        for batch in found.batches:
            step(batch.tenant_id, batch.items)
    return runtime


def asked_for(broker: redis.Redis, task: str) -> int:
    return sum(task.encode() in message for message in broker.lrange("control", 0, -1))


def states(database: Database) -> list[str]:
    with database.control() as connection:
        return of_connection(connection).runs.values("state")


def test_the_pump_counts_no_words_and_closes_a_run_when_they_are_counted(
    runtime: Runtime, broker: redis.Redis, ledger: Ledger
) -> None:
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        # Whoever counts at this moment may take as long as it takes.
        lock = text("select pg_advisory_xact_lock(hashtext('larder.statistics'), hashtext(:t))")
        connection.execute(lock, {"t": str(runtime.settings.tenant_id)})
        done = threading.Thread(target=pump.pump_once, args=(runtime,))
        done.start()
        done.join(10)
        assert not done.is_alive()
        maintenance.refresh_statistics(runtime)  # nor is it counted twice at once
    assert states(runtime.database) == ["processing"]
    assert asked_for(broker, "larder.upkeep.statistics") == 1
    assert asked_for(broker, "larder.upkeep.build") == 1, "while others count"
    maintenance.refresh_statistics(runtime)
    assert ledger.lexemes()
    pump.pump_once(runtime)
    assert states(runtime.database) == ["finished"]
    assert asked_for(broker, "larder.upkeep.statistics") == 1
