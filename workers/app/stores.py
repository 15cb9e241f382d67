"""Vector stores beside PostgreSQL: add, fill, compare, switch, drop, rebuild; and what the pump asks of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from uuid import UUID

from sqlalchemy import Connection

from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError, LarderError, StoreError
from pipeline.ledger import audit, sources
from pipeline.search.chunk_store import active_index
from pipeline.search.stores import Scope, StoreStats, backlog, outbox
from pipeline.search.stores.comparison import Comparison, page_of_points, points_in_postgres, recall
from pipeline.search.stores.mirror import Mirror, collection_of
from pipeline.search.stores.outbox import PGVECTOR, StoreRow
from workers.app.ingestion.maintenance import request_builds, tenants
from workers.queue import broker, dispatch
from workers.queue.celeryconfig import MIRROR
from workers.runtime import Runtime, current_user

logger = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""Seconds after which a task gives way to the next message of its queue."""
MOST_MESSAGES = 4
"""Waiting messages for stores from which the pump sends no more."""
QUESTIONS = 200
"""Questions by which stores are compared with an exact search."""
SETTLE_SECONDS = 3.0
"""Seconds after which a difference is looked at again."""
SAMPLE = 100
"""Chunks of each tenant that are looked for in a store."""
PAGE = 1000
"""Chunks that are looked for at once where every one is."""
REST_SECONDS = 60.0
"""Seconds for which a process does not try again to open a store that could not be opened."""
_rests: dict[str, float] = {}
"""Name of a store that could not be opened -> when this process tries again."""


# Carrying -----------------------------------------------------------------------------------------


def mirror(runtime: Runtime, name: str) -> bool:
    """Carry over what a store lacks, for at most BUSY_SECONDS; True if there is more.

    The store that the configuration names as provider is added if there is none yet.
    """
    now = time.monotonic()
    if name not in runtime.settings.stores or _rests.get(name, 0.0) > now:
        return False
    try:
        if not _rows(runtime) and name == runtime.rag.provider:
            add(runtime, name, preferred=True)
        carrier = runtime.mirror(name)
    except LarderError as error:
        logger.warning("the vector store %s cannot be opened: %s", name, error.message)
        _rests[name] = now + REST_SECONDS
        with runtime.database.control() as connection:
            outbox.record_failure(connection, name, error.message, seconds=REST_SECONDS)
        return False
    with suppress(StoreError):  # it is paused, and `status` tells why
        while time.monotonic() < now + BUSY_SECONDS:
            row = carrier.look_after()
            if not _carry_round(runtime, carrier, now + BUSY_SECONDS) and (row is None or row.is_ready):
                return False
        return True
    return False


def _rows(runtime: Runtime) -> list[StoreRow]:
    with runtime.database.control() as connection:
        return outbox.listed(connection)


def _row(runtime: Runtime, name: str) -> StoreRow | None:
    return next((row for row in _rows(runtime) if row.name == name), None)


def _carry_round(runtime: Runtime, carrier: Mirror, end: float) -> int:
    """Carry a batch of each tenant that has one; returns the number of chunks."""
    with runtime.database.control() as connection:
        due = outbox.due_tenants(connection, carrier.name)
    carried = 0
    for tenant in due:
        if time.monotonic() < end:
            carried += carrier.carry(tenant)
    return carried


def send_mirrors(runtime: Runtime) -> None:
    """Send a message for each store that is registered or the provider; called by the pump."""
    configured = runtime.settings.stores
    if configured and sum(broker.waiting(runtime.addresses.broker, MIRROR).values()) < MOST_MESSAGES:
        for name in sorted(configured.keys() & {*(row.name for row in _rows(runtime)), runtime.rag.provider}):
            dispatch.send("larder.mirror", name)


def ring(runtime: Runtime) -> None:
    """Send a message for each configured store unless as many wait: chunks were written just now.

    One that waits finds them, too, since they are committed.
    """
    configured = runtime.settings.stores
    if configured and sum(broker.waiting(runtime.addresses.broker, MIRROR).values()) < len(configured):
        for name in configured:
            dispatch.send("larder.mirror", name)


# Status -------------------------------------------------------------------------------------------


def status(runtime: Runtime, connection: Connection) -> Json:
    """`{"provider", "answers", "stores"}`: the configured one, the one that searches ask first, and all of them."""
    configured = runtime.settings.stores
    rows = {row["name"]: row for row in backlog.status_of(connection)}
    rows |= {name: backlog.NOT_ADDED | {"name": name} for name in configured if name not in rows}
    stores = [{**row, "configured": name in configured} for name, row in rows.items()]
    active = (s["name"] for s in stores if s["active"] and s["status"] == "ready" and s["configured"])
    return {"provider": runtime.rag.provider, "answers": next(active, PGVECTOR), "stores": stores}


def listed(runtime: Runtime) -> Json:
    """The document of `larder stores list --json`."""
    with runtime.database.control() as connection:
        return status(runtime, connection)


# What an operator asks for ------------------------------------------------------------------------


def _require(runtime: Runtime, name: str) -> None:
    if name not in runtime.settings.stores:
        names = ", ".join(runtime.settings.stores) or "none"
        raise ConfigurationError(
            f"the configuration has no vector store {name!r}, it has {names}",
            fix="write it under storage.local or storage.cloud (docs/stores.md)",
        )


def add(runtime: Runtime, name: str, *, preferred: bool = False) -> Json:
    """Have a configured store filled beside the active one; with `preferred` it is asked once it is full.

    Raises:
        ConfigurationError: it is not configured, or its client is not installed.
        StoreUnavailable: it does not answer, or writers of chunks do not give way.
    """
    _require(runtime, name)
    runtime.mirror(name).store.stats(Scope(collection=collection_of(0)))  # it answers
    outbox.note_changes(runtime.database, on=True)
    with runtime.database.control(runtime.settings.tenant_id) as connection:
        added = outbox.register(connection, name, preferred=preferred)
    if added:
        _record(runtime, "stores.add", name)
    dispatch.send("larder.mirror", name)
    return {"added": added, "store": name}


def switch(runtime: Runtime, name: str, *, force: bool = False) -> Json:
    """Have searches ask another store from now on: `{"store", "before"}`.

    Raises:
        ConfigurationError: it is not configured, or not filled yet and not `force`.
        NotFound: it was never added.
    """
    if name != PGVECTOR:
        _require(runtime, name)
    with runtime.database.control() as connection:
        if name != PGVECTOR and not (row := outbox.require(connection, name)).is_ready and not force:
            message = f"the vector store {name} is not filled ({row.status})"
            raise ConfigurationError(message, fix="wait: larder stores list; or --force")
        before = outbox.switch(connection, name)
    _record(runtime, "stores.switch", name, before=before)
    if name == PGVECTOR:
        request_builds(runtime)
    return {"store": name, "before": before}


def drop(runtime: Runtime, name: str) -> Json:
    """Empty a store as far as it answers, and forget it: `{"dropped", "emptied"}`.

    Raises:
        ConfigurationError: searches ask it, or the configuration names it as the provider.
    """
    row = _row(runtime, name)
    if row is None:
        return {"dropped": False, "emptied": False}
    if row.active:
        raise ConfigurationError(f"searches ask the vector store {name}", fix="larder stores switch pgvector")
    if name == runtime.rag.provider:
        message = f"the configuration names {name} as the provider, and it would be added again"
        raise ConfigurationError(message, fix="set rag.provider to another one, then larder reload")
    with runtime.database.control() as connection:
        last = outbox.drop(connection, name)
    if last:
        outbox.note_changes(runtime.database, on=False)
    emptied = False
    if name in runtime.settings.stores:
        with suppress(LarderError):
            runtime.mirror(name).empty()
            emptied = True
    _record(runtime, "stores.drop", name)
    return {"dropped": True, "emptied": emptied}


def rebuild(runtime: Runtime, name: str) -> Json:
    """Have a store emptied and filled anew from PostgreSQL; meanwhile another one answers.

    Raises:
        ConfigurationError: it is not configured.
        NotFound: it was never added.
    """
    _require(runtime, name)
    with runtime.database.control() as connection:
        outbox.require(connection, name)
        outbox.rebuild(connection, name)
        retried = outbox.retry_dead(connection, name)
    _record(runtime, "stores.rebuild", name)
    dispatch.send("larder.mirror", name)
    return {"rebuilding": name, "retried": retried}


def _record(runtime: Runtime, action: str, name: str, **detail: str) -> None:
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        tenant = runtime.settings.tenant_id
        audit.append(connection, tenant, action, name, {**detail}, by=current_user())


# Comparing ----------------------------------------------------------------------------------------


def differences(runtime: Runtime, row: StoreRow, *, every: bool = False) -> list[str]:
    """What a store lacks or has too much, by counts and a sample of each tenant; empty if both sides are equal.

    Chunks that are in the outbox are on their way and no difference. A difference is looked at again after
    SETTLE_SECONDS: chunks change meanwhile, and some stores show a write seconds later. With `every` each chunk is
    looked for, up to the first difference.

    Raises:
        LarderError: the store does not answer.
    """
    if problem := runtime.mirror(row.name).problem(row):
        return [problem]
    with runtime.database.control() as connection:
        index, names = active_index(connection), sources.tenant_names(connection)
    differing: list[str] = []
    for tenant in tenants(runtime):
        if index is None or (every and differing):
            break
        if difference := _difference(runtime, row.name, index.id, tenant):
            time.sleep(SETTLE_SECONDS)
            difference = _difference(runtime, row.name, index.id, tenant)
        if not difference and every:
            difference = _lost(runtime, row.name, index.id, tenant)
        if difference:
            differing.append(f"{names[tenant]}: {difference}")
    return differing


def _difference(runtime: Runtime, name: str, index: int, tenant: UUID) -> str:
    with runtime.database.tenant(tenant) as connection:
        count, sample = points_in_postgres(connection, index, SAMPLE)
        waiting = outbox.waiting_points(connection, name)
    stats, lacking = _looked_for(runtime, name, index, tenant, sample, waiting)
    if not lacking and (waiting or stats.points == count):
        return ""
    return f"{plural(stats.points, 'point')} for {plural(count, 'chunk')}{lacking}"


def _lost(runtime: Runtime, name: str, index: int, tenant: UUID) -> str:
    """The first chunks, page by page, that a store lacks; empty if it has them all."""
    after: tuple[UUID, int] | None = (UUID(int=0), 0)
    while after:
        page, lost = _page(runtime, name, index, tenant, after)
        if lost:
            time.sleep(SETTLE_SECONDS)
            page, lost = _page(runtime, name, index, tenant, after)
        if lost:
            return lost
        after = outbox.chunk_of(page[-1]) if page else None
    return ""


def _page(
    runtime: Runtime, name: str, index: int, tenant: UUID, after: tuple[UUID, int]
) -> tuple[list[str], str]:
    """The next ids, and what a store lacks of them."""
    with runtime.database.tenant(tenant) as connection:
        page = page_of_points(connection, index, after, PAGE)
        waiting = outbox.waiting_points(connection, name)
    stats, lacking = _looked_for(runtime, name, index, tenant, page, waiting)
    return page, f"{plural(stats.points, 'point')}{lacking}" if lacking else ""


def _looked_for(
    runtime: Runtime, name: str, index: int, tenant: UUID, ids: Sequence[str], waiting: Collection[str]
) -> tuple[StoreStats, str]:
    """What a store says of ids, and in words how many of them it lacks; empty if none but those that wait."""
    scope = Scope(collection=collection_of(index), tenant=tenant)
    stats = runtime.mirror(name).store.stats(scope, ids)
    missing = sum(one not in stats.present and one not in waiting for one in ids)
    return stats, f", {missing} of {len(ids)} looked for are missing" if missing else ""


def check(runtime: Runtime, name: str, *, questions: int = QUESTIONS) -> Json:
    """Compare a store with PostgreSQL: `{"store", "status", "problems", "questions", "recall", "milliseconds"}`.

    `recall` is the mean share of the exact ten nearest chunks that the store finds, for questions from the tenant's own
    documents; None if there are none. `milliseconds` is the median of its answers.
    """
    _require(runtime, name)
    row, compared, problems = _row(runtime, name), Comparison(questions=0), []
    try:
        store = runtime.mirror(name).store
        store.stats(Scope(collection=collection_of(0)))
        if row is not None and row.is_ready:
            problems = differences(runtime, row)
            compared = recall(runtime.database, runtime.settings.tenant_id, store, questions=questions)
    except LarderError as error:
        problems = [error.message]
    state = row.status if row else "not added"
    return {"store": name, "status": state, "problems": problems, **vars(compared)}


def check_all(runtime: Runtime, *, every: bool = False) -> dict[str, list[str]]:
    """Differences of each store that is filled, by name; for the doctor."""
    rows = [row for row in _rows(runtime) if row.is_ready and row.name in runtime.settings.stores]
    differing = {}
    for row in rows:
        try:
            differing[row.name] = differences(runtime, row, every=every)
        except LarderError as error:
            differing[row.name] = [error.message]
    return differing


def repair(runtime: Runtime) -> None:
    """Have every store that differs from PostgreSQL filled anew."""
    for name, differing in check_all(runtime, every=True).items():
        if differing:
            rebuild(runtime, name)
