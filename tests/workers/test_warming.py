"""What a worker of Step 4 does before its first job, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from prometheus_client import REGISTRY

from pipeline.search import SearchRequest
from tests.conftest import Addresses
from tests.fakes.openai_server import KEY, FakeOpenAI
from tests.ledger import of_connection
from tests.workers.indexed import index
from workers import runtime as runtimes
from workers.app.enrichment import job
from workers.app.ingestion import sync
from workers.app.search import retriever
from workers.local import embedded
from workers.queue.app import configure
from workers.runtime import Runtime
from workers.settings import load

CONFIG = """
rag:
  tenant: {tenant}
  embedding: {section}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
"""
Open = Callable[[str], Runtime]


@pytest.fixture
def opened(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Open]:
    """`opened(section)`: a new process of an installation with one page and this section `embedding`."""
    made: list[Runtime] = []
    tenant = f"acme-{uuid4()}"  # what the broker remembers of other tests is of other tenants
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tides.md").write_text(
        "# Tides\n\nThe pilot waits for the tide.\n", encoding="utf-8"
    )

    def build(section: str) -> Runtime:
        (tmp_path / "larder.yaml").write_text(CONFIG.format(tenant=tenant, section=section), encoding="utf-8")
        where = runtimes.Addresses(
            database=addresses.app,
            control=addresses.control,
            admin=addresses.admin,
            broker=servers.broker_url,
        )
        made.append(Runtime(load(tmp_path / "larder.yaml", {}), where))
        configure(made[-1].rag.queue, servers.broker_url)
        return made[-1]

    yield build
    for runtime in made:
        if runtime.allowance.rate:
            runtime.allowance.rate.disconnect()
        runtime.database.close()
    with redis.Redis.from_url(servers.broker_url) as broker:
        broker.delete("larder:embed", *broker.keys("larder:embed:*"))


def counted(runtime: Runtime) -> tuple[int, int]:
    """Calls and texts that the ledger knows of."""
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        usage = of_connection(connection).usage()
    return sum(one["calls"] for one in usage), sum(one["texts"] for one in usage)


def counts() -> list[float | None]:
    """Searches that this process has counted, and looks for a question's vector."""
    looks = [{"cache": "near", "found": found} for found in ("yes", "no")]
    vectors = [REGISTRY.get_sample_value("larder_query_vector_lookups_total", labels) for labels in looks]
    return [REGISTRY.get_sample_value("larder_query_count_total"), *vectors]


def test_a_paid_model_is_not_asked_before_the_first_job(opened: Open) -> None:
    with FakeOpenAI() as service:
        section = f"{{provider: openai, baseUrl: {service.address}/v1, apiKey: {KEY}, requestsPerMinute: 60}}"
        first = opened(section)
        sync.register(first)
        index(first)
        before = len(service.requests())
        assert counted(first) == (before, service.usage.texts)
        for runtime in (first, opened(section)):
            job.warm(runtime)
            assert len(service.requests()) == before
            assert counted(first) == (before, service.usage.texts)


def test_a_model_of_our_own_has_run_before_the_first_job(opened: Open) -> None:
    runtime: Any = opened("{provider: hashing}")
    asked: list[str] = []
    embed = runtime.embedder.embed_query

    def noted(question: str) -> Any:
        asked.append(question)
        return embed(question)

    runtime.embedder.embed_query = noted
    before = counts()
    job.warm(runtime)
    assert asked == ["warm"], "without a document a search asks no model"
    assert counts() == before, "nobody asked"
    retriever(runtime, runtime.settings.tenant_id).search(SearchRequest(text="tide"))
    assert counts() != before
