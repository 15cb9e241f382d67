"""An installation for the doctor to look at, and what may be wrong with its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import Addresses
from tests.workers.doctor.installation import CONFIG, Store, beat
from workers import embedded, registering, runtime
from workers.app import configure
from workers.celeryconfig import QUEUES
from workers.runtime import Runtime
from workers.settings import load


@pytest.fixture
def parts(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    settings = load(tmp_path / "larder.yaml", {"LARDER_DATA": str(tmp_path / "data")})
    where = runtime.Addresses(
        database=addresses.app, control=addresses.control, admin=addresses.admin, broker=servers.broker_url
    )
    made = Runtime(settings, where)
    configure(settings.rag.queue, servers.broker_url)
    runtime.use(made)
    registering.register(made)
    yield made
    made.database.close()
    with redis.Redis.from_url(servers.broker_url) as broker:
        broker.delete(*QUEUES)


@pytest.fixture
def elsewhere(parts: Runtime) -> Iterator[Callable[..., Runtime]]:
    """`elsewhere(broker=...)`: the same installation, with another address; closed at the end."""
    made: list[Runtime] = []

    def build(**addresses: str) -> Runtime:
        made.append(Runtime(parts.settings, runtime.Addresses(**{**vars(parts.addresses), **addresses})))
        return made[-1]

    yield build
    for one in made:
        one.database.close()


@pytest.fixture
def store(parts: Runtime, tmp_path: Path) -> Store:
    """Three documents, indexed, and workers that say they live."""
    made = Store(parts, tmp_path)
    for name in ("berth.md", "crane.md", "tide.md"):
        made.write(name)
    made.sync()
    beat(parts)
    return made
