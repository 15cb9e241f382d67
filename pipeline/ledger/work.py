"""Claiming documents for a stage, and finishing, putting back or giving up on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from sqlalchemy import Connection, RowMapping, text

from pipeline.documents import Kind, SourceType
from pipeline.errors import LarderError
from pipeline.ledger import Item, Stage
from pipeline.search.chunks import StoredDocument


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Documents that are ours for one stage, under one token."""

    tenant_id: UUID
    token: UUID
    stage: Stage
    documents: Mapping[UUID, StoredDocument]
    pipelines: Mapping[UUID, str] = field(default_factory=dict)
    attempts: Mapping[UUID, int] = field(default_factory=dict)
    waits: Mapping[UUID, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.documents)


MOST_CRASHES = 3
"""Of one document, unless the configuration says otherwise."""

_CLAIM = text("""
    with wanted as (
        select * from unnest(cast(:ids as uuid[]), cast(:versions as integer[])) as w(id, version)
    ), free as (
        select d.id from document d join wanted w on w.id = d.id and w.version = d.desired_version
        where d.stage = :stage and d.state = 'pending' and (d.lease_until is null or d.lease_until < now())
          and d.due_at <= now()  -- a doubled message must not cut a wait short
          and d.crash_count < :crashes  -- nor may a late one go round the pump, which buries it
        order by d.id for update of d skip locked
    )
    -- The crash is counted before the work: a killed process leaves this behind.
    update document d set lease_token = :token, lease_until = now() + make_interval(secs => :lease),
           crash_count = crash_count + 1
    from free, source s where d.id = free.id and s.id = d.source_id
    returning d.id, d.desired_version as version, d.title, d.source_type, d.kind, s.name as source, d.url, d.tags,
              d.metadata, d.project_id, d.created_at, d.updated_at, d.pipeline_version, d.attempts, d.waits""")


def claim(
    connection: Connection,
    tenant_id: UUID,
    stage: Stage,
    items: Sequence[Item],
    *,
    lease: float,
    crashes: int = MOST_CRASHES,
) -> Claim:
    """Take those of `items` that still wait for this stage in this version; the others are somebody else's or old.

    What has crashed `crashes` times is left to the pump.
    """
    token = uuid4()
    rows = connection.execute(
        _CLAIM,
        {
            "ids": [i.document_id for i in items],
            "versions": [i.version for i in items],
            "stage": stage,
            "token": token,
            "lease": lease,
            "crashes": crashes,
        },
    )
    documents, pipelines, attempts, waits = {}, {}, {}, {}
    for row in rows.mappings():
        documents[row["id"]] = stored(row)
        pipelines[row["id"]] = row["pipeline_version"]
        attempts[row["id"]] = row["attempts"]
        waits[row["id"]] = row["waits"]
    return Claim(
        tenant_id=tenant_id,
        token=token,
        stage=stage,
        documents=documents,
        pipelines=pipelines,
        attempts=attempts,
        waits=waits,
    )


def stored(row: RowMapping) -> StoredDocument:
    """What a store must know of a document, from a row of it with its source's name as `source`."""
    return StoredDocument(
        id=row["id"],
        version=row["version"],
        title=row["title"],
        source_type=SourceType(row["source_type"]),
        kind=Kind(row["kind"]),
        source=row["source"],
        url=row["url"],
        tags=tuple(row["tags"]),
        metadata=row["metadata"],
        project_id=row["project_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(
        text("""
            update document set lease_until = now() + make_interval(secs => :lease)
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)"""),
        {"ids": claimed.ids, "token": claimed.token, "lease": lease},
    )


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents and tell which are still ours; only these may be written in this transaction.

    A document whose lease ran out and was taken by another, or that changed meanwhile, has another token.
    """
    rows = connection.execute(
        text("select id from document where id = any(:ids) and lease_token = :token order by id for update"),
        {"ids": claimed.ids, "token": claimed.token},
    )
    return [row.id for row in rows]


def advance(connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage) -> list[Item]:
    """Move documents to the next stage and give the claim back; returns what to send a message about."""
    rows = connection.execute(
        text("""
            update document set stage = :stage, crash_count = 0, lease_token = null, lease_until = null,
                   enqueued_at = now(), last_error = null, waits = 0
            where id = any(:ids) and lease_token = :token returning id, desired_version"""),
        {"ids": list(ids), "token": claimed.token, "stage": stage},
    )
    return [Item(row.id, row.desired_version) for row in rows]


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """Give documents back without a fault of theirs, to the same stage or an earlier one."""
    rows = connection.execute(
        text("""
            update document set stage = coalesce(:stage, stage), crash_count = greatest(crash_count - 1, 0),
                   lease_token = null, lease_until = null, enqueued_at = now()
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)
            returning id, desired_version"""),
        {"ids": list(ids), "token": claimed.token, "stage": stage},
    )
    return [Item(row.id, row.desired_version) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What became of one document, written with its last stage."""

    document_id: UUID
    chunks: int
    written: int
    kept: int


def finish(connection: Connection, claimed: Claim, results: Sequence[Indexed]) -> int:
    """Mark documents as searchable in their wanted version, and settle them in their runs; returns how many."""
    finished = _finish_rows(connection, claimed, results)
    done = [r for r in results if r.document_id in finished]
    connection.execute(
        text("""
            update run_item i set outcome = 'done', chunks = r.chunks, chunks_written = r.written, chunks_kept = r.kept
            from jsonb_to_recordset(cast(:rows as jsonb)) as r(id uuid, version integer, chunks integer,
                 written integer, kept integer)
            where i.document_id = r.id and i.version = r.version and i.outcome is null"""),
        {
            "rows": json.dumps(
                [
                    {
                        "id": str(r.document_id),
                        "version": claimed.documents[r.document_id].version,
                        "chunks": r.chunks,
                        "written": r.written,
                        "kept": r.kept,
                    }
                    for r in done
                ],
            ),
        },
    )
    connection.execute(
        text("delete from chunk_stage where document_id = any(:ids)"),
        {"ids": [r.document_id for r in done]},
    )
    connection.execute(
        text("""
            update dead_letter set resolved_at = now(), resolution = 'indexed'
            where document_id = any(:ids) and resolved_at is null"""),
        {"ids": [r.document_id for r in done]},
    )
    return len(done)


def _finish_rows(connection: Connection, claimed: Claim, results: Sequence[Indexed]) -> set[UUID]:
    """Those of the documents that are still ours and were not searchable in this version already."""
    rows = connection.execute(
        text("""
            update document d set indexed_version = desired_version, indexed_hash = desired_hash,
                   indexed_pipeline = pipeline_version, generation = generation + 1, stage = 'done',
                   state = 'done', last_indexed = now(), chunk_count = r.chunks,
                   crash_count = 0, attempts = 0, lease_token = null, lease_until = null, enqueued_at = null,
                   last_error = null
            from unnest(cast(:ids as uuid[]), cast(:chunks as integer[])) as r(id, chunks)
            where d.id = r.id and d.lease_token = :token
              and (d.indexed_version is null or d.indexed_version < d.desired_version)
            returning d.id"""),
        {
            "ids": [r.document_id for r in results],
            "chunks": [r.chunks for r in results],
            "token": claimed.token,
        },
    )
    return {row.id for row in rows}


def count_texts(
    connection: Connection,
    claimed: Claim,
    embedded: Mapping[UUID, int],
    reused: Mapping[UUID, int],
    cut: Mapping[UUID, int] | None = None,
) -> None:
    """Add to the run what embedding cost and what the cache saved, per document.

    `cut` are those of the embedded that were longer than the model reads.
    """
    rows = [
        {
            "id": str(i),
            "version": claimed.documents[i].version,
            "e": embedded.get(i, 0),
            "r": reused.get(i, 0),
            "c": (cut or {}).get(i, 0),
        }
        for i in claimed.documents
    ]
    connection.execute(
        text("""
            update run_item i set texts_embedded = texts_embedded + r.e, texts_cut = texts_cut + r.c,
                   -- what this run itself embedded, in an earlier slice or try, comes from the cache now
                   texts_reused = texts_reused + greatest(r.r - i.texts_embedded, 0)
            from jsonb_to_recordset(cast(:rows as jsonb))
                as r(id uuid, version integer, e integer, r integer, c integer)
            where i.document_id = r.id and i.version = r.version and i.outcome is null"""),
        {"rows": json.dumps(rows)},
    )


def fail(
    connection: Connection,
    claimed: Claim,
    ids: Sequence[UUID],
    error: LarderError,
    *,
    delay: float,
    dead: bool,
) -> None:
    """Note an error of these documents: try again after `delay` seconds, or lay them aside as dead letters."""
    rows = connection.execute(
        text("""
            update document set attempts = attempts + 1, crash_count = greatest(crash_count - 1, 0),
                   due_at = now() + make_interval(secs => :delay), enqueued_at = null, last_error = :error,
                   lease_token = null, lease_until = null,
                   state = case when :dead then 'dead' else state end
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)
            returning id"""),
        {"ids": list(ids), "token": claimed.token, "delay": delay, "error": str(error), "dead": dead},
    )
    found = [row.id for row in rows]
    if dead and found:
        bury(connection, found, code=error.code, reason=str(error))


def bury(connection: Connection, ids: Sequence[UUID], *, code: str, reason: str) -> None:
    """Write dead letters for documents in state dead, and settle them in their runs."""
    connection.execute(
        text("""
            insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts,
                                     crash_count)
            select tenant_id, source_id, id, desired_version, stage, :code, :reason, attempts, crash_count
            from document d where id = any(:ids)
              and not exists (select from dead_letter l where l.document_id = d.id and l.resolved_at is null
                              and l.version = d.desired_version)"""),
        {"ids": list(ids), "code": code, "reason": reason},
    )
    connection.execute(
        text("update run_item set outcome = 'dead' where document_id = any(:ids) and outcome is null"),
        {"ids": list(ids)},
    )
