"""The stock in the product's own tables, grown from size to size, and what it takes there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np
import psutil
import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.embedding import Vectors
from pipeline.ledger import document_id, project_id, source_id, sources, tenant_id
from pipeline.search import term_statistics
from pipeline.search.chunk_store import SearchIndex, indexes, open_index
from pipeline.search.words import searchable_with_length
from tests.benchmarks.library import DIMENSIONS
from tests.benchmarks.scale.clock import Took
from tests.benchmarks.scale.vectors import CHUNKS_PER_DOCUMENT, Batch, Blend
from workers.local import embedded

K = 10
BATCH = 2500
"""Documents that are written at once."""
BUILD_MEMORY = "2600MB"
"""Room for the graph of a million vectors while it is built."""
BUILD_HELPERS = 2
"""Processes beside the one that builds an index."""

_TABLES = """
create unlogged table bench_text (
    n integer primary key, context text, head text, tail text, head_words tsvector, tail_words tsvector,
    head_length integer, tail_length integer);
create unlogged table bench_incoming (
    document uuid, tenant uuid, project uuid, source uuid, number integer, ord integer, one integer, other integer,
    rare boolean, embedding halfvec);
create unlogged table bench_place (document uuid primary key, number integer)"""
_TEXT = """
insert into bench_text values (%s, %s, %s, %s,
    setweight(to_tsvector('english', %s), 'A') || to_tsvector('english', %s), to_tsvector('english', %s), %s, %s)"""
_MOVES = (
    """
    insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title, tags, metadata,
                          desired_hash, pipeline_version, indexed_pipeline, state, stage, chunk_count, indexed_version,
                          last_indexed)
    select document, tenant, source, 'page ' || number, project, 'text', 'reference', a.context,
           case when rare then array['team-a', 'rare'] else array['team-a'] end,
           jsonb_build_object('source_path', 'stock/' || number), '', 'p', 'p', 'done', 'done', 4, 1, now()
    from bench_incoming join bench_text a on a.n = one where ord = 0""",
    """
    insert into chunk (index_id, tenant_id, project_id, document_id, ord, version, content, context, hash, lexemes,
                       length, embedding)
    select %(index)s, tenant, project, document, ord, 1, a.head || ' item' || number || ' ' || b.tail, a.context,
           decode(md5(number || '-' || ord), 'hex'),
           a.head_words || b.tail_words || to_tsvector('english', 'item' || number),
           a.head_length + b.tail_length + 1, embedding
    from bench_incoming join bench_text a on a.n = one join bench_text b on b.n = other order by document, ord""",
    """
    insert into index_document (tenant_id, index_id, document_id, version, chunk_count, centroid)
    select tenant, %(index)s, document, 1, count(*), l2_normalize(avg(embedding)) from bench_incoming
    group by tenant, document""",
    "insert into bench_place select document, number from bench_incoming where ord = 0",
    "truncate bench_incoming",
)
_SIZES = """
select pg_table_size(%(chunk)s::regclass) - pg_table_size(t.oid) as rows, pg_total_relation_size(t.oid) as texts,
       pg_relation_size((%(chunk)s || '_lexemes')::regclass) as word_index,
       pg_relation_size((%(chunk)s || '_vector')::regclass) as vector_index,
       pg_indexes_size(%(chunk)s::regclass) as indexes,
       pg_total_relation_size('document') + pg_total_relation_size('index_document')
           + pg_total_relation_size('lexeme_stat') as ledger
from pg_class c join pg_class t on t.oid = c.reltoastrelid where c.oid = %(chunk)s::regclass"""


class Nearest:
    """The ten nearest of each question among all chunks seen so far, by comparing all: (questions, 10) numbers."""

    def __init__(self, questions: int) -> None:
        self.likeness = np.full((questions, K), -2.0, np.float32)
        self.chunks = np.full((questions, K), -1, np.int64)

    def see(self, likeness: Vectors, chunks: Any) -> None:
        """Chunks of these numbers are so like each question (questions, chunks)."""
        both = np.concatenate([self.likeness, likeness], axis=1)
        numbers = np.concatenate([self.chunks, np.broadcast_to(chunks, (len(both), len(chunks)))], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")[:, :K]
        self.likeness = np.take_along_axis(both, best, axis=1)
        self.chunks = np.take_along_axis(numbers, best, axis=1)


class Store:
    """The embedded server of a folder, with two tenants: one large, one with a 64th of the documents."""

    def __init__(self, folder: Path, blend: Blend) -> None:
        self.folder, self.blend = folder, blend
        self.servers = embedded.ensure(folder)
        migrations.upgrade(self.servers.admin_url)
        self.database = Database(self.servers.database_url, self.servers.control_url)
        self.tenants = [tenant_id("bench"), tenant_id("other")]
        self.projects = [project_id(tenant, "bench") for tenant in self.tenants]
        self.sources = [source_id(tenant, "stock") for tenant in self.tenants]
        self.index = self._open()
        self.chunk = f"chunk_{self.index.id}"
        self.owner = self.superuser()
        self.documents = 0
        asked = np.array([q.vector for q in blend.texts.questions])
        # Of a length of 1 and in half floats, as the store gets it.
        self.asked = asked.astype(np.float16).astype(np.float32)
        self.nearest = {name: Nearest(len(asked)) for name in ("all", "rare", "other")}
        self._plant_texts()

    def superuser(self) -> psycopg.Connection[Any]:
        """A connection past all row-level security."""
        connection = psycopg.connect(
            host="127.0.0.1",
            port=urlsplit(self.servers.database_url).port,
            user="postgres",
            password=embedded.Credentials.of_folder(self.folder).postgres,
            dbname="larder",
            autocommit=True,
        )
        register_vector(connection)
        connection.execute("set synchronous_commit = off")
        return connection

    def _open(self) -> SearchIndex:
        for tenant, project, source in zip(self.tenants, self.projects, self.sources, strict=True):
            with self.database.tenant(tenant) as connection:
                sources.ensure_tenant(connection, tenant, str(tenant), project, "bench")
                registered = sources.Registration(
                    id=source, tenant_id=tenant, project_id=project, name="stock", kind="text", config_hash=""
                )
                sources.register(connection, [registered])
                index = open_index(
                    connection,
                    provider="prepared",
                    model="prepared",
                    dimensions=DIMENSIONS,
                    chunker="structure",
                    pipeline="p",
                )
        return index

    def _plant_texts(self) -> None:
        for statement in _TABLES.split(";"):
            self.owner.execute(statement)
        with self.owner.transaction(), self.owner.cursor() as cursor:
            for n, text in enumerate(self.blend.texts.chunks):
                words = text.content.split(" ")
                head, tail = (" ".join(part) for part in (words[: len(words) // 2], words[len(words) // 2 :]))
                title, length = searchable_with_length(text.context)
                (head_words, first), (tail_words, second) = (
                    searchable_with_length(head),
                    searchable_with_length(tail),
                )
                values = (n, text.context, head, tail, title, head_words, tail_words, length + first, second)
                cursor.execute(_TEXT, values)

    # -- growing -------------------------------------------------------------------------------------

    def grow(self, chunks: int) -> Took:
        """Add documents up to so many chunks; both indexes are dropped before."""
        for name in ("lexemes", "vector"):
            self.owner.execute(f"drop index if exists {self.chunk}_{name}")
        self.owner.execute("update search_index set indexed_rows = null, keyword_built = false")
        with self.measured() as took:
            while self.documents * CHUNKS_PER_DOCUMENT < chunks:
                left = chunks // CHUNKS_PER_DOCUMENT - self.documents
                self._write(self.blend.batch(self.documents, min(BATCH, left)))
            self.owner.execute("vacuum (analyze, parallel 0)")
        return took

    def _write(self, batch: Batch) -> None:
        foreign, names = batch.foreign, [f"{self.documents + n}" for n in range(len(batch.rare))]
        ids = [document_id(self.sources[int(f)], name) for f, name in zip(foreign, names, strict=True)]
        with self.owner.transaction(), self.owner.cursor() as cursor:
            with cursor.copy("copy bench_incoming from stdin (format binary)") as copy:
                copy.set_types(
                    ["uuid", "uuid", "uuid", "uuid", "int4", "int4", "int4", "int4", "bool", "halfvec"]
                )
                for n, vector in enumerate(batch.vectors):
                    of, ord_ = divmod(n, CHUNKS_PER_DOCUMENT)
                    whose = int(foreign[of])
                    place = (ids[of], self.tenants[whose], self.projects[whose], self.sources[whose])
                    made = (int(batch.one[n]), int(batch.other[n]), bool(batch.rare[of]))
                    copy.write_row((*place, self.documents + of, ord_, *made, HalfVector(vector)))
            for statement in _MOVES:
                cursor.execute(statement, {"index": self.index.id} if "%(" in statement else None)
        likeness = self.asked @ batch.vectors.T
        chunks = np.arange(len(batch.vectors)) + self.documents * CHUNKS_PER_DOCUMENT
        theirs, rare = (np.repeat(mask, CHUNKS_PER_DOCUMENT) for mask in (foreign, batch.rare))
        for name, mask in (("all", ~theirs), ("rare", rare & ~theirs), ("other", theirs)):
            self.nearest[name].see(likeness[:, mask], chunks[mask])
        self.documents += len(batch.rare)

    def build(self) -> dict[str, Took]:
        """Count the words and build both indexes, as the product does; what each took."""
        took = {}
        with self.measured() as took["words counted"]:
            for tenant in self.tenants:
                with self.database.tenant(tenant) as connection:
                    term_statistics.refresh(connection, tenant, self.index.id)
        self.owner.execute(f"alter role larder_control set maintenance_work_mem = '{BUILD_MEMORY}'")
        self.owner.execute(
            f"alter role larder_control set max_parallel_maintenance_workers = {BUILD_HELPERS}"
        )
        self.database.controller.dispose()
        for name, which in (("keyword index", "keyword"), ("vector index", "vector")):
            with self.measured() as took[name], self.database.control() as connection:
                of_words = which == "keyword"
                term_statistics.build(connection, self.index, keyword=of_words, vector=not of_words)
        with self.database.control() as connection:
            (self.index,) = indexes(connection)
        self.owner.execute("vacuum (analyze, parallel 0)")
        return took

    # -- what it takes -------------------------------------------------------------------------------

    def cpu(self) -> float:
        """Seconds of the processor that the server and its connections took so far, those that ended too."""
        server = psutil.Process(self.servers.postgres_pid)
        own = server.cpu_times()
        spent = own.user + own.system + own.children_user + own.children_system
        for child in server.children():
            with suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                spent += times.user + times.system
        return float(spent)

    @contextmanager
    def measured(self) -> Iterator[Took]:
        """What is done meanwhile."""
        took, begun, spent = Took(), time.perf_counter(), self.cpu()
        yield took
        took.seconds, took.cpu = time.perf_counter() - begun, self.cpu() - spent
        took.load = psutil.getloadavg()[0]

    def memory(self) -> int:
        """Bytes of all processes of the server, shared pages counted once."""
        server, held = psutil.Process(self.servers.postgres_pid), 0
        for process in (server, *server.children()):
            with suppress(psutil.NoSuchProcess):  # a connection that ends
                held += process.memory_full_info().pss
        return held

    def sizes(self) -> dict[str, float]:
        """Bytes per chunk: rows, texts beside them, both indexes and all, and the rest of its document."""
        cursor = self.owner.execute(_SIZES, {"chunk": self.chunk})
        names = [column.name for column in cursor.description or ()]
        chunks = self.documents * CHUNKS_PER_DOCUMENT
        (row,) = cursor.fetchall()
        return {name: float(size) / chunks for name, size in zip(names, row, strict=True)}

    def recall(self, name: str, found: Sequence[Sequence[tuple[UUID, int]]]) -> float:
        """Mean share of the ten nearest that was found."""
        wanted = {document for rows in found for document, _ in rows}
        rows = self.owner.execute(
            "select document, number from bench_place where document = any(%s)", [list(wanted)]
        )
        number = dict(rows.fetchall())
        shares = []
        for got, true in zip(found, self.nearest[name].chunks, strict=True):
            chunks = {number[document] * CHUNKS_PER_DOCUMENT + ord_ for document, ord_ in got[:K]}
            shares.append(len(chunks & set(true.tolist())) / K)
        return float(np.mean(shares))
