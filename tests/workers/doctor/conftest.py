"""An installation for the doctor to look at, and what may be wrong with its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Addresses
from tests.workers.doctor.installation import CONFIG, Store, beat
from tests.workers.installed import installed, without_messages
from workers import embedded, runtime
from workers.control import sync
from workers.runtime import Runtime


@pytest.fixture
def parts(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    with installed(tmp_path, addresses, servers, CONFIG) as made:
        runtime.use(made)
        sync.register(made)
        yield made
    without_messages(servers)


@pytest.fixture
def elsewhere(parts: Runtime) -> Iterator[Callable[..., Runtime]]:
    """`elsewhere(broker=...)`: the same installation, with another address; closed at the end."""
    made: list[Runtime] = []

    def build(**addresses: str) -> Runtime:
        made.append(Runtime(parts.settings, runtime.Addresses(**{**vars(parts.addresses), **addresses})))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def store(parts: Runtime, tmp_path: Path) -> Store:
    """Three documents, indexed, and workers that say they live."""
    made = Store(parts, tmp_path)
    for name in ("berth.md", "crane.md", "tide.md"):
        made.write(name)
    made.sync()
    beat(parts)
    return made
