"""How long a search among many user stories takes in the database: `story_bench.py [--stories 100000] [--questions 200]`.

Stories of one tenant with vectors of 768 numbers in clusters, as texts of a few subjects have them, and a small tenant
beside it. Prints a table and writes tests/benchmarks/out/story_bench.json. Exit 1 if a figure misses its limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector
from sqlalchemy import TextClause, text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.database import migrations  # noqa: E402
from pipeline.database.engine import Database  # noqa: E402
from pipeline.stories import StoryMemory, search_similar_stories  # noqa: E402
from pipeline.stories.store import build_index  # noqa: E402
from tests.benchmarks.bench import OUT, Line  # noqa: E402
from workers.local import embedded  # noqa: E402

DIMENSIONS, SMALL, K = 768, 200, 5
MODEL = "gemini/gemini-embedding-001"
Rows = NDArray[np.float32]


def vectors(count: int, subjects: Rows, chance: np.random.Generator) -> Rows:
    """Of length 1, each near one of the subjects."""
    made = subjects[chance.integers(len(subjects), size=count)]
    made = made + 0.7 * chance.standard_normal(made.shape, dtype=np.float32) / np.sqrt(DIMENSIONS)
    found: Rows = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found


def load(url: str, tenant: UUID, rows: Rows) -> None:
    """Plant stories, as a superuser; every tenth has the tag `rare`."""
    with psycopg.connect(url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute("insert into tenant (id, name) values (%s, %s)", (tenant, str(tenant)))
        names = "tenant_id, user_story_id, title, user_story_text, tags, confidence_score, source_agent, model, embedding"
        kinds = ["uuid", "varchar", "varchar", "text", "text[]", "float8", "varchar", "text", "vector"]
        into = f"copy clarifai_user_story_embeddings ({names}) from stdin (format binary)"
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            copy.set_types(kinds)
            for n, row in enumerate(rows):
                tags = ["rare" if n % 10 == 0 else "usual"]
                told = "As a user, I want one thing more so that I have it. " * 4
                copy.write_row(
                    (tenant, f"US-{n}", f"Title {n}", f"{told}{n}", tags, 0.9, "bench", MODEL, row)
                )
        connection.execute("vacuum analyze clarifai_user_story_embeddings")


class Explained:
    """Runs each statement of a search once more, and notes how long the database took for it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.took: list[float] = []

    def execute(self, statement: TextClause, values: Any) -> Any:
        explained = text(f"explain (analyze, timing off, format json) {statement}")
        ((plan,),) = self._connection.execute(explained, values).scalars().all()
        self.took.append(plan["Planning Time"] + plan["Execution Time"])
        return self._connection.execute(statement, values)


def timed(
    memory: StoryMemory, questions: Rows, **how: Any
) -> tuple[list[float], list[float], list[set[str]]]:
    """Milliseconds in the database and of the whole call for each question, and what it found."""
    calls, found = [], []
    for question in questions:
        begun = time.perf_counter()
        rows = search_similar_stories(question.tolist(), K, 0.0, memory=memory, **how)
        calls.append((time.perf_counter() - begun) * 1000)
        found.append({row["id"] for row in rows})
    with memory.connected() as connection:
        session: Any = Explained(connection)
        for question in questions:
            search_similar_stories(question.tolist(), K, 0.0, session=session, memory=memory, **how)
    return session.took, calls, found


def recall(memory: StoryMemory, questions: Rows, found: Sequence[set[str]]) -> float:
    """Share of the truly nearest stories that were found."""
    nearest = text("""
        select id from clarifai_user_story_embeddings where tenant_id = :t
        order by embedding <=> cast(:v as vector) limit :k""")  # no index is made for this form
    shares = []
    with memory.connected() as connection:
        for question, ids in zip(questions, found, strict=True):
            value = {"t": memory.tenant, "v": str(question.tolist()), "k": K}
            shares.append(len(ids & {row.id for row in connection.execute(nearest, value)}) / K)
    return statistics.mean(shares)


def measure(database: Database, url: str, stories: int, count: int) -> Iterator[Line]:
    """The rows of the table."""
    chance = np.random.default_rng(7)
    subjects = chance.standard_normal((max(20, stories // 100), DIMENSIONS), dtype=np.float32)
    subjects /= np.linalg.norm(subjects, axis=1, keepdims=True)
    nobody: Any = None  # the questions are vectors already
    large, small = (
        StoryMemory(
            database=database, tenant=uuid4(), open_embedder=nobody, model=MODEL, dimensions=DIMENSIONS
        )
        for _ in range(2)
    )
    load(url, large.tenant, vectors(stories, subjects, chance))
    load(url, small.tenant, vectors(SMALL, subjects, chance))
    begun = time.perf_counter()
    with database.control() as connection:
        connection.exec_driver_sql("set local statement_timeout = 0")
        assert build_index(connection, DIMENSIONS)
    yield Line(what="index built", value=time.perf_counter() - begun, unit="s")
    questions = vectors(count, subjects, chance)
    cases: dict[str, tuple[StoryMemory, dict[str, Any]]] = {
        "search": (large, {}),
        "search for a prompt": (large, {"as_examples": True}),
        "with a tag of a tenth": (large, {"tag_filter": ["rare"]}),
        f"tenant of {SMALL}": (small, {}),
    }
    for name, (memory, how) in cases.items():
        timed(memory, questions[:20], **how)  # warm
        took, calls, found = timed(memory, questions, **how)
        p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
        hits = recall(memory, questions[:30], found[:30]) if not how else None
        detail = f"p95 {p95:.1f} ms, whole call p50 {statistics.median(calls):.1f} ms"
        detail += "" if hits is None else f", recall {hits:.2f}"
        yield Line(what=f"{name}, p50", value=p50, unit="ms", must=10.0, at_most=True, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stories", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="larder-story-bench-"))
    lines = []
    try:
        servers = embedded.ensure(folder)
        migrations.upgrade(servers.admin_url)
        password = embedded.Credentials.of_folder(folder).postgres
        port = psycopg.conninfo.conninfo_to_dict(servers.database_url)["port"]
        url = f"postgresql://postgres:{password}@127.0.0.1:{port}/larder"
        database = Database(servers.database_url, servers.control_url)
        for line in measure(database, url, args.stories, args.questions):
            lines.append(line)
            limit = "" if line.must is None else f"at most {line.must:g}"
            print(f"{line.what:<28} {line.value:>9.2f} {line.unit:<3} {limit:<12} {line.detail}", flush=True)
        database.close()
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "story_bench.json").write_text(json.dumps([asdict(line) for line in lines], indent=1))
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
