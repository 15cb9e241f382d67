"""What a search is measured against: single statements that a superuser sends."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from pipeline.search import bm25
from pipeline.search.statements import FEW_TERMS
from tests.benchmarks.library import DIMENSIONS, Library, Question

K = 10
"""How many are asked for."""


class Bare:
    """The same tables and indexes, asked in one statement by a superuser: no tenants, nothing hidden, no filter."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.connection = self._connected("force_custom_plan")
        self.planned_once = self._connected("auto")
        self.table = f"chunk_{library.index.id}"
        self.distance = f"(c.embedding::halfvec({DIMENSIONS})) <=> %(vector)s"

    def _connected(self, plans: str) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = self.library.superuser()
        register_vector(connection)
        for setting in (
            "jit = off",
            "hnsw.ef_search = 100",
            "hnsw.iterative_scan = relaxed_order",
            f"plan_cache_mode = {plans}",
        ):
            connection.execute(f"set {setting}")
        return connection

    def chunks(self, question: Question) -> list[tuple[UUID, int]]:
        """The text of the ten nearest, and nothing of their documents."""
        rows = self.connection.execute(
            f"select document_id, ord, content from {self.table} c order by {self.distance} limit {K}",
            {"vector": HalfVector(question.vector)},
            binary=True,
        ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def answer(self, question: Question) -> list[tuple[UUID, int]]:
        """The ten nearest with all that a hit shows: where the text stands, and of what document it is.

        Planned once, as it is fastest.
        """
        rows = self.planned_once.execute(
            f"""
            select c.document_id, c.ord, c.content, c.context, d.title, d.source_type, d.kind, s.name, d.url, d.tags,
                   d.metadata, d.created_at, d.updated_at
            from (select * from {self.table} c order by {self.distance} limit {K}) c
            join document d on d.id = c.document_id join source s on s.id = d.source_id""",
            {"vector": HalfVector(question.vector)},
            binary=True,
            prepare=True,
        ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def hybrid(self, question: Question) -> list[tuple[UUID, int]]:
        """Both arms of 100, exact BM25 from the rarest words, fused 70/30, ten with their text.

        It is told the words' weights, which the product has to look up.
        """
        statement, values = self.hybrid_statement(question)
        rows = self.connection.execute(statement, values, binary=True).fetchall()
        return [(row[0], row[1]) for row in rows]

    def hybrid_statement(self, question: Question) -> tuple[str, dict[str, Any]]:
        terms, counted = self.library.weigh(question)
        values = {**bm25.values(terms, counted), "vector": HalfVector(question.vector)}
        named = bm25.Terms(len(terms))
        score = bm25.score(named, bm25.ranks(named, "x.flat"), k="x.k")
        k = bm25.saturation("c.length")
        # Unpacked once for many terms; for few the copy takes longer.
        flat = "c.lexemes || ''" if len(terms) > FEW_TERMS else "c.lexemes"
        return (
            f"""
            with near as (select ctid from {self.table} c order by {self.distance} limit 100),
            words as (
                select x.ctid from (select c.ctid, {flat} as flat, {k} as k from {self.table} c
                                    where c.lexemes @@ %(any_of)s::tsquery offset 0) x
                order by {score} desc limit 100),
            both_arms as materialized (
                select x.document_id, x.ord, x.content, 1 - x.distance as similarity, {score} as bm25
                from (select c.*, {flat} as flat, {k} as k, {self.distance} as distance
                      from {self.table} c
                      where c.ctid = any(array(select ctid from near union select ctid from words)) offset 0) x),
            bounds as (select min(similarity) a, max(similarity) b, min(bm25) c, max(bm25) d from both_arms)
            select document_id, ord, content,
                   0.7 * (similarity - a) / nullif(b - a, 0) + 0.3 * (bm25 - c) / nullif(d - c, 0) as score
            from both_arms, bounds order by score desc limit {K}""",
            values,
        )
