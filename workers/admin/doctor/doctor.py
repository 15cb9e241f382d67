"""The doctor: every check in a table, and what is done about what it finds."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.documents import Json
from pipeline.errors import LarderError
from workers.admin.doctor import content_checks as content
from workers.admin.doctor import machine_checks as machine
from workers.admin.doctor import server_checks as server
from workers.admin.doctor import work_checks as work
from workers.admin.doctor.diagnosis import Check, Diagnosis, Health, Reported, error
from workers.processes.version import installed
from workers.runtime import Runtime

CHECKS: tuple[Check, ...] = (
    Check(name="database", look=server.database, gate=True, strict=True),
    Check(name="schema", look=server.schema, gate=True),
    Check(name="pgvector", look=server.pgvector),
    Check(name="roles", look=server.roles),
    Check(name="row security", look=server.row_security),
    Check(name="search index", look=server.search_index, repair=server.activate_index),
    Check(name="orphaned chunks", look=content.orphans, repair=content.delete_orphans),
    Check(name="document chunks", look=content.damaged, repair=content.requeue_damaged),
    Check(name="other indexes", look=content.beside, repair=content.refill_beside),
    Check(name="staged chunks", look=content.leftovers, repair=content.delete_leftovers),
    Check(name="old texts", look=content.old_bodies, repair=content.delete_old_bodies),
    Check(name="embedding cache", look=content.cache, repair=content.trim_cache),
    Check(name="keyword statistics", look=content.words, repair=content.refresh_words),
    Check(name="built indexes", look=server.deferred, repair=server.build_deferred),
    Check(name="valid indexes", look=server.invalid_indexes),
    Check(name="waiting documents", look=work.waiting, repair=work.pump),
    Check(name="embedding", look=work.embedding),
    Check(name="open runs", look=work.open_runs),
    Check(name="workers", look=work.workers),
    Check(name="dead letters", look=work.dead_letters),
    Check(name="held deletions", look=work.held),
    Check(name="audit chain", look=content.audit),
    Check(name="clock", look=server.clock),
    Check(name="broker", look=server.message_broker, needs_database=False),
    Check(name="heartbeats", look=work.heartbeats, needs_database=False),
    Check(name="model", look=machine.model, needs_database=False),
    Check(name="reranker", look=machine.reranker, needs_database=False),
    Check(name="sources", look=machine.sources, needs_database=False),
    Check(name="disk", look=machine.disk, needs_database=False),
)


def examine(parts: Runtime, *, repair: bool = False, checks: Sequence[Check] = CHECKS) -> list[Reported]:
    """Look at everything; with `repair` mend what can be mended without loss, and look again."""
    reported = []
    closed = False
    for check in checks:
        if closed and check.needs_database:
            continue
        found = _examined(parts, check, repair=repair)
        closed = closed or check.closes(found.diagnosis)
        reported.append(found)
    return reported


def _examined(parts: Runtime, check: Check, *, repair: bool) -> Reported:
    before = _looked(parts, check)
    if before.health is Health.OK or check.repair is None or not repair:
        return Reported(check=check.name, diagnosis=before)
    try:
        check.repair(parts)
    except LarderError as failed:
        after = error(f"{before.detail}; the repair failed: {failed.message}", failed.fix or before.fix)
        return Reported(check=check.name, diagnosis=after)
    after = _looked(parts, check)
    if after.health is not Health.OK:
        return Reported(check=check.name, diagnosis=after)
    mended = Diagnosis(health=Health.OK, detail=f"repaired: {before.detail}")
    return Reported(check=check.name, diagnosis=mended, repaired=True)


def _looked(parts: Runtime, check: Check) -> Diagnosis:
    try:
        return check.look(parts)
    except LarderError as failed:
        return error(failed.message, failed.fix or "see the log of the database server")


def report(found: Sequence[Reported]) -> Json:
    """The document of `larder doctor --json`; `ok` unless an error remains."""
    return {
        "version": installed(),
        "ok": all(one.diagnosis.health is not Health.ERROR for one in found),
        "findings": [one.to_json() for one in found],
    }
