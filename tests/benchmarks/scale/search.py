"""Searches of the product from one process or several at once: how long they take, and how many of the nearest they find."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import numpy as np
import psutil

from pipeline.database.engine import Database
from pipeline.embedding import Embedder
from pipeline.search import RetrievalOptions, Retriever, SearchRequest
from pipeline.search.records import Filter, Mode
from tests.benchmarks.library import Question
from tests.benchmarks.scale.clock import measured
from tests.benchmarks.scale.store import K, Store
from tests.benchmarks.search_bench import Prepared

Found = list[tuple[UUID, int]]


@dataclass(frozen=True)
class Way:
    """How is searched."""

    mode: Mode = "vector"
    filter: Filter = field(default_factory=Filter)
    dedupe: bool = True


RARE = Filter(tags=("rare",))
WAYS = {
    "vector": Way(),
    "hybrid": Way("hybrid"),
    "keyword": Way("keyword"),
    "vector, filter of 1 %": Way(filter=RARE),
    "hybrid, filter of 1 %": Way("hybrid", RARE),
}


@dataclass
class Asked:
    """Milliseconds of each search by the clock, of the processor, and what was found."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    whole: float = 0.0
    """Seconds for all, the first round left out."""


class Asker:
    """The product's own search as one tenant; the model's time to embed a question is not in question here."""

    def __init__(self, url: str, tenant: UUID) -> None:
        self.database = Database(url, url)
        self.embedder = Prepared()
        self.retriever = Retriever(
            self.database, tenant, lambda _index: cast("Embedder", self.embedder), RetrievalOptions()
        )
        self.tenant = tenant

    def search(self, question: Question, way: Way) -> Found:
        """Document and ordinal of each hit."""
        self.embedder.vector = question.vector
        request = SearchRequest(
            text=question.text,
            mode=way.mode,
            k=K,
            filter=way.filter,
            min_similarity=-1.0,
            dedupe=way.dedupe,
        )
        return [(hit.document.id, hit.chunk.ord) for hit in self.retriever.search(request).hits]

    def ask(self, questions: Sequence[Question], way: Way, rounds: int = 2) -> Asked:
        """Each question so often, after a round in which caches fill and plans are made."""
        asked = Asked()
        for question in questions:
            self.search(question, way)
        ((backend,),) = self.database.fetch(self.tenant, "select pg_backend_pid()", {})
        begun = time.perf_counter()
        for number in range(rounds):
            for question in questions:
                with measured(backend) as took:
                    found = self.search(question, way)
                asked.seconds.append(took.seconds * 1000)
                asked.cpu.append(took.cpu * 1000)
                if number == 0:
                    asked.found.append(found)
        asked.whole = time.perf_counter() - begun
        return asked


def _worker(
    url: str, tenant: UUID, questions: Sequence[Question], way: Way, ready: Any, results: Any
) -> None:
    asker = Asker(url, tenant)
    asker.search(questions[0], way)
    ready.wait()
    results.put(asker.ask(questions, way, rounds=1))
    asker.database.close()


def at_once(store: Store, processes: int, way: Way) -> dict[str, float]:
    """So many processes ask all questions at the same time."""
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(processes), context.Queue()
    questions = store.blend.texts.questions
    arguments = (store.servers.database_url, store.tenants[0], questions, way, ready, results)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    asked = [results.get(timeout=3600) for _ in workers]
    for worker in workers:
        worker.join()
    return figures(asked) | {"per_second": sum(len(a.seconds) / a.whole for a in asked)}


def figures(asked: Sequence[Asked]) -> dict[str, float]:
    """Of all searches together."""
    seconds = np.concatenate([a.seconds for a in asked])
    cpu = np.concatenate([a.cpu for a in asked])
    return {
        "p50_ms": float(np.median(seconds)),
        "p95_ms": float(np.quantile(seconds, 0.95)),
        "cpu_p50_ms": float(np.median(cpu)),
        "cpu_p95_ms": float(np.quantile(cpu, 0.95)),
        "load": psutil.getloadavg()[0],
    }


def measure(store: Store, processes: Sequence[int]) -> dict[str, Any]:
    """All ways from one process, recall by meaning, the small tenant's, and several processes at once."""
    questions = store.blend.texts.questions
    large, small = (Asker(store.servers.database_url, tenant) for tenant in store.tenants)
    rows: dict[str, Any] = {name: figures([large.ask(questions, way)]) for name, way in WAYS.items()}
    for name, asker, condition in (
        ("all", large, Filter()),
        ("rare", large, RARE),
        ("other", small, Filter()),
    ):
        asked = asker.ask(questions, Way(filter=condition, dedupe=False), rounds=1)
        rows[f"recall, {name}"] = {"recall": store.recall(name, asked.found), **figures([asked])}
    for asker in (large, small):
        asker.database.close()
    for count in processes:
        rows[f"hybrid, {count} at once"] = at_once(store, count, WAYS["hybrid"])
    return rows
