"""Work in progress between the steps, invisible to search: bodies, staged chunks, vectors, texts to embed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection, text
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipeline.chunking.prose import prose_of
from pipeline.chunking.strategies import Chunker
from pipeline.database.engine import Transfer, driver_of, lift_statement_timeout, transfer
from pipeline.documents import Chunk, Document, Kind
from pipeline.embedding import Vectors
from pipeline.errors import (
    DocumentDamaged,
    DocumentRejected,
    LarderError,
    StoreDamaged,
    StoreHindered,
    StoreRejected,
    StoreUnavailable,
)
from pipeline.ledger import ACTIVE, Item, dead
from pipeline.ledger.work import Claim
from pipeline.search.chunk_store import SearchIndex
from pipeline.search.records import StoredDocument

_STAGE = Transfer(
    columns="document_id uuid, tenant_id uuid, version int4, ord int4, content text, context text, hash bytea",
    insert="""
        insert into chunk_stage (document_id, tenant_id, version, ord, content, context, hash)
        select * from {incoming}""",
)
_CACHE = Transfer(
    columns="tenant_id uuid, model text, hash bytea, vector halfvec",
    insert="""
        insert into embedding_cache (tenant_id, model, hash, vector)
        select distinct on (hash) tenant_id, model, hash, vector from {incoming} order by hash
        on conflict do nothing""",
)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A document's staged chunks with their vectors; None where the cache has none."""

    chunks: list[Chunk]
    vectors: list[Any]

    @property
    def complete(self) -> bool:
        """True if every chunk has its vector."""
        return all(v is not None for v in self.vectors)


def bodies(connection: Connection, claim: Claim, ids: Collection[UUID] | None = None) -> dict[UUID, str]:
    """The stored text of each claimed document, or of `ids`, in its version; documents without one are left out."""
    statement = text("""
        select b.document_id, b.body from document_body b
        join unnest(cast(:ids as uuid[]), cast(:versions as integer[])) as d(id, version)
            on d.id = b.document_id and d.version = b.version""")
    return {row.document_id: row.body for row in connection.execute(statement, _versions(claim, ids))}


def copied_chunks(connection: Connection, claim: Claim, strategy: str) -> dict[UUID, list[Chunk]]:
    """The chunks of claimed documents that another index has in their version, cut by this strategy.

    Chunks of any strategy if the text is no longer stored. A document without all its chunks is left out.
    """
    # Lateral, or the planner may read all chunks. One statement, so that all chunks are of one snapshot.
    statement = text("""
        select d.id, o.chunk_count, c.ord, c.content, c.context
        from unnest(cast(:ids as uuid[]), cast(:versions as integer[])) as d(id, version)
        cross join lateral (
            select o.index_id, o.chunk_count from index_document o join search_index i on i.id = o.index_id
            where o.document_id = d.id and o.version = d.version and o.index_id <> :index
              and (i.strategy = :strategy or not exists (
                  select from document_body b where b.document_id = d.id and b.version = d.version))
            order by i.strategy = :strategy desc, i.status = 'active' desc limit 1) o
        left join lateral (
            select c.ord, c.content, c.context from chunk c
            where c.index_id = o.index_id and c.document_id = d.id and c.version = d.version) c on true
        order by d.id, c.ord""")
    counts: dict[UUID, int] = {}
    chunks: dict[UUID, list[Chunk]] = defaultdict(list)
    values = {**_versions(claim), "index": claim.index, "strategy": strategy}
    for row in connection.execute(statement, values):
        counts[row.id] = row.chunk_count
        if row.ord is not None:
            chunks[row.id].append(Chunk(ord=row.ord, content=row.content, context=row.context))
    return {i: chunks[i] for i, count in counts.items() if len(chunks[i]) == count}


def _versions(claim: Claim, ids: Collection[UUID] | None = None) -> dict[str, Any]:
    some = claim.ids if ids is None else list(ids)
    return {"ids": some, "versions": [claim.documents[i].version for i in some]}


def cut(chunker: Chunker, stored: StoredDocument, body: str | None) -> list[Chunk]:
    """The chunks of the prose in a document's text.

    A text without any prose has no chunks, except a backlog item's, whose title stands for it.

    Raises:
        DocumentRejected: there is no text, or the chunker fails on it.
    """
    if body is None:
        raise DocumentRejected("its text is not in the ledger", fix="sync the source with --force")
    try:
        text = prose_of(body)
        if stored.kind is Kind.WORK and body.strip() and not text.strip():
            text = stored.title
        document = Document(
            external_id=str(stored.id),
            title=stored.title,
            text=text,
            source_type=stored.source_type,
            kind=stored.kind,
            url=stored.url,
            tags=stored.tags,
            metadata=stored.metadata,
        )
        return chunker.chunk(document)
    except LarderError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug on one text counts as a fault of that document
        # The other documents of the batch must not fail with it, and its message may quote the text.
        raise DocumentRejected(f"the chunker failed with {type(error).__name__}") from None


BATCH_BYTES = 2_000_000
"""Bytes of text that are cut and staged together: all usual documents of a message, but only a few large ones."""


def batches_by_size(connection: Connection, ids: Sequence[UUID]) -> list[list[UUID]]:
    """The documents that wait to be cut, in order, in batches of about `BATCH_BYTES` of text."""
    statement = text("""
        select array_agg(document_id order by nr) from (
            select i.document_id, i.nr, (sum(size) over (order by i.nr) - size) / :most as part
            from unnest(cast(:ids as uuid[])) with ordinality as i(document_id, nr)
            join index_work w on w.document_id = i.document_id and w.index_id = :active and w.stage = 'fetched'
            left join document_body b on b.document_id = w.document_id and b.version = w.version
            cross join lateral coalesce(octet_length(b.body), 0) as size) sized
        group by part order by part""")
    values = {"ids": list(ids), "most": BATCH_BYTES, "active": ACTIVE}
    return list(connection.execute(statement, values).scalars())


def stage_chunks(
    connection: Connection,
    tenant_id: UUID,
    chunks: Mapping[UUID, Sequence[Chunk]],
    versions: Mapping[UUID, int],
) -> None:
    """Replace the staged chunks of these documents."""
    connection.execute(text("delete from chunk_stage where document_id = any(:ids)"), {"ids": list(chunks)})
    rows = (
        (i, tenant_id, versions[i], c.ord, c.content, c.context, bytes.fromhex(c.hash))
        for i, pieces in chunks.items()
        for c in pieces
    )
    transfer(connection, _STAGE, rows)


def staged_hashes(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, list[bytes]]:
    """The hash of every staged chunk, per document."""
    hashes: dict[UUID, list[bytes]] = {i: [] for i in ids}
    statement = text(
        "select document_id, hash from chunk_stage where document_id = any(:ids) order by document_id, ord"
    )
    rows = connection.execute(statement, {"ids": list(ids)})
    for row in rows:
        hashes[row.document_id].append(bytes(row.hash))
    return hashes


def refill(
    connection: Connection, tenant_id: UUID, index: SearchIndex, ids: Sequence[UUID], hashes: Sequence[bytes]
) -> None:
    """Copy vectors of these texts of these documents from any index of this model into the cache.

    No vector is then paid for twice.
    """
    statement = text("""
        insert into embedding_cache (tenant_id, model, hash, vector)
        select distinct on (c.hash) :tenant, :model, c.hash, c.embedding
        from chunk c where c.index_id = any(array(
            select id from search_index
            where provider = :provider and model = :model and dimensions = :dimensions))
          and c.document_id = any(:ids) and c.hash = any(:hashes) and c.embedding is not null order by c.hash
        on conflict do nothing""")
    values = {"provider": index.provider, "model": index.model, "dimensions": index.dimensions}
    connection.execute(statement, {**values, "tenant": tenant_id, "ids": list(ids), "hashes": list(hashes)})


def cached(
    connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes]
) -> dict[bytes, Vectors]:
    """The cached vectors of these texts, by hash."""
    with driver_of(connection) as driver, driver.cursor(binary=True) as cursor:
        cursor.execute(
            "select hash, vector from embedding_cache where tenant_id = %s and model = %s and hash = any(%s)",
            (tenant_id, model, list(hashes)),
        )
        return {bytes(text_hash): vector.to_numpy().astype(np.float32) for text_hash, vector in cursor}


def uncached(connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes]) -> set[bytes]:
    """The hashes of texts without a cached vector."""
    statement = text("""
        select h from unnest(cast(:hashes as bytea[])) as h
        left join lateral (select true as there from embedding_cache e
                           where e.tenant_id = :tenant and e.model = :model and e.hash = h limit 1) e on true
        where e.there is null""")
    rows = connection.execute(statement, {"tenant": tenant_id, "model": model, "hashes": list(hashes)})
    return {bytes(row.h) for row in rows}


def texts(connection: Connection, ids: Sequence[UUID], hashes: Sequence[bytes]) -> dict[bytes, str]:
    """The text to embed for each hash of a staged chunk."""
    statement = text("""
        select distinct on (hash) hash, ord, content, context from chunk_stage
        where document_id = any(:ids) and hash = any(:hashes) order by hash""")
    rows = connection.execute(statement, {"ids": list(ids), "hashes": list(hashes)})
    return {
        bytes(row.hash): Chunk(ord=row.ord, content=row.content, context=row.context).embedding_text
        for row in rows
    }


def cache_vectors(
    connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes], vectors: Vectors
) -> None:
    """Store vectors in the cache by hash; existing ones stay."""
    rows = ((tenant_id, model, h, HalfVector(v)) for h, v in zip(hashes, vectors, strict=True))
    transfer(connection, _CACHE, rows)


def staged(connection: Connection, tenant_id: UUID, model: str, ids: Sequence[UUID]) -> dict[UUID, Staged]:
    """The staged chunks of documents with their vectors from the cache."""
    staged_chunks = {i: Staged(chunks=[], vectors=[]) for i in ids}
    # Binary: parsing 384 numbers from text costs more than the query. Lateral: joined in the plain way, a cache
    # that was never analysed is read whole for every batch (60 ms of PostgreSQL's time instead of 8).
    with driver_of(connection) as driver, driver.cursor(binary=True) as cursor:
        cursor.execute(
            """
            select s.document_id, s.ord, s.content, s.context, e.vector from chunk_stage s
            left join lateral (select c.vector from embedding_cache c
                               where c.tenant_id = %s and c.model = %s and c.hash = s.hash limit 1) e on true
            where s.document_id = any(%s) order by s.document_id, s.ord""",
            (tenant_id, model, list(ids)),
        )
        for document, ordinal, content, context, vector in cursor:
            staged_chunks[document].chunks.append(Chunk(ord=ordinal, content=content, context=context))
            staged_chunks[document].vectors.append(
                None if vector is None else vector.to_numpy().astype(np.float32)
            )
    return staged_chunks


def touch(connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes]) -> None:
    """Note that cached vectors were used, once a day at most, for `trim_cache`."""
    statement = text("""
        update embedding_cache set used_at = now() where (tenant_id, model, hash) in (
            select tenant_id, model, hash from embedding_cache
            where tenant_id = :tenant and model = :model and hash = any(:hashes)
              and used_at < now() - interval '1 day' for no key update skip locked)""")
    connection.execute(statement, {"tenant": tenant_id, "model": model, "hashes": list(hashes)})


def trim_cache(connection: Connection, *, megabytes: int, batch: int = 10_000) -> int:
    """Delete the longest unused vectors of this tenant until its cache fits `megabytes`; returns how many.

    A vector that a staged chunk needs may be deleted, too: its document is then embedded again.
    """
    lift_statement_timeout(connection)
    statement = text("select coalesce(sum(pg_column_size(e.*)), 0) from embedding_cache e")
    size = int(connection.execute(statement).scalar_one())
    dropped = 0
    while size > megabytes * 1_000_000:
        statement = text("""
            with old as materialized (  -- evaluated once, without rows that another transaction uses or deletes
                select tenant_id, model, hash from embedding_cache
                order by used_at, hash limit :n for update skip locked)
            delete from embedding_cache where (tenant_id, model, hash) in (select * from old)
            returning pg_column_size(embedding_cache.*) as bytes""")
        rows = connection.execute(statement, {"n": batch}).all()
        if not rows:
            break
        dropped += len(rows)
        size -= sum(row.bytes for row in rows)
    return dropped


GIVE_BACK_SECONDS = 2.0
"""Seconds between attempts to give documents back to a database that is not available."""


def giving_back(lease: float) -> Retrying:
    """Attempts to give claimed documents back: a lease that runs out by itself counts as a crash."""
    return Retrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=wait_fixed(GIVE_BACK_SECONDS),
        stop=stop_after_delay(lease / 2),
        reraise=True,
    )


def write_each(
    ids: Sequence[UUID],
    write: Callable[[Sequence[UUID]], list[Item]],
    fault: Callable[[Sequence[UUID], LarderError], None],
) -> list[Item]:
    """Write all documents in one transaction; if that is refused, each in its own. `fault` gets the failed ones."""
    try:
        return write(ids) if ids else []
    except LarderError as error:
        if isinstance(error, (StoreRejected, StoreHindered)) and len(ids) > 1:
            return [item for i in ids for item in write_each([i], write, fault)]
        fault(ids, error)
        return []


def attributed_error(
    connection: Connection, ids: Sequence[UUID], error: LarderError, *, index: int
) -> LarderError:
    """The error, or DocumentDamaged if the database itself fails on this single document and few others."""
    if (
        isinstance(error, StoreDamaged)
        and len(ids) == 1
        and dead.damaged_alone(connection, ids[0], index=index)
    ):
        return DocumentDamaged(
            error.message, fix="mend its rows as the log of the database says, then replay it"
        )
    return error
