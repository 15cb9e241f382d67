"""Search quality on a set of documents and judged questions: nDCG@10, recall, MRR of the three modes.

    python tests/benchmarks/quality.py DATA_DIR... [--limit N] [--threshold] [--weak] [--modes hybrid] [--accept]

DATA_DIR holds corpus.jsonl, queries.jsonl, qrels.tsv and meta.json. The set is cut and embedded in this process and
indexed into an embedded server of its own; vectors are kept in the temporary folder for the next run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.chunking.splitting import ChunkingOptions  # noqa: E402
from pipeline.chunking.strategies import open_chunker  # noqa: E402
from pipeline.database import migrations  # noqa: E402
from pipeline.database.engine import Database  # noqa: E402
from pipeline.documents import Chunk, Document, Kind  # noqa: E402
from pipeline.embedding import Embedder, EmbeddingOptions, Vectors  # noqa: E402
from pipeline.embedding.calls import (  # noqa: E402
    embed_checked,
    embed_query_checked,
    open_embedder,
)
from pipeline.ingest.steps import centroid  # noqa: E402
from pipeline.ingest.work_in_progress import cut  # noqa: E402
from pipeline.ledger import document_id, project_id, search_indexes, source_id, sources, tenant_id  # noqa: E402  # noqa: E402
from pipeline.search import (  # noqa: E402
    Retriever,
    SearchRequest,
    term_statistics,
)
from pipeline.search.chunk_store import ChunkStore, SearchIndex, open_index  # noqa: E402
from pipeline.search.records import Filter, Hit, Mode, Replacement, StoredDocument  # noqa: E402
from tests.benchmarks import accepted  # noqa: E402
from workers.app.evaluation.dataset import EvalDataset, read  # noqa: E402
from workers.app.evaluation.measures import DEPTH, MEASURES, judge, mean  # noqa: E402
from workers.app.evaluation.measuring import WORST  # noqa: E402
from workers.local import embedded  # noqa: E402

TENANT = tenant_id("quality")
PROJECT = project_id(TENANT, "quality")
SOURCE = source_id(TENANT, "set")
MODES: tuple[Mode, ...] = ("vector", "keyword", "hybrid")


def read_typed(folder: Path, limit: int | None) -> EvalDataset:
    """A set; the documents of one whose questions are its documents are work items, unless it names their kinds."""
    judged = read(folder, limit)
    if not judged.self_exclude or any(d.kind is not Kind.REFERENCE for d in judged.documents):
        return judged
    return replace(judged, documents=[replace(d, kind=Kind.WORK) for d in judged.documents])


def chunks_of(judged: EvalDataset) -> list[list[Chunk]]:
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
        metadata=document.metadata,
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


def fill(database: Database, judged: EvalDataset, embedder: Embedder) -> SearchIndex:
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
        term_statistics.refresh(connection, TENANT, index.id)
    with database.control() as connection:
        term_statistics.build(connection, index, keyword=True, vector=False)
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
                "title": document.title,
                "type": document.source_type,
                "kind": document.kind,
                "metadata": json.dumps(dict(document.metadata)),
                "pipeline": pipeline,
            }
        )
    connection.execute(
        text("""
            insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                  metadata, desired_hash, pipeline_version, indexed_pipeline, state, stage)
            values (:id, :t, :s, :e, :p, :type, :kind, :title, cast(:metadata as jsonb), '', :pipeline, :pipeline,
                    'done', 'done')"""),
        rows,
    )
    ChunkStore(connection, index, TENANT).replace(batch)
    held = [
        search_indexes.IndexedDocument(
            document_id=r.document.id, version=1, chunks=len(r.chunks), centroid=centroid(r.vectors)
        )
        for r in batch
    ]
    search_indexes.record_indexed(connection, TENANT, index.id, held)


def rankings(retriever: Retriever, judged: EvalDataset, mode: Mode) -> dict[str, list[str]]:
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


def similarities(judged: EvalDataset, embedder: Embedder) -> list[float]:
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
        wanted = [own[i] for i in judged.relevant.get(query, ()) if len(own[i])]
        found += [float((rows @ asked).max()) for rows in wanted]
    return found


NONSENSE = (
    "zzzqqqxxx", "qwpoeirut mnxbc", "xkcdjw vbnq plorf", "How do I bake sourdough bread without a dutch oven?",
    "What is the best time to prune apple trees?", "Who won the football world cup in 1998?", "Can dogs eat grapes?",
    "What causes migraines and how are they treated?", "Which wine goes with grilled salmon?", "How do bees make honey?",
    "What is the tallest mountain in Africa?", "How do I tie a bow tie?", "What was the cause of the First World War?",
    "parking permits for visitors", "marathon training plan for beginners", "dinosaurs of the late Cretaceous",
)  # fmt: skip
"""Questions that no set answers."""


def weak_shares(retriever: Retriever, judged: EvalDataset, others: Sequence[EvalDataset]) -> dict[str, str]:
    """Who asks -> how many of the hits that answer, or of all five where none does, are called weak."""
    names = {document_id(SOURCE, d.external_id): d.external_id for d in judged.documents}

    def share(questions: Mapping[str, str], *, own: bool) -> str:
        hits: list[Hit] = []
        for query, question in questions.items():
            left_out = (document_id(SOURCE, query),) if own and judged.self_exclude else ()
            request = SearchRequest(text=question, k=5, filter=Filter(exclude=left_out))
            found, wanted = retriever.search(request).hits, judged.relevant.get(query, ())
            hits += [hit for hit in found if not own or names[hit.document.id] in wanted]
        return f"{sum(hit.weak for hit in hits)} of {len(hits)}"

    def titles(questions: Mapping[str, str]) -> dict[str, str]:
        return {query: question.partition("\n")[0] for query, question in questions.items()}

    told = {"relevant": share(judged.queries, own=True)}
    if judged.self_exclude:
        told["relevant to titles alone"] = share(titles(judged.queries), own=True)
    for other in others:
        told[f"questions of {other.name}"] = share(other.queries, own=False)
        if other.self_exclude:
            told[f"titles of {other.name}"] = share(titles(other.queries), own=False)
    return told | {"nonsense and other worlds": share({q: q for q in NONSENSE}, own=False)}


@contextmanager
def server() -> Iterator[Database]:
    """A database that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="larder-quality-"))
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
    parser.add_argument("--weak", action="store_true", help="how many hits are called weak, own and foreign")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--accept", action="store_true", help="compare with these figures from now on")
    options = parser.parse_args()
    embedder = open_embedder(EmbeddingOptions())
    sets = [read_typed(folder, options.limit) for folder in options.folders]
    if options.threshold:
        found = [value for judged in sets for value in similarities(judged, embedder)]
        print(f"{len(found)} relevant pairs: 98 % lie at or above {np.quantile(found, 0.02):.3f}")
        return
    for judged in sets:
        with server() as database:
            fill(database, judged, embedder)
            retriever = Retriever(database, TENANT, lambda _index: embedder)
            if options.weak:
                for who, told in weak_shares(retriever, judged, [s for s in sets if s is not judged]).items():
                    print(f"  {who:40}{told:>12}")
            else:
                _report(retriever, judged, options.modes, accept=options.accept)


def _report(retriever: Retriever, judged: EvalDataset, modes: Sequence[Mode], *, accept: bool) -> None:
    print(f"{'':10}{'nDCG@10':>8}{'R@5':>8}{'R@10':>8}{'MRR@10':>8}{'ms':>7}")
    for mode in modes:
        begun = time.perf_counter()
        ranked = rankings(retriever, judged, mode)
        spent = (time.perf_counter() - begun) * 1000 / len(judged.queries)
        scores = {query: judge(ranked[query], wanted) for query, wanted in judged.relevant.items()}
        means = mean([*scores.values()])
        print(f"{mode:10}" + "".join(f"{means[name]:8.3f}" for name in MEASURES) + f"{spent:7.0f}")
        if mode == "hybrid":
            accepted.compare(judged.name, means, accept=accept)
            worst = sorted(scores, key=lambda query: (scores[query][MEASURES[0]], query))[:WORST]
            print(f"  worst: {', '.join(f'{query} {scores[query][MEASURES[0]]:.2f}' for query in worst)}")


if __name__ == "__main__":
    main()
