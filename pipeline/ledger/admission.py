"""Admission of pages: documents that are new, changed or the same; removal of those a complete walk no longer lists."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, text

from pipeline.database.encryption import Keyring
from pipeline.database.engine import Transfer, transfer
from pipeline.documents import Document, Listing, Page, Problem
from pipeline.ledger import document_id, due_work, runs, storable, work
from pipeline.ledger.runs import Counts
from pipeline.ledger.work import LEFT_ALONE, resolve_letters

LONGEST_ID = 1000
"""The most bytes of an external id, so that it fits into an index row with the rest of the key."""
TWICE = "another document with this id came at the same time, and the last one is kept; give each an id of its own"
LONGEST_TAG = 200
"""The most characters of a tag; the rest is cut off."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The source and run that a page belongs to, and the pipeline that will index it."""

    tenant_id: UUID
    source_id: UUID
    """The source, whose project the documents come into."""
    run_id: int
    pipeline_version: str
    force: bool = False
    keyring: Keyring = field(default_factory=Keyring)
    """Encrypts some of the metadata."""


_STORED = """
    select d.id, d.external_id, d.desired_version, d.desired_hash, d.pipeline_version, d.state, d.hidden, d.deleted,
           d.fingerprint, d.indexed_version is not null as searchable,
           exists (select from run_item i where i.run_id = :run and i.document_id = d.id) as in_run
    from document d where d.source_id = :source and d.external_id = any(:ids)"""

_FIELDS = (
    "project_id, source_type, kind, title, url, tags, metadata, security_level, created_at, updated_at, fingerprint,"
    " desired_hash, pipeline_version, desired_version, due_at"
)

_UPSERT = text(f"""
    insert into document (id, tenant_id, source_id, external_id, {_FIELDS})
    select id, :tenant, :source, external_id, (select project_id from source where id = :source), source_type, kind,
           title, url, tags, metadata, security_level, created_at, updated_at, fingerprint, hash, :pipeline, version,
           {LEFT_ALONE}
    from jsonb_to_recordset(cast(:rows as jsonb)) as r(
        id uuid, external_id text, source_type text, kind text, title text, url text, tags text[], metadata jsonb,
        security_level text, created_at timestamptz, updated_at timestamptz, fingerprint text, hash text,
        version integer)
    order by id
    on conflict (id) do update set {", ".join(f"{name} = excluded.{name}" for name in _FIELDS.split(", "))},
        state = 'pending', stage = 'fetched', hidden = false, deleted = false, lease_token = null, lease_until = null,
        chunk_count = case when document.indexed_version is not null then document.chunk_count else 0 end,
        -- The searchable text keeps its security level and ACL until the new one replaces it.
        served_level = case when document.indexed_version is not null
                            then coalesce(document.served_level, document.security_level) end,
        served_acl = case when document.indexed_version is not null
                          then coalesce(document.served_acl, document.acl) end
    where document.desired_version < excluded.desired_version""")

_BODIES = Transfer(
    columns="document_id uuid, tenant_id uuid, version int4, body text",
    insert="insert into document_body (document_id, tenant_id, version, body) select * from {incoming}",
)


_WORDS_GO = text("""
    delete from chunk c using document d, search_index i
    where d.id = any(cast(:ids as uuid[])) and d.indexed_version is null
      and c.index_id = i.id and c.document_id = d.id""")
"""Deletes chunks by their key, whose first column is the index."""


def admit(connection: Connection, target: Admission, page: Page) -> Counts:
    """Store one page: upsert changed documents and count every item in the run.

    The caller proves its lease on the sync in the same transaction (`sources.renew`), and stores the cursor.
    """
    named = {storable(d.external_id): d for d in page.documents}
    duplicates = [d for d in page.documents if named[storable(d.external_id)].content_hash != d.content_hash]
    failed = [
        *page.failed,
        *(Problem(external_id=d.external_id, reason=TWICE, url=d.url) for d in duplicates),
    ]
    documents = {e: d for e, d in named.items() if len(e.encode()) <= LONGEST_ID}
    failed += [_too_long(e) for e in named if e not in documents]
    deleted_ids = [storable(e) for e in page.deleted]
    # Deleted documents are locked here, too: locks are taken once, in the order of ids.
    values = {"source": target.source_id, "ids": [*documents, *deleted_ids], "run": target.run_id}
    rows = connection.execute(text(f"{_STORED} order by d.id for no key update of d"), values)
    stored = {row.external_id: row for row in rows}
    changed: list[tuple[Document, int]] = []
    new_ids = _new_ids(connection, target.source_id, [e for e in documents if e not in stored])
    waiting: list[tuple[str, int]] = []
    back: list[UUID] = []
    marks: list[dict[str, str]] = []
    unchanged = restored = 0
    for external_id, document in documents.items():
        row, mark = stored.get(external_id), storable(document.fingerprint)
        verdict = _verdict(row, document, target)
        if row is None or verdict == "changed":
            changed.append((document, row.desired_version + 1 if row else 1))
            restored += bool(row and (row.hidden or row.deleted))
            continue
        if row.fingerprint != mark:
            marks.append({"id": str(row.id), "mark": mark})
        if row.in_run:
            continue
        if verdict == "waiting":
            waiting.append((str(row.id), row.desired_version))
        elif verdict == "dead":
            reason = (
                "it is a dead letter in this very version; see `larder dead list`, then `larder dead replay`"
            )
            failed.append(Problem(external_id=external_id, reason=reason))
        else:
            unchanged += 1
        if row.hidden:
            back.append(row.id)
    if marks:
        statement = text("""
            update document d set fingerprint = m.mark
            from jsonb_to_recordset(cast(:marks as jsonb)) as m(id uuid, mark text) where d.id = m.id""")
        connection.execute(statement, {"marks": json.dumps(marks)})
    _hide(connection, back, hidden=False)
    ids = {**new_ids, **{e: row.id for e, row in stored.items()}}
    searchable = {e for e, row in stored.items() if row.searchable}
    queued = note_items(connection, target, [*_write(connection, target, changed, ids, searchable), *waiting])
    deleted = remove(connection, [stored[e].id for e in deleted_ids if e in stored])
    runs.note_problems(connection, target.run_id, "failed", failed)
    runs.note_problems(connection, target.run_id, "skipped", page.skipped)
    runs.note_problems(connection, target.run_id, "noted", page.reading_notes)
    left_out = page.all_left_out
    runs.note_left_out(connection, target.run_id, left_out)
    return Counts(
        queued=queued,
        unchanged=unchanged,
        restored=restored + len(back),
        failed=len(failed),
        skipped=left_out.total(),
        deleted=deleted,
        noted=len(page.reading_notes),
    )


def _new_ids(connection: Connection, source: UUID, external_ids: Sequence[str]) -> dict[str, UUID]:
    """Ids for documents that are new here; an id that a moved document took to another source is not used again."""
    ids = {e: document_id(source, e) for e in external_ids}
    statement = text("select id from document where id = any(:ids) and source_id <> :source")
    taken_ids = connection.execute(statement, {"ids": [*ids.values()], "source": source}).scalars().all()
    return {e: uuid4() if key in taken_ids else key for e, key in ids.items()}


def _too_long(external_id: str) -> Problem:
    reason = (
        f"its id has {len(external_id.encode())} bytes, at most {LONGEST_ID} are possible; shorten its name"
    )
    return Problem(external_id=external_id[:200], reason=reason)


def settled_fingerprints(connection: Connection, target: Admission) -> dict[str, str]:
    """External id -> fingerprint of the documents that need not be read again as long as it is the same.

    Documents that were settled since the run began are read once more, so that a run that was interrupted counts them.
    """
    statement = text("""
        select coalesce(jsonb_object_agg(external_id, fingerprint), '{}') from document
        where source_id = :source and state = 'done' and not deleted and fingerprint <> ''
          and pipeline_version = :pipeline
          and coalesce(last_indexed, first_seen_at) < (select started_at from sync_run where id = :run)""")
    values = {"source": target.source_id, "pipeline": target.pipeline_version, "run": target.run_id}
    fingerprints: dict[str, str] = connection.execute(statement, values).scalar_one()
    return fingerprints


def verdicts(connection: Connection, target: Admission, page: Page) -> dict[str, str]:
    """The verdict of `admit` on each document, without a write; external id -> verdict."""
    documents = {storable(d.external_id): d for d in page.documents}
    values = {"source": target.source_id, "ids": list(documents), "run": target.run_id}
    stored = {row.external_id: row for row in connection.execute(text(_STORED), values)}
    return {e: _verdict(stored.get(e), d, target) for e, d in documents.items()}


def titles_by_id(connection: Connection, source: UUID, ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Id -> external id -> title of the documents whose external id is the id, alone or with `~` and 8 hex digits."""
    statement = text("""
        select regexp_replace(external_id, '~[0-9a-f]{8}$', '') as id, external_id, title from document
        where source_id = :source and not deleted
          and regexp_replace(external_id, '~[0-9a-f]{8}$', '') = any(:ids)
        order by external_id""")
    titles: dict[str, dict[str, str]] = {}
    for row in connection.execute(statement, {"source": source, "ids": [*ids]}) if ids else ():
        titles.setdefault(row.id, {})[row.external_id] = row.title
    return titles


def _verdict(row: Row[Any] | None, document: Document, target: Admission) -> str:
    """One of changed, waiting (already queued), dead (given up in this version) and unchanged."""
    if row is None or row.deleted:
        return "changed"
    if row.desired_hash != document.content_hash or row.pipeline_version != target.pipeline_version:
        return "changed"
    if row.state == "pending":
        return "waiting"
    if target.force and not row.in_run:
        return "changed"
    return "dead" if row.state == "dead" else "unchanged"


def _hide(connection: Connection, ids: Sequence[UUID], *, hidden: bool = True) -> None:
    """Hide documents from search, or show them again."""
    if ids:
        statement = text("""
            update document set hidden = :hidden
            where id in (select id from document where id = any(:ids) order by id for no key update)""")
        connection.execute(statement, {"ids": list(ids), "hidden": hidden})


def _write(
    connection: Connection,
    target: Admission,
    changed: Sequence[tuple[Document, int]],
    ids_by_external_id: Mapping[str, UUID],
    searchable: Collection[str],
) -> list[tuple[str, int]]:
    """Write changed documents and their bodies in a new version; returns (id, version) of each.

    `ids_by_external_id` has the ids of all of them, `searchable` the external ids of edits.
    """
    if not changed:
        return []
    rows = [_row(target, document, version, ids_by_external_id) for document, version in changed]
    tags = due_work.tags(connection, target.source_id, [row["external_id"] for row in rows], edits=searchable)
    values = {"tenant": target.tenant_id, "source": target.source_id, "pipeline": target.pipeline_version}
    connection.execute(_UPSERT, {**values, "rows": json.dumps(rows, default=str)})
    ids = [row["id"] for row in rows]
    lanes, turns = zip(*(tags[row["external_id"]] for row in rows), strict=True)
    work.enqueue(connection, ids, lanes=lanes, turns=turns)
    # Chunks that were found by their words alone have the security level and ACL of the replaced text.
    if replaced := [row["id"] for row in rows if row["version"] > 1]:
        connection.execute(_WORDS_GO, {"ids": replaced})
    _delete_texts(connection, ids)
    bodies = (
        (i, target.tenant_id, version, storable(document.text))
        for i, (document, version) in zip(ids, changed, strict=True)
    )
    transfer(connection, _BODIES, bodies)
    return [(row["id"], row["version"]) for row in rows]


def _row(
    target: Admission, document: Document, version: int, ids_by_external_id: Mapping[str, UUID]
) -> dict[str, Any]:
    row = storable({name: value for name, value in vars(document).items() if name != "text"})
    row["title"] = row["title"] or row["external_id"]
    row["tags"] = list(dict.fromkeys(tag[:LONGEST_TAG] for tag in row["tags"]))
    row["metadata"] = target.keyring.seal(row["metadata"])
    row["id"] = str(ids_by_external_id[row["external_id"]])
    return {**row, "hash": document.content_hash, "version": version}


def note_items(connection: Connection, target: Admission, items: Sequence[tuple[str, int]]) -> int:
    """Add documents, (id, version) of each, to the run; returns how many were not in it before."""
    if not items:
        return 0
    ids = [i for i, _ in items]
    statement = text("""
        update run_item set outcome = 'superseded'
        where outcome is null and document_id = any(cast(:ids as uuid[])) and run_id <> :run""")
    connection.execute(statement, {"ids": ids, "run": target.run_id})
    statement = text("""
        insert into run_item (run_id, tenant_id, document_id, version)
        select :run, :tenant, * from unnest(cast(:ids as uuid[]), cast(:versions as integer[]))
        on conflict (run_id, document_id) do update set version = excluded.version, outcome = null
        returning (xmax = 0) as fresh""")
    values = {"run": target.run_id, "tenant": target.tenant_id, "ids": ids, "versions": [v for _, v in items]}
    return sum(row.fresh for row in connection.execute(statement, values))


def remove(connection: Connection, ids: Sequence[UUID]) -> int:
    """Delete documents with their chunks, bodies and work items; the row stays as a tombstone. Returns how many."""
    if not ids:
        return 0
    statement = text("""
        update document set deleted = true, hidden = true, state = 'done', stage = 'done', chunk_count = 0,
               indexed_version = null, indexed_hash = null, indexed_pipeline = null,
               served_level = null, served_acl = null,
               lease_token = null, lease_until = null
        where id in (select id from document where id = any(:ids) and not deleted order by id for no key update)
        returning id""")
    removed = [row.id for row in connection.execute(statement, {"ids": list(ids)})]
    work.forget(connection, removed)
    connection.execute(text("delete from chunk where document_id = any(:ids)"), {"ids": removed})
    _delete_texts(connection, removed)
    runs.settle_items(connection, removed, "superseded")
    resolve_letters(connection, removed, "document deleted")
    return len(removed)


def _delete_texts(connection: Connection, ids: Sequence[UUID]) -> None:
    """Delete what lies in the ledger of documents that are on their way into the index."""
    for table in ("chunk_stage", "document_body"):
        statement = text(f"delete from {table} where document_id = any(cast(:ids as uuid[]))")
        connection.execute(statement, {"ids": list(ids)})


OUTDATED = 2000
"""The most documents that are queued anew in one transaction."""


def outdate(connection: Connection, target: Admission) -> int:
    """Queue settled documents of the source that another pipeline indexed; their text is stored already.

    For documents that the sync itself did not list again: a source that only lists changes must not keep old chunks for
    ever. Returns how many; OUTDATED if there may be more.
    """
    statement = text(f"""
        with made as (
            update document d set desired_version = desired_version + 1, pipeline_version = :pipeline,
                   state = 'pending', stage = 'fetched', due_at = {LEFT_ALONE}
            where d.id in (select id from document where state in ('done', 'dead') and id in (
                select s.id from document s
                where s.source_id = :source and not s.deleted and s.state in ('done', 'dead')
                  and s.pipeline_version <> :pipeline and exists (
                      select from document_body b where b.document_id = s.id and b.version = s.desired_version)
                limit :most) order by id for no key update)
            returning id, desired_version)
        update document_body b set version = made.desired_version from made where b.document_id = made.id
        returning b.document_id, b.version""")
    values = {"source": target.source_id, "pipeline": target.pipeline_version, "most": OUTDATED}
    turns, _ = due_work.next_turns(connection, target.source_id, edited=OUTDATED, new=0)
    rows = connection.execute(statement, values).all()
    work.enqueue(
        connection,
        [row.document_id for row in rows],
        lanes=[turns.lane] * len(rows),
        turns=[turns.at(place) for place in range(len(rows))],
    )
    return note_items(connection, target, [(str(row.document_id), row.version) for row in rows])


@dataclass(frozen=True, kw_only=True)
class DeletionGuard:
    """Limits of a walk's deletions: above both `share` and `documents` of a source, a person must approve them."""

    share: float = 0.2
    documents: int = 25


@dataclass(frozen=True, kw_only=True)
class Pruned(Counts):
    """Counts of the documents that a walk hid, deleted and restored."""

    pending_approval: int = 0
    """Deletions that wait for `larder sources release`."""


def prune(connection: Connection, source_id: UUID, listing: Listing, guard: DeletionGuard) -> Pruned:
    """Hide documents that a complete walk did not list, and delete those that the walk before did not list either.

    An incomplete walk changes nothing, and while deletions wait for approval, no document is hidden or deleted.
    """
    if not listing.complete:
        return Pruned()
    # Compared in the database: of a hundred thousand items only the few that differ are transferred.
    statement = text("""
        select d.id, d.hidden, w.id is null as absent from document d
        left join (select distinct unnest(cast(:here as text[])) as id) w on w.id = d.external_id
        where d.source_id = :source and not d.deleted and (w.id is null or d.hidden)
        order by d.id for no key update of d""")  # all in one order, before some are written and then others
    rows = connection.execute(
        statement, {"source": source_id, "here": [storable(i) for i in listing.ids]}
    ).all()
    back = [row.id for row in rows if not row.absent]
    newly_absent = [row.id for row in rows if row.absent and not row.hidden]
    absent_twice = [row.id for row in rows if row.absent and row.hidden]
    statement = text("""
        select case when released_until > now() then released else 0 end as released,
               (select count(*) from document where source_id = :id and not deleted) as living
        from source where id = :id""")
    source = connection.execute(statement, {"id": source_id}).one()
    needs_approval = len(newly_absent) > max(guard.documents, guard.share * source.living, source.released)
    # An approval is for one walk, whatever that walk lists.
    statement = text("""
        update source set held = :held, released = 0, released_until = null
        where id = :id and (held <> :held or released_until is not null)""")
    connection.execute(statement, {"held": len(newly_absent) if needs_approval else 0, "id": source_id})
    _hide(connection, back, hidden=False)
    if needs_approval:
        return Pruned(restored=len(back), pending_approval=len(newly_absent))
    _hide(connection, newly_absent)
    return Pruned(hidden=len(newly_absent), deleted=remove(connection, absent_twice), restored=len(back))


def differing(connection: Connection, source_id: UUID, listing: Listing, after: str = "") -> list[str]:
    """External ids after `after`, in order, whose fingerprint in the walk differs from that in the ledger.

    An item that failed before may be among them and is read again, since its fault may be mended.
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
            "ids": [storable(i) for i in listing.versions],
            "marks": [storable(mark) for mark in listing.versions.values()],
            "after": after,
        },
    )
    return list(rows.scalars())
