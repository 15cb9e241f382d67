"""The runtime of a process with embedded servers, for what asks and answers through the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import Addresses
from tests.workers.indexed import Build
from tests.workers.installed import installed
from workers import runtime as runtimes
from workers.app.ingestion import sync
from workers.local import embedded
from workers.queue.app import configure
from workers.queue.broker import lists_of
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime
from workers.settings import load

CONFIG = """
rag:
  tenant: acme
  project: app
  embedding: {provider: hashing, dimensions: 64}
"""


@pytest.fixture
def runtime(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    with installed(tmp_path, addresses, servers, CONFIG) as made:
        yield made


@pytest.fixture
def broker(servers: embedded.Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers.broker_url) as client:
        client.delete(*(part for queue in QUEUES for part in lists_of(queue)))
        yield client
        client.delete(*(part for queue in QUEUES for part in lists_of(queue)))


PAGES = """
rag:
  embedding: {{provider: hashing, dimensions: {dimensions}, cache: {{maxSize: {cache}}}}}
  chunking: {{maxSize: {max_size}, overlap: 50}}
  retrieval: {retrieval}
  sources:
    - {{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}
"""


@pytest.fixture
def build(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, broker: redis.Redis
) -> Iterator[Build]:
    """Builds a runtime with an embedder of this many dimensions on this test's database, for the folder `docs`.

    Messages go to a real broker that nobody reads.
    """
    every: list[Runtime] = []

    def make(
        dimensions: int = 384, *, retrieval: str = "{}", cache: int = 1000, max_size: int = 1000
    ) -> Runtime:
        section = PAGES.format(dimensions=dimensions, retrieval=retrieval, cache=cache, max_size=max_size)
        (tmp_path / "larder.yaml").write_text(section, encoding="utf-8")
        where = runtimes.Addresses(
            database=addresses.app,
            control=addresses.control,
            admin=addresses.admin,
            broker=servers.broker_url,
        )
        made = Runtime(load(tmp_path / "larder.yaml", {}), where)
        configure(made.rag.queue, where.broker)
        sync.register(made)
        every.append(made)
        return made

    yield make
    for one in every:
        one.close()
