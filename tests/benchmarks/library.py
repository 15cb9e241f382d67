"""A large stock of chunks made up from a seed, with topics, in an embedded server."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np
import psycopg
from pgvector import HalfVector
from sqlalchemy import text

from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.ledger import document_id, project_id, search_indexes, source_id, sources, tenant_id
from pipeline.search import term_statistics
from pipeline.search.chunk_store import ChunkStore, SearchIndex, open_index
from pipeline.search.records import Filter, Replacement, StoredDocument
from tests.benchmarks.corpus import SYLLABLES
from workers.local import embedded

DIMENSIONS = 384
LATENT = 48
"""Directions in which texts really differ; what a model adds beyond them is noise."""
WORDS = 60_000
TOPICS = 400
CHUNKS_PER_DOCUMENT = 4
CHUNK_WORDS = 130
BATCH = 250
"""Documents a transaction."""
BUILD_MEMORY = 1_600
"""Bytes for each chunk while its vector index is built: docs/scale.md has 1,483."""


@dataclass(frozen=True)
class Question:
    """A text and the vector a model would make of it."""

    text: str
    vector: Vectors


def unit(rows: Vectors) -> Vectors:
    """Rows of length 1."""
    made: Vectors = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return made


class Stock:
    """Documents of four chunks. A document has a topic; its words and its vectors are drawn around that topic.

    Words follow Zipf's law over 60,000, half of a text comes from 300 words of its topic. Vectors lie around the
    document's own point, which lies around its topic's, in 48 of 384 directions: near neighbours are near for a
    reason, as those of a model are. Random vectors would all be equally far apart, and no index finds anything then.
    """

    def __init__(self, chunks: int, questions: int, seed: int = 5, *, words: int = CHUNK_WORDS) -> None:
        self.chunk_words = words
        self.chance = np.random.default_rng(seed)
        self.documents = max(1, chunks // CHUNKS_PER_DOCUMENT)
        self.chunks = self.documents * CHUNKS_PER_DOCUMENT
        self.words = self._words()
        weights = 1.0 / (np.arange(WORDS) + 3)
        self.cumulative = np.cumsum(weights / weights.sum())
        self.topic_words = self.chance.integers(100, WORDS, size=(TOPICS, 300))
        self.topic_of = self.chance.integers(0, TOPICS, size=self.documents)
        self._place()
        self.questions = [self._question() for _ in range(questions)]

    def _words(self) -> list[str]:
        made: dict[str, None] = {}
        syllables = np.array(SYLLABLES)
        while len(made) < WORDS:
            made["".join(self.chance.choice(syllables, size=self.chance.integers(2, 5)))] = None
        return list(made)

    def _place(self) -> None:
        spread = 1.0 / (1 + np.arange(LATENT)) ** 0.3
        self.base = self.chance.normal(size=(LATENT, DIMENSIONS)).astype(np.float32)
        topics = self.chance.normal(size=(TOPICS, LATENT)) * spread
        own = topics[self.topic_of] + 0.6 * self.chance.normal(size=(self.documents, LATENT)) * spread
        self.latent = np.repeat(own, CHUNKS_PER_DOCUMENT, axis=0)
        self.latent += 0.4 * self.chance.normal(size=self.latent.shape) * spread
        self.vectors = self._embed(self.latent)

    def _embed(self, latent: Any) -> Vectors:
        noise = self.chance.normal(size=(len(latent), DIMENSIONS)).astype(np.float32)
        made = unit(latent.astype(np.float32) @ self.base + 1.5 * noise)
        # As the store keeps them, so that an exact search here is exact there.
        return made.astype(np.float16).astype(np.float32)

    def pick(self, topic: int, count: int) -> str:
        """So many words of a topic."""
        plain = np.searchsorted(self.cumulative, self.chance.random(count)).clip(max=WORDS - 1)
        skewed = (300 * self.chance.random(count) ** 2).astype(int)
        chosen = np.where(self.chance.random(count) < 0.5, plain, self.topic_words[topic][skewed])
        return " ".join(self.words[n] for n in chosen)

    def _question(self) -> Question:
        """Near some chunk; three of four are short, one is a whole work item."""
        at = int(self.chance.integers(self.chunks))
        # Of length 1, as a model gives it; a half of it is a little longer or shorter.
        vector = unit(self._embed(self.latent[at : at + 1] + 0.3 * self.chance.normal(size=(1, LATENT))))[0]
        length = int(self.chance.integers(4, 10)) if self.chance.random() < 0.75 else self.chunk_words
        return Question(self.pick(int(self.topic_of[at // CHUNKS_PER_DOCUMENT]), length), vector)


class Library:
    """The stock in a database, loaded by the product's own store."""

    def __init__(self, stock: Stock, database: Database, servers: embedded.Servers, folder: Path) -> None:
        self.stock = stock
        self.database = database
        self.servers = servers
        self.folder = folder
        self.tenant = tenant_id("bench")
        self.project = project_id(self.tenant, "bench")
        self.source = source_id(self.tenant, "stock")
        self.ids = [document_id(self.source, str(n)) for n in range(stock.documents)]
        self.documents = [self._document(n) for n in range(stock.documents)]
        self.index = self._open()
        if not self.index.indexed_rows:
            self._load()

    def _document(self, n: int) -> StoredDocument:
        chance = self.stock.chance
        return StoredDocument(
            id=self.ids[n],
            version=1,
            title=self.stock.pick(int(self.stock.topic_of[n]), 5),
            source_type=SourceType.CONFLUENCE if chance.random() < 0.5 else SourceType.TEXT,
            kind=Kind.DECISION if chance.random() < 0.1 else Kind.REFERENCE,
            tags=("rare", "team-a") if chance.random() < 0.01 else ("team-a",),
            project_id=self.project,
        )

    def _open(self) -> SearchIndex:
        with self.database.tenant(self.tenant) as connection:
            sources.ensure_tenant(connection, self.tenant, "bench", self.project, "bench")
            connection.execute(
                text("""
                    insert into source (id, tenant_id, project_id, name, kind)
                    values (:s, :t, :p, 'stock', 'text') on conflict do nothing"""),
                {"s": self.source, "t": self.tenant, "p": self.project},
            )
            return open_index(
                connection,
                provider="prepared",
                model="prepared",
                dimensions=DIMENSIONS,
                chunker="structure",
                pipeline="structure|prepared",
            )

    def _load(self) -> None:
        begun = time.perf_counter()
        for start in range(0, self.stock.documents, BATCH):
            self._batch(range(start, min(start + BATCH, self.stock.documents)))
        loaded = time.perf_counter()
        with self.database.tenant(self.tenant) as connection:
            term_statistics.refresh(connection, self.tenant, self.index.id)
        with self.superuser() as owner:
            megabytes = max(256, self.stock.chunks * BUILD_MEMORY // 10**6)
            owner.execute(f"alter role larder_control set maintenance_work_mem = '{megabytes}MB'")
        self.database.controller.dispose()
        with self.database.control() as connection:
            term_statistics.build(connection, self.index, keyword=True, vector=True)
        with self.superuser() as owner:
            owner.execute("vacuum analyze")
        print(
            f"{self.stock.chunks} chunks of {self.stock.documents} documents: loaded in {loaded - begun:.0f} s,"
            f" indexed in {time.perf_counter() - loaded:.0f} s",
            flush=True,
        )

    def _batch(self, numbers: range) -> None:
        size = CHUNKS_PER_DOCUMENT
        batch, rows = [], []
        for n in numbers:
            document, vectors = self.documents[n], self.stock.vectors[n * size : (n + 1) * size]
            topic = int(self.stock.topic_of[n])
            chunks = [
                Chunk(ord=o, content=self.stock.pick(topic, self.stock.chunk_words), context=document.title)
                for o in range(size)
            ]
            batch.append(Replacement(document=document, chunks=chunks, vectors=vectors))
            rows.append(self._row(document))
        with self.database.tenant(self.tenant, durable=False) as connection:
            connection.execute(
                text("""
                    insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                          tags, metadata, desired_hash, pipeline_version, indexed_pipeline,
                                          state, stage, chunk_count, indexed_version)
                    values (:id, :tenant, :source, :name, :project, :type, :kind, :title, :tags,
                            cast(:metadata as jsonb), '', :pipeline, :pipeline, 'done', 'done', :chunks, 1)"""),
                rows,
            )
            ChunkStore(connection, self.index, self.tenant).replace(batch)
            held = [
                search_indexes.IndexedDocument(
                    document_id=r.document.id,
                    version=1,
                    chunks=len(r.chunks),
                    centroid=HalfVector(unit(np.asarray(r.vectors).mean(axis=0))),
                )
                for r in batch
            ]
            search_indexes.record_indexed(connection, self.tenant, self.index.id, held)

    def _row(self, document: StoredDocument) -> dict[str, Any]:
        return {
            "id": document.id,
            "tenant": self.tenant,
            "source": self.source,
            "name": str(document.id),
            "project": self.project,
            "type": document.source_type.value,
            "kind": document.kind.value,
            "title": document.title,
            "tags": list(document.tags),
            "metadata": json.dumps({"source_path": f"stock/{document.id}", "version": 7}),
            "pipeline": "md-1|structure-1",
            "chunks": CHUNKS_PER_DOCUMENT,
        }

    def superuser(self) -> psycopg.Connection[Any]:
        """A connection past all row-level security."""
        return psycopg.connect(
            host="127.0.0.1",
            port=urlsplit(self.servers.database_url).port,
            user="postgres",
            password=embedded.Credentials.of_folder(self.folder).postgres,
            dbname="larder",
            autocommit=True,
        )

    def exact(
        self, questions: Sequence[Question], k: int, condition: Filter | None = None
    ) -> list[list[tuple[UUID, int]]]:
        """The `k` nearest chunks of each question that a filter lets through, by comparing all."""
        passing = np.array([_passes(d, condition or Filter()) for d in self.documents])
        rows = np.flatnonzero(np.repeat(passing, CHUNKS_PER_DOCUMENT))
        vectors = self.stock.vectors[rows]
        found = []
        for question in questions:
            asked = question.vector.astype(np.float16).astype(np.float32)
            best = rows[np.argsort(-(vectors @ asked), kind="stable")[:k]]
            found.append([(self.ids[n // CHUNKS_PER_DOCUMENT], int(n % CHUNKS_PER_DOCUMENT)) for n in best])
        return found


def _passes(document: StoredDocument, condition: Filter) -> bool:
    return (
        (not condition.source_types or document.source_type in condition.source_types)
        and (not condition.kinds or document.kind in condition.kinds)
        and set(condition.tags) <= set(document.tags)
    )


@contextmanager
def installed(stock: Stock, kept: Path | None = None) -> Iterator[Library]:
    """The stock in a server that is gone afterwards; with `kept`, it stays in that folder for the next run."""
    folder = kept or Path(tempfile.mkdtemp(prefix="larder-library-"))
    folder.mkdir(exist_ok=True, parents=True)
    try:
        servers = embedded.ensure(folder)
        migrations.upgrade(servers.admin_url)
        database = Database(servers.database_url, servers.control_url)
        yield Library(stock, database, servers, folder)
        database.close()
    finally:
        embedded.stop(folder)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
