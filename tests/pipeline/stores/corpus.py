"""Chunks of one tenant put straight into PostgreSQL, without a queue, and short words for looking at them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from sqlalchemy import Connection, text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ledger import source_id, sources
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, cache, term_statistics
from pipeline.search.chunk_store import ChunkStore, SearchIndex, open_index
from pipeline.search.records import Filter, Mode, Quantization, Replacement, StoredDocument
from tests.ledger import Ledger, of_tenant

DIMENSIONS = 32
MODEL = f"hashing-{DIMENSIONS}"


class Counting(Database):
    """The same database; remembers the statements of the questions that are asked, and how many texts each read."""

    def __init__(self, of: Database) -> None:
        self.__dict__.update(vars(of))
        self.asked: list[str] = []
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.read: list[int] = []

    def fetch(
        self, tenant_id: UUID, statement: str, values: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        self.asked.append(statement)
        self.sent.append((statement, values))
        rows = super().fetch(tenant_id, statement, values, **options)
        if "c.content" in statement:
            self.read.append(len(rows))
        return rows


class Corpus(Ledger):
    """One tenant with documents whose chunks are given as they are."""

    def __init__(self, database: Database, tenant: UUID | None = None, *, exact_below: int = 0) -> None:
        self.database = database
        self.tenant = tenant or uuid4()
        super().__init__(of_tenant(database, self.tenant))
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
            ChunkStore(connection, self.index, self.tenant).replace(batch)

    def count(self) -> None:
        """Make the statistics anew."""
        with self.database.tenant(self.tenant) as connection:
            term_statistics.refresh(connection, self.tenant, self.index.id)

    def build(
        self, *, keyword: bool = True, vector: bool = True, quantization: Quantization = "halfvec"
    ) -> None:
        """Build the search indexes."""
        with self.database.control() as connection:
            term_statistics.build(
                connection, self.index, keyword=keyword, vector=vector, quantization=quantization
            )

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Rows of a statement run as the tenant."""
        with self.database.tenant(self.tenant) as connection:
            found = connection.execute(text(statement), values)
            return list(found) if found.returns_rows else []

    def ask(self, words: str = "", *, exact_below: int | None = None, **changes: Any) -> list[Candidate]:
        """Candidates; by words alone unless `vector` is given."""
        exact_below = self.exact_below if exact_below is None else exact_below
        return candidates(self.database, self.tenant, words, exact_below=exact_below, **changes)

    def plan(self, words: str = "", *, settings: str = "", **changes: Any) -> str:
        """The plan of the statement that searches, with what really happened."""
        counting = Counting(self.database)
        candidates(counting, self.tenant, words, exact_below=self.exact_below, **changes)
        statement, values = counting.sent[-1]
        given = ["hnsw.iterative_scan = relaxed_order", "hnsw.ef_search = 100", *settings.split(";")]
        with self.database.tenant(self.tenant) as connection:
            for setting in filter(None, given):
                connection.execute(text(f"set local {setting}"))
            rows = connection.exec_driver_sql(f"explain (analyze) {statement}", dict(values))
            return "\n".join(str(row[0]) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A chunk that an arm found, with its scores; None of an arm that was left out."""

    document: StoredDocument
    chunk: Chunk
    similarity: float | None
    bm25: float | None
    overlap: float | None
    title: float | None
    covered: float | None
    centroid: float | None

    @property
    def document_id(self) -> UUID:
        return self.document.id

    @property
    def place(self) -> tuple[UUID, int]:
        """Which chunk it is."""
        return self.document.id, self.chunk.ord

    @classmethod
    def of(cls, hit: Hit) -> Candidate:
        e = hit.explanation
        assert e is not None
        names = ("similarity", "bm25", "overlap", "title", "covered", "centroid")
        return cls(document=hit.document, chunk=hit.chunk, **{name: getattr(e, name) for name in names})


class Pointed:
    """An embedder that gives every question the same vector."""

    model, limits = MODEL, EmbedderLimits()

    def __init__(self, vector: Vectors) -> None:
        self.vector = vector
        self.dimensions = len(vector)

    def embed_query(self, _text: str) -> Vectors:
        return self.vector

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.tile(self.vector, (len(texts), 1))

    def count_tokens(self, text: str) -> int:
        return len(text)


def candidates(
    database: Database,
    tenant: UUID,
    words: str,
    *,
    vector: Vectors | None = None,
    keywords: bool = True,
    candidates: int = 100,
    filter: Filter = Filter(),  # noqa: A002, B008 (as a request names it; it is frozen)
    languages: Sequence[str] = ("english",),
    exact_below: int = 10_000,
) -> list[Candidate]:
    """All candidates of both arms, most similar first; without a vector by words alone."""
    cache.read_snapshot(database, tenant)  # whatever was seen a moment ago
    mode: Mode = "keyword" if vector is None else "hybrid" if keywords else "vector"
    retriever = Retriever(
        database,
        tenant,
        lambda _index: Pointed(np.zeros(1, np.float32) if vector is None else vector),
        RetrievalOptions(candidates=candidates, languages=tuple(languages), exact_below=exact_below),
    )
    found = retriever.search(
        SearchRequest(
            text=words if words.strip() else "?",  # a blank question is not asked at all
            mode=mode,
            filter=filter,
            trace=True,
            dedupe=False,
            min_similarity=-1.0,
        )
    )
    every = [Candidate.of(hit) for hit in (*found.hits, *found.beyond, *found.below)]
    return sorted(every, key=_best_first)


def _best_first(one: Candidate) -> tuple[float, float, UUID, int]:
    similarity = -2.0 if one.similarity is None else one.similarity
    return -similarity, -(one.bm25 or 0.0), one.document.id, one.chunk.ord


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
