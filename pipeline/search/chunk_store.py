"""Search indexes and their chunks: each has a partition of the table `chunk`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection, TextClause, text

from pipeline.database.engine import Transfer, transfer
from pipeline.documents import language_of
from pipeline.errors import StoreRejected
from pipeline.search.records import Quantization, Replaced, Replacement
from pipeline.search.words import searchable_with_length


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """A row of `search_index`, with the model whose vectors its partition holds."""

    id: int
    provider: str
    model: str
    dimensions: int
    status: str
    chunker: str = ""
    strategy: str = ""
    """Chunking strategy for the documents of all sources; empty: as each source is configured."""
    indexed_rows: int | None = None
    quantization: Quantization = "halfvec"
    """What its vector index holds of each vector: all numbers with 16 bits, or their signs."""
    keyword_built: bool = False


INDEX_COLUMNS = tuple(SearchIndex.__dataclass_fields__)


def indexes(connection: Connection) -> list[SearchIndex]:
    """All search indexes, oldest first."""
    rows = connection.execute(text(f"select {', '.join(INDEX_COLUMNS)} from search_index order by id"))
    return [SearchIndex(**row) for row in rows.mappings()]


def active_index(connection: Connection) -> SearchIndex | None:
    """The index that searches use; None before the first document."""
    return next((index for index in indexes(connection) if index.status == "active"), None)


def open_index(
    connection: Connection, *, provider: str, model: str, dimensions: int, chunker: str, pipeline: str
) -> SearchIndex:
    """The index for a model; it is created with its partition if there is none yet.

    The first index becomes active at once; a later one is filled beside the active one.
    """
    values = {
        "provider": provider,
        "model": model,
        "dimensions": dimensions,
        "chunker": chunker,
        "pipeline": pipeline,
    }
    opened = text("select open_search_index(:provider, :model, :dimensions, :chunker, :pipeline)")
    index_id = connection.execute(opened, values).scalar_one()
    return next(index for index in indexes(connection) if index.id == index_id)


_ROWS = Transfer(
    columns="""
        index_id int4, tenant_id uuid, project_id uuid, document_id uuid, ord int4, version int4, content text,
        context text, hash bytea, words text, title_words text, language text, length int4, embedding halfvec""",
    insert="""
        insert into chunk (index_id, tenant_id, project_id, document_id, ord, version, content, context, hash,
                           lexemes, length, embedding)
        select index_id, tenant_id, project_id, document_id, ord, version, content, context, hash,
               setweight(to_tsvector(cast(language as regconfig), title_words), 'A')
                   || to_tsvector(cast(language as regconfig), words), length, embedding
        from {incoming} order by document_id, ord""",
)


_VECTORS = Transfer(
    columns="index_id int4, document_id uuid, ord int4, version int4, project_id uuid, embedding halfvec",
    insert="""
        update chunk c set embedding = incoming.embedding, version = incoming.version, project_id = incoming.project_id
        from {incoming}
        where (c.index_id, c.document_id, c.ord) = (incoming.index_id, incoming.document_id, incoming.ord)""",
)


_STORED = text("""
    select document_id, ord, version, hash, embedding is null as bare from chunk
    where index_id = :index and document_id = any(:ids)""")
_DROP = text("""
    delete from chunk c using unnest(cast(:ids as uuid[]), cast(:ords as integer[])) as k(id, ord)
    where c.index_id = :index and c.document_id = k.id and c.ord = k.ord""")
_KEEP = text("""
    update chunk c set version = k.version, project_id = k.project
    from unnest(cast(:ids as uuid[]), cast(:ords as integer[]), cast(:versions as integer[]),
                cast(:projects as uuid[])) as k(id, ord, version, project)
    where c.index_id = :index and c.document_id = k.id and c.ord = k.ord
      and (c.version, c.project_id) is distinct from (k.version, k.project)""")


class ChunkStore:
    """One tenant's chunks in one search index; the caller sets the tenant on `connection` and owns its transaction."""

    def __init__(self, connection: Connection, index: SearchIndex, tenant_id: UUID) -> None:
        self.connection = connection
        self.index = index
        self.tenant_id = tenant_id

    def replace(self, batch: Sequence[Replacement], *, newest: bool = False) -> list[Replaced]:
        """Replace all chunks of each document; unchanged rows keep their vector, and a late version is ignored.

        Rows without a vector get theirs; without vectors the chunks are found by keywords alone. A document may occur
        in the batch once. `newest` is for callers that hold the document's lease: stored rows of a later version then
        belong to an earlier document with this id, and are deleted.

        Raises:
            StoreRejected: a vector has the wrong length or is not finite, or counts differ; nothing is written.
        """
        for replacement in batch:
            check_vectors(replacement, self.index.dimensions)
        old: dict[UUID, dict[int, Any]] = {}
        document_ids = [r.document.id for r in batch]
        for row in self.connection.execute(_STORED, {"index": self.index.id, "ids": document_ids}):
            old.setdefault(row.document_id, {})[row.ord] = row
        drop: list[tuple[UUID, int]] = []
        keep: list[tuple[UUID, int, int, UUID | None]] = []
        vectors: list[tuple[Any, ...]] = []
        rows: list[tuple[Any, ...]] = []
        results = []
        for replacement in batch:
            document, stored = replacement.document, old.get(replacement.document.id, {})
            if not newest and any(row.version > document.version for row in stored.values()):
                results.append(Replaced(written=0, unchanged=0, removed=0))
                continue
            hashes = {ord_: bytes(row.hash).hex() for ord_, row in stored.items()}
            unchanged = {chunk.ord for chunk in replacement.chunks if hashes.get(chunk.ord) == chunk.hash}
            drop += [(document.id, ord_) for ord_ in stored if ord_ not in unchanged]
            rows += self._rows(replacement, unchanged)
            bare = {o for o in unchanged if stored[o].bare} if replacement.vectors is not None else set()
            vectors += self._vectors(replacement, bare)
            keep += [(document.id, ord_, document.version, document.project_id) for ord_ in unchanged - bare]
            same, removed = len(unchanged) - len(bare), len(stored) - len(unchanged)
            results.append(Replaced(written=len(replacement.chunks) - same, unchanged=same, removed=removed))
        self._run(_DROP, ("ids", "ords"), drop)
        # Unchanged rows only get their document's new version and project; no database index has these columns.
        self._run(_KEEP, ("ids", "ords", "versions", "projects"), keep)
        transfer(self.connection, _VECTORS, vectors)
        transfer(self.connection, _ROWS, rows)
        return results

    def _vectors(self, replacement: Replacement, ords: Collection[int]) -> Iterator[tuple[Any, ...]]:
        document, vectors = replacement.document, replacement.vectors
        for chunk, vector in zip(replacement.chunks, () if vectors is None else vectors, strict=False):
            if chunk.ord in ords:
                yield (
                    self.index.id,
                    document.id,
                    chunk.ord,
                    document.version,
                    document.project_id,
                    HalfVector(vector),
                )

    def _run(self, statement: TextClause, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            columns = map(list, zip(*rows, strict=True))
            self.connection.execute(
                statement, {"index": self.index.id, **dict(zip(names, columns, strict=True))}
            )

    def _rows(self, replacement: Replacement, unchanged: Collection[int]) -> Iterator[tuple[Any, ...]]:
        document = replacement.document
        language = language_of(document.metadata)
        vectors = repeat(None) if replacement.vectors is None else replacement.vectors
        for chunk, vector in zip(replacement.chunks, vectors, strict=False):
            if chunk.ord not in unchanged:
                words, length = searchable_with_length(chunk.content)
                title_words, title_length = searchable_with_length(chunk.context)
                yield (
                    self.index.id,
                    self.tenant_id,
                    document.project_id,
                    document.id,
                    chunk.ord,
                    document.version,
                    chunk.content,
                    chunk.context,
                    bytes.fromhex(chunk.hash),
                    words,
                    title_words,
                    language,
                    length + title_length,
                    None if vector is None else HalfVector(vector),
                )


def check_vectors(replacement: Replacement, dimensions: int) -> None:
    """Refuse vectors that do not fit the chunks or the index.

    Raises:
        StoreRejected: the counts differ, the width is wrong, a value is not finite, or an ordinal occurs twice.
    """
    count = len(replacement.chunks)
    vectors = np.zeros((count, dimensions)) if replacement.vectors is None else replacement.vectors
    shape, name = np.shape(vectors), f"document {replacement.document.id}"
    if shape != (count, dimensions) and not (count == 0 and 0 in shape):
        raise StoreRejected(
            f"{name}: vectors of shape {shape} for {count} chunks of {dimensions} dimensions",
            fix="embed each chunk once, with the model this index was made for",
        )
    if not np.isfinite(vectors).all():
        raise StoreRejected(f"{name}: a vector is not finite", fix="embed the document again")
    if len({chunk.ord for chunk in replacement.chunks}) != count:
        raise StoreRejected(f"{name}: two chunks have the same ordinal", fix="number chunks 0, 1, 2, ...")
