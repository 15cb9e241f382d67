"""An installation in a folder, on the servers of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.conftest import Addresses
from workers import runtime as runtimes
from workers.local import embedded
from workers.queue.app import configure
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime
from workers.settings import load


@contextmanager
def installed(
    folder: Path, addresses: Addresses, servers: embedded.Servers, config: str
) -> Iterator[Runtime]:
    """The runtime of this process, configured as `config` says."""
    (folder / "larder.yaml").write_text(config, encoding="utf-8")
    settings = load(folder / "larder.yaml", {"LARDER_DATA": str(folder / "data")})
    where = runtimes.Addresses(
        database=addresses.app, control=addresses.control, admin=addresses.admin, broker=servers.broker_url
    )
    made = Runtime(settings, where)
    configure(settings.rag.queue, servers.broker_url)
    yield made
    made.close()


def without_messages(servers: embedded.Servers) -> None:
    """What was sent goes with the test."""
    with redis.Redis.from_url(servers.broker_url) as broker:
        broker.delete(*QUEUES)
