"""The two search arms in SQL: nearest vectors and exact BM25, filtered alike, each candidate scored in both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pgvector import HalfVector
from sqlalchemy import Connection, Row, text

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.stores import Candidate, Filter, StoredDocument, StoreQuery
from pipeline.stores import pgvector_bm25 as bm25

KEYWORD_ROWS = "searchable_chunk"
"""What the keyword arm reads. Row-level security keeps `@@` out of an index scan, since that operator is not
leakproof; a view with the same condition and an owner that may read all rows does not."""

MOST_EF_SEARCH = 1000
FEW_TERMS = 8


@dataclass(frozen=True, kw_only=True)
class LedgerFilter(Filter):
    """A filter that may also ask for what the ledger knows."""

    sources: tuple[str, ...] = ()
    """Names of configured sources; the document comes from one of them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Metadata as a person writes it: the value in words, be it a text, a number or one of a list."""
    only: tuple[UUID, ...] = ()
    """No other documents than these."""
    security_levels: tuple[str, ...] = ()
    """The document's is one of these: what the caller may see."""


@dataclass(frozen=True, kw_only=True)
class LedgerCandidate(Candidate):
    """A candidate with the scores that only this store can tell."""

    title: float | None
    """BM25 of its title and headings alone; None if the keyword arm was left out."""
    centroid: float | None
    """Cosine similarity of the whole document; None if not known or the vector arm was left out."""
    rare: float = 0.0
    """Share of the question's weight that lies in its rarest words and stands in this chunk, 0 to 1."""
    covered: float | None = None
    """Share of the question's weight in words of this chunk, 0 to 1; None for a question that is a long text."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to search."""

    index: int
    model: str
    dimensions: int
    tenant_id: UUID
    exact_below: int
    """Up to this many chunks of the tenant, every vector is compared."""

    @property
    def tail(self) -> str:
        """How the pipeline version of a document ends that was embedded by this model."""
        return f"|{self.model}:{self.dimensions}"


_CONDITIONS = {
    "source_types": "d.source_type = any(:source_types)",
    "kinds": "d.kind = any(:kinds)",
    "tags": "d.tags @> cast(:tags as text[])",
    "since": "coalesce(d.updated_at, d.created_at) >= :since",
    "until": "coalesce(d.updated_at, d.created_at) < :until",
    # Equal, not contained: {"path": "x"} is not {"path": "x", "more": 1}.
    "metadata": """not exists (select from jsonb_each(cast(:metadata as jsonb)) m
                   where d.metadata -> m.key is distinct from m.value)""",
    "project_id": "c.project_id = :project_id",
    "exclude": "not c.document_id = any(:exclude)",
    "texts": """not exists (select from unnest(cast(:keys as text[]), cast(:texts as text[])) m(key, value)
                where (d.metadata ->> m.key = m.value or jsonb_exists(d.metadata -> m.key, m.value)) is not true)""",
    "only": "c.document_id = any(:only)",
    "security_levels": "d.security_level = any(:security_levels)",
    "sources": "d.source_id in (select id from source where name = any(:sources))",
}

_OF_CHUNKS = {name for name, condition in _CONDITIONS.items() if "c." in condition}
"""Parts of a filter that need no look at the document."""


def conditions(wanted: Filter) -> tuple[str, dict[str, Any]]:
    """The filter as SQL over `c` (chunk) and `d` (document), and its parameters."""
    values: dict[str, Any] = {k: v for k, v in vars(wanted).items() if v not in ((), None, {})}
    parts = ["not d.hidden", "not d.deleted", *(_CONDITIONS[name] for name in values)]
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [str(v) if isinstance(v, str) else v for v in value]
    if "texts" in values:
        values["keys"], values["texts"] = (list(part) for part in zip(*values["texts"], strict=True))
    if "metadata" in values:
        values["metadata"] = json.dumps(dict(wanted.metadata), default=str)
    return " and ".join(parts), values


def find(connection: Connection, place: Place, query: StoreQuery) -> list[LedgerCandidate]:
    """The union of both arms, each chunk scored in every arm asked for, best similarity first."""
    counted = _prepare(connection, place, query)
    where, values = conditions(query.filter)
    values |= {"index": place.index, "limit": query.candidates}
    arms = []
    if query.vector is not None:
        values["vector"] = HalfVector(query.vector)
        few = query.top is not None and not query.keywords
        values["top"] = query.top
        arms.append(_nearest(place, where, exact=counted.chunks < place.exact_below, few=few))
    terms: list[bm25.Term] = []
    if query.keywords:
        terms = bm25.weigh(connection, place.index, place.tenant_id, query.text, counted)
    if terms:
        values |= {**bm25.values(terms, counted), "any_of": bm25.selector(terms, counted)}
        arms.append(_matching(terms, query.filter))
    return _scored(connection, place, arms, query, terms, counted, values) if arms else []


def _prepare(connection: Connection, place: Place, query: StoreQuery) -> bm25.Statistics:
    """Settings of this transaction and the counts of the last refresh, in one round trip."""
    row = connection.execute(
        text("""
            select set_config('hnsw.iterative_scan', 'relaxed_order', true),
                   set_config('hnsw.ef_search', :ef, true), s.chunks, s.mean_length
            from (select) one left join index_stat s on s.tenant_id = :tenant and s.index_id = :index"""),
        {
            # Fewer than the candidates asked for would come back as fewer rows.
            "ef": str(max(100, min(MOST_EF_SEARCH, query.candidates))),
            "tenant": place.tenant_id,
            "index": place.index,
        },
    ).one()
    return bm25.Statistics(chunks=row.chunks or 0, mean_length=row.mean_length or 0.0)


def _distance(dimensions: int) -> str:
    """The very expression that the vector index is built on."""
    return rf"((c.embedding\:\:halfvec({dimensions})) <=> :vector)"


def _nearest(place: Place, where: str, *, exact: bool, few: bool) -> str:
    """The vector arm; `few` leaves the best chunk of the best `top` documents, so that no text is read in vain."""
    # An index cannot give the order of a sum, so the exact path is taken.
    order = _distance(place.dimensions) + (" + 0" if exact else "")
    nearest = f"""
        select c.document_id, c.ord, {order} as distance from chunk c join document d on d.id = c.document_id
        where c.index_id = :index and {where} order by {order} limit :limit"""
    if not few:
        return f"select n.document_id, n.ord from ({nearest}) n"
    return f"""
        select b.document_id, b.ord
        from (select distinct on (n.document_id) n.document_id, n.ord, n.distance from ({nearest}) n
              order by n.document_id, n.distance, n.ord) b
        order by b.distance, b.document_id limit :top"""


def _matching(terms: list[bm25.Term], condition: Filter) -> str:
    """The keyword arm: the best chunks of those that hold one of the rarest lexemes.

    A filter on documents lets few chunks through, so it comes first. With none, documents are only looked at for
    being hidden, which few are: chunks are scored first, and documents are read until the list is full.
    """
    where, values = conditions(condition)
    score = bm25.score(terms, lexemes="x.flat", k="x.k")
    chunks = f"select c.document_id, c.ord, {_flat(terms)} as flat, {bm25.saturation('c.length')} as k"
    match = "c.index_id = :index and c.lexemes @@ cast(:any_of as tsquery)"
    if not values.keys() <= _OF_CHUNKS:
        return f"""
            select x.document_id, x.ord
            from ({chunks} from {KEYWORD_ROWS} c join document d on d.id = c.document_id
                  where {match} and {where} offset 0) x
            order by {score} desc, x.document_id, x.ord limit :limit"""
    own = " and ".join([match, *(_CONDITIONS[name] for name in values)])
    return f"""
        select x.document_id, x.ord
        from (select x.document_id, x.ord, {score} as score
              from ({chunks} from {KEYWORD_ROWS} c where {own} offset 0) x
              order by score desc, x.document_id, x.ord offset 0) x
        cross join lateral (select from document d
                            where d.id = x.document_id and not d.hidden and not d.deleted offset 0) d
        limit :limit"""


def _flat(terms: list[bm25.Term]) -> str:
    """A chunk's lexemes as the scores read them.

    `|| ''` unpacks a compressed tsvector once; otherwise every term would do so again. The copy costs as much as
    some terms do.
    """
    return "c.lexemes || ''" if len(terms) > FEW_TERMS else "c.lexemes"


# Laterals with `offset 0` keep the order: the arms' ids, then chunks by key, then documents by key. Left to itself and
# without statistics, right after a first load, the planner takes a thousand times as long.
_SCORED = """
    select x.document_id, x.ord, x.version, x.content, x.context, {similarity} as similarity,
           {centroid} as centroid, {bm25} as bm25, {title} as title_bm25, {rare} as rare,
           {covered} as covered, d.title,
           d.source_type, d.kind, d.source, d.url, d.tags, cast(d.metadata as text) as metadata, d.project_id,
           d.created_at, d.updated_at
    from ({wanted}) as w(id, ord)
    cross join lateral (
        select c.*, {flat} as flat, {k} as k from chunk c
        where c.index_id = :index and c.document_id = w.id and c.ord = w.ord offset 0) x
    cross join lateral (
        select d.*, s.name as source from document d join source s on s.id = d.source_id
        where d.id = w.id offset 0) d
    order by similarity desc nulls last, bm25 desc, x.document_id, x.ord"""


def _scored(
    connection: Connection,
    place: Place,
    arms: list[str],
    query: StoreQuery,
    terms: list[bm25.Term],
    counted: bm25.Statistics,
    values: dict[str, Any],
) -> list[LedgerCandidate]:
    """Each chunk that an arm finds, with its document and all scores: one statement, since each way there costs."""
    parts = {"similarity": "null", "centroid": "null", "bm25": "0", "title": "0", "k": "0", "rare": "0"}
    parts |= {"wanted": " union ".join(f"({arm})" for arm in arms), "flat": _flat(terms)}
    parts["covered"] = bm25.covered_share(terms, lexemes="x.flat")
    if query.vector is not None:
        distance = _distance(place.dimensions)
        # The distance to a vector of zeros is not a number.
        parts["similarity"] = f"coalesce(nullif(1 - {distance.replace('c.', 'x.')}, 'NaN'), 0)"
        # The vectors of two models must not meet: the centroid is that of the last model that embedded it.
        parts["centroid"] = """case when right(d.indexed_pipeline, length(:tail)) = :tail
                                    then nullif(1 - (d.centroid <=> :vector), 'NaN') end"""
    if terms:
        parts["bm25"] = bm25.score(terms, lexemes="x.flat", k="x.k")
        parts["title"] = bm25.score(terms, lexemes="x.flat", k=bm25.FLAT_SATURATION, where=bm25.TITLE)
        parts["k"] = bm25.saturation("c.length")
        parts["rare"] = bm25.rare_share(terms, counted, lexemes="x.flat")
    rows = connection.execute(text(_SCORED.format(**parts)), {**values, "tail": place.tail})
    return _candidates(rows, query)


def read(
    connection: Connection, index: int, wanted: list[tuple[UUID, int]], condition: Filter
) -> dict[tuple[UUID, int], LedgerCandidate]:
    """These chunks with their documents, without scores; what is gone or kept out by the filter is left out."""
    where, values = conditions(condition)
    rows = connection.execute(
        text(f"""
            select c.document_id, c.ord, c.version, c.content, c.context, null as similarity, null as centroid,
                   0 as bm25, 0 as title_bm25, 0 as rare, null as covered, d.title, d.source_type, d.kind,
                   s.name as source, d.url, d.tags, cast(d.metadata as text) as metadata, d.project_id, d.created_at,
                   d.updated_at
            from unnest(cast(:ids as uuid[]), cast(:ords as integer[])) as w(id, ord)
            join chunk c on c.index_id = :index and c.document_id = w.id and c.ord = w.ord
            join document d on d.id = c.document_id join source s on s.id = d.source_id
            where {where}"""),
        {**values, "index": index, "ids": [w[0] for w in wanted], "ords": [w[1] for w in wanted]},
    )
    found = _candidates(rows, StoreQuery(text="", keywords=False))
    return {(candidate.document.id, candidate.chunk.ord): candidate for candidate in found}


def _candidates(rows: Iterable[Row[Any]], query: StoreQuery) -> list[LedgerCandidate]:
    """Rows as candidates; a document that several chunks belong to is made once."""
    documents: dict[tuple[UUID, int], StoredDocument] = {}
    found = []
    for row in rows:
        key = (row.document_id, row.version)
        if key not in documents:
            documents[key] = _document(row)
        found.append(
            LedgerCandidate(
                document=documents[key],
                chunk=Chunk(ord=row.ord, content=row.content, context=row.context),
                similarity=_number(row.similarity),
                bm25=float(row.bm25) if query.keywords else None,
                title=float(row.title_bm25) if query.keywords else None,
                centroid=_number(row.centroid),
                rare=float(row.rare),
                covered=_number(row.covered),
            )
        )
    return found


def _document(row: Row[Any]) -> StoredDocument:
    return StoredDocument(
        id=row.document_id,
        version=row.version,
        title=row.title,
        source_type=SourceType(row.source_type),
        kind=Kind(row.kind),
        source=row.source,
        url=row.url,
        tags=tuple(row.tags),
        metadata=json.loads(row.metadata),
        project_id=row.project_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
