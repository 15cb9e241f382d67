"""The texts of the chunks that a search keeps, with their documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.stores import Candidate, Filter, StoredDocument, StoreQuery
from pipeline.stores import pgvector_bm25 as bm25
from pipeline.stores.pgvector_filter import conditions
from pipeline.stores.pgvector_query import ACTIVE, Ask, ChunkScores, Place, nearest


@dataclass(frozen=True, kw_only=True)
class Text:
    """A chunk with its document."""

    document: StoredDocument
    chunk: Chunk


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The chunks nearest in meaning, with their texts."""

    chunks: Sequence[ChunkScores] = ()
    texts: Mapping[tuple[UUID, int], Text]
    rows: int = 0
    """How many chunks they were chosen from."""
    active: int | None = None
    """The index that was active when they were read; None if nothing was found."""


@dataclass(frozen=True, kw_only=True)
class LedgerCandidate(Candidate):
    """A candidate with the scores that only this store can tell, as in `ChunkScores`."""

    title: float | None
    centroid: float | None
    rare: float = 0.0
    covered: float | None = None


def read(
    ask: Ask, index: int, wanted: Sequence[tuple[UUID, int]], condition: Filter
) -> dict[tuple[UUID, int], Text]:
    """These chunks with their documents; what is gone or kept out by the filter is left out."""
    where, values = conditions(condition)
    places = "unnest(cast(%(ids)s as uuid[]), cast(%(ords)s as integer[])) as w(document_id, ord)"
    rows = ask(
        _statement(index, places, where),
        {**values, "ids": [w[0] for w in wanted], "ords": [w[1] for w in wanted]},
    )
    return _texts(rows)


def nearest_texts(
    ask: Ask, place: Place, query: StoreQuery, counted: bm25.Statistics, first: int, *, dedupe: bool = True
) -> Nearest:
    """The first `query.top` by meaning alone, out of the `first` nearest chunks; with `dedupe` one of a document.

    One statement for all, since such a search takes hardly longer than a way to the server.
    """
    best, values = nearest(place, query, counted, first, dedupe=dedupe)
    more = f"w.similarity, w.centroid, w.rows, {ACTIVE}"
    rows = ask(_statement(place.index, f"({best}) as w", "true", more), values)
    if not rows:
        return Nearest(texts={})
    chunks = [
        ChunkScores(document_id=row[0], ord=row[1], similarity=row[-4], centroid=row[-3]) for row in rows
    ]
    return Nearest(chunks=chunks, texts=_texts(rows), rows=rows[0][-2], active=rows[0][-1])


def candidates(
    ask: Ask, index: int, scores: Sequence[ChunkScores], condition: Filter
) -> list[LedgerCandidate]:
    """Scores with their texts, best similarity first."""
    found = read(ask, index, [(s.document_id, s.ord) for s in scores], condition)
    return [
        LedgerCandidate(
            document=found[s.document_id, s.ord].document,
            chunk=found[s.document_id, s.ord].chunk,
            similarity=s.similarity,
            bm25=s.bm25,
            title=s.title,
            centroid=s.centroid,
            rare=s.rare,
            covered=s.covered,
        )
        for s in sorted(scores, key=_best_first)
        if (s.document_id, s.ord) in found
    ]


def _best_first(scores: ChunkScores) -> tuple[float, float, UUID, int]:
    similarity = -2.0 if scores.similarity is None else scores.similarity
    return -similarity, -(scores.bm25 or 0.0), scores.document_id, scores.ord


def _statement(index: int, wanted: str, where: str, more: str = "null") -> str:
    """Chunks `w` with their documents; laterals keep the planner from reading more than these rows."""
    return f"""
        select c.document_id, c.ord, c.version, c.content, c.context, d.title, d.source_type, d.kind, s.name, d.url,
               d.tags, cast(d.metadata as text), d.project_id, d.created_at, d.updated_at, {more}
        from {wanted}
        cross join lateral (
            select c.document_id, c.ord, c.version, c.content, c.context, c.project_id from chunk c
            where c.index_id = {index} and c.document_id = w.document_id and c.ord = w.ord offset 0) c
        cross join lateral (select d.* from document d where d.id = w.document_id offset 0) d
        join source s on s.id = d.source_id
        where {where}"""


def _texts(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[UUID, int], Text]:
    """Rows of `_statement`; a document that several chunks belong to is made once."""
    documents: dict[tuple[UUID, int], StoredDocument] = {}
    found = {}
    for row in rows:
        id_, ord_, version, content, context = row[:5]
        if (id_, version) not in documents:
            documents[id_, version] = _document(id_, version, row[5:15])
        chunk = Chunk(ord=ord_, content=content, context=context)
        found[id_, ord_] = Text(document=documents[id_, version], chunk=chunk)
    return found


def _document(id_: UUID, version: int, columns: tuple[Any, ...]) -> StoredDocument:
    title, source_type, kind, source, url, tags, metadata, project_id, created_at, updated_at = columns
    return StoredDocument(
        id=id_,
        version=version,
        title=title,
        source_type=SourceType(source_type),
        kind=Kind(kind),
        source=source,
        url=url,
        tags=tuple(tags),
        metadata=json.loads(metadata),
        project_id=project_id,
        created_at=created_at,
        updated_at=updated_at,
    )
