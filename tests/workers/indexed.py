"""Pages, and everything configured indexed at once in this process, without a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.ledger import due_work
from tests.ledger import of_connection
from workers.app.ingestion import maintenance, pump, steps, sync
from workers.app.ingestion.sync import configured_sources
from workers.runtime import Runtime

Build = Callable[..., Runtime]
"""The fixture `build`."""


def write_pages(folder: Path, count: int) -> None:
    """Markdown files of four paragraphs in `docs`."""
    (folder / "docs").mkdir(exist_ok=True)
    for number in range(count):
        lines = [
            f"# Page {number}",
            *(f"Paragraph {k} of page {number}: " + "words and more " * 12 for k in range(4)),
        ]
        (folder / "docs" / f"page-{number}.md").write_text("\n\n".join(lines))


def index(runtime: Runtime) -> None:
    """Sync every source and take its documents through all three steps."""
    for one in configured_sources(runtime.settings).values():
        run = sync.start_run(runtime, one.tenant_id, one.id, trigger="manual")
        assert run is not None
        assert sync.sync(runtime, one.tenant_id, one.id, run)
    indexer = steps.indexer(runtime, runtime.settings.tenant_id)
    for step in (indexer.chunk, indexer.embed, indexer.upsert):
        with runtime.database.control() as connection:
            of_connection(connection).documents.set({"state": "pending"}, enqueued_at=None)
            found = due_work.pump_once(connection, steps.limits(runtime.rag))
        assert found is not None
        for batch in found.batches:
            step(batch.tenant_id, batch.items)
    maintenance.refresh_statistics(runtime)
    pump.pump_once(runtime)
