"""Operations on sources and dead letters; each change is written to the audit chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from urllib.parse import quote_plus
from uuid import UUID

from sqlalchemy import Connection

import connectors
from connectors.documents.redaction import redact
from connectors.rest.options import RestOptions
from connectors.sections import MASK, secrets_in
from pipeline.database import encryption
from pipeline.documents import Document, Finding, Json
from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ledger import audit, dead, documents, jobs, overview
from pipeline.ledger import sources as ledger
from workers.app import ID_CHARACTERS
from workers.app.health import supervised
from workers.app.ingestion import maintenance, sync
from workers.app.ingestion.sync import configured_sources, open_source, source_of_row, start_run
from workers.app.ingestion.sync_now import configured_sources_named, undoable
from workers.queue import dispatch
from workers.runtime import Runtime, current_user


class LedgerSource(NamedTuple):
    """A source of the ledger with the name of its tenant."""

    row: ledger.SourceRow
    tenant: str


def _audit(connection: Connection, tenant: UUID, action: str, subject: str, detail: Json) -> None:
    """Append to a tenant's audit chain, in the transaction of the change itself."""
    audit.append(connection, tenant, action, subject, detail, by=current_user())


# Sources ------------------------------------------------------------------------------------------


def known_sources(runtime: Runtime) -> list[LedgerSource]:
    """All sources of the ledger, after those of the configuration are registered, unless workers run that lack them."""
    rows = _rows(runtime)
    known_ids = {source.row.id for source in rows}
    missing = [one for one in configured_sources(runtime.settings).values() if one.id not in known_ids]
    if not missing or undoable(runtime, missing):
        return rows
    sync.register(runtime)
    return _rows(runtime)


def _rows(runtime: Runtime) -> list[LedgerSource]:
    with runtime.database.control() as connection:
        names = ledger.tenant_names(connection)
        return [LedgerSource(row, names[row.tenant_id]) for row in ledger.listed(connection)]


def find(runtime: Runtime, names: Sequence[str]) -> list[LedgerSource]:
    """The sources called NAME or TENANT/NAME, over all tenants; all that are still configured without names.

    Raises:
        ConfigurationError: a name is not known, or two tenants have it; the message lists what is known.
    """
    all_sources = known_sources(runtime)
    if not names:
        return [source for source in all_sources if source.row.removed_at is None]
    chosen = []
    for name in dict.fromkeys(names):
        matching = [k for k in all_sources if name in (k.row.name, f"{k.tenant}/{k.row.name}")]
        if len(matching) > 1:
            full = ", ".join(f"{k.tenant}/{k.row.name}" for k in matching)
            raise ConfigurationError(f"several tenants have a source {name!r}", fix=f"name one of {full}")
        if not matching:
            listed = ", ".join(sorted(k.row.name for k in all_sources))
            raise ConfigurationError(f"no source is called {name!r}", fix=f"known are {listed or 'none'}")
        chosen += matching
    return chosen


def listing(runtime: Runtime) -> list[Json]:
    """One entry per source for `larder sources list`."""
    same = ("name", "schedule", "timezone", "watch", "origin", "failures", "last_error", "held")
    missing = supervised.missing_folders(runtime.settings)
    return [
        {
            **{name: getattr(k.row, name) for name in same},
            "tenant": k.tenant,
            "type": k.row.kind,
            "state": "removed" if k.row.removed_at else "paused" if k.row.paused_at else "active",
            "last_sync": k.row.last_sync_at and k.row.last_sync_at.isoformat(),
            "next_sync": k.row.next_sync_at and k.row.next_sync_at.isoformat(),
            "missing_folder": missing.get(k.row.name) if k.tenant == runtime.settings.tenant else None,
        }
        for k in known_sources(runtime)
    ]


def newest_runs(runtime: Runtime, names: Sequence[str], most: int) -> list[Json]:
    """The newest runs of these sources, of all without names; each with its `source` and `seconds`."""
    called = {k.row.id: k.row.name for k in find(runtime, names)}
    with runtime.database.control() as connection:
        run_rows = overview.newest_runs(connection, [*called], most)
    for run in run_rows:
        begun, ended = run["started_at"], run["finished_at"]
        run["source"] = called[run.pop("source_id")]
        run["seconds"] = ((ended or datetime.now(UTC)) - begun).total_seconds()
        run |= {"started_at": begun.isoformat(), "finished_at": ended and ended.isoformat()}
    return run_rows


def check(runtime: Runtime, names: Sequence[str]) -> list[Json]:
    """Try to read configured sources, without a server; `{"source", "ok", "findings"}` each.

    Raises:
        ConfigurationError: a name is not configured; the message lists those that are.
    """
    checked = []
    for one in configured_sources_named(runtime.settings, names):
        try:
            findings = open_source(runtime, one.settings).check()
        except LarderError as error:
            findings = [Finding(ok=False, subject="opening it", detail=error.message, fix=error.fix)]
        rows = [vars(finding) for finding in findings]
        checked.append({"source": one.settings.name, "ok": all(f["ok"] for f in rows), "findings": rows})
    return checked


def try_out(runtime: Runtime, name: str, limit: int) -> Json:
    """Read the first documents of a configured source, without a server; nothing is stored.

    Returns `{"source", "documents", "requests", "empty", "failed", "left_out", "error"}`; `empty` counts the
    configured fields that had no value, and secrets in `requests` are masked.

    Raises:
        ConfigurationError: the name is not configured; the message lists those that are.
    """
    settings = configured_sources_named(runtime.settings, [name])[0].settings
    secrets, observed = list(secrets_in(settings)), {"request": list[str](), "empty": list[str]()}

    def observe(kind: str, text: str) -> None:
        for secret in secrets:
            text = text.replace(quote_plus(secret), MASK).replace(secret, MASK)
        observed[kind].append(redact(text))

    context = runtime.settings.context_of(settings, lambda: runtime.request_limiter)
    options = settings.with_context(replace(context, observe=observe))
    if isinstance(options, RestOptions):  # others read a batch with one request
        options = options.model_copy(update={"page_items": min(limit, options.page_items)})
    documents, failed, left_out, error = list[Document](), list[Json](), Counter[str](), ""
    try:
        for page in connectors.open_source(options).pages(None):
            documents += page.documents
            failed += [problem.to_json() for problem in page.failed]
            left_out += page.all_left_out
            if len(documents) >= limit:
                break
    except LarderError as problem:
        error = str(problem)
    rows = [_preview_row(document) for document in documents[:limit]]
    outcome = {"documents": rows, "requests": observed["request"], "empty": dict(Counter(observed["empty"]))}
    return {"source": name, **outcome, "failed": failed, "left_out": dict(left_out), "error": error}


def _preview_row(document: Document) -> Json:
    fields = ("external_id", "title", "kind", "url", "tags", "metadata", "security_level", "text")
    times = {"created_at": document.created_at, "updated_at": document.updated_at}
    return {
        **{field: getattr(document, field) for field in fields},
        **{name: time and time.isoformat() for name, time in times.items()},
    }


def pause(runtime: Runtime, name: str, *, paused: bool) -> Json:
    """Stop or resume a source's schedule; `{"source", "tenant", "paused"}`."""
    source = find(runtime, [name])[0]
    with runtime.database.tenant(source.row.tenant_id) as connection:
        ledger.pause(connection, source.row.id, paused=paused)
        _audit(connection, source.row.tenant_id, "pause" if paused else "resume", source.row.name, {})
    return {"source": source.row.name, "tenant": source.tenant, "paused": paused}


def rename(runtime: Runtime, old: str, new: str) -> Json:
    """Give the documents of a source to the one that replaces it; `{"source", "tenant", "moved", "both"}`.

    Raises:
        ConfigurationError: the one is still configured, or the other is of another tenant or type.
    """
    before = find(runtime, [old])[0]
    if any(one.tenant_id == before.row.tenant_id for one in configured_sources(runtime.settings).values()):
        sync.register(runtime)  # the file was changed a moment ago
    before, after = find(runtime, [old])[0], find(runtime, [new])[0]
    alike = (before.row.tenant_id, before.row.kind) == (after.row.tenant_id, after.row.kind)
    if before.row.id == after.row.id or not alike or ledger.UPLOADED in (before.row.kind, after.row.kind):
        fix = "a source keeps its tenant and type when it is renamed, and uploads have no name to change"
        raise ConfigurationError(f"{old} cannot become {new}", fix=fix)
    if after.row.removed_at is not None or (before.row.removed_at is None and before.row.origin == "file"):
        fix = f"write {new} in place of {old} as its name in the configuration first"
        raise ConfigurationError(f"{old} is not called {new} in the configuration", fix=fix)
    with runtime.database.tenant(before.row.tenant_id) as connection:
        moved, both = documents.move(connection, before.row.id, after.row.id)
        detail = {"from": before.row.name, "moved": moved, "both": both}
        _audit(connection, before.row.tenant_id, "rename", after.row.name, detail)
    maintenance.refresh_tenant(runtime, before.row.tenant_id)
    return {"source": after.row.name, "tenant": after.tenant, "moved": moved, "both": both}


def forgettable(runtime: Runtime, names: Sequence[str]) -> list[LedgerSource]:
    """The sources of these names, if they may be forgotten.

    Raises:
        ConfigurationError: one is configured, or belongs to uploads.
    """
    chosen, configured = find(runtime, names), configured_sources(runtime.settings)
    for source in chosen:
        name = f"{source.tenant}/{source.row.name}"
        if source.row.id in configured:
            fix = f"take it out of {runtime.settings.path or 'the configuration'} first"
            raise ConfigurationError(f"{name} is configured and would come back", fix=fix)
        if source.row.origin == ledger.UPLOADED:
            fix = f"larder clear --source {source.row.name} removes what was uploaded"
            raise ConfigurationError(f"{name} belongs to uploads", fix=fix)
    return chosen


def forget(runtime: Runtime, chosen: Sequence[LedgerSource]) -> Json:
    """Remove sources with all their documents; `{"forgotten", "documents", "chunks"}`."""
    removed = [0, 0]
    for source in chosen:
        with runtime.database.tenant(source.row.tenant_id) as connection:
            cleared = documents.clear(connection, source.row.id)
            ledger.forget(connection, source.row.id)
            _audit(connection, source.row.tenant_id, "forget", source.row.name, {"documents": cleared[0]})
        maintenance.refresh_tenant(runtime, source.row.tenant_id)
        removed = [before + more for before, more in zip(removed, cleared, strict=True)]
    names = [f"{source.tenant}/{source.row.name}" for source in chosen]
    return {"forgotten": names, "documents": removed[0], "chunks": removed[1]}


def release(runtime: Runtime, name: str) -> Json:
    """Approve the pending deletions of a source, as many as there are now, and start the walk that finds them."""
    source = find(runtime, [name])[0]
    with runtime.database.tenant(source.row.tenant_id) as connection:
        released = ledger.release_deletions(connection, source.row.id)
        _audit(connection, source.row.tenant_id, "release", source.row.name, {"held": released})
    return {**_reconciled(runtime, source), "released": released}


def reconcile(runtime: Runtime, names: Sequence[str]) -> list[Json]:
    """Start a run that walks all ids, for named sources or for all that are neither paused nor removed.

    Uploads are no source that can be walked.
    """
    chosen = [
        k
        for k in find(runtime, names)
        if names or (k.row.paused_at is None and source_of_row(runtime.settings, k.row) is not None)
    ]
    return [_reconciled(runtime, k) for k in chosen]


def _reconciled(runtime: Runtime, source: LedgerSource) -> Json:
    if source_of_row(runtime.settings, source.row) is None:
        raise ConfigurationError(
            f"source {source.row.name} is no longer configured", fix="put it back into the file to sync it"
        )
    tenant, name = source.row.tenant_id, source.row.name
    note = partial(_audit, tenant=tenant, action="reconcile", subject=name, detail={})
    run = start_run(runtime, tenant, source.row.id, trigger="reconcile", walk=True, note=note)
    return {"source": name, "tenant": source.tenant, "run": run}


# Clearing -----------------------------------------------------------------------------------------


def count_documents(runtime: Runtime, tenant: UUID, source: str | None) -> int:
    """Number of living documents that `clear` would remove."""
    with runtime.database.tenant(tenant) as connection:
        return documents.count(connection, documents.source_named(connection, source) if source else None)


def clear(runtime: Runtime, tenant: UUID, source: str | None) -> Json:
    """Remove a source's documents with all that hangs on them, or all of the tenant's; `{"documents", "chunks"}`.

    One transaction: either all of it is gone, or nothing is. Open runs end here.
    """
    with runtime.database.tenant(tenant) as connection:
        source_id = documents.source_named(connection, source) if source else None
        living, chunks = documents.clear(connection, source_id)
        _audit(connection, tenant, "clear", source or "everything", {})
    maintenance.refresh_tenant(runtime, tenant)
    return {"documents": living, "chunks": chunks}


# Dead letters -------------------------------------------------------------------------------------


def dead_letters(
    runtime: Runtime, source: str | None = None, *, settled: bool = False
) -> list[dead.DeadLetter]:
    """Letters that wait for a person, newest first; with `settled` all that are kept.

    Raises:
        ConfigurationError: there is no such source.
    """
    ids = [k.row.id for k in find(runtime, [source])] if source else None
    with runtime.database.control() as connection:
        return dead.listed(connection, source_ids=ids, every=settled)


def dead_letters_by_id(runtime: Runtime, ids: Sequence[int]) -> list[dead.DeadLetter]:
    """The dead letters of these numbers.

    Raises:
        ConfigurationError: there is no letter of one of the numbers.
    """
    with runtime.database.control() as connection:
        letters = {i: dead.get(connection, i) for i in dict.fromkeys(ids)}
    missing = [str(i) for i, letter in letters.items() if letter is None]
    if missing:
        raise ConfigurationError(
            f"there is no dead letter {', '.join(missing)}", fix="see `larder dead list`"
        )
    return [letter for letter in letters.values() if letter is not None]


def history(runtime: Runtime, letter: dead.DeadLetter) -> list[dead.DeadLetter]:
    """All dead letters about the document of this one, newest first."""
    with runtime.database.control() as connection:
        return dead.of_document(connection, letter.document_id)


def replay(runtime: Runtime, chosen: Sequence[dead.DeadLetter]) -> Json:
    """Queue the documents of these letters again; `{"replayed": [items], "skipped": [items]}`.

    Skipped are documents that are no longer dead: changed, deleted or replayed meanwhile.
    """
    replayed: set[UUID] = set()
    for tenant, names in _by_tenant(chosen):
        with runtime.database.tenant(tenant) as connection:
            requeued = dead.replay(connection, list(names))
            if requeued:
                items = {"items": sorted({names[i] for i in requeued})}
                _audit(connection, tenant, "dead.replay", plural(len(requeued), "document"), items)
        replayed |= set(requeued)
    if replayed:
        dispatch.wake_pump()
    items_of = {letter.document_id: letter.item for letter in chosen}
    return {
        "replayed": sorted(item for i, item in items_of.items() if i in replayed),
        "skipped": sorted(item for i, item in items_of.items() if i not in replayed),
    }


def drop(runtime: Runtime, chosen: Sequence[dead.DeadLetter]) -> Json:
    """Take the documents of these letters off the list; `{"dropped": [items]}`."""
    for tenant, names in _by_tenant(chosen):
        with runtime.database.tenant(tenant) as connection:
            dead.drop(connection, list(names))
            items = {"items": sorted(set(names.values()))}
            _audit(connection, tenant, "dead.drop", plural(len(names), "document"), items)
    return {"dropped": sorted({letter.item for letter in chosen})}


# Failed jobs, which wait for a person as dead letters do -------------------------------------------


def failed_jobs(runtime: Runtime) -> list[Json]:
    """Failed jobs that no caller waits for, as `jobs.failed` gives them; newest first."""
    with runtime.database.control() as connection:
        return jobs.failed(connection)


def dead_letters_and_jobs(runtime: Runtime, ids: Sequence[str]) -> tuple[list[dead.DeadLetter], list[Json]]:
    """The dead letters of these numbers and the failed jobs whose ids begin like this.

    Raises:
        ConfigurationError: there is none of one of them.
    """
    failed, numbers, chosen_jobs = failed_jobs(runtime), [], []
    for one in ids:
        matching = [job for job in failed if len(one) >= ID_CHARACTERS and job["id"].startswith(one.lower())]
        chosen_jobs += matching
        if not matching and not one.isdecimal():
            raise ConfigurationError(f"there is no dead letter {one}", fix="see `larder dead list`")
        if not matching:
            numbers.append(int(one))
    return dead_letters_by_id(runtime, numbers), chosen_jobs


def settle_jobs(
    runtime: Runtime,
    chosen: Sequence[Json],
    action: str,
    settle: Callable[[Connection, Sequence[str]], list[str]],
) -> list[str]:
    """Replay or drop failed jobs, by `jobs.replay` or `jobs.drop`; the ids of those that were still failed."""
    done = []
    for tenant in {job["tenant_id"] for job in chosen}:
        with runtime.database.tenant(tenant) as connection:
            settled = settle(connection, [job["id"] for job in chosen if job["tenant_id"] == tenant])
            if settled:
                _audit(connection, tenant, action, plural(len(settled), "job"), {"items": settled})
        done += settled
    if done:
        dispatch.wake_pump()
    return sorted(done)


def _by_tenant(chosen: Sequence[dead.DeadLetter]) -> Iterator[tuple[UUID, dict[UUID, str]]]:
    """Tenants with their documents, id -> name."""
    for tenant in {letter.tenant_id for letter in chosen}:
        yield tenant, {one.document_id: one.item for one in chosen if one.tenant_id == tenant}


def keys(runtime: Runtime, *, rotate: bool = False) -> Json:
    """Count documents of all tenants by the key that opens them.

    Returns `{"documents": {name of a key: count}, "rotated", "unreadable"}`; `rotate` encrypts them by the first key as
    configured, and what is interrupted goes on when it is called again.

    Raises:
        ConfigurationError: one of the keys is none, or there is none.
    """
    counts = Counter(dict.fromkeys(runtime.keyring.named, 0))
    for tenant in maintenance.tenants(runtime):
        after: UUID | None = UUID(int=0)
        while after:
            with runtime.database.tenant(tenant) as connection:
                after, some = encryption.count_by_key(connection, runtime.keyring, after, rotate=rotate)
                counts.update(some)
                if some["rotated"]:
                    _audit(
                        connection, tenant, "keys.rotate", next(iter(counts)), {"documents": some["rotated"]}
                    )
    unreadable = counts[encryption.UNKNOWN]
    return {"rotated": counts.pop("rotated", 0), "documents": dict(counts), "unreadable": unreadable}
