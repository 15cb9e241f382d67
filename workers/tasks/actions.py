"""The actions of YAML engines as tasks, for callers on other machines."""

from __future__ import annotations

from uuid import UUID

from workers import runtime
from workers.enrichment.job import run_action
from workers.queue.app import app


@app.task(name="larder.embedding.create")  # type: ignore[untyped-decorator]
def embedding_create(tenant: str, job: str, **_later: object) -> None:
    """Make the vectors that a remote call asks for."""
    run_action(runtime.current(), UUID(tenant), UUID(job), "embedding_create")


@app.task(name="larder.vector.store")  # type: ignore[untyped-decorator]
def vector_store(tenant: str, job: str, **_later: object) -> None:
    """Put the texts of a remote call into a collection."""
    run_action(runtime.current(), UUID(tenant), UUID(job), "vector_store")


@app.task(name="larder.vector.query")  # type: ignore[untyped-decorator]
def vector_query(tenant: str, job: str, **_later: object) -> None:
    """Find what a remote call asks for."""
    run_action(runtime.current(), UUID(tenant), UUID(job), "vector_query")
