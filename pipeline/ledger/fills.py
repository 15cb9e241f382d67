"""Claims on filling a search index with documents that it lacks, and how they end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from sqlalchemy import Connection, RowMapping, text

from pipeline.ledger import Item
from pipeline.ledger.search_indexes import LETTERS, STAGE, Held, note
from pipeline.ledger.work import stored
from pipeline.search.chunks import StoredDocument


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A document to bring into an index, in the version that is searchable elsewhere."""

    document: StoredDocument
    attempts: int
    copy_from: int | None
    """An index that holds this very version, cut in the same way or, if the text is gone, in any way."""
    copy_chunks: int
    """How many chunks it has there."""
    body: str | None
    """The text to cut, where nothing can be copied."""


@dataclass(frozen=True, kw_only=True)
class FillClaim:
    """Documents that are ours to fill, under one token."""

    tenant_id: UUID
    index: int
    token: UUID
    wanted: Mapping[UUID, Wanted]

    @property
    def ids(self) -> list[UUID]:
        """In the order in which rows are locked."""
        return sorted(self.wanted)


_CLAIM = text("""
    with free as (
        select x.document_id from index_document x join document d on d.id = x.document_id
        where x.index_id = :index and x.document_id = any(:ids) and x.version < d.indexed_version and not d.deleted
          and x.dead_version is distinct from d.indexed_version
          and (x.lease_until is null or x.lease_until < now()) and x.due_at <= now()
        order by x.document_id for update of x skip locked)
    -- The crash is counted before the work: a killed process leaves this behind.
    update index_document x set lease_token = :token, lease_until = now() + make_interval(secs => :lease),
           crash_count = crash_count + 1
    from free where x.index_id = :index and x.document_id = free.document_id
    returning x.document_id""")

# The text of a document whose newer version is not searchable yet is gone: then another index has to give its chunks.
_WANTED = text("""
    select d.id, d.indexed_version as version, d.title, d.source_type, d.kind, s.name as source, d.url, d.tags,
           d.metadata, d.project_id, d.created_at, d.updated_at, x.attempts, b.body,
           other.index_id as copy_from, coalesce(other.chunk_count, 0) as copy_chunks
    from document d
    join source s on s.id = d.source_id
    join index_document x on x.index_id = :index and x.document_id = d.id
    left join document_body b on b.document_id = d.id and b.version = d.indexed_version
    left join lateral (
        select o.index_id, o.chunk_count from index_document o join search_index i on i.id = o.index_id
        where o.document_id = d.id and o.version = d.indexed_version and o.index_id <> :index
          and (i.strategy = :strategy or b.body is null)
        order by i.strategy = :strategy desc, i.status = 'active' desc limit 1) other on true
    where d.id = any(:ids) and d.indexed_version is not null and not d.deleted""")


def claim(
    connection: Connection, tenant_id: UUID, index: int, strategy: str, ids: Sequence[UUID], *, lease: float
) -> FillClaim:
    """Take those of the documents that this index still lacks and nobody fills.

    `strategy` is the index's way of cutting: one that cuts in the same way can be copied from.
    """
    token = uuid4()
    values = {"index": index, "ids": list(ids), "token": token, "lease": lease}
    ours = [row.document_id for row in connection.execute(_CLAIM, values)]
    rows = connection.execute(_WANTED, {"index": index, "ids": ours, "strategy": strategy}).mappings()
    return FillClaim(
        tenant_id=tenant_id, index=index, token=token, wanted={row["id"]: _wanted(row) for row in rows}
    )


def _wanted(row: RowMapping) -> Wanted:
    return Wanted(
        document=stored(row),
        attempts=row["attempts"],
        copy_from=row["copy_from"],
        copy_chunks=row["copy_chunks"],
        body=None if row["copy_from"] is not None else row["body"],
    )


def renew(connection: Connection, claimed: FillClaim, *, lease: float) -> None:
    """Keep the claim for another lease; rows that are no longer ours stay untouched."""
    connection.execute(
        text("""
            update index_document set lease_until = now() + make_interval(secs => :lease)
            where index_id = :index and document_id in (
                select document_id from index_document where index_id = :index and document_id = any(:ids)
                  and lease_token = :token order by document_id for update)"""),
        {"index": claimed.index, "ids": claimed.ids, "token": claimed.token, "lease": lease},
    )


def still_ours(connection: Connection, claimed: FillClaim) -> list[UUID]:
    """Lock the claimed rows and tell which are still ours: only these may be written in this transaction.

    Whoever deletes a document deletes its row here before its chunks: so nothing is filled behind its back.
    """
    rows = connection.execute(
        text("""
            select document_id from index_document
            where index_id = :index and document_id = any(:ids) and lease_token = :token
            order by document_id for update"""),
        {"index": claimed.index, "ids": claimed.ids, "token": claimed.token},
    )
    return [row.document_id for row in rows]


def finish(connection: Connection, claimed: FillClaim, held: Sequence[Held]) -> None:
    """These documents are in the index now; the caller holds their rows."""
    note(connection, claimed.tenant_id, claimed.index, held)
    connection.execute(
        text("""
            update dead_letter set resolved_at = now(), resolution = 'indexed'
            where index_id = :index and document_id = any(:ids) and resolved_at is null"""),
        {"index": claimed.index, "ids": [h.document_id for h in held]},
    )


def put_back(connection: Connection, claimed: FillClaim, ids: Sequence[UUID]) -> list[Item]:
    """Give documents back without a fault of theirs; returns what to send a message about at once."""
    rows = connection.execute(
        text("""
            update index_document set crash_count = greatest(crash_count - 1, 0), lease_token = null,
                   lease_until = null, enqueued_at = now(), due_at = now()
            where index_id = :index and document_id = any(:ids) and lease_token = :token returning document_id"""),
        {"index": claimed.index, "ids": list(ids), "token": claimed.token},
    )
    return [Item(row.document_id, claimed.wanted[row.document_id].document.version) for row in rows]


def postpone(
    connection: Connection,
    claimed: FillClaim,
    ids: Sequence[UUID],
    *,
    error: str,
    delay: float,
    tried: bool = True,
) -> None:
    """Try these again after `delay` seconds; `tried` False is a wait that is no failure of theirs."""
    connection.execute(
        text("""
            update index_document set crash_count = greatest(crash_count - 1, 0), lease_token = null,
                   lease_until = null, enqueued_at = null, last_error = :error,
                   attempts = attempts + cast(:tried as integer),
                   due_at = now() + make_interval(secs => :delay)
            where index_id = :index and document_id = any(:ids) and lease_token = :token"""),
        {
            "index": claimed.index,
            "ids": list(ids),
            "token": claimed.token,
            "error": error,
            "delay": delay,
            "tried": int(tried),
        },
    )


def give_up(
    connection: Connection, claimed: FillClaim, ids: Sequence[UUID], *, code: str, reason: str
) -> None:
    """Lay these aside for this index as dead letters; every other index keeps what it has of them."""
    rows = connection.execute(
        text("""
            update index_document x set dead_version = v.version, last_error = :error, attempts = attempts + 1,
                   crash_count = greatest(crash_count - 1, 0), lease_token = null, lease_until = null,
                   enqueued_at = null
            from jsonb_to_recordset(cast(:rows as jsonb)) as v(id uuid, version integer)
            where x.index_id = :index and x.document_id = v.id and x.lease_token = :token returning x.document_id"""),
        {
            "index": claimed.index,
            "token": claimed.token,
            "error": reason,
            "rows": json.dumps(
                [{"id": str(i), "version": claimed.wanted[i].document.version} for i in ids],
            ),
        },
    )
    connection.execute(
        text(f"{LETTERS} where d.id = any(:ids)"),
        {
            "index": claimed.index,
            "ids": [row.document_id for row in rows],
            "stage": STAGE,
            "code": code,
            "reason": reason,
        },
    )
