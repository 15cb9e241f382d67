"""Chunks of one tenant put straight into PostgreSQL, without a queue, and short words for looking at them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from sqlalchemy import Connection, event, text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ledger import source_id, sources
from pipeline.search import term_statistics
from pipeline.search.bm25 import Statistics
from pipeline.search.chunk_store import PgVectorStore, SearchIndex, open_index, place_of
from pipeline.search.chunks import Replacement, StoredDocument, StoreQuery
from pipeline.search.texts import LedgerCandidate, Nearest, nearest_texts

DIMENSIONS = 32
MODEL = f"hashing-{DIMENSIONS}"


class Counting(Database):
    """The same database; remembers the statements of the questions that are asked, and how many texts each read."""

    def __init__(self, of: Database) -> None:
        self.__dict__.update(vars(of))
        self.asked: list[str] = []
        self.read: list[int] = []

    def ask(
        self, tenant_id: UUID, statement: str, values: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        self.asked.append(statement)
        rows = super().ask(tenant_id, statement, values, **options)
        if "c.content" in statement:
            self.read.append(len(rows))
        return rows


class Depot:
    """One tenant with documents whose chunks are given as they are."""

    def __init__(self, database: Database, tenant: UUID | None = None, *, exact_below: int = 0) -> None:
        self.database = database
        self.tenant = tenant or uuid4()
        self.project = uuid4()
        self.exact_below = exact_below
        self.embedder = HashingEmbedder(DIMENSIONS)
        with database.tenant(self.tenant) as connection:
            sources.ensure_tenant(connection, self.tenant, str(self.tenant), self.project, str(self.project))
            self.index = self._open(connection)

    @staticmethod
    def _open(connection: Connection) -> SearchIndex:
        return open_index(
            connection,
            provider="hashing",
            model=MODEL,
            dimensions=DIMENSIONS,
            chunker="structure",
            pipeline="p",
        )

    def document(self, title: str = "Title", **changes: Any) -> StoredDocument:
        """A document that is not stored yet."""
        plain: dict[str, Any] = {
            "id": uuid4(),
            "version": 1,
            "title": title,
            "source_type": SourceType.TEXT,
            "kind": Kind.REFERENCE,
            "source": "notes",
            "project_id": self.project,
        }
        return StoredDocument(**{**plain, **changes})

    def put(self, *contents: str, context: str = "", vectors: Vectors | None = None, **changes: Any) -> UUID:
        """Store one document with these chunks; returns its id."""
        of = self.document(**changes)
        self.put_all(
            [(of, [Chunk(ord=n, content=c, context=context) for n, c in enumerate(contents)])], vectors
        )
        return of.id

    def put_all(
        self, stock: Sequence[tuple[StoredDocument, Sequence[Chunk]]], vectors: Vectors | None = None
    ) -> None:
        """Store many documents in one transaction; `vectors` are those of all chunks in order."""
        if vectors is None:
            vectors = self.embedder.embed_documents([c.embedding_text for _, chunks in stock for c in chunks])
        ends = np.cumsum([len(chunks) for _, chunks in stock])
        batch = [
            Replacement(document=of, chunks=chunks, vectors=vectors[end - len(chunks) : end])
            for (of, chunks), end in zip(stock, ends, strict=True)
        ]
        with self.database.tenant(self.tenant) as connection:
            for of, _ in stock:
                enter(connection, self.tenant, of)
            PgVectorStore(connection, self.index, self.tenant).replace(batch)

    def count(self) -> None:
        """Make the statistics anew."""
        with self.database.tenant(self.tenant) as connection:
            term_statistics.refresh(connection, self.tenant, self.index.id)

    def build(self, *, keyword: bool = True, vector: bool = True) -> None:
        """Build the search indexes."""
        with self.database.control() as connection:
            term_statistics.build(connection, self.index, keyword=keyword, vector=vector)

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Rows of a statement run as the tenant."""
        with self.database.tenant(self.tenant) as connection:
            found = connection.execute(text(statement), values)
            return list(found) if found.returns_rows else []

    def ask(self, words: str = "", *, settings: str = "", **changes: Any) -> list[LedgerCandidate]:
        """Candidates; by words alone unless `vector` is given."""
        with self.database.tenant(self.tenant) as connection:
            if settings:
                connection.execute(text(settings))
            store = PgVectorStore(connection, self.index, self.tenant, exact_below=self.exact_below)
            return store.scored(StoreQuery(text=words, **changes))

    def nearest(self, vector: Vectors, top: int, *, first: int, dedupe: bool = True) -> Nearest:
        """The first by meaning alone, as the retriever asks for them."""
        place = place_of(self.index, self.tenant, self.exact_below)
        query = StoreQuery(text="", vector=vector, keywords=False, top=top)
        ask = partial(self.database.ask, self.tenant)
        ((chunks, mean_length),) = ask("select chunks, mean_length from index_stat", {})
        counted = Statistics(chunks=chunks, mean_length=mean_length)
        return nearest_texts(ask, place, query, counted, first, dedupe=dedupe)

    @contextmanager
    def statements(self) -> Iterator[list[tuple[str, Any]]]:
        """The statements of the application, with their parameters, as long as the block runs."""
        seen: list[tuple[str, Any]] = []

        def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            seen.append((statement, parameters))

        event.listen(self.database.app, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(self.database.app, "before_cursor_execute", note)

    def plan(self, words: str = "", *, settings: str = "", **changes: Any) -> str:
        """The plans, with what really happened, of the statements that read chunks for a question."""
        with self.statements() as seen:
            self.ask(words, **changes)
        plans = []
        with self.database.tenant(self.tenant) as connection:
            for setting in (
                "hnsw.iterative_scan = relaxed_order",
                "hnsw.ef_search = 100",
                *settings.split(";"),
            ):
                if setting:
                    connection.execute(text(f"set local {setting}"))
            for statement, parameters in seen:
                if " limit " in statement and "lexeme_stat" not in statement:
                    rows = connection.exec_driver_sql(f"explain (analyze) {statement}", parameters)
                    plans += [str(row[0]) for row in rows]
        return "\n".join(plans)


def enter(connection: Connection, tenant: UUID, of: StoredDocument) -> None:
    """Put a document and its source into the ledger, as if it had been indexed: the store joins them."""
    values = {
        **vars(of),
        "tags": list(of.tags),
        "tenant": tenant,
        "source": source_id(tenant, of.source),
        "name": of.source,
        "metadata": json.dumps(dict(of.metadata)),
    }
    connection.execute(
        text("""
            insert into source (id, tenant_id, project_id, name, kind)
            values (:source, :tenant, :project_id, :name, 'text') on conflict do nothing"""),
        values,
    )
    connection.execute(
        text("""
            insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                  url, tags, metadata, desired_version, desired_hash, pipeline_version,
                                  created_at, updated_at, indexed_version, state, stage)
            values (:id, :tenant, :source, cast(:id as text), :project_id, :source_type, :kind, :title, :url,
                    :tags, cast(:metadata as jsonb), :version, '', '', :created_at, :updated_at, :version,
                    'done', 'done')
            on conflict (id) do update set title = excluded.title, project_id = excluded.project_id,
                url = excluded.url, tags = excluded.tags, metadata = excluded.metadata,
                desired_version = excluded.desired_version, indexed_version = excluded.indexed_version
            where document.desired_version <= excluded.desired_version"""),
        values,
    )
