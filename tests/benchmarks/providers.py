"""Embedding within limits: time against what the limits allow, texts paid twice, and what kills cost.

Each provider's own embedder asks its fake on this machine; four processes share one budget in Valkey and one ledger
in PostgreSQL. The window that providers count over is shortened from a minute to seconds, the limits with it.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import open_embedder
from pipeline.ingest.steps import Indexer
from pipeline.ingest.text_embedding import EmbeddingTerms
from pipeline.ledger import Item, Stage
from tests.fakes import gemini_embedding, huggingface_server, ollama_server, openai_server
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer
from tests.pipeline.source_ledger import SourceLedger, document, fill_index, paragraphs
from workers.app.ingestion import steps
from workers.limits.allowance import TenantBudget
from workers.limits.limiters import ProviderRateLimiter, RateLimits
from workers.local import embedded
from workers.settings.embedding import EmbeddingBudgetSettings
from workers.settings.queue import QueueSettings

WIDTH, BATCH, PROCESSES = 64, 100, 4
WINDOW, LIMIT = 6.0, 2600
"""10,000 texts take three windows and what is left over: 18 seconds."""
LATENCY = 0.02
KEY = "bench-key"
PARAGRAPHS = 20


def vector(text: str, *_: object, **__: object) -> list[float]:
    """Quick, and different for each text: the fake must not be what is measured."""
    chance = random.Random(text)
    return [chance.gauss(0, 1) for _ in range(WIDTH)]


class Limited:
    """In front of a fake: a limit over a sliding window, a latency, and a bill."""

    def __init__(self, fake: FakeServer, limit: int | None) -> None:
        self.limit = limit
        self.latency = LATENCY
        self.bill: Counter[str] = Counter()
        self.refused = 0
        self.first = self.last = 0.0
        """When the first text was taken, and when the last."""
        self._granted: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()
        self._answer = fake.answer
        fake.answer = self.answer  # type: ignore[method-assign]

    def answer(self, seen: Seen) -> Answer:
        texts = _texts(seen.json)
        now = time.monotonic()
        with self._lock:
            while self._granted and now - self._granted[0][0] >= WINDOW:
                self._granted.popleft()
            if self.limit and sum(n for _, n in self._granted) + len(texts) > self.limit:
                self.refused += 1
                return Answer(
                    status=429, headers={"Retry-After": "1"}, json={"error": {"message": "slow down"}}
                )
            self._granted.append((now, len(texts)))
            self.first, self.last = self.first or now, now
            self.bill.update(texts)
        time.sleep(self.latency)
        return self._answer(seen)


def _texts(body: Mapping[str, Any]) -> list[str]:
    if "requests" in body:
        return ["".join(part["text"] for part in one["content"]["parts"]) for one in body["requests"]]
    return list(body.get("input") or body["inputs"])


@contextmanager
def fake(provider: str) -> Iterator[tuple[FakeServer, EmbeddingOptions]]:
    """The provider's fake, and how to open its embedder."""
    fakes: dict[str, Callable[[], Any]] = {
        "openai": lambda: openai_server.FakeOpenAI(key=KEY, models={"bench": WIDTH}),
        "ollama": ollama_server.FakeOllama,
        "huggingface": lambda: huggingface_server.FakeHuggingFace(token=KEY),
        "gemini": lambda: gemini_embedding.FakeGeminiEmbedding(key=KEY),
    }
    made = fakes[provider]()
    for module in (openai_server, ollama_server, huggingface_server):
        vars(module)["word_vector"] = vector
    gemini_embedding._vector = lambda text, one: vector(text) + [0.0] * (one["outputDimensionality"] - WIDTH)
    if provider == "ollama":
        made.pulled = {"bench:latest": (WIDTH, 2048)}
    if provider == "huggingface":
        made.models = {"bench": (WIDTH, 512)}
    with made:
        yield (
            made,
            EmbeddingOptions(
                provider=provider,
                model="gemini-embedding-001" if provider == "gemini" else "bench",
                dimensions=128 if provider == "gemini" else WIDTH,
                base_url=made.address + ("/v1" if provider == "openai" else ""),
                api_key="" if provider == "ollama" else KEY,
                batch_size=32 if provider == "huggingface" else BATCH,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker process is told."""

    database: str
    control: str
    broker: str
    tenant: str
    name: str
    limit: int | None
    options: dict[str, Any]

    def step(self) -> Indexer:
        """The product's own embed step, within the product's own budget."""
        database = Database(self.database, self.control)
        embedder = open_embedder(EmbeddingOptions(**self.options))
        limits = RateLimits(texts=self.limit, window=WINDOW, query_share=0.0)
        rate = ProviderRateLimiter(self.broker, self.name, limits)

        def budget(tenant: UUID) -> TenantBudget:
            return TenantBudget(
                tenant_id=tenant,
                database=database,
                provider=self.name,
                model="bench",
                daily=EmbeddingBudgetSettings(),
                rate=rate,
            )

        return Indexer(
            database=database,
            chunker_of=lambda _name, _type: open_chunker(ChunkingOptions()),
            embedder=lambda: embedder,
            model="bench",
            index=fill_index,
            decide=partial(steps.decide, QueueSettings()),
            lease=3.0,
            crashes=100,  # there is no pump here, and kills are many
            slice_seconds=60.0,
            terms=EmbeddingTerms(provider=self.name, budget=budget, fingerprint=self.name),
        )


def work(job: Job) -> None:
    """Until nothing waits to be embedded."""
    step, tenant = job.step(), UUID(job.tenant)
    due = """
        select document_id, version from index_work
        where not dead and stage = 'chunked' and due_at <= now()
          and (lease_until is null or lease_until < now()) order by random() limit 10"""
    while True:
        with step.database.tenant(tenant) as connection:
            items = [Item(*row) for row in connection.exec_driver_sql(due)]
            left = connection.exec_driver_sql(
                "select count(*) from index_work where stage = 'chunked'"
            ).scalar_one()
        if not left:
            return
        if items:
            step.embed(tenant, items)
        else:
            time.sleep(0.05)


class Bench:
    """Servers, and a tenant with texts for each run."""

    def __init__(self, folder: Path) -> None:
        self.servers = embedded.ensure(folder)
        migrations.upgrade(self.servers.admin_url)
        self.database = Database(self.servers.database_url, self.servers.control_url)

    def prepare(self, name: str, texts: int, limit: int | None, options: EmbeddingOptions) -> Job:
        """A tenant whose documents wait to be embedded."""
        notes = SourceLedger(self.database, uuid4(), uuid4())
        documents = [
            document(f"d{n}", paragraphs(PARAGRAPHS, f"text{n}")) for n in range(texts // PARAGRAPHS)
        ]
        notes.admit(*documents)
        items = notes.items()
        for at in range(0, len(items), 50):
            notes.indexer().chunk(notes.tenant, items[at : at + 50])
        given = {k: v for k, v in asdict(options).items() if k != "model_path"}
        return Job(
            database=self.servers.database_url,
            control=self.servers.control_url,
            broker=self.servers.broker_url,
            tenant=str(notes.tenant),
            name=name,
            limit=limit,
            options=given,
        )

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, json.dumps(asdict(job))])

    def left(self, job: Job) -> int:
        with self.database.tenant(UUID(job.tenant)) as connection:
            waiting = f"select count(*) from index_work where stage = '{Stage.CHUNKED}'"
            return int(connection.exec_driver_sql(waiting).scalar_one())


def limited(bench: Bench, provider: str, texts: int) -> Iterator[dict[str, Any]]:
    """All texts through one provider."""
    with fake(provider) as (server, options):
        front = Limited(server, LIMIT)
        job = bench.prepare(provider, texts, LIMIT, options)
        running = [bench.start(job) for _ in range(PROCESSES)]
        codes = [process.wait() for process in running]
        seconds = front.last - front.first
    assert codes == [0] * PROCESSES
    allowed = (math.ceil(texts / LIMIT) - 1) * WINDOW
    paid = sum(front.bill.values())
    yield {
        "what": f"{provider}: time against what the limits allow",
        "value": seconds / allowed,
        "unit": "x",
        "must": 1.2,
        "at_most": True,
        "detail": f"{len(front.bill)} texts, {LIMIT} in any {WINDOW:g} s, {seconds:.1f} s, {front.refused} times refused",
    }
    yield {
        "what": f"{provider}: texts paid twice",
        "value": float(paid - len(front.bill)),
        "unit": "",
        "must": 0,
        "at_most": True,
        "detail": f"{paid} texts paid by {PROCESSES} processes",
    }


def killed(bench: Bench, texts: int, kills: int) -> Iterator[dict[str, Any]]:
    """Workers killed in the middle of their calls, and started again."""
    with fake("openai") as (server, options):
        front = Limited(server, None)
        front.latency = 0.5
        job = bench.prepare("killed", texts, None, options)
        running = [bench.start(job) for _ in range(PROCESSES)]
        for number in range(kills):
            before = len(front.bill)
            while len(front.bill) < before + 2 * BATCH and bench.left(job):
                time.sleep(0.01)
            assert bench.left(job), "a kill must hit work"
            running[number % PROCESSES].send_signal(signal.SIGKILL)
            running[number % PROCESSES].wait()
            running[number % PROCESSES] = bench.start(job)
        codes = [process.wait() for process in running]
    assert codes == [0] * PROCESSES
    twice = sum(front.bill.values()) - len(front.bill)
    yield {
        "what": "killed: calls paid again per kill",
        "value": twice / BATCH / kills,
        "unit": "",
        "must": 1,
        "at_most": True,
        "detail": f"{twice} of {len(front.bill)} texts paid twice after {kills} kills, {BATCH} texts a call",
    }


def measure(texts: int) -> Iterator[dict[str, Any]]:
    """Rows for the table."""
    folder = Path(tempfile.mkdtemp(prefix="larder-bench-"))
    try:
        bench = Bench(folder)
        for provider in ("openai", "ollama", "huggingface", "gemini"):
            yield from limited(bench, provider, texts)
        yield from killed(bench, max(5000, texts // 2), 5)
        bench.database.close()
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    """A worker process."""
    os.nice(1)
    work(Job(**json.loads(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
