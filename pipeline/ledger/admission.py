"""Taking pages into the ledger (new, changed, the same), and removing what a complete walk no longer finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Document, Listing, Page, Problem
from pipeline.ledger import clean, document_id, runs
from pipeline.ledger.leases import RESTARTED

LONGEST_ID = 1000
"""Bytes of an external id: what an index row can hold, with room for the rest of the key."""
LONGEST_TAG = 200
"""Characters of a tag; the rest is cut off."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Whose page it is and under which pipeline it will be indexed."""

    tenant_id: UUID
    project_id: UUID
    source_id: UUID
    run_id: int
    pipeline_version: str
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What became of a page's items; a document met twice in one run counts once."""

    unchanged: int = 0
    queued: int = 0
    restored: int = 0
    skipped: int = 0
    failed: int = 0
    deleted: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The columns of `sync_run` to add to."""
        listed = self.unchanged + self.queued + self.skipped + self.failed
        return {"listed": listed, **vars(self)}


_KNOWN = text("""
    select d.id, d.external_id, d.desired_version, d.desired_hash, d.pipeline_version, d.state, d.hidden, d.deleted,
           d.fingerprint,
           exists (select from run_item i where i.run_id = :run and i.document_id = d.id) as in_run
    from document d where d.source_id = :source and d.external_id = any(:ids)
    order by d.id for update of d""")

_UPSERT = text(f"""
    insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, url, tags,
                          metadata, security_level, created_at, updated_at, fingerprint, desired_hash,
                          pipeline_version, desired_version)
    select r.id, :tenant, :source, :project, r.external_id, r.source_type, r.kind, r.title, r.url, r.tags,
           r.metadata, r.security_level, r.created_at, r.updated_at, r.fingerprint, r.hash, :pipeline, r.version
    from jsonb_to_recordset(cast(:rows as jsonb)) as r(
        id uuid, external_id text, source_type text, kind text, title text, url text, tags text[], metadata jsonb,
        security_level text, created_at timestamptz, updated_at timestamptz, fingerprint text, hash text,
        version integer)
    order by r.id
    on conflict (id) do update set
        project_id = excluded.project_id, source_type = excluded.source_type, kind = excluded.kind,
        title = excluded.title, url = excluded.url, tags = excluded.tags, metadata = excluded.metadata,
        security_level = excluded.security_level, created_at = excluded.created_at, updated_at = excluded.updated_at,
        fingerprint = excluded.fingerprint, desired_hash = excluded.desired_hash,
        pipeline_version = excluded.pipeline_version,
        desired_version = excluded.desired_version, state = 'pending', stage = 'fetched', hidden = false,
        deleted = false, last_error = null, {RESTARTED}
    where document.desired_version < excluded.desired_version""")


@dataclass(kw_only=True)
class _Sorted:
    """A page's documents by what is to be done with them."""

    changed: list[tuple[Document, int]] = field(default_factory=list)
    waiting: list[tuple[UUID, int]] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    back: list[UUID] = field(default_factory=list)
    """Unchanged and hidden: to be shown again."""
    marked: list[tuple[UUID, str]] = field(default_factory=list)
    """Unchanged but for their fingerprint."""
    unchanged: int = 0
    restored: int = 0

    def take(self, document: Document, row: Any, where: Admission) -> None:
        """Sort in a document; `row` is what the ledger knows of it, None if nothing."""
        verdict = _verdict(row, document, where)
        if verdict == "changed":
            self.changed.append((document, row["desired_version"] + 1 if row else 1))
            self.restored += bool(row and (row["hidden"] or row["deleted"]))
            return
        if row["fingerprint"] != clean(document.fingerprint):
            self.marked.append((row["id"], clean(document.fingerprint)))
        if row["in_run"]:
            return
        if verdict == "waiting":
            self.waiting.append((row["id"], row["desired_version"]))
        elif verdict == "dead":
            self.refused.append(_given_up(clean(document.external_id)))
        else:
            self.unchanged += 1
        if row["hidden"]:
            self.back.append(row["id"])


def admit(connection: Connection, where: Admission, page: Page) -> Admitted:
    """Take one page: upsert what changed, note every item in the run, move nothing else.

    The caller proves in the same transaction that the sync is still its own (`sources.hold`) and keeps the cursor.
    """
    documents = {clean(d.external_id): d for d in page.documents}
    found = _Sorted(refused=[_too_long(e) for e in documents if len(e.encode()) > LONGEST_ID])
    documents = {e: d for e, d in documents.items() if len(e.encode()) <= LONGEST_ID}
    gone = [clean(e) for e in page.deleted]
    known = {
        row["external_id"]: row
        for row in connection.execute(
            _KNOWN,
            # Those that go are locked here too: locks are taken once, in the order of ids.
            {"source": where.source_id, "ids": [*documents, *gone], "run": where.run_id},
        ).mappings()
    }
    for external_id, document in documents.items():
        found.take(document, known.get(external_id), where)
    show_again(connection, found.back)
    _mark(connection, found.marked)
    queued = _queue(connection, where, found.changed, found.waiting)
    deleted = remove(connection, [document_id(where.source_id, e) for e in gone])
    runs.note_problems(connection, where.run_id, "failed", [*page.failed, *found.refused])
    runs.note_problems(connection, where.run_id, "skipped", page.skipped)
    return Admitted(
        queued=queued,
        unchanged=found.unchanged,
        restored=found.restored + len(found.back),
        failed=len(page.failed) + len(found.refused),
        skipped=len(page.skipped),
        deleted=deleted,
    )


def _too_long(external_id: str) -> Problem:
    reason = (
        f"its id has {len(external_id.encode())} bytes, at most {LONGEST_ID} are possible; shorten its name"
    )
    return Problem(external_id=external_id[:200], reason=reason)


def _given_up(external_id: str) -> Problem:
    reason = "it is a dead letter in this very version; see `larder dead list`, then `larder dead replay`"
    return Problem(external_id=external_id, reason=reason)


def verdicts(connection: Connection, where: Admission, page: Page) -> dict[str, str]:
    """What `admit` would make of each document, without a write; external id -> verdict."""
    documents = {clean(d.external_id): d for d in page.documents}
    statement = text(str(_KNOWN.text).replace("for update of d", ""))
    rows = connection.execute(
        statement, {"source": where.source_id, "ids": list(documents), "run": where.run_id}
    )
    known = {row["external_id"]: row for row in rows.mappings()}
    return {e: _verdict(known.get(e), d, where) for e, d in documents.items()}


def _verdict(row: Any, document: Document, where: Admission) -> str:
    """changed, waiting (already queued), dead (tried in this very form, and given up) or unchanged."""
    if row is None or row["deleted"]:
        return "changed"
    if row["desired_hash"] != document.content_hash or row["pipeline_version"] != where.pipeline_version:
        return "changed"
    if row["state"] == "pending":
        return "waiting"
    if where.force and not row["in_run"]:
        return "changed"
    return "dead" if row["state"] == "dead" else "unchanged"


def _mark(connection: Connection, marks: Sequence[tuple[UUID, str]]) -> None:
    """Keep the fingerprints of documents that are otherwise unchanged."""
    if marks:
        statement = text("""
            update document d set fingerprint = m.mark
            from unnest(cast(:ids as uuid[]), cast(:marks as text[])) as m(id, mark) where d.id = m.id""")
        connection.execute(statement, {"ids": [i for i, _ in marks], "marks": [m for _, m in marks]})


def show_again(connection: Connection, ids: Sequence[UUID]) -> None:
    """Hidden documents are there again."""
    if ids:
        statement = text("update document set hidden = false where id = any(:ids)")
        connection.execute(statement, {"ids": list(ids)})


def _queue(
    connection: Connection,
    where: Admission,
    changed: Sequence[tuple[Document, int]],
    waiting: Sequence[tuple[UUID, int]],
) -> int:
    """Write the changed documents and their bodies; note all of them in the run. Returns how many are new in it."""
    rows = [_row(where, document, version) for document, version in changed]
    if rows:
        connection.execute(
            _UPSERT,
            {
                "tenant": where.tenant_id,
                "source": where.source_id,
                "project": where.project_id,
                "pipeline": where.pipeline_version,
                "rows": json.dumps(rows, default=str),
            },
        )
        ids = [row["id"] for row in rows]
        for table in ("document_body", "chunk_stage"):
            statement = text(f"delete from {table} where document_id = any(cast(:ids as uuid[]))")
            connection.execute(statement, {"ids": ids})
        statement = text("""
            insert into document_body (document_id, tenant_id, version, body)
            values (:id, :tenant, :version, :body)""")
        connection.execute(
            statement,
            [
                {"id": row["id"], "tenant": where.tenant_id, "version": version, "body": clean(document.text)}
                for row, (document, version) in zip(rows, changed, strict=True)
            ],
        )
    items = [(row["id"], row["version"]) for row in rows] + [(str(i), v) for i, v in waiting]
    if not items:
        return 0
    return note_items(connection, where.tenant_id, where.run_id, items)


def _row(where: Admission, document: Document, version: int) -> dict[str, Any]:
    external_id = clean(document.external_id)
    return {
        "id": str(document_id(where.source_id, external_id)),
        "external_id": external_id,
        "source_type": document.source_type,
        "kind": document.kind,
        "title": clean(document.title) or external_id,
        "url": clean(document.url),
        "tags": list(dict.fromkeys(tag[:LONGEST_TAG] for tag in clean(list(document.tags)))),
        "metadata": clean(document.metadata),
        "security_level": document.security_level,
        "created_at": document.created_at and document.created_at.isoformat(),
        "updated_at": document.updated_at and document.updated_at.isoformat(),
        "fingerprint": clean(document.fingerprint),
        "hash": document.content_hash,
        "version": version,
    }


def note_items(connection: Connection, tenant_id: UUID, run_id: int, items: Sequence[tuple[Any, int]]) -> int:
    """Put documents into a run; returns how many were not in it before."""
    ids = [str(i) for i, _ in items]
    statement = text("""
        update run_item set outcome = 'superseded'
        where outcome is null and document_id = any(cast(:ids as uuid[])) and run_id <> :run""")
    connection.execute(statement, {"ids": ids, "run": run_id})
    statement = text("""
        insert into run_item (run_id, tenant_id, document_id, version)
        select :run, :tenant, * from unnest(cast(:ids as uuid[]), cast(:versions as integer[]))
        on conflict (run_id, document_id) do update set version = excluded.version, outcome = null
        returning (xmax = 0) as fresh""")
    made = connection.execute(
        statement, {"run": run_id, "tenant": tenant_id, "ids": ids, "versions": [v for _, v in items]}
    )
    return sum(row.fresh for row in made)


def remove(connection: Connection, ids: Sequence[UUID]) -> int:
    """Delete documents: their chunks, bodies and work go, the row stays as a tombstone. Returns how many."""
    if not ids:
        return 0
    statement = text("""
        update document set deleted = true, hidden = true, state = 'done', stage = 'done', chunk_count = 0,
               indexed_version = null, indexed_hash = null, indexed_pipeline = null,
               lease_token = null, lease_until = null, last_error = null
        where id in (select id from document where id = any(:ids) and not deleted order by id for update)
        returning id""")
    gone = connection.execute(statement, {"ids": list(ids)})
    found = [row.id for row in gone]
    # First the rows that whoever fills another search index holds while it writes chunks there.
    for table in ("index_document", "chunk", "chunk_stage", "document_body"):
        connection.execute(text(f"delete from {table} where document_id = any(:ids)"), {"ids": found})
    runs.settle_items(connection, found, "superseded")
    statement = text("""
        update dead_letter set resolved_at = now(), resolution = 'document deleted'
        where document_id = any(:ids) and resolved_at is null""")
    connection.execute(statement, {"ids": found})
    return len(found)


def outdate(connection: Connection, where: Admission) -> int:
    """Queue settled documents of the source that were made by another pipeline; their text is already here.

    For documents that the sync itself did not list again: a source that only tells what changed
    must not keep old chunks for ever. Returns how many.
    """
    statement = text(f"""
        update document d set desired_version = desired_version + 1, pipeline_version = :pipeline,
               state = 'pending', stage = 'fetched', {RESTARTED}
        where d.id in (select id from document where source_id = :source and not deleted
                       and state <> 'pending' and pipeline_version <> :pipeline order by id for update)
          and exists (select from document_body b where b.document_id = d.id and b.version = d.desired_version)
        returning id, desired_version""")
    rows = connection.execute(statement, {"source": where.source_id, "pipeline": where.pipeline_version})
    items = [(row.id, row.desired_version) for row in rows]
    if not items:
        return 0
    statement = text("""
        update document_body b set version = d.desired_version from document d
        where d.id = b.document_id and d.id = any(:ids)""")
    connection.execute(statement, {"ids": [i for i, _ in items]})
    return note_items(connection, where.tenant_id, where.run_id, items)


@dataclass(frozen=True, kw_only=True)
class DeletionGuard:
    """More than `share` and more than `documents` of a source in one walk wait for a human."""

    share: float = 0.2
    documents: int = 25


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a walk removed; `held` documents wait for `larder sources release`."""

    hidden: int = 0
    deleted: int = 0
    restored: int = 0
    held: int = 0


def prune(connection: Connection, source_id: UUID, listing: Listing, guard: DeletionGuard) -> Pruned:
    """Compare the ledger with a complete walk. An incomplete walk proves nothing and changes nothing."""
    if not listing.complete:
        return Pruned()
    # Compared in the database: of a source with a hundred thousand items only those that matter come here.
    statement = text("""
        select d.id, d.hidden, w.id is null as absent from document d
        left join (select distinct unnest(cast(:here as text[])) as id) w on w.id = d.external_id
        where d.source_id = :source and not d.deleted and (w.id is null or d.hidden)""")
    rows = connection.execute(statement, {"source": source_id, "here": [clean(i) for i in listing.ids]}).all()
    statement = text("select count(*) from document where source_id = :source and not deleted")
    living = connection.execute(statement, {"source": source_id}).scalar_one()
    back = [row.id for row in rows if not row.absent]
    show_again(connection, back)
    newly = [row.id for row in rows if row.absent and not row.hidden]
    again = [row.id for row in rows if row.absent and row.hidden]
    if len(newly) > max(guard.documents, guard.share * living) and not _released(connection, source_id):
        statement = text("update source set held = :n where id = :id")
        connection.execute(statement, {"n": len(newly), "id": source_id})
        return Pruned(held=len(newly), deleted=remove(connection, again), restored=len(back))
    connection.execute(text("update source set held = 0 where id = :id and held > 0"), {"id": source_id})
    statement = text("""
        update document set hidden = true
        where id in (select id from document where id = any(:ids) order by id for update)""")
    connection.execute(statement, {"ids": newly})
    return Pruned(hidden=len(newly), deleted=remove(connection, again), restored=len(back))


def differing(connection: Connection, source_id: UUID, listing: Listing, after: str = "") -> list[str]:
    """The external ids behind `after`, in order, of which the walk shows something else than the ledger has.

    A walk may read an item again although the ledger knows it is broken: what broke it may be mended.
    """
    statement = text("""
        select w.id from unnest(cast(:ids as text[]), cast(:marks as text[])) as w(id, mark)
        left join document d on d.source_id = :source and d.external_id = w.id and not d.deleted
        where d.fingerprint is distinct from w.mark and w.id collate "C" > :after
        order by w.id collate "C" asc""")
    rows = connection.execute(
        statement,
        {
            "source": source_id,
            "ids": [clean(i) for i in listing.versions],
            "marks": [clean(mark) for mark in listing.versions.values()],
            "after": after,
        },
    )
    return list(rows.scalars())


def _released(connection: Connection, source_id: UUID) -> bool:
    statement = text("select coalesce(released_until > now(), false) from source where id = :id")
    row = connection.execute(statement, {"id": source_id})
    return bool(row.scalar_one())
