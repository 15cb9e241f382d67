"""Search indexes, and the chunks that each of them holds: a partition of table `chunk` for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import Connection, text

from pipeline.database.engine import Transfer, transfer
from pipeline.documents import Chunk
from pipeline.errors import StoreRejected
from pipeline.languages import language_of
from pipeline.search.question import counted
from pipeline.search.records import Replaced, Replacement, StoredDocument


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """A row of `search_index`: which model's vectors a partition holds."""

    id: int
    provider: str
    model: str
    dimensions: int
    status: str
    chunker: str = ""
    strategy: str = ""
    """Cuts the documents of every source; empty: as each source is configured."""
    indexed_rows: int | None = None
    keyword_built: bool = False


INDEX_COLUMNS = tuple(SearchIndex.__dataclass_fields__)
_INDEX = ", ".join(INDEX_COLUMNS)


def active_index(connection: Connection) -> SearchIndex | None:
    """The index that searches read; None before the first document."""
    row = connection.execute(text(f"select {_INDEX} from search_index where status = 'active'"))
    found = row.mappings().one_or_none()
    return SearchIndex(**found) if found else None


def indexes(connection: Connection) -> list[SearchIndex]:
    """All search indexes, oldest first."""
    rows = connection.execute(text(f"select {_INDEX} from search_index order by id"))
    return [SearchIndex(**row) for row in rows.mappings()]


def open_index(
    connection: Connection, *, provider: str, model: str, dimensions: int, chunker: str, pipeline: str
) -> SearchIndex:
    """The index for a model, made with its partition if there is none yet.

    The first one becomes active at once; a later one is built beside the active one.
    """
    made = connection.execute(
        text("select open_search_index(:provider, :model, :dimensions, :chunker, :pipeline)"),
        {
            "provider": provider,
            "model": model,
            "dimensions": dimensions,
            "chunker": chunker,
            "pipeline": pipeline,
        },
    ).scalar_one()
    row = connection.execute(text(f"select {_INDEX} from search_index where id = :id"), {"id": made})
    return SearchIndex(**row.mappings().one())


_ROWS = Transfer(
    table="incoming_chunk",
    columns="""
        index_id int4, tenant_id uuid, project_id uuid, document_id uuid, ord int4, version int4, content text,
        context text, hash bytea, words text, title_words text, language text, length int4, embedding halfvec""",
    insert="""
        insert into chunk (index_id, tenant_id, project_id, document_id, ord, version, content, context, hash,
                           lexemes, length, embedding)
        select index_id, tenant_id, project_id, document_id, ord, version, content, context, hash,
               setweight(to_tsvector(cast(language as regconfig), title_words), 'A')
                   || to_tsvector(cast(language as regconfig), words), length, embedding
        from incoming_chunk order by document_id, ord""",
)


@dataclass(kw_only=True)
class _Change:
    """What one call of `replace` is about to do."""

    drop: list[tuple[UUID, int]] = field(default_factory=list)
    keep: list[tuple[StoredDocument, int]] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    results: list[Replaced] = field(default_factory=list)


class PgVectorStore:
    """One tenant's chunks in one search index; the tenant is set on `connection`, whose transaction is the caller's."""

    def __init__(self, connection: Connection, index: SearchIndex, tenant_id: UUID) -> None:
        self.connection = connection
        self.index = index
        self.tenant_id = tenant_id

    def replace(self, batch: Sequence[Replacement]) -> list[Replaced]:
        """Make each document's chunks exactly these; unchanged rows keep their vector, a late version is ignored.

        A document may stand in the batch once.

        Raises:
            StoreRejected: a vector has the wrong length or is not finite, or counts differ; nothing is written.
        """
        for replacement in batch:
            check_vectors(replacement, self.index.dimensions)
        old = self._stored([r.document.id for r in batch])
        change = _Change()
        for replacement in batch:
            document = replacement.document
            version, hashes = old.get(document.id, (0, {}))
            if version > document.version:
                change.results.append(Replaced(written=0, kept=0, removed=0))
                continue
            kept, written, removed = diff(hashes, replacement.chunks)
            change.drop += [(document.id, o) for o in removed]
            change.keep += [(document, o) for o in kept]
            change.rows += self._rows(replacement, set(written))
            change.results.append(Replaced(written=len(written), kept=len(kept), removed=len(removed)))
        self._drop(change.drop)
        self._keep(change.keep)
        if change.rows:
            transfer(self.connection, _ROWS, change.rows)
        return change.results

    def _stored(self, ids: list[UUID]) -> dict[UUID, tuple[int, dict[int, str]]]:
        """Document id -> (version, ordinal -> hash) of what is there."""
        found: dict[UUID, tuple[int, dict[int, str]]] = {}
        rows = self.connection.execute(
            text(
                "select document_id, ord, version, hash from chunk where index_id = :index and document_id = any(:ids)"
            ),
            {"index": self.index.id, "ids": ids},
        )
        for row in rows:
            version, hashes = found.setdefault(row.document_id, (row.version, {}))
            hashes[row.ord] = bytes(row.hash).hex()
            found[row.document_id] = (max(version, row.version), hashes)
        return found

    def _rows(self, replacement: Replacement, written: set[int]) -> Iterator[tuple[Any, ...]]:
        document = replacement.document
        language = language_of(document.metadata)
        for chunk, vector in zip(replacement.chunks, replacement.vectors, strict=True):
            if chunk.ord in written:
                words, length = counted(chunk.content)
                title_words, title_length = counted(chunk.context)
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
                    HalfVector(vector),
                )

    def _drop(self, keys: list[tuple[UUID, int]]) -> None:
        if keys:
            self.connection.execute(
                text("""
                    delete from chunk c using unnest(cast(:ids as uuid[]), cast(:ords as integer[])) as k(id, ord)
                    where c.index_id = :index and c.document_id = k.id and c.ord = k.ord"""),
                {"index": self.index.id, "ids": [k[0] for k in keys], "ords": [k[1] for k in keys]},
            )

    def _keep(self, keys: list[tuple[StoredDocument, int]]) -> None:
        """Unchanged rows only learn their document's new version and project; no search index holds these columns."""
        if keys:
            self.connection.execute(
                text("""
                    update chunk c set version = k.version, project_id = k.project
                    from unnest(cast(:ids as uuid[]), cast(:ords as integer[]), cast(:versions as integer[]),
                                cast(:projects as uuid[])) as k(id, ord, version, project)
                    where c.index_id = :index and c.document_id = k.id and c.ord = k.ord
                      and (c.version, c.project_id) is distinct from (k.version, k.project)"""),
                {
                    "index": self.index.id,
                    "ids": [document.id for document, _ in keys],
                    "ords": [o for _, o in keys],
                    "versions": [document.version for document, _ in keys],
                    "projects": [document.project_id for document, _ in keys],
                },
            )

    def delete(self, document_ids: Sequence[UUID]) -> int:
        """Remove the chunks of these documents from this index."""
        gone = self.connection.execute(
            text("delete from chunk where index_id = :index and document_id = any(:ids)"),
            {"index": self.index.id, "ids": list(document_ids)},
        )
        return int(gone.rowcount)


def check_vectors(replacement: Replacement, dimensions: int) -> None:
    """Refuse vectors that do not fit their chunks or the index.

    Raises:
        StoreRejected: the counts differ, the width is wrong, a value is not finite, or an ordinal comes twice.
    """
    count, shape = len(replacement.chunks), np.shape(replacement.vectors)
    what = f"document {replacement.document.id}"
    if shape != (count, dimensions) and not (count == 0 and 0 in shape):
        raise StoreRejected(
            f"{what}: vectors of shape {shape} for {count} chunks of {dimensions} dimensions",
            fix="embed each chunk once, with the model this index was made for",
        )
    if not np.isfinite(replacement.vectors).all():
        raise StoreRejected(f"{what}: a vector is not finite", fix="embed the document again")
    if len({chunk.ord for chunk in replacement.chunks}) != count:
        raise StoreRejected(f"{what}: two chunks have the same ordinal", fix="number chunks 0, 1, 2, ...")


def diff(old: Mapping[int, str], new: Sequence[Chunk]) -> tuple[list[int], list[int], list[int]]:
    """(kept, written, removed) ordinals when chunks with hashes `old` (by ordinal) become `new`."""
    kept = [c.ord for c in new if old.get(c.ord) == c.hash]
    same = set(kept)
    written = [c.ord for c in new if c.ord not in same]
    removed = [o for o in old if o not in same]
    return kept, written, removed
