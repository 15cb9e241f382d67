"""Speed and recall of searching many chunks, as ratios against bare SQL on the same index in the same run.

    python tests/benchmarks/search_bench.py [--chunks 100000] [--questions 60] [--profile]

Prints a table and writes tests/benchmarks/out/search_bench.json. Exit 1 if a figure misses its limit.
"""

from __future__ import annotations

import argparse
import json
import statistics as stats
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import numpy as np
import psycopg
from pgvector.psycopg import register_vector

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.database.engine import APP_ROLE  # noqa: E402
from pipeline.documents import Kind, SourceType  # noqa: E402
from pipeline.embedding import Embedder, EmbedderLimits, Vectors  # noqa: E402
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults  # noqa: E402
from pipeline.search.records import Filter  # noqa: E402
from tests.benchmarks.bare import Bare, K  # noqa: E402
from tests.benchmarks.bench import OUT, Line  # noqa: E402
from tests.benchmarks.library import DIMENSIONS, Library, Question, Stock, installed  # noqa: E402

FILTERS: dict[str, Filter] = {
    "50 %": Filter(source_types=(SourceType.CONFLUENCE,)),
    "10 %": Filter(kinds=(Kind.DECISION,)),
    "1 %": Filter(tags=("rare",)),
}


class Prepared:
    """Gives back the vector of the question that is being asked; the model's own time is not in question here."""

    model = "prepared"
    dimensions = DIMENSIONS
    limits = EmbedderLimits(oversize="cut")

    def __init__(self) -> None:
        self.vector: Vectors = np.zeros(DIMENSIONS, np.float32)

    def embed_query(self, _text: str) -> Vectors:
        return self.vector

    def count_tokens(self, text: str) -> int:
        return len(text) // 4


@dataclass(frozen=True)
class Timed:
    """Milliseconds of one way to ask, question by question, and what it found."""

    each: list[float]
    found: list[list[tuple[UUID, int]]]

    @property
    def p50(self) -> float:
        return stats.median(self.each)

    @property
    def p95(self) -> float:
        return float(np.quantile(self.each, 0.95))

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f} p95 {self.p95:.1f} ms"


Ask = Callable[[Question], list[tuple[UUID, int]]]


def timed(questions: Sequence[Question], *ways: Ask, rounds: int = 4) -> list[Timed]:
    """Each question through each way in turn, so that what else the machine does falls on all alike.

    Another way begins with each question: the first finds the processor's caches cold, the next ones the same rows warm.
    The first round is thrown away; in it the server's caches fill, and plans are made that are kept.
    """
    each: list[list[float]] = [[] for _ in ways]
    found: list[list[list[tuple[UUID, int]]]] = [[] for _ in ways]
    for number in range(rounds):
        for at, question in enumerate(questions):
            for turn in range(len(ways)):
                n = (at + number + turn) % len(ways)
                begun = time.perf_counter()
                rows = ways[n](question)
                if number:
                    each[n].append((time.perf_counter() - begun) * 1000)
                if number == rounds - 1:
                    found[n].append(rows)
    return [Timed(a, b) for a, b in zip(each, found, strict=True)]


class Product:
    """Larder's own search."""

    def __init__(self, library: Library) -> None:
        self.embedder = Prepared()
        self.retriever = Retriever(
            library.database,
            library.tenant,
            lambda _index: cast("Embedder", self.embedder),
            RetrievalOptions(exact_below=0),
        )

    def ask(self, mode: Any, condition: Filter | None = None, *, dedupe: bool = True) -> Ask:
        def way(question: Question) -> list[tuple[UUID, int]]:
            self.embedder.vector = question.vector
            results: SearchResults = self.retriever.search(
                SearchRequest(
                    text=question.text,
                    mode=mode,
                    k=K,
                    filter=condition or Filter(),
                    min_similarity=-1.0,
                    dedupe=dedupe,
                )
            )
            return [(hit.document.id, hit.chunk.ord) for hit in results.hits]

        return way


class Same:
    """The very statement that finds the product's answer, sent by a bare connection: what all around it costs.

    Prepared beforehand for each question, as the application's role, with the tenant set once and for all.
    """

    def __init__(self, library: Library, product: Product) -> None:
        self.library, self.product = library, product
        self.connection = psycopg.connect(
            library.servers.database_url,
            autocommit=True,
            options=f"-c role={APP_ROLE} -c jit=off -c hnsw.ef_search=100 -c hnsw.iterative_scan=relaxed_order",
        )
        register_vector(self.connection)
        self.connection.execute("select set_config('app.tenant', %s, false)", [str(library.tenant)])

    def ask(self, mode: Any) -> Ask:
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        plain = self.library.database.fetch
        for question in self.library.stock.questions:
            self.product.ask(mode)(question)  # what is remembered from then on is not asked again

            def note(
                tenant: UUID,
                statement: str,
                values: Mapping[str, Any],
                *,
                at: str = question.text,
                **options: Any,
            ) -> list[tuple[Any, ...]]:
                found[at] = (statement, values)  # the last one finds the answer
                return plain(tenant, statement, values, **options)

            self.library.database.fetch = note  # type: ignore[method-assign, assignment]
            self.product.ask(mode)(question)
        self.library.database.fetch = plain  # type: ignore[method-assign]

        def way(question: Question) -> list[tuple[UUID, int]]:
            statement, values = found[question.text]
            rows = self.connection.execute(statement, values, prepare=True, binary=True).fetchall()
            return [(row[0], row[1]) for row in rows]

        return way


def recall(wanted: list[list[tuple[UUID, int]]], got: list[list[tuple[UUID, int]]]) -> float:
    """Mean share of what should be found that was found."""
    return stats.mean(len(set(a) & set(b)) / len(a) if a else 1.0 for a, b in zip(wanted, got, strict=True))


def unfiltered(library: Library, product: Product, bare: Bare) -> Iterator[Line]:
    """Vector and hybrid searches over everything, against bare SQL."""
    questions = library.stock.questions
    ours, theirs, chunks = timed(questions, product.ask("vector"), bare.answer, bare.chunks, rounds=12)
    yield Line(
        what="vector search p50 against bare SQL",
        value=ours.p50 / chunks.p50,
        unit="x",
        must=2.0,
        aim=1.5,
        at_most=True,
        detail=f"ours {ours}, bare {chunks}",
    )
    yield Line(
        what="... against bare SQL for the same answer",
        value=ours.p50 / theirs.p50,
        unit="x",
        at_most=True,
        detail=f"ours {ours}, bare {theirs}",
    )
    for question in questions:
        bare.weigh(question)
    ours, theirs = timed(questions, product.ask("hybrid"), bare.hybrid)
    yield Line(
        what="hybrid search p50 against one statement",
        value=ours.p50 / theirs.p50,
        unit="x",
        must=1.8,
        aim=1.5,
        at_most=True,
        detail=f"ours {ours}, one statement {theirs}",
    )
    same = Same(library, product)
    for mode in ("vector", "hybrid"):
        ours, theirs = timed(questions, product.ask(mode), same.ask(mode))
        yield Line(
            what=f"{mode} search p50 against its own statement",
            value=ours.p50 / theirs.p50,
            unit="x",
            at_most=True,
            detail=f"ours {ours}, the statement {theirs}",
        )
    (words,) = timed(questions, product.ask("keyword"))
    yield Line(what="keyword search p50", value=words.p50, unit="ms", at_most=True, detail=str(words))


def filtered(library: Library, product: Product) -> Iterator[Line]:
    """Filters of three widths: the list is full, it is the right one, and it comes soon."""
    questions = library.stock.questions
    plain, *each = timed(
        questions,
        product.ask("vector", dedupe=False),
        *(product.ask("vector", condition, dedupe=False) for condition in FILTERS.values()),
    )
    both_plain, *both = timed(
        questions, product.ask("hybrid"), *(product.ask("hybrid", c) for c in FILTERS.values())
    )
    exact = library.exact(questions, K)
    yield Line(what="recall@10, no filter", value=recall(exact, plain.found), unit="", must=0.97)
    for n, (name, condition) in enumerate(FILTERS.items()):
        wanted = library.exact(questions, K, condition)
        full = min(len(got) - len(want) for got, want in zip(each[n].found, wanted, strict=True))
        yield Line(what=f"filter of {name}: rows missing of {K}", value=-full, unit="", must=0, at_most=True)
        yield Line(
            what=f"filter of {name}: recall@10", value=recall(wanted, each[n].found), unit="", must=0.97
        )
        for what, timing, of in (("vector", each[n], plain), ("hybrid", both[n], both_plain)):
            yield Line(
                what=f"filter of {name}: {what} p50, unfiltered = 1",
                value=timing.p50 / of.p50,
                unit="x",
                must=4,
                at_most=True,
                detail=f"{timing}, unfiltered {of}",
            )


def profile(library: Library, product: Product, mode: str, condition: Filter | None = None) -> None:
    """Where the time of a search goes, statement by statement."""
    spent: dict[str, list[float]] = {}
    plain = library.database.fetch

    def ask(tenant: UUID, statement: str, values: Mapping[str, Any], **options: Any) -> list[tuple[Any, ...]]:
        begun = time.perf_counter()
        rows = plain(tenant, statement, values, **options)
        spent.setdefault(" ".join(statement.split())[:90], []).append((time.perf_counter() - begun) * 1000)
        return rows

    library.database.fetch = ask  # type: ignore[method-assign, assignment]
    way = product.ask(mode, condition)
    start = time.perf_counter()
    for question in library.stock.questions:
        way(question)
    whole = (time.perf_counter() - start) * 1000
    library.database.fetch = plain  # type: ignore[method-assign]
    count = len(library.stock.questions)
    print(f"-- {mode} {condition or ''}: {whole / count:.2f} ms a search")
    for statement, times in spent.items():
        print(f"   {sum(times) / count:7.2f} ms in {len(times) / count:4.1f} calls  {statement}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--data", type=Path, help="folder of a stock that stays for the next run")
    parser.add_argument("--profile", action="store_true", help="also print the time of each statement")
    args = parser.parse_args()
    lines = []
    with installed(Stock(args.chunks, args.questions), args.data) as library:
        product = Product(library)
        if args.profile:
            for mode in ("vector", "hybrid"):
                for condition in (None, *FILTERS.values()):
                    profile(library, product, mode, condition)
        parts = (
            unfiltered(library, product, Bare(library)),
            filtered(library, product),
        )
        for line in (line for part in parts for line in part):
            lines.append(line)
            bound = "" if line.must is None else f"{'<=' if line.at_most else '>='} {line.must:g}"
            print(
                f"{'ok  ' if line.holds else 'MISS'} {line.what:<46} {line.value:7.2f} {line.unit:<3} {bound:<8}"
                f" {'aim ' + format(line.aim, 'g') if line.aim is not None else '':<8} {line.detail}",
                flush=True,
            )
    OUT.mkdir(exist_ok=True)
    report = [{**asdict(x), "holds": x.holds} for x in lines]
    (OUT / "search_bench.json").write_text(json.dumps(report, indent=1))
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
