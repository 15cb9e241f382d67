"""The parts of a process with embedded servers, for what asks and answers through the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import Addresses
from workers import embedded, runtime
from workers.app import configure
from workers.broker import lists_of
from workers.celeryconfig import QUEUES
from workers.runtime import Runtime
from workers.settings import load

CONFIG = """
rag:
  tenant: acme
  project: app
  embedding: {provider: hashing, dimensions: 64}
"""


@pytest.fixture
def parts(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    where = runtime.Addresses(
        database=addresses.app, control=addresses.control, admin=addresses.admin, broker=servers.broker_url
    )
    settings = load(tmp_path / "larder.yaml", {"LARDER_DATA": str(tmp_path / "data")})
    made = Runtime(settings, where)
    configure(settings.rag.queue, servers.broker_url)
    yield made
    made.database.close()


@pytest.fixture
def broker(servers: embedded.Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers.broker_url) as client:
        client.delete(*(part for queue in QUEUES for part in lists_of(queue)))
        yield client
        client.delete(*(part for queue in QUEUES for part in lists_of(queue)))
