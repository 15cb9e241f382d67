"""Which search index is read: switch to a new one, go back to the one before, drop what is no longer needed."""

from __future__ import annotations

import time
from contextlib import suppress

from sqlalchemy import text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, StoreUnavailable
from pipeline.ledger import embedding_use, search_indexes
from pipeline.ledger.search_indexes import activate, drop_index, forget_words, made_with
from pipeline.search import term_statistics
from pipeline.search.chunk_store import SearchIndex, indexes
from workers.admin import operations
from workers.admin.reindex_status import lacking, status
from workers.control.maintenance import tenants
from workers.queue import dispatch
from workers.runtime import Runtime

CATCH_UP_SECONDS = 60.0
"""How long a switch waits for what changed while indexes were built."""
POLL_SECONDS = 0.5
DROP_TRIES = 5


def switch(parts: Runtime, *, force: bool = False) -> Json:
    """Let searches read the index that is being filled; the one before is kept and followed.

    Raises:
        ConfigurationError: there is none, or it lacks documents and `force` is not given.
    """
    new = _one(parts, "building", "no index is being filled", "larder reindex begins one")
    return _change(parts, new, force=force, action="reindex.switch")


def rollback(parts: Runtime, *, force: bool = False) -> Json:
    """Let searches read the index before again, which has been followed since; the two change places.

    Raises:
        ConfigurationError: none is kept, or it lacks documents and `force` is not given.
    """
    old = _one(parts, "retired", "no earlier index is kept", "see `larder reindex status`")
    return _change(parts, old, force=force, action="reindex.rollback")


def _one(parts: Runtime, wanted: str, missing: str, fix: str) -> SearchIndex:
    with parts.database.control() as connection:
        found = [index for index in indexes(connection) if index.status == wanted]
    if not found:
        raise ConfigurationError(missing, fix=fix)
    return found[-1]


def _change(parts: Runtime, new: SearchIndex, *, force: bool, action: str) -> Json:
    old = _one(parts, "active", "no index is active", "larder doctor --repair")
    _ = parts.embedder_of(new)  # questions will be asked in it
    if not force:
        _refuse_if_lacking(parts, new)
    prepare(parts, new)
    if not force:
        _catch_up(parts, new)
    begun = time.monotonic()
    with parts.database.control() as connection:
        activate(connection, new, old)
    seconds = time.monotonic() - begun
    audit_index(parts, action, new, before=old.id, force=force)
    _settle(parts, new, old)
    return {
        "active": new.id,
        "made_with": str(made_with(new)),
        "kept": old.id,
        "milliseconds": round(seconds * 1000, 1),
    }


def _refuse_if_lacking(parts: Runtime, new: SearchIndex) -> None:
    figures = next((i for i in status(parts)["indexes"] if i["id"] == new.id), None)
    reasons = lacking(figures) if figures else []
    if reasons:
        raise ConfigurationError(
            "; ".join(reasons), fix="see `larder reindex status`; --force takes it as it is"
        )


def prepare(parts: Runtime, index: SearchIndex) -> None:
    """Count words and build what searches need, before anything reads the index."""
    for tenant in tenants(parts):
        with parts.database.tenant(tenant) as connection:
            term_statistics.refresh(connection, tenant, index.id)
    with parts.database.control() as connection:
        chunks = search_indexes.progress(connection, index.id).chunks
        term_statistics.build(
            connection,
            index,
            keyword=not index.keyword_built,
            vector=index.indexed_rows is None and chunks >= parts.rag.retrieval.exact_below,
        )


def _catch_up(parts: Runtime, new: SearchIndex) -> None:
    """What changed while indexes were built is on its way: a moment of patience."""
    end = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < end:
        with parts.database.control() as connection:
            if not search_indexes.is_behind(connection, new.id):
                return
        dispatch.send("larder.pump", expires=5)
        time.sleep(POLL_SECONDS)
    _refuse_if_lacking(parts, new)


def _settle(parts: Runtime, new: SearchIndex, old: SearchIndex) -> None:
    """After the switch, at leisure: counts of chunks as the new index has them, and no second one is kept."""
    if new.strategy != old.strategy:
        for tenant in tenants(parts):
            with parts.database.tenant(tenant) as connection:
                search_indexes.adopt_counts(connection, new.id)
    with parts.database.control() as connection:
        embedding_use.release_hold(
            connection, parts.allowance.fingerprint
        )  # it may have been about the model before
        older = [i for i in indexes(connection) if i.status == "retired" and i.id != old.id]
    for index in older:
        _drop(parts, index, by=operations.actor())


# Dropping -----------------------------------------------------------------------------------------


def droppable(parts: Runtime, index_id: int | None) -> SearchIndex:
    """The index that `drop` would remove: the one of that number, or the only one that is not read.

    Raises:
        ConfigurationError: there is no such index, it is the active one, or there are several.
    """
    with parts.database.control() as connection:
        found = [i for i in indexes(connection) if i.status != "active"]
    chosen = [i for i in found if index_id in (None, i.id)]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(f"{i.id} ({i.status}, {made_with(i)})" for i in found) or "none"
    what = "there are several" if len(chosen) > 1 else "there is no such index beside the active one"
    raise ConfigurationError(what, fix=f"name one of: {known}")


def drop(parts: Runtime, index: SearchIndex) -> Json:
    """Remove an index that is not read; `{"dropped", "made_with"}`."""
    _drop(parts, index, by=operations.actor())
    return {"dropped": index.id, "made_with": str(made_with(index))}


def drop_old(parts: Runtime) -> None:
    """Remove an index that was kept for a rollback for long enough."""
    days = parts.rag.retrieval.keep_previous_days
    with parts.database.control() as connection:
        rows = connection.execute(
            text("""
                select id from search_index
                where status = 'retired' and retired_at < now() - make_interval(secs => :seconds)"""),
            {"seconds": days * 86_400},
        )
        old = {row.id for row in rows}
        found = [index for index in indexes(connection) if index.id in old]
    for index in found:
        _drop(parts, index, by="upkeep")


def _drop(parts: Runtime, index: SearchIndex, *, by: str) -> None:
    """Searches read on: the moment in which nothing holds the table may take some tries."""
    for _ in range(DROP_TRIES - 1):
        with suppress(StoreUnavailable):
            _drop_once(parts, index)
            break
    else:
        _drop_once(parts, index)
    for tenant in tenants(parts):
        with parts.database.tenant(tenant) as connection:
            forget_words(connection, index.id)
    audit_index(parts, "reindex.drop", index, by=by)


def _drop_once(parts: Runtime, index: SearchIndex) -> None:
    with parts.database.control() as connection:
        drop_index(connection, index)


def audit_index(
    parts: Runtime, action: str, index: SearchIndex, *, by: str | None = None, **detail: object
) -> None:
    """Write it into the chain of this installation's own tenant: an index holds all of them."""
    with parts.database.tenant(parts.settings.tenant_id) as connection:
        operations.audit(
            connection,
            parts.settings.tenant_id,
            action,
            f"search index {index.id}",
            {"made_with": str(made_with(index)), **detail},
            by=by,
        )
