"""The texts of the chunks that a search keeps, with their documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from pgvector import HalfVector
from pydantic_core import from_json

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.search import bm25, statements
from pipeline.search.arms import Ask, ChunkScores, Place, shape_of
from pipeline.search.chunks import Candidate, Filter, StoredDocument, StoreQuery
from pipeline.search.feedback import Marks
from pipeline.search.filters import names_of, values_of
from pipeline.search.validity import Standing, standing


class Text(NamedTuple):
    """A chunk with its document."""

    document: StoredDocument
    chunk: Chunk
    standing: Standing | None
    """What speaks against the document."""
    marks: Marks | None = None
    """What people said of it."""

    @property
    def shift(self) -> float:
        """In log-odds, what that adds to its relevance."""
        return self.marks.shift if self.marks else 0.0


class Ranked(NamedTuple):
    """A candidate in its final order; the score is the sum of the parts. A tuple, since a search makes hundreds."""

    candidate: ChunkScores
    score: float
    vector_part: float
    keyword_part: float
    title_part: float = 0.0
    covered_part: float = 0.0
    rerank: float | None = None
    rerank_part: float = 0.0
    standing_part: float = 0.0
    feedback_part: float = 0.0
    text: Text | None = None
    """None until it is read, which is done for those alone that can come to be shown."""

    @property
    def place(self) -> tuple[UUID, int]:
        """Which chunk it is."""
        return self.candidate.document_id, self.candidate.ord


class Best(NamedTuple):
    """The best chunks of both arms, in order, with their texts."""

    chunks: Sequence[Ranked]
    state: str = ""
    """Of the data that they were found in, if it was asked for; empty if nothing was found."""


class Nearest(NamedTuple):
    """The chunks nearest in meaning, with their texts; their score is the similarity."""

    chunks: Sequence[Ranked] = ()
    rows: int = 0
    """How many chunks they were chosen from."""


@dataclass(frozen=True, kw_only=True)
class Blend:
    """How the scores of both arms become one: a weighted sum, as `retrieval.ranking` says."""

    vector: float
    keyword: float
    title: float
    covered: float
    centroid: float
    """Share of the whole document in the likeness of meaning."""
    least: float
    """The similarity from which a chunk counts that has no word of the question."""

    def values(self) -> dict[str, float]:
        """The parameters of `pgvector_sql.best`; the weights are brought to a sum of 1."""
        whole = self.vector + self.keyword + self.title + self.covered or 1.0
        share = min(self.centroid, 1.0)
        return {
            "of_meaning": self.vector / whole,
            "of_words": self.keyword / whole,
            "of_title": self.title / whole,
            "of_all": self.covered / whole,
            "own": 1.0 - share,
            "share": share,
            "least": self.least,
        }


@dataclass(frozen=True, kw_only=True)
class LedgerCandidate(Candidate):
    """A candidate with the scores that only this store can tell, as in `ChunkScores`."""

    overlap: float | None
    title: float | None
    covered: float | None
    centroid: float | None


def read(
    ask: Ask, index: int, wanted: Sequence[tuple[UUID, int]], condition: Filter, asked: str = ""
) -> dict[tuple[UUID, int], Text]:
    """These chunks with their documents; what is gone or kept out by the filter is left out.

    `asked` is the key of the question that people may have marked documents for.
    """
    return _read(ask, index, wanted, condition, asked)[0]


def reread(
    ask: Ask, index: int, wanted: Sequence[tuple[UUID, int]], condition: Filter, asked: str
) -> tuple[dict[tuple[UUID, int], Text], str]:
    """The same and the state they were read in; nothing if the index is not the active one."""
    return _read(ask, index, wanted, condition, asked, state=True)


def _read(
    ask: Ask,
    index: int,
    wanted: Sequence[tuple[UUID, int]],
    condition: Filter,
    asked: str,
    *,
    state: bool = False,
) -> tuple[dict[tuple[UUID, int], Text], str]:
    places = {"asked": asked, "ids": [w[0] for w in wanted], "ords": [w[1] for w in wanted]}
    names = names_of(condition)
    statement = statements.texts(index, names, state=state)
    rows = ask(statement, {**values_of(condition, names), **places}, one_plan=True)
    found = {(row[0], row[1]): text for row, text in zip(rows, _texts(rows), strict=True)}
    return found, (rows[0][-1] or "") if rows else ""


def nearest_few(
    ask: Ask, statement: str, vector: Vectors, name_of: Callable[[UUID], str]
) -> list[tuple[StoredDocument, Chunk, float]]:
    """What `pgvector_sql.nearest_few` finds, with its similarity; `name_of` gives the name of a source."""
    rows = ask(statement, {"vector": HalfVector(vector)}, one_plan=True)
    return [(_document(row, name_of(row[8])), _chunk(row), row[15]) for row in rows]


def nearest_texts(
    ask: Ask,
    place: Place,
    query: StoreQuery,
    counted: bm25.Statistics,
    first: int,
    *,
    dedupe: bool = True,
    whole: bool = True,
) -> Nearest:
    """The first `query.top` by meaning alone, out of the `first` nearest chunks; with `dedupe` one of a document.

    One statement for all, since such a search takes hardly longer than a way to the server. The likeness of the whole
    document only if asked for by `whole`: by meaning alone, it ranks nothing.
    """
    if query.vector is None or query.top is None:
        raise ValueError("a search by meaning needs a vector and a number of hits")
    shape = shape_of(place, query, counted)
    statement = statements.nearest(shape, first, query.top, dedupe=dedupe, whole=whole)
    values = {**values_of(query.filter, shape.filter), "vector": HalfVector(query.vector)}
    rows = ask(statement, values, one_plan=shape.one_plan)
    chunks = [
        Ranked(ChunkScores(row[0], row[1], s := row[-3], row[-2]), s, s, 0.0, text=text)
        for row, text in zip(rows, _texts(rows), strict=True)
    ]
    return Nearest(chunks, rows[0][-1]) if rows else Nearest()


def best_texts(
    ask: Ask,
    place: Place,
    query: StoreQuery,
    counted: bm25.Statistics,
    blend: Blend,
    *,
    enough: int,
    asked: str = "",
    dedupe: bool = True,
    state: bool = False,
) -> Best | None:
    """The first `query.top` of both arms; with `dedupe` one of a document, with `state` that of the data.

    They end after `enough` of them if all of these hold and nobody said anything of any, for the question `asked` or
    another: the others are there to take the place of one that is lowered by that, or their own is raised.

    None if this statement cannot tell: a question without words has one arm alone, and one may have more lexemes than
    words. `counted` is as of the last refresh.
    """
    if query.vector is None or query.top is None:
        return None
    shape = shape_of(place, query, counted)
    short = None
    if shape.one_plan:  # else what the words select decides which plan is good, and must be known beforehand
        short = bm25.given_here(place.index, place.tenant_id, query.text, counted, query.languages)
    if short is not None:
        terms, language, given = short
        shape = shape._replace(terms=terms, language=language)
    else:
        weighed = bm25.weigh(ask, place.index, place.tenant_id, query.text, counted, query.languages)
        shape = shape._replace(terms=bm25.Terms(len(weighed)))
        given = dict(bm25.values(weighed, counted))
        if not weighed:
            return None
    values = {
        **values_of(query.filter, shape.filter),
        **given,
        **blend.values(),
        "asked": asked,
        "vector": HalfVector(query.vector),
    }
    statement = statements.best(shape, query.top, dedupe=dedupe, state=state)
    rows = ask(statement, values, one_plan=shape.one_plan)
    if short is not None and not rows:
        return None
    rows = sorted(rows, key=_SCORE, reverse=True)
    if len(set(map(_SCORE, rows))) < len(rows):
        rows.sort(key=lambda row: (-row[-5], row[0], row[1]))
    chunks = _ranked(rows[:enough])
    if any(map(_MARKS, rows)) or any(one.text is not None and one.text.standing for one in chunks):
        chunks += _ranked(rows[enough:])
    return Best(chunks, (rows[0][-12] or "") if rows else "")


_SCORE = itemgetter(-5)
"""Of a row of `pgvector_sql.best`."""
_MARKS = itemgetter(15)
"""Of a row of `pgvector_sql.texts`."""


def _ranked(rows: Sequence[tuple[Any, ...]]) -> list[Ranked]:
    return [
        Ranked(
            ChunkScores(row[0], row[1], *row[-11:-5]), row[-5], row[-4], row[-3], row[-2], row[-1], text=text
        )
        for row, text in zip(rows, _texts(rows), strict=True)
    ]


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
            overlap=s.overlap,
            title=s.title,
            covered=s.covered,
            centroid=s.centroid,
        )
        for s in sorted(scores, key=_best_first)
        if (s.document_id, s.ord) in found
    ]


def _best_first(scores: ChunkScores) -> tuple[float, float, UUID, int]:
    similarity = -2.0 if scores.similarity is None else scores.similarity
    return -similarity, -(scores.bm25 or 0.0), scores.document_id, scores.ord


_TYPES = {member.value: member for member in SourceType}
_KINDS = {member.value: member for member in Kind}


def _texts(rows: Sequence[tuple[Any, ...]]) -> list[Text]:
    """Rows of `pgvector_sql.texts`, in their order; a document that several chunks belong to is made once."""
    documents: dict[tuple[int, int], tuple[StoredDocument, Standing | None, Marks | None]] = {}
    found = []
    for row in rows:
        key = row[0].int, row[2]  # numbers, which are looked up five times as fast as ids
        of = documents.get(key)
        if of is None:
            document, marks = _document(row, row[8]), row[15]
            of = documents[key] = document, standing(document), Marks(*marks) if marks else None
        found.append(Text(of[0], _chunk(row), of[1], of[2]))
    return found


def _document(row: tuple[Any, ...], source: str) -> StoredDocument:
    return StoredDocument(
        id=row[0],
        version=row[2],
        title=row[5],
        source_type=_TYPES[row[6]],
        kind=_KINDS[row[7]],
        source=source,
        url=row[9],
        tags=tuple(row[10]),
        metadata=_metadata(row[11]),
        project_id=row[12],
        created_at=row[13],
        updated_at=row[14],
    )


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(ord=row[1], content=row[3], context=row[4])


def _metadata(text: str) -> dict[str, Any]:
    """JSON as the server writes it; by a parser that is four times as fast but refuses what is nested very deeply."""
    found: dict[str, Any]
    try:
        found = from_json(text)
    except ValueError:
        found = json.loads(text)
    return found
