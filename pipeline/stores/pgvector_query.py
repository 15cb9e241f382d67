"""The two search arms in SQL: nearest vectors and exact BM25, filtered alike, each candidate scored in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from pgvector import HalfVector

from pipeline.database import EF_SEARCH
from pipeline.stores import StoreQuery
from pipeline.stores import pgvector_bm25 as bm25
from pipeline.stores.pgvector_filter import CONDITIONS, OF_CHUNKS, LedgerFilter, conditions

__all__ = ["Ask", "ChunkScores", "LedgerFilter", "Place", "Scores", "nearest", "scores"]

Ask = Callable[[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]
"""Runs a statement for the tenant and gives its rows."""

KEYWORD_ROWS = "searchable_chunk"
"""What the keyword arm reads. Row-level security keeps `@@` out of an index scan, since that operator is not
leakproof; a view with the same condition and an owner that may read all rows does not."""

MOST_EF_SEARCH = 1000
FEW_TERMS = 8
CHUNKS_PER_DOCUMENT = 4
"""Candidates looked at first for each document wanted, by meaning alone."""


class ChunkScores(NamedTuple):
    """A chunk that an arm found, and its scores; its text stays where it is. A tuple, since a search reads hundreds."""

    document_id: UUID
    ord: int
    similarity: float | None
    """Cosine similarity, -1 to 1; None if the vector arm was left out."""
    centroid: float | None = None
    """Cosine similarity of the whole document; None if not known or the vector arm was left out."""
    bm25: float | None = None
    """BM25 score, 0 and up; None if the keyword arm was left out."""
    title: float | None = None
    """BM25 of its title and headings alone; None if the keyword arm was left out."""
    rare: float = 0.0
    """Share of the question's weight that lies in its rarest words and stands in this chunk, 0 to 1."""
    covered: float | None = None
    """Share of the question's weight in words of this chunk, 0 to 1; None for a question that is a long text."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to search."""

    index: int
    dimensions: int
    tenant_id: UUID
    exact_below: int
    """Up to this many chunks of the tenant, every vector is compared."""


class Scores(NamedTuple):
    """What both arms found, each chunk once, in no order."""

    chunks: list[ChunkScores]
    active: int | None
    """The index that was active when the arms were read; None if they found nothing."""


def scores(ask: Ask, place: Place, query: StoreQuery, counted: bm25.Statistics) -> Scores:
    """The union of both arms, each chunk scored in every arm asked for; `counted` as of the last refresh."""
    terms = bm25.weigh(ask, place.index, place.tenant_id, query.text, counted) if query.keywords else []
    where, values = conditions(query.filter)
    arms = []
    if query.vector is not None:
        arms.append(_near(place, query, where, counted, query.candidates))
        values |= {"vector": HalfVector(query.vector)}
    if terms:
        arms.append(_matching(place, query, terms))
        values |= {**bm25.values(terms, counted), "any_of": bm25.selector(terms, counted)}
    if not arms:
        return Scores(chunks=[], active=None)
    rows = ask(_statement(arms, query, terms, counted), values)
    # A chunk that both arms found has the same scores in both.
    found = {(row[1], row[2]): ChunkScores._make(row[1:]) for row in rows}
    return Scores(chunks=list(found.values()), active=rows[0][0] if rows else None)


def nearest(
    place: Place, query: StoreQuery, counted: bm25.Statistics, first: int, *, dedupe: bool
) -> tuple[str, dict[str, Any]]:
    """A statement for (document_id, ord, similarity, centroid, rows) of the first `query.top`, and its values.

    By meaning alone, from the `first` nearest chunks, of which there are `rows`; with `dedupe` one of a document.
    """
    if query.vector is None:
        raise ValueError("a search by meaning needs a vector")
    where, values = conditions(query.filter)
    values |= {"vector": HalfVector(query.vector)}
    once = "distinct on (f.document_id)" if dedupe else ""
    # Planned for all candidates and stopped after the first: told of a few only, the planner would take the vector
    # index through the narrowest filter, which takes longer than comparing all that pass and finds fewer.
    return (
        f"""
        with near as materialized ({_near(place, query, where, counted, query.candidates)}),
        first as materialized (select n.document_id, n.ord, n.distance, n.centroid from near n limit {first})
        select b.document_id, b.ord, {_SIMILARITY.format("b.distance")} as similarity, b.centroid,
               (select count(*) from first) as rows
        from (select {once} f.document_id, f.ord, f.distance, f.centroid from first f
              order by f.document_id, f.distance, f.ord) b
        order by b.distance, b.document_id, b.ord limit {query.top}""",
        values,
    )


ACTIVE = "(select i.id from search_index i where i.status = 'active')"
"""Read in the statement that searches: by this a search knows whether it asked the right index."""


# An arm gives (document_id, ord, lexemes, length, distance, centroid) of its chunks. Laterals with `offset 0` keep the
# order: first the ids, then rows by key. Left to itself and without statistics, right after a first load, the planner
# takes a thousand times as long.


def _distance(place: Place, query: StoreQuery) -> str:
    """The very expression that the vector index is built on."""
    if query.vector is None:
        return "cast(null as float8)"
    return f"((c.embedding::halfvec({place.dimensions})) <=> %(vector)s)"


def _centroid(place: Place, query: StoreQuery) -> str:
    """The likeness of the whole document `d`.

    That of the very index that is read: the vectors of two models must not meet.
    """
    if query.vector is None:
        return "cast(null as float8)"
    return f"""(select nullif(1 - (m.centroid <=> %(vector)s), 'NaN') from index_document m
               where m.tenant_id = d.tenant_id and m.index_id = {place.index} and m.document_id = d.id)"""


def _near(place: Place, query: StoreQuery, where: str, counted: bm25.Statistics, limit: int) -> str:
    """The vector arm: in the order of the index, or every vector compared if there are few."""
    distance = _distance(place, query)
    if counted.chunks >= place.exact_below:
        return f"""
            select c.document_id, c.ord, c.lexemes, c.length, {distance} as distance,
                   {_centroid(place, query)} as centroid
            from chunk c join document d on d.id = c.document_id
            where c.index_id = {place.index} and {where} order by {distance} limit {limit}"""
    # An index cannot give the order of a sum.
    ids = f"""
        select c.document_id, c.ord from chunk c join document d on d.id = c.document_id
        where c.index_id = {place.index} and {where} order by {distance} + 0 limit {limit}"""
    return _by_key(place, query, _with_centroid(place, query, ids))


def _matching(place: Place, query: StoreQuery, terms: list[bm25.Term]) -> str:
    """The keyword arm: the best chunks of those that hold one of the rarest lexemes.

    A filter on documents lets few chunks through, so it comes first. With none, documents are only looked at for
    being hidden, which few are: chunks are scored first, and documents are read until the list is full.
    """
    where, values = conditions(query.filter)
    score = bm25.score(terms, lexemes="x.flat", k="x.k")
    chunks = f"select c.document_id, c.ord, {_flat(terms)} as flat, {bm25.saturation('c.length')} as k"
    match = f"c.index_id = {place.index} and c.lexemes @@ cast(%(any_of)s as tsquery)"
    if not values.keys() <= OF_CHUNKS:
        ids = f"""
            select x.document_id, x.ord
            from ({chunks} from {KEYWORD_ROWS} c join document d on d.id = c.document_id
                  where {match} and {where} offset 0) x
            order by {score} desc, x.document_id, x.ord limit {query.candidates}"""
        return _by_key(place, query, _with_centroid(place, query, ids))
    own = " and ".join([match, *(CONDITIONS[name] for name in values)])
    return _by_key(
        place,
        query,
        f"""
        select x.document_id, x.ord, d.centroid
        from (select x.document_id, x.ord, {score} as score
              from ({chunks} from {KEYWORD_ROWS} c where {own} offset 0) x
              order by score desc, x.document_id, x.ord offset 0) x
        cross join lateral (select {_centroid(place, query)} as centroid from document d
                            where d.id = x.document_id and not d.hidden and not d.deleted offset 0) d
        limit {query.candidates}""",
    )


def _with_centroid(place: Place, query: StoreQuery, ids: str) -> str:
    return f"""
        select w.document_id, w.ord, d.centroid from ({ids}) w
        cross join lateral (select {_centroid(place, query)} as centroid from document d
                            where d.id = w.document_id offset 0) d"""


def _by_key(place: Place, query: StoreQuery, wanted: str) -> str:
    """An arm of (document_id, ord, centroid) with what the scores read of each chunk."""
    return f"""
        select w.document_id, w.ord, x.lexemes, x.length, x.distance, w.centroid from ({wanted}) w
        cross join lateral (
            select c.lexemes, c.length, {_distance(place, query)} as distance from chunk c
            where c.index_id = {place.index} and c.document_id = w.document_id and c.ord = w.ord offset 0) x"""


def _flat(terms: list[bm25.Term]) -> str:
    """A chunk's lexemes as the scores read them.

    `|| ''` unpacks a compressed tsvector once; otherwise every term would do so again. The copy costs as much as
    some terms do.
    """
    return "c.lexemes || ''" if len(terms) > FEW_TERMS else "c.lexemes"


# The distance to a vector of zeros is not a number.
_SIMILARITY = "coalesce(nullif(1 - {}, 'NaN'), 0)"


def steps(candidates: int) -> int:
    """How many neighbours a step of the vector index looks for: fewer than asked for would come back as fewer rows."""
    return max(EF_SEARCH, min(MOST_EF_SEARCH, candidates))


def _statement(arms: list[str], query: StoreQuery, terms: list[bm25.Term], counted: bm25.Statistics) -> str:
    """Each chunk of the arms with all its scores: one statement, since each way to the server costs."""
    similarity = "null" if query.vector is None else _SIMILARITY.format("u.distance")
    found = " union all ".join(f"({arm})" for arm in arms)
    of_meaning = f"select {ACTIVE}, u.document_id, u.ord, {similarity}, u.centroid"
    if not terms:
        words = (
            "cast(0 as float8), cast(0 as float8), cast(0 as float8)"
            if query.keywords
            else "null, null, cast(0 as float8)"
        )
        return f"{of_meaning}, {words}, null from ({found}) u"
    title = bm25.score(terms, lexemes="u.flat", k=bm25.FLAT_SATURATION, where=bm25.TITLE)
    return f"""
        {of_meaning}, {bm25.score(terms, lexemes="u.flat", k="u.k")}, {title},
               cast({bm25.rare_share(terms, counted, lexemes="u.flat")} as float8),
               {bm25.covered_share(terms, lexemes="u.flat")}
        from (select c.document_id, c.ord, c.distance, c.centroid, {_flat(terms)} as flat,
                     {bm25.saturation("c.length")} as k
              from ({found}) c offset 0) u"""
