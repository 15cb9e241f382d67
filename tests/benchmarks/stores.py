"""Vector stores beside PostgreSQL against pgvector: recall@10, times, filling, and how soon a change is findable.

    python -m tests.benchmarks.stores [--chunks 20000] [--questions 60] [--stores faiss,chroma,qdrant] [--fresh 20]

The stock is that of `library.py`: made-up vectors around 400 topics in 48 of 384 directions. Each way is a whole search
of the product, the statement in PostgreSQL included. Prints the table of docs/stores.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
from sqlalchemy import text

from pipeline.database.vector_stores import StoreOptions
from pipeline.documents import Kind, SourceType
from pipeline.search import RetrievalOptions, cache, term_statistics
from pipeline.search.records import Filter, Quantization
from pipeline.search.stores import Scope, open_store, outbox
from pipeline.search.stores.mirror import Mirror, collection_of
from pipeline.search.stores.registry import SLOW_SECONDS, VectorStores
from tests.benchmarks.bare import K
from tests.benchmarks.library import Library, Stock, installed
from tests.benchmarks.search_bench import Product, recall, timed
from workers.local.embedded.locating import open_runtime
from workers.settings import load

FILTERS = {
    "all": Filter(),
    "50 %": Filter(source_types=(SourceType.CONFLUENCE,)),
    "99 %": Filter(kinds=(Kind.DECISION,)),
}
"""Share that is filtered away."""
ONE_IN = 100
QUANTIZATIONS: tuple[Quantization, ...] = ("bit", "halfvec")


def narrow(library: Library) -> None:
    """Make one document of a hundred a decision, and all others none."""
    few = [id_ for n, id_ in enumerate(library.ids) if n % ONE_IN == 0]
    kinds = {True: Kind.DECISION, False: Kind.REFERENCE}
    library.documents = [replace(one, kind=kinds[n % ONE_IN == 0]) for n, one in enumerate(library.documents)]
    with library.database.tenant(library.tenant) as connection:
        connection.execute(
            text("update document set kind = case when id = any(:few) then 'decision' else 'reference' end"),
            {"few": few},
        )


def rebuilt(library: Library, quantization: Quantization) -> float:
    """Megabytes of a vector index that is built anew; searches would notice it within a minute."""
    cache._OBSERVATIONS.clear()
    with library.database.control() as connection:
        term_statistics.build(
            connection, library.index, keyword=False, vector=True, quantization=quantization
        )
        size = text("select pg_relation_size(:name) / 1e6")
        return float(connection.execute(size, {"name": f"chunk_{library.index.id}_vector"}).scalar_one())


def fill(library: Library, name: str, options: StoreOptions) -> float:
    """Seconds in which a store is filled from PostgreSQL by one worker."""
    outbox.note_changes(library.database, on=True)
    with library.database.control() as connection:
        outbox.register(connection, name, preferred=False)
    begun, mirror = time.perf_counter(), Mirror(library.database, name, open_store(options))
    while (row := mirror.look_after()) is None or not row.is_ready:
        mirror.carry(library.tenant)
    return time.perf_counter() - begun


def measure(library: Library, product: Product) -> list[str]:
    """Recall, p50 and p95 for each filter as cells."""
    cells = []
    for condition in FILTERS.values():
        wanted = library.exact(library.stock.questions, K, condition)
        (found,) = timed(library.stock.questions, product.ask("vector", condition, dedupe=False), rounds=3)
        cells.append(f"{recall(wanted, found.found):.3f}, {found.p50:.1f} / {found.p95:.1f} ms")
    return cells


def row(name: str, cells: list[str], filled: str = "-", fresh: str = "-") -> None:
    print(f"| {name} | {' | '.join(cells)} | {filled} | {fresh} |", flush=True)


CONFIG = """
rag:
  provider: {store}
  embedding: {{provider: hashing}}
  storage: {{local: {{type: {store}, path: vectors}}}}
  sources: [{{name: notes, type: markdown, paths: ['./notes/*.md'], autoIndex: false}}]
"""


def larder(root: Path, *args: str) -> None:
    """A command, to its end."""
    command = [sys.executable, "-m", "workers.cli", *args]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)


def freshness(store: str, times: int) -> float:
    """95th percentile of the seconds from the commit of a chunk to the store that has it, with `larder up`."""
    root, seconds = Path(tempfile.mkdtemp(prefix="larder-fresh-")), []
    (root / "larder.yaml").write_text(CONFIG.format(store=store), encoding="utf-8")
    (root / "notes").mkdir()
    larder(root, "up", "--detach")
    try:
        parts = open_runtime(load(root / "larder.yaml", {}))
        held, tenant = open_store(parts.settings.stores[store]), parts.settings.tenant_id

        def committed() -> set[UUID]:
            return {row[0] for row in parts.database.fetch(tenant, "select document_id from chunk", {})}

        for n in range(times + 1):
            before = committed()
            (root / "notes" / f"{n}.md").write_text(f"# Note {n}\n\nAbout kestrels, {n}.", encoding="utf-8")
            indexing = threading.Thread(target=larder, args=(root, "index"))
            indexing.start()
            while indexing.is_alive() and not (new := committed() - before):
                time.sleep(0.02)
            begun, (document,) = time.perf_counter(), new or committed() - before
            name = outbox.point_id(document, 0)
            while not held.stats(Scope(collection=collection_of(1), tenant=tenant), [name]).present:
                time.sleep(0.02)
            if n:  # the first waits for the store to be added and filled
                seconds.append(time.perf_counter() - begun)
            indexing.join()
        parts.database.close()
    finally:
        larder(root, "down")
        shutil.rmtree(root, ignore_errors=True)
    return float(np.quantile(seconds, 0.95))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--stores", default="faiss,chroma,qdrant")
    parser.add_argument("--fresh", type=int, default=20, help="changes for the time until one is findable")
    args = parser.parse_args()
    stores = [name for name in args.stores.split(",") if name]
    fresh = {name: f"{freshness(name, args.fresh):.1f} s" if args.fresh else "-" for name in stores}
    heads = ("store", *(f"{share} away" if share != "all" else "no filter" for share in FILTERS))
    print(f"| {' | '.join(heads)} | filled in | findable after (p95) |")
    print("|" + "---|" * (len(heads) + 2))
    with installed(Stock(args.chunks, args.questions)) as library, tempfile.TemporaryDirectory() as folder:
        narrow(library)
        product = Product(library)
        product.retriever.options = RetrievalOptions(exact_below=10**9)
        row("pgvector, exact", measure(library, product))
        product.retriever.options = RetrievalOptions(exact_below=0)
        for quantization in QUANTIZATIONS:
            name = f"pgvector, HNSW of {quantization}, {rebuilt(library, quantization):.0f} MB"
            row(name, measure(library, product), fresh="0 s")
        for name in stores:
            options = StoreOptions(name, path=Path(folder) / name, timeout=60)
            seconds = fill(library, name, options)
            with library.database.control() as connection:
                outbox.switch(connection, name)
            product.retriever.stores = beside = VectorStores(library.database, {name: options})
            beside.get(name).near(
                library.stock.questions[0].vector, K, Scope(collection="chunks-1")
            )  # it loads
            cells = measure(library, product)
            if beside._avoided:
                cells = [f"over {SLOW_SECONDS:.0f} s, pgvector answers"] * len(FILTERS)
            row(name, cells, f"{seconds:.0f} s", fresh[name])
            with library.database.control() as connection:
                outbox.switch(connection, "pgvector")
    return 0


if __name__ == "__main__":
    sys.exit(main())
