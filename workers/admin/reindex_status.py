"""How far each search index is, which one is read, and whether that is the configured one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection

from pipeline.documents import Json
from pipeline.errors import LarderError
from pipeline.ledger import search_indexes
from pipeline.ledger.search_indexes import made_with
from pipeline.search.chunk_store import SearchIndex, active_index, indexes
from workers.runtime import Runtime


def status(parts: Runtime) -> Json:
    """The document of `larder reindex status --json`, over all tenants."""
    with parts.database.control() as connection:
        found = indexes(connection)
        told = [_figures(connection, index) for index in found]
    active = next((i for i in found if i.status == "active"), None)
    other = mismatch(parts, active)
    reasons = refusals(told)
    return {
        "configured": str(parts.wanted_index),
        "active": active.id if active else None,
        "matches": not other,
        "indexes": told,
        "may_switch": bool(reasons is not None and not reasons),
        "reasons": reasons or [],
        "next": _advice(told, other, reasons),
    }


def beside(connection: Connection) -> list[Json]:
    """The indexes that are kept or being filled, with their figures, for the operator's screen."""
    return [_figures(connection, index) for index in indexes(connection) if index.status != "active"]


def _figures(connection: Connection, index: SearchIndex) -> Json:
    p = search_indexes.progress(connection, index.id)
    return {
        "id": index.id,
        "status": index.status,
        "provider": index.provider,
        "model": index.model,
        "dimensions": index.dimensions,
        "chunker": index.strategy or "as configured",
        "documents": p.total - p.missing,
        "total": p.total,
        "missing": p.missing,
        "stale": p.stale,
        "dead": p.dead,
        "chunks": p.chunks,
        "lag_seconds": p.lag_seconds,
        "last_error": p.last_error,
        "vector_index": "exact" if index.indexed_rows is None else "hnsw",
        "keyword_index": "gin" if index.keyword_built else "scan",
    }


def refusals(told: list[Json]) -> list[str] | None:
    """Why the index that is being filled may not be switched to; None if none is."""
    building = next((i for i in told if i["status"] == "building"), None)
    return None if building is None else lacking(building)


def lacking(figures: Json) -> list[str]:
    """What speaks against reading an index: what it lacks, in words."""
    if not figures["missing"]:
        return []
    said = [f"index {figures['id']} lacks {figures['missing']} of {figures['total']} documents"]
    if figures["dead"]:
        said.append(f"{figures['dead']} of them were given up on: larder dead list")
    if figures["last_error"]:
        said.append(f"last error: {figures['last_error']}")
    return said


def noticed(parts: Runtime) -> str:
    """`mismatch`, looked up at the start of a process; empty if the database does not answer."""
    with suppress(LarderError), parts.database.control() as connection:
        said = mismatch(parts, active_index(connection))
        return f"{said}: run larder reindex" if said else ""
    return ""


def mismatch(parts: Runtime, active: SearchIndex | None) -> str:
    """What is wrong if another index is read than the one that is configured; empty if nothing is."""
    if active is None or replace(made_with(active), strategy="") == parts.wanted_index:
        return ""
    return f"configured is {parts.wanted_index}; the active index is {made_with(active)}"


def _advice(told: list[Json], other: str, reasons: list[str] | None) -> str:
    if reasons is not None:
        return "wait until it is full" if reasons else "larder reindex switch"
    if other:
        kept = any(i["status"] == "retired" for i in told)
        return f"{other}: run larder reindex" + (", or larder reindex rollback" if kept else "")
    return ""
