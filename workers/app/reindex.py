"""Another search index beside the one that is read: begin it, wait until it is full, switch, go back, drop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from pipeline.chunking.strategies import STRATEGIES
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.known_models import PROVIDER_FACTS, vector_key
from pipeline.errors import ConfigurationError, EmbedderRefused, LarderError, StoreUnavailable
from pipeline.ledger import audit, embedding_use, search_indexes
from pipeline.ledger.search_indexes import WantedIndex, made_with
from pipeline.search import term_statistics
from pipeline.search.chunk_store import SearchIndex, active_index, indexes
from workers.app.ingestion.maintenance import each_tenant, tenants
from workers.queue import dispatch
from workers.runtime import Runtime, current_user

POLL_SECONDS = 0.5
CATCH_UP_SECONDS = 60.0
"""Seconds that a switch waits for what changed while indexes were built."""
DROP_TRIES = 5


# Progress -----------------------------------------------------------------------------------------


def status(runtime: Runtime) -> Json:
    """The document of `larder reindex status --json`, over all tenants."""
    with runtime.database.control() as connection:
        all_indexes = indexes(connection)
        figures = [_figures(connection, index) for index in all_indexes]
    active = next((i for i in all_indexes if i.status == "active"), None)
    oldest = {i["status"]: i for i in reversed(figures)}
    building = oldest.get("building")
    other, reasons = mismatch(runtime, active), _lacking(building) if building else []
    advice = ""
    if building is not None:
        advice = "wait until it is full" if reasons else "larder reindex switch"
    elif other:
        back = ", or larder reindex rollback" if "retired" in oldest else ""
        advice = f"{other}: run larder reindex{back}"
    return {
        "configured": str(runtime.wanted_index),
        "active": oldest.get("active", {}).get("id"),
        "matches": not other,
        "indexes": figures,
        "may_switch": building is not None and not reasons,
        "reasons": reasons,
        "next": advice,
    }


def inactive_indexes(connection: Connection) -> list[Json]:
    """The indexes that are kept or being filled, with their figures, for the operator's screen."""
    return [_figures(connection, index) for index in indexes(connection) if index.status != "active"]


def _figures(connection: Connection, index: SearchIndex) -> Json:
    progress = search_indexes.progress(connection, index.id)
    return {
        **{name: getattr(index, name) for name in ("id", "status", "provider", "model", "dimensions")},
        "chunker": index.strategy or "as configured",
        "documents": progress.total - progress.missing,
        **vars(progress),
        "vector_index": "exact" if index.indexed_rows is None else "hnsw",
        "keyword_index": "gin" if index.keyword_built else "scan",
    }


def _lacking(figures: Json) -> list[str]:
    """Reasons against reading an index: what it lacks."""
    if not figures["missing"]:
        return []
    reasons = [f"index {figures['id']} lacks {figures['missing']} of {plural(figures['total'], 'document')}"]
    if figures["dead"]:
        reasons.append(f"{figures['dead']} of them were given up on: larder dead list")
    if figures["last_error"]:
        reasons.append(f"last error: {figures['last_error']}")
    return reasons


def mismatch_notice(runtime: Runtime) -> str:
    """`mismatch`, looked up at the start of a process; empty if the database does not answer."""
    with suppress(LarderError), runtime.database.control() as connection:
        difference = mismatch(runtime, active_index(connection))
        return f"{difference}: run larder reindex" if difference else ""
    return ""


def mismatch(runtime: Runtime, active: SearchIndex | None) -> str:
    """Difference between the configured and the active index; empty if there is none."""
    if active is None or replace(made_with(active), strategy="") == runtime.wanted_index:
        return ""
    return f"configured is {runtime.wanted_index}; the active index is {made_with(active)}"


# Beginning ----------------------------------------------------------------------------------------


def begin(
    runtime: Runtime,
    *,
    provider: str | None = None,
    model: str | None = None,
    dimensions: int | None = None,
    chunker: str | None = None,
) -> Json:
    """Make an empty index beside the active one and have it filled; `{"begun", "index", "made_with"}`.

    Repeatable: an index that is being filled goes on; `begun` is False if the active one is made like that already.

    Raises:
        ConfigurationError: nothing is indexed yet, another one is being filled, or the wanted one is kept already.
        ModelMissing: the model's files are absent.
    """
    target = _target(runtime, provider, model, dimensions, chunker)
    with runtime.database.control() as connection:
        by_status = {index.status: index for index in indexes(connection)}
    active = by_status.get("active")
    if active is None:
        raise ConfigurationError(
            "nothing is indexed yet", fix="larder index; it makes the first search index"
        )
    if target == made_with(active):
        return {"begun": False, "index": active.id, "made_with": str(target)}
    retired = by_status.get("retired")
    if retired is not None and target == made_with(retired):
        raise ConfigurationError(
            f"index {retired.id} is made with {target} and is kept up to date", fix="larder reindex rollback"
        )
    with runtime.database.control(runtime.settings.tenant_id) as connection:
        new_index = search_indexes.begin_index(connection, target, chunker=runtime.rag.chunking.strategy)
        if target != made_with(new_index):
            raise ConfigurationError(
                f"index {new_index.id}, made with {made_with(new_index)}, is being filled",
                fix=f"larder reindex switch, or larder reindex drop {new_index.id} --yes",
            )
        if "building" not in by_status:
            _audit(runtime, connection, "reindex", new_index)
    dispatch.wake_pump()
    return {"begun": True, "index": new_index.id, "made_with": str(target)}


def _target(
    runtime: Runtime, provider: str | None, model: str | None, dimensions: int | None, chunker: str | None
) -> WantedIndex:
    """The index that was asked for, the rest as configured, once its model could be opened as a worker opens it."""
    if chunker not in (None, *STRATEGIES):
        raise ConfigurationError(f"--chunker {chunker!r}", fix=f"use one of {', '.join(STRATEGIES)}")
    configured = replace(runtime.wanted_index, strategy=chunker or "")
    if (provider, model, dimensions) == (None, None, None):
        _ = runtime.embedder
        return configured
    provider = provider or configured.provider
    if provider not in PROVIDER_FACTS:
        raise ConfigurationError(f"--provider {provider!r}", fix=f"use one of {', '.join(PROVIDER_FACTS)}")
    model = model or (runtime.rag.embedding.model if provider == configured.provider else "")
    length = PROVIDER_FACTS[provider].dimensions_of(model, dimensions)
    if length is None:
        raise ConfigurationError(
            f"the length of the vectors of {model} is not known", fix="give --dimensions"
        )
    key = vector_key(EmbeddingOptions(provider=provider, model=model, dimensions=length))
    try:
        runtime.embedder_of(
            SearchIndex(id=0, provider=provider, model=key, dimensions=length, status="building")
        )
    except EmbedderRefused:
        # The error's own text is about an index that exists; this one does not yet.
        raise ConfigurationError(
            f"the configuration does not say how to reach {key}",
            fix="describe it under embedding: provider, model, and its apiKey, baseUrl or modelPath; the model of "
            "the active index then goes under embedding.previous, unless it is minilm or hashing",
        ) from None
    return replace(configured, provider=provider, model=key, dimensions=length)


def wait(runtime: Runtime, show: Callable[[Json], None]) -> Json:
    """Wait until the building index lacks only documents that were given up; returns its figures."""
    woken_at = 0.0
    while True:
        building: Json | None = next(
            (i for i in status(runtime)["indexes"] if i["status"] == "building"), None
        )
        if building is None:
            raise LarderError("no index is being filled any more", fix="see `larder reindex status`")
        show(building)
        if building["missing"] <= building["dead"]:
            return building
        if time.monotonic() - woken_at > 1:
            dispatch.wake_pump()
            woken_at = time.monotonic()
        time.sleep(POLL_SECONDS)


# Switching ----------------------------------------------------------------------------------------

_MISSING = {
    "building": ("reindex.switch", "no index is being filled", "larder reindex begins one"),
    "retired": ("reindex.rollback", "no earlier index is kept", "see `larder reindex status`"),
    "active": ("", "no index is active", "larder doctor"),
}
"""Status of an index -> action in the audit chain when it becomes active; message and fix if there is none."""


def switch(runtime: Runtime, to: Literal["building", "retired"] = "building", *, force: bool = False) -> Json:
    """Let searches read the index that is being filled, or again the one before; the other is kept up to date.

    Raises:
        ConfigurationError: there is none, or it lacks documents and `force` is not given.
    """
    new, old = _one(runtime, to), _one(runtime, "active")
    _ = runtime.embedder_of(new)  # questions will be asked in it
    if not force:
        _refuse_if_lacking(runtime, new)
    # Words are counted and indexes built before anything reads it.
    for tenant in tenants(runtime):
        with runtime.database.tenant(tenant) as connection:
            term_statistics.refresh(connection, tenant, new.id)
    with runtime.database.control() as connection:
        chunks = search_indexes.progress(connection, new.id).chunks
        vector = new.indexed_rows is None and chunks >= runtime.rag.retrieval.exact_below
        wanted = {"keyword": not new.keyword_built, "vector": vector}
        term_statistics.build(connection, new, **wanted, quantization=runtime.rag.retrieval.quantization)
    if not force:
        _catch_up(runtime, new)
    begun = time.monotonic()
    with runtime.database.control(runtime.settings.tenant_id) as connection:
        search_indexes.activate(connection, new, old)
        _audit(runtime, connection, _MISSING[to][0], new, before=old.id, force=force)
    seconds = time.monotonic() - begun
    if new.strategy != old.strategy:
        each_tenant(runtime, lambda connection: search_indexes.adopt_counts(connection, new.id))
    with runtime.database.control() as connection:
        # The hold may have been about the model before.
        embedding_use.release_hold(connection, runtime.allowance.fingerprint)
        older = [i for i in indexes(connection) if i.status == "retired" and i.id != old.id]
    for index in older:
        drop(runtime, index)
    return {
        "active": new.id,
        "made_with": str(made_with(new)),
        "kept": old.id,
        "milliseconds": round(seconds * 1000, 1),
    }


def _one(runtime: Runtime, status: str) -> SearchIndex:
    with runtime.database.control() as connection:
        matching = [index for index in indexes(connection) if index.status == status]
    if not matching:
        _, missing, fix = _MISSING[status]
        raise ConfigurationError(missing, fix=fix)
    return matching[-1]


def _refuse_if_lacking(runtime: Runtime, new: SearchIndex) -> None:
    with runtime.database.control() as connection:
        reasons = _lacking(_figures(connection, new))
    if reasons:
        raise ConfigurationError(
            "; ".join(reasons), fix="see `larder reindex status`; --force takes it as it is"
        )


def _catch_up(runtime: Runtime, new: SearchIndex) -> None:
    """Wait until what changed while indexes were built is in the new index too."""
    end = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < end:
        with runtime.database.control() as connection:
            if not search_indexes.is_behind(connection, new.id):
                return
            search_indexes.restart_check(connection, new.id)
        dispatch.wake_pump()
        time.sleep(POLL_SECONDS)
    _refuse_if_lacking(runtime, new)


# Dropping -----------------------------------------------------------------------------------------


def index_to_drop(runtime: Runtime, index_id: int | None) -> SearchIndex:
    """The index that `drop` would remove: the one of that number, or the only one that is not read.

    Raises:
        ConfigurationError: there is no such index, it is the active one, or there are several.
    """
    with runtime.database.control() as connection:
        inactive = [i for i in indexes(connection) if i.status != "active"]
    chosen = [i for i in inactive if index_id in (None, i.id)]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(f"{i.id} ({i.status}, {made_with(i)})" for i in inactive) or "none"
    message = "there are several" if len(chosen) > 1 else "there is no such index beside the active one"
    raise ConfigurationError(message, fix=f"name one of: {listed}")


def drop(runtime: Runtime, index: SearchIndex, *, by: str = "") -> Json:
    """Remove an index that is not read; `{"dropped", "made_with"}`.

    Searches read on: the moment in which nothing holds the table may take some tries.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(StoreUnavailable), stop=stop_after_attempt(DROP_TRIES), reraise=True
    ):
        with attempt, runtime.database.control(runtime.settings.tenant_id) as connection:
            search_indexes.drop_index(connection, index)
            _audit(runtime, connection, "reindex.drop", index, by=by)
    each_tenant(runtime, lambda connection: search_indexes.delete_statistics(connection, index.id))
    return {"dropped": index.id, "made_with": str(made_with(index))}


def drop_old(runtime: Runtime) -> None:
    """Remove indexes that were kept for a rollback for as long as configured."""
    with runtime.database.control() as connection:
        old = search_indexes.retired_before(connection, days=runtime.rag.retrieval.keep_previous_days)
    for index in old:
        drop(runtime, index, by="upkeep")


def _audit(
    runtime: Runtime,
    connection: Connection,
    action: str,
    index: SearchIndex,
    *,
    by: str = "",
    **detail: object,
) -> None:
    """Append an entry about an index to the audit chain of this installation's tenant: an index holds all tenants."""
    tenant, entry = runtime.settings.tenant_id, {"made_with": str(made_with(index)), **detail}
    audit.append(connection, tenant, action, f"search index {index.id}", entry, by=by or current_user())
