"""The texts of the chunks that a search keeps, with their documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from pgvector import HalfVector

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.stores import Candidate, Filter, StoredDocument, StoreQuery, pgvector_sql
from pipeline.stores import pgvector_bm25 as bm25
from pipeline.stores.pgvector_filter import names_of, values_of
from pipeline.stores.pgvector_query import Ask, ChunkScores, Place, shape_of

R = TypeVar("R")


class Text(NamedTuple):
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


@dataclass(frozen=True, kw_only=True)
class Blend:
    """How the scores of both arms become one: a weighted sum of their scaled values, as `retrieval.ranking` says."""

    vector: float
    keyword: float
    title: float
    rare: float
    centroid: float
    """Share of the whole document in the likeness of meaning."""
    least: float
    """The similarity from which a chunk counts that has no word of the question."""

    def values(self) -> dict[str, float]:
        """The parameters of `pgvector_sql.best`; the weights are brought to a sum of 1."""
        whole = self.vector + self.keyword + self.title + self.rare or 1.0
        share = min(self.centroid, 1.0)
        return {
            "of_meaning": self.vector / whole,
            "of_words": self.keyword,
            "of_title": self.title / whole,
            "of_rare": self.rare / whole,
            "whole": whole,
            "own": 1.0 - share,
            "share": share,
            "least": self.least,
        }


class Blended(NamedTuple):
    """A chunk with its score and the parts that add up to it."""

    candidate: ChunkScores
    score: float
    vector_part: float
    keyword_part: float
    title_part: float
    rare_part: float


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
    places = {"ids": [w[0] for w in wanted], "ords": [w[1] for w in wanted]}
    statement = pgvector_sql.texts(index, names_of(condition))
    return _texts(ask(statement, {**values_of(condition), **places}, one_plan=True))


def nearest_texts(
    ask: Ask,
    place: Place,
    query: StoreQuery,
    counted: bm25.Statistics,
    first: int,
    *,
    dedupe: bool = True,
    whole: bool = True,
    seen: bool = True,
) -> Nearest:
    """The first `query.top` by meaning alone, out of the `first` nearest chunks; with `dedupe` one of a document.

    One statement for all, since such a search takes hardly longer than a way to the server. The likeness of the whole
    document only if asked for by `whole`: by meaning alone, it ranks nothing. With `seen` False hidden documents take
    places among the `first`.
    """
    if query.vector is None or query.top is None:
        raise ValueError("a search by meaning needs a vector and a number of hits")
    shape = shape_of(place, query, counted)
    statement = pgvector_sql.nearest(shape, first, query.top, dedupe=dedupe, whole=whole, seen=seen)
    values = {**values_of(query.filter), "vector": HalfVector(query.vector)}
    rows = ask(statement, values, one_plan=not shape.filter)
    if not rows:
        return Nearest(texts={})
    chunks = [ChunkScores(row[0], row[1], row[-3], row[-2]) for row in rows]
    return Nearest(chunks=chunks, texts=_texts(rows), rows=rows[0][-1])


def best_texts(
    ask: Ask, place: Place, query: StoreQuery, counted: bm25.Statistics, blend: Blend, *, dedupe: bool = True
) -> tuple[list[Blended], dict[tuple[UUID, int], Text]] | None:
    """The first `query.top` of both arms, in no order, and their texts; with `dedupe` one of a document.

    None for a question without words, which has one arm alone. `counted` is as of the last refresh.
    """
    terms = bm25.weigh(ask, place.index, place.tenant_id, query.text, counted, query.languages)
    if not terms or query.vector is None or query.top is None:
        return None
    shape = shape_of(place, query, counted, len(terms))
    values = {
        **values_of(query.filter),
        **bm25.values(terms, counted),
        **blend.values(),
        "vector": HalfVector(query.vector),
    }
    rows = ask(pgvector_sql.best(shape, query.top, dedupe=dedupe), values, one_plan=not shape.filter)
    found = [Blended(ChunkScores(row[0], row[1], *row[-11:-5]), *row[-5:]) for row in rows]
    return found, _texts(rows)


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


def _filled(kind: type[R], /, **fields: Any) -> R:
    """A frozen record with all of its fields, without its `__init__`, which was a third of a search by meaning."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


_TYPES = {member.value: member for member in SourceType}
_KINDS = {member.value: member for member in Kind}


def _texts(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[UUID, int], Text]:
    """Rows of `pgvector_sql.texts`; a document that several chunks belong to is made once."""
    documents: dict[tuple[UUID, int], StoredDocument] = {}
    found = {}
    for row in rows:
        id_, ord_, version, content, context = row[:5]
        document = documents.get((id_, version))
        if document is None:
            document = documents[id_, version] = _document(id_, version, row[5:15])
        chunk = _filled(Chunk, ord=ord_, content=content, context=context)
        found[id_, ord_] = Text(document, chunk)
    return found


def _document(id_: UUID, version: int, columns: tuple[Any, ...]) -> StoredDocument:
    title, source_type, kind, source, url, tags, metadata, project_id, created_at, updated_at = columns
    return _filled(
        StoredDocument,
        id=id_,
        version=version,
        title=title,
        source_type=_TYPES[source_type],
        kind=_KINDS[kind],
        source=source,
        url=url,
        tags=tuple(tags),
        metadata=json.loads(metadata),
        project_id=project_id,
        created_at=created_at,
        updated_at=updated_at,
    )
