"""The two search arms: nearest vectors and exact BM25, filtered alike, each candidate scored in both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from pgvector import HalfVector

from pipeline.database.round_trip import EF_SEARCH
from pipeline.search import bm25, statements
from pipeline.search.chunks import StoreQuery
from pipeline.search.filters import LedgerFilter, names_of, values_of

__all__ = ["Ask", "ChunkScores", "LedgerFilter", "Place", "scores", "shape_of", "steps"]


class Ask(Protocol):
    """Runs a statement for the tenant and gives its rows."""

    def __call__(
        self, statement: str, values: Mapping[str, Any], *, one_plan: bool = False
    ) -> Sequence[tuple[Any, ...]]:
        """`one_plan` True: no value decides which plan is good, so one may serve all."""
        ...


MOST_EF_SEARCH = 1000


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
    overlap: float | None = None
    """How much of what is rare in the question the chunk says, 0 to 1; None if the keyword arm was left out."""
    title: float | None = None
    """The same of its title and headings alone."""
    covered: float | None = None
    """1 if it holds all words of the question, falling fast to 0 with those it lacks."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to search."""

    index: int
    dimensions: int
    tenant_id: UUID
    exact_below: int
    """Up to this many chunks of the tenant, every vector is compared."""
    if_active: bool = False
    """Find nothing if this is not the index that searches are to ask by now."""
    passing: statements.Passing = ""
    """How many chunks the filter lets through."""


def scores(ask: Ask, place: Place, query: StoreQuery, counted: bm25.Statistics) -> list[ChunkScores]:
    """The union of both arms, each chunk once and scored in every arm asked for, in no order.

    `counted` is as of the last refresh.
    """
    terms = (
        bm25.weigh(ask, place.index, place.tenant_id, query.text, counted, query.languages)
        if query.keywords
        else []
    )
    if query.vector is None and not terms:
        return []
    shape = shape_of(place, query, counted, bm25.Terms(len(terms)))
    values = values_of(query.filter, shape.filter)
    if query.vector is not None:
        values |= {"vector": HalfVector(query.vector)}
    if terms:
        values |= bm25.values(terms, counted)
    rows = ask(statements.both_arms(shape), values, one_plan=shape.one_plan)
    return list(starmap(ChunkScores, rows))


def shape_of(
    place: Place,
    query: StoreQuery,
    counted: bm25.Statistics,
    terms: bm25.Terms = bm25.Terms(),  # noqa: B008 (a tuple)
    language: str = "",
) -> statements.Shape:
    """What the statement of this search depends on."""
    exact = counted.chunks < place.exact_below
    return statements.Shape(
        number=place.index,
        if_active=place.if_active,
        dimensions=place.dimensions,
        vector="" if query.vector is None else "all" if exact else "index",
        keywords=query.keywords,
        terms=terms,
        language=language,
        filter=names_of(query.filter),
        candidates=query.candidates,
        passing=place.passing,
    )


MOST_STEPS = 10_000
"""Half of those after which the vector index gives up, however few it has found (`hnsw.max_scan_tuples`)."""
FEW_CHUNKS = 1000
"""So many rows are read as soon as looked up in the keyword index and scored."""


def passing(found: int, wanted: int, chunks: int) -> statements.Passing:
    """How to search if a filter lets `found` of `chunks` through and `wanted` nearest are looked for.

    Comparing a chunk takes 2.5 us here, and a step of the vector index 20 us, of which it takes `wanted * chunks /
    found`: both take the same at `found = sqrt(8 * wanted * chunks)`.
    """
    if found <= FEW_CHUNKS:
        return "few"
    return "some" if found <= even(wanted, chunks) else "many"


def even(wanted: int, chunks: int) -> int:
    """Of so many chunks that pass, comparing all takes as long as following the vector index, or it finds too few."""
    return max(math.isqrt(8 * wanted * chunks), wanted * chunks // MOST_STEPS)


def steps(candidates: int) -> int:
    """How many neighbours a step of the vector index looks for: fewer than asked for would come back as fewer rows."""
    return max(EF_SEARCH, min(MOST_EF_SEARCH, candidates))
