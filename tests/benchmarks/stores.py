"""Vector stores beside PostgreSQL against pgvector: recall@10, times, filling, and how soon a change is findable.

    python -m tests.benchmarks.stores [--chunks 20000] [--questions 60] [--stores faiss,chroma,qdrant] [--fresh 20]

Stores are also chroma-server, qdrant-server, pinecone and weaviate, with servers on 127.0.0.1; with '' there is
pgvector alone. Chroma's server is its own; the others are those of the tests, so their times and recall are not those
of the products. The stock is that of `library.py`: made-up vectors around 400 topics in 48 of 384 directions. Each way
is a whole search of the product, the statement in PostgreSQL included. Prints the table of docs/stores.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from pydantic.alias_generators import to_camel
from sqlalchemy import text

from pipeline.database.vector_stores import StoreOptions
from pipeline.documents import Kind, SourceType
from pipeline.search import RetrievalOptions, cache, term_statistics
from pipeline.search.records import Filter, Quantization
from pipeline.search.stores import Scope, VectorStore, open_store, outbox
from pipeline.search.stores.mirror import Mirror, collection_of
from pipeline.search.stores.registry import SLOW_SECONDS, VectorStores
from tests.benchmarks.bare import K
from tests.benchmarks.library import CHUNK_WORDS, Library, Question, Stock, installed
from tests.benchmarks.search_bench import Product, recall, timed
from tests.fakes.vector_servers import server_of
from workers.local.embedded.locating import open_runtime
from workers.runtime import Runtime
from workers.settings import load

FILTERS = {
    "all": Filter(),
    "50 %": Filter(source_types=(SourceType.CONFLUENCE,)),
    "99 %": Filter(kinds=(Kind.DECISION,)),
}
"""Share that is filtered away."""
ONE_IN = 100
QUANTIZATIONS: tuple[Quantization, ...] = ("halfvec", "bit")
"""Kinds of the vector index of PostgreSQL; a library is installed with the first."""


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


def megabytes(library: Library, quantization: Quantization) -> float:
    """Size of the vector index, which is built anew unless it is what the library was installed with."""
    with library.database.control() as connection:
        if quantization != QUANTIZATIONS[0]:
            cache._OBSERVATIONS.clear()  # searches would notice the other index within a minute
            term_statistics.build(
                connection, library.index, keyword=False, vector=True, quantization=quantization
            )
        size = text("select pg_relation_size(:name) / 1e6")
        return float(connection.execute(size, {"name": f"chunk_{library.index.id}_vector"}).scalar_one())


def fill(library: Library, options: StoreOptions) -> float:
    """Seconds in which a store is filled from PostgreSQL by one worker."""
    name = options.type
    outbox.note_changes(library.database, on=True)
    with library.database.control() as connection:
        outbox.register(connection, name, preferred=False)
    begun, mirror = time.perf_counter(), Mirror(library.database, name, open_store(options))
    while (row := mirror.look_after()) is None or not row.is_ready:
        mirror.carry(library.tenant)
    return time.perf_counter() - begun


@dataclass(frozen=True)
class Comparison:
    """The questions with their nearest chunks for each filter."""

    product: Product
    questions: Sequence[Question]
    nearest: Mapping[str, list[list[tuple[UUID, int]]]]

    def cells(self) -> list[str]:
        """Recall, p50 and p95 of the product's searches for each filter."""
        cells = []
        for share, condition in FILTERS.items():
            ask = self.product.ask("vector", condition, dedupe=False)
            (found,) = timed(self.questions, ask, rounds=3)
            cells.append(
                f"{recall(self.nearest[share], found.found):.3f}, {found.p50:.1f} / {found.p95:.1f} ms"
            )
        return cells


def row(name: str, cells: list[str], filled: str = "-", fresh: str = "-") -> None:
    print(f"| {name} | {' | '.join(cells)} | {filled} | {fresh} |", flush=True)


CONFIG = """
rag:
  provider: {store}
  embedding: {{provider: hashing}}
  storage: {storage}
  sources: [{{name: notes, type: markdown, paths: ['./notes/*.md'], autoIndex: false}}]
"""


MOST_FAILURES = 10
"""Searches that may fail or be slow until a store is taken for too slow."""


def type_of(name: str) -> str:
    """Type of a store, whose name may end with the way it runs."""
    return name.removesuffix("-server")


def storage_of(store: str, served: Mapping[str, Any]) -> str:
    """The section `storage` of a store in a folder, or of one whose server has these options."""
    if not served:
        return json.dumps({"local": {"type": store, "path": "vectors"}})
    keys = {"index" if name == "collection" else to_camel(name): value for name, value in served.items()}
    return json.dumps({"cloud": {"type": store, **keys}})


def larder(root: Path, *args: str) -> None:
    """A command, to its end."""
    command = [sys.executable, "-m", "workers.cli", *args]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)


def freshness(name: str, times: int) -> str:
    """95th percentile of the seconds from the commit of a chunk to the store that has it, with `larder up`."""
    store, root = type_of(name), Path(tempfile.mkdtemp(prefix="larder-fresh-"))
    with server_of(name) as served:
        config = CONFIG.format(store=store, storage=storage_of(store, served))
        (root / "larder.yaml").write_text(config, encoding="utf-8")
        (root / "notes").mkdir()
        larder(root, "up", "--detach")
        try:
            runtime = open_runtime(load(root / "larder.yaml", {}))
            points = open_store(runtime.settings.stores[store])
            seconds = [seconds_until_found(root, n, runtime, points) for n in range(times + 1)]
            runtime.database.close()
        finally:
            larder(root, "down")
            shutil.rmtree(root, ignore_errors=True)
    # The first waits for the store to be added and filled.
    return f"{np.quantile(seconds[1:], 0.95):.1f} s"


def seconds_until_found(root: Path, number: int, runtime: Runtime, points: VectorStore) -> float:
    """Seconds from the commit of a new note to the store that has it."""
    tenant = runtime.settings.tenant_id

    def committed() -> set[UUID]:
        return {row[0] for row in runtime.database.fetch(tenant, "select document_id from chunk", {})}

    before = committed()
    (root / "notes" / f"{number}.md").write_text(f"# Note {number}\n\nAbout kestrels, {number}.", "utf-8")
    indexing = threading.Thread(target=larder, args=(root, "index"))
    indexing.start()
    while indexing.is_alive() and not (new := committed() - before):
        time.sleep(0.02)
    begun, (document,) = time.perf_counter(), new or committed() - before
    scope = Scope(collection=collection_of(1), tenant=tenant)
    while not points.stats(scope, [outbox.point_id(document, 0)]).present:
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    indexing.join()
    return seconds


def compare_pgvector(library: Library, comparison: Comparison) -> None:
    """Print the rows of pgvector."""
    retriever = comparison.product.retriever
    retriever.options = RetrievalOptions(exact_below=0)
    for quantization in QUANTIZATIONS:
        name = f"pgvector, HNSW of {quantization}, {megabytes(library, quantization):.0f} MB"
        row(name, comparison.cells(), fresh="0 s")
    retriever.options = RetrievalOptions(exact_below=10**9)
    row("pgvector, exact", comparison.cells())
    retriever.options = RetrievalOptions(exact_below=0)


class Stores(VectorStores):
    """Vector stores of which a slow one is asked again at once, until it was slow too often."""

    failures = 0

    def avoid(self, name: str, why: str) -> None:
        """See VectorStores."""
        self.failures += 1
        if self.failures > MOST_FAILURES:
            super().avoid(name, why)


def compare_store(library: Library, comparison: Comparison, options: StoreOptions) -> tuple[str, list[str]]:
    """Fill a store and search it; returns the seconds to fill it, and cells."""
    seconds = fill(library, options)
    with library.database.control() as connection:
        outbox.switch(connection, options.type)
    stores = Stores(library.database, {options.type: options})
    comparison.product.retriever.stores = stores
    # The first search loads what there is, and may take longer than one is given.
    stores.get(options.type).near(comparison.questions[0].vector, K, Scope(collection=collection_of(1)))
    cells = comparison.cells()
    if stores.failures > MOST_FAILURES:
        cells = [f"over {SLOW_SECONDS:.0f} s, pgvector answers"] * len(FILTERS)
    elif stores.failures:
        cells[-1] += f"; {stores.failures} of all searches over {SLOW_SECONDS:.0f} s"
    with library.database.control() as connection:
        outbox.switch(connection, "pgvector")
        outbox.drop(connection, options.type)
    return f"{seconds:.0f} s", cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--words", type=int, default=CHUNK_WORDS, help="of a chunk; fewer are loaded sooner")
    parser.add_argument("--stores", default="faiss,chroma,qdrant")
    parser.add_argument("--fresh", type=int, default=20, help="changes for the time until one is findable")
    args = parser.parse_args()
    stores = [name for name in args.stores.split(",") if name]
    fresh = {name: freshness(name, args.fresh) if args.fresh else "-" for name in stores}
    heads = ("store", *(f"{share} away" if share != "all" else "no filter" for share in FILTERS))
    print(f"| {' | '.join(heads)} | filled in | findable after (p95) |")
    print("|" + "---|" * (len(heads) + 2))
    with installed(Stock(args.chunks, args.questions, words=args.words)) as library:
        narrow(library)
        questions = library.stock.questions
        nearest = {share: library.exact(questions, K, condition) for share, condition in FILTERS.items()}
        comparison = Comparison(Product(library), questions, nearest)
        compare_pgvector(library, comparison)
        for name in stores:
            with server_of(name) as served, tempfile.TemporaryDirectory() as folder:
                options = StoreOptions(
                    type_of(name), path=Path(folder), timeout=60, **{"collection": "stock", **served}
                )
                filled, cells = compare_store(library, comparison, options)
            row(name, cells, filled, fresh[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
