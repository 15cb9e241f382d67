"""What an operator does with sources and dead letters; each change is written to the audit chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from pipeline.database import encryption
from pipeline.documents import Finding, Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ledger import audit, dead, documents, jobs, overview
from pipeline.ledger import sources as ledger
from workers.admin import supervised
from workers.admin.sync_now import configured_sources_named, undoable
from workers.control import maintenance, sync
from workers.control.sync import configured_sources, open_source, source_of_row, start_run
from workers.queue import dispatch
from workers.runtime import Runtime, current_user

SHOWN = 8
"""Characters of a job's id that people see, and need to type."""


class LedgerSource(NamedTuple):
    """A source of the ledger with the name of its tenant."""

    row: ledger.SourceRow
    tenant: str


def _audit(connection: Connection, tenant: UUID, action: str, subject: str, detail: Json) -> None:
    """Append to a tenant's audit chain, in the transaction of the change itself."""
    audit.append(connection, tenant, action, subject, detail, by=current_user())


# Sources ------------------------------------------------------------------------------------------


def known_sources(parts: Runtime) -> list[LedgerSource]:
    """All sources the ledger knows, after it was told those of the configuration, if no workers run that lack them."""
    found = _rows(parts)
    known = {source.row.id for source in found}
    missing = [one for one in configured_sources(parts.settings).values() if one.id not in known]
    if not missing or undoable(parts, missing):
        return found
    sync.register(parts)
    return _rows(parts)


def _rows(parts: Runtime) -> list[LedgerSource]:
    with parts.database.control() as connection:
        names = ledger.tenant_names(connection)
        return [LedgerSource(row, names[row.tenant_id]) for row in ledger.listed(connection)]


def find(parts: Runtime, names: Sequence[str]) -> list[LedgerSource]:
    """The sources called NAME or TENANT/NAME, over all tenants; all that are still configured without names.

    Raises:
        ConfigurationError: a name is not known, or two tenants have it; the message lists what is known.
    """
    known = known_sources(parts)
    if not names:
        return [source for source in known if source.row.removed_at is None]
    found = []
    for name in dict.fromkeys(names):
        matching = [k for k in known if name in (k.row.name, f"{k.tenant}/{k.row.name}")]
        if len(matching) > 1:
            full = ", ".join(f"{k.tenant}/{k.row.name}" for k in matching)
            raise ConfigurationError(f"several tenants have a source {name!r}", fix=f"name one of {full}")
        if not matching:
            listed = ", ".join(sorted(k.row.name for k in known))
            raise ConfigurationError(f"no source is called {name!r}", fix=f"known are {listed or 'none'}")
        found += matching
    return found


def listing(parts: Runtime) -> list[Json]:
    """One entry per source for `larder sources list`."""
    same = ("name", "schedule", "timezone", "watch", "origin", "failures", "last_error", "held")
    missing = supervised.missing_folders(parts.settings)
    return [
        {
            **{name: getattr(k.row, name) for name in same},
            "tenant": k.tenant,
            "type": k.row.kind,
            "state": "removed" if k.row.removed_at else "paused" if k.row.paused_at else "active",
            "last_sync": k.row.last_sync_at and k.row.last_sync_at.isoformat(),
            "next_sync": k.row.next_sync_at and k.row.next_sync_at.isoformat(),
            "missing_folder": missing.get(k.row.name) if k.tenant == parts.settings.tenant else None,
        }
        for k in known_sources(parts)
    ]


def newest_runs(parts: Runtime, names: Sequence[str], most: int) -> list[Json]:
    """The newest runs of these sources, of all without names; each with its `source` and `seconds`."""
    called = {k.row.id: k.row.name for k in find(parts, names)}
    with parts.database.control() as connection:
        found = overview.newest_runs(connection, [*called], most)
    for run in found:
        begun, ended = run["started_at"], run["finished_at"]
        run["source"] = called[run.pop("source_id")]
        run["seconds"] = ((ended or datetime.now(UTC)) - begun).total_seconds()
        run |= {"started_at": begun.isoformat(), "finished_at": ended and ended.isoformat()}
    return found


def check(parts: Runtime, names: Sequence[str]) -> list[Json]:
    """Try to read configured sources, without a server; `{"source", "ok", "findings"}` each.

    Raises:
        ConfigurationError: a name is not configured; the message lists those that are.
    """
    checked = []
    for one in configured_sources_named(parts.settings, names):
        try:
            findings = open_source(parts, one.settings).check()
        except LarderError as error:
            findings = [Finding(ok=False, subject="opening it", detail=error.message, fix=error.fix)]
        told = [vars(finding) for finding in findings]
        checked.append({"source": one.settings.name, "ok": all(f["ok"] for f in told), "findings": told})
    return checked


def pause(parts: Runtime, name: str, *, paused: bool) -> Json:
    """Stop or resume a source's schedule; `{"source", "tenant", "paused"}`."""
    known = find(parts, [name])[0]
    with parts.database.tenant(known.row.tenant_id) as connection:
        ledger.pause(connection, known.row.id, paused=paused)
        _audit(connection, known.row.tenant_id, "pause" if paused else "resume", known.row.name, {})
    return {"source": known.row.name, "tenant": known.tenant, "paused": paused}


def rename(parts: Runtime, old: str, new: str) -> Json:
    """Give what a source brought to the one that it is called now; `{"source", "tenant", "moved", "both"}`.

    Raises:
        ConfigurationError: the one is still configured, or the other is of another tenant or type.
    """
    before = find(parts, [old])[0]
    if any(one.tenant_id == before.row.tenant_id for one in configured_sources(parts.settings).values()):
        sync.register(parts)  # the file was changed a moment ago
    before, after = find(parts, [old])[0], find(parts, [new])[0]
    alike = (before.row.tenant_id, before.row.kind) == (after.row.tenant_id, after.row.kind)
    if before.row.id == after.row.id or not alike or ledger.UPLOADED in (before.row.kind, after.row.kind):
        fix = "a source keeps its tenant and type when it is renamed, and uploads have no name to change"
        raise ConfigurationError(f"{old} cannot become {new}", fix=fix)
    if after.row.removed_at is not None or (before.row.removed_at is None and before.row.origin == "file"):
        fix = f"write {new} in place of {old} as its name in the configuration first"
        raise ConfigurationError(f"{old} is not called {new} in the configuration", fix=fix)
    with parts.database.tenant(before.row.tenant_id) as connection:
        moved, both = documents.move(connection, before.row.id, after.row.id)
        detail = {"from": before.row.name, "moved": moved, "both": both}
        _audit(connection, before.row.tenant_id, "rename", after.row.name, detail)
    maintenance.refresh_tenant(parts, before.row.tenant_id)
    return {"source": after.row.name, "tenant": after.tenant, "moved": moved, "both": both}


def forgettable(parts: Runtime, names: Sequence[str]) -> list[LedgerSource]:
    """The sources of these names, if they may be forgotten.

    Raises:
        ConfigurationError: one is configured, or belongs to uploads.
    """
    found, configured = find(parts, names), configured_sources(parts.settings)
    for known in found:
        name = f"{known.tenant}/{known.row.name}"
        if known.row.id in configured:
            fix = f"take it out of {parts.settings.path or 'the configuration'} first"
            raise ConfigurationError(f"{name} is configured and would come back", fix=fix)
        if known.row.origin == ledger.UPLOADED:
            fix = f"larder clear --source {known.row.name} removes what was uploaded"
            raise ConfigurationError(f"{name} belongs to uploads", fix=fix)
    return found


def forget(parts: Runtime, chosen: Sequence[LedgerSource]) -> Json:
    """Remove sources and all that they brought; `{"forgotten", "documents", "chunks"}`."""
    removed = [0, 0]
    for known in chosen:
        with parts.database.tenant(known.row.tenant_id) as connection:
            cleared = documents.clear(connection, known.row.id)
            ledger.forget(connection, known.row.id)
            _audit(connection, known.row.tenant_id, "forget", known.row.name, {"documents": cleared[0]})
        maintenance.refresh_tenant(parts, known.row.tenant_id)
        removed = [before + more for before, more in zip(removed, cleared, strict=True)]
    names = [f"{known.tenant}/{known.row.name}" for known in chosen]
    return {"forgotten": names, "documents": removed[0], "chunks": removed[1]}


def release(parts: Runtime, name: str) -> Json:
    """Let as many deletions of a source go as are held: in the next walk within a day, which is started."""
    known = find(parts, [name])[0]
    with parts.database.tenant(known.row.tenant_id) as connection:
        released = ledger.release_deletions(connection, known.row.id)
        _audit(connection, known.row.tenant_id, "release", known.row.name, {"held": released})
    return {**_reconciled(parts, known), "released": released}


def reconcile(parts: Runtime, names: Sequence[str]) -> list[Json]:
    """Start a run that walks all ids, for named sources or for all that are neither paused nor removed.

    Uploads are no source that can be walked.
    """
    wanted = [
        k
        for k in find(parts, names)
        if names or (k.row.paused_at is None and source_of_row(parts.settings, k.row) is not None)
    ]
    return [_reconciled(parts, k) for k in wanted]


def _reconciled(parts: Runtime, known: LedgerSource) -> Json:
    if source_of_row(parts.settings, known.row) is None:
        raise ConfigurationError(
            f"source {known.row.name} is no longer configured", fix="put it back into the file to sync it"
        )
    tenant, name = known.row.tenant_id, known.row.name
    note = partial(_audit, tenant=tenant, action="reconcile", subject=name, detail={})
    run = start_run(parts, tenant, known.row.id, trigger="reconcile", walk=True, note=note)
    return {"source": name, "tenant": known.tenant, "run": run}


# Clearing -----------------------------------------------------------------------------------------


def count_documents(parts: Runtime, tenant: UUID, source: str | None) -> int:
    """How many living documents `clear` would remove."""
    with parts.database.tenant(tenant) as connection:
        return documents.count(connection, documents.source_named(connection, source) if source else None)


def clear(parts: Runtime, tenant: UUID, source: str | None) -> Json:
    """Remove a source's documents with all that hangs on them, or all of the tenant's; `{"documents", "chunks"}`.

    One transaction: either all of it is gone, or nothing is. Open runs end here.
    """
    with parts.database.tenant(tenant) as connection:
        wanted = documents.source_named(connection, source) if source else None
        living, chunks = documents.clear(connection, wanted)
        _audit(connection, tenant, "clear", source or "everything", {})
    maintenance.refresh_tenant(parts, tenant)
    return {"documents": living, "chunks": chunks}


# Dead letters -------------------------------------------------------------------------------------


def dead_letters(
    parts: Runtime, source: str | None = None, *, settled: bool = False
) -> list[dead.DeadLetter]:
    """Letters that wait for a person, newest first; with `settled` all that are kept.

    Raises:
        ConfigurationError: there is no such source.
    """
    ids = [k.row.id for k in find(parts, [source])] if source else None
    with parts.database.control() as connection:
        return dead.listed(connection, source_ids=ids, every=settled)


def dead_letters_by_id(parts: Runtime, ids: Sequence[int]) -> list[dead.DeadLetter]:
    """The letters of these numbers.

    Raises:
        ConfigurationError: there is no letter of one of the numbers.
    """
    with parts.database.control() as connection:
        found = {i: dead.get(connection, i) for i in dict.fromkeys(ids)}
    missing = [str(i) for i, letter in found.items() if letter is None]
    if missing:
        raise ConfigurationError(
            f"there is no dead letter {', '.join(missing)}", fix="see `larder dead list`"
        )
    return [letter for letter in found.values() if letter is not None]


def history(parts: Runtime, letter: dead.DeadLetter) -> list[dead.DeadLetter]:
    """Every letter about the same document, newest first."""
    with parts.database.control() as connection:
        return dead.of_document(connection, letter.document_id)


def replay(parts: Runtime, chosen: Sequence[dead.DeadLetter]) -> Json:
    """Queue the documents of these letters again; `{"replayed": [items], "skipped": [items]}`.

    Skipped are documents that are no longer dead: changed, deleted or replayed meanwhile.
    """
    replayed: set[UUID] = set()
    for tenant, own in _by_tenant(chosen):
        with parts.database.tenant(tenant) as connection:
            done = dead.replay(connection, list(own))
            if done:
                items = {"items": sorted({own[i] for i in done})}
                _audit(connection, tenant, "dead.replay", plural(len(done), "document"), items)
        replayed |= set(done)
    if replayed:
        dispatch.wake_pump()
    items_of = {letter.document_id: letter.item for letter in chosen}
    return {
        "replayed": sorted(item for i, item in items_of.items() if i in replayed),
        "skipped": sorted(item for i, item in items_of.items() if i not in replayed),
    }


def drop(parts: Runtime, chosen: Sequence[dead.DeadLetter]) -> Json:
    """Take the documents of these letters off the list; `{"dropped": [items]}`."""
    for tenant, own in _by_tenant(chosen):
        with parts.database.tenant(tenant) as connection:
            dead.drop(connection, list(own))
            items = {"items": sorted(set(own.values()))}
            _audit(connection, tenant, "dead.drop", plural(len(own), "document"), items)
    return {"dropped": sorted({letter.item for letter in chosen})}


# Failed jobs, which wait for a person as dead letters do -------------------------------------------


def failed_jobs(parts: Runtime) -> list[Json]:
    """Jobs that nobody waits for and that failed, as `jobs.failed` tells them; newest first."""
    with parts.database.control() as connection:
        return jobs.failed(connection)


def dead_letters_and_jobs(parts: Runtime, given: Sequence[str]) -> tuple[list[dead.DeadLetter], list[Json]]:
    """The letters of these numbers and the failed jobs of these ids, of which the first characters will do.

    Raises:
        ConfigurationError: there is none of one of them.
    """
    failed, numbers, found = failed_jobs(parts), [], []
    for one in given:
        own = [job for job in failed if len(one) >= SHOWN and job["id"].startswith(one.lower())]
        found += own
        if not own and not one.isdecimal():
            raise ConfigurationError(f"there is no dead letter {one}", fix="see `larder dead list`")
        if not own:
            numbers.append(int(one))
    return dead_letters_by_id(parts, numbers), found


def settle_jobs(
    parts: Runtime,
    chosen: Sequence[Json],
    action: str,
    settle: Callable[[Connection, Sequence[str]], list[str]],
) -> list[str]:
    """`jobs.replay` or `jobs.drop` for these; the ids of those that were still failed."""
    done = []
    for tenant in {job["tenant_id"] for job in chosen}:
        with parts.database.tenant(tenant) as connection:
            own = settle(connection, [job["id"] for job in chosen if job["tenant_id"] == tenant])
            if own:
                _audit(connection, tenant, action, plural(len(own), "job"), {"items": own})
        done += own
    if done:
        dispatch.wake_pump()
    return sorted(done)


def _by_tenant(chosen: Sequence[dead.DeadLetter]) -> Iterator[tuple[UUID, dict[UUID, str]]]:
    """Tenant, and its documents with their names."""
    for tenant in {letter.tenant_id for letter in chosen}:
        yield tenant, {one.document_id: one.item for one in chosen if one.tenant_id == tenant}


def keys(parts: Runtime, *, rotate: bool = False) -> Json:
    """How many documents of all tenants each key opens: `{"documents": {name of a key: count}, "rotated"}`.

    `rotate` encrypts them by the first key as configured; what is interrupted goes on when it is called again.

    Raises:
        ConfigurationError: one of the keys is none, or there is none.
    """
    found = Counter(dict.fromkeys(parts.keyring.named, 0))
    for tenant in maintenance.tenants(parts):
        after: UUID | None = UUID(int=0)
        while after:
            with parts.database.tenant(tenant) as connection:
                after, some = encryption.count_by_key(connection, parts.keyring, after, rotate=rotate)
                found.update(some)
                if some["rotated"]:
                    _audit(
                        connection, tenant, "keys.rotate", next(iter(found)), {"documents": some["rotated"]}
                    )
    return {"rotated": found.pop("rotated", 0), "documents": dict(found)}
