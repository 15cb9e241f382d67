"""Enrichment as a task."""

from __future__ import annotations

from uuid import UUID

from workers import runtime
from workers.enrichment import job as enriching
from workers.queue.app import app


@app.task(name="larder.enrich")  # type: ignore[untyped-decorator]
def enrich(tenant: str, job: str, **_later: object) -> None:
    """Answer one request of Step 4."""
    enriching.run(runtime.current(), UUID(tenant), UUID(job))
