"""The doctor: every check in a table, and what is done about what it finds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.documents import Json
from pipeline.errors import LarderError
from pipeline.ledger import audit, upkeep
from workers import installed_version
from workers.admin.doctor import server_checks as server
from workers.admin.doctor import stored_checks as stored
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.control.pump import pump_once
from workers.runtime import Runtime, current_user


class Check(NamedTuple):
    """One thing the doctor looks at."""

    name: str
    look: Callable[[Runtime], Diagnosis]
    """Raises errors of ours only; each becomes a finding."""
    repair: Callable[[Runtime], object] | None = None
    """Repeatable, and harmless where nothing is wrong."""
    needs_database: bool = True
    closed_by: Collection[str] = ()
    """After a finding of such a status no other check asks the database."""


CHECKS: tuple[Check, ...] = (
    Check("database", server.database, closed_by=("warning", "error")),
    Check("schema", server.schema, closed_by=("error",)),
    Check("pgvector", server.pgvector),
    Check("roles", server.roles),
    Check("row security", server.row_security),
    Check("search index", server.search_index),
    Check(
        "orphaned chunks",
        *stored.leftovers(upkeep.ORPHANS, "chunks belong to no living document", error),
    ),
    Check("document chunks", stored.damaged, stored.for_each_tenant(upkeep.requeue_damaged, pump=True)),
    Check(
        "other indexes",
        stored.none_of(
            upkeep.DAMAGED_BESIDE,
            "documents have lost, doubled or old chunks in an index beside the active one",
            error,
            "every index beside the active one has exactly its chunks",
        ),
        stored.for_each_tenant(upkeep.refill_damaged_beside, pump=True),
    ),
    Check(
        "staged chunks",
        *stored.leftovers(upkeep.SETTLED_STAGE, "staged chunks of settled documents", warning),
    ),
    Check(
        "old texts",
        *stored.leftovers(upkeep.OLD_BODIES, "texts of versions that nobody wants any more", warning),
    ),
    Check("waiting documents", stored.waiting, pump_once),
    Check("embedding", stored.embedding),
    Check("workers", stored.workers),
    Check("dead letters", stored.dead_letters),
    Check("held deletions", stored.held),
    Check("audit chain", stored.audit_chains),
    Check("clock", server.clock),
    Check("schedules", stored.schedules, stored.plan_anew),
    Check("figures", stored.figures, stored.count_anew),
    Check("versions", stored.versions),
    Check("index size", stored.index_size, stored.build_indexes_anew),
    Check("vacuum", stored.vacuum, stored.vacuum_now),
    Check("broker", server.message_broker, needs_database=False),
    Check("heartbeats", server.heartbeats, needs_database=False),
    Check("model", server.model, needs_database=False),
    Check("reranker", server.reranker, needs_database=False),
    Check("sources", server.sources, needs_database=False),
    Check("disk", server.disk, needs_database=False),
)


def examine(parts: Runtime, *, repair: bool = False) -> list[Diagnosis]:
    """Look at everything; with `repair` mend what can be mended without loss, and look again."""
    found: list[Diagnosis] = []
    closed = False
    for check in CHECKS:
        if closed and check.needs_database:
            continue
        one = _looked(parts, check)
        closed |= one.status in check.closed_by
        if repair and check.repair is not None and one.status != "ok":
            try:
                check.repair(parts)
                own = parts.settings.tenant_id
                with parts.database.tenant(own) as connection:
                    audit.append(connection, own, "doctor.repair", check.name, by=current_user())
            except LarderError as failed:
                one = error(f"{one.detail}; the repair failed: {failed.message}", failed.fix or one.fix)
            else:
                after = _looked(parts, check)
                mended = replace(fine(f"repaired: {one.detail}"), repaired=True)
                one = mended if after.status == "ok" else after
        found.append(replace(one, check=check.name))
    return found


def _looked(parts: Runtime, check: Check) -> Diagnosis:
    try:
        return check.look(parts)
    except LarderError as failed:
        return error(failed.message, failed.fix or "see the log of the database server")


def report(found: Sequence[Diagnosis]) -> Json:
    """The document of `larder doctor --json`; `ok` unless an error remains."""
    return {
        "version": installed_version(),
        "ok": all(one.status != "error" for one in found),
        "findings": [dict(vars(one)) for one in found],
    }
