"""The two search arms in SQL: nearest vectors and exact BM25, filtered alike, each candidate scored in both.

BM25 without an extension: `ts_rank('{1,1,1,1}', v, t)` of one lexeme t is (1 + 1/4 + ... + 1/tf^2) / 1.64493406685,
so the term frequency comes back by inverting that sum; k1 = 1.2, b = 0.75 (Robertson and Zaragoza 2009).
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from pgvector import HalfVector
from sqlalchemy import Connection, RowMapping, text

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.lexemes import searchable
from pipeline.stores import Candidate, Filter, StoredDocument, StoreQuery

MOST_LEXEMES = 60
"""Rarest lexemes of a query that count; more cost time and change no ranking."""
ROWS_CAP = 3000
"""The rarest lexemes choose candidates until about this many rows match: 10 ms at 94,000 chunks."""

_CONDITIONS = {
    "source_types": "d.source_type = any(:source_types)",
    "kinds": "d.kind = any(:kinds)",
    "tags": "d.tags @> cast(:tags as text[])",
    "since": "coalesce(d.updated_at, d.created_at) >= :since",
    "until": "coalesce(d.updated_at, d.created_at) < :until",
    "metadata": "d.metadata @> cast(:metadata as jsonb)",
    "project_id": "c.project_id = :project_id",
    "exclude": "not c.document_id = any(:exclude)",
}


def conditions(wanted: Filter) -> tuple[str, dict[str, Any]]:
    """The filter as SQL over `c` (chunk) and `d` (document), and its parameters."""
    values: dict[str, Any] = {k: v for k, v in vars(wanted).items() if v not in ((), None, {})}
    parts = ["not d.hidden", "not d.deleted", *(_CONDITIONS[name] for name in values)]
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = list(value)
    if "metadata" in values:
        values["metadata"] = json.dumps(dict(wanted.metadata), default=str)
    return " and ".join(parts), values


def find(
    connection: Connection, index: int, dimensions: int, tenant_id: UUID, query: StoreQuery
) -> list[Candidate]:
    """The union of both arms, each chunk scored in every arm asked for, best similarity first."""
    where, values = conditions(query.filter)
    values |= {"index": index, "limit": query.candidates}
    wanted: dict[tuple[UUID, int], None] = {}
    if query.vector is not None:
        values["vector"] = HalfVector(query.vector)
        wanted |= dict.fromkeys(_nearest(connection, dimensions, where, values))
    lexemes = _weigh(connection, index, tenant_id, query.text) if query.keywords else []
    if lexemes:
        values |= _lexeme_values(lexemes)
        wanted |= dict.fromkeys(_keyword_arm(connection, where, values))
    return _score(connection, dimensions, list(wanted), values, query) if wanted else []


def _nearest(
    connection: Connection, dimensions: int, where: str, values: dict[str, Any]
) -> list[tuple[UUID, int]]:
    connection.execute(text("set local hnsw.iterative_scan = relaxed_order"))
    connection.execute(text(f"set local hnsw.ef_search = {max(100, min(1000, int(values['limit'])))}"))
    rows = connection.execute(
        text(
            f"""
            select c.document_id, c.ord from chunk c join document d on d.id = c.document_id
            where c.index_id = :index and {where}
            order by (c.embedding::halfvec({dimensions})) <=> :vector limit :limit""".replace("::", "\\:\\:")
        ),
        values,
    )
    return [(row.document_id, row.ord) for row in rows]


def _weigh(
    connection: Connection, index: int, tenant_id: UUID, query: str
) -> list[tuple[str, int, int, float]]:
    """(lexeme, its count in the query, chunks that hold it, idf), rarest first.

    Statistics are of the tenant's last refresh; a lexeme they do not name is in one chunk at most.
    """
    rows = connection.execute(
        text("""
            select q.lexeme, coalesce(array_length(q.positions, 1), 1) as n, coalesce(s.chunks, 1) as df,
                   ln(1 + (t.total - coalesce(s.chunks, 1) + 0.5) / (coalesce(s.chunks, 1) + 0.5)) as idf
            from unnest(to_tsvector('english', :words)) as q
            cross join (select greatest(coalesce(max(chunks), 1), 1) as total from index_stat
                        where index_id = :index and tenant_id = :tenant) t
            left join lexeme_stat s on s.tenant_id = :tenant and s.index_id = :index and s.lexeme = q.lexeme
            order by df, q.lexeme limit :most"""),
        {"words": searchable(query[:20_000]), "index": index, "tenant": tenant_id, "most": MOST_LEXEMES},
    )
    return [(row.lexeme, row.n, row.df, float(max(row.idf, 1e-6))) for row in rows]


def _lexeme_values(lexemes: list[tuple[str, int, int, float]]) -> dict[str, Any]:
    """Parameters for scoring: all lexemes; for finding: the rarest until the cap."""
    chosen: list[str] = []
    rows = 0
    for lexeme, _, df, _ in lexemes:
        if chosen and rows + df > ROWS_CAP:
            break
        chosen.append(lexeme)
        rows += df
    return {
        "lexemes": [lexeme for lexeme, *_ in lexemes],
        "weights": [n * idf for _, n, _, idf in lexemes],
        "any_of": " | ".join(_quoted(lexeme) for lexeme in chosen),
    }


def _quoted(lexeme: str) -> str:
    """A lexeme as a literal of tsquery."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


_BM25 = r"""
    (select coalesce(sum(l.weight * f.tf * 2.2 / (f.tf + 1.2 * (0.25 + 0.75 * c.length / m.mean))), 0)
     from (select t.lexeme, t.weight, ts_rank('{1,1,1,1}', c.lexemes, t.query) as r from terms t
           where c.lexemes @@ t.query) l,
     lateral (select greatest(1 / (1.64493406685 * (1.0000001 - least(l.r, 1))) - 0.5, 1) as tf) f)"""

_TERMS = r"""
    with terms as materialized (
        select lexeme, weight,
               cast('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''' as tsquery) as query
        from unnest(cast(:lexemes as text[]), cast(:weights as float8[])) as u(lexeme, weight)
    ), mean as materialized (
        select greatest(coalesce(max(mean_length), 100), 1) as mean from index_stat where index_id = :index
    )"""


def _keyword_arm(connection: Connection, where: str, values: dict[str, Any]) -> list[tuple[UUID, int]]:
    rows = connection.execute(
        text(f"""
            {_TERMS}
            select c.document_id, c.ord, {_BM25} as score
            from chunk c join document d on d.id = c.document_id cross join mean m
            where c.index_id = :index and c.lexemes @@ cast(:any_of as tsquery) and {where}
            order by score desc, c.document_id, c.ord limit :limit"""),
        values,
    )
    return [(row.document_id, row.ord) for row in rows]


def _score(
    connection: Connection,
    dimensions: int,
    wanted: list[tuple[UUID, int]],
    values: dict[str, Any],
    query: StoreQuery,
) -> list[Candidate]:
    """Each wanted chunk with its document and both scores."""
    similarity = f"1 - ((c.embedding::halfvec({dimensions})) <=> :vector)".replace("::", "\\:\\:")
    terms = values.get("lexemes")
    rows = connection.execute(
        text(f"""
            {_TERMS if terms else "with mean as (select 1.0 as mean)"}
            select c.document_id, c.ord, c.version, c.content, c.context,
                   {similarity if query.vector is not None else "null"} as similarity,
                   {_BM25 if terms else "0"} as bm25,
                   d.title, d.source_type, d.kind, s.name as source, d.url, d.tags, d.metadata, d.project_id,
                   d.created_at, d.updated_at
            from unnest(cast(:ids as uuid[]), cast(:ords as integer[])) as w(id, ord)
            join chunk c on c.index_id = :index and c.document_id = w.id and c.ord = w.ord
            join document d on d.id = c.document_id join source s on s.id = d.source_id cross join mean m
            order by similarity desc nulls last, bm25 desc, c.document_id, c.ord"""),
        {**values, "ids": [w[0] for w in wanted], "ords": [w[1] for w in wanted]},
    )
    return [_candidate(row, query) for row in rows.mappings()]


def _candidate(row: RowMapping, query: StoreQuery) -> Candidate:
    return Candidate(
        document=StoredDocument(
            id=row["document_id"],
            version=row["version"],
            title=row["title"],
            source_type=SourceType(row["source_type"]),
            kind=Kind(row["kind"]),
            source=row["source"],
            url=row["url"],
            tags=tuple(row["tags"]),
            metadata=row["metadata"],
            project_id=row["project_id"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
        ),
        chunk=Chunk(ord=row["ord"], content=row["content"], context=row["context"]),
        similarity=None if row["similarity"] is None else float(row["similarity"]),
        bm25=float(row["bm25"]) if query.keywords else None,
    )
