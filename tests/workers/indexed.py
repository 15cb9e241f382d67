"""Everything configured, indexed at once in this process, without a queue."""

from __future__ import annotations

from sqlalchemy import text

from pipeline.ledger import pump as ledger_pump
from workers import control
from workers.runtime import Runtime


def index(parts: Runtime) -> None:
    """Sync every source and take its documents through all three steps."""
    for one in parts.configured.values():
        run = control.start_run(parts, one.tenant_id, one.id, trigger="manual")
        assert run is not None
        assert control.sync(parts, one.tenant_id, one.id, run)
    for step in (parts.indexer.chunk, parts.indexer.embed, parts.indexer.upsert):
        with parts.database.control() as connection:
            connection.execute(text("update document set enqueued_at = null where state = 'pending'"))
            found = ledger_pump.stroke(connection, parts.limits)
        assert found is not None
        for batch in found.batches:
            step(batch.tenant_id, batch.items)
    control.pump(parts)
