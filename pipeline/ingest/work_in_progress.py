"""Work in progress between the steps, invisible to search: bodies, staged chunks, vectors, texts to embed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection, text
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipeline.chunking.prose import prose_of
from pipeline.chunking.strategies import Chunker
from pipeline.database.engine import Database, Transfer, driver_of, lift_statement_timeout, transfer
from pipeline.documents import Chunk, Document, Kind
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.budget import Budget
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.errors import (
    DocumentDamaged,
    DocumentRejected,
    LarderError,
    StoreDamaged,
    StoreHindered,
    StoreRejected,
    StoreUnavailable,
)
from pipeline.ledger import Item, Lease, dead, embedding_use, renewed
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
    """A document's staged chunks with their vectors; None where the cache has none (any more)."""

    chunks: list[Chunk]
    vectors: list[Any]

    @property
    def complete(self) -> bool:
        """True if every chunk has its vector."""
        return all(v is not None for v in self.vectors)


def bodies(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The wanted text of each document."""
    statement = text("""
        select b.document_id, b.body from document_body b
        join document d on d.id = b.document_id and d.desired_version = b.version
        where b.document_id = any(:ids)""")
    return {row.document_id: row.body for row in connection.execute(statement, {"ids": list(ids)})}


def cut(chunker: Chunker, stored: StoredDocument, body: str | None) -> list[Chunk]:
    """The chunks of a document's text without what is no prose.

    Of a text of nothing else none remains, but a work item's title says what it is about and stands for it.

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
    except Exception as error:  # noqa: BLE001 - any fault of ours on one text is a fault of that document
        # It must not take the other documents of the batch with it, and its message may quote the text.
        raise DocumentRejected(f"the chunker failed with {type(error).__name__}") from None


PART_BYTES = 2_000_000
"""Of texts that are cut and staged together: of many usual documents all of a message, of large ones a few."""


def parts_by_size(connection: Connection, ids: Sequence[UUID]) -> list[list[UUID]]:
    """Those that wait to be cut, in order, in parts of about `PART_BYTES` of wanted text; a larger one ends a part."""
    statement = text("""
        select array_agg(document_id order by nr) from (
            select i.document_id, i.nr, (sum(size) over (order by i.nr) - size) / :most as part
            from unnest(cast(:ids as uuid[])) with ordinality as i(document_id, nr)
            join document d on d.id = i.document_id and d.stage = 'fetched' and d.state = 'pending'
            left join document_body b on b.document_id = d.id and b.version = d.desired_version
            cross join lateral coalesce(octet_length(b.body), 0) as size) sized
        group by part order by part""")
    return list(connection.execute(statement, {"ids": list(ids), "most": PART_BYTES}).scalars())


def stage_chunks(
    connection: Connection,
    tenant_id: UUID,
    chunks: Mapping[UUID, Sequence[Chunk]],
    versions: Mapping[UUID, int],
) -> None:
    """Replace what is staged of these documents."""
    connection.execute(text("delete from chunk_stage where document_id = any(:ids)"), {"ids": list(chunks)})
    rows = (
        (i, tenant_id, versions[i], c.ord, c.content, c.context, bytes.fromhex(c.hash))
        for i, pieces in chunks.items()
        for c in pieces
    )
    transfer(connection, _STAGE, rows)


def record_pipeline(connection: Connection, made: Mapping[UUID, str]) -> None:
    """How documents that the caller holds were cut, if not as whoever read them would have.

    Two processes may have two configurations for a while. The next sync makes these documents anew.
    """
    statement = text("""
        update document d set pipeline_version = split_part(pipeline_version, '|', 1) || '|' || m.made
        from unnest(cast(:ids as uuid[]), cast(:made as text[])) as m(id, made)
        where d.id = m.id and pipeline_version <> split_part(pipeline_version, '|', 1) || '|' || m.made""")
    connection.execute(statement, {"ids": list(made), "made": list(made.values())})


def staged_hashes(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, list[bytes]]:
    """The hash of every staged chunk, per document."""
    found: dict[UUID, list[bytes]] = {i: [] for i in ids}
    statement = text(
        "select document_id, hash from chunk_stage where document_id = any(:ids) order by document_id, ord"
    )
    rows = connection.execute(statement, {"ids": list(ids)})
    for row in rows:
        found[row.document_id].append(bytes(row.hash))
    return found


def refill(
    connection: Connection, tenant_id: UUID, index: SearchIndex, ids: Sequence[UUID], hashes: Sequence[bytes]
) -> None:
    """Give the cache back the vectors that any index of this model has of these texts of these documents.

    So none is paid for twice.
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
    """The vectors that the cache has of these texts."""
    with driver_of(connection) as driver, driver.cursor(binary=True) as cursor:
        cursor.execute(
            "select hash, vector from embedding_cache where tenant_id = %s and model = %s and hash = any(%s)",
            (tenant_id, model, list(hashes)),
        )
        return {bytes(found): vector.to_numpy().astype(np.float32) for found, vector in cursor}


def uncached(connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes]) -> set[bytes]:
    """Which of these texts have no vector yet."""
    statement = text("""
        select h from unnest(cast(:hashes as bytea[])) as h
        left join lateral (select true as there from embedding_cache e
                           where e.tenant_id = :tenant and e.model = :model and e.hash = h limit 1) e on true
        where e.there is null""")
    rows = connection.execute(statement, {"tenant": tenant_id, "model": model, "hashes": list(hashes)})
    return {bytes(row.h) for row in rows}


def texts(connection: Connection, ids: Sequence[UUID], hashes: Sequence[bytes]) -> dict[bytes, str]:
    """What the embedder reads, for each hash."""
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
    """Keep vectors under their hashes; one that is there already stays."""
    rows = ((tenant_id, model, h, HalfVector(v)) for h, v in zip(hashes, vectors, strict=True))
    transfer(connection, _CACHE, rows)


def staged(connection: Connection, tenant_id: UUID, model: str, ids: Sequence[UUID]) -> dict[UUID, Staged]:
    """The staged chunks of documents with their vectors from the cache."""
    found = {i: Staged(chunks=[], vectors=[]) for i in ids}
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
            found[document].chunks.append(Chunk(ord=ordinal, content=content, context=context))
            found[document].vectors.append(None if vector is None else vector.to_numpy().astype(np.float32))
    return found


def touch(connection: Connection, tenant_id: UUID, model: str, hashes: Sequence[bytes]) -> None:
    """Note that cached vectors were of use; once a day is enough to know which are not."""
    statement = text("""
        update embedding_cache set used_at = now() where (tenant_id, model, hash) in (
            select tenant_id, model, hash from embedding_cache
            where tenant_id = :tenant and model = :model and hash = any(:hashes)
              and used_at < now() - interval '1 day' for no key update skip locked)""")
    connection.execute(statement, {"tenant": tenant_id, "model": model, "hashes": list(hashes)})


def trim_cache(connection: Connection, *, megabytes: int, batch: int = 10_000) -> int:
    """Drop the longest unused vectors of this tenant until its cache fits; returns how many.

    A vector that a staged chunk waits for may go too: its document is then embedded again.
    """
    lift_statement_timeout(connection)
    statement = text("select coalesce(sum(pg_column_size(e.*)), 0) from embedding_cache e")
    size = int(connection.execute(statement).scalar_one())
    dropped = 0
    while size > megabytes * 1_000_000:
        statement = text("""
            with old as materialized (  -- once, and not what somebody uses or clears at this moment
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
"""How long to leave a database alone that could not even take documents back."""
SHARED_SECONDS = 1.0
"""How long to leave a document alone of which somebody else is embedding a text: about one call."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingTerms:
    """Under which terms the embedder is asked."""

    provider: str = ""
    """Whom the use is counted for."""
    budget: Callable[[UUID], Budget] | None = None
    """The allowance of a tenant; None for a model that costs nothing: then nobody claims a text either, since making
    a vector twice is cheaper than asking."""
    fingerprint: str = ""
    """Names the configuration, for holds."""
    probe_seconds: float = 300.0
    """How often a configuration that was refused is tried again."""
    counted: Callable[[embedding_use.Meter, embedding_use.Used], None] = lambda _meter, _used: None
    """Told what each step used, after the ledger was."""


def missing(
    connection: Connection,
    claim: Lease,
    model: str,
    hashes: Collection[bytes],
    *,
    lease: float | None,
) -> tuple[set[bytes], set[bytes]]:
    """(those without a vector, those of them that are ours to embed); with a `lease` in seconds, texts are claimed."""
    wanted = uncached(connection, claim.tenant_id, model, list(hashes))
    if there := [h for h in hashes if h not in wanted]:
        touch(connection, claim.tenant_id, model, there)
    if not wanted or lease is None:
        return wanted, wanted
    ours = embedding_use.claim_texts(connection, claim, model, wanted, lease=lease)
    # Looked at again: whoever had the others may have finished between the two statements.
    wanted = uncached(connection, claim.tenant_id, model, list(wanted))
    return wanted, ours & wanted


def embed_missing(
    database: Database,
    embedder: Embedder,
    tenant: UUID,
    model: str,
    texts: Mapping[bytes, str],
    *,
    tokens: int | None,
    seconds: float,
    renew: Callable[[Connection], None],
    lease: float,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Call after call of at most `tokens`, until all texts are embedded or `seconds` are over.

    Of each call the hashes whose vectors are in the cache now, and those that were refused. `renew` keeps the `lease`,
    also while a call is under way that takes longer.

    Raises:
        LarderError: what the embedder raises; what was embedded before is kept.
    """
    started = time.monotonic()

    def keep() -> None:
        with database.tenant(tenant, durable=False) as connection:
            renew(connection)

    with renewed(keep, lease=lease):
        for part in _calls(embedder, texts, tokens):
            refused: tuple[int, ...] = ()
            try:
                vectors = embed_checked(embedder, [texts[h] for h in part])
            except TextsRejected as error:
                vectors, refused = error.vectors, error.indexes
            good = [n for n in range(len(part)) if n not in refused]
            kept = [part[n] for n in good]
            if kept:
                # Durable: these vectors may have cost money.
                with database.tenant(tenant) as connection:
                    cache_vectors(connection, tenant, model, kept, vectors[good])
            yield kept, [part[n] for n in refused]
            if time.monotonic() - started > seconds:
                return


def _calls(embedder: Embedder, texts: Mapping[bytes, str], most: int | None) -> Iterator[list[bytes]]:
    """Hashes of the texts that go into one call."""
    part: list[bytes] = []
    tokens = 0
    for name, body in texts.items():
        more = embedder.count_tokens(body) if most else 0
        if part and (len(part) == embedder.limits.texts or tokens + more > (most or 0)):
            yield part
            part, tokens = [], 0
        part.append(name)
        tokens += more
    if part:
        yield part


def is_cut(embedder: Embedder, text: str) -> bool:
    """Counting costs half a hundredth of what the vector does, and only models of our own cut."""
    limits = embedder.limits
    return limits.oversize == "cut" and embedder.count_tokens(text) > limits.tokens_per_text


def giving_back(lease: float) -> Retrying:
    """Tries to give claimed documents back: a claim that is left to end by itself counts as a crash."""
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
    """Write all in one transaction; if the database refuses that, each in one of its own. `fault` gets what fails."""
    try:
        return write(ids) if ids else []
    except LarderError as error:
        if isinstance(error, (StoreRejected, StoreHindered)) and len(ids) > 1:
            return [item for i in ids for item in write_each([i], write, fault)]
        fault(ids, error)
        return []


def attributed_error(
    connection: Connection, ids: Sequence[UUID], error: LarderError, *, index: int | None = None
) -> LarderError:
    """DocumentDamaged if the database fails in itself over this one document and few others; else the error."""
    if (
        isinstance(error, StoreDamaged)
        and len(ids) == 1
        and dead.damaged_alone(connection, ids[0], index=index)
    ):
        return DocumentDamaged(
            error.message, fix="mend its rows as the log of the database says, then replay it"
        )
    return error
