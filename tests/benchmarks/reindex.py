"""MiniLM to hashing and back while searches run: none fails, none mixes, none gets much slower.

Part of tests/benchmarks/bench.py (`--only reindex`). Embedding 20,000 chunks with MiniLM would take ten minutes, so all
but the chunks that are asked for get made-up vectors in the cache beforehand; everything else is the real thing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pgvector.psycopg import register_vector

from pipeline.documents import Chunk
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import open_embedder
from pipeline.ledger import tenant_id
from pipeline.search import SearchRequest, SearchResults
from workers.app import search
from workers.local.embedded.locating import open_runtime
from workers.settings import load

MODELS = ("all-MiniLM-L6-v2", "hashing-384")
QUESTIONS = 40
LIKE = 0.7
"""A chunk is at least so similar to its own text by either model; by the vectors of two models it is not."""
PAUSE = 0.05
CALM_SECONDS = 20.0


@dataclass
class Searches:
    """Asks for known chunks, one after the other, and notes what came back in which phase."""

    parts: Any
    questions: list[tuple[str, str]]
    """(text of a chunk, its content)"""
    phase: str = "warm"
    stopping: threading.Event = field(default_factory=threading.Event)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: int = 0
    mixed: int = 0
    models: set[str] = field(default_factory=set)

    def run(self) -> None:
        turn = 0
        while not self.stopping.wait(PAUSE):
            text, content = self.questions[turn % len(self.questions)]
            turn += 1
            begun, phase = time.perf_counter(), self.phase
            try:
                asked = SearchRequest(text=text, explain=True)
                found = search.search(self.parts, self.parts.settings.tenant_id, asked, by="bench")
            except Exception:  # noqa: BLE001 - whatever it is, it is counted
                self.failed += 1
                continue
            self.seconds.setdefault(phase, []).append(time.perf_counter() - begun)
            self._judge(found, content)

    def _judge(self, found: SearchResults, content: str) -> None:
        self.models.add(found.model)
        own = next((hit for hit in found.hits if hit.chunk.content == content), None)
        likeness = own.explanation.similarity if own and own.explanation else None
        self.failed += own is None or found.degradation_level > 0
        self.mixed += likeness is not None and likeness < LIKE

    def p95(self, *phases: str) -> float:
        return float(np.percentile([s for phase in phases for s in self.seconds[phase]], 95) * 1000)


def prepare(site: Any, chunks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Put a vector of every chunk into the cache, and return what may be asked."""
    random = np.random.default_rng(7)
    made = [Chunk(ord=0, content=content, context=context) for context, content in chunks]
    vectors = random.normal(size=(len(made), 384)).astype(np.float32)
    asked = [int(n) for n in random.choice(len(made), QUESTIONS, replace=False)]
    embedder = open_embedder(EmbeddingOptions(provider="minilm"))
    for n in asked:
        vectors[n] = embedder.embed_documents([made[n].embedding_text])[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with site.connect() as connection:
        register_vector(connection)
        tenant = tenant_id("default")
        with connection.cursor() as cursor:
            cursor.executemany(
                """insert into embedding_cache (tenant_id, model, hash, vector)
                   values (%s, %s, %s, %s::real[]::vector::halfvec) on conflict do nothing""",
                [
                    (tenant, MODELS[0], bytes.fromhex(c.hash), v.tolist())
                    for c, v in zip(made, vectors, strict=True)
                ],
            )
    return [(made[n].embedding_text, made[n].content) for n in asked]


def configure(site: Any) -> None:
    """No answers from memory: they would make every search look alike."""
    file = site.root / "larder.yaml"
    file.write_text(file.read_text().replace("{exactBelow: 0}", "{exactBelow: 0, cache: {enabled: false}}"))


def measure(site: Any, chunks: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Rows for the table of bench.py."""
    configure(site)
    site.larder("up", "--detach", "--no-flower")
    questions = prepare(site, chunks)
    site.larder("index")
    site.wait_until_built()
    parts = open_runtime(load(site.root / "larder.yaml", {}))
    searches = Searches(parts, questions)
    thread = threading.Thread(target=searches.run)
    thread.start()
    try:
        fill, switched, back = _there_and_back(site, searches)
    finally:
        searches.stopping.set()
        thread.join()
        parts.database.close()
    assert searches.models == set(MODELS), searches.models
    count = sum(map(len, searches.seconds.values()))
    yield _row("reindex, searches that failed", searches.failed, "", 0, f"of {count}")
    yield _row("reindex, searches with vectors of two models", searches.mixed, "", 0, f"of {count}")
    calm = searches.p95("calm")
    for phase in ("filling", "switching", "after", "back"):
        busy = searches.p95(phase)
        detail = f"{busy:.0f} ms, {calm:.0f} ms in calm, {len(searches.seconds[phase])} searches"
        yield _row(f"reindex, p95 of a search while {phase}", busy / calm, "x", 2, detail)
    yield _row("reindex, the switch itself", switched, "ms", 100, f"{len(chunks)} chunks")
    yield _row("reindex, the rollback itself", back, "ms", 100, f"{len(chunks)} chunks")
    yield {"what": "reindex, filling", "value": len(chunks) / fill, "unit": "/s", "detail": f"{fill:.0f} s"}


def _row(what: str, value: float, unit: str, must: float, detail: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "must": must, "at_most": True, "detail": detail}


def _there_and_back(site: Any, searches: Searches) -> tuple[float, float, float]:
    """Seconds of filling, and milliseconds of both switches."""
    time.sleep(3)
    searches.phase = "calm"
    time.sleep(CALM_SECONDS)
    searches.phase = "filling"
    begun = time.perf_counter()
    site.larder("reindex", "--provider", "hashing", "--wait")
    fill = time.perf_counter() - begun
    searches.phase = "switching"
    switched = site.larder("reindex", "switch")["milliseconds"]
    searches.phase = "after"
    time.sleep(CALM_SECONDS / 2)
    searches.phase = "back"
    back = site.larder("reindex", "rollback")["milliseconds"]
    time.sleep(CALM_SECONDS / 4)
    return fill, switched, back
