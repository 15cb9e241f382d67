"""Search quality on a set of documents and judged questions: nDCG@10, recall, MRR of the three modes.

    python tests/benchmarks/quality.py DATA_DIR [--limit N] [--threshold] [--fusion rrf] [--queries 3] [--modes hybrid]

DATA_DIR holds corpus.jsonl, queries.jsonl, qrels.tsv and meta.json. The set is cut and embedded in this process and
indexed into an embedded server of its own; vectors are kept in the temporary folder for the next run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from sqlalchemy import Connection, text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline import migrations  # noqa: E402
from pipeline.chunking import ChunkingOptions, open_chunker  # noqa: E402
from pipeline.database import Database  # noqa: E402
from pipeline.documents import Chunk, Document, Kind, SourceType  # noqa: E402
from pipeline.embedding import Embedder, EmbeddingOptions, Vectors, open_embedder  # noqa: E402
from pipeline.embedding.calls import embed_checked, embed_query_checked  # noqa: E402
from pipeline.indexing import centroid, cut  # noqa: E402
from pipeline.ledger import document_id, followers, source_id, sources  # noqa: E402
from pipeline.retrieval import Fusion, RetrievalOptions, Retriever, SearchRequest  # noqa: E402
from pipeline.stores import Filter, Mode, Replacement, StoredDocument, statistics  # noqa: E402
from pipeline.stores.pgvector import PgVectorStore, SearchIndex, open_index  # noqa: E402
from pipeline.tenancy import project_id, tenant_id  # noqa: E402
from workers import embedded  # noqa: E402

TENANT = tenant_id("quality")
PROJECT = project_id(TENANT, "quality")
SOURCE = source_id(TENANT, "set")
DEPTH = 10
MODES: tuple[Mode, ...] = ("vector", "keyword", "hybrid")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A set in memory."""

    name: str
    documents: Sequence[Document]
    queries: Mapping[str, str]
    relevant: Mapping[str, frozenset[str]]
    self_exclude: bool


def read(folder: Path, limit: int | None = None) -> Judged:
    """The set in `folder`; `limit` keeps only the first questions, never fewer documents."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    documents = [
        Document(
            external_id=row["_id"],
            title=row["title"],
            text=row["text"],
            source_type=SourceType.TEXT,
            kind=Kind.WORK if meta.get("self_exclude") else Kind.REFERENCE,
        )
        for row in _lines(folder / "corpus.jsonl")
    ]
    relevant: dict[str, set[str]] = {}
    with (folder / "qrels.tsv").open(encoding="utf-8", newline="") as handle:
        for row in list(csv.reader(handle, delimiter="\t"))[1:]:
            relevant.setdefault(row[0], set()).add(row[1])
    queries = {row["_id"]: row["text"] for row in _lines(folder / "queries.jsonl")}
    return Judged(
        name=folder.resolve().name,
        documents=documents,
        queries=dict(list(queries.items())[:limit]),
        relevant={query: frozenset(ids) for query, ids in relevant.items()},
        self_exclude=bool(meta.get("self_exclude")),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            yield json.loads(line)


def chunks_of(judged: Judged) -> list[list[Chunk]]:
    """What indexing makes of each document."""
    chunker = open_chunker(ChunkingOptions())
    return [cut(chunker, _stored(document), document.text) for document in judged.documents]


def _stored(document: Document) -> StoredDocument:
    return StoredDocument(
        id=document_id(SOURCE, document.external_id),
        version=1,
        title=document.title,
        source_type=document.source_type,
        kind=document.kind,
        project_id=PROJECT,
    )


def vectors_of(chunks: Sequence[Sequence[Chunk]], embedder: Embedder) -> Vectors:
    """One vector per chunk of all documents in order; those of an earlier run come from the temporary folder."""
    texts = {chunk.hash: chunk.embedding_text for own in chunks for chunk in own}
    path = Path(tempfile.gettempdir()) / "larder-quality" / f"{embedder.model}.npz"
    known = _kept(path)
    missing = [key for key in texts if key not in known]
    size = embedder.limits.texts
    for at in range(0, len(missing), size):
        part = missing[at : at + size]
        known |= zip(part, embed_checked(embedder, [texts[key] for key in part]), strict=True)
    if missing:
        path.parent.mkdir(exist_ok=True)
        np.savez(path, keys=np.array(list(known)), vectors=np.array(list(known.values()), dtype=np.float32))
    return np.array([known[chunk.hash] for own in chunks for chunk in own], dtype=np.float32)


def _kept(path: Path) -> dict[str, Vectors]:
    """Chunk hash -> vector, as the last run left them."""
    if not path.exists():
        return {}
    with np.load(path) as kept:
        return dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))


def fill(database: Database, judged: Judged, embedder: Embedder) -> SearchIndex:
    """Cut, embed and store the whole set, with the rows of the ledger that searching joins."""
    chunks = chunks_of(judged)
    vectors = vectors_of(chunks, embedder)
    tail = f"structure|{embedder.model}:{embedder.dimensions}"
    with database.tenant(TENANT) as connection:
        sources.ensure_tenant(connection, TENANT, "quality", PROJECT, "quality")
        connection.execute(
            text(
                "insert into source (id, tenant_id, project_id, name, kind) values (:s, :t, :p, 'set', 'text')"
            ),
            {"s": SOURCE, "t": TENANT, "p": PROJECT},
        )
        index = open_index(
            connection,
            provider="minilm",
            model=embedder.model,
            dimensions=embedder.dimensions,
            chunker="structure",
            pipeline=tail,
        )
        _store(connection, index, judged.documents, chunks, vectors, pipeline=tail)
        statistics.refresh(connection, TENANT, index.id)
    with database.control() as connection:
        statistics.build(connection, index, keyword=True, vector=False)
    print(f"{judged.name}: {len(judged.documents)} documents, {len(vectors)} chunks")
    return index


def _store(
    connection: Connection,
    index: SearchIndex,
    documents: Sequence[Document],
    chunks: Sequence[Sequence[Chunk]],
    vectors: Vectors,
    *,
    pipeline: str,
) -> None:
    at = 0
    batch, rows = [], []
    for document, own in zip(documents, chunks, strict=True):
        part = vectors[at : at + len(own)]
        at += len(own)
        stored = _stored(document)
        batch.append(Replacement(document=stored, chunks=own, vectors=part))
        rows.append(
            {
                "id": stored.id,
                "t": TENANT,
                "s": SOURCE,
                "e": document.external_id,
                "p": PROJECT,
                "kind": document.kind.value,
                "title": document.title,
                "pipeline": pipeline,
            }
        )
    connection.execute(
        text("""
            insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                  desired_hash, pipeline_version, indexed_pipeline, state, stage)
            values (:id, :t, :s, :e, :p, 'text', :kind, :title, '', :pipeline, :pipeline, 'done', 'done')"""),
        rows,
    )
    PgVectorStore(connection, index, TENANT).replace(batch)
    held = [
        followers.Held(
            document_id=r.document.id, version=1, chunks=len(r.chunks), centroid=centroid(r.vectors)
        )
        for r in batch
    ]
    followers.note(connection, TENANT, index.id, held)


@dataclass(frozen=True)
class Scores:
    """Means over the questions of a set."""

    ndcg: float
    recall5: float
    recall10: float
    mrr: float


def judge(rankings: Mapping[str, Sequence[str]], relevant: Mapping[str, frozenset[str]]) -> Scores:
    """How good rankings of document ids are; relevance is yes or no."""
    rows = []
    for query, ranking in rankings.items():
        wanted = relevant.get(query, frozenset())
        gains = [1.0 if i in wanted else 0.0 for i in ranking[:DEPTH]]
        best = sum(1 / math.log2(n + 2) for n in range(min(len(wanted), DEPTH)))
        rows.append(
            (
                sum(gain / math.log2(n + 2) for n, gain in enumerate(gains)) / best if best else 0.0,
                sum(gains[:5]) / len(wanted) if wanted else 0.0,
                sum(gains) / len(wanted) if wanted else 0.0,
                next((1 / (n + 1) for n, gain in enumerate(gains) if gain), 0.0),
            )
        )
    return Scores(*np.mean(rows, axis=0).tolist())


def rankings(retriever: Retriever, judged: Judged, mode: Mode) -> dict[str, list[str]]:
    """Question -> ids of the best documents."""
    names = {document_id(SOURCE, d.external_id): d.external_id for d in judged.documents}
    found = {}
    for query, question in judged.queries.items():
        own = (document_id(SOURCE, query),) if judged.self_exclude else ()
        request = SearchRequest(
            text=question, mode=mode, k=DEPTH, filter=Filter(exclude=own), min_similarity=-1.0
        )
        found[query] = [names[hit.document.id] for hit in retriever.search(request).hits]
    return found


def similarities(judged: Judged, embedder: Embedder) -> list[float]:
    """For each question and relevant document, the cosine of its nearest chunk: what a threshold cuts off."""
    chunks = chunks_of(judged)
    vectors = vectors_of(chunks, embedder)
    ends = np.cumsum([len(own) for own in chunks])
    own = {
        d.external_id: vectors[end - len(c) : end]
        for d, c, end in zip(judged.documents, chunks, ends, strict=True)
    }
    found = []
    for query, question in judged.queries.items():
        asked = embed_query_checked(embedder, question)
        wanted = [own[i] for i in judged.relevant.get(query, ()) if i != query and len(own[i])]
        found += [float((rows @ asked).max()) for rows in wanted]
    return found


@contextmanager
def server() -> Iterator[Database]:
    """A database that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="larder-quality-"))
    folder.chmod(0o755)
    try:
        servers = embedded.ensure(folder)
        migrations.upgrade(servers.admin_url)
        database = Database(servers.database_url, servers.control_url)
        yield database
        database.close()
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the figures of the sets named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DATA_DIR")
    parser.add_argument("--limit", type=int, help="only the first N questions")
    parser.add_argument(
        "--threshold", action="store_true", help="the cosine that keeps 98 %% of what is relevant"
    )
    parser.add_argument("--fusion", choices=get_args(Fusion), default="weighted")
    parser.add_argument("--queries", type=int, default=1, help="ways to ask each question")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    options = parser.parse_args()
    embedder = open_embedder(EmbeddingOptions())
    sets = [read(folder, options.limit) for folder in options.folders]
    if options.threshold:
        found = [value for judged in sets for value in similarities(judged, embedder)]
        print(f"{len(found)} relevant pairs: 98 % lie at or above {np.quantile(found, 0.02):.3f}")
        return
    for judged in sets:
        with server() as database:
            fill(database, judged, embedder)
            chosen = RetrievalOptions(fusion=options.fusion, queries=options.queries)
            _report(Retriever(database, TENANT, lambda _index: embedder, chosen), judged, options.modes)


def _report(retriever: Retriever, judged: Judged, modes: Sequence[Mode]) -> None:
    print(f"{'':10}{'nDCG@10':>9}{'R@5':>7}{'R@10':>7}{'MRR@10':>8}{'ms':>7}")
    for mode in modes:
        begun = time.perf_counter()
        found = judge(rankings(retriever, judged, mode), judged.relevant)
        spent = (time.perf_counter() - begun) * 1000 / len(judged.queries)
        print(
            f"{mode:10}{found.ndcg:9.3f}{found.recall5:7.3f}{found.recall10:7.3f}{found.mrr:8.3f}{spent:7.0f}"
        )


if __name__ == "__main__":
    main()
