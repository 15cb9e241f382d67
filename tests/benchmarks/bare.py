"""What a search is measured against: single statements that a superuser sends."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from pipeline.search.statement import TERMS
from pipeline.search.words import searchable
from tests.benchmarks.library import DIMENSIONS, Library, Question

FEW_TERMS = 8
K = 10
"""How many are asked for."""


class Bare:
    """The same tables and indexes, asked in one statement by a superuser: no tenants, nothing hidden, no filter."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.connection = self._connected("force_custom_plan")
        self.planned_once = self._connected("auto")
        self.table = f"chunk_{library.index.id}"
        self._weighed: dict[str, tuple[list[tuple[str, float, bool]], float]] = {}
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

    def weigh(self, question: Question) -> tuple[list[tuple[str, float, bool]], float]:
        """The question's lexemes with their weights and whether they choose candidates, and the mean length of chunks.

        Looked up once.
        """
        if question.text not in self._weighed:
            tenant = str(self.library.tenant)
            ((chunks, mean),) = self.connection.execute(
                "select chunks, mean_length from index_stat where tenant_id = %s", [tenant]
            ).fetchall()
            values = {
                "words": searchable(question.text),
                "languages": ["english"],
                "tenant": tenant,
                "index": self.library.index.id,
                "chunks": chunks,
            }
            rows = self.connection.execute(
                f"select cast(t.lexeme as text), t.weight, t.chosen from ({TERMS}) t", values
            ).fetchall()
            self._weighed[question.text] = (rows, mean)
        return self._weighed[question.text]

    def hybrid_statement(self, question: Question) -> tuple[str, dict[str, Any]]:
        """One expression per lexeme, the fastest way that is known."""
        terms, mean = self.weigh(question)
        values = {
            "vector": HalfVector(question.vector),
            "mean": mean,
            "any_of": " | ".join(lexeme for lexeme, _, chosen in terms if chosen),
            **{f"q{n}": lexeme for n, (lexeme, _, _) in enumerate(terms)},
            **{f"w{n}": weight for n, (_, weight, _) in enumerate(terms)},
        }
        # Each term's part, w * 2.2 * tf / (tf + k), as w * 2.2 * (1 - k / (tf + k)), which is 0 for an absent one.
        parts = " + ".join(
            f"%(w{n})s::float8 * (1 - x.k / (round(1 / (1.64493406685 * (1.0000001"
            f" - ts_rank('{{1,1,1,1}}', x.flat, %(q{n})s::tsquery))) - 0.5) + x.k))"
            for n in range(len(terms))
        )
        k = "(1.2 * (0.25 + 0.75 * c.length / %(mean)s::float8))"
        # Unpacked once for many terms; for few the copy takes longer.
        flat = "c.lexemes || ''" if len(terms) > FEW_TERMS else "c.lexemes"
        return (
            f"""
            with near as (select ctid from {self.table} c order by {self.distance} limit 100),
            words as (
                select x.ctid from (select c.ctid, {flat} as flat, {k} as k from {self.table} c
                                    where c.lexemes @@ %(any_of)s::tsquery offset 0) x
                order by {parts} desc limit 100),
            both_arms as materialized (
                select x.document_id, x.ord, x.content, 1 - x.distance as similarity, {parts} as bm25
                from (select c.*, {flat} as flat, {k} as k, {self.distance} as distance
                      from {self.table} c
                      where c.ctid = any(array(select ctid from near union select ctid from words)) offset 0) x),
            bounds as (select min(similarity) a, max(similarity) b, min(bm25) c, max(bm25) d from both_arms)
            select document_id, ord, content,
                   0.7 * (similarity - a) / nullif(b - a, 0) + 0.3 * (bm25 - c) / nullif(d - c, 0) as score
            from both_arms, bounds order by score desc limit {K}""",
            values,
        )
